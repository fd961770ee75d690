"""Records of requests and answers that no method's own types can say."""

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
    """Texts of policies; one that is null or absent is the folder's or the built-in one."""

    authz: Text | None = None
    attributes: Text | None = None
    filter: Text | None = None


class AnswerRecord(Struct):
    """An answer other than what its method gives, and how each is made from the other: of a mapping, here."""

    @classmethod
    def of(cls, result: Any) -> Self:
        """The answer that tells of a result."""
        return cls(**result)

    def to_result(self, arguments: Mapping[str, Any]) -> Any:
        """The result, for who called with these arguments."""
        return structs.asdict(self)


class PolicyAnswers(AnswerRecord, kw_only=True):
    """What each rule says to an input; null where it is undefined."""

    decision: Any
    attributes: Any
    namespace_prefix: Any
    attribute_filter: Any
    owner: Any
    written_by: Any
    unowned_written_by: Any = None


_SETTINGS = get_type_hints(AdjustableSettings, include_extras=True)


def _about(name: str) -> Meta:
    return Meta(description=AdjustableSettings.__dataclass_fields__[name].metadata["help"])


SettingsInForce: type[AnswerRecord] = defstruct(  # type: ignore[assignment]
    "SettingsInForce",
    [(name, Annotated[kind, _about(name)]) for name, kind in _SETTINGS.items()],
    bases=(AnswerRecord,),
    namespace={"__doc__": "The settings that can be put while a store runs."},
    kw_only=True,
)
SettingsChanges = defstruct(
    "SettingsChanges",
    [(name, Annotated[kind | UnsetType | None, _about(name)], UNSET) for name, kind in _SETTINGS.items()],
    namespace={"__doc__": "Changes; null goes back to what the server was started with."},
    kw_only=True,
)


_OPERATIONS = [
    defstruct(
        f"{kind.__name__}Operation", fields_of(kind), bases=(kind,), kw_only=True, forbid_unknown_fields=True
    )
    for kind in (Put, Get, Delete, Touch)
]
Operations: Any = list[Union[tuple(_OPERATIONS)]]  # type: ignore[misc]  # noqa: UP007  of types made here
"""Those of a batch: the records of the library, with their fields as JSON has them."""


class BatchAnswer(AnswerRecord, omit_defaults=True):
    """A put's or touch's entry, a get's memory or null, a delete's outcome, in the order asked.

    `after_cursor` is there where gets are left, because they would be too large.
    """

    results: list[dict[str, Any] | None]
    after_cursor: str | None = None

    @classmethod
    def of(cls, result: Page[Any]) -> BatchAnswer:
        return cls([*result], result.after_cursor)

    def to_result(self, arguments: Mapping[str, Any]) -> Page[OperationResult]:
        after = arguments["after_cursor"]
        asked = validation.parse_operations(arguments["operations"])[
            0 if after is None else cursor.decode(after) :
        ]
        found: Page[OperationResult] = Page(map(_result, asked, self.results))
        found.after_cursor = self.after_cursor
        return found


def _result(write: BatchOperation, answer: dict[str, Any] | None) -> OperationResult:
    """What an operation of a batch answered, as the record that it gives."""
    if answer is None:
        return None
    if isinstance(write, Delete):
        return convert(answer, Deletion)
    return convert(answer, Memory) if isinstance(write, Get) else convert(answer, Entry)


class RotationAnswer(AnswerRecord):
    """The active key-encryption key, and how many data keys it wrapped anew."""

    active: str
    rotated: int

    @classmethod
    def of(cls, result: Iterator[Rotation]) -> RotationAnswer:
        *_, last = result
        return cls(*last)

    def to_result(self, arguments: Mapping[str, Any]) -> Iterator[Rotation]:
        return iter([Rotation(self.active, self.rotated)])


class DoctorAnswer(AnswerRecord):
    """Whether nothing is wrong, and what was examined."""

    well: bool
    examinations: list[Examination]

    @classmethod
    def of(cls, result: Iterator[Examination]) -> DoctorAnswer:
        done = [*result]
        return cls(not any(each.wrong for each in done), done)

    def to_result(self, arguments: Mapping[str, Any]) -> Iterator[Examination]:
        return iter(self.examinations)


class ToolAnswer(AnswerRecord):
    """What a tool gives: a structured result, and the same in words for the model."""

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
    """What this process goes by: policies and settings as they were put, 0 as it was started, and specs."""


class ErrorAnswer(Struct):
    """Every error, everywhere."""

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
