"""Ranking: exact by meaning, nothing beyond the mask, and windows only where order means something."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alcove.core.records import RankingSignal, SearchMode
from alcove.search.corpus import Corpus, Item
from alcove.search.query import Lexicon, ParsedQuery
from alcove.search.ranking import DEFAULT, Hit, rank
from tests.support.random_corpus import DIMENSIONS, item, question

MODES: tuple[SearchMode, ...] = ("hybrid", "semantic", "keyword")


def corpus_of(*texts: str) -> Corpus:
    items = [Item(id=n, namespace=(), sequence=n, fields={"text": text}) for n, text in enumerate(texts)]
    return Corpus.of(items)


def ids(hits: list[Hit]) -> list[object]:
    return [hit.id for hit in hits]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 120), st.integers(0, 1000), st.integers(1, 30))
def test_semantic_search_equals_brute_force(count: int, seed: int, limit: int) -> None:
    items = [item(n, seed=n + seed) for n in range(count)]
    asked = question(seed)
    assert asked.vector is not None
    best = {
        each.id: max(float(np.asarray(rows)[0] @ asked.vector) for rows in each.vectors.values())
        for each in items
        if each.vectors
    }
    expected = sorted(best, key=lambda id: -best[id])[:limit]
    hits = rank(Corpus.of(items), asked, limit=limit, mode="semantic")
    assert [hit.score for hit in hits] == pytest.approx([max(0, best[id]) for id in expected], abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 120), st.integers(0, 1000), st.sampled_from(MODES), st.data())
def test_nothing_beyond_the_mask_is_found_or_felt(
    count: int, seed: int, mode: SearchMode, data: st.DataObject
) -> None:
    """What does not pass may change statistics, which are the subtree's, but lends no neighbour its words."""
    items = [item(n, seed=n + seed) for n in range(count)]
    corpus = Corpus.of(items)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    hits = rank(corpus, question(seed), limit=count, mask=mask, mode=mode)
    allowed = set(corpus.columns.id[mask])
    assert set(ids(hits)) <= allowed
    if mode == "hybrid":
        assert set(ids(hits)) == allowed


def conversation() -> list[str]:
    """Sixty topics of five turns; each turn shares a word with the one before it."""
    return [f"topic{t} part{t}x{n} part{t}x{n + 1} filler{t * 5 + n}" for t in range(60) for n in range(5)]


def test_a_window_finds_the_answer_beside_the_question_it_answers() -> None:
    texts = conversation()
    texts[100:102] = ["Ann: which violin teacher topic20 part20x1", "Bob: the tall lady, part20x1 topic20"]
    corpus = corpus_of(*texts)
    assert corpus.order_matters
    asked = ParsedQuery.of("violin teacher")
    assert set(ids(rank(corpus, asked, limit=2))) == {100, 101}
    masked = np.ones(len(texts), dtype=bool)
    masked[100] = False
    hits = rank(corpus, asked, limit=5, mask=masked, mode="keyword")
    assert ids(hits) == []


def test_shuffled_items_rank_as_without_windows() -> None:
    texts = conversation()
    random.Random(3).shuffle(texts)
    corpus = corpus_of(*texts)
    assert not corpus.order_matters
    asked = ParsedQuery.of("topic7 filler36")
    assert rank(corpus, asked, limit=20) == rank(
        corpus, asked, limit=20, weights=DEFAULT.without("neighbours")
    )


def test_a_word_like_the_questions_is_found_by_keyword() -> None:
    near = np.array([[1, 0.1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    lexicon = Lexicon({"kids": 0, "children": 1, "harbour": 2, "lamp": 3}, near)
    corpus = corpus_of("two children play", "a lamp burns")
    assert ids(rank(corpus, ParsedQuery.of("kids", lexicon=lexicon), limit=5, mode="keyword")) == [0]
    assert rank(corpus, ParsedQuery.of("kids"), limit=5, mode="keyword") == []


def test_what_is_said_by_whom_the_question_names_comes_first() -> None:
    corpus = corpus_of("Bob: I sold the boat", "Ann: I sold the boat", "Ann: tea", "Bob: tea")
    assert ids(rank(corpus, ParsedQuery.of("What did Ann sell or who sold the boat?"), limit=1)) == [1]


def test_items_of_the_time_that_is_asked_for_come_first() -> None:
    items = [
        Item(id=n, namespace=(), sequence=n, fields={"text": f"we met for tea {n}", "when": when})
        for n, when in enumerate(["2023-05-01", "2023-05-20", "2024-01-09", "2025-02-02"])
    ]
    corpus = Corpus.of(items)
    assert ids(rank(corpus, ParsedQuery.of("tea on 9 January 2024"), limit=1)) == [2]
    assert ids(rank(corpus, ParsedQuery.of("where did we most recently meet for tea"), limit=1)) == [3]


def test_an_item_that_is_not_embedded_is_found_by_its_words_and_has_no_score() -> None:
    corpus = corpus_of("tea and kettle", "garden")
    asked = ParsedQuery.of("kettle", np.eye(DIMENSIONS, dtype=np.float32)[0])
    first, second = rank(corpus, asked, limit=5)
    assert (first.id, first.score, second.score) == (0, None, None)


@pytest.mark.parametrize("text", ["", "😀🎉", '"*" NEAR -', "the of and"])
@pytest.mark.parametrize("mode", MODES)
def test_a_question_of_nothing_is_no_error(text: str, mode: SearchMode) -> None:
    corpus = Corpus.of([item(n) for n in range(20)])
    assert rank(corpus, ParsedQuery.of(text), limit=5, mode="keyword") == []
    vector = question(1).vector
    assert len(rank(corpus, ParsedQuery.of(text, vector), limit=5, mode=mode)) == (
        0 if mode == "keyword" else 5
    )
    assert rank(Corpus.of([]), ParsedQuery.of(text, vector), limit=5, mode=mode) == []


def test_a_hit_says_why() -> None:
    corpus = corpus_of("Ann: tea", "Bob: tea", "Bob: garden")
    hits = rank(
        corpus, ParsedQuery.of("Ann tea", np.eye(DIMENSIONS, dtype=np.float32)[0]), limit=3, explain=True
    )
    assert hits[0].id == 0
    assert (hits[0].signals["words"].rank, hits[0].signals["words"].score) == (1, 1.0)
    assert hits[0].signals["names"].rank == 1
    assert hits[0].fused == pytest.approx(sum(signal.score for signal in hits[0].signals.values()))


def test_a_hit_says_by_which_numbers_its_words_were_weighed() -> None:
    """How far long and short texts are levelled, and how far words are trusted: less, the less they match."""

    def rules(corpus: Corpus, asked: str, mode: SearchMode = "hybrid") -> dict[str, float]:
        vector = np.eye(DIMENSIONS, dtype=np.float32)[0]
        return (
            rank(corpus, ParsedQuery.of(asked, vector), limit=1, mode=mode, explain=True)[0]
            .signals["words"]
            .rules
        )

    alike, mixed = corpus_of("green tea", "red lamp"), corpus_of("green tea", "red lamp " * 40)
    assert rules(alike, "tea") == {"levelling": 0, "trust": 1, "neighbours": 0}
    assert rules(mixed, "tea")["levelling"] == mixed.postings.levelling > 0.5
    assert rules(alike, "tea kettle stove")["trust"] < 0.7
    assert rules(alike, "tea kettle stove", "keyword")["trust"] == 1


def test_by_meaning_alone_no_rule_decides() -> None:
    (hit, *_) = rank(Corpus.of([item(1)]), question(1), limit=1, mode="semantic", explain=True)
    assert hit.signals["meaning"].rules == {}


def test_a_label_of_one_occasion_joins_items_and_one_of_very_many_does_not() -> None:
    def lift(group: int) -> float:
        """What an item gains from a better one with the same label, in groups of this size."""
        items = [
            Item(id=n, namespace=(), sequence=n, fields={"text": f"word{n} lamp", "day": f"day {n // group}"})
            for n in range(4 * group)
        ]
        hits = rank(Corpus.of(items), ParsedQuery.of("word3"), limit=9, explain=True)
        assert hits[0].id == 3
        return {hit.id: hit.signals["company"].score for hit in hits}[3] / (hits[0].fused)

    assert lift(20) > 0.2
    assert lift(500) < 0.05


def test_words_count_less_the_less_of_the_question_they_match() -> None:
    """A lone common word of a question is no match, where its meaning is in another text."""
    asked, other = np.eye(DIMENSIONS, dtype=np.float32)[:2]
    texts = {"the fee is due on friday": other, "we are saving for a flat": asked, "rent went up": other}
    corpus = Corpus.of(
        Item(id=n, namespace=(), sequence=n, fields={"text": text}, vectors={"text": row[None]})
        for n, (text, row) in enumerate(texts.items())
    )
    words = ["due"]
    for more in ("goal", "money", "plan"):
        weight, *_ = (
            hit.signals["words"].score
            for hit in rank(corpus, ParsedQuery.of(" ".join(words), asked), limit=3, explain=True)
            if hit.id == 0
        )
        words.append(more)
        assert weight <= 1
    assert weight < 0.5
    assert ids(rank(corpus, ParsedQuery.of(" ".join(words), asked), limit=1)) == [1]
    assert ids(rank(corpus, ParsedQuery.of("due", asked), limit=1)) == [0]


def test_neighbours_count_in_a_talk_of_short_turns_and_not_among_long_texts() -> None:
    """A turn of a few words needs the one before to be understood; a page does not."""
    subjects = [f"{a}{b}" for a in "bcdfghkl" for b in ("anjo", "erit", "olum", "ufes")]

    def windows(filler: str) -> RankingSignal:
        texts = [f"{s} {s} {filler}" if n % 2 else f"and {s} {filler}" for s in subjects for n in range(2)]
        corpus = corpus_of(*texts)
        assert corpus.order_matters
        hits = rank(corpus, ParsedQuery.of(subjects[3]), limit=12, explain=True)
        beside = next(hit for hit in hits if hit.id == 2 * 3 + 2)
        assert beside.signals["substance"].rules == {"brevity": beside.signals["words"].rules["neighbours"]}
        return beside.signals["words"]

    short, long = windows(""), windows(" ".join(f"w{n}" for n in range(200)))
    assert (short.score > 0.2, short.rules["neighbours"]) == (True, 1)
    assert long.score < 0.01
    assert long.rules["neighbours"] < 0.01


def test_what_all_texts_have_in_common_says_nothing() -> None:
    """Seen from the middle of all vectors: a name that is in each text is no reason for any."""
    common, asked, other, *rest = np.eye(64, dtype=np.float32)
    crowd = [0.95 * common + 0.312 * row for row in rest] * 8
    near = [0.6 * common + 0.8 * asked, 0.99 * common + 0.14 * other]
    corpus = Corpus.of(
        Item(id=n, namespace=(), sequence=n, fields={"text": f"item{n}"}, vectors={"text": row[None]})
        for n, row in enumerate([*near, *crowd])
    )
    vector = 0.9 * common + 0.436 * asked
    assert ids(rank(corpus, ParsedQuery.of("zzz", vector), limit=1, mode="semantic")) == [1]
    by_meaning = rank(corpus, ParsedQuery.of("zzz", vector), limit=len(corpus), explain=True)
    shares = {hit.id: hit.signals["meaning"].score for hit in by_meaning}
    assert shares[0] == pytest.approx(DEFAULT.similarity)
    assert shares[1] < 0.5 * DEFAULT.similarity
