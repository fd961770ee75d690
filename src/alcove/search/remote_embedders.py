"""Embedders of others: any service that speaks OpenAI's `/v1/embeddings`, and the models of fastembed."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Sequence
from typing import IO, Protocol

import numpy as np

from alcove.core.errors import InvalidRequest
from alcove.search.embedders import EmbedderUnavailable, Matrix, character_windows, unit

BATCH = 64
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class RemoteEmbedder:
    """A service at a URL. `https://host/v1#model` or `…#model&dimensions=256`."""

    windows = staticmethod(character_windows)

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 10.0) -> None:
        address, _, fragment = url.partition("#")
        model, *options = fragment.split("&")
        if not model or not urllib.parse.urlsplit(address).hostname:
            raise InvalidRequest("embedder", "http(s)://HOST/v1#MODEL")
        asked = re.fullmatch(r"dimensions=0*([1-9][0-9]*)", options[0]) if options else None
        if options and not asked:
            raise InvalidRequest("embedder", "no option but dimensions=NUMBER after the model")
        self._url = address.rstrip("/").removesuffix("/embeddings") + "/embeddings"
        self._model, self._key, self._timeout = model, key, timeout
        self._asked = self._dimensions = int(asked[1]) if asked else None
        self._opener = urllib.request.build_opener(_NoRedirect)

    @property
    def name(self) -> str:
        """The model, and not where it runs: the same model may move to another host."""
        return self._model if self._asked is None else f"{self._model}/{self._asked}"

    @property
    def dimensions(self) -> int:
        """As asked for, or as the service answers; the first call finds out."""
        return self._dimensions or int(self.embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return np.concatenate([self._batch(texts[n : n + BATCH]) for n in range(0, len(texts), BATCH)])

    def _batch(self, texts: Sequence[str]) -> Matrix:
        # Services refuse an empty input; a space is the nearest text to it.
        given = [text or " " for text in texts]
        body: dict[str, object] = {"model": self._model, "input": given, "encoding_format": "float"}
        if self._asked is not None:
            body["dimensions"] = self._asked
        rows = _rows(self._post(json.dumps(body).encode()), len(texts), self._url)
        expected = self._dimensions or rows.shape[1]
        if rows.shape[1] != expected:
            self._dimensions = self._asked  # which of the two is wrong, is not known here
            raise EmbedderUnavailable(
                f"{self._url} answered {rows.shape[1]} dimensions where {expected} were expected"
            )
        vectors = unit(rows)
        self._dimensions = expected
        return vectors

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, data=body, headers=headers)  # noqa: S310 - http(s) only
        deadline = time.monotonic() + self._timeout
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return _read(answer, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise EmbedderUnavailable(f"{self._url} answered {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            slow = isinstance(reason, TimeoutError)
            told = f"did not answer in {self._timeout:g} s" if slow else f"cannot be reached: {reason}"
            raise EmbedderUnavailable(f"{self._url} {told}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry texts and the key to a host nobody configured."""

    def redirect_request(self, *_: object) -> None:
        return None


def _read(answer: IO[bytes], deadline: float) -> bytes:
    """All of it, unless it drips or does not end: the socket's timeout starts anew with each byte."""
    received = bytearray()
    while chunk := answer.read(64 * 1024):
        received += chunk
        if len(received) > MAX_ANSWER_BYTES:
            raise ValueError("the answer is too large")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(received)


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
        raise EmbedderUnavailable(f"{url} answered what is not a list of {count} embeddings") from None
    return rows


class _Model(Protocol):
    def embed(self, documents: Sequence[str]) -> Iterable[Matrix]: ...


class Fastembed:
    """One of the models that fastembed downloads, by its name; loaded with the first text.

    For machines with internet: `pip install fastembed`.
    """

    windows = staticmethod(character_windows)

    def __init__(self, model: str) -> None:
        self.name = model
        self._loading = threading.Lock()
        self._model: _Model | None = None

    @property
    def dimensions(self) -> int:
        return int(self.embed(["dimensions"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Matrix:
        model = self._load()
        try:
            return unit(np.stack(list(model.embed(texts))).astype(np.float32))
        except (RuntimeError, ValueError) as error:
            raise EmbedderUnavailable(f"fastembed {self.name} failed: {error}") from None

    def _load(self) -> _Model:
        with self._loading:
            if self._model is None:
                try:
                    from fastembed import TextEmbedding  # noqa: PLC0415 - an extra of its own
                except ImportError:
                    raise EmbedderUnavailable("fastembed is missing: pip install fastembed") from None
                try:
                    self._model = TextEmbedding(self.name)
                except Exception as error:  # downloads fail in many classes
                    raise EmbedderUnavailable(f"fastembed cannot load {self.name}: {error}") from None
            return self._model
