"""What a reader may see, as SQL."""

from __future__ import annotations

from alcove.engine.base import Scope
from alcove.store.filters import Params


def predicate(scope: Scope, params: Params) -> str:
    """What of the subtree may be seen, and was asked for; every part of it runs in SQL."""
    parts = [scope.policy.policy_sql("v", params)]
    if scope.common:
        parts.append("v.owner IS NULL")
    if scope.owner is not None:
        parts.append("(v.owner IS NULL OR v.owner = ?)")
        params.append(scope.owner)
    if scope.written_by is not None:
        # Nobody as well, who equals nothing here: to SQLite an empty list is no query of an index.
        authors = [*filter(None, scope.written_by), None]
        nobody = " OR v.user IS NULL" * (None in scope.written_by)
        parts.append(f"(v.user IN ({', '.join('?' * len(authors))}){nobody})")
        params.extend(authors)
    if scope.unowned:
        parts.append("v.owner IS NULL")
    if by_author(scope):
        parts.append("v.user IS NOT v.owner")  # follows, but the index is found by these words
    parts.append(scope.filter.sql("v", params))
    return " AND ".join(parts)


def by_author(scope: Scope) -> bool:
    """Whether the index of what people wrote into rooms of others leads to all of a scope."""
    return scope.unowned and scope.written_by is not None and None not in scope.written_by
