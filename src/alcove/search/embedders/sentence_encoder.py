"""Sentence models on onnxruntime: tokenise a text, run the network, and pool its states into one vector.

Subclasses of `SentenceEncoder` say which files a model has and how to use it: the built-in model (`minilm`),
and any folder (`onnx_folder`).
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from alcove.search.embedders import EmbedderUnavailable, Matrix, load_numpy, sample_windows, spans, unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    from alcove.search.late_interaction import Reduction

Pooling = Literal["mean", "cls", "max", "lasttoken"]
Mask: TypeAlias = "NDArray[np.bool_]"

WINDOW = 256
"""Maximum tokens of a window: one vector cannot represent more, whatever the model takes."""
POSITIONS = 512
"""Default maximum of tokens that a network takes."""
OVERLAP = 32
SLACK = 16
"""A window that is tokenised by itself may have a few tokens more than it was cut to."""
BATCH, BATCH_TOKENS = 32, 512
"""Texts, and tokens with padding, in one run of the network: larger batches are no faster."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CORES = os.cpu_count() or 1
THREADS = min(4, CORES)
_running = threading.BoundedSemaphore(max(2, CORES // THREADS))
"""Concurrent batches, including the indexer's: bounds the memory that many long queries take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """How to use a model: as it was trained."""

    pooling: Pooling = "mean"
    """How the states of a text's tokens are combined to one vector."""
    window: int = WINDOW
    positions: int = POSITIONS
    query_prompt: str = ""
    """The prefix of queries."""
    text_prompt: str = ""
    """The prefix of texts."""


class TokenStates(NamedTuple):
    """The states of the tokens of a batch of texts."""

    rows: list[int]
    """The position of each text among all texts."""
    states: Matrix
    """A state for each token: [texts, tokens, dimensions]."""
    used: Mask
    """False for padding: [texts, tokens]."""

    def pool(self, pooling: Pooling) -> Matrix:
        """A row of length 1 for each text."""
        import numpy as np  # noqa: PLC0415

        states, used = self.states, self.used
        if pooling == "cls":
            rows = states[:, 0]
        elif pooling == "lasttoken":
            rows = states[np.arange(len(used)), used.sum(axis=1) - 1]
        elif pooling == "max":
            rows = np.where(used[:, :, None], states, -np.inf).max(axis=1)
        else:
            rows = (used[:, None, :].astype(np.float32) @ states)[:, 0] / used.sum(axis=1, keepdims=True)
        return unit(rows)


class Network(NamedTuple):
    """A loaded model."""

    tokenizer: Tokenizer
    session: InferenceSession
    inputs: dict[str, str]
    """The type of each input."""
    output: str
    """The output with a state for each token; if there is none, the one with a state for each text."""
    padding: int
    """The padding token."""
    max_tokens: int
    """Tokens of a text that fit in a window with its prefix and the tokens that the tokenizer adds."""
    dimensions: int = 0
    reduction: Reduction | None = None
    """Reduces token states for late interaction; None if the model has none."""

    def run(self, rows: list[int], tokens: list[list[int]]) -> TokenStates:
        """Runs the network on a batch; `rows`: the position of each text among all texts."""
        import numpy as np  # noqa: PLC0415

        lengths = np.array([*map(len, tokens)])
        used = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(used.shape, self.padding, dtype=np.int64)
        ids[used] = np.concatenate(tokens)
        inputs = dict(zip(INPUTS, (ids, used.astype(np.int64), np.zeros_like(ids)), strict=True))
        feed = {
            name: inputs[name].astype(np.int32 if kind == "tensor(int32)" else np.int64, copy=False)
            for name, kind in self.inputs.items()
        }
        with _running:
            states = np.asarray(self.session.run([self.output], feed)[0], dtype=np.float32)
        if states.ndim == 2:  # the network pools by itself: one state for each text
            return TokenStates(rows, states[:, None, :], np.ones((len(states), 1), dtype=bool))
        return TokenStates(rows, states, used)


class SentenceEncoder(ABC):
    """An embedder that runs a model from files. Nothing is loaded before the first text that needs it."""

    def __init__(self, config: EncoderConfig) -> None:
        self.config = config
        self._loading = threading.Lock()
        self._loaded: Network | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """Marks the vectors of this model; it changes with the files and the configuration."""

    @property
    def dimensions(self) -> int:
        return self._network().dimensions

    @abstractmethod
    def files(self) -> tuple[Path, Path]:
        """The verified files of the tokenizer and of the network."""

    def windows(self, text: str) -> list[str]:
        config = self.config
        prompt = max(config.text_prompt, config.query_prompt, key=len)
        if len((prompt + text).encode()) <= config.window - SLACK:  # a token has at least one byte
            return [text]
        network = self._network()
        # A batch of one, because for a single text the tokenizer keeps the GIL.
        (encoding,) = network.tokenizer.encode_batch([text], add_special_tokens=False)
        if len(encoding.ids) <= network.max_tokens:
            return [text]
        word, place = encoding.word_ids, encoding.offsets
        begins = [n for n in range(len(word)) if n == 0 or word[n] != word[n - 1]]
        # A text without spaces may be one word.
        words = pairwise([*begins, len(word)])
        pieces = [(n, min(n + OVERLAP, end)) for begin, end in words for n in range(begin, end, OVERLAP)]
        runs = spans(pieces, size=network.max_tokens, overlap=OVERLAP)
        return [text[place[first][0] : place[end - 1][1]] for first, end in runs]

    def embed(self, texts: Sequence[str]) -> Matrix:
        """A row for each text; a text longer than a window gets the mean of its windows."""
        return self._embed(texts, self.config.text_prompt)

    def embed_with_tokens(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """A row for each text, and in the same run the reduced tokens of each short text."""
        tokens = [b""] * len(texts)
        return self._embed(texts, self.config.text_prompt, tokens), tokens

    def embed_query_with_tokens(self, text: str) -> tuple[Matrix, bytes]:
        """A row for a query, and its reduced tokens if it is short."""
        windows = sample_windows(self.windows(text))
        tokens = [b""] * len(windows)
        rows = self._embed(windows, self.config.query_prompt, tokens)
        return rows.mean(axis=0, keepdims=True), tokens[0] if len(windows) == 1 else b""

    def embed_query(self, text: str) -> Matrix:
        """A row for a query, the mean of its windows."""
        return self.embed_query_with_tokens(text)[0]

    def _embed(self, texts: Sequence[str], prompt: str, token_rows: list[bytes] | None = None) -> Matrix:
        """A row for each text; puts the reduced tokens of each short text into `token_rows`."""
        import numpy as np  # noqa: PLC0415

        network, config = self._network(), self.config
        parts = [[each.ids] for each in network.tokenizer.encode_batch([prompt + text for text in texts])]
        for n, part in enumerate(parts):
            if len(part[0]) > config.window + SLACK:
                windows = [prompt + window for window in self.windows(texts[n])]
                parts[n] = [each.ids for each in network.tokenizer.encode_batch(windows)]
        most = config.positions  # the last token ends the text and stays
        tokens = [ids if len(ids) <= most else [*ids[: most - 1], ids[-1]] for part in parts for ids in part]
        rows = np.zeros((len(tokens), network.dimensions), dtype=np.float32)
        for batch in self._run_batches(network, tokens):
            rows[batch.rows] = batch.pool(config.pooling)
            if network.reduction and token_rows is not None and len(tokens) == len(texts):
                for n, states, used in zip(*batch, strict=True):
                    token_rows[n] = network.reduction.reduce(states[used])
        if len(rows) == len(texts):
            return rows
        first = np.cumsum([0, *map(len, parts)])[:-1]
        return unit(np.add.reduceat(rows, first, axis=0))

    def _run_batches(self, network: Network, tokens: list[list[int]]) -> Iterator[TokenStates]:
        """The token states of texts, in batches of similar length, so that little is padding."""
        order = sorted(range(len(tokens)), key=lambda n: len(tokens[n]), reverse=True)
        while order:
            count = max(1, min(BATCH, BATCH_TOKENS // len(tokens[order[0]])))
            batch, order = order[:count], order[count:]
            yield network.run(batch, [tokens[n] for n in batch])

    def _network(self) -> Network:
        with self._loading:
            if self._loaded is None:
                load_numpy()
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Network:
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415  loaded with the model
        except ImportError as error:
            raise EmbedderUnavailable(f"{error.name} is missing: pip install alcove") from None
        tokenizer_file, weights = self.files()
        session = open_network(weights)
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # a bare Exception
            raise EmbedderUnavailable(f"the tokenizer {tokenizer_file} cannot be loaded: {error}") from None
        padding = (tokenizer.padding or {}).get("pad_id", 0)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        inputs = {each.name: each.type for each in session.get_inputs()}
        if unknown := inputs.keys() - {*INPUTS}:
            raise EmbedderUnavailable(
                f"the model {weights} needs the input {unknown.pop()}, which no tokenizer provides"
            )
        outputs = session.get_outputs()
        output = next((each for each in outputs if len(each.shape) == 3), outputs[0]).name
        prompts = (self.config.query_prompt, self.config.text_prompt)
        longest = max((tokenizer.encode(prompt).ids for prompt in prompts), key=len)
        max_tokens = self.config.window - len(longest)
        if max_tokens < OVERLAP:
            raise EmbedderUnavailable(f"the prompts of {weights} leave no room for a text")
        network = Network(tokenizer, session, inputs, output, padding, max_tokens)
        try:
            return network._replace(dimensions=network.run([0], [longest or [0]]).states.shape[-1])
        except Exception as error:  # bare classes of onnxruntime's own
            raise EmbedderUnavailable(f"the model {weights} does not run: {error}") from None


def open_network(weights: Path, library: str | None = None) -> InferenceSession:
    """Loads a network; `library`: a file with operators that onnxruntime lacks."""
    try:
        from onnxruntime import InferenceSession, SessionOptions  # noqa: PLC0415  loaded with the model
    except ImportError as error:
        raise EmbedderUnavailable(f"{error.name} is missing: pip install alcove") from None
    options = SessionOptions()
    options.intra_op_num_threads = THREADS
    options.enable_cpu_mem_arena = False  # it would keep the memory of the largest batch
    # An idle server must not burn a core waiting for the next text.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        if library:
            options.register_custom_ops_library(library)
        return InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # bare classes of its own
        raise EmbedderUnavailable(f"the model {weights} cannot be loaded: {error}") from None
