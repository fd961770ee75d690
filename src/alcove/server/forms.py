"""Bodies, queries and answers of the admin API, as records that OpenAPI is made from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from msgspec import UNSET, Meta, Struct, UnsetType

from alcove.core.clock import to_datetime
from alcove.core.records import Shared
from alcove.server.answers import MemoryAnswer
from alcove.store.api_keys import ApiKey
from alcove.upkeep.doctor import Examination

Text = Annotated[str, Meta(description="A Rego module.")]
Days = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class ReviewQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after_cursor: str | None = None


class ReviewAnswer(Struct):
    items: list[MemoryAnswer]
    after_cursor: str


class WipeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    wait: bool = False
    shared: Shared = "anonymise"
    dry_run: bool = False


class ReceiptBody(Struct, kw_only=True):
    """A receipt as a wipe answered it."""

    receipt: dict[str, Any]


class VerifiedAnswer(Struct):
    verified: bool


class PoliciesBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Texts to put in force; one that is null or absent is the folder's or the built-in one."""

    authz: Text | None = None
    attributes: Text | None = None
    filter: Text | None = None


class PolicyTestBody(PoliciesBody, kw_only=True):
    """An input, and texts to try instead of those in force."""

    input: dict[str, Any]


class PolicyTestAnswer(Struct, kw_only=True):
    """What each rule says to the input; null where it is undefined."""

    decision: Any
    attributes: Any
    namespace_prefix: Any
    attribute_filter: Any
    owner: Any
    written_by: Any


class RotationAnswer(Struct):
    active: str
    rotated: int


class SettingsAnswer(Struct, kw_only=True):
    max_depth: int
    max_value_bytes: int
    max_index_fields: int
    max_index_bytes: int
    max_batch: int
    retention_days: float
    retention_max_age: dict[str, float]
    audit_days: float


class SettingsBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes; null goes back to what the server was started with."""

    max_depth: Count | UnsetType | None = UNSET
    max_value_bytes: Count | UnsetType | None = UNSET
    max_index_fields: Count | UnsetType | None = UNSET
    max_index_bytes: Count | UnsetType | None = UNSET
    max_batch: Count | UnsetType | None = UNSET
    retention_days: Days | UnsetType | None = UNSET
    retention_max_age: dict[str, Days] | UnsetType | None = UNSET
    audit_days: Days | UnsetType | None = UNSET


class AuditQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    user: str | None = None
    action: str | None = None
    after_cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ExaminationAnswer(Struct, kw_only=True):
    name: str
    compared: int
    wrong: list[str]
    noticed: list[str]
    advice: str

    @classmethod
    def of(cls, examination: Examination) -> Self:
        return cls(**{name: getattr(examination, name) for name in cls.__struct_fields__})


class DoctorAnswer(Struct):
    well: bool
    examinations: list[ExaminationAnswer]


class ApiKeyAnswer(Struct, kw_only=True):
    id: str
    client: str
    user: str | None
    roles: list[str]
    trusted: bool
    created_at: datetime

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        return cls(
            id=key.id,
            client=key.client,
            user=key.user,
            roles=list(key.roles),
            trusted=key.trusted,
            created_at=to_datetime(key.created_at),
        )


class ApiKeysAnswer(Struct):
    keys: list[ApiKeyAnswer]


class ApiKeyBody(Struct, forbid_unknown_fields=True, kw_only=True):
    client: Annotated[str, Meta(min_length=1)]
    user: str | None = None
    roles: list[Annotated[str, Meta(pattern=r"^\S+$")]] = []
    trusted: bool = False


class NewApiKey(Struct):
    key: str
