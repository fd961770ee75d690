"""Who asks: the authenticated user with their claims, and the agent acting for them, if any."""

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
    """A fact the service computed: these operations are open in this room and below it."""

    namespace: Namespace
    operations: tuple[str, ...] = ("read", "write", "delete")
    written_by: tuple[str | None, ...] | None = None
    """Where it is set, nothing may be read by its key, and of rooms that belong to nobody only what these
    wrote may be found; None among them is nobody."""


@dataclass(frozen=True)
class Principal:
    """A caller, as authentication established it; nothing in a request can change it."""

    user_id: str
    client_id: str | None = None
    claims: dict[str, JSON] = field(default_factory=dict)
    agent: str | None = None
    grants: tuple[Grant, ...] = ()
    is_service: bool = False
    """Whether this is the service itself, which reads for its own upkeep and shows nobody what it reads."""

    def __post_init__(self) -> None:
        check_user_id(self.user_id, "user_id")
        for name in ("client_id", "agent"):
            given = getattr(self, name)
            if given is None:
                continue
            if type(given) is not str:
                raise InvalidRequest(name, "a string")
            Namespace((given,)).encode(name)  # refuses lone surrogates
        try:
            msgspec.json.encode(self.claims)
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequest("claims", "JSON data") from None

    @property
    def is_admin(self) -> bool:
        """Whether the claims carry the role `admin`."""
        return "admin" in self.roles

    @property
    def is_auditor(self) -> bool:
        """Whether the claims carry the role `auditor`, which reads what admins see."""
        return "auditor" in self.roles

    @functools.cached_property
    def has_role(self) -> bool:
        """Whether the claims carry either role."""
        return self.is_admin or self.is_auditor

    def reads_by_role(self, namespace: Namespace) -> bool:
        """Whether only a role can open this namespace to the caller: they neither own it nor hold a grant.

        Documents of knowledge sources (`knowledge:…`) belong to nobody, so this is never true of them.
        """
        owner = namespace.owner
        if owner == self.user_id or not self.has_role or self.is_service:
            return False
        if owner is not None:
            return True  # a grant never opens what belongs to somebody else
        return namespace[:1] != (KNOWLEDGE_ROOT,) and not any(
            "read" in grant.operations and namespace[: len(grant.namespace)] == grant.namespace
            for grant in self.grants
        )

    def require(self, role: Literal["admin", "auditor"]) -> None:
        """Raises `PermissionDenied` unless the claims carry the role; an admin may do what an auditor may."""
        if not (self.is_admin or (role == "auditor" and self.is_auditor)):
            raise PermissionDenied(f"this needs the role admin{' or auditor' * (role == 'auditor')}")

    @property
    def roles(self) -> list[str]:
        """The roles of the claims; anything but a list of strings carries none."""
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
    """A user id that namespaces can have as a segment; otherwise an error names the field it came from."""
    if type(user) is not str or not user:
        raise InvalidRequest(field, "a non-empty string")
    if len(Namespace(("user", user)).encode(field)) > MAX_ENCODED_BYTES:
        raise InvalidRequest(field, f"at most {MAX_ENCODED_BYTES - 6} bytes, as a segment of a namespace")
    return user


DEFAULT_PRINCIPAL = Principal("noop", claims={"roles": ["admin"]})
"""The principal of a store used without authentication: user `noop`, with the role `admin`."""
