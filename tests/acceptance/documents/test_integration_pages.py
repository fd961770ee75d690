"""What the pages on frameworks show works as it stands there, with a scripted model; so do the examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.llm_server import LLMServer, Play, calls, llm_server, text
from tests.support.program_runner import Interpreter, interpreter
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS, token

ROOT = Path(__file__).parents[3]
LOADED = (
    "agents", "alcove.client.asynchronous", "alcove.client.remote", "alcove.agents.specs.loading", "numpy",
    "alcove.search.hybrid_search", "onnxruntime", "tokenizers",
    "alcove.integrations.openai_agents", "openai.resources.chat.completions",
    "alcove.integrations.anthropic_memory", "anthropic.resources.beta.messages",
    "alcove.integrations.pydantic_ai", "pydantic_ai.models.anthropic", "agents.testing",
)  # fmt: skip
SPECS = "agents: [{name: assistant, memory: {conversation: {}, long_term: {}}}]"
CHAT = "import agents; agents.set_default_openai_api('chat_completions')\n"
"""What a page says for models that have no Responses API, as the scripted one has none."""
REMEMBERS = calls(("memory_remember", {"content": "Alice drinks green tea.", "type": "preference"}))
NOTES = calls(("memory", {"command": "create", "path": "/memories/tea.md", "file_text": "Green tea."}))
ANSWER = text("It is green tea.", always=True)


def programs(page: str) -> list[str]:
    shown = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", shown, re.DOTALL)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMServer]:
    with llm_server(tmp_path_factory.mktemp("llm")) as server:
        yield server


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", folder / "agents.yaml") as running:
        yield running


class Reader:
    """Somebody who pastes what a page shows, one program after the other, into files of one folder."""

    def __init__(self, folder: Path, python: Interpreter, llm: LLMServer, service: Service) -> None:
        self._folder, self._python, self._llm, self._service = folder, python, llm, service

    def pastes(self, program: str, *script: Play, before: str = "") -> str:
        """What a program prints."""
        self._llm.reset()
        self._llm.play(*script)
        ours = program.replace("http://127.0.0.1:8080", self._service.url).replace(
            "a token of yours", token()
        )
        known = {
            "OPENAI_BASE_URL": self._llm.url, "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "ANTHROPIC_BASE_URL": self._llm.root, "ANTHROPIC_API_KEY": "none",
        }  # fmt: skip
        return self._python.runs(before + ours, self._folder, known)

    def runs(self, example: str) -> str:
        """What an example prints to who has no key."""
        program = (ROOT / "examples" / example).read_text(encoding="utf-8")
        return self._python.runs(program, self._folder, {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": ""})


@pytest.fixture(scope="module")
def python() -> Iterator[Interpreter]:
    with interpreter(*LOADED) as running:
        yield running


@pytest.fixture
def reader(tmp_path: Path, python: Interpreter, llm: LLMServer, service: Service) -> Reader:
    return Reader(tmp_path, python, llm, service)


def test_openai(reader: Reader, llm: LLMServer) -> None:
    first, tools, url, alone = programs("openai")
    for _ in range(2):
        assert reader.pastes(first, ANSWER, before=CHAT) == "It is green tea.\n"
    assert [each["role"] for each in llm.requests[0].messages] == ["user", "assistant", "user"]
    said = reader.pastes(tools, REMEMBERS, ANSWER, before=CHAT)
    assert said.startswith("It is green tea.\n")
    assert "Alice drinks green tea." in said
    assert reader.pastes(url, REMEMBERS, ANSWER, before=CHAT) == "It is green tea.\n"
    assert "memory_recall" in str(llm.requests[0].body["tools"])
    assert "updated it" in reader.pastes(alone, REMEMBERS)
    assert llm.requests[0].messages[-1]["content"] == "Remember that I drink green tea."


def test_anthropic(reader: Reader, llm: LLMServer) -> None:
    first, awaited, files, url = programs("anthropic")
    assert reader.pastes(first, NOTES, ANSWER) == "It is green tea.\n"
    assert reader.pastes(files) == "/memories/tea.md Green tea.\n"
    look = calls(("memory", {"command": "view", "path": "/memories/tea.md"}))
    assert reader.pastes(awaited, look, ANSWER) == "It is green tea.\n"
    assert "1\\tGreen tea." in str(llm.requests[1].messages)
    assert reader.pastes(url, NOTES, ANSWER).endswith("10B\t/memories/tea.md\n")


def test_pydantic_ai(reader: Reader, llm: LLMServer) -> None:
    first, awaited, kept, url = programs("pydantic-ai")
    assert reader.pastes(first, REMEMBERS, ANSWER) == "It is green tea.\n"
    recalls = calls(("memory_recall", {"query": "tea"}))
    assert reader.pastes(awaited, recalls, ANSWER) == "It is green tea.\n"
    assert "Alice drinks green tea." in str(llm.requests[1].messages)
    assert "We fly to Oslo" in reader.pastes(kept, ANSWER)
    assert reader.pastes(url, REMEMBERS, ANSWER) == "It is green tea.\n"


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("openai_agents_session.py", "bob's first turn:     Hello. I know nothing of you yet."),
        ("anthropic_memory_tool.py", "bob's files:          none"),
        ("pydantic_ai_toolset.py", "bob recalls:          Nothing found."),
    ],
)
def test_each_example_runs_with_no_key_and_prints_what_it_says(
    reader: Reader, example: str, expected: str
) -> None:
    said = reader.runs(example)
    assert expected in said.splitlines()
    assert "green tea" in said
