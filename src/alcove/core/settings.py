"""Settings, each declared once with its default, its bounds and its meaning.

The command line with its environment and file (`server/config.py`) and REST with its OpenAPI document
(`api/messages.py`) read these declarations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from alcove.core.errors import InvalidRequest
from alcove.core.namespace import Namespace

T = TypeVar("T")
KIB, MIB = 1024, 1024 * 1024
Count = Annotated[int, Meta(ge=1)]
Days = Annotated[float, Meta(gt=0)]


def setting(default: T, help: str, *, min: float | None = None, max: float | None = None) -> T:
    """Declares a setting as a field of a dataclass.

    `help` is one sentence for help pages. A number is positive unless `min` is 0. Any other `min`, and
    `max`, apply to command-line flags only, where a value beyond them is a typing error.
    """
    return field(default=default, metadata={"help": help, "min": min, "max": max})


def read_variable(name: str) -> str | None:
    """Returns an environment variable, or the text of the file in `NAME_FILE`; None if neither is set.

    So secrets can come from files, which neither a list of processes nor a container's description shows.
    Blanks and line ends around the text of a file are removed.
    """
    if text := os.environ.get(name):
        return text
    if not (path := os.environ.get(f"{name}_FILE")):
        return None
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{name}_FILE", f"a readable text file ({error})") from None
    if not text:
        raise InvalidRequest(f"{name}_FILE", f"a readable text file that is not empty; {path} is")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustableSettings:
    """Limits and retention, which can be changed while a store runs, for all of its processes."""

    max_depth: Count = setting(5, "Segments in a namespace.", max=100)
    max_value_bytes: Count = setting(MIB, "Largest value, as compact JSON.", max=2048 * MIB)
    max_index_fields: Count = setting(64, "Index fields of one memory.", max=10_000)
    max_index_bytes: Count = setting(64 * KIB, "Largest text of one index field, as UTF-8.", max=2048 * MIB)
    max_batch: Count = setting(1000, "Operations in one batch.", max=1_000_000)
    retention_days: Days = setting(90.0, "Days that superseded versions and tombstones stay.", max=1_000_000)
    retention_max_age: Mapping[str, Days] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata={"help": "Days after which live memories expire, by the root segment of their namespace."},
    )
    audit_days: Days = setting(365.0, "Days that entries of the audit log stay.", max=1_000_000)

    def __post_init__(self) -> None:
        check_numbers(self)
        if not isinstance(self.retention_max_age, Mapping):
            raise InvalidRequest("retention_max_age", "days by root segment")
        for root, days in self.retention_max_age.items():
            Namespace.checked([root], "retention_max_age")
            _check(f"retention_max_age.{root}", days, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(AdjustableSettings):
    """Limits, retention and timing of one store; the timing is that of the process that opens it."""

    sweep_interval: float = setting(60.0, "Seconds between two sweeps; 0 for none.", min=0, max=1_000_000)
    busy_timeout: float = setting(10.0, "Seconds a write waits for another process.", max=3600)
    indexing_batch: int = setting(100, "Texts embedded at a time.", max=10_000)
    indexing_interval: float = setting(
        30.0,
        "Seconds between two checks for texts to index, besides those after writes; 0 indexes nothing here.",
        min=0,
        max=86_400,
    )
    search_memory_mb: int = setting(
        1024,
        "Megabytes of memory for searches in a process; one user's data may take a quarter of it.",
        max=2**20,
    )
    search_memory_texts: int = setting(
        20_000,
        "Texts up to which a subtree is searched in memory; in larger ones, an index finds candidates first.",
        max=10**9,
    )

    session_store: str | None = setting(
        None,
        "redis://, rediss:// or valkey://HOST:PORT, with ?cluster=true for a cluster: a fast copy of recent "
        "conversations, and rate limits for all nodes together.",
    )

    def __post_init__(self) -> None:
        AdjustableSettings.__post_init__(self)
        if not re.match("(redis|rediss|valkey)://.", str(self.session_store or "redis://-")):
            raise InvalidRequest("session_store", "redis://HOST:PORT, rediss:// or valkey://")


DEFAULT_ANSWER_TOKENS = 4096
"""The default limit of an LLM's answer: models refuse requests for too long ones."""


@dataclass(frozen=True, kw_only=True)
class LLMSettings:
    """The LLM that agents use, and the limits of one turn."""

    llm_url: str | None = setting(
        None, "Address of an LLM, such as http://127.0.0.1:11434/v1; any that is OpenAI-compatible."
    )
    llm_key: str | None = setting(None, "Key for the LLM.")
    llm_model: str | None = setting(None, "Name of the model, as its server knows it.")
    llm_provider: Literal["openai", "anthropic"] = setting("openai", "Which API the LLM has.")
    llm_timeout: float = setting(60.0, "Seconds that the LLM may be silent before a call fails.", max=86_400)
    llm_retries: int = setting(2, "How often a failed call of the LLM is retried.", min=0, max=100)
    llm_at_once: int = setting(128, "Calls of the LLM that a process makes at once.", max=100_000)
    turn_seconds: float = setting(300.0, "Seconds that one turn of an agent may take.", max=86_400)
    turn_rounds: int = setting(8, "Rounds of tool calls in one turn.", max=1000)
    turn_tokens: int = setting(
        200_000, "Tokens of one turn, in and out, over all its rounds of tools.", max=10**9
    )
    answer_tokens: int = setting(
        0, "Most tokens of an answer; 0 means 4096, or what a caller asks for.",
        min=0, max=10**9,
    )  # fmt: skip
    context_tokens: int = setting(8000, "Tokens of context that an agent gets with a message.", max=10**7)

    @property
    def max_answer_tokens(self) -> int:
        """The limit of an answer if the caller names none."""
        return self.answer_tokens or DEFAULT_ANSWER_TOKENS

    @property
    def is_configured(self) -> bool:
        """True if an LLM is configured."""
        return bool(self.llm_url or self.llm_key)

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.llm_provider not in ("openai", "anthropic"):
            raise InvalidRequest("llm_provider", "openai or anthropic")
        if self.llm_key is not None and not re.fullmatch("[!-~]+", self.llm_key):
            raise InvalidRequest("llm_key", "a key of plain characters, without blanks or line ends")

    @classmethod
    def from_environment(cls) -> LLMSettings:
        """Reads `ALCOVE_LLM_URL` and the other variables; an error names the wrong one."""
        values: dict[str, Any] = {}
        for each in fields(cls):
            if text := read_variable(f"ALCOVE_{each.name.upper()}"):
                kind: type[Any] = str if each.default is None else type(each.default)
                try:
                    values[each.name] = kind(text)
                except ValueError:
                    raise InvalidRequest(each.name, f"a number, not {text!r}") from None
        return cls(**values)


def check_numbers(settings: Any) -> None:
    """Raises if a number is not positive, or not whole where the setting must be."""
    for each in fields(settings):
        if type(each.default) in (int, float):
            zero = each.metadata["min"] == 0
            _check(each.name, getattr(settings, each.name), type(each.default), zero=zero)


def _check(name: str, value: object, kind: type, *, zero: bool = False) -> None:
    """Raises unless this is a positive number, whole if `kind` is int; `zero` allows 0."""
    numeric = isinstance(value, int | kind) and not isinstance(value, bool)
    if not numeric or not (0 < value < float("inf") or (zero and value == 0)):  # type: ignore[operator]
        raise InvalidRequest(name, f"a positive {'number' if kind is float else 'whole number'}")
