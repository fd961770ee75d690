"""The admin API: everything under `/v1/admin`. The role is checked before what was sent is looked at."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from alcove.api.operations import AdminOperations
from alcove.core.clock import system_clock
from alcove.core.errors import InvalidRequest
from alcove.server import answers, forms
from alcove.server.resource import Call, Resource
from alcove.server.serving import served
from alcove.server.streaming import Stream
from alcove.server.streams import NDJSON, json_lines
from alcove.server.thread_pool import ThreadPool
from alcove.store.admin import Admin
from alcove.store.api_keys import ApiKeys

_AT = "/v1/admin"
_PIECE_BYTES = 256 * 1024


class AdminApi:
    """What operators do over REST; auditors may call what only reads."""

    def __init__(self, admin: Admin, reads: ThreadPool, changes: ThreadPool) -> None:
        self._admin = admin
        self._reads = reads
        self._changes = changes

    def resources(self) -> list[Resource]:
        user = f"{_AT}/users/{{user}}"
        found, changed = (400, 401, 403, 404), (400, 401, 403, 413, 415)
        return [
            *served(AdminOperations, self._admin, reads=self._reads, changes=self._changes),
            _reads(
                f"{user}/memories", self.review, "A user's memories, to review", query=forms.ReviewQuery,
                answer=forms.ReviewAnswer,
            ),
            _reads(f"{user}/export", self.export_user, "All that is held of a user, one a line",
                   streams=NDJSON.decode()),
            _changes("POST", f"{_AT}/keys/rotate", self.rotate, "Wrap every data key anew",
                     answer=forms.RotationAnswer, unhurried=True),
            _reads(f"{_AT}/doctor", self.doctor, "Check the whole store", answer=forms.DoctorAnswer,
                   unhurried=True),
            _changes("GET", f"{_AT}/backup", self.backup, "The whole store as one file, verified",
                     streams="application/octet-stream", unhurried=True),
            _reads(f"{_AT}/apikeys", self.api_keys, "API keys, without the keys", answer=forms.ApiKeysAnswer),
            _changes("POST", f"{_AT}/apikeys", self.create_api_key, "Make an API key; it is shown once",
                     body=forms.ApiKeyBody, answer=forms.NewApiKey, errors=changed),
            _changes("DELETE", f"{_AT}/apikeys/{{id}}", self.revoke_api_key, "Revoke an API key",
                     errors=found),
        ]  # fmt: skip

    async def review(self, call: Call) -> Any:
        query = call.query
        page = await self._do(
            self._admin.memories_of,
            call,
            call.path["user"],
            limit=query.limit,
            after_cursor=query.after_cursor,
        )
        items = [answers.MemoryAnswer.of_memory(each) for each in page.items]
        return forms.ReviewAnswer(items, page.after_cursor)

    async def export_user(self, call: Call) -> Any:
        found = await self._do(self._admin.export, call, call.path["user"])
        return json_lines(self._reads, found, call.ask_again)

    async def rotate(self, call: Call) -> Any:
        steps = await self._changes(lambda: [*self._admin.rotate_keys(call.principal)])
        active = (await self._do(self._admin.keys, call)).active
        return forms.RotationAnswer(active, steps[-1].rewrapped if steps else 0)

    async def doctor(self, call: Call) -> Any:
        done = await self._reads(lambda: [*self._admin.doctor(call.principal)])
        examinations = [forms.ExaminationAnswer.of(each) for each in done]
        return forms.DoctorAnswer(all(each.wrong == [] for each in examinations), examinations)

    async def backup(self, call: Call) -> Any:
        folder = tempfile.TemporaryDirectory(prefix="alcove-backup-")  # gone when the last lets go of it
        await self._reads(lambda: [*self._admin.backup(call.principal, Path(folder.name) / "backup.db")])
        return Stream(self._pieces(folder), b"application/octet-stream", call.ask_again)

    async def _pieces(self, folder: tempfile.TemporaryDirectory[str]) -> AsyncIterator[bytes]:
        with folder, (Path(folder.name) / "backup.db").open("rb") as file:
            while piece := await self._reads(partial(file.read, _PIECE_BYTES)):
                yield piece

    async def api_keys(self, call: Call) -> Any:
        found = await self._do(self._admin.list_api_keys, call)
        return forms.ApiKeysAnswer([forms.ApiKeyAnswer.of(key) for key in found])

    async def create_api_key(self, call: Call) -> Any:
        body = call.body
        if not body.trusted and not body.user:
            raise InvalidRequest("user", "whom the key acts for, unless it is trusted to name them itself")
        make = partial(self._keys(call).create, client=body.client, user=body.user, roles=body.roles)
        return forms.NewApiKey(await self._changes(lambda: make(trusted=body.trusted, now=system_clock())))

    async def revoke_api_key(self, call: Call) -> None:
        await self._changes(partial(self._keys(call).revoke, call.path["id"]))

    def _keys(self, call: Call) -> ApiKeys:
        return self._admin.api_keys(call.principal)

    async def _do(self, method: Any, call: Call, *args: Any, **options: Any) -> Any:
        return await self._changes(partial(method, call.principal, *args, **options))


def _reads(path: str, handler: Any, summary: str, **more: Any) -> Resource:
    return Resource(method="GET", path=path, handler=handler, summary=summary, role="auditor", **more)


def _changes(method: str, path: str, handler: Any, summary: str, **more: Any) -> Resource:
    return Resource(method=method, path=path, handler=handler, summary=summary, role="admin", **more)
