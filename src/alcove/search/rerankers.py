"""Reranks the best hits of a search with a model that reads the query and a text together; optional."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from alcove.core.errors import AlcoveError, InvalidRequest

Reranker = Callable[[str, Sequence[str]], Sequence[float]]
"""Takes a query and texts, and returns a score for each text: the higher, the better it answers the query."""

RERANKED_HITS = 50
"""Hits that are reranked, for every page of a search, so that its pages fit together."""
MAX_CHARACTERS = 4000
"""Characters of each text: about 1000 tokens, more than most of these models read."""
MAX_ANSWER_BYTES = 1024 * 1024


class RerankerUnavailable(AlcoveError):
    """The reranker returns no usable scores now: it is down, slow, or answers garbage."""

    code = "service_unavailable"


def reranker_for(url: str | None, *, key: str | None = None) -> Reranker | None:
    """The reranker at a URL, if the operator chose one; nothing is called before the first search."""
    return RemoteReranker(url, key=key) if url else None


class RemoteReranker:
    """A service at `https://HOST/v1/rerank#MODEL` with the API of Cohere, Jina, vLLM and others."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 5.0) -> None:
        from alcove.search.remote_service import (  # noqa: PLC0415  most stores need no HTTP
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
            max_bytes=MAX_ANSWER_BYTES,
        )

    def __call__(self, question: str, texts: Sequence[str]) -> list[float]:
        body = {"model": self._model, "query": question, "documents": [*texts], "top_n": len(texts)}
        answer = self._service.post(body)
        try:
            results = json.loads(answer)["results"]
            scores = {each["index"]: float(each["relevance_score"]) for each in results}
            return [scores[n] for n in range(len(texts))]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            message = f"{self._url} did not answer a score for each of {len(texts)} texts"
            raise RerankerUnavailable(message) from None


def rerank_scores(reranker: Reranker, question: str, texts: Sequence[str]) -> list[float]:
    """The finite scores of a reranker, one for each text; raises `RerankerUnavailable` for anything else."""
    try:
        scores = [float(score) for score in reranker(question, [text[:MAX_CHARACTERS] for text in texts])]
    except RerankerUnavailable:
        raise
    except Exception as error:  # the function may be anybody's
        raise RerankerUnavailable(f"the reranker failed: {type(error).__name__}: {error}") from error
    if len(scores) != len(texts) or not all(map(math.isfinite, scores)):
        raise RerankerUnavailable(
            f"the reranker answered {len(scores)} scores for {len(texts)} texts, or no numbers"
        )
    return scores
