"""Large language models: one interface, and a module for each kind of provider."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from alcove.core.settings import LLMSettings

if TYPE_CHECKING:
    from alcove.llm.model import Provider

LLM: TypeAlias = "str | LLMSettings | Provider"
"""What names a model: `URL#MODEL`, settings, or a provider of your own."""


def resolve_llm(llm: LLM | None) -> tuple[LLMSettings, Provider | None]:
    """Returns the settings, by default those of the environment, and a provider if `llm` is one."""
    if isinstance(llm, str):
        url, _, model = llm.partition("#")
        return replace(LLMSettings.from_environment(), llm_url=url, llm_model=model or None), None
    if llm is None or isinstance(llm, LLMSettings):
        return llm or LLMSettings.from_environment(), None
    return LLMSettings(), llm


def make_provider(settings: LLMSettings) -> Provider | None:
    """Makes the provider of the model that the settings name; None if they name none."""
    if not settings.is_configured:
        return None
    if settings.llm_provider == "anthropic":
        from alcove.llm.anthropic import Anthropic  # noqa: PLC0415  an extra

        return Anthropic(settings)
    from alcove.llm.openai import OpenAI  # noqa: PLC0415  an extra

    return OpenAI(settings)
