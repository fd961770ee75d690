"""Looking after a store: its health, its keys, its policies."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from alcove.cli.memories import given
from alcove.cli.output import Output, compact, count, plain, progress
from alcove.cli.store import on_store

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove
    from alcove.store.reports import Index
    from alcove.upkeep.doctor import Examination

_BETWEEN_LOOKS = 0.1
_PATIENCE = 120.0
"""Seconds without any progress; an embedder that fails is tried again within one minute."""
TEXTS = ("authz", "attributes", "filter")


@click.command()
@on_store()
@click.option("--strict", is_flag=True, help="Exit code 1 also where something was only noticed.")
def doctor(store: Alcove, out: Output, *, strict: bool) -> None:
    """Check a store, and say what to do.

    \b
    Its file, its log against what is current, its ledger, that every value opens, and what looks odd.
    Exit codes: 0 all is well, 1 something is wrong, 2 the store cannot be opened.
    Example:    alcove doctor --at memory.db
    """
    ill = odd = 0
    for each in store.doctor():
        ill, odd = ill + bool(each.wrong), odd + bool(each.noticed)
        if out.as_json:
            click.echo(compact(each._asdict()))
        else:
            _tell(each)
    if not out.as_json:
        noticed = f" {count(odd, 'check')} noticed something to look at." if odd else ""
        click.echo(f"{count(ill, 'check')} found something wrong." if ill else f"All is well.{noticed}")
    if ill or (odd and strict):
        sys.exit(1)


def _tell(each: Examination) -> None:
    mark, colour = ("WRONG", "red") if each.wrong else ("LOOK", "yellow") if each.noticed else ("ok", "green")
    click.echo(f"{click.style(f'{mark:<5}', fg=colour)} {each.compared:>9,}  {each.name}")
    findings = [*each.wrong, *each.noticed]
    for finding in findings[:10]:
        click.echo(f"                   at {plain(finding)}")
    if len(findings) > 10:
        click.echo(f"                   and {len(findings) - 10:,} more")
    if findings:
        click.echo(f"                 → {each.advice}")


@click.command()
@on_store()
def reindex(store: Alcove, out: Output) -> None:
    """Make every vector anew, as after a change of the embedder.

    \b
    The old vectors are searched until the last of the new ones is there.
    Killed half-way, it goes on where it was when it is started again.
    Example:  ALCOVE_EMBEDDER=minilm alcove reindex
    """
    done = 0
    status = store.admin.index()
    with progress("indexing", status.indexed + status.waiting) as step:
        for now in store.admin.reindex():
            step(now - done)
            done = now
    out.record(store.admin.index(), f"{count(done, 'memory')} indexed")


@click.command()
@on_store()
@click.option("--retry", is_flag=True, help="Try again what was parked.")
@click.option("--wait", is_flag=True, help="The same, until nothing waits; exit code 1 if it cannot be.")
def index(store: Alcove, out: Output, *, retry: bool, wait: bool) -> None:
    """Show how far indexing has come, and what is in its way.

    \b
    Example:  alcove index
    """
    status = store.admin.trigger_index() if retry or wait else store.admin.index()
    if wait:
        status = _waited(store, status)
    lines = [f"{status.serving or 'nothing yet'}: {status.indexed:,} indexed, {status.waiting:,} waiting"]
    lines += [
        f"parked: {plain(each.key)} in {each.namespace}: {plain(each.error)}" for each in status.parked_items
    ]
    out.record(status, "\n".join(lines))
    if wait and status.waiting:
        sys.exit(1)


def _waited(store: Alcove, status: Index) -> Index:
    """The state of the index when nothing waits any more, or when nothing has happened for long."""
    changed = time.monotonic()
    with progress("indexing", status.waiting) as step:
        while status.waiting and time.monotonic() - changed < _PATIENCE:
            time.sleep(_BETWEEN_LOOKS)
            now = store.admin.index()
            if now.waiting != status.waiting:
                step(status.waiting - now.waiting)
                changed = time.monotonic()
            status = now
    return status


@click.command(name="rotate-keys")
@on_store()
def rotate_keys(store: Alcove, out: Output) -> None:
    """Wrap every data key with a new key.

    \b
    Values are not touched.
    Killed half-way, it goes on where it was when it is started again.
    Example:  alcove rotate-keys
    """
    before = store.admin.keys()
    done = 0
    with progress("rotating", sum(key.data_keys for key in before.keys)) as step:
        for rotation in store.rotate_keys():
            step(rotation.rewrapped - done)
            done = rotation.rewrapped
    active = store.admin.keys().active
    out.record({"active": active, "rewrapped": done}, f"{count(done, 'data key')} wrapped anew by {active}")


@click.group()
def policy() -> None:
    """Show policies, and try what they would decide."""


@policy.command()
@on_store()
@click.argument("name", type=click.Choice(TEXTS), required=False)
def show(store: Alcove, out: Output, name: str | None) -> None:
    """Print the policies in force, or one of them.

    \b
    Example:  alcove policy show authz > authz.rego
    """
    found = store.admin.policies()
    if out.as_json:
        out.record(found, "")
    elif name:
        click.echo(getattr(found, name), nl=False)
    else:
        for each in TEXTS:
            whence = "put by an admin" if each in found.stored else "from the folder, or built in"
            click.echo(click.style(f"# {each}.rego ({whence})", bold=True))
            click.echo(getattr(found, each).rstrip("\n") + "\n")


@policy.command()
@on_store()
@click.argument("input", nargs=-1, required=True)
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Try the *.rego files of this folder instead of those in force.",
)
def test(store: Alcove, out: Output, input: tuple[str, ...], folder: Path | None) -> None:
    """Show what the policies would say to an input.

    \b
    INPUT is a JSON object, or '-' for one on stdin. Nothing is changed.
    Exit code 1 if authz would deny it.
    Example:
      alcove policy test '{"operation": "read", "namespace": ["user", "bob"], "key": "k",
                           "context": {"user_id": "alice", "jwt_claims": {}, "agent": null, "grants": []}}'
    """
    texts = {name: (folder / f"{name}.rego").read_text(encoding="utf-8")
             for name in TEXTS if folder and (folder / f"{name}.rego").exists()}  # fmt: skip
    said = store.admin.test_policies(given(input, "INPUT"), texts)
    out.record(said, "\n".join(f"{rule:<18}{compact(answer)}" for rule, answer in said.items()))
    decision = said.get("decision")
    if not isinstance(decision, dict) or decision.get("allow") is not True:
        sys.exit(1)


COMMANDS: list[click.Command] = [doctor, index, reindex, rotate_keys, policy]
