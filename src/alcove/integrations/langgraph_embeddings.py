"""Embeddings of LangChain's as an embedder of a store, for who brings LangGraph's `index={"embed": …}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alcove.core.errors import requires_extra
from alcove.search.embedders import Matrix, unit

with requires_extra("alcove.integrations.langgraph", extra="langgraph"):
    from langgraph.store.base import ensure_embeddings


class LangChainEmbedder:
    """Places texts where LangChain's embeddings do, or a function from texts to vectors."""

    def __init__(self, index: Mapping[str, Any]) -> None:
        """`index`: LangGraph's `embed` and `dims`."""
        self._embeddings, self.dimensions = ensure_embeddings(index["embed"]), int(index.get("dims") or 0)
        self.name = f"langgraph:{_named(index['embed'])}:{self.dimensions}"

    def windows(self, text: str) -> list[str]:
        """A text whole, as LangGraph's stores embed it."""
        return [text]

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of length 1 for each text."""
        return _rows(self._embeddings.embed_documents([*texts]))

    def embed_query(self, text: str) -> Matrix:
        """The one row of a question."""
        return _rows([self._embeddings.embed_query(text)])


def _named(embed: Any) -> str:
    """What tells one model from another: what it is called, or where it is defined."""
    if isinstance(embed, str):
        return embed
    kind = embed if hasattr(embed, "__qualname__") else type(embed)
    models = (getattr(embed, name, None) for name in ("model", "model_name", "model_id", "deployment"))
    called = [each for each in models if isinstance(each, str)]
    return ".".join([kind.__module__, kind.__qualname__, *called[:1]])


def _rows(vectors: Sequence[Sequence[float]]) -> Matrix:
    import numpy as np  # noqa: PLC0415  with the first vector

    return unit(np.asarray(vectors, dtype=np.float32))
