"""One method and one entry are an operation: served, described, and a method of every handle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import httpx
import pytest
from msgspec import Meta, Struct

from alcove import InvalidRequest, NotFound, PermissionDenied
from alcove.api.operation import AsyncHandle, Handle, Operation
from alcove.client.embedded import LocalTransport
from alcove.client.http import Server
from alcove.client.remote import AwaitingTransport
from alcove.core.cursor import Page
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import NamespaceLike, TimeLike
from alcove.server.application import Application
from alcove.server.authentication import Headers
from alcove.server.config import ServeConfig
from alcove.server.limits import ThreadPool
from alcove.server.monitoring import AccessLog
from alcove.server.openapi import describe
from alcove.server.routes import endpoints

URL = "http://test"
CLERK, ADMIN = Principal("clerk"), Principal("ann", claims={"roles": ["admin"]})


class Loan(Struct, frozen=True, kw_only=True):
    book: str
    shelf: Namespace
    until: datetime


class Library:
    """A service that knows nothing of HTTP."""

    def borrow(
        self,
        principal: Principal,
        book: str,
        shelf: NamespaceLike,
        *,
        days: Annotated[int, Meta(ge=1, le=30)] = 7,
        until: TimeLike | None = None,
        notes: Mapping[str, object] | None = None,
    ) -> Loan:
        """Lends a book."""
        if book == "none":
            raise InvalidRequest("book", "one that there is")
        when = datetime(2026, 1, days, tzinfo=UTC) if until is None else datetime.fromisoformat(str(until))
        return Loan(book=book, shelf=Namespace.checked(shelf), until=when)

    def loans(self, principal: Principal, limit: int = 2) -> Page[Loan]:
        """What is lent."""
        found = Page(self.borrow(principal, f"book {n}", "a:b") for n in range(limit))
        found.after_cursor = "next"
        return found

    def look(self, principal: Principal, book: str) -> Loan | None:
        """One loan."""
        return self.borrow(principal, book, "a:b") if book != "lost" else None

    def burn(self, principal: Principal, book: str) -> None:
        """Takes a book away."""
        principal.require("admin")


class LibraryOperations:
    TAG = "library"

    borrow = Operation(Library.borrow, "POST /loans", "Borrow a book", renames={"book": "title"})
    loans = Operation(Library.loans, "GET /loans", "What is lent", answer_field="loans", read_only=True)
    look = Operation(Library.look, "GET /loans/{book}", "One loan", not_found="it is not lent")
    burn = Operation(Library.burn, "DELETE /loans/{book}", "Take a book away", role="admin")


class LibraryHandle(LibraryOperations, Handle):
    def __init__(self, principal: Principal) -> None:
        self.transport = LocalTransport({"Library": Library()}, principal)


class AsyncLibraryHandle(LibraryOperations, AsyncHandle):
    def __init__(self, transport: AwaitingTransport) -> None:
        self.transport: AwaitingTransport = transport


async def by_name(headers: Headers) -> Principal:
    return ADMIN if headers.get(b"x-user-id") == b"ann" else CLERK


def remote(who: Principal) -> AsyncLibraryHandle:
    threads = ThreadPool(threads=2, stops=True)
    resources = endpoints(LibraryOperations, {"Library": Library()}, reads=threads, changes=threads)
    application = Application(resources, by_name, ServeConfig(), AccessLog(None), threads)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(application))
    server = Server(URL, None, None, 10, 0)
    return AsyncLibraryHandle(AwaitingTransport(server, client, who))


def test_an_operation_gives_the_same_in_this_process_and_over_the_wire() -> None:
    async def story(there: AsyncLibraryHandle) -> None:
        here = LibraryHandle(CLERK)
        moment = datetime(2026, 3, 1, tzinfo=UTC)
        for given in ({"days": 3}, {"until": moment}, {"notes": {"n": [1, None]}}):
            assert await there.borrow("Emma", ("a", "b"), **given) == here.borrow("Emma", "a:b", **given)
        found = await there.loans(limit=3)
        assert (found, found.after_cursor) == (here.loans(3), "next")
        assert isinstance(found, Page)
        assert await there.look("a/ü .") == here.look("a/ü .")
        assert await there.look("lost") is here.look("lost") is None

    asyncio.run(story(remote(CLERK)))


def test_what_is_wrong_is_named_as_each_side_knows_it() -> None:
    async def story(there: AsyncLibraryHandle) -> None:
        with pytest.raises(InvalidRequest) as refused:
            await there.borrow("none", "a")
        assert refused.value.field == "title"
        with pytest.raises(InvalidRequest, match="days"):
            await there.borrow("Emma", "a", days=31)
        with pytest.raises(InvalidRequest, match="shelf"):
            await there.borrow("Emma", "100%")
        with pytest.raises(TypeError):
            await there.borrow("Emma")  # type: ignore[call-arg]
        with pytest.raises(PermissionDenied):
            await there.burn("Emma")

    asyncio.run(story(remote(CLERK)))
    with pytest.raises(InvalidRequest) as refused:
        LibraryHandle(CLERK).borrow("none", "a")
    assert refused.value.field == "book"
    assert asyncio.run(remote(ADMIN).burn("Emma")) is None


def test_an_operation_is_described_by_its_method_alone() -> None:
    threads = ThreadPool(threads=1, stops=True)
    document = describe(
        endpoints(LibraryOperations, {"Library": Library()}, reads=threads, changes=threads), "1"
    )
    borrow = document["paths"]["/loans"]["post"]
    assert (borrow["operationId"], borrow["tags"], borrow["description"]) == (
        "borrow",
        ["library"],
        "Lends a book.",
    )
    asked = document["components"]["schemas"]["BorrowRequest"]
    assert asked["required"] == ["title", "shelf"]
    assert asked["properties"]["days"] | {"description": ""} == {
        "type": "integer", "minimum": 1, "maximum": 30, "default": 7, "description": "",
    }  # fmt: skip
    assert asked["additionalProperties"] is False
    assert sorted(document["paths"]["/loans/{book}"]["get"]["responses"])[:5] == [
        "200",
        "400",
        "401",
        "403",
        "404",
    ]
    assert "204" in document["paths"]["/loans/{book}"]["delete"]["responses"]
    with pytest.raises(NotFound):
        LibraryOperations.look.encode_result(None)
