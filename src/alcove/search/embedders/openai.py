"""Embedders at a URL: OpenAI, Ollama, and any service with OpenAI's `/v1/embeddings`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from alcove.core.errors import InvalidRequest
from alcove.search.embedders import EmbedderUnavailable, Matrix, character_windows, unit
from alcove.search.remote_service import RemoteService, address_and_model

BATCH = 64
MAX_ANSWER_BYTES = 64 * 1024 * 1024
OPENAI = "https://api.openai.com/v1"
OLLAMA, OLLAMA_PORT = "127.0.0.1", ":11434"


def remote_embedder(spec: str, *, key: str | None = None, timeout: float = 10.0) -> RemoteEmbedder:
    """The service that the operator chose: a URL, `openai:MODEL`, `ollama:MODEL` or `ollama://HOST/MODEL`.

    OpenAI's key may be in `OPENAI_API_KEY`. Ollama has the API of OpenAI, by default on this machine at port
    11434.
    """
    kind, _, rest = spec.partition(":")
    if kind == "openai":
        if not (key := key or os.environ.get("OPENAI_API_KEY")):
            raise InvalidRequest("embedder_key", "a key for openai:MODEL (or in OPENAI_API_KEY)")
        return RemoteEmbedder(f"{OPENAI}#{rest}", key=key, timeout=timeout)
    if kind == "ollama":
        host, _, model = rest[2:].partition("/") if rest.startswith("//") else (OLLAMA, "", rest)
        if not host or not model:
            raise InvalidRequest("embedder", "ollama:MODEL or ollama://HOST:PORT/MODEL")
        host = host if re.search(r":\d+$", host) else host + OLLAMA_PORT
        hint = {404: f"has no such model: run `ollama pull {model.partition('&')[0]}` there"}
        return RemoteEmbedder(f"http://{host}/v1#{model}", key=key, timeout=timeout, status_messages=hint)
    return RemoteEmbedder(spec, key=key, timeout=timeout)


class RemoteEmbedder:
    """A service at a URL: `https://host/v1#model` or `…#model&dimensions=256`.

    `status_messages`: error messages for particular HTTP statuses.
    """

    windows = staticmethod(character_windows)

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 10.0,
        status_messages: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        address, model, options = address_and_model(url, "embedder", "http(s)://HOST/v1#MODEL")
        option = re.fullmatch(r"dimensions=0*([1-9][0-9]*)", options[0]) if options else None
        if options and not option:
            raise InvalidRequest("embedder", "no option but dimensions=NUMBER after the model")
        self.url = address.rstrip("/").removesuffix("/embeddings") + "/embeddings"
        self._model = model
        self._requested = self._dimensions = int(option[1]) if option else None
        self._service = RemoteService(
            self.url,
            EmbedderUnavailable,
            key=key,
            timeout=timeout,
            max_bytes=MAX_ANSWER_BYTES,
            status_messages=status_messages,
        )

    @property
    def name(self) -> str:
        """The model without its host: the same model may move to another one."""
        return self._model if self._requested is None else f"{self._model}/{self._requested}"

    @property
    def dimensions(self) -> int:
        """The requested dimensions, or those that the service answers; the first call finds out."""
        return self._dimensions or int(self.embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return np.concatenate([self._batch(texts[n : n + BATCH]) for n in range(0, len(texts), BATCH)])

    def _batch(self, texts: Sequence[str]) -> Matrix:
        # Services refuse an empty input; a space is the nearest text to it.
        inputs = [text or " " for text in texts]
        body: dict[str, object] = {"model": self._model, "input": inputs, "encoding_format": "float"}
        if self._requested is not None:
            body["dimensions"] = self._requested
        rows = _rows(self._service.post(body), len(texts), self.url)
        expected = self._dimensions or rows.shape[1]
        if rows.shape[1] != expected:
            self._dimensions = self._requested  # either number may be wrong
            raise EmbedderUnavailable(
                f"{self.url} answered {rows.shape[1]} dimensions where {expected} were expected"
            )
        vectors = unit(rows)
        self._dimensions = expected
        return vectors


def _rows(answer: bytes, count: int, url: str) -> Matrix:
    try:
        data = sorted(json.loads(answer)["data"], key=lambda each: each["index"])
        if [each["index"] for each in data] != list(range(count)):
            raise ValueError
        with np.errstate(over="ignore"):  # an overflow becomes infinite, and that is checked
            rows = np.array([each["embedding"] for each in data], dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] == 0 or not np.all(np.isfinite(rows)):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise EmbedderUnavailable(f"{url} did not answer a list of {count} embeddings") from None
    return rows
