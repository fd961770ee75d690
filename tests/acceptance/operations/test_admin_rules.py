"""Policies, settings and keys put over REST: in force at once, in every worker, and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.service import Service, assert_error, serving
from tests.support.worker_connections import one_client_each

AT = "/v1/admin"
OWN = ["user", "noop"]
CLOSED = 'package memories.authz\n\ndefault decision := {"allow": false, "reason": "closed today"}\n'
MARKED = 'package memories.attributes\n\nattributes := {"namespace": "user", "sub": "noop", "mark": 1}\n'
BROKEN = "package memories.authz\n\ndecision := {\n"
QUARREL = """package memories.authz

decision := {"allow": true}

decision := {"allow": false} if input.key == "quarrel"
"""
SETTINGS = {
    "max_depth": 3,
    "max_value_bytes": 200,
    "max_index_fields": 1,
    "max_index_bytes": 4,
    "max_batch": 2,
    "retention_days": 7.5,
    "retention_max_age": {"team": 30.0},
    "audit_days": 20.0,
}
QUESTION = {
    "operation": "read",
    "namespace": ["user", "alice"],
    "key": "k",
    "context": {"user_id": "alice", "client_id": "", "jwt_claims": {}, "agent": None, "grants": []},
}


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("pair"), "--workers", 2) as service:
        yield service


@pytest.fixture
def pair(two_workers: Service) -> Iterator[Service]:
    """A service of two workers, which has the policies and settings it started with back afterwards."""
    yield two_workers
    done(two_workers.client.put(f"{AT}/policies", json={}))
    done(two_workers.client.put(f"{AT}/settings", json=dict.fromkeys(SETTINGS)))


def put(client: httpx.Client, key: str = "k", **more: Any) -> httpx.Response:
    return client.put("/v1/memories", json={"namespace": OWN, "key": key, "value": {}, **more})


def done(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_policy_decides_at_once_in_both_workers(pair: Service) -> None:
    with one_client_each(pair) as clients:
        for teller, other in (clients, clients[::-1]):
            for client in clients:
                done(put(client))
            told = done(teller.put(f"{AT}/policies", json={"authz": CLOSED}))
            assert (told["authz"], told["stored"]) == (CLOSED, ["authz"])
            for client in (other, teller):
                denied = assert_error(put(client), 403, "permission_denied")
                assert denied["reason"] == "closed today"
                assert done(client.get(f"{AT}/policies")) == told
            back = done(other.put(f"{AT}/policies", json={"authz": None}))
            assert back["stored"] == []
            assert back["version"] > told["version"]
            done(put(teller))


def test_a_broken_policy_is_refused_with_its_line_and_the_old_one_stays(pair: Service) -> None:
    with one_client_each(pair) as clients:
        before = done(clients[0].put(f"{AT}/policies", json={"attributes": MARKED}))
        for client in clients:
            answer = client.put(f"{AT}/policies", json={"attributes": MARKED, "authz": BROKEN})
            error = assert_error(answer, 400, "invalid_request")["error"]
            assert "authz.rego" in error
            assert ":4:" in error or "line 4" in error or ":3:" in error, error
        for client in clients:
            assert done(client.get(f"{AT}/policies")) == before
            assert done(put(client))["attributes"]["mark"] == 1
        for wrong, field in (({"authz": 1}, "authz"), ({"autz": ""}, "autz"), ([], "body")):
            answer = clients[0].put(f"{AT}/policies", json=wrong)
            assert assert_error(answer, 400, "invalid_request")["details"]["field"] == field
        assert done(clients[1].get(f"{AT}/policies")) == before


def test_a_policy_that_fails_while_it_decides_is_an_error_of_ours_without_its_text(tmp_path: Path) -> None:
    """It decides for everybody but for one key, for which two rules contradict each other."""
    with serving(tmp_path) as service:
        done(service.client.put(f"{AT}/policies", json={"authz": QUARREL}))
        done(put(service.client))
        error = assert_error(put(service.client, "quarrel"), 500, "internal_error")
        for word in ("quarrel", "authz", "decision", "rego", "input."):
            assert word not in str(error)
        assert "authz.rego" in service.log
        done(put(service.client))


def test_put_policies_survive_a_restart_and_win_over_the_folder(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        done(service.client.put(f"{AT}/policies", json={"attributes": MARKED}))
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "attributes.rego").write_text('package memories.attributes\n\nattributes := {"mark": 2}\n')
    with serving(tmp_path, "--policy-dir", folder) as service:
        assert done(put(service.client))["attributes"]["mark"] == 1
        done(service.client.put(f"{AT}/policies", json={}))
        assert done(put(service.client))["attributes"]["mark"] == 2


def test_a_policy_test_asks_the_given_texts_or_the_active_ones(pair: Service) -> None:
    with one_client_each(pair) as clients:
        test = f"{AT}/policies/test"
        active = done(clients[0].post(test, json={"input": QUESTION}))
        assert active["decision"]["allow"] is True
        given = done(clients[0].post(test, json={"input": QUESTION, "authz": CLOSED}))
        assert given["decision"] == {"allow": False, "reason": "closed today"}
        done(put(clients[0]))
        done(clients[0].put(f"{AT}/policies", json={"authz": CLOSED}))
        for client in clients:
            assert done(client.post(test, json={"input": QUESTION})) == given
            assert_error(client.post(test, json={"input": QUESTION, "authz": BROKEN}), 400, "invalid_request")
            answer = client.post(test, json={"authz": CLOSED})
            assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "input"
            assert done(client.post(test, json={"input": {}}))["attributes"] in (None, {})


def test_settings_hold_in_both_workers_and_null_takes_them_back(pair: Service) -> None:
    with one_client_each(pair) as clients:
        before = done(clients[0].get(f"{AT}/settings"))
        told = done(clients[0].put(f"{AT}/settings", json=SETTINGS))
        assert told == {**before, **SETTINGS}
        batch = {"operations": [{"op": "get", "namespace": OWN, "key": "k"}] * 3}
        for client in (clients[1], clients[0]):
            assert done(client.get(f"{AT}/settings")) == told
            assert_error(put(client, namespace=[*OWN, "a", "b"]), 400, "invalid_request")
            assert_error(put(client, value={"a": "x" * 300}), 413, "payload_too_large")
            assert_error(put(client, index={"a": "1", "b": "2"}), 400, "invalid_request")
            assert_error(put(client, index={"a": "12345"}), 400, "invalid_request")
            assert_error(client.post("/v1/memories/batch", json=batch), 400, "invalid_request")
        changed = done(clients[1].put(f"{AT}/settings", json={"max_depth": None}))
        assert changed == {**told, "max_depth": before["max_depth"]}
        done(put(clients[0], namespace=[*OWN, "a", "b"]))
        assert done(clients[0].put(f"{AT}/settings", json=dict.fromkeys(SETTINGS))) == before
        done(put(clients[1], value={"a": "x" * 300}))


def test_settings_survive_a_restart_and_win_over_the_command_line(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        done(service.client.put(f"{AT}/settings", json={"max_depth": 2}))
    with serving(tmp_path, "--max-depth", 4, "--workers", 2) as service:
        with one_client_each(service) as clients:
            for client in clients:
                assert_error(put(client, namespace=[*OWN, "a"]), 400, "invalid_request")
        assert done(service.client.put(f"{AT}/settings", json={"max_depth": None}))["max_depth"] == 4


def test_an_import_is_taken_however_few_operations_a_batch_may_have(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        done(service.client.put(f"{AT}/settings", json={"max_batch": 2}))
        lines = "".join(
            f'{{"namespace": ["user", "noop"], "key": "k{n}", "value": {{}}}}\n' for n in range(5)
        )
        headers = {"content-type": "application/x-ndjson"}
        answer = service.call("POST", "/v1/memories/import", content=lines, headers=headers)
        assert done(answer) == {"imported": 5, "unchanged": 0, "failed": [], "failures": 0}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_depth": 0}, "max_depth"),
        ({"max_depth": "3"}, "max_depth"),
        ({"max_batch": 1.5}, "max_batch"),
        ({"max_value_bytes": True}, "max_value_bytes"),
        ({"retention_days": -1}, "retention_days"),
        ({"retention_days": 0}, "retention_days"),
        ({"retention_max_age": {"team": 0}}, "retention_max_age"),
        ({"retention_max_age": {"": 1}}, "retention_max_age"),
        ({"retention_max_age": 7}, "retention_max_age"),
        ({"audit_days": []}, "audit_days"),
        ({"sweep_interval": 1}, "sweep_interval"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_setting_that_is_wrong_is_named_and_none_is_changed(
    client: httpx.Client, wrong: dict[str, Any], field: str
) -> None:
    before = done(client.get(f"{AT}/settings"))
    answer = client.put(f"{AT}/settings", json={"max_index_fields": 7, **wrong})
    assert field in assert_error(answer, 400, "invalid_request")["details"]["field"]
    assert done(client.get(f"{AT}/settings")) == before


def test_keys_are_rotated_under_both_workers(pair: Service) -> None:
    with one_client_each(pair) as clients:
        done(put(clients[0]))
        before = done(clients[1].get(f"{AT}/keys"))
        rotated = done(clients[0].post(f"{AT}/keys/rotate"))
        assert rotated["rotated"] >= 1
        assert rotated["active"] != before["active"]
        for client in clients:
            now = done(client.get(f"{AT}/keys"))
            assert now["active"] == rotated["active"]
            assert [key["data_keys"] for key in now["keys"] if not key["active"]] in ([], [0])
            done(client.get("/v1/memories", params={"ns": OWN, "key": "k"}))
            done(put(client, namespace=[*OWN, "more"]))


def test_figures_and_the_doctor_say_what_there_is(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        empty = done(service.call("GET", f"{AT}/stats"))
        assert (empty["memories"], empty["roots"]) == (0, [])
        for n in range(3):
            done(put(service.client, f"k{n % 2}"))
        stats = done(service.call("GET", f"{AT}/stats"))
        (root,) = stats["roots"]
        assert (root["root"], root["memories"], root["versions"]) == ("user", 2, 3)
        assert root["bytes"] == stats["bytes"] > 0
        doctor = done(service.call("GET", f"{AT}/doctor"))
        assert doctor["well"] is True
        assert any(each["compared"] for each in doctor["examinations"])


def test_an_api_key_made_over_rest_works_until_it_is_revoked(tmp_path: Path) -> None:
    at = f"{AT}/apikeys"
    with serving(tmp_path) as service:
        body = {"client": "ops", "user": "root", "roles": ["admin"]}
        root = done(service.client.post(at, json=body))["key"]
    with serving(tmp_path, "--auth", "apikey", "--workers", 2) as service:
        assert_error(service.call("GET", at), 401, "unauthenticated")
        key = done(service.call("POST", at, root, json={"client": "phone", "user": "alice"}))["key"]
        assert service.put(["user", "alice"], "k", {}, key).status_code == 200
        listed = service.call("GET", at, root)
        (found,) = [each for each in done(listed)["keys"] if each["user"] == "alice"]
        assert (found["client"], found["roles"], found["trusted"]) == ("phone", [], False)
        assert key.split("_", 2)[2] not in listed.text
        assert_error(service.call("DELETE", f"{at}/{found['id']}", key), 403, "permission_denied")
        assert service.call("DELETE", f"{at}/{found['id']}", root).status_code == 204
        with one_client_each(service) as clients:
            for client in clients:
                answer = client.get("/v1/memories/namespaces", headers={"x-api-key": key})
                assert_error(answer, 401, "unauthenticated")
        assert_error(service.call("DELETE", f"{at}/{found['id']}", root), 404, "not_found")
        for wrong, field in (
            ({}, "client"),
            ({"client": ""}, "client"),
            ({"client": "c"}, "user"),
            ({"client": "c", "user": "u", "roles": ["a b"]}, "roles[0]"),
            ({"client": "c", "user": "u", "rolls": []}, "rolls"),
        ):
            answer = service.call("POST", at, root, json=wrong)
            assert assert_error(answer, 400, "invalid_request")["details"]["field"] == field
