"""Sentence models from the operator's folder, `onnx:FOLDER`; its files say how to use the model.

The layout is that of sentence-transformers. Only the network and its tokenizer are required:

    onnx/model.onnx, or model.onnx       the network; or model_quantized.onnx, or the only .onnx file
    tokenizer.json                       without one, the network must take texts and not tokens
    modules.json, 1_Pooling/config.json  how token states become a vector; by default their mean
    sentence_bert_config.json            the tokens of a window
    config_sentence_transformers.json    the prefixes of queries and of texts
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
from alcove.search.embedders import Embedder, EmbedderUnavailable, Matrix, character_windows, load_numpy, unit
from alcove.search.embedders.sentence_encoder import (
    POSITIONS,
    SLACK,
    WINDOW,
    EncoderConfig,
    Pooling,
    SentenceEncoder,
    open_network,
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
    "mean_sqrt_len_tokens": "mean",  # it differs in length only
    "max": "max",
    "max_tokens": "max",
    "lasttoken": "lasttoken",
}
"""By the names of sentence-transformers."""
TEXTS_PER_CALL = 8


def folder_encoder(path: Path) -> Embedder:
    """The model at a path: its folder, or one of several networks in a folder."""
    files = ModelFolder.open(path)
    return TextEncoder(files) if files.tokenizer is None else FolderEncoder(files)


@dataclass(frozen=True)
class ModelFolder:
    """The files of a model, and how they say to use it."""

    folder: Path
    network: Path
    tokenizer: Path | None
    config: EncoderConfig

    @classmethod
    def open(cls, path: Path) -> ModelFolder:
        """Reads the files at a path; raises InvalidRequest for a model that would not be used as intended."""
        network = path if path.is_file() else _find_network(path)
        folder = network.parent.parent if network.parent.name == "onnx" else network.parent
        tokenizer = folder / TOKENIZER
        if not tokenizer.is_file():
            return cls(folder, network, None, EncoderConfig())
        try:
            return cls(folder, network, tokenizer, _read_config(folder))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            expected = f"a model whose files say how to use it, and those of {folder} do not ({error!r})"
            raise InvalidRequest("embedder", expected) from None

    @cached_property
    def name(self) -> str:
        """The model's name in its files, if any, and a digest of the files and their configuration."""
        # `EncoderConfig` was called `Reading` when the first vectors were marked with this name.
        digest = hashlib.sha256(repr(self.config).replace("EncoderConfig", "Reading", 1).encode())
        try:
            # Large weights are in separate files whose names begin with that of the network.
            weights = sorted(self.network.parent.glob(f"{self.network.name}*"))
            for file in [*weights, *filter(None, [self.tokenizer])]:
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise EmbedderUnavailable(
                f"the model in {self.folder} cannot be read: {error.strerror}"
            ) from None
        name = Path(str(_json(self.folder / "config.json").get("_name_or_path", ""))).name
        return f"{name or 'onnx'}@{digest.hexdigest()[:12]}"


class FolderEncoder(SentenceEncoder):
    """A network that takes tokens, with a tokenizer file."""

    def __init__(self, files: ModelFolder) -> None:
        super().__init__(files.config)
        self._files = files

    @property
    def name(self) -> str:
        return self._files.name

    def files(self) -> tuple[Path, Path]:
        return cast(Path, self._files.tokenizer), self._files.network


class TextEncoder:
    """A network that takes texts: it includes its tokenizer as operators of onnxruntime-extensions."""

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
        """A row for each text; the network itself cuts texts that are too long."""
        import numpy as np  # noqa: PLC0415

        session = self._open()
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        name = session.get_inputs()[0].name
        calls = (texts[n : n + TEXTS_PER_CALL] for n in range(0, len(texts), TEXTS_PER_CALL))
        try:
            rows = [session.run(None, {name: np.array(call, dtype=object)})[0] for call in calls]
        except Exception as error:  # bare classes of onnxruntime's own
            raise EmbedderUnavailable(f"the model {self._files.network} failed: {error}") from None
        return unit(np.concatenate(rows).astype(np.float32))

    def _open(self) -> InferenceSession:
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
            raise EmbedderUnavailable(
                f"{network} has no {TOKENIZER} next to it, and for a built-in one onnxruntime-extensions is "
                "missing: pip install '.[onnx-extensions]'"
            ) from None
        session = open_network(network, get_library_path())
        inputs, outputs = session.get_inputs(), session.get_outputs()
        if [each.type for each in inputs] != ["tensor(string)"] or len(outputs[0].shape) != 2:
            raise EmbedderUnavailable(
                f"the model {network} takes no texts: it needs its {TOKENIZER} next to it"
            )
        return session


def _find_network(folder: Path) -> Path:
    """The file of the network in a folder."""
    for name in NETWORKS:
        if (folder / name).is_file():
            return folder / name
    networks = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    if len(networks) == 1:
        return networks[0]
    problem = "several .onnx files: name one of them" if networks else "no .onnx file"
    raise InvalidRequest("embedder", f"the folder of a model after onnx:, and {folder} has {problem}")


def _read_config(folder: Path) -> EncoderConfig:
    """How the files of a folder say to use its network."""
    config = _json(folder / "config_sentence_transformers.json")
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name"), "")
    names = ("document", "passage", "corpus")
    limits = [
        _json(folder / "tokenizer_config.json").get("model_max_length"),
        _json(folder / "config.json").get("max_position_embeddings"),
    ]
    positions = int(min(POSITIONS, *(limit for limit in limits if limit), POSITIONS))
    longest = _json(folder / "sentence_bert_config.json").get("max_seq_length") or positions
    return EncoderConfig(
        pooling=_pooling(folder),
        window=min(WINDOW, longest, positions - SLACK),
        positions=positions,
        query_prompt=prompts.get("query", default),
        text_prompt=next((prompts[name] for name in names if name in prompts), default),
    )


def _pooling(folder: Path) -> Pooling:
    """How the modules of a model combine token states; raises for modules that would do anything else."""
    file = folder / "modules.json"
    modules: list[dict[str, str]] = _json(file, kind=list) if file.exists() else []
    path = None if modules else "1_Pooling"
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            path = module["path"]
        elif kind not in {"Transformer", "Normalize"}:  # vectors are normalized in any case
            raise InvalidRequest("embedder", f"a model without the module {kind}, which {file} lists")
    config = _json(folder / path / "config.json") if path else {}
    modes = [config["pooling_mode"]] if isinstance(config.get("pooling_mode"), str) else []
    prefix = "pooling_mode_"
    modes += [
        name.removeprefix(prefix) for name, is_on in config.items() if name.startswith(prefix) and is_on
    ]
    if not modes:
        return "mean"
    if len(modes) > 1 or modes[0] not in POOLINGS or config.get("include_prompt") is False:
        raise InvalidRequest(
            "embedder", f"one pooling of mean, cls, max or lasttoken in {folder / str(path)}"
        )
    return POOLINGS[modes[0]]


def _json(file: Path, kind: type = dict) -> Any:
    """The content of a JSON file; empty if there is no file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return kind()
    except (OSError, ValueError) as error:
        raise InvalidRequest("embedder", f"a model whose files can be read, and {file}: {error}") from None
    if not isinstance(content, kind):
        raise InvalidRequest("embedder", f"{file} to be a JSON {'object' if kind is dict else 'list'}")
    return content
