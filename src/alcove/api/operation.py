"""An operation of the service: what it takes and answers, over HTTP and in Python, declared once.

Operations stand in tables (`operations.py`) as attributes of a class. There each is three things: what the
server serves at its route, what the OpenAPI document says of it, and a method of every handle that has the
table: of a store in this process, of one at a URL, and awaited of either.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
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

from msgspec import NODEFAULT, UNSET, Struct, defstruct, structs

from alcove.api.wire import fields_of, on_wire, sent
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.principal import Principal

P = ParamSpec("P")
R = TypeVar("R")
IDEMPOTENCY_KEY = "idempotency_key"
"""A parameter of this name stands in the header `Idempotency-Key`."""


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


class Operation(Generic[P, R]):
    """One operation.

    `does` is the method of the service that does it: its parameters after the principal are what a request
    carries, and its return type is what it answers. Parameters that the route names stand in the path, the
    others in the query of a GET or DELETE, and in the body of any other method. A parameter that is a record
    stands there with its fields.
    """

    name: str
    tag: str
    streams: str | None = None
    """The media type of an answer that comes piece by piece."""
    hidden: tuple[str, ...] = ()
    """Parameters that stand in no query or body."""

    def __init__(
        self,
        does: Callable[Concatenate[Any, Principal, P], R],
        route: str,
        summary: str,
        *,
        role: Literal["admin", "auditor"] | None = None,
        answer: type[Struct] | None = None,
        within: str | None = None,
        absent: str | None = None,
        quiet: bool = False,
        mapping: tuple[str, type[Struct]] | None = None,
        names: Mapping[str, str] | None = None,
        types: Mapping[str, Any] | None = None,
        defaults: Mapping[str, object] | None = None,
        sends: Mapping[str, Callable[[Any], object]] | None = None,
        told_as: Callable[[R], Struct] | None = None,
        read_as: Callable[[Any, Mapping[str, Any]], R] | None = None,
        errors: tuple[int, ...] = (),
        reads: bool | Callable[[Mapping[str, Any]], bool] = False,
        unhurried: bool = False,
        example: Mapping[str, object] | None = None,
    ) -> None:
        """Declares it.

        `role`: who may, whatever the policy says.
        `answer`: the record that goes over the wire, where it is not what the method returns.
        `within`: the field of that record that holds what the method returns, where that is no record itself.
        `absent`: what a 404 says where the method returns None.
        `quiet`: whether a 204 answers all who do not prefer to be told (`Prefer: return=representation`).
        `mapping`: a parameter that is a mapping, and the record that says what may be in it.
        `names`, `types`, `defaults`: of parameters in a request, where they are not those of the method.
        `sends`: how a client writes parameters, where it is not as they are.
        `told_as`, `read_as`: what goes over the wire from what the method returns, and the other way round.
        `errors`: the statuses of refusals beside those that every operation of its kind has.
        `reads`: whether it never waits for somebody who writes, and ends when its caller is gone.
        `unhurried`: whether it may take as long as the store is large.
        `example`: a request that works.
        """
        self.does = does
        self.steps: Callable[..., Generator[Any, None, R]] | None = getattr(does, "steps", None)
        self.method, self.path = route.split()
        self.summary = summary
        self.role = role
        self.absent = absent
        self.quiet = quiet
        self.unhurried = unhurried
        self.example = example
        self._reads, self._errors = reads, errors
        self._answer, self._within, self._mapping = answer, within, mapping
        self._names, self._types, self._defaults = names or {}, types or {}, defaults or {}
        self._sends, self._told_as, self._read_as = sends or {}, told_as, read_as
        self.__doc__ = does.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        if not hasattr(self, "name"):  # a handle may have it, too, by a name of its own
            self.name, self.tag = name, getattr(owner, "TAG", owner.__name__)
            self.title = name.title().replace("_", "")

    @overload
    def __get__(self, handle: None, owner: type) -> Operation[P, R]: ...
    @overload
    def __get__(self, handle: Handle, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, handle: AsyncHandle, owner: type) -> Callable[P, Awaitable[R]]: ...
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
        return {**hints_of(self.does, include_extras=True), **self._types}

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
        return tuple(sorted({400, 401, 403, *body, *missing, *self._errors}))

    @cached_property
    def request(self) -> type[Struct] | None:
        """The record of the query or the body; None where the path says it all."""
        fields: list[Any] = []
        for name, parameter in self.signature.parameters.items():
            if record := self._spread(name):
                fields += fields_of(record)
            elif name not in (IDEMPOTENCY_KEY, *self.hidden) and not self._in_path(name):
                default = self._defaults.get(name, parameter.default)
                told = (self._wire_name(name), on_wire(self._hints[name]))
                fields.append(told if default in (parameter.empty, NODEFAULT) else (*told, default))
        return (
            defstruct(f"{self.title}Request", fields, forbid_unknown_fields=True, kw_only=True)
            if fields
            else None
        )

    @cached_property
    def _plain(self) -> list[tuple[str, str]]:
        """The parameters that stand in the request record as they are, and their names there."""
        return [
            (name, self._wire_name(name))
            for name in self.signature.parameters
            if not (name in (IDEMPOTENCY_KEY, *self.hidden) or self._in_path(name) or self._spread(name))
        ]

    @cached_property
    def _special(self) -> list[tuple[str, str | type[Struct]]]:
        """The parameters that stand in the path, by their names there, and those that are records."""
        names, told = self.signature.parameters, self._wire_name
        found = [(name, told(name) if self._in_path(name) else self._spread(name)) for name in names]
        return [(name, where) for name, where in found if where]

    def arguments(self, request: Request) -> dict[str, Any]:
        """What the method of the service is called with, from a request."""
        asked = request.asked
        found = {name: getattr(asked, wire) for name, wire in self._plain}
        if self.idempotent:
            found[IDEMPOTENCY_KEY] = request.idempotency_key
        for name, where in self._special:
            if isinstance(where, str):
                found[name] = request.path[where]
                continue
            given = {each: getattr(asked, each) for each in where.__struct_fields__}
            chosen = {each: value for each, value in given.items() if value is not UNSET}
            found[name] = chosen if self._mapping and self._mapping[0] == name else where(**chosen)
        return found

    def asked(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The other way round: what a request has in its path, and what in its query or body.

        An argument that is None is left out; a null inside a mapping is not: it takes a setting back.
        """
        path: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in arguments.items():
            if self._in_path(name):
                path[self._wire_name(name)] = value
            elif self._spread(name):
                rest.update(structs.asdict(value) if isinstance(value, Struct) else value)
            elif value is not None and name not in (IDEMPOTENCY_KEY, *self.hidden):
                write = self._sends.get(name)
                rest[self._wire_name(name)] = write(value) if write else sent(value, self._hints[name], name)
        return path, rest

    def named(self, error: InvalidRequest) -> InvalidRequest:
        """The same refusal, with the field as the request has it."""
        first = error.field.partition(".")[0].partition("[")[0]
        if first not in self._names:
            return error
        renamed = type(error)(self._names[first] + error.field[len(first) :], error.expected)
        renamed.details = {**error.details, **renamed.details}
        return renamed

    @cached_property
    def repeatable(self) -> bool:
        """Whether a request that may have been done already can be sent again."""
        return self.method == "GET" or self._reads is True or self.idempotent

    def reads(self, arguments: Mapping[str, Any]) -> bool:
        """Whether it never waits for somebody who writes, and may be left when its caller is gone."""
        return self._reads if isinstance(self._reads, bool) else self._reads(arguments)

    def _wire_name(self, name: str) -> str:
        return self._names.get(name, name)

    def _in_path(self, name: str) -> bool:
        return f"{{{self._wire_name(name)}}}" in self.path

    def _spread(self, name: str) -> type[Struct] | None:
        """The record whose fields stand in a request in place of this parameter."""
        if self._mapping and self._mapping[0] == name:
            return self._mapping[1]
        hint = self._hints[name]
        return hint if isinstance(hint, type) and issubclass(hint, Struct) else None

    # What it answers

    @cached_property
    def _returns(self) -> Any:
        """The type of what the method gives in the end."""
        kind = self._hints["return"]
        if get_origin(kind) is Generator:
            kind = get_args(kind)[2]
        return get_args(kind)[0] if self.absent else kind

    @cached_property
    def answer(self) -> type[Struct] | None:
        """The record that goes over the wire; None where there is nothing to say."""
        kind = self._returns
        if self._answer or kind is type(None):
            return self._answer
        if self._within is None:
            return kind  # type: ignore[no-any-return]
        extras = [(name, hint, None) for name, hint in self._extras.items()]
        fields: list[Any] = [(self._within, on_wire(self._items) if self._items else kind), *extras]
        return defstruct(f"{self.title}Answer", fields, kw_only=True, omit_defaults=True)

    @cached_property
    def _items(self) -> Any:
        """What a list is of, as a list; None where the method gives no list."""
        kind = get_origin(self._returns) or self._returns
        if kind is not Iterator and not (isinstance(kind, type) and issubclass(kind, list)):
            return None
        parts: Any = get_args(self._returns) or get_args(vars(kind)["__orig_bases__"][0])
        return list.__class_getitem__(parts[0])

    @cached_property
    def _extras(self) -> dict[str, Any]:
        """What a list of ours says beside its items, such as where to go on."""
        kind = get_origin(self._returns) or self._returns
        return hints_of(kind) if self._items and kind not in (list, Iterator) else {}

    def told(self, result: Any) -> object:
        """What the method of the service gave, as it goes over the wire."""
        if self._told_as:
            return self._told_as(result)
        if result is None and self.absent:
            raise NotFound(self.absent)
        if self._within is not None:
            extras = {name: getattr(result, name) for name in self._extras}
            return self.answer(**{self._within: [*result] if self._items else result}, **extras)  # type: ignore[misc]
        if self.answer is None or isinstance(result, self.answer):
            return result
        return self.answer(**result)

    def meant(self, answer: Any, arguments: Mapping[str, Any]) -> R:
        """The other way round: what the method of the service would have given."""
        if self._read_as:
            return self._read_as(answer, arguments)
        if self._within is None:
            is_mapping = self._answer is not None and self._answer is not self._returns
            return structs.asdict(answer) if is_mapping else answer  # type: ignore[return-value]
        found = getattr(answer, self._within)
        kind = get_origin(self._returns) or self._returns
        if self._items and kind is not list:
            found = iter(found) if kind is Iterator else kind(found)
            for name in self._extras:
                setattr(found, name, getattr(answer, name))
        return found  # type: ignore[no-any-return]


class Streaming(Operation[P, R]):
    """An operation whose method gives its answer piece by piece; each is a line, or an event."""

    def __init__(
        self,
        does: Callable[Concatenate[Any, Principal, P], Iterator[R]],
        route: str,
        summary: str,
        *,
        streams: str,
        role: Literal["admin", "auditor"] | None = None,
        names: Mapping[str, str] | None = None,
        sends: Mapping[str, Callable[[Any], object]] | None = None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        """Declares it; `streams` is the media type, `hidden` are parameters that stand in no query."""
        super().__init__(does, route, summary, role=role, names=names, sends=sends)  # type: ignore[arg-type]
        self.streams = streams
        self.hidden = hidden

    @overload  # type: ignore[override]
    def __get__(self, handle: None, owner: type) -> Streaming[P, R]: ...
    @overload
    def __get__(self, handle: Handle, owner: type) -> Callable[P, Iterator[R]]: ...
    @overload
    def __get__(self, handle: AsyncHandle, owner: type) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, handle: Any, owner: type) -> Any:
        return super().__get__(handle, owner)

    @cached_property
    def piece(self) -> type[R]:
        """The record of each piece."""
        return get_args(self._hints["return"])[0]  # type: ignore[no-any-return]

    @cached_property
    def answer(self) -> type[Struct] | None:
        return None


def operations(table: type) -> list[Operation[..., Any]]:
    """Every operation of a table, in its order."""
    return [each for each in vars(table).values() if isinstance(each, Operation)]
