"""An operation: a method of a service, its HTTP route, and the method of every handle, declared once.

Tables (`operations.py`, `agent_operations.py`) list operations as attributes of a class. The server serves
each at its route, the OpenAPI document describes it, and every handle whose class inherits the table has it
as a method: of a store in this process, of one at a URL, or awaited.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from types import MethodType
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

from msgspec import NODEFAULT, UNSET, Raw, Struct, defstruct, json, structs

from alcove.api.messages import AnswerRecord, ErrorAnswer, fields_of, json_type, to_json_value
from alcove.core.errors import InvalidRequest, NotFound
from alcove.core.principal import Principal
from alcove.core.records import Entry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
IDEMPOTENCY_KEY = "idempotency_key"
"""A parameter with this name is the header `Idempotency-Key`."""
LAST_EVENT_ID = "after_cursor"
"""A parameter of a stream with this name is the header `Last-Event-ID`."""
CAMEL_CASE_FIELDS = {"created_at": "createdAt", "expires_at": "expiresAt"}
"""Times of a memory that answers have twice; clients of an older contract read the second spelling."""
_encode = json.Encoder().encode

PREFIX, PREFIX_ALIAS = "prefix", "namespace_prefix"
"""The parameter for a subtree, and its name in some requests; both names are accepted everywhere."""


class Handle:
    """An object with operations as methods; its `transport` has a method `bound`.

    `transport.bound(operation)` is the function that performs an operation, in this process or at a server.
    """


class AsyncHandle:
    """A handle whose operations are awaited."""


class Request(Protocol):
    """The parts of a request that an operation reads."""

    parameters: Any
    path: dict[str, str]
    idempotency_key: str | None


@dataclass(eq=False, repr=False)
class Operation(Generic[P, R]):
    """One operation.

    Parameters that the route names are in the path, the others in the query of a GET or DELETE and in the
    body of any other method. A mapping whose type in requests is a record contributes the fields of that
    record.
    """

    function: Callable[Concatenate[Any, Principal, P], R] | None
    """The method of the service: its parameters after the principal are the request, its return type is the
    answer. None for an endpoint that is not a method, such as `/healthz`."""
    route: str
    summary: str = ""
    """A short text for the OpenAPI document; by default the beginning of the method's docstring."""
    _: KW_ONLY
    name: str = ""
    """The attribute's name in its table, unless given."""
    tag: str = "service"
    service: str = ""
    """The name of the class that performs it; by default that whose method the function is."""
    role: Literal["admin", "auditor"] | None = None
    """The role that a caller needs, whatever the policy says; by default as `ROLES` of the table says."""
    request_record: type[Struct] | None = None
    """The record of the query or the body, if it is not made of the method's parameters."""
    query_record: type[Struct] | None = None
    """The record of the query, if a request has a body, too."""
    answer_record: type[Struct] | None = None
    """The record of the answer, if it is not what the method returns."""
    answer_field: str | None = None
    """The field of the answer that holds the method's result, if that is not a record."""
    not_found: str | None = None
    """The message of the 404 if the method returns None."""
    no_content: bool = False
    """Whether the answer is a 204 unless the request has `Prefer: return=representation`."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """By parameter of the method: its name in a request, if that is another."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """By parameter: its type in a request, if that is another."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """By parameter: its default in a request, if that is another."""
    encoders: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)
    """By parameter: how a client encodes it, if not by its type."""
    extra_errors: tuple[int, ...] = ()
    """Statuses of errors besides those that every operation of its kind has."""
    read_only: bool | Callable[[Mapping[str, Any]], bool] = False
    """Whether it never waits for a writer (except for the audit log), may be cancelled when its caller is
    gone, and may be sent again, as any GET may; or a function of the arguments."""
    quick: bool = False
    """Whether to try it on the event loop: it is usually done at once, or waits for a commit only."""
    unlimited_time: bool = False
    """Whether it may take as long as the size of the store demands."""
    raw_body: str | None = None
    """The parameter that is the whole body, if the body's media type is not JSON."""
    line_body: bool = False
    """Whether the body is lines of JSON, which are read as they arrive, however many they are."""
    stream_type: str | None = None
    """The media type of an answer that is sent piece by piece."""
    can_stream: bool = False
    """Whether the caller can have the answer as events, by `stream` or by the header `Accept`."""
    media_type: str | None = None
    """The media type of an answer that is text and not a record."""
    error_record: Any = ErrorAnswer
    """The record of errors; its `of` makes it from an exception."""
    is_public: bool = False
    """Whether callers need no credentials."""
    is_public_locally: bool = False
    """Whether callers on this machine need no credentials."""
    example: Mapping[str, object] | None = None
    """A request that works."""

    def __post_init__(self) -> None:
        self.begin: Callable[..., Any] | None = getattr(self.function, "begin", None)
        """Begins the write and returns a future of its result; None if it is no write."""
        if self.function and not self.service:
            self.service = self.function.__qualname__.rpartition(".")[0]
        self.method, self.path = self.route.split()
        self.__doc__ = (self.function and self.function.__doc__) or self.summary
        self.summary = self.summary or " ".join(re.split(r"[.;:]", self.__doc__)[0].split())

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:  # a handle may have it under another name, too
            self.name, self.tag = name, getattr(owner, "TAG", owner.__name__)
            reader, writer = getattr(owner, "ROLES", (None, None))
            self.role = self.role or (reader if self.method == "GET" else writer)

    def __repr__(self) -> str:
        return f"<operation {self.name}: {self.route}>"

    @overload
    def __get__(self, handle: None, owner: type) -> Operation[P, R]: ...
    @overload
    def __get__(self, handle: Handle, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self: Streaming[P, T], handle: AsyncHandle, owner: type) -> Callable[P, AsyncIterator[T]]: ...  # type: ignore[misc]
    @overload
    def __get__(self, handle: AsyncHandle, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, handle: Any, owner: type) -> Any:
        return self if handle is None else MethodType(self._handle_method, handle)

    @cached_property
    def _handle_method(self) -> Callable[..., Any]:
        """The method of handles, a function whose signature and text `help` and IPython show."""

        def method(handle: Any, /, *args: Any, **arguments: Any) -> Any:
            if PREFIX_ALIAS in arguments and PREFIX in self.signature.parameters:
                arguments.setdefault(PREFIX, arguments.pop(PREFIX_ALIAS))
            return handle.transport.bound(self)(*args, **arguments)

        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        method.__signature__ = self.signature.replace(  # type: ignore[attr-defined]
            parameters=[this, *self.signature.parameters.values()]
        )
        method.__name__ = method.__qualname__ = self.name
        method.__doc__ = self.__doc__
        return method

    # Requests

    @cached_property
    def signature(self) -> inspect.Signature:
        """The method's signature, without the service and the principal."""
        if self.function is None:
            return inspect.Signature()
        signature = inspect.signature(self.function)
        return signature.replace(parameters=[*signature.parameters.values()][2:])

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return {**hints_of(self.function, include_extras=True), **self.types} if self.function else {}

    @cached_property
    def _places(self) -> tuple[dict[str, str], dict[str, str], dict[str, type[Struct]]]:
        """The names of parameters in the path, those in the query or body, and the records of the others."""
        path, request, records = {}, {}, {}
        for parameter in self.signature.parameters:
            name = self.renames.get(parameter, parameter)
            if f"{{{name}}}" in self.path:
                path[parameter] = name
            elif isinstance(kind := self.types.get(parameter), type) and issubclass(kind, Struct):
                records[parameter] = kind
            elif parameter != IDEMPOTENCY_KEY and not (self.stream_type and parameter == LAST_EVENT_ID):
                request[parameter] = name
        return path, request, records

    @cached_property
    def idempotent(self) -> bool:
        """Whether it takes an `Idempotency-Key`."""
        return IDEMPOTENCY_KEY in self.signature.parameters

    @cached_property
    def in_query(self) -> bool:
        """Whether the parameters of a request are in the query, and not in a body."""
        return self.method in ("GET", "DELETE") or self.line_body

    @cached_property
    def has_body(self) -> bool:
        """Whether a request has a JSON body."""
        return not self.in_query and self.request is not None

    @cached_property
    def errors(self) -> tuple[int, ...]:
        """The statuses of its errors."""
        body = (413, 415) if self.has_body else (415,) if self.line_body else ()
        missing = (404,) if self.not_found or "{" in self.path else ()
        credentials = () if self.is_public else (401, 403)
        return tuple(sorted({400, *credentials, *body, *missing, *self.extra_errors}))

    @cached_property
    def request(self) -> type[Struct] | None:
        """The record of the query or the body; None if the path says it all."""
        if self.request_record or self.function is None:
            return self.request_record
        _, plain, records = self._places
        fields: list[Any] = []
        for parameter, name in plain.items():
            default = self.defaults.get(parameter, self.signature.parameters[parameter].default)
            default = NODEFAULT if default is inspect.Parameter.empty else default
            fields.append((name, json_type(self._hints[parameter]), default))
        for record in records.values():
            fields += fields_of(record)
        if self.can_stream:
            fields.append(("stream", bool, False))
        if not fields:
            return None
        return defstruct(f"{self._title}Request", fields, forbid_unknown_fields=True, kw_only=True)

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Other names that a request may use for its parameters, with the names that they stand for."""
        if PREFIX not in self.signature.parameters:
            return {}
        name = self.renames.get(PREFIX, PREFIX)
        return {alias: name for alias in (PREFIX, PREFIX_ALIAS) if alias != name}

    @cached_property
    def _title(self) -> str:
        return self.name.title().replace("_", "")

    def arguments(self, request: Request) -> dict[str, Any]:
        """The arguments of the service's method, from a request."""
        path, plain, records = self._places
        parameters = request.parameters
        arguments = {}
        for parameter, name in plain.items():
            arguments[parameter] = getattr(parameters, name)
        if self.idempotent:
            arguments[IDEMPOTENCY_KEY] = request.idempotency_key
        for parameter, name in path.items():
            arguments[parameter] = request.path[name]
        for parameter, record in records.items():
            fields = {each: getattr(parameters, each) for each in record.__struct_fields__}
            arguments[parameter] = {name: value for name, value in fields.items() if value is not UNSET}
        return arguments

    def to_request(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parts of a request, from the arguments of a call: its path, and its query or body.

        Leaves out an argument that is None, but not a null inside a mapping: that resets a setting.
        """
        path, plain, records = self._places
        fields: dict[str, Any] = {}
        for parameter, name in plain.items():
            if (value := arguments[parameter]) is not None:
                encode = self.encoders.get(parameter)
                hint = self._hints[parameter]
                fields[name] = encode(value) if encode else to_json_value(value, hint, parameter)
        for parameter in records:
            fields.update(arguments[parameter])
        return {name: arguments[parameter] for parameter, name in path.items()}, fields

    def rename_field(self, error: InvalidRequest) -> InvalidRequest:
        """The same error, with the field's name in the request instead of the parameter's."""
        parameter = error.field.partition(".")[0].partition("[")[0]
        if parameter not in self.renames:
            return error
        renamed = type(error)(self.renames[parameter] + error.field[len(parameter) :], error.expected)
        renamed.details = {**error.details, **renamed.details}
        return renamed

    def only_reads(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments only reads."""
        return self.read_only if isinstance(self.read_only, bool) else self.read_only(arguments)

    @cached_property
    def repeatable(self) -> bool:
        """Whether a client may send a request again that the server may have performed already."""
        return self.method == "GET" or self.read_only is True or self.idempotent

    # Answers

    @cached_property
    def _result_type(self) -> Any:
        """The type of the method's result, if there is one."""
        kind = self._hints["return"]
        return get_args(kind)[0] if self.not_found else kind

    @cached_property
    def _list_type(self) -> type[list[Any]] | None:
        """The method's result type if it is a list."""
        kind = get_origin(self._result_type) or self._result_type
        return kind if isinstance(kind, type) and issubclass(kind, list) else None

    @cached_property
    def _list_attributes(self) -> dict[str, Any]:
        """The attributes of a result that is one of our lists, such as the cursor of the next page."""
        return hints_of(self._list_type) if self._list_type else {}

    @cached_property
    def answer(self) -> type[Struct] | None:
        """The record of the answer; None if the answer has no content or streams."""
        if self.answer_record or self.stream_type or self.function is None:
            return self.answer_record
        kind = self._result_type
        if kind is type(None):
            return None
        if self.answer_field is None:
            return kind  # type: ignore[no-any-return]
        if self._list_type:
            parts = get_args(kind) or get_args(vars(kind)["__orig_bases__"][0])
            kind = list.__class_getitem__(parts[0])
        fields: list[Any] = [(self.answer_field, kind)]
        fields += [(name, hint, None) for name, hint in self._list_attributes.items()]
        return defstruct(f"{self._title}Answer", fields, kw_only=True, omit_defaults=True)

    def encode_result(self, result: Any) -> bytes | None:
        """The answer as JSON, from the method's result; None if the method returns nothing."""
        if self.answer_record:
            return encode_answer(self.answer_record.of(result))  # type: ignore[attr-defined]
        if result is None and self.not_found:
            raise NotFound(self.not_found)
        if self.answer_field:
            fields = {name: getattr(result, name) for name in self._list_attributes}
            fields[self.answer_field] = [*result] if self._list_type else result
            result = self.answer(**fields)  # type: ignore[misc]
        return None if result is None else encode_answer(result)

    def to_result(self, answer: Any, arguments: Mapping[str, Any]) -> R:
        """The method's result, from the record of the answer to a call with these arguments."""
        if isinstance(answer, AnswerRecord):
            return answer.to_result(arguments)  # type: ignore[no-any-return]
        result = answer if self.answer_field is None else getattr(answer, self.answer_field)
        if self._list_type:
            result = self._list_type(result)
            for name in self._list_attributes:
                setattr(result, name, getattr(answer, name))
        return result  # type: ignore[no-any-return]


class Streaming(Operation[P, Iterator[R]]):
    """An operation whose method returns an iterator; each item is a line or an event of the answer."""

    @cached_property
    def item(self) -> type[R]:
        """The record of each item."""
        return get_args(self._result_type)[0]  # type: ignore[no-any-return]


def services_by_class(*services: object) -> dict[str, Any]:
    """Returns services by the names of their classes, as `Operation.service` names them."""
    return {kind.__name__: each for each in services for kind in type(each).__mro__}


def operations(table: type) -> list[Operation[..., Any]]:
    """Every operation of a table, in its order."""
    return [each for each in vars(table).values() if isinstance(each, Operation)]


def encode_answer(answer: object) -> bytes:
    """An answer as JSON; the times of memories in it have two spellings (`CAMEL_CASE_FIELDS`)."""
    if isinstance(answer, Entry):
        created, expires = _encode(answer.created_at), _encode(answer.expires_at)
        return b'%b,"createdAt":%b,"expiresAt":%b}' % (_encode(answer)[:-1], created, expires)
    if isinstance(answer, Struct):
        for name in answer.__struct_fields__:
            items = getattr(answer, name)
            if isinstance(items, list) and any(isinstance(each, Entry) for each in items):
                encoded = [Raw(encode_answer(each)) if isinstance(each, Entry) else each for each in items]
                answer = structs.replace(answer, **{name: encoded})
    return _encode(answer)
