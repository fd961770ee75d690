"""The caller: an authenticated user with their claims, and the agent that acts for them, if any."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from alcove.core.errors import InvalidRequest, PermissionDenied
from alcove.core.namespace import KNOWLEDGE_ROOT, MAX_ENCODED_BYTES, Namespace

if TYPE_CHECKING:
    JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
else:
    JSON = Any  # records with it are decoded, and the decoder knows no type that contains itself


@dataclass(frozen=True, slots=True)
class Grant:
    """Allows operations in a room and below it; the service computes grants."""

    namespace: Namespace
    operations: tuple[str, ...] = ("read", "write", "delete")
    written_by: tuple[str | None, ...] | None = None
    """If set, memories cannot be read by key, and in rooms without an owner only memories of these authors
    are found; None among them stands for no author."""


@dataclass(frozen=True)
class Principal:
    """An authenticated caller; nothing in a request can change it."""

    user_id: str
    client_id: str | None = None
    claims: dict[str, JSON] = field(default_factory=dict)
    agent: str | None = None
    grants: tuple[Grant, ...] = ()
    is_service: bool = False
    """True for the service itself, which reads for its own upkeep and shows the data to nobody."""

    def __post_init__(self) -> None:
        check_user_id(self.user_id, "user_id")
        for name in ("client_id", "agent"):
            value = getattr(self, name)
            if value is None:
                continue
            if type(value) is not str:
                raise InvalidRequest(name, "a string")
            Namespace((value,)).encode(name)  # refuses lone surrogates
        try:
            msgspec.json.encode(self.claims)
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequest("claims", "JSON data") from None

    @property
    def is_admin(self) -> bool:
        """True if the claims contain the role `admin`."""
        return "admin" in self.roles

    @property
    def is_auditor(self) -> bool:
        """True if the claims contain the role `auditor`, which may read what admins read."""
        return "auditor" in self.roles

    @functools.cached_property
    def has_role(self) -> bool:
        """True if the claims contain either role."""
        return self.is_admin or self.is_auditor

    @property
    def holds_role(self) -> bool:
        """The name of `has_role` in earlier versions."""
        return self.has_role

    def reads_by_role(self, namespace: Namespace) -> bool:
        """True if the caller needs a role to read this namespace: they neither own it nor have a grant.

        Never true for documents of knowledge sources (`knowledge:…`), which have no owner.
        """
        owner = namespace.owner
        if owner == self.user_id or not self.has_role or self.is_service:
            return False
        if owner is not None:
            return True  # a grant never opens rooms of other users
        return namespace[:1] != (KNOWLEDGE_ROOT,) and not any(
            "read" in grant.operations and namespace[: len(grant.namespace)] == grant.namespace
            for grant in self.grants
        )

    def require(self, role: Literal["admin", "auditor"]) -> None:
        """Raises `PermissionDenied` unless the claims contain the role; admins may do what auditors may."""
        if not (self.is_admin or (role == "auditor" and self.is_auditor)):
            raise PermissionDenied(f"this needs the role admin{' or auditor' * (role == 'auditor')}")

    @property
    def roles(self) -> list[str]:
        """The roles in the claims; none unless they are a list of strings."""
        roles = self.claims.get("roles")
        return roles if isinstance(roles, list) and all(isinstance(r, str) for r in roles) else []  # type: ignore[return-value]

    @functools.cached_property
    def context(self) -> bytes:
        """`input.context` of every policy decision, as JSON."""
        grants = [
            {"namespace": list(g.namespace), "operations": g.operations}
            | ({} if g.written_by is None else {"written_by": g.written_by})
            for g in self.grants
        ]
        caller = {"user_id": self.user_id, "client_id": self.client_id or "", "jwt_claims": self.claims}
        return msgspec.json.encode({**caller, "agent": self.agent, "grants": grants})


def check_user_id(user: object, field: str) -> str:
    """Returns the user id if a namespace can contain it; otherwise raises an error that names the field."""
    if type(user) is not str or not user:
        raise InvalidRequest(field, "a non-empty string")
    if len(Namespace(("user", user)).encode(field)) > MAX_ENCODED_BYTES:
        raise InvalidRequest(field, f"at most {MAX_ENCODED_BYTES - 6} bytes, as a segment of a namespace")
    return user


DEFAULT_PRINCIPAL = Principal("noop", claims={"roles": ["admin"]})
"""The principal of a store used without authentication: user `noop`, with the role `admin`."""
