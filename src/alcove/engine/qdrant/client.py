"""Qdrant, as far as it is asked here: points by number, and the nearest of them below a namespace.

A point is a window of a version. It has the window's vector, the version's number, and a digest of each
namespace on the way to its own: no value, no text, no key, and no name as it is written.
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
"""Longest that a search waits for an answer."""
UPKEEP_SECONDS = 5
"""Longest that upkeep waits for one."""
AT_ONCE = 256
"""Points that are sent in one request."""
BITS = 20
"""Of a point's number that say which window of its version it is; one with more windows lacks the last."""


class VersionVectors(NamedTuple):
    """A version's windows, each as 32-bit numbers."""

    seq: int
    ns: bytes
    windows: Sequence[bytes]


class QdrantUnavailable(Unavailable):
    """Qdrant does not answer, or not as it should."""


class QdrantPoints:
    """A server of Qdrant. Raises `QdrantUnavailable` where it gives none that is of use."""

    def __init__(self, address: str, key: str | None = None) -> None:
        """`address`: `qdrant://HOST:PORT`, or `qdrants://HOST:PORT` for TLS."""
        parts = urlsplit(address)
        if parts.scheme not in ("qdrant", "qdrants") or not parts.hostname or parts.username:
            raise InvalidRequest("vectors", "pgvector, qdrant://HOST:PORT or qdrants://HOST:PORT")
        url = f"http{'s' * (parts.scheme == 'qdrants')}://{parts.netloc}{parts.path.rstrip('/')}"
        headers = {"api-key": key} if key else None
        self._searching, self._keeping = (
            QdrantClient(url=url, headers=headers, timeout=seconds, check_compatibility=False)
            for seconds in (SEARCH_SECONDS, UPKEEP_SECONDS)
        )

    def close(self) -> None:
        self._searching.close()
        self._keeping.close()

    def nearest(
        self, collection: str, vector: Sequence[float], prefix: Namespace, most: int, *, unowned: bool
    ) -> list[int]:
        """The versions of the nearest windows below a namespace, nearest first, each as often as found.

        `unowned`: only those in rooms that belong to nobody.
        """
        place = _digest(prefix)
        within = models.MatchValue(value=place) if unowned else models.MatchAny(any=[place, f"+{place}"])
        must: list[models.Condition] = [models.FieldCondition(key="within", match=within)]
        if len(prefix) >= 2:
            match = models.MatchValue(value=_digest(prefix[:2]))
            must.append(models.FieldCondition(key="tenant", match=match))
        with _told():
            found = self._searching.query_points(
                collection,
                query=[*vector],
                query_filter=models.Filter(must=must),
                limit=most,
                with_payload=False,
            )
        return [int(point.id) >> BITS for point in found.points]

    def prepare(self, collection: str, dimensions: int, others: str) -> bool:
        """Makes a collection, and drops the `others` that begin so; False where it was there."""
        with _told():
            names = {each.name for each in self._keeping.get_collections().collections}
            for name in names - {collection}:
                if name.startswith(others):
                    self._keeping.delete_collection(name)
            if collection in names:
                return False
            self._keeping.create_collection(
                collection,
                vectors_config=models.VectorParams(
                    size=dimensions, distance=models.Distance.COSINE, datatype=models.Datatype.FLOAT16
                ),
            )
            keyword = models.KeywordIndexType.KEYWORD
            tenant = models.KeywordIndexParams(type=keyword, is_tenant=True)
            self._keeping.create_payload_index(collection, "tenant", tenant)
            self._keeping.create_payload_index(collection, "within", models.PayloadSchemaType.KEYWORD)
            self._keeping.create_payload_index(collection, "seq", models.PayloadSchemaType.INTEGER)
            return True

    def put(self, collection: str, texts: Iterable[VersionVectors]) -> None:
        """Adds versions, or puts them in the place of what was there of them.

        A version's first window is sent last: what has it has all of them.
        """
        points = (point for text in texts for point in _points(text))
        while some := [*islice(points, AT_ONCE)]:
            with _told():
                self._keeping.upsert(collection, points=some, wait=True)

    def remove(self, collection: str, seqs: Sequence[int]) -> None:
        """Removes versions, whether they are there or not."""
        condition = models.FieldCondition(key="seq", match=models.MatchAny(any=[*seqs]))
        with _told():
            self._keeping.delete(collection, models.Filter(must=[condition]), wait=True)

    def versions(self, collection: str, start: int, most: int) -> tuple[set[int], int | None]:
        """Versions that are there, from a number on, in order; and where to go on, if there are more."""
        with _told():
            points, following = self._keeping.scroll(
                collection, offset=start << BITS, limit=most, with_payload=False, with_vectors=False
            )
        found = {int(point.id) >> BITS for point in points}
        if following is None:
            return found, None
        then = max(int(str(following)) >> BITS, start + 1)  # of the one at the end, some may be left
        return {seq for seq in found if seq < then}, then


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ApiException, QdrantException) as error:
        # Of what it answers, nothing is passed on but the number: it may hold parts of the request.
        status = getattr(error, "status_code", None)
        told = f"answered {status}" if status else "does not answer"
        raise QdrantUnavailable(f"the vector store {told}") from error


def _points(text: VersionVectors) -> Iterator[models.PointStruct]:
    payload = {"seq": text.seq, **places(Namespace.decode(text.ns))}
    for number in reversed(range(min(len(text.windows), 1 << BITS))):
        vector = array("f", text.windows[number]).tolist()
        yield models.PointStruct(id=text.seq << BITS | number, vector=vector, payload=payload)


def places(namespace: Namespace) -> dict[str, object]:
    """What a point says of where it lies: each namespace on the way, itself included, and the first two.

    Those above a room that belongs to somebody are marked by a `+`: so what belongs to nobody is told apart.
    """
    owned = len(namespace.owned_root())
    within = [f"{'+' * (n < owned)}{_digest(namespace[:n])}" for n in range(len(namespace) + 1)]
    return {"within": within, "tenant": _digest(namespace[:2])}


def _digest(segments: Sequence[str]) -> str:
    """What stands for a namespace. It names nobody, but who knows a name can make it, too."""
    return hashlib.blake2b(Namespace(segments).encode(), digest_size=16).hexdigest()
