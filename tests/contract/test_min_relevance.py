"""What does not fit a question is left out, if a floor is asked for."""

from __future__ import annotations

import pytest

from alcove import Alcove, InvalidRequest
from alcove.core.records import SearchMode
from tests.contract.conftest import Open

HOME = ("user", "noop")
TEXTS = {
    "tea": "I drink green tea every morning",
    "car": "My car is red and needs new tyres",
    "rome": "We fly to Rome in May",
    "dog": "Our dog is afraid of thunder",
}
MODES: list[SearchMode] = ["hybrid", "semantic", "keyword"]


def filled(memory: Alcove) -> Alcove:
    for key, text in TEXTS.items():
        memory.put(HOME, key, {"text": text}, index=True, wait_for_index=True)
    return memory


def test_a_floor_leaves_out_what_does_not_fit_and_keeps_the_order(open_store: Open) -> None:
    memory = filled(open_store())
    for mode in MODES:
        every = memory.search(HOME, query="what do I drink in the morning?", mode=mode)
        assert all(each.relevance is not None and 0 <= each.relevance <= 1 for each in every)
        assert every[0].key == "tea"
        for floor in (0.0, 0.02, 0.1, 0.5, 1.0):
            found = memory.search(HOME, query="what do I drink in the morning?", mode=mode, min_score=floor)
            kept = [each.key for each in every if (each.relevance or 0) >= floor]
            assert [each.key for each in found] == kept
    (tea,) = memory.search(HOME, query="what do I drink in the morning?", min_score=0.3)
    assert (tea.key, tea.relevance) > ("tea", 0.3)


def test_min_score_is_the_older_name_of_min_relevance(open_store: Open) -> None:
    memory, query = filled(open_store()), "what do I drink in the morning?"
    (tea,) = memory.search(HOME, query=query, min_relevance=0.3)
    assert [tea] == memory.search(HOME, query=query, min_score=0.3)
    assert [tea] == memory.search(HOME, query=query, min_score=0.3, min_relevance=0.3)
    for other in (0.0, 0.2):
        with pytest.raises(InvalidRequest, match=r"min_score: expected .*min_relevance"):
            memory.search(HOME, query=query, min_relevance=0.3, min_score=other)


def test_nonsense_finds_nothing_above_a_floor(open_store: Open) -> None:
    memory = filled(open_store())
    for nonsense in ("flurb the wozzle gribbit", "What is the boiling point of tungsten?"):
        assert len(memory.search(HOME, query=nonsense)) == 4
        assert memory.search(HOME, query=nonsense, min_score=0.1) == []


def test_limit_and_offset_count_what_fits(open_store: Open) -> None:
    memory = filled(open_store())
    found = memory.search(HOME, query="tea or the car", min_score=0.05)
    keys = [each.key for each in found]
    assert {"tea", "car"} <= set(keys)
    pages = [memory.search(HOME, query="tea or the car", min_score=0.05, limit=1, offset=n) for n in range(4)]
    assert [each.key for page in pages for each in page] == keys


def test_without_an_embedder_words_alone_tell_how_relevant_it_is(open_store: Open) -> None:
    memory = filled(open_store(embedder=None))
    found = memory.search(HOME, query="green tea in the morning", min_score=0.5)
    assert [(each.key, each.score) for each in found] == [("tea", None)]
    assert memory.search(HOME, query="a beverage", min_score=0.1) == []


def test_the_past_has_the_same_floor(open_store: Open) -> None:
    memory = filled(open_store())
    now = memory.put(HOME, "tea", {"text": "nothing any more"}).created_at
    at = memory.history(HOME, "tea")[-1].created_at
    last = memory.history(HOME, "dog")[0].created_at
    assert at < last < now
    asked = {"query": "what do I drink in the morning?", "min_score": 0.2}
    assert [each.key for each in memory.search(HOME, as_of=last, **asked)] == ["tea"]  # type: ignore[arg-type]
    assert memory.search(HOME, **asked) == []  # type: ignore[arg-type]


def test_a_question_without_words_is_answered(open_store: Open) -> None:
    memory = filled(open_store())
    for query in ("?", "what is it", "🍵"):
        found = memory.search(HOME, query=query)
        assert all(each.relevance is not None for each in found)


@pytest.mark.parametrize("mode", MODES)
def test_what_has_no_text_is_below_any_floor(open_store: Open, mode: SearchMode) -> None:
    memory = filled(open_store())
    memory.put(HOME, "bare", {"text": "tea"})
    found = memory.search(HOME, query="green tea", mode=mode, min_score=0.1, unranked=True)
    assert [each.key for each in found] == ["tea"]
    assert found.unindexed == 1
