"""What can be set, each declared once: its default, its bounds, what it means.

Whoever lets people set something reads the declarations: the command line with its environment and file
(`server/config.py`), and REST with its OpenAPI document (`api/messages.py`).
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

    `help` is one sentence for help pages. A number is positive unless `min` is 0. Any other `min`,
    and `max`, hold for command-line flags only, where a value beyond them is a slip.
    """
    return field(default=default, metadata={"help": help, "min": min, "max": max})


def read_variable(name: str) -> str | None:
    """What an environment variable says, or else the file that `NAME_FILE` names; None where neither is set.

    So secrets come as files, which neither a list of processes nor a container's description shows. Blanks
    and line ends around a file's text are no part of it.
    """
    if text := os.environ.get(name):
        return text
    if not (path := os.environ.get(f"{name}_FILE")):
        return None
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{name}_FILE", f"a file of text that can be read ({error})") from None
    if not text:
        raise InvalidRequest(f"{name}_FILE", f"a file with something in it, which {path} has not")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustableSettings:
    """Limits and retention: what can be put while a store runs, for all of its processes."""

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
        "Seconds between two looks for what to index, beside those at each write; 0 indexes nothing here.",
        min=0,
        max=86_400,
    )
    search_memory_mb: int = setting(
        1024,
        "Megabytes that searched subtrees may take in a process; one user's own a quarter.",
        max=2**20,
    )
    search_memory_texts: int = setting(
        20_000,
        "Texts of a subtree up to which all of it is searched in memory; above, candidates are found first.",
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
"""The longest answer asked for unless an operator or a caller names another: models refuse too long ones."""


@dataclass(frozen=True, kw_only=True)
class LLMSettings:
    """Which model agents talk with, and what one turn of theirs may take."""

    llm_url: str | None = setting(
        None, "Address of an LLM, such as http://127.0.0.1:11434/v1; any that is OpenAI-compatible."
    )
    llm_key: str | None = setting(None, "Key for the LLM.")
    llm_model: str | None = setting(None, "Name of the model, as its server knows it.")
    llm_provider: Literal["openai", "anthropic"] = setting("openai", "Whose API the LLM has.")
    llm_timeout: float = setting(60.0, "Longest silence of the LLM.", max=86_400)
    llm_retries: int = setting(2, "How often the LLM is asked again where it failed.", min=0, max=100)
    llm_at_once: int = setting(128, "Calls of the LLM that a process makes at once.", max=100_000)
    turn_seconds: float = setting(300.0, "Longest that one turn of an agent may take.", max=86_400)
    turn_rounds: int = setting(8, "Rounds of tools in one turn.", max=1000)
    turn_tokens: int = setting(
        200_000, "Tokens of one turn, in and out, over all its rounds of tools.", max=10**9
    )
    answer_tokens: int = setting(
        0, "Longest answer that the LLM is asked for; 0 for 4096 tokens, or what a caller asks for.",
        min=0, max=10**9,
    )  # fmt: skip
    context_tokens: int = setting(8000, "Tokens of what an agent is sent with a message.", max=10**7)

    @property
    def max_answer_tokens(self) -> int:
        """The longest answer to ask for where a caller names none."""
        return self.answer_tokens or DEFAULT_ANSWER_TOKENS

    @property
    def is_configured(self) -> bool:
        """Whether there is a model to ask."""
        return bool(self.llm_url or self.llm_key)

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.llm_provider not in ("openai", "anthropic"):
            raise InvalidRequest("llm_provider", "openai or anthropic")
        if self.llm_key is not None and not re.fullmatch("[!-~]+", self.llm_key):
            raise InvalidRequest("llm_key", "a key of plain characters, without blanks or line ends")

    @classmethod
    def from_environment(cls) -> LLMSettings:
        """What the variables `ALCOVE_LLM_URL` and so on say; an error names the one that is wrong."""
        given: dict[str, Any] = {}
        for each in fields(cls):
            if text := read_variable(f"ALCOVE_{each.name.upper()}"):
                kind: type[Any] = str if each.default is None else type(each.default)
                try:
                    given[each.name] = kind(text)
                except ValueError:
                    raise InvalidRequest(each.name, f"a number, not {text!r}") from None
        return cls(**given)


def check_numbers(settings: Any) -> None:
    """Refuses settings with a number that cannot be one of theirs."""
    for each in fields(settings):
        if type(each.default) in (int, float):
            zero = each.metadata["min"] == 0
            _check(each.name, getattr(settings, each.name), type(each.default), zero=zero)


def _check(name: str, value: object, kind: type, *, zero: bool = False) -> None:
    """Refuses what is no positive number, or no whole one where `kind` is int; `zero` allows 0."""
    numeric = isinstance(value, int | kind) and not isinstance(value, bool)
    if not numeric or not (0 < value < float("inf") or (zero and value == 0)):  # type: ignore[operator]
        raise InvalidRequest(name, f"a positive {'number' if kind is float else 'whole number'}")
