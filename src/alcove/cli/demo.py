"""What Alcove does, in a minute and with no LLM: two stories, played by a model that follows a script.

The model knows nothing. It calls the tools that `demo.yaml` says, and answers from what it was sent: where a
line of the script looks for something that is not there, it says that it does not know. All the rest is real:
the store, the rooms, the contexts, and what is read back.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct

from alcove.cli.chat import show_turn
from alcove.cli.output import plain
from alcove.cli.store import command
from alcove.core.clock import DAY, system_clock
from alcove.core.decoding import convert

if TYPE_CHECKING:
    from alcove.client.embedded import Alcove
    from alcove.llm.records import ModelAnswer, ModelRequest

_SECONDS_A_WORD = 0.03
_SHOWN = 100


class Line(Struct, frozen=True):
    """What the model does when it hears something."""

    hears: str
    """A pattern in the user's message."""
    calls: list[dict[str, Any]] = []
    """Tools that it calls first, each `{tool: arguments}`."""
    finds: str = ""
    """A pattern that it looks for in all that it was sent; its groups go into `says`."""
    says: str = ""
    otherwise: str = "I do not know."


class Step(Struct, frozen=True):
    """Something that happens: it is told, somebody says something, a conversation ends, days pass."""

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


class Script:
    """A model that follows the lines of a story."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.agent = ""

    def ask(self, request: ModelRequest, seconds: float) -> Iterator[str | ModelAnswer]:
        from alcove.llm.records import AnswerBuilder, TokenUse  # noqa: PLC0415  --help does without

        last = max(n for n, each in enumerate(request.messages) if each.role == "user")
        heard = request.messages[last].content or ""
        lines = self._story.lines.get(self.agent, []) + self._story.lines.get("any", [])
        line = next((each for each in lines if re.search(each.hears, heard)), Line(hears=""))
        answer, words = AnswerBuilder(request.meter), ""
        if line.calls and request.messages[-1].role != "tool":
            for place, each in enumerate(line.calls):
                for tool, arguments in each.items():
                    answer.add_call(place, name=tool, arguments=msgspec.json.encode(arguments).decode())
        else:
            found = re.search(line.finds, "\n".join(each.content or "" for each in request.messages))
            words = line.says.format(*found.groups()) if found else line.otherwise
        for word in re.findall(r"\S+\s*", words):
            if sys.stdout.isatty():
                time.sleep(_SECONDS_A_WORD)
            yield answer.add_text(word)
        answer.finish, request.meter.use = "stop", TokenUse.of(0, 0)
        yield answer.build()

    def close(self) -> None:
        """There is nothing to close."""


@command()
@click.argument("story", type=click.Choice(["adventure", "two-weeks", "both"]), default="both")
def demo(story: str) -> None:
    """Play two stories with a scripted model, to see what is remembered, where, and by whom.

    \b
    No LLM and no internet are needed, and nothing is left behind.
    Example:  alcove demo adventure
    """
    import yaml  # noqa: PLC0415  few commands need it

    found = yaml.safe_load((files("alcove.cli") / "demo.yaml").read_text(encoding="utf-8"))
    stories = convert(found["stories"], dict[str, Story])
    with tempfile.TemporaryDirectory() as folder:
        specs = Path(folder) / "agents.yaml"
        specs.write_text(yaml.safe_dump(found["specs"]), encoding="utf-8")
        for name, each in stories.items():
            if story in (name, "both"):
                Stage(each, Path(folder) / f"{name}.db", specs).play()
    click.echo("That was a scripted model on a real store. With one of your own: alcove chat --help")


class Stage:
    """Plays one story on a new store, and shows every memory as it is written."""

    def __init__(self, story: Story, at: Path, specs: Path) -> None:
        self._story, self._at, self._specs = story, at, specs
        self._script = Script(story)
        self._passed = 0

    def play(self) -> None:
        from alcove.client.embedded import Alcove  # noqa: PLC0415  --help does without

        click.secho(f"\n{self._story.title}\n", bold=True, fg="cyan")
        with Alcove(self._at, clock=lambda: system_clock() + self._passed) as store:
            cursor = None
            for step in self._story.steps:
                self._step(store, step)
                cursor = self._show_written(store, cursor)

    def _step(self, store: Alcove, step: Step) -> None:
        agents = store.agents(self._specs, llm=self._script).as_user(step.user)
        self._passed += step.days * DAY
        if step.tells:
            click.secho(f"— {step.tells.strip()}\n", italic=True)
        if step.wipes:
            receipt = store.wipe(step.wipes)
            gone = [f"{number} {what}" for what, number in receipt.removed.items() if number]
            gone += ["the key that opened them"] if receipt.key_destroyed else []
            click.secho(f"  - wiped {step.wipes}: {', '.join(gone)}", fg="red")
        if step.says:
            self._script.agent = step.agent
            click.echo(click.style(f"{step.user}: ", bold=True) + step.says)
            click.secho(f"{step.agent}:", bold=True)
            runs = {"workflow": step.run} if step.run else {}
            session = step.session or "table"
            show_turn(agents.chat_stream(step.agent, session, step.says, instances=runs))
        if step.ends:
            agents.end_session(step.agent, step.session)
            with suppress(TimeoutError):
                _until(lambda: not agents.summary(step.agent).pending)

    def _show_written(self, store: Alcove, cursor: str | None) -> str:
        """Shows what was written since a cursor; gives the next."""
        page = store.events((), after_cursor=cursor, limit=200)
        for event in page.events:
            text = _told(event.value or {})
            if event.kind in ("add", "update") and text:
                shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
                click.secho(f"  + {plain(f'{event.namespace} / {event.key}: {shown}')}", fg="green")
        click.echo()
        return page.after_cursor


def _told(value: Mapping[str, Any]) -> str:
    """What a memory says, in words; nothing of what Alcove notes for itself."""
    said = [point["text"] for point in value.get("points", ())]
    if prose := value.get("prose"):
        said = [f"{prose['text']} (in the model's words)"]
    said += [each for name in ("content", "value") if isinstance(each := value.get(name), str)]
    return f"{value['role']} said {said[0]!r}" if said and "role" in value else " · ".join(said)


def _until(holds: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)
