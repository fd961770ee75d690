"""`alcove migrate`: a store from a file into PostgreSQL, and back."""

from __future__ import annotations

import click

from alcove.cli import output
from alcove.cli.output import count, show
from alcove.cli.store import command
from alcove.client import is_url


@command()
@click.option("--from", "source", required=True, metavar="STORE", help="A file, or postgresql://HOST/NAME.")
@click.option("--to", "target", required=True, metavar="STORE", help="The same: where there is no store yet.")
def migrate(source: str, target: str) -> int:
    """Copy a store into another database, verified.

    \b
    Everything in it, with its numbers and times; every row is read back. The store may be in use: what is
    written meanwhile is brought in further rounds. Where writers never rest it says how much is missing
    (exit code 1): stop them and run it again, which brings just what differs. So it does when it was killed.
    The key and the ledger of wipes are copied to where those of the target lie: beside a file, or, for a
    database, in the folder ALCOVE_STATE. The key comes last: a target without it is not whole.
    Examples:
      ALCOVE_STATE=/srv/alcove alcove migrate --from memory.db --to postgresql://db.internal/alcove
      ALCOVE_STATE=/srv/alcove alcove migrate --from postgresql://db.internal/alcove --to memory.db
    """
    for place in (source, target):
        if is_url(place):
            raise output.Refused(f"{place} is a server: name its file or its database")
    from alcove.upkeep.migration import migrate as migrated  # noqa: PLC0415  --help does without

    done = output.finished(migrated(source, target))
    rows = sum(done.rows.values())
    key = f"key: {done.key}" if done.key else "key: ALCOVE_KEY, the same for both"
    show(done._asdict(), f"{done.path}: {count(done.versions, 'version')}, {rows:,} rows in all, verified",
         f"{key}; ledger of wipes: {done.ledger or 'none yet'}; keep copies of both elsewhere")  # fmt: skip
    if done.changed:
        click.echo(f"alcove: {count(done.missed, 'version')} and other changes since are not in it: "
                   "stop who writes, and run it again", err=True)  # fmt: skip
    return 1 if done.changed else 0
