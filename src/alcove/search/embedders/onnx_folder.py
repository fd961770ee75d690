"""Sentence models from a folder of the operator's, `onnx:FOLDER`; its files say how they are to be read.

The layout is that of sentence-transformers. Only the network and its tokenizer must be there:

    onnx/model.onnx, or model.onnx       the network; or model_quantized.onnx, or the only one there is
    tokenizer.json                       without one, the network must take texts and not tokens
    modules.json, 1_Pooling/config.json  how token states become a vector; their mean, where nothing is said
    sentence_bert_config.json            how many tokens are a window
    config_sentence_transformers.json    what is put before questions and before texts
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from alcove.core.errors import InvalidRequest
from alcove.search.embedders import (
    Embedder,
    EmbedderUnavailable,
    Matrix,
    character_windows,
    load_numpy,
    unit,
)
from alcove.search.embedders.sentence_encoder import (
    POSITIONS,
    SLACK,
    WINDOW,
    Pooling,
    Reading,
    SentenceEncoder,
    opened_network,
)

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

TOKENIZER = "tokenizer.json"
NETWORKS = ("onnx/model.onnx", "model.onnx", "onnx/model_quantized.onnx", "model_quantized.onnx")
POOLINGS: dict[str, Pooling] = {
    "cls": "cls",
    "cls_token": "cls",
    "mean": "mean",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean",  # they differ in length only
    "max": "max",
    "max_tokens": "max",
    "lasttoken": "lasttoken",
}
"""By the names that sentence-transformers has for them."""
TEXTS_AT_ONCE = 8


def folder_encoder(path: Path) -> Embedder:
    """The model at a path: its folder, or of several networks in a folder the file of one."""
    files = ModelFolder.at(path)
    return TextEncoder(files) if files.tokenizer is None else FolderEncoder(files)


@dataclass(frozen=True)
class ModelFolder:
    """The files of a model, and what they say about how it is read."""

    folder: Path
    network: Path
    tokenizer: Path | None
    reading: Reading

    @classmethod
    def at(cls, path: Path) -> ModelFolder:
        """What lies at a path; what cannot be read as it was meant to be is refused."""
        network = path if path.is_file() else _network(path)
        folder = network.parent.parent if network.parent.name == "onnx" else network.parent
        tokenizer = folder / TOKENIZER
        if not tokenizer.is_file():
            return cls(folder, network, None, Reading())
        try:
            return cls(folder, network, tokenizer, _reading(folder))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            told = f"a model whose files say how to read it, and those of {folder} do not ({error!r})"
            raise InvalidRequest("embedder", told) from None

    @cached_property
    def name(self) -> str:
        """The model's own name, if its files tell it, and a digest of them and of how they are read."""
        total = hashlib.sha256(repr(self.reading).encode())
        try:
            # Large weights are in files of their own, beside the network and called after it.
            weights = sorted(self.network.parent.glob(f"{self.network.name}*"))
            for file in [*weights, *filter(None, [self.tokenizer])]:
                with file.open("rb") as stream:
                    total.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise EmbedderUnavailable(
                f"the model in {self.folder} cannot be read: {error.strerror}"
            ) from None
        known = Path(str(_json(self.folder / "config.json").get("_name_or_path", ""))).name
        return f"{known or 'onnx'}@{total.hexdigest()[:12]}"


class FolderEncoder(SentenceEncoder):
    """A network that takes tokens, with the tokenizer beside it."""

    def __init__(self, files: ModelFolder) -> None:
        super().__init__(files.reading)
        self._files = files

    @property
    def name(self) -> str:
        return self._files.name

    def files(self) -> tuple[Path, Path]:
        return cast(Path, self._files.tokenizer), self._files.network


class TextEncoder:
    """A network that takes texts: its tokenizer is inside, made of operators of onnxruntime-extensions."""

    windows = staticmethod(character_windows)

    def __init__(self, files: ModelFolder) -> None:
        self._files = files
        self._loading = threading.Lock()
        self._session: InferenceSession | None = None

    @property
    def name(self) -> str:
        return self._files.name

    @property
    def dimensions(self) -> int:
        return int(self.embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row a text; what is longer than the network takes, it cuts itself."""
        import numpy as np  # noqa: PLC0415

        session = self._loaded()
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        name = session.get_inputs()[0].name
        calls = (texts[n : n + TEXTS_AT_ONCE] for n in range(0, len(texts), TEXTS_AT_ONCE))
        try:
            rows = [session.run(None, {name: np.array(some, dtype=object)})[0] for some in calls]
        except Exception as error:  # bare classes of onnxruntime's own
            raise EmbedderUnavailable(f"the model {self._files.network} failed: {error}") from None
        return unit(np.concatenate(rows).astype(np.float32))

    def _loaded(self) -> InferenceSession:
        with self._loading:
            if self._session is None:
                load_numpy()
                self._session = self._load()
            return self._session

    def _load(self) -> InferenceSession:
        network = self._files.network
        try:
            from onnxruntime_extensions import get_library_path  # noqa: PLC0415 - an extra of its own
        except ImportError:
            wanted = f"beside {network} there is no {TOKENIZER}, and for one inside of it"
            raise EmbedderUnavailable(
                f"{wanted} onnxruntime-extensions is missing: pip install '.[onnx-extensions]'"
            ) from None
        session = opened_network(network, get_library_path())
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if [each.type for each in inputs] != ["tensor(string)"] or len(outputs[0].shape) != 2:
            raise EmbedderUnavailable(
                f"the model {network} takes no texts: it needs its {TOKENIZER} beside it"
            )
        return session


def _network(folder: Path) -> Path:
    """The network's file in a folder."""
    for name in NETWORKS:
        if (folder / name).is_file():
            return folder / name
    found = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    if len(found) == 1:
        return found[0]
    what = "several .onnx files: name one of them" if found else "no .onnx file"
    raise InvalidRequest("embedder", f"the folder of a model after onnx:, and {folder} has {what}")


def _reading(folder: Path) -> Reading:
    """How a folder's files say that its network is read."""
    asked = _json(folder / "config_sentence_transformers.json")
    prompts = asked.get("prompts") or {}
    default = prompts.get(asked.get("default_prompt_name"), "")
    names = ("document", "passage", "corpus")
    limits = [
        _json(folder / "tokenizer_config.json").get("model_max_length"),
        _json(folder / "config.json").get("max_position_embeddings"),
    ]
    positions = int(min(POSITIONS, *(limit for limit in limits if limit), POSITIONS))
    longest = _json(folder / "sentence_bert_config.json").get("max_seq_length") or positions
    return Reading(
        pooling=_pooling(folder),
        window=min(WINDOW, longest, positions - SLACK),
        positions=positions,
        query_prompt=prompts.get("query", default),
        text_prompt=next((prompts[name] for name in names if name in prompts), default),
    )


def _pooling(folder: Path) -> Pooling:
    """How its modules turn token states into a vector; what else they would do to it is refused."""
    listed = folder / "modules.json"
    modules: list[dict[str, str]] = _json(listed, kind=list) if listed.exists() else []
    path = None if modules else "1_Pooling"
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            path = module["path"]
        elif kind not in {"Transformer", "Normalize"}:  # a vector is brought to length 1 in any case
            raise InvalidRequest("embedder", f"a model without the module {kind}, which {listed} lists")
    config = _json(folder / path / "config.json") if path else {}
    named = [config["pooling_mode"]] if isinstance(config.get("pooling_mode"), str) else []
    prefix = "pooling_mode_"
    named += [name.removeprefix(prefix) for name, on in config.items() if name.startswith(prefix) and on]
    if not named:
        return "mean"
    if len(named) > 1 or named[0] not in POOLINGS or config.get("include_prompt") is False:
        raise InvalidRequest(
            "embedder", f"one pooling of mean, cls, max or lasttoken in {folder / str(path)}"
        )
    return POOLINGS[named[0]]


def _json(file: Path, kind: type = dict) -> Any:
    """What a file of JSON says; nothing where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return kind()
    except (OSError, ValueError) as error:
        raise InvalidRequest("embedder", f"a model whose files can be read, and {file}: {error}") from None
    if not isinstance(found, kind):
        raise InvalidRequest("embedder", f"{file} to be a JSON {'object' if kind is dict else 'list'}")
    return found
