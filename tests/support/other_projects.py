"""Other projects' own stores, filled by their own packages, for `alcove import --from`."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

FILES = Path(__file__).parents[1] / "acceptance" / "integrations" / "files"
"""Files that the models of letta 0.16.8, graphiti-core 0.31.2 and zep-cloud 4.0.1 wrote."""


class Embedder:
    """Stands for a model that embeds: vectors of which nothing depends."""

    config = SimpleNamespace(embedding_dims=4)

    def embed(self, text: str, memory_action: object = None) -> list[float]:
        return [1.0, 0.0, 0.0, float(len(text))]

    def embed_batch(self, texts: list[str], memory_action: object = None) -> list[list[float]]:
        return [self.embed(each) for each in texts]


@contextmanager
def mem0_memory(folder: Path) -> Iterator[Any]:
    """A `mem0.Memory` with its files in a folder; it asks no model and tells nobody."""
    folder.mkdir(exist_ok=True)
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder / "mem0")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        from mem0 import Memory  # type: ignore[import-untyped]  # noqa: PLC0415  it reads these variables when it is loaded
        from mem0.utils.factory import EmbedderFactory, LlmFactory  # type: ignore[import-untyped]  # noqa: PLC0415

        vectors = {"path": str(folder / "vectors"), "embedding_model_dims": 4}
        config = {
            "vector_store": {"provider": "qdrant", "config": vectors},
            "history_db_path": str(folder / "history.db"),
        }
        with (
            patch.object(EmbedderFactory, "create", lambda *_, **__: Embedder()),
            patch.object(LlmFactory, "create", lambda *_, **__: None),
        ):
            memory = Memory.from_config(config)
        try:
            yield memory
        finally:
            memory.db.close()
            memory.vector_store.client.close()


def written(path: Path, document: object) -> Path:
    """A JSON file."""
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return path
