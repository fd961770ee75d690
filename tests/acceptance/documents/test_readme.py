"""What the README shows is what happens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.service import serving

ROOT = Path(__file__).parents[3]


def test_the_readme_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code, output = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()  # type: ignore[union-attr]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == output


def test_the_curl_examples_of_the_readme_answer_what_they_should(tmp_path: Path) -> None:
    (examples,) = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    with serving(tmp_path) as service:
        commands = examples.replace("localhost:8080", f"127.0.0.1:{service.port}").replace("\\\n", " ")
        put, get, search, delete = (
            subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
            for line in commands.strip().splitlines()
        )
    assert json.loads(put)["revision"] == 1
    assert json.loads(get)["value"] == {"text": "mint tea", "cups": 3}
    assert [item["key"] for item in json.loads(search)["items"]] == ["tea"]
    assert delete == ""


def test_every_link_in_the_documents_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_the_documents_name_is_there() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for name in re.findall(r"`((?:tests|src|bench|examples|docs)/[\w/.*-]+)`", page.read_text()):
            assert list(ROOT.glob(name)), f"{page.name}: {name}"


def test_the_quick_start_runs(tmp_path: Path) -> None:
    script = ROOT / "examples" / "quickstart.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "bob searches hers: []" in done.stdout
