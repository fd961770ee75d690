"""The files that Alcove is deployed with say what the program understands, and what they name is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from alcove.cli import main
from alcove.engine.postgres import database as postgres
from alcove.server.config import _OPTIONS, ALIASES
from alcove.vault import KeyFile

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
FILES = [ROOT / "Dockerfile", ROOT / "compose.yaml", ROOT / "deploy/alcove.service", *MANIFESTS]
VARIABLES = {"KEY", "STATE", *map(str.upper, _OPTIONS), *map(str.upper, ALIASES)}
CONNECTIONS = postgres.MAX_READERS + 3
"""Of a node's worker: its readers, its writer, the one that listens and the one that holds locks."""
STOPPING = 30 + 1
"""Seconds that requests under way have by default when a node is told to stop."""


def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def pod() -> Any:
    return yaml.safe_load((ROOT / "deploy/kubernetes/deployment.yaml").read_text())["spec"]["template"][
        "spec"
    ]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Secrets as an operator makes them."""
    subprocess.run(
        [ROOT / "deploy/make-secrets", tmp_path / "secrets", "db"], check=True, capture_output=True
    )
    return tmp_path / "secrets"


def effective(environment: dict[str, str], secrets: Path) -> dict[str, Any]:
    """What a service in that environment would go by, its secrets being in that folder."""
    mine = {name: None for name in os.environ if name.startswith("ALCOVE_")}
    there = {
        name: re.sub(r"^/run/secrets(/alcove)?", str(secrets), text) for name, text in environment.items()
    }
    done = CliRunner(env={**mine, **there}).invoke(main, ["config", "--json"])
    assert done.exit_code == 0, done.output
    return {row["name"]: row["value"] for row in json.loads(done.stdout)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_variable_of_ours_that_a_file_names_is_one(file: Path) -> None:
    named = set(re.findall(r"\bALCOVE_([A-Z_]+)", file.read_text()))
    assert {name for name in named if name.removesuffix("_FILE") not in VARIABLES} <= (
        {"PORT"} if file.name == "deployment.yaml" else set()
    )


@pytest.mark.parametrize("service", ["alcove", "node-1", "node-2", "node-3"])
def test_a_container_of_compose_has_its_secrets_from_files_and_authenticates(
    service: str, secrets: Path
) -> None:
    declared = compose()["services"][service]
    found = effective(declared["environment"], secrets)
    assert (found["auth"], found["jwt_secret"]) == ("jwt", "(set)")
    assert found["at"] == ("/data/memory.db" if service == "alcove" else "postgresql://db/alcove")
    assert set(declared["secrets"]) <= {each.name for each in secrets.iterdir()} & compose()["secrets"].keys()
    assert int(declared["stop_grace_period"].removesuffix("s")) > STOPPING
    assert len(KeyFile(secrets / "key").load()) == 1


def test_a_pod_has_its_secrets_from_files_and_as_long_to_stop_as_it_may_need(secrets: Path) -> None:
    (container,) = pod()["containers"]
    found = effective({each["name"]: each["value"] for each in container["env"]}, secrets)
    assert (found["auth"], found["jwt_secret"], found["at"]) == ("jwt", "(set)", "postgresql://db/alcove")
    (_, pause) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod()["terminationGracePeriodSeconds"] > STOPPING + int(pause)
    assert pod()["enableServiceLinks"] is False  # a service named alcove sets ALCOVE_PORT to no port
    example = yaml.safe_load((ROOT / "deploy/kubernetes/secret.example.yaml").read_text())
    assert set(example["stringData"]) < {each.name for each in secrets.iterdir()}


def test_postgresql_in_compose_comes_with_pgvector() -> None:
    assert compose()["services"]["postgres"]["image"].startswith("pgvector/pgvector:pg")


def test_postgresql_in_compose_takes_every_connection_of_its_nodes() -> None:
    services = compose()["services"]
    nodes = [name for name in services if name.startswith("node-")]
    (most,) = re.findall(r"max_connections=(\d+)", " ".join(services["postgres"]["command"]))
    assert int(most) > CONNECTIONS * (len(nodes) + 1)  # and of one more, while it takes another's place


def test_the_proxy_knows_every_node_of_compose() -> None:
    nodes = {name for name in compose()["services"] if name.startswith("node-")}
    assert set(re.findall(r"(\S+):8080", (ROOT / "deploy/Caddyfile").read_text())) == nodes
    assert set(compose()["services"]["proxy"]["depends_on"]) == nodes


def test_the_image_has_what_serving_over_postgresql_needs_and_no_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)", text, re.MULTILINE)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"server", "postgres"} <= set(extras.split(",")) <= declared.keys()
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["10001:10001"]
    assert pod()["securityContext"]["runAsUser"] == 10001


def test_secrets_that_are_there_stay_as_they_are(secrets: Path) -> None:
    before = {each.name: each.read_bytes() for each in secrets.iterdir()}
    subprocess.run([ROOT / "deploy/make-secrets", secrets], check=True, capture_output=True)
    assert {each.name: each.read_bytes() for each in secrets.iterdir()} == before
    assert secrets.stat().st_mode & 0o777 == 0o700
