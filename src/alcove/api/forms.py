"""Records of requests and answers that no method's own types can say."""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from alcove.core.settings import AdjustableSettings

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
