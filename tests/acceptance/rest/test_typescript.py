"""The OpenAPI document makes a client in TypeScript without a complaint, and that client works."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.service import Service

PACKAGES = ("openapi-typescript@7", "openapi-fetch@0", "typescript@5")
STRICT = [
    "--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler",
    "--lib", "es2022,dom",
]  # fmt: skip
PROGRAM = """
import createClient from "openapi-fetch";
import type { paths } from "./schema";

const client = createClient<paths>({ baseUrl: "URL" });
const namespace = ["user", "noop", "typescript"];
const put = await client.PUT("/v1/memories", {
  body: { namespace, key: "tea", value: { cups: 2 }, index: { text: "green tea" }, wait_for_index: true },
});
const found = await client.POST("/v1/memories/search", {
  body: { namespace_prefix: namespace, query: "a drink", filter: { cups: { gte: 2 } }, limit: 5 },
});
for (const item of found.data?.items ?? []) console.log(item.key, item.value.cups, item.score! > 0);
const agent = await client.POST("/v1/agents/{agent}/context", {
  params: { path: { agent: "u" } },
  body: { session_id: "s", message: "hello" },
});
console.log(put.data?.revision, agent.error?.code);
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a client generator in it."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node is not here")
    made = tmp_path_factory.mktemp("typescript")
    (made / "package.json").write_text('{"type": "module"}')
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES]
    done = subprocess.run(install, cwd=made, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"the packages of a client generator are not to be had: {done.stderr[-200:]}")
    return made


def test_a_client_is_generated_type_checks_and_works(service: Service, folder: Path) -> None:
    (folder / "openapi.json").write_text(service.client.get("/openapi.json").text, encoding="utf-8")
    optional = "--default-non-nullable=false"  # what has a default need not be said in a request
    made = run(folder, "npx", "openapi-typescript", "openapi.json", optional, "-o", "schema.d.ts")
    assert "warn" not in made.stdout.lower() + made.stderr.lower().replace("npm warn", "")
    (folder / "use.ts").write_text(PROGRAM.replace("URL", service.url), encoding="utf-8")
    run(folder, "npx", "tsc", *STRICT, "use.ts", "schema.d.ts")
    assert run(folder, "node", "use.js").stdout == "tea 2 true\n1 not_found\n"
