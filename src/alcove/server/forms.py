"""Bodies, queries and answers of the admin API, as records that OpenAPI is made from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from msgspec import Meta, Struct

from alcove.core.clock import to_datetime
from alcove.server.answers import MemoryAnswer
from alcove.store.api_keys import ApiKey
from alcove.upkeep.doctor import Examination


class ReviewQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after_cursor: str | None = None


class ReviewAnswer(Struct):
    items: list[MemoryAnswer]
    after_cursor: str


class RotationAnswer(Struct):
    active: str
    rotated: int


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
