"""Commands to talk with agents and teams at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import click

from alcove.cli.command import command
from alcove.cli.context import show_context
from alcove.cli.output import as_json, count, escape, format_cell, show, to_json
from alcove.core.errors import AlcoveError, NotFound

if TYPE_CHECKING:
    from alcove.agents.chats import ChatEvent, Reply, ToolUse
    from alcove.client.store import AgentsHandle
    from alcove.core.namespace import Namespace

_MAX_LISTED = 100
_MAX_HISTORY = 200
HELP = """\
/context      show what the model was sent with your last message
/memory       show what is stored about you here, numbered
/forget N     forget number N of that; /forget summary, or /forget session for this conversation
/end          end this conversation, so that the next one begins with its summary
/quit         leave (or Ctrl-D); Ctrl-C stops an answer
End a line with \\ to continue it on the next one."""


@command(creates=True, has_llm=True)
@click.option("--session", help="The conversation to continue; a new one without it.")
def chat(agents: AgentsHandle, agent: str, message: str | None = None, session: str | None = None) -> None:
    """Talk with an agent.

    \b
    With a MESSAGE, it prints one answer and ends. On a store's file, name the specs (--agents) and the LLM
    (--llm-url, --llm-model), or set ALCOVE_AGENTS, ALCOVE_LLM_URL and ALCOVE_LLM_MODEL.
    Examples:
      alcove chat researcher --user alice
      alcove chat researcher "What did we decide?" --session monday --at http://127.0.0.1:8080
    """
    conversation = Conversation(agents, agent, session or f"chat-{datetime.now():%Y%m%d-%H%M%S}")
    if message is not None:
        conversation.send(message)
        return
    agents.spec(agent)
    if sys.stdin.isatty():
        click.echo(f"{escape(agent)}, session {escape(conversation.session)}. Type /help for help.", err=True)
        conversation.load_history()
    for line in _read_lines():
        try:
            if not conversation.handle(line):
                break
        except AlcoveError as error:
            click.secho(f"alcove: {escape(error.message)}", fg="red", err=True)
        except KeyboardInterrupt:
            click.secho("\nstopped; nothing of it was stored", dim=True, err=True)


def _read_lines() -> Iterator[str]:
    """Lines from stdin until its end; a line that ends with a backslash continues on the next."""
    begin = ""
    while True:
        try:
            line = begin + input(("… " if begin else "> ") if sys.stdin.isatty() else "")
        except EOFError:
            break
        except KeyboardInterrupt:
            click.echo(err=True)
            begin = ""
            continue
        begin = line[:-1] + "\n" if line.endswith("\\") else ""
        if not begin and line.strip():
            yield line
    if begin.strip():
        yield begin


class Conversation:
    """One conversation at a terminal."""

    def __init__(self, agents: AgentsHandle, agent: str, session: str) -> None:
        self._agents, self._agent, self.session = agents, agent, session
        self._reply: Reply | None = None
        self._listed: list[tuple[Namespace, str]] = []
        """The memories that `/memory` showed last."""

    def load_history(self) -> None:
        """Lets the arrow keys recall the user's messages of this conversation; writes no file."""
        with suppress(ImportError, NotFound):
            import readline  # noqa: PLC0415  not on every platform

            for turn in self._agents.session(self._agent, self.session, _MAX_HISTORY).said:
                if turn.role == "user" and turn.content:
                    readline.add_history(turn.content)

    def handle(self, line: str) -> bool:
        """Runs a command or sends a message; False ends the conversation."""
        word, _, rest = line.strip().partition(" ")
        match word:
            case "/quit" | "/exit":
                return False
            case "/help":
                click.echo(HELP)
            case "/context" if self._reply:
                show_context(self._reply.sent, self._reply.receipt)
            case "/context":
                click.echo("nothing was sent yet: say something first")
            case "/memory":
                self._show_memory()
            case "/forget":
                self._forget(rest.strip())
            case "/end":
                self._agents.end_session(self._agent, self.session)
                click.echo("ended; the next conversation begins with its summary")
                return False
            case _ if word.startswith("/") and "/" not in word[1:]:
                click.echo(f"there is no {escape(word)}; /help lists the commands")
            case _:
                self.send(line)
        return True

    def send(self, message: str) -> None:
        """Sends a message, and shows the answer as it arrives."""
        if as_json():
            self._reply = self._agents.chat(self._agent, self.session, message, explain=True)
            show(self._reply)
        else:
            events = self._agents.chat_stream(self._agent, self.session, message, explain=True)
            self._reply = show_turn(events)

    def _show_memory(self) -> None:
        from alcove.agents.rooms import ONE_NAMESPACE  # noqa: PLC0415  loads more than most commands need

        memories, self._listed = self._agents.memories, []
        for room in self._agents.rooms(self._agent):
            title = f"{room.room} ({escape(str(room.namespace))}), {count(room.memories, 'memory')}"
            click.secho(title, bold=True)
            if room.namespace.owner is None:
                continue
            exact = room.room in ONE_NAMESPACE
            for memory in memories.search(room.namespace, limit=_MAX_LISTED, exact=exact):
                self._listed.append((memory.namespace, memory.key))
                content = memory.value.get("content", memory.value.get("value", to_json(memory.value)))
                text = f"{escape(memory.key)}: {escape(str(content))} ({format_cell(memory.created_at)})"
                click.echo(f"{len(self._listed):>4}  {text}")
        summary = self._agents.summary(self._agent)
        text = summary.prose.text if summary.prose else "\n".join(point.line for point in summary.points)
        click.secho(f"summary of {count(summary.conversations, 'conversation')}", bold=True)
        for line in text.splitlines():
            click.echo(f"      {escape(line)}")
        with suppress(NotFound):
            log = self._agents.session(self._agent, self.session, 1)
            click.secho(f"this conversation, {count(log.messages, 'message')}", bold=True)

    def _forget(self, target: str) -> None:
        """Deletes a listed memory, the summary, or the conversation."""
        if target == "summary":
            self._agents.forget_summary(self._agent)
        elif target == "session":
            self._agents.delete_session(self._agent, self.session)
        elif target.isdecimal() and 1 <= int(target) <= len(self._listed):
            namespace, key = self._listed[int(target) - 1]
            if not self._agents.memories.delete(namespace, key).deleted:
                raise NotFound("it is not there any more")
        else:
            click.echo("/forget takes a number that /memory shows, or summary, or session")
            return
        click.echo("forgotten")


def show_turn(events: Iterable[ChatEvent]) -> Reply | None:
    """Shows a turn as it arrives, the answer and a line for each tool; returns the reply."""
    in_line, reply = False, None
    for event in events:
        reply = event.reply or reply
        text = escape(event.text or "", keep="\n\t")
        if event.tool:
            click.secho(f"{chr(10) * in_line}  · {tool_line(event.tool)}", dim=True)
            in_line = False
        elif text := text if in_line else text.lstrip("\n"):
            click.echo(text, nl=False)
            in_line = not text.endswith("\n")
    click.echo(nl=in_line)
    return reply


def tool_line(use: ToolUse) -> str:
    """A tool call in one line, with its error if it failed."""
    arguments = ", ".join(
        f"{name}={value if isinstance(value, str) else to_json(value)}"
        for name, value in use.arguments.items()
    )
    return escape(f"{use.tool}({arguments}){'' if use.outcome == 'ok' else f': {use.text}'}")


team = click.Group("team", help="Give a team of agents a task.")


@command("run", group=team, creates=True, has_llm=True)
@click.argument("team")
@click.argument("task")
@click.option("--mode", type=click.Choice(["order", "parallel"]), help="One after the other, or all at once.")
@click.option("--session", help="The conversation to continue with each worker; a new one without it.")
def run_team(agents: AgentsHandle, team: str, task: str, mode: str | None, session: str | None) -> int:
    """Give a task to the workers of a team.

    \b
    If a worker fails, its error is shown and the others go on (exit code 1).
    Example:  alcove team run party "Open the door" --user alice --agents agents.yaml
    """
    reply = agents.run_team(team, task, session_id=session, mode=mode)  # type: ignore[arg-type]
    lines = list[str]()
    for work in reply.contributions:
        lines.append(click.style(escape(work.agent), bold=True))
        lines += [click.style(f"  · {tool_line(use)}", dim=True) for use in work.tools]
        lines.append(escape(work.text or f"failed: {work.error}", keep="\n\t") + "\n")
    show(reply, *lines, f"{reply.usage.total_tokens:,} tokens, session {escape(reply.session_id)}")
    return 1 if any(work.error for work in reply.contributions) else 0


COMMANDS: list[click.Command] = [chat, team]
