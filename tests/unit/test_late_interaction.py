"""What is kept of the tokens of short texts, and what ranking makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from alcove.engine.rows import TextToIndex
from alcove.search.corpus import SMALL_ROWS, Corpus, Item, JoinedCorpus
from alcove.search.embedders import embed_query_with_tokens, embedder_for
from alcove.search.embedders.minilm import MiniLM
from alcove.search.late_interaction import (
    DIMENSIONS,
    MAX_TOKENS,
    MEMORY_DIMENSIONS,
    SCALE,
    TokenTable,
    token_matrix,
)
from alcove.search.query import ParsedQuery
from alcove.search.ranking import DEFAULT, rank
from alcove.search.text_vectors import decode_vectors, embed_texts
from alcove.search.vectors import MAX_BLOCKS, SLICE_ROWS

TEXTS = ["I sold my bicycle last spring", "My bicycle is red", "The spring is cold", "I sold lemonade"]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM()


def random_tokens(seed: int, counts: list[int]) -> list[bytes]:
    chance = np.random.default_rng(seed)
    rows = [chance.normal(size=(n, DIMENSIONS)) for n in counts]
    lengths = [np.linalg.norm(each, axis=1, keepdims=True) for each in rows]
    pairs = zip(rows, lengths, strict=True)
    return [np.rint(each / length * SCALE).astype(np.int8).tobytes() for each, length in pairs]


def plainly(tokens: list[bytes], asked: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> list[float]:
    """The formula, row by row, of the numbers that are held, each in the middle of its step of 6."""
    rows_of = [np.frombuffer(each, dtype=np.int8).reshape(-1, DIMENSIONS) for each in tokens]
    kept, asked = [rows[:, :MEMORY_DIMENSIONS] for rows in rows_of], asked[:, :MEMORY_DIMENSIONS]
    every = [(np.clip(np.floor(rows / 6), -8, 7) + 0.5) * 6 / SCALE for rows in kept]
    best = np.array([(rows @ asked.T).max(axis=0) if len(rows) else [np.nan] * len(asked) for rows in every])
    known = best[~np.isnan(best[:, 0])]
    weights = (known.max(axis=0) - known.mean(axis=0)) ** 2
    return [float(row) for row in best @ weights / weights.sum()]


def test_each_token_of_a_question_counts_by_its_best_match_and_by_how_telling_that_is() -> None:
    tokens = [*random_tokens(1, [3, 0, 7, 1, 12]), np.full(DIMENSIONS, -SCALE, dtype=np.int8).tobytes()]
    asked = token_matrix(random_tokens(2, [5])[0])
    assert asked is not None
    found = TokenTable.of(tokens).compare(np.arange(6, dtype=np.int32), asked)
    np.testing.assert_allclose(found, plainly(tokens, asked), rtol=1e-4)
    assert np.isnan(found[1])


def test_a_table_that_grew_or_was_joined_finds_what_one_finds_that_was_made_at_once() -> None:
    tokens = random_tokens(3, [n % 4 for n in range(40)])
    asked = token_matrix(random_tokens(4, [6])[0])
    assert asked is not None
    rows = np.array([39, 3, 17, 0, 21, 38], dtype=np.int32)
    expected = TokenTable.of(tokens).compare(rows, asked)
    grown = TokenTable.of(tokens[:10])
    for each in tokens[10:]:
        grown = grown.extended([each])
    assert len(grown._blocks) <= MAX_BLOCKS + 1
    joined = TokenTable.concatenate([TokenTable.of(tokens[:25]), TokenTable.of(tokens[25:])])
    for table in (grown, joined):
        np.testing.assert_allclose(table.compare(rows, asked), expected, rtol=1e-5)
    assert TokenTable.of(tokens).bytes == 40 // 4 * 6 * MEMORY_DIMENSIONS // 2 + 4 * 41


def test_a_token_is_as_like_itself_in_memory_as_it_was_and_rows_of_a_large_table_stay_apart() -> None:
    tokens = random_tokens(5, [2] * (2 * SLICE_ROWS + 9))
    table = TokenTable.of(tokens)
    for row in (0, SLICE_ROWS - 1, SLICE_ROWS, 2 * SLICE_ROWS, len(tokens) - 1):
        asked = token_matrix(tokens[row])
        assert asked is not None
        found = table.compare(np.arange(len(tokens), dtype=np.int32), asked)
        assert int(found.argmax()) == row
        assert found[row] > 0.5  # most of its numbers are held


def test_the_pass_that_embeds_a_text_keeps_its_tokens_too(model: MiniLM) -> None:
    texts = [*TEXTS, "word " * MAX_TOKENS]
    rows, tokens = model.embed_with_tokens(texts)
    np.testing.assert_allclose(rows, model.embed(texts), atol=1e-6)
    assert [len(each) // DIMENSIONS for each in tokens] == [6, 4, 4, 4, 0]  # none of a long text


def test_vectors_and_tokens_are_kept_together_and_vectors_of_before_are_read_as_ever(model: MiniLM) -> None:
    text = TextToIndex(1, b'{"text": "I sold my bicycle", "note": ""}'.decode())
    (piece,) = embed_texts(model, [text])
    vectors, tokens = decode_vectors(piece.body)
    assert [*vectors] == [*tokens] == ["text"]
    (lean,) = embed_texts(MiniLM(tokens=False), [text])
    assert decode_vectors(lean.body) == (vectors, {})


def test_an_operator_can_do_without(model: MiniLM) -> None:
    lean = embedder_for("minilm-lean")
    assert lean is not None
    assert lean.name == model.name  # the same vectors
    assert embed_query_with_tokens(lean, "tea")[1] == b""
    assert embed_query_with_tokens(model, "tea")[1] != b""


def corpus_of(model: MiniLM, texts: list[str]) -> Corpus:
    rows, tokens = model.embed_with_tokens(texts)
    return Corpus.of(
        Item(n, (), n, {"text": text}, {"text": row[None]}, tokens={"text": its})
        for n, (text, row, its) in enumerate(zip(texts, rows, tokens, strict=True))
    )


def asked_of(model: MiniLM, text: str) -> ParsedQuery:
    vector, tokens = embed_query_with_tokens(model, text)
    return ParsedQuery.of(text, vector, tokens=token_matrix(tokens))


def test_tokens_are_a_signal_that_can_be_told_and_turned_off(model: MiniLM) -> None:
    corpus, question = corpus_of(model, TEXTS), asked_of(model, "what happened to my bicycle?")
    hits = rank(corpus, question, limit=4, explain=True)
    assert max(hit.signals["tokens"].score for hit in hits) == pytest.approx(DEFAULT.tokens)
    (best, *_) = rank(corpus, question, limit=4, explain=True, weights=DEFAULT.without("tokens"))
    assert "tokens" not in best.signals
    (best, *_) = rank(corpus, question, limit=4, explain=True, mode="keyword")
    assert "tokens" not in best.signals


def test_where_most_texts_are_long_tokens_do_not_count(model: MiniLM) -> None:
    essay = "The history of the bicycle is long. " * 40
    corpus = corpus_of(model, [TEXTS[0], *(f"{essay} {n}" for n in range(3))])
    (best, *_) = rank(corpus, asked_of(model, "my bike"), limit=4, explain=True)
    assert "tokens" not in best.signals


def test_a_changed_corpus_ranks_by_tokens_as_one_that_was_built_anew(model: MiniLM) -> None:
    texts = [f"note {n} about the {thing}" for n in range(SMALL_ROWS) for thing in ("bicycle", "garden")]
    every = corpus_of(model, [*texts, *TEXTS])
    rows, tokens = model.embed_with_tokens(TEXTS)
    first = corpus_of(model, texts)
    added = [
        Item(len(texts) + n, (), len(texts) + n, {"text": text}, {"text": row[None]}, tokens={"text": its})
        for n, (text, row, its) in enumerate(zip(TEXTS, rows, tokens, strict=True))
    ]
    changed = first.changed(add=added, remove=[5])
    again = every.changed(remove=[5])
    assert changed is not None
    assert again is not None
    question = asked_of(model, "did I sell my bike?")
    found, expected = (rank(each, question, limit=20) for each in (changed, again))
    assert [hit.id for hit in found] == [hit.id for hit in expected]
    np.testing.assert_allclose([h.fused for h in found], [h.fused for h in expected], atol=1e-4)
    both = JoinedCorpus([first, Corpus.of(added)])
    assert rank(both, question, limit=1)[0].id == len(texts)
