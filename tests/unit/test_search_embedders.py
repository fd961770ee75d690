"""Embedders: how they are named, that long texts keep their end, and that weights are what they should be."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove.core.errors import InvalidRequest
from alcove.search.embedders import (
    Embedder,
    EmbedderUnavailable,
    character_windows,
    embed_query,
    embedder_for,
    minilm,
)
from alcove.search.embedders.minilm import MiniLM
from alcove.search.embedders.sentence_encoder import WINDOW


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM()


def test_none_is_no_embedder() -> None:
    assert embedder_for("none") is None


@pytest.mark.parametrize(
    "spec", ["", "word2vec", "fastembed:", "http://host/v1", "http://#m", "ftp://host#m"]
)
def test_an_unknown_name_is_refused(spec: str) -> None:
    with pytest.raises(InvalidRequest):
        embedder_for(spec)


def test_nothing_is_loaded_before_the_first_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "_verify", lambda *_: pytest.fail("it was loaded"))
    embedder = embedder_for("minilm")
    assert embedder
    assert (embedder.name, embedder.dimensions) == ("all-MiniLM-L6-v2", 384)
    assert embedder.windows("short") == ["short"]


def test_fastembed_that_is_missing_says_so() -> None:
    embedder = embedder_for("fastembed:BAAI/bge-small-en-v1.5")
    assert embedder
    assert embedder.name == "BAAI/bge-small-en-v1.5"
    with pytest.raises(EmbedderUnavailable, match="fastembed"):
        embedder.embed(["text"])


def test_the_model_knows_what_is_alike(model: MiniLM) -> None:
    rows = model.embed(["The cat sat on the mat.", "A kitten rested on a rug.", "Interest rates rose again."])
    assert rows.shape == (3, 384)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert rows[0] @ rows[1] > 0.4 > 0.2 > rows[0] @ rows[2]


def test_a_text_has_one_vector_whatever_stands_beside_it(model: MiniLM) -> None:
    texts = ["short", "", "😀", "a somewhat longer text about tea", "word " * 700]
    together = model.embed(texts)
    for text, row in zip(texts, together, strict=True):
        assert np.allclose(model.embed([text])[0], row, atol=1e-4)
    assert model.embed([]).shape == (0, 384)


def test_the_end_of_a_long_text_is_in_a_window(model: MiniLM) -> None:
    text = "Nothing of note happened that day. " * 120 + "The violin is kept in the blue cupboard."
    windows = model.windows(text)
    assert len(windows) > 3
    assert text.startswith(windows[0])
    assert text.endswith(windows[-1])
    asked = embed_query(model, "Where is the violin?")
    assert max(model.embed(windows) @ asked) > 0.3


def test_every_word_is_in_a_window_and_every_window_fits(model: MiniLM) -> None:
    text = " ".join(f"word{n} ünï{n}" for n in range(900)) + " " + "x" * 5000
    windows = model.windows(text)
    for word in text.split():
        assert any(word in window for window in windows)
    tokenizer = model._network().tokenizer
    assert all(len(tokenizer.encode(window).ids) <= WINDOW + 8 for window in windows)


@given(st.lists(st.booleans(), max_size=400), st.integers(1, 60), st.integers(0, 20))
def test_character_windows_lose_nothing_but_spaces(spaces: list[bool], size: int, overlap: int) -> None:
    # No character twice, so that the place of a window is known.
    text = "".join(" " if space else chr(0x4E00 + n) for n, space in enumerate(spaces))
    windows = character_windows(text, size=size, overlap=overlap)
    assert all(len(window) <= size for window in windows)
    assert set("".join(windows)) | {" "} == set(text) | {" "}
    assert all(window in text for window in windows)


def test_a_question_of_a_hundred_kilobytes_has_one_vector() -> None:
    class Counting:
        name, dimensions = "counting", 2
        seen = 0

        def windows(self, text: str) -> list[str]:
            return character_windows(text, size=100, overlap=10)

        def embed(self, texts: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
            assert isinstance(texts, list)
            self.seen += len(texts)
            return np.ones((len(texts), 2), dtype=np.float32)

    embedder = Counting()
    as_embedder: Embedder = embedder
    assert np.allclose(embed_query(as_embedder, "tea " * 25_000), 0.5**0.5)
    assert embedder.seen == 8


def test_words_of_like_meaning_come_from_the_models_own_table(model: MiniLM) -> None:
    lexicon = model.lexicon()
    assert lexicon
    kids, unknown = lexicon.related(["kids", "zzzyx"])
    assert kids[0][0] == "children"
    assert unknown == ()


def test_weights_that_were_altered_are_refused(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    for file in minilm.DIGESTS:
        (tmp_path / file).write_bytes(b"not the model")
    with pytest.raises(EmbedderUnavailable, match="SHA-256"):
        MiniLM(tmp_path).embed(["text"])


def test_a_model_folder_wins_and_its_own_sums_give_it_a_name(tmp_path: Path) -> None:
    carried = Path(str(importlib.metadata.distribution(minilm.CARRIER).locate_file(minilm.CARRIER_FOLDER)))
    shutil.copytree(carried, tmp_path / "model", copy_function=lambda a, b: Path(b).symlink_to(a))
    assert MiniLM(tmp_path / "model").name == minilm.NAME
    sums = {**minilm.DIGESTS, "onnx/model.onnx": "0" * 64}
    (tmp_path / "model/SHA256SUMS").write_text("".join(f"{sums[file]}  ./{file}\n" for file in sums))
    other = MiniLM(tmp_path / "model")
    assert other.name.startswith(f"{minilm.NAME}@")
    assert other.lexicon() is None
    with pytest.raises(EmbedderUnavailable, match="SHA-256"):
        other.embed(["text"])


def test_a_missing_carrier_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(minilm, "CARRIER", "a-package-that-is-not-there")
    with pytest.raises(EmbedderUnavailable, match="pip install") as caught:
        MiniLM().embed(["text"])
    assert caught.value.code == "service_unavailable"
    with pytest.raises(EmbedderUnavailable, match="cannot be read"):
        MiniLM(tmp_path).embed(["text"])
