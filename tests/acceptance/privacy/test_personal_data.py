"""One person's data by every road: what is held, their copy of it, a dry run, the wipe and its receipt."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from alcove import Alcove, NotFound, Store, connect
from tests.support.concurrent_workers import QUIET
from tests.support.service import Service


@pytest.fixture(params=["file", "url"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    """A store here, and one behind a server; the caller is an admin."""
    if request.param == "file":
        with Alcove(path, settings=QUIET, embedder=None) as memory:
            yield memory
    else:
        service: Service = request.getfixturevalue("service")
        with connect(service.url) as remote:
            yield remote


@pytest.fixture
def user(store: Store) -> str:
    """Somebody with a memory of two versions, one that has expired, and one in a pool."""
    name = f"ann/{uuid.uuid4().hex[:6]}"
    own = {"namespace": ["user", name], "written_by": {"user": name}}
    for line in (
        {**own, "key": "tea", "value": {"text": "green"}},
        {**own, "key": "tea", "value": {"text": "mint"}},
        {**own, "key": "tea", "value": {"text": "black"}, "namespace": ["org", name]},
        {**own, "key": "tea", "value": {"text": "Bob's"}, "namespace": ["org", name], "written_by": None},
        {**own, "key": "tea", "value": {"text": "white"}, "namespace": ["org", name]},
    ):
        assert store.import_memories([json.dumps(line).encode()]).imported == 1
    return name


def test_an_export_has_every_version_and_what_they_wrote_into_shared_rooms(
    store: Store, user: str, tmp_path: Path
) -> None:
    lines = [*store.admin.export(user)]
    assert [(str(each.namespace[0]), each.value, each.kind, each.current) for each in lines] == [
        ("user", {"text": "green"}, "add", False),
        ("user", {"text": "mint"}, "update", True),
        ("org", {"text": "black"}, "add", False),
        ("org", {"text": "white"}, "update", True),
    ]
    held = store.admin.held(user)
    assert held.versions + held.shared == len(lines)
    with Alcove(tmp_path / "elsewhere.db", settings=QUIET, embedder=None) as elsewhere:
        report = elsewhere.import_memories(map(msgspec.json.encode, lines))
        assert (report.imported, report.unchanged, report.failures) == (2, 2, 0)
        assert [each.value for each in elsewhere.export_memories()] == [lines[3].value, lines[1].value]


def test_a_dry_run_then_the_wipe_then_nobody(store: Store, user: str) -> None:
    dry = store.wipe(user, dry_run=True)
    assert store.admin.held(user).memories == 1
    receipt = store.wipe(user)
    assert structs.replace(receipt, wiped_at=None, scrubbed=False) == dry
    ((left),) = receipt.shared_left
    assert (left.namespace, left.memories, left.versions) == (("org", user), 1, 2)
    assert store.admin.held(user).shared_rooms == receipt.shared_left
    assert [each.value for each in store.admin.export(user)] == [{"text": "black"}, {"text": "white"}]
    assert store.wipe(user, shared="remove").shared_left == []
    for dry_run in (True, False):
        with pytest.raises(NotFound) as refused:
            store.wipe(user, dry_run=dry_run)
        assert refused.value.details["field"] == "user"


def test_a_receipt_is_recognised_as_it_was_given_and_no_other(store: Store, user: str) -> None:
    dry, receipt = store.wipe(user, dry_run=True), store.wipe(user, wait=False)
    assert store.admin.verify_receipt(receipt)
    assert store.admin.verify_receipt(structs.replace(receipt, scrubbed=True))
    assert store.admin.verify_receipt(json.loads(msgspec.json.encode(receipt)))
    for changed in (
        dry,
        structs.replace(receipt, user="somebody else"),
        structs.replace(receipt, shared_left=[]),
        structs.replace(receipt, removed={**receipt.removed, "memories": 9}),
    ):
        assert not store.admin.verify_receipt(changed)
    assert not store.admin.verify_receipt({})
