"""A store as plain as possible: lists and dictionaries, everything decided the slow and obvious way."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

Place = tuple[tuple[str, ...], str]


@dataclass
class Version:
    seq: int
    ns: tuple[str, ...]
    key: str
    kind: str
    revision: int
    at: int
    value: dict[str, object] | None
    expires: int | None
    user: str | None

    @property
    def content(self) -> bool:
        return self.kind in ("add", "update")


class Refused(Exception):
    """The model's word for any refusal: denied, conflict, absent."""


def owner(ns: tuple[str, ...]) -> str | None:
    if ns[:1] == ("user",):
        return ns[1] if len(ns) > 1 else None
    for before, segment in itertools.pairwise(ns):
        if before == "u":
            return segment
    return None


@dataclass
class Model:
    """What the contract says, for direct calls by users with grants to some shared rooms."""

    log: list[Version] = field(default_factory=list)
    grants: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    seq: int = 0

    def allowed(self, user: str, ns: tuple[str, ...]) -> bool:
        if owner(ns) is not None:
            return owner(ns) == user
        return any(ns[: len(grant)] == grant for grant in self.grants.get(user, []))

    def last(self, place: Place) -> Version | None:
        found = [v for v in self.log if (v.ns, v.key) == place]
        return found[-1] if found else None

    def live(self, place: Place, now: int) -> Version | None:
        last = self.last(place)
        if last and last.content and (last.expires is None or last.expires > now):
            return last
        return None

    def append(self, place: Place, kind: str, now: int, value: dict[str, object] | None = None,
               expires: int | None = None, user: str | None = None) -> Version:  # fmt: skip
        last = self.last(place)
        self.seq += 1
        revision = last.revision + 1 if last else 1
        self.log.append(Version(self.seq, *place, kind, revision, now, value, expires, user))
        return self.log[-1]

    def lapse(self, place: Place, now: int) -> None:
        last = self.last(place)
        if last and last.content and last.expires is not None and last.expires <= now:
            self.append(place, "expired", now)

    def put(self, user: str, place: Place, value: dict[str, object], ttl: int | None,
            expected: int | None, now: int) -> int:  # fmt: skip
        if not self.allowed(user, place[0]):
            raise Refused
        live = self.live(place, now)
        if expected is not None and expected != (live.revision if live else 0):
            raise Refused
        self.lapse(place, now)
        expires = now + ttl * 1_000_000 if ttl else None
        return self.append(place, "update" if live else "add", now, value, expires, user).revision

    def delete(self, user: str, place: Place, expected: int | None, now: int) -> int | None:
        if not self.allowed(user, place[0]):
            raise Refused
        live = self.live(place, now)
        if expected is not None and expected != (live.revision if live else 0):
            raise Refused
        self.lapse(place, now)
        return self.append(place, "delete", now, user=user).revision if live else None

    def touch(self, user: str, place: Place, ttl: int | None, now: int) -> None:
        live = self.live(place, now)
        if not self.allowed(user, place[0]) or not live:
            raise Refused
        live.expires = now + ttl * 1_000_000 if ttl else None

    def get(self, user: str, place: Place, now: int, as_of: int | None = None) -> dict[str, object] | None:
        if not self.allowed(user, place[0]):
            raise Refused
        if as_of is None:
            live = self.live(place, now)
            return live.value if live else None
        then = [v for v in self.log if (v.ns, v.key) == place and v.at <= as_of]
        if then and then[-1].content and (then[-1].expires is None or then[-1].expires > as_of):
            return then[-1].value
        return None

    def scope(self, user: str, prefix: tuple[str, ...]) -> tuple[str, ...]:
        """Where a search may look: the prefix where it is theirs or granted, their own subtree otherwise."""
        inside = self.allowed(user, prefix) if prefix else False
        return prefix if inside else ("user", user)

    def visible(self, user: str, prefix: tuple[str, ...], ns: tuple[str, ...]) -> bool:
        scope = self.scope(user, prefix)
        return ns[: len(scope)] == scope and owner(ns) in (None, user)

    def search(self, user: str, prefix: tuple[str, ...], now: int, as_of: int | None = None) -> list[Place]:
        places = sorted({(v.ns, v.key) for v in self.log if self.visible(user, prefix, v.ns)})
        found = []
        for place in places:
            if as_of is None:
                hit: object = self.live(place, now)
            else:
                then = [v for v in self.log if (v.ns, v.key) == place and v.at <= as_of]
                hit = then and then[-1].content and (then[-1].expires is None or then[-1].expires > as_of)
            if hit:
                found.append(place)
        return found

    def events(self, user: str, prefix: tuple[str, ...]) -> list[tuple[str, Place, int]]:
        return [(v.kind, (v.ns, v.key), v.revision) for v in self.log if self.visible(user, prefix, v.ns)]

    def sweep(self, now: int) -> int:
        due = [
            (v.expires, v.seq, v)
            for v in self.log
            if v.content and v is self.last((v.ns, v.key)) and v.expires is not None and v.expires <= now
        ]
        for _, _, version in sorted(due, key=lambda each: each[:2]):
            self.append((version.ns, version.key), "expired", now)
        return len(due)

    def wipe(self, user: str, now: int) -> tuple[int, int]:
        mine = [v for v in self.log if owner(v.ns) == user]
        live = sum(self.live(place, now) is not None for place in {(v.ns, v.key) for v in mine})
        self.log = [v for v in self.log if owner(v.ns) != user]
        for version in self.log:
            if version.user == user:
                version.user = None
        return len(mine), live
