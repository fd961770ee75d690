"""Operating a store behind a server, which decides by the caller's role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote

from msgspec import structs

from alcove.api.operation import Operation
from alcove.client.admin import AdminHandle
from alcove.client.transport import Wire, encoded, record, segment
from alcove.core.clock import checked_moment
from alcove.core.errors import InvalidRequest
from alcove.core.principal import Principal
from alcove.core.records import HeldVersion, Memory
from alcove.engine.copying import Copy
from alcove.server import answers, forms
from alcove.store.api_keys import ApiKey, ApiKeys
from alcove.store.reports import ReviewPage
from alcove.upkeep.backup import BackedUp, Partial, Progress
from alcove.upkeep.doctor import Examination
from alcove.vault import Rotation

R = TypeVar("R")
List: TypeAlias = list  # inside the class, `list` is the method

_AT = "/v1/admin"


def not_here(_: object, name: str) -> NoReturn:
    """What a store in this process has, and one behind a server has not."""
    raise InvalidRequest("at", f"the store's file: {name} is not done over a URL")


class RemoteAdmin(AdminHandle):
    """The same, asked of a server, which decides by the caller's role."""

    def __init__(self, wire: Wire, principal: Principal) -> None:
        self._wire = wire
        self._who = principal

    def perform(self, operation: Operation[..., R], arguments: dict[str, Any]) -> R:
        return self._wire.perform(self._who, operation, arguments)

    def memories_of(self, user: str, *, limit: int = 100, after_cursor: str | None = None) -> ReviewPage:
        params = {"limit": limit, "after_cursor": after_cursor}
        page = self._wire.call(self._who, "GET", f"{_of(user)}/memories", forms.ReviewAnswer, params=params)
        return ReviewPage(items=[record(Memory, each) for each in page.items], after_cursor=page.after_cursor)

    def export(self, user: str) -> Iterator[HeldVersion]:
        for line in self._wire.lines(self._who, f"{_of(user)}/export"):
            yield record(HeldVersion, self._wire.decode(line, answers.HeldVersionAnswer))

    def rotate_keys(self) -> Iterator[Rotation]:
        done = self._wire.call(self._who, "POST", f"{_AT}/keys/rotate", forms.RotationAnswer, patient=True)
        yield Rotation(done.active, done.rotated)

    def api_keys(self) -> RemoteApiKeys:
        return RemoteApiKeys(self._wire, self._who)

    def doctor(self) -> Iterator[Examination]:
        answer = self._wire.call(self._who, "GET", f"{_AT}/doctor", forms.DoctorAnswer, patient=True)
        return (Examination(**structs.asdict(each)) for each in answer.examinations)

    def backup(self, to: Path) -> Iterator[Progress[BackedUp]]:
        """The server verifies the values, which only it can open; what arrived is checked again here."""
        with Partial(to) as partial:
            with self._wire.stream(self._who, "GET", f"{_AT}/backup", patient=True) as response:
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

    def __init__(self, wire: Wire, who: Principal) -> None:
        self._wire = wire
        self._who = who

    def create(self, *, client: str, user: str | None, roles: list[str], trusted: bool, now: int) -> str:
        body = encoded(client=client, user=user, roles=roles, trusted=trusted)
        return self._wire.call(self._who, "POST", f"{_AT}/apikeys", forms.NewApiKey, body=body).key

    def find(self, given: str) -> ApiKey | None:
        raise NotImplementedError("only the server looks a key up")

    def list(self) -> List[ApiKey]:
        answer = self._wire.call(self._who, "GET", f"{_AT}/apikeys", forms.ApiKeysAnswer)
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
        self._wire.call(self._who, "DELETE", f"{_AT}/apikeys/{quote(id, safe='')}", type(None))


def _of(user: str) -> str:
    """A user's path; any character may be in a user id, also the dots that a path is tidied of."""
    return f"{_AT}/users/{segment(user, 'user')}"
