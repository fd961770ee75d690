"""LangGraph's serialiser, restricted: it builds known safe types, those that an app allows, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from alcove.core.errors import InvalidRequest, Unreadable, requires_extra

with requires_extra("alcove.integrations.langgraph_threads", extra="langgraph"):
    from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

AllowedType = type | tuple[str, str]
"""A class, or its module and name."""
_KINDS = ("null", "bytes", "bytearray", "msgpack")
"""What LangGraph writes today. `json` and `pickle`, which it once wrote, can name code to be run."""
_MAX_NAMED = 5
_blocked_types: ContextVar[list[str] | None] = ContextVar("blocked_types", default=None)


def _note_blocked(event: SerdeEvent) -> None:
    blocked = _blocked_types.get()
    if blocked is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        blocked.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_note_blocked)


class StrictSerializer(JsonPlusSerializer):
    """Decodes msgpack in LangGraph's strict mode, and raises where a type that is not allowed would be built.

    Pickle and LangChain's JSON are never decoded. An allowed class that can no longer be built from what was
    stored, because it has a new required field or is gone, is LangGraph's to handle: it gives the stored
    fields as a dict, or a Pydantic model without validation.
    """

    def __init__(self, allowed_types: Sequence[AllowedType] = ()) -> None:
        is_list = isinstance(allowed_types, list | tuple)
        if not is_list or not all(map(_is_type, allowed_types)):
            raise InvalidRequest("allowed_types", 'a list of classes, or of ("module", "name")')
        super().__init__(allowed_msgpack_modules=[*allowed_types] or None)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value; raises Unreadable where it holds a type that is not allowed, or is no msgpack."""
        if data[0] not in _KINDS:
            raise Unreadable(f"data of the kind {data[0][:40]!r} is not decoded, only {', '.join(_KINDS)}")
        blocked: list[str] = []
        token = _blocked_types.set(blocked)
        try:
            value = super().loads_typed(data)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"this is not msgpack: {str(error)[:200]}") from None
        finally:
            _blocked_types.reset(token)
        if blocked:
            names = ", ".join([*dict.fromkeys(name[:200] for name in blocked)][:_MAX_NAMED])
            raise Unreadable(
                f"it holds {names}, which is not among the types that may be built: if it is a class of your "
                "app, pass it to AlcoveSaver in allowed_types"
            )
        return value


def _is_type(each: object) -> bool:
    if isinstance(each, tuple):
        return len(each) == 2 and all(isinstance(part, str) for part in each)
    return isinstance(each, type)
