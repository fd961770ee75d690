"""What is loaded when, and what is said where a package is missing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

import alcove

ROOT = Path(__file__).parents[2]
HEAVY = {
    "apsw", "cryptography", "httptools", "httpx", "jwt", "mcp", "numpy", "onnxruntime", "opentelemetry",
    "prometheus_client", "regorus", "starlette", "Stemmer", "tokenizers", "uvicorn", "uvloop", "yaml",
}  # fmt: skip
OWN_EXTRA = {
    "engine/postgres/database.py": "postgres",
    "engine/postgres/listener.py": "postgres",
    "engine/postgres/connection.py": "postgres",
    "engine/postgres/pool.py": "postgres",
    "engine/postgres/scrub.py": "postgres",
    "engine/qdrant/client.py": "qdrant",
    "engine/valkey.py": "valkey",
    "agents/document_reading.py": "knowledge",
    "agents/tokens.py": "tokens",
    "integrations/mcp.py": "mcp",
    "integrations/anthropic_memory.py": "anthropic",
    "integrations/openai_agents.py": "openai-agents",
    "integrations/pydantic_ai.py": "pydantic-ai",
    "integrations/langgraph.py": "langgraph",
    "integrations/signed_values.py": "langgraph",
    "integrations/langgraph_threads.py": "langgraph",
    "llm/anthropic.py": "anthropic",
    "search/embedders/onnx_folder.py": "onnx-extensions",
    "search/embedders/fastembed.py": "fastembed",
    "cli/mcp.py": "mcp",
    "server/mcp_exchanges.py": "mcp",
    "server/tracing.py": "tracing",
    "importers/langgraph.py": "postgres",
}
COMMAND = "from alcove.cli import main\nmain({!r}, prog_name='alcove')"


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False, capture_output=True, text=True, env={**os.environ, **variables},
    )  # fmt: skip


def loaded(code: str, **variables: str) -> set[str]:
    """Which packages a new interpreter has loaded when it has run this code."""
    telling = (
        "import atexit, sys\natexit.register(lambda: print('', *{m.split('.')[0] for m in sys.modules}))\n"
    )
    done = run(telling + code, **variables)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_alcove_loads_nothing_heavy() -> None:
    assert not loaded("import alcove; alcove.Namespace, alcove.NotFound, alcove.__version__") & HEAVY


@pytest.mark.parametrize("words", [["--help"], ["policy", "--help"], ["agents", "--help"], ["serve", "-h"]])
def test_a_help_page_loads_nothing_heavy(words: list[str]) -> None:
    assert not loaded(COMMAND.format(words)) & HEAVY


def test_completing_a_command_loads_nothing_heavy() -> None:
    asked = {"_ALCOVE_COMPLETE": "bash_complete", "COMP_WORDS": "alcove ag", "COMP_CWORD": "1"}
    assert not loaded(COMMAND.format([]), **asked) & HEAVY
    assert "plain,agents" in run(COMMAND.format([]), **asked).stdout


def test_a_store_that_is_not_searched_by_meaning_loads_no_vectors_and_no_extra(tmp_path: Path) -> None:
    used = f"""
from alcove import Alcove
with Alcove({str(tmp_path / "m.db")!r}) as store:
    store.put("user:noop", "tea", {{"cups": 2}})
    assert store.get("user:noop", "tea") and store.search("user:noop") and store.admin.stats()
"""
    assert loaded(used) & HEAVY <= {"apsw", "cryptography", "regorus"}


def test_a_store_at_a_url_needs_nothing_of_the_server() -> None:
    opened = "import alcove; alcove.connect('http://127.0.0.1:9').agents()"
    assert loaded(opened) & HEAVY <= {"apsw", "cryptography", "httpx", "regorus"}


def test_every_public_name_is_there_and_listed() -> None:
    for name in alcove.__all__:
        assert getattr(alcove, name) is not None
    assert set(alcove.__all__) <= set(dir(alcove))
    with pytest.raises(AttributeError, match="no attribute 'Alkove'"):
        alcove.Alkove  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    assert alcove.__version__ == version("alcove")
    done = subprocess.run(
        [sys.executable, "-m", "alcove", "--version"], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"alcove, version {alcove.__version__}\n"


@pytest.mark.parametrize(
    ("words", "missing", "said"),
    [
        (["serve"], "uvicorn", "alcove serve needs uvicorn: pip install '.[server]' in a clone of Alcove"),
        (["serve", "--engine", "postgresql:///no"], "psycopg", "needs psycopg: pip install '.[postgres]'"),
        (["serve", "--tracing"], "opentelemetry.sdk", "pip install '.[tracing]'"),
        (["token", "--user", "a", "--jwt-secret", "s"], "jwt", "needs jwt: pip install '.[server]'"),
        (["list", "--at", "http://127.0.0.1:9"], "httpx", "needs httpx: pip install '.[client]'"),
    ],
)  # fmt: skip
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    words: list[str], missing: str, said: str, tmp_path: Path
) -> None:
    done = run(
        f"import sys; sys.modules[{missing!r}] = None\n" + COMMAND.format(words),
        ALCOVE_AT=str(tmp_path / "m.db"),
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_package_is_declared_where_it_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}
    names = {
        extra: {_plain(re.split(r"[^\w.-]", each)[0]) for each in found} for extra, found in declared.items()
    }
    homes = packages_distributions()
    for file, package in _third_party():
        extras = {"", OWN_EXTRA.get(str(file), ""), file.parts[0]} & {*names}
        allowed = set().union(*(names[extra] for extra in extras))
        homes_of = {_plain(each) for each in homes.get(package, [package])}
        assert homes_of & allowed, f"{file} imports {package}"


def _third_party() -> Iterator[tuple[Path, str]]:
    source = ROOT / "src" / "alcove"
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for package in {each.split(".")[0] for each in named} - sys.stdlib_module_names - {"alcove"}:
                yield file.relative_to(source), package


def _plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_threads_that_are_the_first_to_need_vectors_do_not_see_half_of_numpy() -> None:
    code = """
import tempfile
from pathlib import Path
from alcove import Alcove
with Alcove(Path(tempfile.mkdtemp()) / "m.db") as memory:
    memory.put("user:noop", "k", {}, index={"text": "tea"})  # the indexer begins
    found = memory.search("user:noop", query="tea", mode="keyword")
    print(len(found))
"""
    for _ in range(3):
        done = run(code)
        assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
