"""Operating a store behind a server: `admin.Admin` and its API keys, over REST."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import structs

from alcove.client.transport import Wire, encoded, record
from alcove.core.clock import checked_moment
from alcove.core.errors import InvalidRequest
from alcove.core.principal import Principal
from alcove.core.records import HeldVersion, Memory, Receipt, Shared
from alcove.engine.copying import Copy
from alcove.server import answers, forms
from alcove.store import validation
from alcove.store.api_keys import ApiKey, ApiKeys
from alcove.store.reports import AuditPage, Held, Index, Keys, Policies, ReviewPage, Stats
from alcove.upkeep.atomic_file import Partial
from alcove.upkeep.backup import BackedUp, Progress
from alcove.upkeep.doctor import Examination
from alcove.vault import Rotation

List: TypeAlias = list  # inside the class, `list` is the method

_AT = "/v1/admin"


def not_here(_: object, name: str) -> NoReturn:
    """What a store in this process has, and one behind a server has not."""
    raise InvalidRequest("at", f"the store's file: {name} is not done over a URL")


class RemoteAdmin:
    """What an operator may do, asked of the server, which decides by the caller's role."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    __getattr__ = not_here

    def held(self, who: Principal, user: str) -> Held:
        return self._wire.call(who, "GET", _of(user), Held)

    def memories_of(
        self, who: Principal, user: str, *, limit: int = 100, after_cursor: str | None = None
    ) -> ReviewPage:
        params = {"limit": limit, "after_cursor": after_cursor}
        page = self._wire.call(who, "GET", f"{_of(user)}/memories", forms.ReviewAnswer, params=params)
        return ReviewPage(items=[record(Memory, each) for each in page.items], after_cursor=page.after_cursor)

    def export(self, who: Principal, user: str) -> Iterator[HeldVersion]:
        for line in self._wire.lines(who, f"{_of(user)}/export"):
            yield record(HeldVersion, self._wire.decode(line, answers.HeldVersionAnswer))

    def remove(self, who: Principal, user: str, id: str) -> None:
        self._wire.call(who, "DELETE", f"{_of(user)}/memories/{quote(id, safe='')}", type(None))

    def wipe(
        self,
        who: Principal,
        user: str,
        *,
        shared: Shared = "anonymise",
        wait: bool = True,
        dry_run: bool = False,
    ) -> Receipt:
        body = encoded(shared=shared, wait=wait, dry_run=dry_run)
        return self._wire.call(who, "POST", f"{_of(user)}/wipe", Receipt, body=body, patient=True)

    def verify_receipt(self, who: Principal, receipt: Receipt | Mapping[str, object]) -> bool:
        body = msgspec.json.encode({"receipt": receipt})
        return self._wire.call(
            who, "POST", f"{_AT}/receipts/verify", forms.VerifiedAnswer, body=body
        ).verified

    def policies(self, who: Principal) -> Policies:
        return self._wire.call(who, "GET", f"{_AT}/policies", Policies)

    def put_policies(self, who: Principal, texts: Mapping[str, str | None]) -> Policies:
        return self._wire.call(who, "PUT", f"{_AT}/policies", Policies, body=encoded(**texts))

    def test_policies(
        self, who: Principal, question: Mapping[str, object], texts: Mapping[str, str | None]
    ) -> dict[str, Any]:
        body = encoded(input=question, **texts)
        return self._wire.call(who, "POST", f"{_AT}/policies/test", dict[str, Any], body=body)

    def index(self, who: Principal) -> Index:
        return self._wire.call(who, "GET", f"{_AT}/index", Index)

    def trigger_index(self, who: Principal) -> Index:
        return self._wire.call(who, "POST", f"{_AT}/index/trigger", Index)

    def settings(self, who: Principal) -> dict[str, Any]:
        return self._wire.call(who, "GET", f"{_AT}/settings", dict[str, Any])

    def put_settings(self, who: Principal, changes: Mapping[str, object]) -> dict[str, Any]:
        body = validation.json({**changes}, "body")
        return self._wire.call(who, "PUT", f"{_AT}/settings", dict[str, Any], body=body)

    def keys(self, who: Principal) -> Keys:
        return self._wire.call(who, "GET", f"{_AT}/keys", Keys)

    def rotate_keys(self, who: Principal) -> Iterator[Rotation]:
        done = self._wire.call(who, "POST", f"{_AT}/keys/rotate", forms.RotationAnswer, patient=True)
        yield Rotation(done.active, done.rotated)

    def api_keys(self, who: Principal) -> RemoteApiKeys:
        return RemoteApiKeys(self._wire, who)

    def stats(self, who: Principal) -> Stats:
        return self._wire.call(who, "GET", f"{_AT}/stats", Stats)

    def audit(self, who: Principal, **conditions: Any) -> AuditPage:
        return self._wire.call(who, "GET", f"{_AT}/audit", AuditPage, params=conditions)

    def doctor(self, who: Principal) -> Iterator[Examination]:
        answer = self._wire.call(who, "GET", f"{_AT}/doctor", forms.DoctorAnswer, patient=True)
        return (Examination(**structs.asdict(each)) for each in answer.examinations)

    def backup(self, who: Principal, to: Path) -> Iterator[Progress[BackedUp]]:
        """The server verifies the values, which only it can open; what arrived is checked again here."""
        with Partial(to) as partial:
            with self._wire.stream(who, "GET", f"{_AT}/backup", patient=True) as response:
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
    if not validation.text(user, "user"):
        raise InvalidRequest("user", "a non-empty string")
    return f"{_AT}/users/{quote(user, safe='').replace('.', '%2E')}"
