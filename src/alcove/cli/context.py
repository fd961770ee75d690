"""What reaches a prompt: the context of a message, conversations and their summaries, and knowledge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alcove.cli.output import (
    as_json,
    compact,
    confirm,
    count,
    plain,
    show,
    show_table,
    shown,
    wait_for_index,
)
from alcove.cli.store import by_offset, command, object_of

if TYPE_CHECKING:
    from alcove.agents.context_tiers import ContextReceipt
    from alcove.agents.sessions import RemovedSessions
    from alcove.client.store import AgentsHandle
    from alcove.core.records import Message

_MOST_SESSIONS = 1000


@command()
@click.option("--budget", "budget_tokens", type=click.IntRange(1), default=8000, show_default=True,
              help="Tokens for all of it.")  # fmt: skip
def context(agents: AgentsHandle, agent: str, session: str, message: str, budget_tokens: int) -> None:
    """Show what a model would be sent for a message, and why.

    \b
    Example:  alcove context researcher monday "What did we decide?" --as-user alice
    """
    found = agents.context(agent, session, message, budget_tokens=budget_tokens)
    if as_json():
        show(found)
        return
    show_context(found.messages, found.receipt)


def show_context(messages: Sequence[Message], receipt: ContextReceipt) -> None:
    """Prints what a model is sent, and how that came about."""
    for each in messages:
        click.echo(click.style(f"[{each.role}]", bold=True))
        calls = [compact(each.tool_calls)] if each.tool_calls else []
        click.echo(plain("\n".join([*filter(None, [each.content]), *calls]), keep="\n") + "\n")
    show_table(receipt.tiers.items(), "tier, tokens, items", empty="", tier=lambda each: each[0],
               tokens=lambda each: each[1].tokens, items=lambda each: len(each[1].items))  # fmt: skip
    click.echo(f"{receipt.total_tokens:,} of {receipt.budget_tokens:,} tokens ({receipt.tokenizer})")
    for left in receipt.left_out:
        number = f"{left.count:,} " if left.count > 1 else ""
        click.echo(
            f"left out of {left.tier}: {number}{plain(left.id or '')} {plain(left.why)}".replace("  ", " ")
        )


session = click.Group("session", help="Look at conversations, add to them, end and delete them.")


@command("add", group=session, make=True)
@click.argument("messages", nargs=-1, required=True, metavar="ROLE=TEXT|JSON...")
def add_turns(agents: AgentsHandle, agent: str, session: str, messages: tuple[str, ...]) -> None:
    """Keep messages of a conversation.

    \b
    Each is user=TEXT, assistant=TEXT, or a JSON object as chat APIs have them.
    Example:  alcove session add researcher monday user="Hello" assistant="Hi" --as-user alice
    """
    said = [object_of(word, "MESSAGES") if word.startswith("{") else _message(word) for word in messages]
    added = agents.add_turns(agent, session, said)
    show(added, f"{count(added.added, 'message')} added, {added.messages:,} in all")


def _in_short(message: Message) -> str:
    """What a message says, or the calls that it makes."""
    return plain(message.content if message.content is not None else compact(message.tool_calls))


def _message(word: str) -> dict[str, Any]:
    role, _, text = word.partition("=")
    return {"role": role, "content": text}


@command("list", group=session)
def list_sessions(agents: AgentsHandle, agent: str, limit: int) -> None:
    """List your conversations with an agent, the last active first.

    \b
    Example:  alcove session list researcher --as-user alice
    """
    found = by_offset(agents.sessions, agent, limit=limit, most=_MOST_SESSIONS)
    show_table(found, "session=id, messages, last=last_at, ended", empty="no conversations")


@command("show", group=session)
def show_session(agents: AgentsHandle, agent: str, session: str, limit: int) -> None:
    """Show the last messages of a conversation, and the summary of what fell out of its window.

    \b
    Example:  alcove session show researcher monday --limit 20 --as-user alice
    """
    found = agents.session(agent, session, min(limit, _MOST_SESSIONS))
    lines = [f"{plain(point.line)} (in summary)" for point in found.running_summary]
    for each in found.said:
        lines.append(f"{shown(each.at)}  {each.role}: {_in_short(each)}")
    show(found, *lines)


@command("remove-last", group=session)
def remove_last(agents: AgentsHandle, agent: str, session: str, *, yes: bool) -> None:
    """Take the last message of a conversation away; what a summary has of it stays.

    \b
    Example:  alcove session remove-last researcher monday --as-user alice --yes
    """
    (last,) = agents.session(agent, session, 1).said
    confirm(f"Take this away: {last.role}: {_in_short(last)[:200]}?", yes=yes)
    left = agents.replace_last(agent, session, last=last)
    show(left, f"removed, {count(left.messages, 'message')} left")


@command("end", group=session)
def end_session(agents: AgentsHandle, agent: str, session: str) -> None:
    """End a conversation, so that the next one begins with its summary.

    \b
    Example:  alcove session end researcher monday --as-user alice
    """
    ended = agents.end_session(agent, session)
    show(ended, f"ended {plain(session)}, {count(ended.messages, 'message')}")


@command("delete", group=session)
def delete_session(agents: AgentsHandle, agent: str, session: str, *, yes: bool) -> None:
    """Delete a conversation; what the summary of conversations has of it stays.

    \b
    Example:  alcove session delete researcher monday --as-user alice --yes
    """
    confirm(f"Delete the conversation {plain(session)}, for good?", yes=yes)
    _tell(agents.delete_session(agent, session))


@command("keep", group=session)
@click.argument("number", type=click.IntRange(0))
def keep_sessions(agents: AgentsHandle, agent: str, number: int, *, yes: bool) -> None:
    """Delete all conversations but the last active ones.

    \b
    Example:  alcove session keep researcher 20 --as-user alice --yes
    """
    confirm(f"Delete all conversations but the last {number}, for good?", yes=yes)
    _tell(agents.prune_sessions(agent, keep=number))


def _tell(removed: RemovedSessions) -> None:
    show(removed, f"deleted {count(removed.sessions, 'conversation')}, {count(removed.messages, 'message')}")


summary = click.Group("summary", help="Show or forget the summary of your conversations with an agent.")


@command("show", group=summary)
def show_summary(agents: AgentsHandle, agent: str) -> None:
    """Show what is kept of conversations that have ended.

    \b
    Example:  alcove summary show researcher --as-user alice
    """
    found = agents.summary(agent)
    lines = [f"{shown(point.at)}  {plain(point.line)}" for point in found.points]
    waiting = [f"not yet in it: {plain(', '.join(found.pending))}"] if found.pending else []
    show(found, *lines, *waiting, count(found.conversations, "conversation"))


@command("forget", group=summary)
def forget_summary(agents: AgentsHandle, agent: str, *, yes: bool) -> None:
    """Take the summary away, with all it ever said.

    \b
    Example:  alcove summary forget researcher --as-user alice --yes
    """
    confirm("Take the summary away, for good?", yes=yes)
    agents.forget_summary(agent)
    show({"forgotten": agent}, "forgotten")


knowledge = click.Group("knowledge", help="Sync the documents of sources, look at them and search them.")


@command("sync", group=knowledge, make=True)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until they can be found by meaning.")
def sync(agents: AgentsHandle, source: str | None = None, *, wait: bool) -> int:
    """Bring sources in step with their files.

    \b
    What changed is replaced, what is gone disappears. A file that cannot be read is named (exit code 1).
    Example:  alcove knowledge sync manuals
    """
    names = [source] if source else [each.name for each in agents.sources()]
    found = [agents.sync_source(name) for name in names]
    if wait and found:
        wait_for_index(lambda: agents.sources()[0].waiting, found[-1].waiting)
    return _sources(agents, names)


@command("status", group=knowledge)
def status(agents: AgentsHandle) -> int:
    """Show the sources you may manage, and what is in them.

    \b
    Example:  alcove knowledge status
    """
    return _sources(agents, None)


def _sources(agents: AgentsHandle, names: list[str] | None) -> int:
    found = [each for each in agents.sources() if names is None or each.name in names]
    show_table(found, "source=name, documents, chunks, waiting, path", empty="no sources")
    errors = [(each.name, name, why) for each in found for name, why in each.errors.items()]
    for source, name, why in () if as_json() else errors:
        click.echo(f"{plain(source)}: {plain(name)} {plain(why)}", err=True)
    return 1 if errors else 0


@command("documents", group=knowledge)
def documents(agents: AgentsHandle, source: str) -> None:
    """List the documents of a source.

    \b
    Example:  alcove knowledge documents manuals
    """
    show_table(agents.documents(source), "document=name, chunks, bytes, uploaded, changed=updated_at, error",
               empty="no documents")  # fmt: skip


@command("show", group=knowledge)
def document(agents: AgentsHandle, source: str, name: str) -> None:
    """Show a document in its pieces.

    \b
    Example:  alcove knowledge show manuals espresso.md
    """
    found = agents.document(source, name)
    show(found, *(f"{plain(each.heading)}\n{plain(each.text, keep=chr(10))}\n" for each in found.pieces))


@command("put", group=knowledge, make=True)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="What it is called there; the file's name without it.")
def put_document(agents: AgentsHandle, source: str, file: Path, name: str | None) -> None:
    """Put a document into a source.

    \b
    Example:  alcove knowledge put manuals bike.md
    """
    done = agents.put_document(source, name or file.name, file.read_bytes())
    show(done, f"{plain(done.name)}: {count(done.chunks, 'chunk')}")


@command("remove", group=knowledge)
def delete_document(agents: AgentsHandle, source: str, name: str, *, yes: bool) -> None:
    """Take a document away that was put into a source.

    \b
    Example:  alcove knowledge remove manuals bike.md --yes
    """
    confirm(f"Take {plain(name)} away?", yes=yes)
    agents.delete_document(source, name)
    show({"removed": name}, f"removed {plain(name)}")


@command("search", group=knowledge)
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="The least score."
)
def search_knowledge(agents: AgentsHandle, source: str, query: str, threshold: float, limit: int = 5) -> None:
    """Show what agents would be given from a source.

    \b
    Example:  alcove knowledge search manuals "how is it cleaned?"
    """
    found = agents.search_knowledge(source, query, limit=limit, threshold=threshold)
    show_table(found, "score:.3f, cosine:.3f, document, heading, text", empty="nothing fits")


COMMANDS: list[click.Command] = [context, session, summary, knowledge]
