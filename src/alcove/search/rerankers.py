"""An optional second look at the best hits of a search, by a model that reads question and text together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from types import MappingProxyType

from alcove.core.errors import AlcoveError, InvalidRequest

Reranker = Callable[[str, Sequence[str]], Sequence[float]]
"""For a question and some texts a score for each text; the higher, the better it answers the question."""

RERANKED_HITS = 50
"""Hits that are looked at again, always all of them: so pages of one search fit together."""
MOST_CHARACTERS = 4000
"""Of each text: some 1000 tokens, more than most of these models read."""
MAX_ANSWER_BYTES = 1024 * 1024


class RerankerUnavailable(AlcoveError):
    """The reranker gives no usable scores now: down, slow, or answering garbage."""

    code = "service_unavailable"


def reranker_for(url: str | None, *, key: str | None = None) -> Reranker | None:
    """The reranker an operator named by its URL, if any; nothing is called before the first search."""
    return RemoteReranker(url, key=key) if url else None


class RemoteReranker:
    """A service at a URL, `https://HOST/v1/rerank#MODEL`, asked as Cohere, Jina, vLLM and others are."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 5.0) -> None:
        from alcove.search.remote_service import (  # noqa: PLC0415  HTTP, for who has a reranker
            RemoteService,
            address_and_model,
        )

        expected = "http(s)://HOST/v1/rerank#MODEL"
        self._url, self._model, options = address_and_model(url, "reranker", expected)
        if options:
            raise InvalidRequest("reranker", f"{expected}, and no option")
        self._service = RemoteService(
            self._url,
            RerankerUnavailable,
            key=key,
            timeout=timeout,
            most=MAX_ANSWER_BYTES,
            meaning=MappingProxyType({}),
        )

    def __call__(self, question: str, texts: Sequence[str]) -> list[float]:
        body = {"model": self._model, "query": question, "documents": [*texts], "top_n": len(texts)}
        answer = self._service.post(body)
        try:
            found = {each["index"]: float(each["relevance_score"]) for each in json.loads(answer)["results"]}
            return [found[n] for n in range(len(texts))]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            told = f"{self._url} answered what is not a score for each of {len(texts)} texts"
            raise RerankerUnavailable(told) from None


def rerank_scores(reranker: Reranker, question: str, texts: Sequence[str]) -> list[float]:
    """What a reranker says of texts, one finite number for each; `RerankerUnavailable` for anything else."""
    try:
        scores = [float(score) for score in reranker(question, [text[:MOST_CHARACTERS] for text in texts])]
    except RerankerUnavailable:
        raise
    except Exception as error:  # anybody's function
        raise RerankerUnavailable(f"the reranker failed: {type(error).__name__}: {error}") from error
    if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
        raise RerankerUnavailable(
            f"the reranker answered {len(scores)} scores for {len(texts)} texts, or no numbers"
        )
    return scores
