"""An operation of the service: what it takes and answers, over HTTP and in Python, declared once.

Operations stand in tables (`operations.py`) as attributes of a class. There each is three things: what the
server serves at its route, what the OpenAPI document says of it, and a method of every handle that has the
table: of a store in this process, of one at a URL, and awaited of either.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, get_args, get_origin, overload
from typing import get_type_hints as hints_of

from msgspec import NODEFAULT, UNSET, Struct, defstruct, field, json, structs

from alcove.core.principal import Principal

P = ParamSpec("P")
R = TypeVar("R")


class Handle:
    """Something that operations can be done with, whose answers are returned."""

    def perform(self, operation: Operation[..., R], arguments: dict[str, Any]) -> R:
        """Does an operation; `arguments` has every parameter of its method by name."""
        raise NotImplementedError


class AsyncHandle:
    """The same, for who awaits answers."""

    async def perform(self, operation: Operation[..., R], arguments: dict[str, Any]) -> R:
        """Does an operation; `arguments` has every parameter of its method by name."""
        raise NotImplementedError


class Operation(Generic[P, R]):
    """One operation.

    `does` is the method of the service that does it: its parameters after the principal are what a request
    carries, and its return type is what it answers. Parameters that the route names stand in the path, the
    others in the query of a GET or DELETE, and in the body of any other method. A parameter that is a record
    stands there with its fields.
    """

    name: str

    def __init__(
        self,
        does: Callable[Concatenate[Any, Principal, P], R],
        route: str,
        summary: str,
        *,
        role: Literal["admin", "auditor"] | None = None,
        answer: type[Struct] | None = None,
        within: str | None = None,
        mapping: tuple[str, type[Struct]] | None = None,
        names: Mapping[str, str] | None = None,
        types: Mapping[str, Any] | None = None,
        defaults: Mapping[str, object] | None = None,
        errors: tuple[int, ...] = (),
        reads: bool = False,
        unhurried: bool = False,
    ) -> None:
        """Declares it.

        `role`: who may, whatever the policy says.
        `answer`: the record that goes over the wire, where it is not what the method returns.
        `within`: the field of that record that holds what the method returns, where that is no record itself.
        `mapping`: a parameter that is a mapping, and the record that says what may be in it.
        `names`, `types`, `defaults`: of parameters in a request, where they are not those of the method.
        `errors`: the statuses of refusals beside 400, 401 and 403.
        `reads`: whether it never waits for somebody who writes.
        `unhurried`: whether it may take as long as the store is large.
        """
        self.does = does
        self.method, self.path = route.split()
        self.summary = summary
        self.role = role
        self.errors = errors
        self.reads = reads
        self.unhurried = unhurried
        self._answer, self._within, self._mapping = answer, within, mapping
        self._names, self._types, self._defaults = names or {}, types or {}, defaults or {}

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, handle: None, owner: type) -> Operation[P, R]: ...
    @overload
    def __get__(self, handle: Handle, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, handle: AsyncHandle, owner: type) -> Callable[P, Awaitable[R]]: ...
    def __get__(self, handle: Any, owner: type) -> Any:
        return self if handle is None else partial(self._performed, handle)

    def _performed(self, handle: Any, /, *args: Any, **named: Any) -> Any:
        bound = self._signature.bind(*args, **named)
        bound.apply_defaults()
        return handle.perform(self, bound.arguments)

    # What it takes

    @cached_property
    def _signature(self) -> inspect.Signature:
        """The method's, without the service and the principal."""
        signature = inspect.signature(self.does)
        return signature.replace(parameters=[*signature.parameters.values()][2:])

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return {**hints_of(self.does, include_extras=True), **self._types}

    @cached_property
    def request(self) -> type[Struct] | None:
        """The record of the query or the body; None where the path says it all."""
        fields: list[Any] = []
        for name, parameter in self._signature.parameters.items():
            if record := self._spread(name):
                fields += _fields(record)
            elif not self._in_path(name):
                default = self._defaults.get(name, parameter.default)
                told = (self._wire_name(name), self._hints[name])
                fields.append(told if default is parameter.empty else (*told, default))
        kind = f"{self._title}Request"
        return defstruct(kind, fields, forbid_unknown_fields=True, kw_only=True) if fields else None

    @property
    def _title(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def in_query(self) -> bool:
        """Whether a request carries its parameters in the query, and not in a body."""
        return self.method in ("GET", "DELETE")

    def arguments(self, request: Struct | None, path: Mapping[str, str]) -> dict[str, Any]:
        """What the method of the service is called with, from a request."""
        found: dict[str, Any] = {}
        for name in self._signature.parameters:
            if self._in_path(name):
                found[name] = path[self._wire_name(name)]
            elif record := self._spread(name):
                given = {each: getattr(request, each) for each in record.__struct_fields__}
                chosen = {each: value for each, value in given.items() if value is not UNSET}
                found[name] = chosen if self._mapping and self._mapping[0] == name else record(**chosen)
            else:
                found[name] = getattr(request, self._wire_name(name))
        return found

    def asked(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The other way round: what a request has in its path, and what in its query or body."""
        path: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in arguments.items():
            if self._in_path(name):
                path[self._wire_name(name)] = value
            elif self._spread(name):
                rest.update(structs.asdict(value) if isinstance(value, Struct) else value)
            else:
                rest[self._wire_name(name)] = (
                    json.decode(json.encode(value)) if isinstance(value, Struct) else value
                )
        return path, rest

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

    @property
    def _steps(self) -> bool:
        """Whether the method gives what it answers one by one."""
        return get_origin(self._hints["return"]) is Iterator

    @cached_property
    def answer(self) -> type[Struct] | None:
        """The record that goes over the wire; None where there is nothing to say."""
        kind = self._hints["return"]
        if self._answer or kind is type(None):
            return self._answer
        if self._within is None:
            return kind  # type: ignore[no-any-return]
        every = list[get_args(kind)[0]] if self._steps else kind  # type: ignore[misc]
        return defstruct(f"{self._title}Answer", [(self._within, every)], kw_only=True)

    def told(self, result: object) -> Struct | None:
        """What the method of the service gave, as it goes over the wire."""
        if self.answer is None or isinstance(result, self.answer):
            return result  # type: ignore[return-value]
        if self._within is None:
            return self.answer(**result)  # type: ignore[arg-type]
        return self.answer(**{self._within: [*result] if self._steps else result})  # type: ignore[misc]

    def meant(self, answer: Any) -> R:
        """The other way round: what the method of the service would have given."""
        if self._within is None:
            is_mapping = self._answer is not None and self._answer is not self._hints["return"]
            return structs.asdict(answer) if is_mapping else answer  # type: ignore[return-value]
        found = getattr(answer, self._within)
        return iter(found) if self._steps else found  # type: ignore[no-any-return]


def operations(table: type) -> list[Operation[..., Any]]:
    """Every operation of a table, in its order."""
    return [each for each in vars(table).values() if isinstance(each, Operation)]


def _fields(record: type[Struct]) -> list[Any]:
    """The fields of a record, as `defstruct` takes them."""
    hints = hints_of(record, include_extras=True)
    found: list[Any] = []
    for each in structs.fields(record):
        if each.default is not NODEFAULT:
            found.append((each.name, hints[each.name], each.default))
        elif each.default_factory is not NODEFAULT:
            found.append((each.name, hints[each.name], field(default_factory=each.default_factory)))
        else:
            found.append((each.name, hints[each.name]))
    return found
