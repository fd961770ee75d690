"""Has a model write summaries in the background: of a conversation's beginning, and of all that have ended.

Nobody waits for it. What it wrote is put beside the sentences that are there (`prose.py`), unless the summary
was taken away or written by somebody else meanwhile; where it failed, why is noted there for receipts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from msgspec import structs

from alcove.agents.conversations import RUNNING_TOKENS, RollingSummary, SessionState, Transcript
from alcove.agents.prose import write_prose
from alcove.agents.rooms import Rooms
from alcove.agents.specs.records import Agent
from alcove.agents.stored_records import retry_conflicts
from alcove.agents.summariser import Point, Prose, points_without_prose
from alcove.core.background import Worker
from alcove.core.errors import AlcoveError, KeyDestroyed
from alcove.core.messages import Message
from alcove.core.principal import Principal
from alcove.core.records import KeyBinding
from alcove.core.threads import run_together
from alcove.llm.model import Model
from alcove.llm.records import TokenUse
from alcove.store.memories import Memories

logger = logging.getLogger("alcove")
NoteUse = Callable[[str, str, KeyBinding, TokenUse], None]
ROLLING_TOKENS = 600
"""What the summary of a user's conversations may have."""
MOST_WAITING = 10_000
AT_ONCE = 4
_LONGEST_PAUSE = 60.0
_AGAIN_SECONDS, _MOST_TRIES = 30.0, 6
_AT_CLOSING_SECONDS = 2.0


class SummaryTask(NamedTuple):
    """A summary that a model is to write: of a session, or of all conversations, that being the last."""

    agent: Agent
    user: str
    session: str
    rolling: bool
    after: int = 0
    """Of the last conversation, the message after which it is new."""


class SummaryWriter:
    """Writes what is wanted, a few at a time."""

    def __init__(
        self, memories: Memories, count: Callable[[str], int], model: Model | None, note: NoteUse
    ) -> None:
        """`count`: how many tokens a text has. `model`: who writes; without one nothing is wanted.

        `note` is told what it took: the agent, the user, what `Memories.key_binding` gave, and the tokens.
        """
        self._memories, self._count, self._model, self._note = memories, count, model, note
        self._due: dict[SummaryTask, tuple[float, int]] = {}
        """When to write each, and how often that failed."""
        self._mutex = threading.Lock()
        self._worker = Worker("summary-writer", self._write_due, _LONGEST_PAUSE)

    @property
    def has_model(self) -> bool:
        """Whether there is a model that writes."""
        return self._model is not None

    def schedule(self, wanted: SummaryTask) -> None:
        """Has a summary written soon; beyond `MOST_WAITING`, when there is more to sum up."""
        if self._model is None:
            return
        with self._mutex:
            if len(self._due) < MOST_WAITING:
                self._due.setdefault(wanted, (time.monotonic(), 0))
        self._worker.wake()

    def _write_due(self) -> float:
        """Writes what is due, and says how long to pause: until the next may be."""
        now = time.monotonic()
        with self._mutex:
            due = [wanted for wanted, (at, _) in self._due.items() if at <= now][:AT_ONCE]
            work = [partial(self._write, wanted, self._due.pop(wanted)[1]) for wanted in due]
        run_together(work)
        with self._mutex:
            ahead = min((at for at, _ in self._due.values()), default=now + _LONGEST_PAUSE)
        return min(max(ahead - time.monotonic(), 0.01), _LONGEST_PAUSE)

    def _write(self, wanted: SummaryTask, tries: int) -> None:
        """Has one written; where that fails it is noted, and tried again some time later."""
        assert self._model is not None
        agent, user, session = wanted.agent, wanted.user, wanted.session
        try:
            bound = self._memories.key_binding(user)
            log = Transcript(self._memories, Rooms(agent, user, session), Principal(user), self._count)
            found = self._found(wanted, log)[0]
            points = points_without_prose(found.points)
            if not points or self._worker.stopping:
                return
            messages, last = _messages(wanted, log)
            if not wanted.rolling and 2 * len(messages) < agent.memory.conversation.window_size:
                return
            most = ROLLING_TOKENS if wanted.rolling else RUNNING_TOKENS
            note = partial(self._note, agent.name, user, bound)
            changes: dict[str, object] = {} if wanted.rolling else {"prose_covered": last}
            try:
                prose = write_prose(
                    self._model, found.prose, points, messages, most_tokens=most, count=self._count, note=note
                )
                changes |= {"prose": prose, "trouble": ""}
            except AlcoveError as error:
                changes = {"trouble": error.message}
                with self._mutex:
                    if tries < _MOST_TRIES:
                        self._due[wanted] = time.monotonic() + _AGAIN_SECONDS * 2**tries, tries + 1
            retry_conflicts(lambda: self._put(wanted, log, found.prose, points, changes, bound))
        except Exception as error:
            if not self._worker.stopping:
                logger.warning("a summary for %s was not written: %r", agent.name, error)

    def _found(self, wanted: SummaryTask, log: Transcript) -> tuple[RollingSummary | SessionState, int]:
        """The summary as it is now, and its revision."""
        if wanted.rolling:
            return log.rolling_summary()
        return log.state()

    def _put(
        self,
        wanted: SummaryTask,
        log: Transcript,
        before: Prose | None,
        given: Sequence[Point],
        changes: Mapping[str, object],
        bound: KeyBinding,
    ) -> None:
        """Puts what was written beside the sentences, if these are still those it was made of."""
        now, revision = self._found(wanted, log)
        if now.prose != before:
            return
        known = {(each.text, each.speaker, each.at) for each in given}
        points = [
            structs.replace(each, in_prose=each.in_prose or (each.text, each.speaker, each.at) in known)
            for each in now.points
        ]
        if len(points_without_prose(points)) == len(points_without_prose(now.points)):
            return  # it was forgotten meanwhile, and begun anew
        changed = structs.replace(now, **changes, **({"points": points} if "prose" in changes else {}))
        if changed == now:
            return
        with suppress(KeyDestroyed):  # they were wiped meanwhile
            self._memories.put_record(log.principal, log.put_operation(changed, revision, bound))

    def close(self) -> None:
        """Starts nothing more; what is under way is waited for shortly."""
        self._worker.stop(_AT_CLOSING_SECONDS)


def _messages(wanted: SummaryTask, log: Transcript) -> tuple[list[Message], int]:
    """What was said in the session that is not in a model's summary yet, and the number of the last."""
    state = log.state()[0]
    first, last = (wanted.after, state.merged) if wanted.rolling else (state.prose_covered, state.covered)
    said = takewhile(lambda said: said.number > first, log.newest_first(before=last + 1))
    return [each.message for each in said][::-1], last
