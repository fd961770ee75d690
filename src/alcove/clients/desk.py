"""Operating a store behind a server: `alcove.admin` and its API keys, over REST."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from msgspec import structs

from alcove import checks
from alcove.apikeys import ApiKey, ApiKeys
from alcove.backup import BackedUp, Progress
from alcove.client import Desk
from alcove.clients.wire import Wire, encoded, record
from alcove.clock import checked_moment
from alcove.doctor import Examination
from alcove.engine.copying import Copy
from alcove.errors import InvalidRequest
from alcove.http import answers, forms
from alcove.partial import Partial
from alcove.records import Memory, Receipt, Shared
from alcove.reports import AuditPage, Held, Keys, Policies, ReviewPage, Stats
from alcove.vault import Rotation

List: TypeAlias = list  # inside the class, `list` is the method

_AT = "/v1/admin"


class RemoteDesk(Desk):
    """What an operator may do, asked of the server; it decides by the caller's role."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def held(self, user: str) -> Held:
        return self._wire.call("GET", _of(user), Held)

    def memories_of(self, user: str, *, limit: int = 100, after_cursor: str | None = None) -> ReviewPage:
        params = {"limit": limit, "after_cursor": after_cursor}
        page = self._wire.call("GET", f"{_of(user)}/memories", forms.ReviewAnswer, params=params)
        return ReviewPage(items=[record(Memory, each) for each in page.items], after_cursor=page.after_cursor)

    def export(self, user: str) -> Iterator[Memory]:
        for line in self._wire.lines(f"{_of(user)}/export"):
            yield record(Memory, self._wire.decode(line, answers.MemoryAnswer))

    def remove(self, user: str, id: str) -> None:
        self._wire.call("DELETE", f"{_of(user)}/memories/{quote(id, safe='')}", type(None))

    def wipe(self, user: str, *, shared: Shared = "anonymise", wait: bool = True) -> Receipt:
        body = encoded(shared=shared, wait=wait)
        return self._wire.call("POST", f"{_of(user)}/wipe", Receipt, body=body, patient=True)

    def policies(self) -> Policies:
        return self._wire.call("GET", f"{_AT}/policies", Policies)

    def put_policies(self, texts: Mapping[str, str | None]) -> Policies:
        return self._wire.call("PUT", f"{_AT}/policies", Policies, body=encoded(**texts))

    def test_policies(
        self, question: Mapping[str, object], texts: Mapping[str, str | None]
    ) -> dict[str, Any]:
        body = encoded(input=question, **texts)
        return self._wire.call("POST", f"{_AT}/policies/test", dict[str, Any], body=body)

    def settings(self) -> dict[str, Any]:
        return self._wire.call("GET", f"{_AT}/settings", dict[str, Any])

    def put_settings(self, changes: Mapping[str, object]) -> dict[str, Any]:
        return self._wire.call(
            "PUT", f"{_AT}/settings", dict[str, Any], body=checks.json({**changes}, "body")
        )

    def keys(self) -> Keys:
        return self._wire.call("GET", f"{_AT}/keys", Keys)

    def rotate_keys(self) -> Iterator[Rotation]:
        done = self._wire.call("POST", f"{_AT}/keys/rotate", forms.RotationAnswer, patient=True)
        yield Rotation(done.active, done.rotated)

    def stats(self) -> Stats:
        return self._wire.call("GET", f"{_AT}/stats", Stats)

    def audit(self, **conditions: Any) -> AuditPage:
        return self._wire.call("GET", f"{_AT}/audit", AuditPage, params=conditions)

    def doctor(self) -> Iterator[Examination]:
        answer = self._wire.call("GET", f"{_AT}/doctor", forms.DoctorAnswer, patient=True)
        return (
            Examination(**{"noticed": [], "advice": "", **structs.asdict(each)})
            for each in answer.examinations
        )

    def backup(self, to: Path) -> Iterator[Progress[BackedUp]]:
        """The server verifies the values, which only it can open; what arrived is checked again here."""
        with Partial(to) as partial:
            with self._wire.stream("GET", f"{_AT}/backup", patient=True) as response:
                total, done = int(response.headers.get("content-length", 0)), 0
                for chunk in response.iter_raw():
                    partial.write(chunk)
                    done += len(chunk)
                    yield Progress("copying", done, total)
            partial.sync()
            with Copy(partial.path) as copy:
                copy.refuse_damaged()
                held = copy.summary()
            partial.complete()
        result = BackedUp(to, done, held.memories, held.versions, held.last_seq, 0)
        yield Progress("done", 1, 1, result)


class RemoteApiKeys(ApiKeys):
    """The API keys of a server's store."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def create(self, *, client: str, user: str | None, roles: list[str], trusted: bool, now: int) -> str:
        body = encoded(client=client, user=user, roles=roles, trusted=trusted)
        return self._wire.call("POST", f"{_AT}/apikeys", forms.NewApiKey, body=body).key

    def find(self, given: str) -> ApiKey | None:
        raise NotImplementedError("only the server looks a key up")

    def list(self) -> List[ApiKey]:
        answer = self._wire.call("GET", f"{_AT}/apikeys", forms.ApiKeysAnswer)
        return [
            ApiKey(
                id=key.id,
                client=key.client,
                user=key.user,
                roles=tuple(key.roles),
                trusted=key.trusted,
                digest=b"",
                created_at=checked_moment(key.created_at, "created_at") or 0,
            )
            for key in answer.keys
        ]

    def revoke(self, id: str) -> None:
        self._wire.call("DELETE", f"{_AT}/apikeys/{quote(id, safe='')}", type(None))


def _of(user: str) -> str:
    """A user's path; any character may be in a user id, also the dots that a path is tidied of."""
    if not checks.text(user, "user"):
        raise InvalidRequest("user", "a non-empty string")
    return f"{_AT}/users/{quote(user, safe='').replace('.', '%2E')}"
