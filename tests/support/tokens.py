"""Tokens of users, signed with a secret that a service is told of."""

from __future__ import annotations

import time

import jwt

SECRET = "a secret that is long enough for HS256 to be taken seriously"
FLAGS = ("--auth", "jwt", "--jwt-secret", SECRET)
"""What tells a service."""


def token(user: str | None = "alice", *, secret: str = SECRET, **claims: object) -> str:
    """Valid for an hour, unless its claims say otherwise; one that is None is left out."""
    body = {"sub": user, "exp": int(time.time()) + 3600, **claims}
    return jwt.encode({k: v for k, v in body.items() if v is not None}, secret, algorithm="HS256")
