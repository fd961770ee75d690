"""A client for Qdrant: stores points by number, and finds the nearest ones below a namespace.

A point is a window of a version. It has the window's vector, the version's number, and a digest of its
namespace and of each namespace above it: no value, no text, no key, and no name in plain text.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple
from urllib.parse import urlsplit

from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException

from alcove.core.errors import InvalidRequest, Unavailable
from alcove.core.namespace import Namespace

SEARCH_SECONDS = 1
"""How long a search waits for an answer."""
UPKEEP_SECONDS = 5
"""How long other requests wait for an answer."""
AT_ONCE = 256
"""Points that are sent in one request."""
BITS = 20
"""Bits of a point's number for the window of its version; further windows are not stored."""


class VersionVectors(NamedTuple):
    """A version's windows, each as 32-bit numbers."""

    seq: int
    ns: bytes
    windows: Sequence[bytes]


class QdrantUnavailable(Unavailable):
    """Qdrant does not answer, or returns an error."""


class QdrantPoints:
    """A Qdrant server. Raises `QdrantUnavailable` if it fails."""

    def __init__(self, address: str, key: str | None = None) -> None:
        """`address`: `qdrant://HOST:PORT`, or `qdrants://HOST:PORT` for TLS."""
        parts = urlsplit(address)
        if parts.scheme not in ("qdrant", "qdrants") or not parts.hostname or parts.username:
            raise InvalidRequest("vectors", "pgvector, qdrant://HOST:PORT or qdrants://HOST:PORT")
        url = f"http{'s' * (parts.scheme == 'qdrants')}://{parts.netloc}{parts.path.rstrip('/')}"
        headers = {"api-key": key} if key else None
        self._search, self._upkeep = (
            QdrantClient(url=url, headers=headers, timeout=seconds, check_compatibility=False)
            for seconds in (SEARCH_SECONDS, UPKEEP_SECONDS)
        )

    def close(self) -> None:
        self._search.close()
        self._upkeep.close()

    def nearest(
        self, collection: str, vector: Sequence[float], prefix: Namespace, limit: int, *, unowned: bool
    ) -> list[int]:
        """Returns the version of each of the nearest windows below a namespace, nearest first.

        `unowned`: only those in rooms without an owner.
        """
        digest = _digest(prefix)
        below = models.MatchValue(value=digest) if unowned else models.MatchAny(any=[digest, f"+{digest}"])
        must: list[models.Condition] = [models.FieldCondition(key="within", match=below)]
        if len(prefix) >= 2:
            match = models.MatchValue(value=_digest(prefix[:2]))
            must.append(models.FieldCondition(key="tenant", match=match))
        with _translate_errors():
            response = self._search.query_points(
                collection,
                query=[*vector],
                query_filter=models.Filter(must=must),
                limit=limit,
                with_payload=False,
            )
        return [int(point.id) >> BITS for point in response.points]

    def prepare(self, collection: str, dimensions: int, prefix: str) -> bool:
        """Creates a collection, and drops others with this prefix; False if it exists already."""
        with _translate_errors():
            names = {each.name for each in self._upkeep.get_collections().collections}
            for name in names - {collection}:
                if name.startswith(prefix):
                    self._upkeep.delete_collection(name)
            if collection in names:
                return False
            self._upkeep.create_collection(
                collection,
                vectors_config=models.VectorParams(
                    size=dimensions, distance=models.Distance.COSINE, datatype=models.Datatype.FLOAT16
                ),
            )
            keyword = models.KeywordIndexType.KEYWORD
            tenant = models.KeywordIndexParams(type=keyword, is_tenant=True)
            self._upkeep.create_payload_index(collection, "tenant", tenant)
            self._upkeep.create_payload_index(collection, "within", models.PayloadSchemaType.KEYWORD)
            self._upkeep.create_payload_index(collection, "seq", models.PayloadSchemaType.INTEGER)
            return True

    def put(self, collection: str, texts: Iterable[VersionVectors]) -> None:
        """Adds or replaces versions.

        A version's first window is sent last, so a version with that window is complete.
        """
        points = (point for text in texts for point in _points(text))
        while batch := [*islice(points, AT_ONCE)]:
            with _translate_errors():
                self._upkeep.upsert(collection, points=batch, wait=True)

    def remove(self, collection: str, seqs: Sequence[int]) -> None:
        """Removes versions, if they exist."""
        condition = models.FieldCondition(key="seq", match=models.MatchAny(any=[*seqs]))
        with _translate_errors():
            self._upkeep.delete(collection, models.Filter(must=[condition]), wait=True)

    def versions(self, collection: str, start: int, limit: int) -> tuple[set[int], int | None]:
        """Returns the versions from a number on, and where to continue if there are more."""
        with _translate_errors():
            points, next_point = self._upkeep.scroll(
                collection, offset=start << BITS, limit=limit, with_payload=False, with_vectors=False
            )
        seqs = {int(point.id) >> BITS for point in points}
        if next_point is None:
            return seqs, None
        next_start = max(int(str(next_point)) >> BITS, start + 1)  # the last version may be incomplete
        return {seq for seq in seqs if seq < next_start}, next_start


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except (ApiException, QdrantException) as error:
        # The message has only the status of the answer, whose text may contain parts of the request.
        status = getattr(error, "status_code", None)
        problem = f"answered {status}" if status else "does not answer"
        raise QdrantUnavailable(f"the vector store {problem}") from error


def _points(text: VersionVectors) -> Iterator[models.PointStruct]:
    payload = {"seq": text.seq, **places(Namespace.decode(text.ns))}
    for number in reversed(range(min(len(text.windows), 1 << BITS))):
        vector = array("f", text.windows[number]).tolist()
        yield models.PointStruct(id=text.seq << BITS | number, vector=vector, payload=payload)


def places(namespace: Namespace) -> dict[str, object]:
    """Returns a point's fields about its place: digests of the namespace and of all above it, and the tenant.

    Those above a room that has an owner are marked with `+`, so that rooms without an owner can be selected.
    """
    owned = len(namespace.owned_root())
    digests = [f"{'+' * (n < owned)}{_digest(namespace[:n])}" for n in range(len(namespace) + 1)]
    return {"within": digests, "tenant": _digest(namespace[:2])}


def _digest(segments: Sequence[str]) -> str:
    """Returns a digest of a namespace. It shows no name, but anybody who knows the name can compute it."""
    return hashlib.blake2b(Namespace(segments).encode(), digest_size=16).hexdigest()
