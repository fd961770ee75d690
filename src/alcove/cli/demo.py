"""Shows what Alcove does in a minute, with no LLM: two stories, played by a model that follows a script.

The model calls the tools that `demo.yaml` says, and answers from what it was sent: if a line of the script
looks for something that is not there, it says that it does not know. Everything else is real: the store, the
rooms, the contexts, and what is read back.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct

from alcove.cli.chat import show_turn
from alcove.cli.command import command
from alcove.cli.output import escape
from alcove.core.clock import DAY, system_clock
from alcove.core.decoding import convert

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove
    from alcove.llm.model import ModelAnswer, ModelRequest

_SECONDS_PER_WORD = 0.03
_SUMMARY_SECONDS = 10.0
_MAX_TEXT = 100


class Line(Struct, frozen=True):
    """How the model answers messages that match a pattern."""

    hears: str
    """The pattern in the user's message."""
    calls: list[dict[str, Any]] = []
    """Tools that it calls first, each `{tool: arguments}`."""
    finds: str = ""
    """A pattern that it looks for in everything it was sent; its groups go into `says`."""
    says: str = ""
    otherwise: str = "I do not know."


class Step(Struct, frozen=True):
    """One event of a story: a narration, a message, the end of a conversation, days that pass, a wipe."""

    tells: str = ""
    user: str = "alice"
    agent: str = ""
    session: str = ""
    run: str = ""
    says: str = ""
    ends: bool = False
    days: int = 0
    wipes: str = ""


class Story(Struct, frozen=True):
    title: str
    lines: dict[str, list[Line]]
    """By the agent's name, or `any`."""
    steps: list[Step]


class ScriptedModel:
    """An LLM that follows the lines of a story."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.agent = ""

    def ask(self, request: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        from alcove.llm.model import AnswerBuilder, TokenUse  # noqa: PLC0415  not needed for --help

        message = next(each.content or "" for each in reversed(request.messages) if each.role == "user")
        lines = self._story.lines.get(self.agent, []) + self._story.lines.get("any", [])
        line = next((each for each in lines if re.search(each.hears, message)), Line(hears=""))
        answer, text = AnswerBuilder(request.meter), ""
        if line.calls and request.messages[-1].role != "tool":
            for index, (tool, arguments) in enumerate(item for call in line.calls for item in call.items()):
                answer.add_call(index, name=tool, arguments=msgspec.json.encode(arguments).decode())
        else:
            match = re.search(line.finds, "\n".join(each.content or "" for each in request.messages))
            text = line.says.format(*match.groups()) if match else line.otherwise
        for word in re.findall(r"\S+\s*", text):
            if sys.stdout.isatty():
                time.sleep(_SECONDS_PER_WORD)
            yield answer.add_text(word)
        answer.finish, request.meter.use = "stop", TokenUse.of(0, 0)
        yield answer.build()

    def close(self) -> None:
        """Does nothing; a model must have it."""


@command()
@click.argument("story", type=click.Choice(["adventure", "two-weeks", "both"]), default="both")
def demo(story: str) -> None:
    """Play two stories with a scripted model.

    \b
    They show who remembers what. Needs no LLM and no internet, and leaves nothing behind.
    Example:  alcove demo adventure
    """
    import yaml  # noqa: PLC0415  few commands need it

    script = yaml.safe_load((files("alcove.cli") / "demo.yaml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        specs = Path(folder) / "agents.yaml"
        specs.write_text(yaml.safe_dump(script["specs"]), encoding="utf-8")
        for name, each in convert(script["stories"], dict[str, Story]).items():
            if story in (name, "both"):
                Stage(each, Path(folder) / f"{name}.db", specs).play()
    click.echo("That was a scripted model on a real store. To use a model of your own: alcove chat --help")


class Stage:
    """Plays one story on a new store, and shows every memory as it is written."""

    def __init__(self, story: Story, path: Path, specs: Path) -> None:
        self._story, self._path, self._specs = story, path, specs
        self._model = ScriptedModel(story)
        self._elapsed = 0

    def play(self) -> None:
        from alcove.client.embedded import Alcove  # noqa: PLC0415  not needed for --help

        click.secho(f"\n{self._story.title}\n", bold=True, fg="cyan")
        with Alcove(self._path, clock=lambda: system_clock() + self._elapsed) as store:
            cursor = None
            for step in self._story.steps:
                self._play_step(store, step)
                page = store.events((), after_cursor=cursor, limit=200)
                for event in page.events:
                    text = _describe(event.value or {})
                    if event.kind in ("add", "update") and text:
                        text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
                        click.secho(f"  + {escape(f'{event.namespace} / {event.key}: {text}')}", fg="green")
                click.echo()
                cursor = page.after_cursor

    def _play_step(self, store: Alcove, step: Step) -> None:
        agents = store.agents(self._specs, llm=self._model).as_user(step.user)
        self._elapsed += step.days * DAY
        if step.tells:
            click.secho(f"— {step.tells.strip()}\n", italic=True)
        if step.wipes:
            receipt = store.wipe(step.wipes)
            removed = [f"{number} {name}" for name, number in receipt.removed.items() if number]
            removed += ["the key that decrypts them"] if receipt.key_destroyed else []
            click.secho(f"  - wiped {step.wipes}: {', '.join(removed)}", fg="red")
        if step.says:
            self._model.agent = step.agent
            click.echo(click.style(f"{step.user}: ", bold=True) + step.says)
            click.secho(f"{step.agent}:", bold=True)
            runs = {"workflow": step.run} if step.run else {}
            session = step.session or "table"
            show_turn(agents.chat_stream(step.agent, session, step.says, instances=runs))
        if step.ends:
            agents.end_session(step.agent, step.session)
            deadline = time.monotonic() + _SUMMARY_SECONDS
            while agents.summary(step.agent).pending and time.monotonic() < deadline:
                time.sleep(0.02)


def _describe(value: Mapping[str, Any]) -> str:
    """The text of a memory; empty for Alcove's own records."""
    texts = [point["text"] for point in value.get("points", ())]
    if prose := value.get("prose"):
        texts = [f"{prose['text']} (in the model's words)"]
    texts += [each for name in ("content", "value") if isinstance(each := value.get(name), str)]
    return f"{value['role']} said {texts[0]!r}" if texts and "role" in value else " · ".join(texts)
