"""The agents and teams that are in force, and what is wrong where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from alcove.agents.specs import Agent, Knowledge, Team
from alcove.core.errors import AlcoveError


@dataclass(frozen=True, slots=True, order=True)
class Trouble:
    """One thing in one file that is not as it should be."""

    file: str
    path: str
    expected: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.path, f"expected {self.expected}") if part)


class InvalidSpecs(AlcoveError):
    """Specs that do not load; the message has every reason, a line each."""

    code = "invalid_request"

    def __init__(self, troubles: Sequence[Trouble]) -> None:
        lines = [str(trouble) for trouble in troubles]
        super().__init__("\n".join(lines), details={"errors": lines})
        self.troubles = tuple(troubles)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything the specs say, checked; nothing in it changes."""

    agents: Mapping[str, Agent] = field(default_factory=lambda: MappingProxyType({}))
    teams: Mapping[str, Team] = field(default_factory=lambda: MappingProxyType({}))
    knowledge: Mapping[str, Knowledge] = field(default_factory=lambda: MappingProxyType({}))
    """Sources by name, their paths made absolute."""
    warnings: tuple[str, ...] = ()

    def teams_of(self, agent: str) -> tuple[Team, ...]:
        """The teams in which this agent works."""
        return tuple(team for team in self.teams.values() if agent in team.workers)
