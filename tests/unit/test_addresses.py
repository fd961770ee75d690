"""Where a store is: what of an address may be shown, and which stores have keys and ledgers of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from alcove.core.addresses import state_path, without_password


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("postgresql://db.internal/alcove", "db.internal-alcove"),
        ("postgresql://me:secret@DB.internal:5432/alcove?sslmode=require", "db.internal-alcove"),
        ("postgresql://db.internal:5433/alcove", "db.internal-5433-alcove"),
        ("postgresql://one:5432,two:5433/alcove", "one,two-5433-alcove"),
        ("postgresql:///", "localhost-postgres"),
        ("postgresql://db/alcove?options=-csearch_path%3Dstore_17%2Cpublic", "db-alcove+store_17"),
        ("postgresql://db/alcove?options=-csearch_path%3Dstore-1", "db-alcove+store-1"),
        ("postgresql://db/alcove?options=-csearch_path%3D%22Odd+Name%22%2Cpublic", "db-alcove+Odd%20Name"),
        ("postgresql://db/alcove-b", "db-alcove-b"),
        ("postgresql://db/alcove?port=5433", "db-5433-alcove"),
        ("postgresql://db/?dbname=alcove", "db-alcove"),
        ("postgresql:///alcove?host=/run/one", "%2Frun%2Fone-alcove"),
        ("postgresql://db/alcove?options=-csearch_path=public", "db-alcove"),
    ],
)
def test_the_key_of_a_database_lies_apart_from_that_of_another(address: str, name: str) -> None:
    assert state_path(address, Path("state")) == Path("state") / name


def test_no_part_of_a_password_is_shown() -> None:
    shown = without_password("postgresql://me:sec@ret@db.internal/alcove?password=secret")
    assert shown == "postgresql://db.internal/alcove"
