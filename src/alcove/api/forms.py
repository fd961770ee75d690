"""Records of requests and answers that no method's own types can say."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

Text = Annotated[str, Meta(description="A Rego module.")]
Days = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


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


class SettingsInForce(Struct, kw_only=True):
    """The settings that can be put while a store runs."""

    max_depth: int
    max_value_bytes: int
    max_index_fields: int
    max_index_bytes: int
    max_batch: int
    retention_days: float
    retention_max_age: dict[str, float]
    audit_days: float


class SettingsChanges(Struct, kw_only=True):
    """Changes; null goes back to what the server was started with."""

    max_depth: Count | UnsetType | None = UNSET
    max_value_bytes: Count | UnsetType | None = UNSET
    max_index_fields: Count | UnsetType | None = UNSET
    max_index_bytes: Count | UnsetType | None = UNSET
    max_batch: Count | UnsetType | None = UNSET
    retention_days: Days | UnsetType | None = UNSET
    retention_max_age: dict[str, Days] | UnsetType | None = UNSET
    audit_days: Days | UnsetType | None = UNSET
