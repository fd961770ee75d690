"""Configuration: by flags, the environment and a file, in that order; and what is refused at the start."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from alcove.cli import main
from alcove.server.config import SECRETS
from tests.support.service import alcove, assert_error, environment, refused, serving

SECRET = "a secret that must never be printed by anything at all"

DENY_ALL = 'package memories.authz\n\ndefault decision := {"allow": false, "reason": "closed today"}\n'


def effective(*flags: object, env: Mapping[str, str] | None = None) -> dict[str, tuple[Any, str]]:
    """What `alcove config` says of each option: the value and where it came from.

    In this process: two hundred of their own would take minutes.
    """
    mine = {name: None for name in os.environ if name.startswith(("ALCOVE_", "MEMORY_SERVICE_"))}
    done = CliRunner(env={**mine, **(env or {})}).invoke(main, ["config", "--json", *map(str, flags)])
    assert done.exit_code == 0, done.output
    return {row["name"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}


def written(folder: Path, text: str) -> Path:
    path = folder / "alcove.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def closed(folder: Path) -> Path:
    """A policy folder like the built-in one, except that nobody may do anything."""
    import alcove.policy  # noqa: PLC0415  only its files are wanted

    built_in = Path(alcove.policy.__file__).parent
    made = folder / "policies"
    made.mkdir()
    for each in built_in.rglob("*.rego"):
        (made / each.name).write_text(each.read_text())
    (made / "authz.rego").write_text(DENY_ALL)
    return made


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, "port: 1003\nthreads: 3\nmax_depth: 4\nhost: localhost\n")
    env = {"ALCOVE_PORT": "1002", "ALCOVE_THREADS": "2"}
    found = effective("--config", file, "--port", 1001, env=env)
    assert found["port"] == (1001, "flag")
    assert found["threads"] == (2, "environment")
    assert found["max_depth"] == (4, "file")
    assert found["host"] == ("localhost", "file")
    assert found["workers"] == (1, "default")
    assert effective("--config", file)["port"] == (1003, "file")
    assert effective()["port"] == (8080, "default")


def test_a_variable_may_name_a_file_with_what_it_would_say(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("postgresql://alcove:hidden@db/alcove\n")
    (tmp_path / "port").write_text(" 1004\n")
    named = {"ALCOVE_ENGINE_FILE": str(tmp_path / "engine"), "ALCOVE_PORT_FILE": str(tmp_path / "port")}
    found = effective(env=named)
    assert found["at"] == ("postgresql://db/alcove", "environment")
    assert found["port"] == (1004, "environment")
    assert effective(env={**named, "ALCOVE_PORT": "1005"})["port"] == (1005, "environment")
    assert effective("--port", 1006, env=named)["port"] == (1006, "flag")


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_secret_whose_file_says_nothing_is_refused_by_the_variable_that_named_it(
    tmp_path: Path, content: bytes | None
) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    done = CliRunner(env={"ALCOVE_JWT_SECRET": None, "ALCOVE_JWT_SECRET_FILE": str(secret)}).invoke(
        main, ["token", "--user", "alice"]
    )
    assert done.exit_code == 2
    assert "ALCOVE_JWT_SECRET_FILE: expected a readable text file" in done.stderr


def test_a_service_whose_secrets_are_files_knows_its_callers_and_opens_its_store(tmp_path: Path) -> None:
    """And the commands of the same environment do, too."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    env = {
        "ALCOVE_AUTH": "jwt",
        "ALCOVE_JWT_SECRET_FILE": str(tmp_path / "secret"),
        "ALCOVE_KEY_FILE": str(tmp_path / "key"),
    }
    for _ in range(2):
        with serving(tmp_path, env=env) as service:
            token = alcove("token", "--user", "alice", env=env).stdout.strip()
            asked = service.client.get("/v1/me", headers={"authorization": f"Bearer {token}"})
            assert asked.json()["user"] == "alice"
            assert SECRET not in service.log
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "memory.db.key").exists()


def test_seconds_and_days_may_have_a_letter(tmp_path: Path) -> None:
    file = written(tmp_path, "sweep_interval: 15m\nretention_days: 36h\nbusy_timeout: 90s\n")
    found = effective("--config", file, "--audit-days", "7d", env={"ALCOVE_REQUEST_SECONDS": "1h"})
    wanted = {
        "sweep_interval": 900.0, "retention_days": 1.5, "busy_timeout": 90.0, "audit_days": 7.0,
        "request_seconds": 3600.0,
    }  # fmt: skip
    assert {name: found[name][0] for name in wanted} == wanted
    for flags in (["--rate-limit", "5m"], ["--request-seconds", "2d"], ["--sweep-interval", "1w"]):
        assert CliRunner().invoke(main, ["config", *flags]).exit_code == 2


def test_every_option_is_a_flag_a_variable_and_a_name_in_the_file(tmp_path: Path) -> None:
    other: dict[str, Any] = {
        "auth": "apikey",
        "llm_provider": "anthropic",
        "log_level": "error",
        "insecure": True,
        "tracing": True,
        "log_pseudonyms": True,
        "jwt_require_exp": False,
    }
    for name, (value, source) in effective().items():
        assert source == "default", name
        given = other.get(name, "text" if value is None or isinstance(value, str) else value + 1)
        shown = "(set)" if name in SECRETS else given
        flag = f"--{name.replace('_', '-')}"
        flags = [flag, given] if not isinstance(given, bool) else [flag if given else f"--no-{flag[2:]}"]
        assert effective(*flags)[name] == (shown, "flag")
        assert effective(env={f"ALCOVE_{name.upper()}": str(given)})[name] == (shown, "environment")
        for spelling in {name, name.replace("_", "-")}:
            file = written(tmp_path, json.dumps({spelling: given}))
            assert effective("--config", file)[name] == (shown, "file")


def test_the_options_of_the_issue_are_there() -> None:
    names = {"host", "port", "at", "auth", "jwt_secret", "jwks_url", "policy_dir", "agents", "workers"}
    assert names <= set(effective())


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, "port: 1003\n")
    assert effective(env={"ALCOVE_CONFIG": str(file)})["port"] == (1003, "file")


def test_a_secret_is_said_to_be_set_and_never_shown(tmp_path: Path) -> None:
    file = written(tmp_path, json.dumps({"jwt_secret": SECRET}))
    ways: list[tuple[list[object], dict[str, str]]] = [
        (["--jwt-secret", SECRET], {}),
        ([], {"ALCOVE_JWT_SECRET": SECRET}),
        (["--config", file], {}),
    ]
    for flags, env in ways:
        for form in (["config"], ["config", "--json"], ["config", "--help"], ["serve", "--help"]):
            done = alcove(*form, *flags, env=env)
            assert done.returncode == 0, done.stderr
            assert SECRET not in done.stdout + done.stderr
        assert effective(*flags, env=env)["jwt_secret"][0] not in (None, SECRET)


def test_a_wrong_secret_of_the_file_is_not_shown_either(tmp_path: Path) -> None:
    for text in (f"jwt_secret: [{SECRET}]\n", f"port: abc\njwt_secret: {SECRET}\n"):
        done = alcove("config", "--config", written(tmp_path, text))
        assert SECRET not in done.stdout + done.stderr


def test_a_person_can_read_the_plain_form() -> None:
    lines = alcove("config", "--port", 1001).stdout.splitlines()
    assert ["port", "1001", "flag"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot: 1\n", "prot"),
        ("server:\n  port: 1\n", "server.port"),
        ("memory.episodic.nothing: 1\n", "memory.episodic.nothing"),
        ("- port\n", "port"),
        ("just words\n", "just words"),
        ("port: [1\n", "alcove.yaml"),
        ("\x00", "alcove.yaml"),
        ("port: abc\n", "port"),
        ("auth: magic\n", "auth"),
        ("port: [1, 2]\n", "port"),
        ("insecure: maybe\n", "insecure"),
        ("1: 2\n", "1"),
        ("port: 5.5\n", "port"),
        ("threads: 2.0\n", "threads"),
        ("port: 2026-01-01\n", "port"),
        ("retention_days: 2026-01-01\n", "retention"),
        ("port: {}\nprot:\n", "prot"),
        ("max_depth: true\n", "depth"),
    ],
)
def test_what_is_wrong_in_the_file_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    file = written(tmp_path, text)
    done = alcove("config", "--config", file)
    assert done.returncode == 2, done.stdout + done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_without_a_value_in_the_file_is_the_default(tmp_path: Path) -> None:
    assert effective("--config", written(tmp_path, "port:\nthreads: 3\n"))["port"] == (8080, "default")


def test_a_service_does_not_start_with_a_file_that_is_wrong(tmp_path: Path) -> None:
    assert "prot" in refused(tmp_path, "--config", written(tmp_path, "prot: 1\n"))
    assert "threads" in refused(tmp_path, "--config", written(tmp_path, "threads: abc\n"))


def test_an_empty_file_and_an_absent_one(tmp_path: Path) -> None:
    assert effective("--config", written(tmp_path, "# nothing yet\n"))["port"] == (8080, "default")
    assert "absent.yaml" in refused(tmp_path, "--config", tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    "name",
    [
        "memory.episodic.namespace.max_depth",
        "memory.episodic.indexing.batch_size",
        "memory.episodic.indexing.interval",
    ],
)
def test_the_names_of_another_programs_settings_are_accepted(tmp_path: Path, name: str) -> None:
    """As one dotted name, and as a tree."""
    tree: Any = 7
    for part in reversed(name.split(".")):
        tree = {part: tree}
    for content in ({name: 7}, tree):
        found = effective("--config", written(tmp_path, json.dumps(content)))
        assert (7, "file") in found.values()


def test_the_alias_of_the_depth_bounds_what_is_served(tmp_path: Path) -> None:
    file = written(tmp_path, "memory:\n  episodic:\n    namespace:\n      max_depth: 3\n")
    with serving(tmp_path, "--config", file) as service:
        assert service.put(["user", "noop", "x"], "k", {}).status_code == 200
        assert_error(service.put(["user", "noop", "x", "y"], "k", {}), 400, "invalid_request")


def test_the_policy_folder_may_be_named_by_the_other_programs_variable(tmp_path: Path) -> None:
    policies = str(closed(tmp_path))
    env = {"MEMORY_SERVICE_POLICY_DIR": policies}
    assert effective(env=env)["policy_dir"] == (policies, "environment")
    both = {**env, "ALCOVE_POLICY_DIR": "ours"}
    assert effective(env=both)["policy_dir"] == ("ours", "environment")
    with serving(tmp_path, env=env) as service:
        denied = assert_error(service.put(["user", "noop"], "k", {}), 403, "permission_denied")
        assert denied["reason"] == "closed today"


def test_a_service_is_configured_by_the_environment_alone(tmp_path: Path) -> None:
    env = {"ALCOVE_AUTH": "jwt", "ALCOVE_JWT_SECRET": SECRET, "ALCOVE_LOG_LEVEL": "debug"}
    with serving(tmp_path, env=env) as service:
        assert_error(service.look(), 401, "unauthenticated")
        made = alcove("token", "--user", "alice", env=env).stdout.strip()
        assert service.look(made).status_code == 200
        assert SECRET not in service.log
        assert made not in service.log


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", ""])
def test_noop_is_refused_on_another_address(tmp_path: Path, host: str) -> None:
    said = refused(tmp_path, "--host", host)
    assert "noop" in said
    assert "--insecure" in said
    assert not (tmp_path / "memory.db").exists()


def test_noop_is_served_on_another_address_when_told_to(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0", "--insecure") as service:
        assert service.look(headers={"host": "memory.example.org"}).status_code == 200


def test_noop_on_loopback_serves_no_other_host_and_no_other_origin(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.look().status_code == 200
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}):
            assert_error(service.look(headers=headers), 403, "permission_denied")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--auth", "jwt"], "--jwt-secret"),
        (["--auth", "jwt", "--jwt-secret", ""], "jwt-secret"),
        (["--auth", "jwt", "--jwks-url", ""], "jwks-url"),
        (["--auth", "jwt", "--jwks-url", "ftp://keys"], "jwks"),
        (["--auth", "jwt", "--jwt-secret", SECRET, "--jwks-url", "http://x/keys"], "one of"),
        (["--auth", "magic"], "magic"),
        (["--port", "abc"], "abc"),
        (["--port", "99999"], "port"),
        (["--port", "-1"], "port"),
        (["--workers", "0"], "workers"),
        (["--workers", "two"], "two"),
        (["--threads", "0"], "threads"),
        (["--rate-limit", "-1"], "rate"),
        (["--rate-limit", "nan"], "rate"),
        (["--most-in-flight", "0"], "flight"),
        (["--max-body-bytes", "-1"], "body"),
        (["--request-seconds", "0"], "seconds"),
        (["--jwt-leeway", "-5"], "leeway"),
        (["--max-depth", "0"], "depth"),
        (["--log-level", "loud"], "loud"),
        (["--policy-dir", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--at", "/nowhere/at/all.db"], "/nowhere/at"),
        (["--prot", "1"], "--prot"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(tmp_path: Path, flags: list[str], named: str) -> None:
    said = refused(tmp_path, *flags)
    assert named in said
    assert SECRET not in said


def test_a_bad_value_in_the_environment_is_refused(tmp_path: Path) -> None:
    assert "abc" in refused(tmp_path, "--workers", "1", env={"ALCOVE_THREADS": "abc"})
    done = alcove("config", env={"ALCOVE_PORT": "abc"})
    assert done.returncode == 2
    assert "ALCOVE_PORT" not in environment(), "the test's own environment configures nothing"


def test_a_port_that_is_taken_is_said_so(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        said = refused(tmp_path, "--port", service.port, "--at", tmp_path / "other.db", code=3)
    assert "in use" in said
