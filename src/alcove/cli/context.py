"""Commands for what a model is sent: contexts, conversations, their summaries, and knowledge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from alcove.cli.command import by_offset, command, parse_json_object
from alcove.cli.output import (
    as_json,
    confirm,
    count,
    escape,
    format_cell,
    show,
    show_table,
    to_json,
    wait_for_index,
)

if TYPE_CHECKING:
    from alcove.agents.context import ContextReceipt
    from alcove.agents.sessions import RemovedSessions
    from alcove.client.store import AgentsHandle
    from alcove.core.records import Message

_MAX_SESSIONS = 1000


@command()
@click.option("--budget", "budget_tokens", type=click.IntRange(1), default=8000, help="Most tokens to send.")
def context(agents: AgentsHandle, agent: str, session: str, message: str, budget_tokens: int) -> None:
    """Show what a model would be sent for a message, and why.

    \b
    Example:  alcove context researcher monday "What did we decide?" --as-user alice
    """
    context = agents.context(agent, session, message, budget_tokens=budget_tokens)
    if as_json():
        show(context)
    else:
        show_context(context.messages, context.receipt)


def show_context(messages: Sequence[Message], receipt: ContextReceipt) -> None:
    """Prints the messages that a model is sent, and where they come from."""
    for message in messages:
        click.echo(click.style(f"[{message.role}]", bold=True))
        calls = [to_json(message.tool_calls)] if message.tool_calls else []
        click.echo(escape("\n".join([*filter(None, [message.content]), *calls]), keep="\n") + "\n")
    show_table(receipt.tiers.items(), "tier, tokens, items", empty="", tier=lambda each: each[0],
               tokens=lambda each: each[1].tokens, items=lambda each: len(each[1].items))  # fmt: skip
    click.echo(f"{receipt.total_tokens:,} of {receipt.budget_tokens:,} tokens ({receipt.tokenizer})")
    for each in receipt.left_out:
        words = [f"{each.count:,}" if each.count > 1 else "", escape(each.id or ""), escape(each.why)]
        click.echo(f"left out of {each.tier}: {' '.join(filter(None, words))}")


session = click.Group("session", help="Show, extend, end and delete conversations.")


@command("add", group=session, creates=True)
@click.argument("messages", nargs=-1, required=True, metavar="ROLE=TEXT|JSON...")
def add_turns(agents: AgentsHandle, agent: str, session: str, messages: tuple[str, ...]) -> None:
    """Add messages to a conversation.

    \b
    Each is user=TEXT, assistant=TEXT, or a JSON object in the form of chat APIs.
    Example:  alcove session add researcher monday user="Hello" assistant="Hi" --as-user alice
    """

    def parse_message(word: str) -> dict[str, Any]:
        if word.startswith("{"):
            return parse_json_object(word, "MESSAGES")
        role, _, text = word.partition("=")
        return {"role": role, "content": text}

    added = agents.add_turns(agent, session, [*map(parse_message, messages)])
    show(added, f"{count(added.added, 'message')} added, {added.messages:,} in all")


@command("list", group=session)
def list_sessions(agents: AgentsHandle, agent: str, limit: int) -> None:
    """List your conversations with an agent, the most recent first.

    \b
    Example:  alcove session list researcher --as-user alice
    """
    sessions = by_offset(agents.sessions, agent, limit=limit, page_size=_MAX_SESSIONS)
    show_table(sessions, "session=id, messages, last=last_at, ended", empty="no conversations")


@command("show", group=session)
def show_session(agents: AgentsHandle, agent: str, session: str, limit: int) -> None:
    """Show the last messages of a conversation, and the summary of older ones.

    \b
    Example:  alcove session show researcher monday --limit 20 --as-user alice
    """
    log = agents.session(agent, session, min(limit, _MAX_SESSIONS))
    summary = [f"{escape(point.line)} (in summary)" for point in log.running_summary]
    turns = [f"{format_cell(turn.at)}  {turn.role}: {_text(turn)}" for turn in log.said]
    show(log, *summary, *turns)


def _text(message: Message) -> str:
    """The content of a message, or its tool calls."""
    return escape(message.content if message.content is not None else to_json(message.tool_calls))


@command("remove-last", group=session)
def remove_last(agents: AgentsHandle, agent: str, session: str, *, yes: bool) -> None:
    """Delete the last message of a conversation, but not what a summary has of it.

    \b
    Example:  alcove session remove-last researcher monday --as-user alice --yes
    """
    (last,) = agents.session(agent, session, 1).said
    confirm(f"Delete this message? {last.role}: {_text(last)[:200]}", yes=yes)
    log = agents.replace_last(agent, session, last=last)
    show(log, f"removed, {count(log.messages, 'message')} left")


@command("end", group=session)
def end_session(agents: AgentsHandle, agent: str, session: str) -> None:
    """End a conversation, so that the next one begins with its summary.

    \b
    Example:  alcove session end researcher monday --as-user alice
    """
    ended = agents.end_session(agent, session)
    show(ended, f"ended {escape(session)}, {count(ended.messages, 'message')}")


@command("delete", group=session)
def delete_session(agents: AgentsHandle, agent: str, session: str, *, yes: bool) -> None:
    """Delete a conversation, but not what the summary of conversations has of it.

    \b
    Example:  alcove session delete researcher monday --as-user alice --yes
    """
    confirm(f"Delete the conversation {escape(session)} for good?", yes=yes)
    _show_removed(agents.delete_session(agent, session))


@command("keep", group=session)
@click.argument("number", type=click.IntRange(0))
def prune_sessions(agents: AgentsHandle, agent: str, number: int, *, yes: bool) -> None:
    """Delete all conversations except for the NUMBER most recent ones.

    \b
    Example:  alcove session keep researcher 20 --as-user alice --yes
    """
    confirm(f"Delete all conversations except for the last {number} for good?", yes=yes)
    _show_removed(agents.prune_sessions(agent, keep=number))


def _show_removed(removed: RemovedSessions) -> None:
    show(removed, f"deleted {count(removed.sessions, 'conversation')}, {count(removed.messages, 'message')}")


summary = click.Group("summary", help="Show or delete the summary of your conversations with an agent.")


@command("show", group=summary)
def show_summary(agents: AgentsHandle, agent: str) -> None:
    """Show the summary of conversations that have ended.

    \b
    Example:  alcove summary show researcher --as-user alice
    """
    summary = agents.summary(agent)
    lines = [f"{format_cell(point.at)}  {escape(point.line)}" for point in summary.points]
    pending = [f"not yet in it: {escape(', '.join(summary.pending))}"] if summary.pending else []
    show(summary, *lines, *pending, count(summary.conversations, "conversation"))


@command("forget", group=summary)
def forget_summary(agents: AgentsHandle, agent: str, *, yes: bool) -> None:
    """Delete the summary and its history.

    \b
    Example:  alcove summary forget researcher --as-user alice --yes
    """
    confirm("Delete the summary for good?", yes=yes)
    agents.forget_summary(agent)
    show({"forgotten": agent}, "forgotten")


knowledge = click.Group("knowledge", help="Sync, show and search documents for agents.")


@command("sync", group=knowledge, creates=True)
def sync(agents: AgentsHandle, source: str | None = None, *, wait: bool) -> int:
    """Update sources from their files.

    \b
    Replaces documents that changed, and removes those whose file is gone. Lists files that cannot be read
    (exit code 1).
    Example:  alcove knowledge sync manuals
    """
    names = [source] if source else [each.name for each in agents.sources()]
    synced = [agents.sync_source(name) for name in names]
    if wait and synced:
        wait_for_index(lambda: agents.sources()[0].waiting, synced[-1].waiting)
    return _show_sources(agents, names)


@command("status", group=knowledge)
def status(agents: AgentsHandle) -> int:
    """Show the sources you may manage, and how many documents they have.

    \b
    Example:  alcove knowledge status
    """
    return _show_sources(agents, None)


def _show_sources(agents: AgentsHandle, names: list[str] | None) -> int:
    sources = [each for each in agents.sources() if names is None or each.name in names]
    show_table(sources, "source=name, documents, chunks, waiting, path", empty="no sources")
    errors = [(each.name, name, why) for each in sources for name, why in each.errors.items()]
    for source, name, why in () if as_json() else errors:
        click.echo(f"{escape(source)}: {escape(name)} {escape(why)}", err=True)
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
def show_document(agents: AgentsHandle, source: str, name: str) -> None:
    """Show a document, chunk by chunk.

    \b
    Example:  alcove knowledge show manuals espresso.md
    """
    document = agents.document(source, name)
    pieces = (f"{escape(each.heading)}\n{escape(each.text, keep=chr(10))}\n" for each in document.pieces)
    show(document, *pieces)


@command("put", group=knowledge, creates=True)
@click.option("--name", help="Name of the document; the file's name by default.")
def put_document(agents: AgentsHandle, source: str, file: Path, name: str | None) -> None:
    """Upload a document to a source.

    \b
    Example:  alcove knowledge put manuals bike.md
    """
    document = agents.put_document(source, name or file.name, file.read_bytes())
    show(document, f"{escape(document.name)}: {count(document.chunks, 'chunk')}")


@command("remove", group=knowledge)
def delete_document(agents: AgentsHandle, source: str, name: str, *, yes: bool) -> None:
    """Delete a document that was uploaded to a source.

    \b
    Example:  alcove knowledge remove manuals bike.md --yes
    """
    confirm(f"Delete {escape(name)}?", yes=yes)
    agents.delete_document(source, name)
    show({"removed": name}, f"removed {escape(name)}")


@command("search", group=knowledge)
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.0,
              help="Leave out hits with a lower score.")  # fmt: skip
def search_knowledge(agents: AgentsHandle, source: str, query: str, threshold: float, limit: int = 5) -> None:
    """Show what an agent would find in a source.

    \b
    Example:  alcove knowledge search manuals "how is it cleaned?"
    """
    hits = agents.search_knowledge(source, query, limit=limit, threshold=threshold)
    show_table(hits, "score:.3f, cosine:.3f, document, heading, text", empty="nothing found")


COMMANDS: list[click.Command] = [context, session, summary, knowledge]
