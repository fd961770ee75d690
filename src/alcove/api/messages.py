"""Records of requests and answers that cannot be derived from the types of methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, Union, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs

from alcove.agents.tools import Answer
from alcove.api.wire import fields_of
from alcove.core import cursor, validation
from alcove.core.cursor import Page
from alcove.core.decoding import convert
from alcove.core.errors import AlcoveError
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
