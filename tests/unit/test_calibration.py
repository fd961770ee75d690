"""From a cosine to how relevant a passage is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove.search import relevance
from alcove.search.corpus import Item, documents
from alcove.search.embedders import EmbedderUnavailable, Matrix, embed_query, unit
from alcove.search.embedders.minilm import MiniLM
from alcove.search.postings import Postings
from alcove.search.query import ParsedQuery
from alcove.search.relevance import BUILT_IN, MAX_CALIBRATIONS, MIN_SPREAD, Calibration, coverage
from alcove.search.words import LABEL, term_counts, term_number

MINILM = BUILT_IN["all-MiniLM-L6-v2"]
ANY = st.builds(Calibration, unrelated=st.floats(-1, 1), answering=st.floats(-1, 1))
COSINE, SHARE = st.floats(-1.001, 1.001), st.floats(0, 1)


class Words:
    """Texts with words in common are near, and all texts lean the same way by `lean`."""

    dimensions = 512

    def __init__(self, name: str, lean: float = 0.0) -> None:
        self.name, self.calls, self._lean = name, 0, lean

    def windows(self, text: str) -> list[str]:
        return [text]

    def embed(self, texts: Sequence[str]) -> Matrix:
        self.calls += 1
        time.sleep(0.01)  # long enough for every thread to come by
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for term, count in term_counts(text).items():
                row[1 + sum(map(ord, term)) % 511] += count
        rows = unit(rows)
        rows[:, 0] = self._lean
        return unit(rows)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    relevance._measured.clear()
    yield
    relevance._measured.clear()


def postings(*texts: str) -> Postings:
    items = (Item(id=text, namespace=None, sequence=0, fields={"text": text}) for text in texts)
    return Postings.of(documents(items, ()))


@given(ANY, COSINE, COSINE, SHARE, SHARE)
def test_scores_lie_between_0_and_1_and_never_fall_with_the_cosine_or_the_words_held(
    model: Calibration, cosine: float, other: float, covered: float, more: float
) -> None:
    (low, high), (few, many) = sorted((cosine, other)), sorted((covered, more))
    worst, by_cosine, by_words = model.scores([low, high, low], [few, few, many])
    assert 0 <= worst <= by_cosine <= 1
    assert worst <= by_words <= 1


def test_both_ends_of_the_scale_are_reached() -> None:
    assert MINILM.scores([1.0, 0.9999999, -1.0], [1.0, 1.0, 0.0]).tolist() == [1, 1, 0]


def test_a_passage_that_is_not_embedded_is_above_no_threshold() -> None:
    scores = MINILM.scores([float("nan"), 0.5], [1.0, 1.0])
    assert (scores >= 0).tolist() == [False, True]


def test_a_score_is_compared_as_it_is_reported() -> None:
    for score in MINILM.scores(np.linspace(-1, 1, 999), np.linspace(0, 1, 999)).tolist():
        assert score == float(f"{score:.4f}")


def test_the_embedded_model_lies_where_the_probes_find_it() -> None:
    assert [*Calibration.measure(MiniLM())] == pytest.approx([*MINILM], abs=0.001)
    assert Calibration.of(MiniLM()) is MINILM


def test_the_default_threshold_parts_what_answers_from_what_does_not() -> None:
    model, question = MiniLM(), "For how many weeks are films lent?"
    texts = (
        "Loan periods\nBooks are lent for four weeks, films and magazines for two.",
        "Late fees\nFor each week after the due date we charge one crown, and two for a letter.",
        "Tamping\nLevel the grounds with a finger, then press straight down until the spring clicks.",
    )
    cosines = model.embed(texts) @ embed_query(model, question)
    covered = coverage(ParsedQuery.of(question, lexicon=model.lexicon()), postings(*texts))
    assert (MINILM.scores(cosines, covered) >= 0.7).tolist() == [True, False, False]


@pytest.mark.parametrize("lean", [0.0, 1.0, 3.0])
def test_another_embedder_is_placed_by_the_probes_however_its_vectors_lean(lean: float) -> None:
    embedder = Words("leaning", lean)
    texts = ["Fees\nMembership costs 22 crowns a year.", "Hours\nThe hall is open from ten to eight."]
    cosines = embedder.embed(texts) @ embedder.embed(["What does membership cost for a year?"])[0]
    scores = Calibration.of(embedder).scores(cosines, [0.9, 0.0])
    assert (scores >= 0.7).tolist() == [True, False]


def test_an_embedder_that_tells_nothing_apart_makes_no_errors() -> None:
    model = Calibration(unrelated=0.9, answering=0.9)
    assert model.scores([0.9, 0.9 + MIN_SPREAD], [0.0, 0.0]).tolist() == [
        pytest.approx(0.008, abs=0.01),
        pytest.approx(0.76, abs=0.01),
    ]


def test_an_embedder_is_measured_once_however_many_threads_ask() -> None:
    embedder, start = Words("shared"), threading.Barrier(8)

    def ask(_: int) -> Calibration:
        start.wait()
        return Calibration.of(embedder)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1
    assert embedder.calls == 1


def test_as_many_embedders_as_fit_are_remembered() -> None:
    first = Words("0")
    for embedder in (first, *(Words(str(n)) for n in range(1, MAX_CALIBRATIONS + 1))):
        Calibration.of(embedder)
    assert len(relevance._measured) == MAX_CALIBRATIONS
    Calibration.of(first)
    assert first.calls == 2


def test_an_embedder_that_was_down_is_measured_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Words("down")

    def refuse(_: object) -> Matrix:
        raise EmbedderUnavailable("down")

    with monkeypatch.context() as patched:
        patched.setattr(embedder, "embed", refuse)
        with pytest.raises(EmbedderUnavailable):
            Calibration.of(embedder)
    assert Calibration.of(embedder).answering > 0


def test_rare_words_count_more_than_frequent_ones() -> None:
    rows = postings("the hut and its beds", "the hut and its sauna", "the hut and its kitchen")
    beds, sauna, kitchen = coverage(ParsedQuery.of("Is there a sauna in the hut?"), rows)
    assert beds == kitchen < 0.2
    assert sauna == 1


def test_a_related_word_counts_as_much_as_it_is_like() -> None:
    asked = ParsedQuery(terms={"kid": (("child", 0.6), ("girl", 0.4))}, words=frozenset(), vector=None)
    assert coverage(asked, postings("a child", "a girl", "a girl, a child", "a kid", "nobody")).tolist() == [
        pytest.approx(like) for like in (0.6, 0.4, 0.6, 1, 0)
    ]


def test_words_of_a_label_are_held_too() -> None:
    rows = Postings.of([[term_number((LABEL, "varroa")), term_number("acid")], [term_number("acid")]])
    assert coverage(ParsedQuery.of("varroa"), rows).tolist() == [1, 0]


def test_a_question_without_words_is_covered_by_nothing() -> None:
    assert coverage(ParsedQuery.of("?!"), postings("a text", "another")).tolist() == [0, 0]
    assert coverage(ParsedQuery.of("anything"), postings()).tolist() == []
