"""Records of requests and answers that cannot be derived from the types of methods, and types in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field, structs

from alcove.agents.tools import Answer
from alcove.core import cursor, validation
from alcove.core.clock import parse_moment, to_datetime
from alcove.core.cursor import Page
from alcove.core.decoding import convert
from alcove.core.errors import AlcoveError
from alcove.core.namespace import Namespace
from alcove.core.records import (
    BatchOperation,
    Delete,
    Deletion,
    Entry,
    Get,
    Memory,
    OperationResult,
    Put,
    Touch,
)
from alcove.core.settings import AdjustableSettings
from alcove.upkeep.doctor import Examination
from alcove.vault import Rotation

Segments = Annotated[list[str], Meta(description="A namespace, segment by segment.")]
Instant = Annotated[str, Meta(description="A time in RFC 3339, with its zone.")]
_encode = msgspec.json.Encoder().encode


def json_type(hint: Any) -> Any:
    """The type in JSON of a method's parameter: a list for a sequence, a string for a moment."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is object:
        return Any
    if origin in (Union, UnionType):
        if _is_moment(parts):
            parts = (Instant, *(part for part in parts if part not in (str, datetime)))
        elif _is_namespace(parts):
            parts = (Segments, *(part for part in parts if part not in (str, Sequence[str])))
        return Union[tuple(map(json_type, parts))]  # noqa: UP007  a union of types known at run time only
    if origin is Mapping:
        return dict[tuple(map(json_type, parts))]  # type: ignore[misc]
    return list[json_type(parts[0])] if origin in (Sequence, Iterable) else hint  # type: ignore[misc]


def fields_of(record: type[Struct]) -> list[Any]:
    """The fields of a record, as `defstruct` takes them."""
    return [
        (each.name, json_type(each.type), field(default=each.default, default_factory=each.default_factory))  # type: ignore[call-overload]
        for each in structs.fields(record)
    ]


def to_json_value(value: Any, hint: Any, name: str) -> object:
    """An argument as a client sends it: a namespace as its segments, a moment as text.

    `hint` is the type of the parameter; `name` is the parameter's name, for errors.
    """
    parts = get_args(hint)
    if value is None:
        return None
    if _is_moment(parts):
        moment = parse_moment(value, name)
        return None if moment is None else to_datetime(moment).isoformat()
    if _is_namespace(parts):
        return [*Namespace.checked(value, name)]
    if isinstance(value, Struct):
        return msgspec.json.decode(_encode(value))
    if not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        return value
    return [msgspec.json.decode(_encode(each)) if isinstance(each, Struct) else each for each in value]


def _is_moment(parts: Sequence[Any]) -> bool:
    return datetime in parts and str in parts


def _is_namespace(parts: Sequence[Any]) -> bool:
    return Sequence[str] in parts and str in parts


Text = Annotated[str, Meta(description="A Rego module.")]


class PolicyTexts(Struct, kw_only=True):
    """Texts of policies; null stands for the text in the policy folder, or the built-in one."""

    authz: Text | None = None
    attributes: Text | None = None
    filter: Text | None = None


class AnswerRecord(Struct):
    """An answer that differs from its method's result, with conversions in both directions.

    This one is for results that are mappings.
    """

    @classmethod
    def of(cls, result: Any) -> Self:
        """The answer for a result."""
        return cls(**result)

    def to_result(self, arguments: Mapping[str, Any]) -> Any:
        """The result of a call with these arguments."""
        return structs.asdict(self)


class PolicyAnswers(AnswerRecord, kw_only=True):
    """The value of each rule for an input; null if it is undefined."""

    decision: Any
    attributes: Any
    namespace_prefix: Any
    attribute_filter: Any
    owner: Any
    written_by: Any
    unowned_written_by: Any = None


_SETTINGS = get_type_hints(AdjustableSettings, include_extras=True)


_DESCRIPTIONS = {
    name: Meta(description=AdjustableSettings.__dataclass_fields__[name].metadata["help"])
    for name in _SETTINGS
}
ActiveSettings: type[AnswerRecord] = defstruct(  # type: ignore[assignment]
    "SettingsInForce",  # its name in the OpenAPI document
    [(name, Annotated[kind, _DESCRIPTIONS[name]]) for name, kind in _SETTINGS.items()],
    bases=(AnswerRecord,),
    namespace={"__doc__": "The settings that can be changed while a store runs."},
    kw_only=True,
)
SettingsChanges = defstruct(
    "SettingsChanges",
    [
        (name, Annotated[kind | UnsetType | None, _DESCRIPTIONS[name]], UNSET)
        for name, kind in _SETTINGS.items()
    ],
    namespace={"__doc__": "Changes; null resets a setting to the value at the start of the server."},
    kw_only=True,
)


_OPERATIONS = [
    defstruct(
        f"{kind.__name__}Operation", fields_of(kind), bases=(kind,), kw_only=True, forbid_unknown_fields=True
    )
    for kind in (Put, Get, Delete, Touch)
]
Operations: Any = list[Union[tuple(_OPERATIONS)]]  # type: ignore[misc]  # noqa: UP007  of types made here
"""The operations of a batch: the records of the library, with the JSON types of their fields."""


class BatchAnswer(AnswerRecord, omit_defaults=True):
    """The result of each operation, in order: an entry, a memory or null, or a deletion.

    `after_cursor` is set if gets are left because the answer would be too large.
    """

    results: list[dict[str, Any] | None]
    after_cursor: str | None = None

    @classmethod
    def of(cls, result: Page[Any]) -> BatchAnswer:
        return cls([*result], result.after_cursor)

    def to_result(self, arguments: Mapping[str, Any]) -> Page[OperationResult]:
        after = arguments["after_cursor"]
        operations = validation.parse_operations(arguments["operations"])
        remaining = operations[0 if after is None else cursor.decode(after) :]
        page: Page[OperationResult] = Page(
            None if answer is None else convert(answer, _result_type(operation))
            for operation, answer in zip(remaining, self.results, strict=False)
        )
        page.after_cursor = self.after_cursor
        return page


def _result_type(operation: BatchOperation) -> type[Entry] | type[Deletion]:
    """The record of an operation's result."""
    return Memory if isinstance(operation, Get) else Deletion if isinstance(operation, Delete) else Entry


class RotationAnswer(AnswerRecord):
    """The active key-encryption key, and how many data keys it rewrapped."""

    active: str
    rotated: int

    @classmethod
    def of(cls, result: Iterator[Rotation]) -> RotationAnswer:
        *_, last = result
        return cls(*last)

    def to_result(self, arguments: Mapping[str, Any]) -> Iterator[Rotation]:
        return iter([Rotation(self.active, self.rotated)])


class DoctorAnswer(AnswerRecord):
    """Whether everything is in order, and what was examined."""

    well: bool
    examinations: list[Examination]

    @classmethod
    def of(cls, result: Iterator[Examination]) -> DoctorAnswer:
        examinations = [*result]
        return cls(not any(each.wrong for each in examinations), examinations)

    def to_result(self, arguments: Mapping[str, Any]) -> Iterator[Examination]:
        return iter(self.examinations)


class ToolAnswer(AnswerRecord):
    """The result of a tool: structured, and as text for the model."""

    result: Any
    text: str

    @classmethod
    def of(cls, result: Answer) -> ToolAnswer:
        return cls(*result)

    def to_result(self, arguments: Mapping[str, Any]) -> Answer:
        return Answer(self.result, self.text)


class HealthAnswer(Struct):
    status: Literal["ok", "unavailable"]
    checks: dict[str, str] | UnsetType = UNSET
    versions: dict[str, str] | UnsetType = UNSET
    """The versions in use: of policies and settings, 0 as the server was started, and of specs."""


class ErrorAnswer(Struct):
    """The answer of every error."""

    code: str
    error: str
    request_id: str
    details: dict[str, Any] | UnsetType = UNSET
    reason: str | UnsetType = UNSET

    @classmethod
    def of(cls, error: AlcoveError, request_id: str) -> ErrorAnswer:
        reason = getattr(error, "reason", UNSET)
        return cls(error.code, error.public_message, request_id, error.details or UNSET, reason)


class NoQuery(Struct, forbid_unknown_fields=True):
    """No parameters."""
