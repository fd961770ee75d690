"""Whatever is wrong in a call is refused by its name, in this process, over REST and by its client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from alcove import Alcove, InvalidRequest, MemoryKey, PayloadTooLarge, Store
from alcove.client.remote import Remote
from tests.support.concurrent_workers import QUIET
from tests.support.rules import GOOD, HOME, RULES, Rule
from tests.support.service import Service, assert_error

AT = "/v1/memories"
ROUTES = {
    # the method, the path, and what the place is called where it stands in the query
    "put": ("PUT", AT, None),
    "get": ("GET", AT, "ns"),
    "delete": ("DELETE", AT, "ns"),
    "touch": ("POST", f"{AT}/batch", None),
    "history": ("GET", f"{AT}/history", "ns"),
    "search": ("POST", f"{AT}/search", None),
    "namespaces": ("GET", f"{AT}/namespaces", "prefix"),
    "events": ("GET", f"{AT}/events", "ns"),
    "batch": ("POST", f"{AT}/batch", None),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Alcove(tmp_path_factory.mktemp("rules") / "memory.db", keys=MemoryKey(), settings=QUIET) as memory:
        yield memory.as_user("noop")


@pytest.fixture(scope="module")
def there(service: Service) -> Iterator[Store]:
    with Remote(service.url) as store:
        yield store


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_is_wrong_is_refused_by_its_name_in_this_process(rule: Rule, here: Alcove) -> None:
    error = _refused(rule, here)
    assert error.field == rule.field
    assert error.details["field"] == error.field
    assert str(error).startswith(f"{error.field}: expected ")
    assert here.events(HOME).events == []


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_is_wrong_is_refused_by_its_name_at_a_url(rule: Rule, there: Alcove) -> None:
    """By the client, or by the server and in its words; what is deep inside may be told by its argument."""
    field = _refused(rule, there).field.removeprefix("operations[0].")
    assert field in (rule.field, rule.rest, rule.argument)
    assert there.events(HOME).events == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.rest], ids=str)
def test_what_is_wrong_is_refused_by_its_name_over_rest(rule: Rule, service: Service) -> None:
    method, path, rest = _request(rule)
    answer = service.call(method, path, **rest)
    status, code = (413, "payload_too_large") if rule.too_large else (400, "invalid_request")
    error = assert_error(answer, status, code)
    assert error["details"]["field"] in (rule.field, rule.rest)
    assert error["details"]["field"] in error["error"]


def _refused(rule: Rule, store: Alcove) -> InvalidRequest:
    call: Callable[..., object] = getattr(store, rule.method)
    with pytest.raises(PayloadTooLarge if rule.too_large else InvalidRequest) as caught:
        call(**rule.given)
    return caught.value


def _request(rule: Rule) -> tuple[str, str, dict[str, Any]]:
    """The same call as a request: its method, its path, and the rest of it."""
    method, path, place = ROUTES[rule.method]
    given = rule.given
    headers = {"content-type": "application/json"}
    if "idempotency_key" in given:
        headers["idempotency-key"] = given.pop("idempotency_key")
    if place:
        first = next(iter(GOOD[rule.method]))
        return method, path, {"params": {place: given.pop(first), **given}}
    if rule.method == "touch":
        given = {"operations": [{"op": "touch", **given}]}
    return method, path, {"content": json.dumps(given).encode(), "headers": headers}


def test_the_calls_without_anything_wrong_are_not_refused(here: Alcove) -> None:
    for method in GOOD:
        if method not in ("put", "touch"):  # the others leave nothing, and need nothing
            getattr(here, method)(**GOOD[method])
    assert here.events(HOME).events == []
