"""What docs/chat.md shows works as it stands there, with a scripted model in place of yours."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.llm_server import LLMServer, calls, llm_server, text
from tests.support.service import COMMAND, Service, environment, serving

PAGE = (Path(__file__).parents[3] / "docs" / "chat.md").read_text(encoding="utf-8")
SPECS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
PROGRAMS = re.findall(r"\*\*([^*]+)\*\*[^`]*(?:`[^`]+`[^`]*)*?```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMServer]:
    with llm_server(tmp_path_factory.mktemp("llm")) as server:
        yield server


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, llm: LLMServer) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("chat-page")
    (folder / "agents.yaml").write_text(SPECS)
    with serving(folder, "--agents", folder / "agents.yaml", "--llm-url", llm.url) as running:
        yield running


def here(shown: str, llm: LLMServer, service: Service) -> str:
    """An example with the addresses that a test has."""
    for there, ours in (
        ("http://127.0.0.1:11434/v1", llm.url),
        ("http://127.0.0.1:8080", service.url),
        ("localhost:8080", service.url),
    ):
        shown = shown.replace(there, ours)
    return shown


@pytest.mark.parametrize("title", [title for title, _ in PROGRAMS])
def test_each_program_says_something_and_hears_the_answer(
    title: str, tmp_path: Path, llm: LLMServer, service: Service
) -> None:
    (tmp_path / "agents.yaml").write_text(SPECS)
    llm.reset()
    llm.play(text("It is green tea.", pieces=3, always=True))
    done = subprocess.run(
        [sys.executable, "-c", here(dict(PROGRAMS)[title], llm, service)], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "It is green tea." in done.stdout
    assert llm.requests


def test_there_is_a_program_for_the_library_awaited_openai_and_a_url() -> None:
    assert len(PROGRAMS) == 4


def test_the_requests_and_commands_of_the_page_answer(
    tmp_path: Path, llm: LLMServer, service: Service
) -> None:
    (tmp_path / "agents.yaml").write_text(SPECS)
    llm.reset()
    llm.play(
        calls(("remember", {"key": "tea", "content": "green"})), text("Hello you.", pieces=2, always=True)
    )
    curls = [line for line in COMMANDS if line.startswith("curl")]
    said = [
        subprocess.run(
            ["bash", "-c", here(line, llm, service)], capture_output=True, text=True, check=True
        ).stdout
        for line in curls
    ]
    assert len(said) == 3
    assert '"text":"Hello you."' in said[0]
    assert 'data: {"text":"Hello"}' in said[1]
    assert '"contributions":[{"agent":"researcher","text":"Hello you."' in said[2]
    (chat,) = (line for line in COMMANDS if line.startswith("alcove chat"))
    words = here(chat, llm, service).split()[1:]
    done = subprocess.run([*COMMAND, *words], cwd=tmp_path, env=environment(), input="Hello\n/memory\n",
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.startswith("Hello you.\nprivate (agent:researcher:u:alice)")
