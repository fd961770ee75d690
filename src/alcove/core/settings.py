"""What an operator can set, with its defaults; checked once, when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Limits, retention and timing of one store."""

    max_depth: int = 5
    """Segments in a namespace."""
    max_value_bytes: int = MIB
    """A value as compact UTF-8 JSON."""
    max_index_fields: int = 64
    max_index_bytes: int = 64 * KIB
    """The text of one index field, as UTF-8."""
    max_batch: int = 1000
    """Operations in one batch."""

    sweep_interval: float = 60.0
    """Seconds between two sweeps; 0 runs none in the background."""
    retention_days: float = 90.0
    """How long superseded versions and tombstones stay."""
    retention_max_age: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Days after which live memories under a root segment expire, by root; none by default."""
    indexing_batch: int = 100
    """Texts embedded at a time."""
    indexing_interval: float = 30.0
    """Seconds between two looks for texts to index, beside those at each write; 0 indexes nothing here."""
    search_memory_mb: int = 1024
    """Megabytes that the subtrees searched lately may take in a process; one user's own a quarter of it."""
    audit_days: float = 365.0
    """How long entries of the audit log stay."""
    busy_timeout: float = 10.0
    """Seconds a write waits for another process before it gives up."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "retention_max_age":
                if not isinstance(value, Mapping):
                    raise InvalidRequest(each.name, "days by root segment")
                for root, days in value.items():
                    Namespace.checked([root], each.name)
                    _positive(f"retention_max_age.{root}", days, float)
            elif (
                each.name in ("sweep_interval", "indexing_interval")
                and value == 0
                and type(value) is not bool
            ):
                continue
            else:
                _positive(each.name, value, type(each.default))


def _positive(name: str, value: object, kind: type) -> None:
    numeric = isinstance(value, int) or (kind is float and isinstance(value, float))
    if not numeric or isinstance(value, bool) or not 0 < value < float("inf"):  # type: ignore[operator]
        raise InvalidRequest(name, f"a positive {'number' if kind is float else 'whole number'}")
