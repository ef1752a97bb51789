"""Embedders in this process: tiny real models on disk, and folders that hold none."""

from __future__ import annotations

import json
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from extras import needs, optional

from regraft import embedders
from regraft.embedders import Halted, LocalSettings, TextsRejected, open_embedder
from regraft.errors import AnswerUnfit, RegraftError

tokenizers = optional("tokenizers")
pytestmark = needs("models")

WORDS = ["[UNK]", "[PAD]", "river", "gauge", "bread", "water", "query", "is", "no", "the"]
MATRIX = np.random.default_rng(1).standard_normal((len(WORDS), 6)).astype("float32")


def tokenizer() -> Any:
    model = tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made


@pytest.fixture
def model2vec_folder(tmp_path: Path) -> Path:
    """Return the folder of a model of a few words."""
    import model2vec

    folder = tmp_path / "tiny"
    model2vec.StaticModel(MATRIX, tokenizer()).save_pretrained(folder)
    return folder


@pytest.fixture
def sentence_folder(tmp_path: Path) -> Path:
    """Return the folder of a sentence-transformers model with the same words and numbers."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    modules = pytest.importorskip("sentence_transformers.models")
    folder = tmp_path / "tiny-st"
    static = modules.StaticEmbedding(tokenizer(), embedding_weights=MATRIX)
    library.SentenceTransformer(modules=[static], device="cpu").save(str(folder))
    return folder


def mean(*words: str) -> bytes:
    rows = [MATRIX[WORDS.index(word)] for word in words]
    return np.mean(rows, axis=0).astype("<f4").tobytes()


def close(one: bytes, other: bytes) -> bool:
    return bool(np.allclose(np.frombuffer(one, "<f4"), np.frombuffer(other, "<f4"), atol=1e-6))


def holds_to_the_protocol(folder: Path, **more: Any) -> None:
    """Hold an embedder of the tiny model to what every embedder does."""
    with open_embedder(LocalSettings(name="mine", path=folder, query_prefix="query ", **more)) as embedder:
        sent: list[Any] = []
        made = embedder.embed(["river gauge", "bread"], sending=sent.append)
        assert [len(vector) for vector in made.vectors] == [24, 24]
        assert close(made.vectors[0], mean("river", "gauge"))
        assert close(made.vectors[1], mean("bread"))
        assert (made.tokens, made.requests, sent) == (None, 1, [["river gauge", "bread"]])
        assert close(embedder.embed(["bread"], query=True).vectors[0], mean("query", "bread"))
        assert embedder.tokens("the river is water " * 300) == 1200
        embedder.halt()
        with pytest.raises(Halted):
            embedder.embed(["bread"])


@pytest.mark.parametrize("library", [None, "model2vec"])
def test_model2vec(library: str | None, model2vec_folder: Path) -> None:
    assert embedders.model_library(model2vec_folder) == "model2vec"
    holds_to_the_protocol(model2vec_folder, library=library)


@pytest.mark.parametrize("library", [None, "sentence-transformers"])
def test_sentence_transformers(library: str | None, sentence_folder: Path) -> None:
    assert embedders.model_library(sentence_folder) == "sentence-transformers"
    holds_to_the_protocol(sentence_folder, library=library)


def test_several_threads_share_a_model(model2vec_folder: Path) -> None:
    found: dict[int, list[bytes]] = {}
    texts = ["river gauge", "bread water", "the river"]
    with open_embedder(LocalSettings(name="mine", path=model2vec_folder)) as embedder:
        expected = embedder.embed(texts).vectors

        def ask(number: int) -> None:
            found[number] = embedder.embed(texts).vectors

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == dict.fromkeys(range(8), expected)


def test_a_text_without_a_known_word_has_no_direction(model2vec_folder: Path) -> None:
    with (
        open_embedder(LocalSettings(name="mine", path=model2vec_folder)) as embedder,
        pytest.raises(AnswerUnfit) as error,
    ):
        embedder.embed(["bread", "xyzzy"])
    assert (error.value.fault, error.value.position) == ("zero_vector", 1)


def test_what_the_library_raises_is_about_the_texts(model2vec_folder: Path) -> None:
    with open_embedder(LocalSettings(name="mine", path=model2vec_folder)) as embedder:
        assert isinstance(embedder, embedders.LocalEmbedder)
        embedder._more = {"batch_size": 0}
        with pytest.raises(TextsRejected) as error:
            embedder.embed(["bread"])
    assert error.value.code == "local_error"
    assert "must not be zero" in error.value.reason


def test_the_model_has_the_name_of_its_folder_unless_it_is_given_one(tmp_path: Path) -> None:
    assert LocalSettings(name="mine", path=tmp_path / "bge-small").serves("ollama::bge-small")
    assert LocalSettings(name="mine", path=tmp_path / "bge-small", model="x").serves("ollama::x")


# --- what is no model ------------------------------------------------------------------------------------------------


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(RegraftError) as error, open_embedder(LocalSettings(name="mine", path=path, **more)):
        pass
    assert (error.value.code, error.value.exit_status) == ("ModelUnreadable", 2)
    assert str(error.value).startswith(f"{path}: not a model that ")
    assert "nothing is downloaded" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("library", ["model2vec", "sentence-transformers"])
def test_a_folder_that_is_not_there_is_not_downloaded(library: str, tmp_path: Path) -> None:
    assert "(there is no such folder)" in refused(tmp_path / "minishlab" / "potion-base-8M", library=library)
    (tmp_path / "file").write_bytes(b"")
    assert "(there is no such folder)" in refused(tmp_path / "file", library=library)


def test_a_folder_with_something_else(model2vec_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert "model2vec can load (" in refused(tmp_path / "notes", library="model2vec")
    (model2vec_folder / "model.safetensors").write_bytes(b"\x01" * 40)
    assert "model2vec can load (" in refused(model2vec_folder)


def test_a_tokenizer_of_its_own_that_is_broken(model2vec_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    settings = LocalSettings(name="mine", path=model2vec_folder, tokenizer=tmp_path / "t.json")
    with pytest.raises(RegraftError) as error, open_embedder(settings):
        pass
    assert str(error.value).startswith(f"{tmp_path / 't.json'}: not a model that tokenizers can load")


@pytest.mark.parametrize(
    ("config", "library"),
    [
        (None, "sentence-transformers"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "sentence-transformers"),
        ({"model_type": "model2vec"}, "model2vec"),
        ({"normalize": True}, "model2vec"),
        ([], "sentence-transformers"),
    ],
)
def test_which_library_a_folder_is_for(config: object, library: str, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    assert embedders.model_library(tmp_path) == library


@pytest.mark.parametrize("library", ["model2vec", "sentence-transformers"])
def test_a_library_that_is_not_installed_is_named(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library.replace("-", "_"), None)
    settings = LocalSettings(name="mine", path=tmp_path, library=library)
    with pytest.raises(RegraftError) as error, open_embedder(settings):
        pass
    assert error.value.code == "WrongUsage"
    assert f'pip install "regraft[{library}]"' in str(error.value)


def test_vectors_are_little_endian_float32(model2vec_folder: Path) -> None:
    with open_embedder(LocalSettings(name="mine", path=model2vec_folder)) as embedder:
        raw = embedder.embed(["bread"]).vectors[0]
    assert list(struct.unpack("<6f", raw)) == pytest.approx(MATRIX[WORDS.index("bread")].tolist())
