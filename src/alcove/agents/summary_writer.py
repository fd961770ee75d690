"""Has a model write summaries in the background: of a session's older messages, and of all ended sessions.

Nobody waits for it. A model's text is stored beside the conversation's own sentences (`prose.py`), unless the
summary was erased or changed in the meantime. If the model fails, the reason is stored for receipts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from msgspec import structs

from alcove.agents.conversations import RUNNING_TOKENS, RollingSummary, SessionState, Transcript
from alcove.agents.prose import write_prose
from alcove.agents.rooms import Rooms
from alcove.agents.schedule import Schedule
from alcove.agents.specs.records import Agent
from alcove.agents.stored_records import retry_conflicts
from alcove.agents.summariser import Point, Prose, points_without_prose
from alcove.core.errors import AlcoveError, KeyDestroyed
from alcove.core.messages import Message
from alcove.core.principal import Principal
from alcove.core.records import KeyBinding
from alcove.core.threads import run_together
from alcove.llm.model import Model
from alcove.llm.records import TokenUse
from alcove.store.memories import Memories

log = logging.getLogger("alcove")
NoteUse = Callable[[str, str, KeyBinding, TokenUse], None]
ROLLING_TOKENS = 600
"""The most that a rolling summary may have."""
_MAX_SCHEDULED = 10_000
_BATCH = 4
_RETRY_SECONDS, _MAX_RETRIES = 30.0, 6
_CLOSE_SECONDS = 2.0


class SummaryTask(NamedTuple):
    """A summary for a model to write: of a session, or the rolling one after that session was merged."""

    agent: Agent
    user: str
    session: str
    is_rolling: bool
    after: int = 0
    """For a rolling summary: the session's last message that was in it before."""


class SummaryWriter:
    """Writes scheduled summaries, a few at a time."""

    def __init__(
        self, memories: Memories, count: Callable[[str], int], model: Model | None, note_use: NoteUse
    ) -> None:
        """`count`: counts the tokens of a text. `model`: without one, nothing is written.

        `note_use`: called with the agent, the user, their key binding, and the tokens that a summary took.
        """
        self._memories, self._count, self._model, self._note_use = memories, count, model, note_use
        self._schedule = Schedule[SummaryTask, int](
            "summary-writer", self._write_all, max_entries=_MAX_SCHEDULED, batch=_BATCH
        )
        """The tasks, each with its number of retries."""

    @property
    def has_model(self) -> bool:
        """Whether there is a model that writes."""
        return self._model is not None

    def schedule(self, task: SummaryTask) -> None:
        """Has a summary written soon, unless it is waiting for a retry or too many are scheduled."""
        if self._model is not None and task not in self._schedule:
            self._schedule.put(task, 0)

    def _write_all(self, tasks: Sequence[tuple[SummaryTask, int]]) -> None:
        run_together([partial(self._write, task, retries) for task, retries in tasks])

    def _write(self, task: SummaryTask, retries: int) -> None:
        """Writes one summary; if the model fails, notes why and schedules a retry."""
        assert self._model is not None
        agent, user = task.agent, task.user
        try:
            bound = self._memories.key_binding(user)
            rooms = Rooms(agent, user, task.session)
            transcript = Transcript(self._memories, rooms, Principal(user), self._count)
            summary = _summary(task, transcript)[0]
            points = points_without_prose(summary.points)
            if not points or self._schedule.is_stopping:
                return
            messages, last = _new_messages(task, transcript)
            if not task.is_rolling and 2 * len(messages) < agent.memory.conversation.window_size:
                return
            changes: dict[str, object] = {} if task.is_rolling else {"prose_covered": last}
            try:
                changes["prose"] = write_prose(
                    self._model,
                    summary.prose,
                    points,
                    messages,
                    most_tokens=ROLLING_TOKENS if task.is_rolling else RUNNING_TOKENS,
                    count=self._count,
                    note_use=partial(self._note_use, agent.name, user, bound),
                )
                changes["trouble"] = ""
            except AlcoveError as error:
                changes = {"trouble": error.message}
                if retries < _MAX_RETRIES:
                    self._schedule.put(task, retries + 1, _RETRY_SECONDS * 2**retries)
            retry_conflicts(lambda: self._store(task, transcript, summary.prose, points, changes, bound))
        except Exception as error:
            if not self._schedule.is_stopping:
                log.warning("a summary for %s was not written: %r", agent.name, error)

    def _store(
        self,
        task: SummaryTask,
        transcript: Transcript,
        before: Prose | None,
        points: Sequence[Point],
        changes: Mapping[str, object],
        bound: KeyBinding,
    ) -> None:
        """Stores the changes, if the summary still has the prose and the points that they were made from."""
        summary, revision = _summary(task, transcript)
        if summary.prose != before:
            return
        covered = set(map(_identity, points))
        marked = [
            structs.replace(point, in_prose=point.in_prose or _identity(point) in covered)
            for point in summary.points
        ]
        if marked == summary.points:
            return  # the summary was erased in the meantime, and started anew
        if "prose" in changes:
            changes = {**changes, "points": marked}
        changed = structs.replace(summary, **changes)
        if changed != summary:
            with suppress(KeyDestroyed):  # the user was wiped in the meantime
                self._memories.put_record(
                    transcript.principal, transcript.put_operation(changed, revision, bound)
                )

    def close(self) -> None:
        """Starts no more summaries, and waits shortly for those under way."""
        self._schedule.stop(_CLOSE_SECONDS)


def _summary(task: SummaryTask, transcript: Transcript) -> tuple[RollingSummary | SessionState, int]:
    """The stored summary and its revision."""
    return transcript.rolling_summary() if task.is_rolling else transcript.state()


def _new_messages(task: SummaryTask, transcript: Transcript) -> tuple[list[Message], int]:
    """The session's messages that are not in the model's summary yet, and the number of the last."""
    state = transcript.state()[0]
    after, last = (task.after, state.merged) if task.is_rolling else (state.prose_covered, state.covered)
    new = takewhile(lambda each: each.number > after, transcript.newest_first(before=last + 1))
    return [each.message for each in new][::-1], last


def _identity(point: Point) -> tuple[object, ...]:
    return point.text, point.speaker, point.at
