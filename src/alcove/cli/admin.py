"""Commands for admins and privacy officers: a user's data and its erasure, policies, settings, API keys."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from alcove.cli import output
from alcove.cli.command import by_cursor, command, parse_object
from alcove.cli.output import confirm, count, escape, format_cell, show, show_table
from alcove.core.clock import parse_duration
from alcove.core.records import Receipt

if TYPE_CHECKING:
    from alcove.client.store import Store

NO_SUCH_WIPE = "no such wipe, or the receipt was changed."
POLICIES = ("authz", "attributes", "filter")


@command()
def whoami(store: Store) -> None:
    """Show which user you are to a store.

    \b
    Example:  alcove whoami --at http://127.0.0.1:8080 --token "$TOKEN"
    """
    caller = store.whoami()
    client = f", through {escape(caller.client)}" if caller.client else ""
    roles = f", with the roles {', '.join(map(escape, caller.roles))}" if caller.roles else ""
    show(caller, f"{escape(caller.user)}{client}{roles}")


@command()
def held(store: Store, user: str) -> int:
    """Show how much is stored about a user, room by room.

    \b
    Exit code 1 if nothing is.
    Example:  alcove held alice
    """
    data = store.admin.held(user)
    lines = [f"{escape(user)}: {count(data.memories, 'memory')}, {count(data.versions, 'version')}, "
             f"{data.bytes:,} bytes"]  # fmt: skip
    if data.first_written:
        first, last = map(format_cell, (data.first_written, data.last_written))
        lines.append(f"written from {first} to {last}")
    lines.append(f"in rooms of others: {count(data.shared, 'version')}; API keys: {data.api_keys}; "
                 f"encryption key: {'yes' if data.key else 'none'}")  # fmt: skip
    show(data, *lines)
    for title, rooms in (("namespace", data.namespaces), ("room of others", data.shared_rooms)):
        if rooms and not output.as_json():
            show_table(rooms, f"{title}=namespace, memories, versions, bytes", empty="")
    return 0 if data.versions or data.shared or data.api_keys or data.key else 1


@command()
def review(store: Store, user: str, limit: int) -> None:
    """Read a user's memories; audited.

    \b
    Those in their rooms and those they wrote into rooms of others, in the order they were written.
    Example:  alcove review alice
    """
    memory = None
    for memory in by_cursor(store.admin.memories_of, user, field="items", limit=limit):
        title = click.style(f"{format_cell(memory.created_at)}  {format_cell(memory.namespace)}", bold=True)
        show(memory, title, f"  {escape(memory.key)}: {format_cell(memory.value)}", f"  {memory.id}")
    if memory is None and not output.as_json():
        click.echo(f"nothing is stored about {escape(user)}", err=True)


@command()
def remove(store: Store, user: str, id: str, *, yes: bool) -> None:
    """Delete one memory of a user for good; audited.

    \b
    Every version is deleted, and restoring a backup does not bring it back. `alcove review` shows the ID.
    Example:  alcove remove alice 5d0c8a52-7a3e-4f5b-9c1d-2e6f7a8b9c0d --yes
    """
    confirm(f"Delete the memory {escape(id)} of {escape(user)} for good?", yes=yes)
    store.admin.remove(user, id)
    show({"removed": id}, f"removed {escape(id)}")


@command()
@click.option("--shared", type=click.Choice(["keep", "anonymise", "remove"]), default="anonymise",
              help="What becomes of memories they wrote into other rooms.")  # fmt: skip
@click.option("--wait/--no-wait", default=True, help="Wait until no byte is left.")
@click.option("--dry-run", is_flag=True, help="Erase nothing; show what would be erased.")
@click.option("--receipt", "file", metavar="FILE", help="Save the receipt to this new file.")
def wipe(store: Store, user: str, *, dry_run: bool, file: str | None, yes: bool, **options: Any) -> None:
    """Erase a user for good, and print a receipt.

    \b
    Every version is deleted, the user's key destroyed and the file rebuilt, so that no byte is left.
    What they wrote into rooms of others stays without their name, unless --shared says otherwise.
    Exit code 1 if nothing is stored about them.
    Examples:
      alcove wipe alice --dry-run
      alcove wipe alice --yes --receipt alice.json
    """
    if dry_run:
        if file:
            raise click.UsageError("--dry-run gives no receipt to save with --receipt")
        receipt = store.wipe(user, dry_run=True, shared=options["shared"])
        show(receipt, "Nothing was erased. This would be:", *_receipt_lines(receipt))
        return
    confirm(f"Erase everything that belongs to {escape(user)} for good?", yes=yes)
    with output.open_output(file) as write:
        if sys.stderr.isatty():
            click.echo("erasing, and rebuilding the file …", err=True)
        receipt = store.wipe(user, **options)
        outcome = "erased, except for what stays in rooms of others" if receipt.shared_left else "forgotten"
        show(receipt, f"{escape(user)} is {outcome}.", *_receipt_lines(receipt))
        write(output.to_json(receipt).encode() + b"\n")


def _receipt_lines(receipt: Receipt) -> Iterator[str]:
    removed = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in receipt.removed.items())
    ((choice, versions),) = receipt.shared.items()
    yield f"  removed        {removed}"
    yield f"  key destroyed  {'yes' if receipt.key_destroyed else 'there was none'}"
    yield f"  shared rooms   {count(versions, 'version')} ({choice})"
    for room in receipt.shared_left:
        stays = f"{count(room.versions, 'version')}, {'with' if choice == 'keep' else 'without'} the name"
        yield f"  stays          {escape(str(room.namespace))}: {stays} (--shared remove deletes it)"
    if receipt.wiped_at:
        if receipt.scrubbed:
            scrubbed = "yes, no byte of it is left in the files of the store"
        elif any(residue.in_data_files for residue in receipt.remains):
            scrubbed = "not all of it"
        else:
            scrubbed = "not yet; it follows"
        yield f"  scrubbed       {scrubbed}"
    for residue in receipt.remains:
        yield f"  remains        in {residue.where}"
        yield f"                 until {residue.until}"
        yield f"                 a superuser ends it now: {residue.command}"


receipt = click.Group("receipt", help="Verify the receipts of wipes.")


@command(group=receipt)
def verify(store: Store, file: Path) -> int:
    """Compare a receipt with the ledger of wipes.

    \b
    Exit code 1 if the ledger has no such wipe, or the receipt was changed.
    Example:  alcove receipt verify alice.json
    """
    try:
        record = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise output.Refusal(f"{file} is not the receipt of a wipe") from None
    verified = store.admin.verify_receipt(record)
    wipe = f"this wipe of {escape(str(record.get('user')))}, and the receipt is unchanged."
    show({"verified": verified}, f"The ledger has {wipe if verified else NO_SUCH_WIPE}")
    return 0 if verified else 1


policy = click.Group("policy", help="Show the policies, test what they decide, and replace them.")


def _read_policies(folder: Path | None) -> dict[str, str | None]:
    """The policies of a folder, by name."""
    files = {name: folder / f"{name}.rego" for name in POLICIES} if folder else {}
    return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.exists()}


@command("show", group=policy)
@click.argument("name", type=click.Choice(POLICIES), required=False)
def show_policies(store: Store, name: str | None) -> None:
    """Print the active policies, or one of them.

    \b
    Example:  alcove policy show authz > authz.rego
    """
    policies = store.admin.policies()
    if output.as_json():
        show(policies)
    elif name:
        click.echo(getattr(policies, name), nl=False)
    else:
        for each in POLICIES:
            source = "put by an admin" if each in policies.stored else "from the folder, or built in"
            click.echo(click.style(f"# {each}.rego ({source})", bold=True))
            click.echo(getattr(policies, each).rstrip("\n") + "\n")


@command(group=policy)
@click.argument("input", nargs=-1, required=True)
def test(store: Store, input: tuple[str, ...], folder: Path | None) -> int:
    """Show what the policies decide about an input.

    \b
    INPUT is a JSON object, or '-' to read one from stdin. With --dir, the *.rego files of a folder decide
    instead of the active ones. Nothing is changed.
    Exit code 1 if authz would deny it.
    Example:
      alcove policy test '{"operation": "read", "namespace": ["user", "bob"], "key": "k",
                           "context": {"user_id": "alice", "jwt_claims": {}, "agent": null, "grants": []}}'
    """
    answers = store.admin.test_policies(parse_object(input, "INPUT"), _read_policies(folder))
    show(answers, *(f"{rule:<20}{output.to_json(answer)}" for rule, answer in answers.items()))
    decision = answers.get("decision")
    return 0 if isinstance(decision, dict) and decision.get("allow") is True else 1


@command("put", group=policy)
@click.option("--reset", is_flag=True, help="Go back to the policies of the server.")
def put_policies(store: Store, folder: Path | None, *, reset: bool) -> None:
    """Replace the active policies, at once and in every process.

    \b
    Replaces all policies that were put before; for one that the folder lacks, the server's own or the
    built-in one is used. Test them first: alcove policy test --dir FOLDER.
    Example:  alcove policy put --dir policies
    """
    texts = _read_policies(folder)
    if bool(texts) == reset:
        raise click.UsageError("give one of --dir, with authz.rego, attributes.rego or filter.rego in it, "
                               "and --reset")  # fmt: skip
    policies = store.admin.put_policies(texts)
    stored = ", ".join(policies.stored) or "none"
    show(policies, f"put by an admin: {stored}; the others are from the folder, or built in")


@command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE|JSON|-]...")
def settings(store: Store, changes: tuple[str, ...]) -> None:
    """Show the active limits and retention, or change some of them.

    \b
    Changes take effect at once in every process; null undoes one. Days may be typed 30d or 12h.
    Examples:
      alcove settings
      alcove settings retention_days=30d max_batch=500
      alcove settings retention_days=null
    """
    values = parse_object(changes, "CHANGES")
    for name, value in values.items():
        if name.endswith("_days") and isinstance(value, str):
            values[name] = parse_duration(value, unit="d") or value
    show(store.admin.put_settings(values) if values else store.admin.settings())


apikey = click.Group("apikey", help="Create, list and revoke the API keys of a store.")


@command(group=apikey)
@click.option("--client", required=True, help="Name of the program that will use it.")
@click.option("--user", help="The user it acts for.")
@click.option("--trusted", is_flag=True, help="Let it name the user of each request with X-User-ID.")
def create(store: Store, roles: tuple[str, ...], **options: Any) -> None:
    """Create an API key and print it; it is shown only once.

    \b
    Example:  alcove apikey create --client phone-app --user alice
    """
    if not options["trusted"] and not options["user"]:
        raise click.UsageError("--user is needed unless the key is --trusted to name the user itself")
    key = store.api_keys.create(roles=roles, **options)
    show({"key": key}, key)


@command("list", group=apikey)
def list_keys(store: Store) -> None:
    """List the API keys that have not been revoked."""
    keys = store.api_keys.list()
    show_table(keys, "id, client, user, roles, trusted, made=created_at", empty="there are no API keys")


@command(group=apikey)
def revoke(store: Store, id: str) -> None:
    """Revoke an API key, at once and in every worker.

    \b
    Example:  alcove apikey revoke 0123456789ab
    """
    store.api_keys.revoke(id)
    show({"revoked": id}, f"revoked {id}")


PEOPLE: list[click.Command] = [whoami, held, review, remove, wipe, receipt]
RULES: list[click.Command] = [policy, settings, apikey]
