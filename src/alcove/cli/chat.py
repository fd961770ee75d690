"""Talking with agents and teams at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import click

from alcove.cli.context import show_context
from alcove.cli.output import as_json, compact, count, plain, show, shown
from alcove.cli.store import command
from alcove.core.errors import AlcoveError, NotFound

if TYPE_CHECKING:
    from alcove.agents.replies import ChatEvent, Reply, ToolUse
    from alcove.agents.teamwork import Contribution
    from alcove.client.store import AgentsHandle
    from alcove.core.namespace import Namespace

_MOST_LISTED = 100
_MOST_RECALLED = 200
HELP = """\
/context      what the model was sent with your last message
/memory       what is kept of you here, numbered
/forget N     forget number N of that; /forget summary, or /forget session for this conversation
/end          end this conversation, so that the next one begins with its summary
/quit         leave (or Ctrl-D); Ctrl-C stops an answer
A line that ends with \\ goes on in the next one."""


@command(make=True, talks=True)
@click.option("--session", help="The conversation, to go on with; a new one without it.")
def chat(agents: AgentsHandle, agent: str, message: str | None = None, session: str | None = None) -> None:
    """Talk with an agent.

    \b
    With a MESSAGE it answers that and ends. On a store's file, name the specs (--agents) and the LLM
    (--llm-url, --llm-model), or set ALCOVE_AGENTS, ALCOVE_LLM_URL and ALCOVE_LLM_MODEL.
    Examples:
      alcove chat researcher --user alice
      alcove chat researcher "What did we decide?" --session monday --at http://127.0.0.1:8080
    """
    talk = Talk(agents, agent, session or f"chat-{datetime.now():%Y%m%d-%H%M%S}")
    if message is not None:
        talk.say(message)
        return
    agents.spec(agent)
    if sys.stdin.isatty():
        click.echo(
            f"{plain(agent)}, session {plain(talk.session)}. /help says what you can do here.", err=True
        )
        talk.remember_lines()
    for line in _lines():
        try:
            if not talk.heard(line):
                break
        except AlcoveError as error:
            click.secho(f"alcove: {plain(error.message)}", fg="red", err=True)
        except KeyboardInterrupt:
            click.secho("\nstopped; nothing of it was kept", dim=True, err=True)


def _lines() -> Iterator[str]:
    """What is typed, until its end: a line, or several of which all but the last end with a backslash."""
    begun = ""
    while True:
        try:
            prompt = ("… " if begun else "> ") if sys.stdin.isatty() else ""
            line = begun + input(prompt)
        except EOFError:
            break
        except KeyboardInterrupt:
            click.echo(err=True)
            begun = ""
            continue
        if line.endswith("\\"):
            begun = line[:-1] + "\n"
            continue
        begun = ""
        if line.strip():
            yield line
    if begun.strip():
        yield begun


class Talk:
    """One conversation at a terminal."""

    def __init__(self, agents: AgentsHandle, agent: str, session: str) -> None:
        self._agents, self._agent, self.session = agents, agent, session
        self._reply: Reply | None = None
        self._listed: list[tuple[Namespace, str]] = []
        """What `/memory` showed last."""

    def remember_lines(self) -> None:
        """Lets the arrow keys bring back what the user said in this conversation; no file is kept of it."""
        with suppress(ImportError, NotFound):
            import readline  # noqa: PLC0415  where there is one

            for each in self._agents.session(self._agent, self.session, _MOST_RECALLED).said:
                if each.role == "user" and each.content:
                    readline.add_history(each.content)

    def heard(self, line: str) -> bool:
        """Does what a line says; whether to go on."""
        word, _, rest = line.strip().partition(" ")
        match word:
            case "/quit" | "/exit":
                return False
            case "/help":
                click.echo(HELP)
            case "/context":
                self._context()
            case "/memory":
                self._memory()
            case "/forget":
                self._forget(rest.strip())
            case "/end":
                self._agents.end_session(self._agent, self.session)
                click.echo("ended; the next conversation begins with its summary")
                return False
            case _ if word.startswith("/") and "/" not in word[1:]:
                click.echo(f"there is no {plain(word)}; /help says what there is")
            case _:
                self.say(line)
        return True

    def say(self, message: str) -> None:
        """Says something, and shows the answer as it comes."""
        if as_json():
            self._reply = self._agents.chat(self._agent, self.session, message, explain=True)
            show(self._reply)
            return
        events = self._agents.chat_stream(self._agent, self.session, message, explain=True)
        self._reply = show_turn(events)

    def _context(self) -> None:
        if self._reply is None:
            click.echo("nothing was sent yet: say something first")
        else:
            show_context(self._reply.sent, self._reply.receipt)

    def _memory(self) -> None:
        """Shows what is kept of this user here, numbered."""
        from alcove.agents.rooms import ONE_NAMESPACE  # noqa: PLC0415  loads more than most commands need

        memories, self._listed = self._agents.memories, []
        for room in self._agents.rooms(self._agent):
            click.secho(
                f"{room.room} ({plain(str(room.namespace))}), {count(room.memories, 'memory')}", bold=True
            )
            if room.namespace.owner is None:
                continue
            exact = room.room in ONE_NAMESPACE
            for each in memories.search(room.namespace, limit=_MOST_LISTED, exact=exact):
                self._listed.append((each.namespace, each.key))
                content = plain(str(each.value.get("content", each.value.get("value", compact(each.value)))))
                told = f"{plain(each.key)}: {content} ({shown(each.created_at)})"
                click.echo(f"{len(self._listed):>4}  {told}")
        summary = self._agents.summary(self._agent)
        text = summary.prose.text if summary.prose else "\n".join(point.line for point in summary.points)
        click.secho(f"summary of {count(summary.conversations, 'conversation')}", bold=True)
        for line in text.splitlines():
            click.echo(f"      {plain(line)}")
        with suppress(NotFound):
            said = self._agents.session(self._agent, self.session, 1)
            click.secho(f"this conversation, {count(said.messages, 'message')}", bold=True)

    def _forget(self, what: str) -> None:
        """Takes away what was shown, the summary, or the conversation."""
        if what == "summary":
            self._agents.forget_summary(self._agent)
        elif what == "session":
            self._agents.delete_session(self._agent, self.session)
        elif what.isdecimal() and 1 <= int(what) <= len(self._listed):
            place, key = self._listed[int(what) - 1]
            if not self._agents.memories.delete(place, key).deleted:
                raise NotFound("it is not there any more")
        else:
            click.echo("/forget takes a number that /memory shows, or summary, or session")
            return
        click.echo("forgotten")


def show_turn(events: Iterable[ChatEvent]) -> Reply | None:
    """Shows a turn as it comes: the answer, and each tool on a line of its own; gives the reply."""
    begun, reply = False, None
    for event in events:
        reply = event.reply or reply
        text = plain(event.text or "", keep="\n\t")
        if event.tool:
            click.secho(f"{chr(10) * begun}  · {tool_line(event.tool)}", dim=True)
            begun = False
        elif text := text if begun else text.lstrip("\n"):
            click.echo(text, nl=False)
            begun = not text.endswith("\n")
    click.echo(nl=begun)
    return reply


def tool_line(use: ToolUse) -> str:
    """What a tool did, in one line."""
    given = ", ".join(
        f"{name}={value if isinstance(value, str) else compact(value)}"
        for name, value in use.arguments.items()
    )
    told = "" if use.outcome == "ok" else f": {use.text}"
    return plain(f"{use.tool}({given}){told}")


team = click.Group("team", help="Have a team of agents work on a task.")


@command("run", group=team, make=True, talks=True)
@click.argument("team")
@click.argument("task")
@click.option("--mode", type=click.Choice(["order", "parallel"]), help="One after the other, or all at once.")
@click.option("--session", help="The conversation in which each worker has it; a new one without it.")
def run_team(agents: AgentsHandle, team: str, task: str, mode: str | None, session: str | None) -> int:
    """Pass a task to the workers of a team.

    \b
    A worker that fails is told of, and the rest goes on (exit code 1).
    Example:  alcove team run party "Open the door" --user alice --agents agents.yaml
    """
    done = agents.run_team(team, task, session_id=session, mode=mode)  # type: ignore[arg-type]
    lines = [line for each in done.contributions for line in _told(each)]
    show(done, *lines, f"{done.usage.total_tokens:,} tokens, session {plain(done.session_id)}")
    return 1 if any(each.error for each in done.contributions) else 0


def _told(work: Contribution) -> Iterator[str]:
    yield click.style(plain(work.agent), bold=True)
    for use in work.tools:
        yield click.style(f"  · {tool_line(use)}", dim=True)
    yield plain(work.text or f"failed: {work.error}", keep="\n\t") + "\n"


COMMANDS: list[click.Command] = [chat, team]
