"""Records of requests and answers that no method's own types can say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from alcove.api.wire import Segments
from alcove.core.errors import AlcoveError
from alcove.core.records import Delete, Get, Key, Put, Revision, Seconds, Touch
from alcove.core.settings import AdjustableSettings
from alcove.upkeep.doctor import Examination
from alcove.vault import Rotation

Text = Annotated[str, Meta(description="A Rego module.")]


class PolicyTexts(Struct, kw_only=True):
    """Texts of policies; one that is null or absent is the folder's or the built-in one."""

    authz: Text | None = None
    attributes: Text | None = None
    filter: Text | None = None


class PolicyAnswers(Struct, kw_only=True):
    """What each rule says to an input; null where it is undefined."""

    decision: Any
    attributes: Any
    namespace_prefix: Any
    attribute_filter: Any
    owner: Any
    written_by: Any


_SETTINGS = get_type_hints(AdjustableSettings, include_extras=True)


def _about(name: str) -> Meta:
    return Meta(description=AdjustableSettings.__dataclass_fields__[name].metadata["about"])


SettingsInForce = defstruct(
    "SettingsInForce",
    [(name, Annotated[kind, _about(name)]) for name, kind in _SETTINGS.items()],
    namespace={"__doc__": "The settings that can be put while a store runs."},
    kw_only=True,
)
SettingsChanges = defstruct(
    "SettingsChanges",
    [(name, Annotated[kind | UnsetType | None, _about(name)], UNSET) for name, kind in _SETTINGS.items()],
    namespace={"__doc__": "Changes; null goes back to what the server was started with."},
    kw_only=True,
)


class PutOperation(Put, frozen=True, kw_only=True, tag="put", forbid_unknown_fields=True):
    namespace: Segments
    key: Key
    value: dict[str, Any]
    index: dict[str, str] | None = None
    ttl_seconds: Seconds | None = None
    expected_revision: Revision | None = None


class GetOperation(Get, frozen=True, kw_only=True, tag="get", forbid_unknown_fields=True):
    namespace: Segments
    key: Key


class DeleteOperation(Delete, frozen=True, kw_only=True, tag="delete", forbid_unknown_fields=True):
    namespace: Segments
    key: Key
    expected_revision: Revision | None = None


class TouchOperation(Touch, frozen=True, kw_only=True, tag="touch", forbid_unknown_fields=True):
    namespace: Segments
    key: Key
    ttl_seconds: Seconds | None = None


Operations = list[PutOperation | GetOperation | DeleteOperation | TouchOperation]


class BatchAnswer(Struct, omit_defaults=True):
    """A put's or touch's entry, a get's memory or null, a delete's outcome, in the order asked.

    `after_cursor` is there where gets are left, because they would be too large.
    """

    results: list[dict[str, Any] | None]
    after_cursor: str | None = None


class RotationAnswer(Struct):
    """The active key-encryption key, and how many data keys it wrapped anew."""

    active: str
    rotated: int

    @classmethod
    def of(cls, steps: Iterator[Rotation]) -> RotationAnswer:
        *_, last = steps
        return cls(last.active, last.rewrapped)

    @property
    def rotation(self) -> Rotation:
        return Rotation(self.active, self.rotated)


class DoctorAnswer(Struct):
    """Whether nothing is wrong, and what was examined."""

    well: bool
    examinations: list[Examination]


class ToolAnswer(Struct):
    """What a tool gives: a structured result, and the same in words for the model."""

    result: Any
    text: str


class HealthAnswer(Struct):
    status: Literal["ok", "unavailable"]
    checks: dict[str, str] | UnsetType = UNSET


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
        return cls(error.code, error.message, request_id, error.details or UNSET, reason)


class NoQuery(Struct, forbid_unknown_fields=True):
    """No parameters."""
