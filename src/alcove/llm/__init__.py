"""Large language models: one interface, and a module for each way to reach one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from alcove.core.settings import LLMSettings

if TYPE_CHECKING:
    from alcove.core.waiting import Waiting
    from alcove.llm.model import Provider

LLM: TypeAlias = "str | LLMSettings | Provider"
"""What names a model: `URL#MODEL`, settings, or a provider of one's own."""


def resolved(llm: LLM | None) -> tuple[LLMSettings, Provider | None]:
    """The settings that were meant, which are those of the environment for None; and a provider, if given."""
    if isinstance(llm, str):
        url, _, model = llm.partition("#")
        return replace(LLMSettings.from_environment(), llm_url=url, llm_model=model or None), None
    if llm is None or isinstance(llm, LLMSettings):
        return llm or LLMSettings.from_environment(), None
    return LLMSettings(), llm


def provider_of(settings: LLMSettings, waiting: Waiting) -> Provider | None:
    """The way to the model that the settings name; None where they name none."""
    if not settings.is_configured:
        return None
    if settings.llm_provider == "anthropic":
        from alcove.llm.anthropic import Anthropic  # noqa: PLC0415  an extra

        return Anthropic(settings, waiting)
    from alcove.llm.openai import OpenAI  # noqa: PLC0415  an extra

    return OpenAI(settings, waiting)
