"""An operation of the service: what it takes and answers, over HTTP and in Python, declared once.

Operations stand in tables (`operations.py`) as attributes of a class. There each is three things: what the
server serves at its route, what the OpenAPI document says of it, and a method of every handle that has the
table: of a store in this process, of one at a URL, and awaited of either.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    overload,
)
from typing import get_type_hints as hints_of

from msgspec import NODEFAULT, UNSET, Struct, defstruct

from alcove.api.messages import Told
from alcove.api.wire import fields_of, on_wire, sent
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.principal import Principal

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
IDEMPOTENCY_KEY = "idempotency_key"
"""A parameter of this name stands in the header `Idempotency-Key`."""
LAST_SEEN = "after_cursor"
"""A parameter of this name stands, where the answer is a stream, in the header `Last-Event-ID`."""


class Handle:
    """Something that operations can be done with: its `transport` has a method `bound`.

    That gives for an operation the function that does it, for a service in this process or at a server.
    """


class AsyncHandle:
    """The same, for who awaits answers."""


class Request(Protocol):
    """What came with a request, as far as an operation needs it."""

    asked: Any
    path: Mapping[str, str]
    idempotency_key: str | None


@dataclass(eq=False)
class Operation(Generic[P, R]):
    """One operation.

    Parameters that the route names stand in the path, the others in the query of a GET or DELETE, and in the
    body of any other method. A mapping whose type in requests is a record stands there with its fields.
    """

    does: Callable[Concatenate[Any, Principal, P], R]
    """The method of the service that does it: its parameters after the principal are what a request carries,
    and its return type is what it answers."""
    route: str
    summary: str
    _: KW_ONLY
    role: Literal["admin", "auditor"] | None = None
    """Who may, whatever the policy says; where it is not said, a table with `ROLES` says it."""
    told_as: type[Told] | None = None
    """The record that goes over the wire, where it is not what the method returns."""
    within: str | None = None
    """The field of the answer that holds what the method returns, where that is no record itself."""
    absent: str | None = None
    """What a 404 says where the method returns None."""
    quiet: bool = False
    """Whether a 204 answers all who do not prefer to be told (`Prefer: return=representation`)."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Of parameters in a request, where they are not those of the method; so are types and defaults."""
    types: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    sends: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    """How a client writes parameters, where it is not as they are."""
    refuses: tuple[int, ...] = ()
    """The statuses of refusals beside those that every operation of its kind has."""
    reads: bool | Callable[[Mapping[str, Any]], bool] = False
    """Whether it never waits for somebody who writes (unless the audit log has to record it), ends when its
    caller is gone, and may be sent again, as any GET may."""
    quick: bool = False
    """Whether it may be tried on an event loop: it is most often done at once, or only waits for a commit."""
    unhurried: bool = False
    """Whether it may take as long as the store is large."""
    raw: str | None = None
    """The parameter that a body of any other media type than JSON is as a whole."""
    streams: str | None = None
    """The media type of an answer that comes piece by piece."""
    streams_too: bool = False
    """Whether the answer comes as events for who asks so, by `stream` or by the header `Accept`."""
    example: Mapping[str, object] | None = None
    """A request that works."""
    name: str = field(init=False)
    tag: str = field(init=False)

    def __post_init__(self) -> None:
        self.begin: Callable[..., Any] | None = getattr(self.does, "begin", None)
        """Begins the write that it is, and gives a future of its result; None where it is none."""
        self.awaited: Callable[..., Coroutine[Any, Any, R]] | None = getattr(self.does, "awaited", None)
        self.method, self.path = self.route.split()
        self.__doc__ = self.does.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        if not hasattr(self, "name"):  # a handle may have it, too, by a name of its own
            self.name, self.tag = name, getattr(owner, "TAG", owner.__name__)
            self.title = name.title().replace("_", "")
            reading, changing = getattr(owner, "ROLES", (None, None))
            self.role = self.role or (reading if self.method == "GET" else changing)

    @overload
    def __get__(self, handle: None, owner: type) -> Operation[P, R]: ...
    @overload
    def __get__(self, handle: Handle, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self: Streaming[P, T], handle: AsyncHandle, owner: type) -> Callable[P, AsyncIterator[T]]: ...  # type: ignore[misc]
    @overload
    def __get__(self, handle: AsyncHandle, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, handle: Any, owner: type) -> Any:
        return self if handle is None else handle.transport.bound(self)

    # What it takes

    @cached_property
    def signature(self) -> inspect.Signature:
        """The method's, without the service and the principal."""
        signature = inspect.signature(self.does)
        return signature.replace(parameters=[*signature.parameters.values()][2:])

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return {**hints_of(self.does, include_extras=True), **self.types}

    @cached_property
    def _places(self) -> tuple[dict[str, str], dict[str, str], dict[str, type[Struct]]]:
        """Where parameters stand: in the path and in the request, by their names there, or as its records."""
        path, request, records = {}, {}, {}
        for name in self.signature.parameters:
            told = self.names.get(name, name)
            if f"{{{told}}}" in self.path:
                path[name] = told
            elif isinstance(kind := self.types.get(name), type) and issubclass(kind, Struct):
                records[name] = kind
            elif name != IDEMPOTENCY_KEY and not (self.streams and name == LAST_SEEN):
                request[name] = told
        return path, request, records

    @cached_property
    def idempotent(self) -> bool:
        """Whether an `Idempotency-Key` is taken."""
        return IDEMPOTENCY_KEY in self.signature.parameters

    @cached_property
    def in_query(self) -> bool:
        """Whether a request carries its parameters in the query, and not in a body."""
        return self.method in ("GET", "DELETE")

    @cached_property
    def errors(self) -> tuple[int, ...]:
        """The statuses of its refusals."""
        body = () if self.in_query or self.request is None else (413, 415)
        missing = (404,) if self.absent or "{" in self.path else ()
        return tuple(sorted({400, 401, 403, *body, *missing, *self.refuses}))

    @cached_property
    def request(self) -> type[Struct] | None:
        """The record of the query or the body; None where the path says it all."""
        _, plain, records = self._places
        fields: list[Any] = []
        for name, told in plain.items():
            default = self.defaults.get(name, self.signature.parameters[name].default)
            default = NODEFAULT if default is inspect.Parameter.empty else default
            fields.append((told, on_wire(self._hints[name]), default))
        for record in records.values():
            fields += fields_of(record)
        if self.streams_too:
            fields.append(("stream", bool, False))
        if not fields:
            return None
        return defstruct(f"{self.title}Request", fields, forbid_unknown_fields=True, kw_only=True)

    def arguments(self, request: Request) -> dict[str, Any]:
        """What the method of the service is called with, from a request."""
        path, plain, records = self._places
        asked = request.asked
        found = {name: getattr(asked, told) for name, told in plain.items()}
        if self.idempotent:
            found[IDEMPOTENCY_KEY] = request.idempotency_key
        for name, told in path.items():
            found[name] = request.path[told]
        for name, record in records.items():
            given = {each: getattr(asked, each) for each in record.__struct_fields__}
            found[name] = {each: value for each, value in given.items() if value is not UNSET}
        return found

    def asked(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The other way round: what a request has in its path, and what in its query or body.

        An argument that is None is left out; a null inside a mapping is not: it takes a setting back.
        """
        path, plain, records = self._places
        rest: dict[str, Any] = {}
        for name, told in plain.items():
            if (value := arguments[name]) is not None:
                write = self.sends.get(name)
                rest[told] = write(value) if write else sent(value, self._hints[name], name)
        for name in records:
            rest.update(arguments[name])
        return {told: arguments[name] for name, told in path.items()}, rest

    def named(self, error: InvalidRequest) -> InvalidRequest:
        """The same refusal, with the field as the request has it."""
        first = error.field.partition(".")[0].partition("[")[0]
        if first not in self.names:
            return error
        renamed = type(error)(self.names[first] + error.field[len(first) :], error.expected)
        renamed.details = {**error.details, **renamed.details}
        return renamed

    def reading(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments only reads."""
        return self.reads if isinstance(self.reads, bool) else self.reads(arguments)

    @cached_property
    def repeatable(self) -> bool:
        """Whether a request that may have been done already can be sent again."""
        return self.method == "GET" or self.reads is True or self.idempotent

    # What it answers

    @cached_property
    def _returns(self) -> Any:
        """The type of what the method gives in the end."""
        kind = self._hints["return"]
        return get_args(kind)[0] if self.absent else kind

    @cached_property
    def _list(self) -> type[list[Any]] | None:
        """The kind of list that the method gives; None where it gives no list."""
        kind = get_origin(self._returns) or self._returns
        return kind if isinstance(kind, type) and issubclass(kind, list) else None

    @cached_property
    def _extras(self) -> dict[str, Any]:
        """What a list of ours says beside its items, such as where to go on."""
        return hints_of(self._list) if self._list else {}

    @cached_property
    def answer(self) -> type[Struct] | None:
        """The record that goes over the wire; None where there is nothing to say."""
        kind = self._returns
        if self.told_as or self.streams or kind is type(None):
            return self.told_as
        if self.within is None:
            return kind  # type: ignore[no-any-return]
        if self._list:
            parts = get_args(kind) or get_args(vars(kind)["__orig_bases__"][0])
            kind = list.__class_getitem__(parts[0])
        fields: list[Any] = [
            (self.within, kind),
            *((name, hint, None) for name, hint in self._extras.items()),
        ]
        return defstruct(f"{self.title}Answer", fields, kw_only=True, omit_defaults=True)

    def told(self, result: Any) -> object:
        """What the method of the service gave, as it goes over the wire."""
        if self.told_as:
            return self.told_as.of(result)
        if result is None and self.absent:
            raise NotFound(self.absent)
        if self.within is None:
            return result
        extras = {name: getattr(result, name) for name in self._extras}
        return self.answer(**{self.within: [*result] if self._list else result}, **extras)  # type: ignore[misc]

    def meant(self, answer: Any, arguments: Mapping[str, Any]) -> R:
        """The other way round: what the method of the service would have given."""
        if self.told_as:
            return answer.meant(arguments)  # type: ignore[no-any-return]
        found = answer if self.within is None else getattr(answer, self.within)
        if self._list:
            found = self._list(found)
            for name in self._extras:
                setattr(found, name, getattr(answer, name))
        return found  # type: ignore[no-any-return]


class Streaming(Operation[P, Iterator[R]]):
    """An operation whose method gives its answer piece by piece; each is a line, or an event."""

    @cached_property
    def piece(self) -> type[R]:
        """The record of each piece."""
        return get_args(self._returns)[0]  # type: ignore[no-any-return]


def operations(table: type) -> list[Operation[..., Any]]:
    """Every operation of a table, in its order."""
    return [each for each in vars(table).values() if isinstance(each, Operation)]
