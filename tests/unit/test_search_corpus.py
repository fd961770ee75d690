"""A corpus that changes is the corpus built from what is left; its statistics are a plain count's."""

from __future__ import annotations

import math
import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alcove.search.corpus import LONG_TEXT, SMALL_ROWS, Corpus, Item, JoinedCorpus
from alcove.search.postings import K1, inverse_frequency
from alcove.search.ranking import rank
from alcove.search.vectors import MAX_BLOCKS
from tests.support.random_corpus import item, question

changes = st.lists(
    st.tuples(st.lists(st.integers(0, 400), max_size=6), st.lists(st.integers(0, 400), max_size=6)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(changes)
@example([([], [3]), ([], [50]), ([0], []), ([1, 111], [73])])
def test_a_changed_corpus_ranks_as_one_built_anew(steps: list[tuple[list[int], list[int]]]) -> None:
    kept = {n: item(n) for n in range(SMALL_ROWS + 40)}
    corpus = Corpus.of(kept.values())
    for number, (added, removed) in enumerate(steps, 1):
        new = [item(n, sequence=1000 * number + place, seed=n + number) for place, n in enumerate(added)]
        for each in removed:
            kept.pop(each, None)
        kept.update((each.id, each) for each in new if isinstance(each.id, int))
        corpus = corpus.changed(add=new, remove=removed) or Corpus.of(kept.values())
    anew = Corpus.of(kept.values())
    anew = replace(anew, order_matters=corpus.order_matters)  # decided when a corpus is built, not later
    assert set(corpus.rows) == set(kept)
    assert corpus.groups.keys() == anew.groups.keys()
    for seed in range(3):
        found, expected = ({h.id: h for h in rank(c, question(seed), limit=999)} for c in (corpus, anew))
        assert found.keys() == expected.keys()
        for id, hit in found.items():
            assert hit.fused == pytest.approx(expected[id].fused, abs=1e-4)
            assert hit.score == pytest.approx(expected[id].score, abs=1e-6)


def test_a_snapshot_stays_as_it_was() -> None:
    first = Corpus.of([item(n) for n in range(SMALL_ROWS)])
    before = [hit.id for hit in rank(first, question(1), limit=50)]
    one = first.changed(add=[item(1000)], remove=[3, 4])
    other = first.changed(add=[item(2000)])
    assert one
    assert other
    assert [hit.id for hit in rank(first, question(1), limit=50)] == before
    assert 1000 in one.rows
    assert 1000 not in other.rows
    added = other.vectors.of_row(len(first))[0]
    assert added == pytest.approx(np.asarray(next(iter(item(2000).vectors.values()))[0]), abs=1e-4)
    assert len(other.vectors) == len(first.vectors) + len(item(2000).vectors)


def test_items_that_come_one_by_one_have_the_vectors_of_those_that_come_at_once() -> None:
    corpus = Corpus.of([item(n) for n in range(200)])
    for n in range(200, 200 + 5 * MAX_BLOCKS):
        longer = corpus.changed(add=[item(n)])
        assert longer
        corpus = longer
    anew, asked = Corpus.of([item(n) for n in range(len(corpus))]), question(1).vector
    assert len(corpus.vectors) == len(anew.vectors)
    for row in range(len(corpus)):
        assert np.array_equal(corpus.vectors.of_row(row), anew.vectors.of_row(row))
    assert np.allclose(corpus.vectors.compare(asked)[0], anew.vectors.compare(asked)[0], equal_nan=True)


def test_a_corpus_counts_what_it_holds_and_that_is_little_beside_its_vectors() -> None:
    chance, dimensions, count = random.Random(1), 384, 1000
    texts = [" ".join(f"word{chance.randrange(5000)}" for _ in range(12)) for _ in range(count)]

    def made() -> Corpus:
        return Corpus.of(
            Item(
                id=10**6 + n,
                namespace=(),
                sequence=n,
                fields={"t": text},
                vectors={"t": [bytes(4 * dimensions)]},
            )
            for n, text in enumerate(texts)
        )

    made()  # the numbers of words are remembered for all corpora
    tracemalloc.start()
    corpus = made()
    assert len(corpus.neighbours[1]) == count  # is found now, and held from now on
    corpus.postings.weights(corpus.postings.find("word1"))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held <= corpus.bytes <= 1.2 * held
    assert corpus.bytes <= count * (4 * dimensions + 2048)


def test_what_was_removed_is_held_by_no_term() -> None:
    items = [
        Item(id=n, namespace=(), sequence=n, fields={"t": f"tea word{n} Ann"}) for n in range(SMALL_ROWS + 40)
    ]
    corpus = Corpus.of(items).changed(add=[items[3]._replace(fields={"t": "kettle"})], remove=[7])
    assert corpus
    assert "word3" not in corpus.postings
    assert "word7" not in corpus.postings
    assert "word8" in corpus.postings
    assert corpus.postings.find("kettl")[0].tolist() == [len(items)]
    assert len(corpus.postings.find("tea")[0]) == len(items) - 2 == corpus.postings.document_count - 1


def test_a_corpus_that_changed_too_much_has_to_be_built_anew() -> None:
    corpus = Corpus.of([item(n) for n in range(4 * SMALL_ROWS)])
    assert corpus.changed(remove=range(SMALL_ROWS))
    assert corpus.changed(remove=range(SMALL_ROWS + 1)) is None
    assert Corpus.of([item(n) for n in range(SMALL_ROWS - 1)]).changed(add=[item(SMALL_ROWS)]) is None


def test_bm25_is_the_formula_over_the_subtree() -> None:
    texts = ["tea tea kettle", "kettle", "rose garden garden", "tea rose lamp train harbour"]
    corpus = Corpus.of(
        [Item(id=n, namespace=(), sequence=n, fields={"t": text}) for n, text in enumerate(texts)],
    )
    tea = corpus.postings.find("tea")
    scores = corpus.postings.weights(tea)
    average = sum(len(text.split()) for text in texts) / len(texts)
    for row, found in zip(tea.rows.tolist(), scores.tolist(), strict=True):
        count, length = texts[row].split().count("tea"), len(texts[row].split())
        rarity = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
        b = np.std([math.log(1 + len(text.split())) for text in texts])  # how far their lengths are apart
        expected = rarity * count * (K1 + 1) / (count + K1 * (1 - b + b * length / average))
        assert found == pytest.approx(expected, rel=1e-5)
    assert tea.rows.tolist() == [0, 3]


def test_a_sample_with_candidates_weighs_words_and_meaning_as_the_whole_does() -> None:
    items = [
        item(n)._replace(fields={"t": f"{'tea' if n % 10 == 0 else 'milk'} and word{n}"}) for n in range(1000)
    ]
    whole, sample = Corpus.of(items), Corpus.of(items[::3])
    sample = replace(
        sample,
        built_count=2**62,
        postings=sample.postings.as_sample(1000),
        vectors=sample.vectors.without_vectors(),
    )
    found = sample.changed(add=[each for n, each in enumerate(items) if n % 10 == 0 and n % 3])
    assert found
    assert len(found.postings.find("tea").rows) == 100  # a fifth of all rows, a tenth of the whole
    for corpus in (found, JoinedCorpus([found])):
        postings = corpus.postings
        rarity = inverse_frequency(postings.find("tea").document_count, postings.document_count)
        assert rarity == pytest.approx(inverse_frequency(100, whole.postings.document_count), rel=0.05)
        assert corpus.postings.document_count == 1000
    asked = question(1).vector
    row, other = found.rows[10], whole.rows[10]
    here, there = (each.vectors.compare(asked, centred=True)[1] for each in (found, whole))
    assert here[row] == pytest.approx(there[other], abs=0.1)
    assert np.isnan(here[0])  # of the sample only the middle is held


def test_neighbours_are_next_in_sequence_within_one_namespace() -> None:
    items = [
        Item(id=n, namespace=space, sequence=sequence, fields={"t": "tea"})
        for n, (space, sequence) in enumerate([("a", 30), ("b", 20), ("a", 10), ("b", 40), ("a", 50)])
    ]
    corpus = Corpus.of(items)
    following = corpus.neighbours[1]
    pairs = {
        corpus.columns.id[row]: corpus.columns.id[near] for row, near in enumerate(following) if near >= 0
    }
    assert pairs == {2: 0, 0: 4, 1: 3}


def test_a_field_that_items_share_is_a_label_and_content_is_not() -> None:
    items = [
        Item(id=n, namespace=(), sequence=n, fields={"text": f"word{n}", "day": f"{n // 4} May"})
        for n in range(20)
    ]
    assert Corpus.of(items).groups.keys() == {"day"}
    same = [Item(id=n, namespace=(), sequence=n, fields={"text": "tea"}) for n in range(20)]
    assert Corpus.of(same).groups == {}


def test_few_long_texts_are_not_read_again_for_each_that_comes() -> None:
    """Who writes long texts one by one, and searches, pays for reading each a few times, not all always."""
    long = " ".join(f"w{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}" for n in range(2 * LONG_TEXT))

    def item(n: int) -> Item:
        return Item(id=n, namespace=(), sequence=n, fields={"t": f"{long} {n}"})

    corpus, read = Corpus.of([]), 0
    for n in range(40):
        changed = corpus.changed(add=[item(n)])
        read += 1 if changed else n + 1
        corpus = changed or Corpus.of([item(m) for m in range(n + 1)])
        assert len(corpus.rows) == n + 1
    assert read < 4 * 40
