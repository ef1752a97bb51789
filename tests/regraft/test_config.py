"""The configuration file: what it may say, and one line for each mistake, with its place and without a value."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import REPO
from planted_modules import run_in

from regraft.embedders import config
from regraft.embedders import settings as embedders_settings
from regraft.embedders.settings import PROVIDERS, Batch, LocalSettings, ServerSettings, settings_fields
from regraft.errors import ConfigInvalid, RegraftError

KEY = "sk-proj-Zx81kQm2Lv93Tn47"


@pytest.fixture
def written(tmp_path: Path):
    """Write a configuration file and load it."""

    def load(text: str | bytes) -> config.Config:
        path = tmp_path / "regraft.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config.load_config(path)

    return load


def one(lines: str, provider: str = "openai\n    model: m") -> str:
    """Return a file of one embedder, whose further fields begin on line 5."""
    return f"embedders:\n  a:\n    provider: {provider}\n{lines}"


# --- what it may say -------------------------------------------------------------------------------------------------


def test_all_fields(written, tmp_path):
    text = """
embedders:
  far:
    provider: openai
    base_url: http://127.0.0.1:11434/v1
    model: bge-m3
    api_key_env: MY_KEY
    model_ids: [silicon::BAAI/bge-m3]
    dimensions: 1024
    encoding: float
    prefix: "passage: "
    query_prefix: "query: "
    batch: {texts: 32, tokens: 4000}
    parallel: 8
    timeout: 90
    retries: 2
    price_per_million_tokens: 0.02
    currency: EUR
    tokenizer: tokenizer.json
  near:
    provider: local
    path: models/bge-small
    library: model2vec
"""
    found = written(text)
    assert found.there
    assert found.embedder("far") == ServerSettings(
        name="far",
        base_url="http://127.0.0.1:11434/v1",
        model="bge-m3",
        api_key_env="MY_KEY",
        model_ids=("silicon::BAAI/bge-m3",),
        dimensions=1024,
        encoding="float",
        prefix="passage: ",
        query_prefix="query: ",
        batch=Batch(texts=32, tokens=4000),
        parallel=8,
        timeout=90,
        retries=2,
        price_per_million_tokens=0.02,
        currency="EUR",
        tokenizer=tmp_path / "tokenizer.json",
    )
    near = LocalSettings(name="near", path=tmp_path / "models" / "bge-small", library="model2vec", model="bge-small")
    assert found.embedder("near") == near


def test_what_is_not_said_has_a_default(written):
    found = written(one("")).embedder("a")
    assert found == ServerSettings(name="a", model="m")
    assert (found.base_url, found.batch.texts, found.parallel) == ("https://api.openai.com/v1", 64, 4)


def test_every_field_is_known_and_has_a_right_example(written):
    for provider, kind in PROVIDERS.items():
        assert {field.name for field in settings_fields(kind).values()} == set(kind.__struct_fields__) - {"name"}
        needed = "openai" if provider == "openai" else "local\n    path: p"
        for field in settings_fields(kind).values():
            advice = config._show_example(field).partition("`")[2].rstrip("`")
            text = one("", needed) if field.name in needed else one(f"    {advice}\n", needed)
            if field.name != "model" and provider == "openai":
                text += "    model: m\n"
            assert written(text).embedder("a")


def test_anchors_and_merged_mappings(written):
    text = one("") + "    model_ids: &ids [p::x]\n  b: &b\n    provider: openai\n    model: n\n    model_ids: *ids\n"
    found = written(text + "  c:\n    <<: *b\n    model: o\n")
    assert found.embedder("c") == ServerSettings(name="c", model="o", model_ids=("p::x",))


@pytest.mark.parametrize("text", ["", "# nothing\n", "embedders: {}\n"])
def test_a_file_without_embedders(text, written):
    found = written(text)
    assert found.there
    assert found.embedders == {}


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16"])
def test_as_editors_save_it(coding, written):
    assert written(one('    prefix: "查询："\n').encode(coding)).embedder("a").prefix == "查询："


def test_paths_are_those_of_the_file(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME" if os.name != "nt" else "USERPROFILE", str(tmp_path / "home"))
    (tmp_path / "regraft.yaml").write_text(one("    tokenizer: ~/t.json\n", "local\n    path: ../models/x"), "utf-8")
    found = config.load_config(None).embedder("a")
    assert found.path.resolve() == (tmp_path.parent / "models" / "x").resolve()
    assert found.tokenizer == tmp_path / "home" / "t.json"


@pytest.mark.skipif(os.name == "nt", reason="on Windows, Python takes any folder beside the home folder for a user's")
def test_a_folder_of_a_user_who_does_not_exist_is_a_path_like_any_other(written):
    found = written(one("    tokenizer: ~nobody-of-this-name/t.json\n") + "reuse: [~nobody-of-this-name/old.zip]\n")
    assert found.embedder("a").tokenizer.parts[-2:] == ("~nobody-of-this-name", "t.json")
    assert [path.parts[-2:] for path in found.reuse] == [("~nobody-of-this-name", "old.zip")]


def test_models_of_bases():
    settings = ServerSettings(name="a", model="bge-m3", model_ids=("silicon::BAAI/bge-m3",))
    assert settings.serves("ollama::bge-m3")
    assert settings.serves("silicon::BAAI/bge-m3")
    assert not settings.serves("silicon::bge-large")
    # Other systems name no provider.
    assert settings.serves("bge-m3")
    assert not settings.serves("bge-large")
    assert not settings.serves("BAAI/bge-m3")


# --- where there is none ---------------------------------------------------------------------------------------------


def said(error: pytest.ExceptionInfo[RegraftError], code: str) -> str:
    assert error.value.code == code
    assert error.value.exit_status == 2
    return str(error.value)


def test_no_file_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RegraftError) as error:
        config.load_config(None).embedder("mine")
    assert "regraft.yaml: no embedder mine (there is no such file)" in said(error, "EmbedderUnknown")


def test_an_embedder_that_the_file_has_not(written):
    for text, known in (
        (one("") + "  b:\n    provider: openai\n    model: n\n", "it has a, b"),
        ("", "it has no embedders"),
    ):
        with pytest.raises(RegraftError) as error:
            written(text).embedder("c")
        assert f"no embedder c ({known})" in said(error, "EmbedderUnknown")


def test_a_file_that_was_named_and_is_not_there(tmp_path):
    with pytest.raises(RegraftError) as error:
        config.load_config(tmp_path / "other.yaml")
    assert str(tmp_path / "other.yaml") in said(error, "SourceNotFound")


def test_a_folder(tmp_path):
    with pytest.raises(RegraftError) as error:
        config.load_config(tmp_path)
    assert str(tmp_path) in said(error, "SourceUnreadable")


# --- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES = {
    "a list": ("- a\n", 1, "the file must be a mapping"),
    "an unknown part": ("embedder:\n  a: 1\n", 1, "write `embedders`"),
    "no mapping of embedders": ("\nembedders: 3\n", 2, "`embedders` must be a mapping"),
    "nothing of an embedder": ("embedders:\n  a:\n", 2, "embedder a must be a mapping"),
    "a number for a name": ("embedders:\n  5:\n    provider: openai\n", 2, "write it in quotes"),
    "no provider": ("embedders:\n  a:\n    model: m\n", 3, "is missing; write `provider: openai` or `provider: local`"),
    "an unknown provider": (one("", "ollama"), 3, "is unknown; write `provider: openai`"),
    "a provider that is a list": (one("", "[openai]"), 3, "is unknown"),
    "no model": (one("", "openai"), 3, "`model` of embedder a is missing (the model's name on the server)"),
    "no path": (one("", "local"), 3, "`path` of embedder a is missing"),
    "a mistyped field": (one("    parralel: 3\n"), 5, "of embedder a is not a known field; write `parallel`"),
    "a field of another provider": (one("    path: x\n"), 5, "known fields: provider, model, model_ids"),
    "the name as a field": (one("    name: x\n"), 5, "`name` of embedder a is not a known field"),
    "a mistyped field of a batch": (one("    batch:\n      text: 3\n"), 6, "of the batch of embedder a is not a known"),
    "text for a number": (one("    parallel: many\n"), 5, "must be a whole number from 1 to 64 (requests at the"),
    "a number for text": (one("    prefix: 5\n"), 5, "`prefix` of embedder a must be text"),
    "yes for text": (one("    currency: yes\n"), 5, "write, for example, `currency: USD`"),
    "yes for a number": (one("    retries: yes\n"), 5, "must be a whole number from 0 to 100"),
    "a number too small": (one("    batch:\n      tokens: 9\n      texts: 0\n"), 7, "`texts` of embedder a must be"),
    "a batch that is a number": (one("    batch: 64\n"), 5, "write, for example, `batch: {texts: 64}`"),
    "no end of time": (one("    timeout: .inf\n"), 5, "`timeout` of embedder a must be a number above 0"),
    "no number": (one("    price_per_million_tokens: .nan\n"), 5, "must be a number from 0"),
    "no value": (one("    prefix:\n"), 5, "write, for example, `prefix: 'passage: '`"),
    "another encoding": (one("    encoding: hex\n"), 5, "must be `base64` or `float`"),
    "one id for a list": (one("    model_ids: a::b\n"), 5, "must be a list of texts"),
    "an id without a provider": (one("    model_ids:\n      - b\n"), 5, "write, for example, `model_ids: ['silicon::"),
    "a list that is in itself": (one("    model_ids: &a [*a]\n"), 5, "must be a list of texts"),
    "a list for a path": (one("", "local\n    path: [a]"), 4, "`path` of embedder a must be a path"),
    "a price in words": (one("    price_per_million_tokens: $1\n"), 5, "must be a number from 0"),
    "an address of another kind": (one("    base_url: ftp://host\n"), 5, "write, for example, `base_url: 'http://127.0.0."),
    "an address without a host": (one("    base_url: 'http://'\n"), 5, "`base_url` of embedder a must be"),
    "an address with a password": (one("    base_url: http://me:secret1@host/v1\n"), 5, "without user, password"),
    "an address with a query": (one("    base_url: https://host/v1?key=secret1\n"), 5, "without user, password"),
    "an address with too much": (one("    base_url: https://host/v1/embeddings\n"), 5, "up to `/v1`"),
    "a variable in small letters": (one("    api_key_env: my_key\n"), 5, "for example, `api_key_env: OPENAI_API_KEY`"),
    "a field twice": (one("    model: n\n"), 5, "duplicate field `model`"),
    "an embedder twice": (one("") + "  a: 1\n", 5, "duplicate field `a`"),
    "wrong indentation": (one("   x: 1\n"), 5, "this is not YAML (expected <block end>"),
    "a tab": (one("\tx: 1\n"), 5, "this is not YAML (found character"),
    "a type of Python's": (one("    prefix: !!python/name:os.system x\n"), 5, "could not determine a constructor"),
    "a day that there is not": (one("    prefix: 2001-99-99\n"), 5, "an invalid value"),
    "an anchor that there is not": (one("    prefix: *other\n"), 5, "found undefined alias"),
    "a list for a name": ("embedders:\n  ? [a]\n  : 5\n", 2, "found unhashable key"),
    "two documents": (one("---\na: 1\n"), 5, "found another document"),
    "no text": (b"embedders:\n  a: \xff\n", 2, "a character that is not valid in text"),
    "a control character": ("embedders:\n  \x01: 1\n", 2, "a character that is not valid in text"),
    "lists in lists": ("[" * 600 + "]" * 600, 1, "lists are nested too deeply"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_line_and_what_to_write(name, written, tmp_path):
    text, line, advice = MISTAKES[name]
    with pytest.raises(RegraftError) as error:
        written(text)
    message = said(error, "ConfigInvalid")
    assert message.startswith(f"{tmp_path / 'regraft.yaml'}:{line}: ")
    assert advice in message
    assert "secret1" not in message
    assert "\n" not in message


# --- keys ------------------------------------------------------------------------------------------------------------

KEYS = [
    KEY,
    "sk-ant-api03-Q9z_mm2-1111",
    "gsk_a8Bc7De6Fg5Hi4Jk3",
    "hf_AbCdEfGh12345678",
    "AIzaSyA1234567890abcdefghij",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "Bearer 12345678",
    "0123456789abcdef0123456789abcdef",
]
NO_KEYS = [
    "text-embedding-3-large",
    "BAAI/bge-m3",
    "multilingual-e5-large-instruct",
    "nomic-embed-text-v1.5",
    "Represent this sentence for searching relevant passages: ",
    "9f3b2c1a-7d44-4b8e-9c55-0a1b2c3d4e5f::bge-m3",
    "https://api.cloudflare.com/client/v4/accounts/0123456789abcdef0123456789abcdef/ai/v1",
    "models--BAAI--bge-m3/snapshots/5617a9f61b028005a4858fdac845db406aefb181",
    "task-specific-embeddings",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("field", ["api_key", "api_key_env", "model", "prefix", "other", "token"])
def test_a_key_in_the_file_is_refused_and_not_shown(field, key, written):
    with pytest.raises(ConfigInvalid) as error:
        written(one(f"    {field}: {key}\n", "openai"))
    assert ":4: " in str(error.value)
    assert "`api_key_env: MY_KEY`" in str(error.value)
    for piece in (key, key[:10], key[-10:]):
        assert piece not in str(error.value)


@pytest.mark.parametrize("field", ["api_key", "apikey", "Authorization", "token"])
def test_a_field_for_a_key_is_refused_whatever_is_in_it(field, written):
    with pytest.raises(ConfigInvalid) as error:
        written(one(f"    {field}: hunter2\n"))
    assert "`api_key_env: MY_KEY`" in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("text", [f"{KEY}: 1\n", f"a: *{KEY}\n", f"a: !{KEY} 1\n", f"a: &{KEY} [\n", f'a: "\\{KEY}"\n'])
def test_a_key_where_yaml_itself_finds_fault(text, written):
    with pytest.raises(ConfigInvalid) as error:
        written(text)
    assert KEY[8:] not in str(error.value)


@pytest.mark.parametrize("text", NO_KEYS)
def test_what_is_no_key(text):
    assert not embedders_settings.looks_like_key(text)


@pytest.mark.parametrize("key", [*KEYS, "hunter2", "abc"])
def test_a_key_is_taken_out_of_a_text(key):
    for text in (key, f'{{"error": "Bad key {key}."}}', f"Bearer {key}", f"{key[:8]}***{key[-4:]}", key.upper()):
        assert key.lower() not in embedders_settings.redact(f"no {text} here", key).lower()
    assert embedders_settings.redact(f"no {key}!", key).startswith("no ")


def test_a_text_without_a_key_stays_as_it_is():
    text = "The model text-embedding-3-large does not exist (request 12)."
    assert embedders_settings.redact(text, KEY) == text
    assert embedders_settings.redact(text) == text


# --- the page --------------------------------------------------------------------------------------------------------

PAGE = (REPO / "docs" / "embedders.md").read_text("utf-8")


@pytest.mark.parametrize("example", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
def test_examples_of_the_page_are_right(example, written):
    assert len(written(example).embedders) >= 2


def test_the_page_shows_every_field():
    for kind in (*PROVIDERS.values(), Batch):
        for name in settings_fields(kind):
            assert name == "batch" or f"| `{name}` |" in PAGE or f"| `batch.{name}` |" in PAGE


# --- what is no file of settings -------------------------------------------------------------------------------------


def refused(place: Path, arguments: tuple[object, ...]) -> str:
    """Run a command that reads ``regraft.yaml`` of the working directory, and return the one line that it says."""
    before = sorted(place.iterdir())
    done = run_in(place, sys.executable, "-P", "-m", "regraft", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert sorted(place.iterdir()) == before
    return done.stderr


COMMANDS = [("embedders",), ("backfill", ".", "--dry-run")]


@pytest.mark.thorough
@pytest.mark.skipif(os.name == "nt", reason="there are no such files there")
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "device without an end", "terminal", "socket"])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(
    kind: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    here = tmp_path / "here"
    shutil.copytree(REPO / "sample_v1" / "backup", here)
    place = here / "regraft.yaml"
    with ExitStack() as stack:
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "link to a pipe":
            os.mkfifo(tmp_path / "pipe")
            place.symlink_to(tmp_path / "pipe")
        elif kind == "socket":
            bound = stack.enter_context(socket.socket(socket.AF_UNIX))
            # The path of a socket must be short.
            monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
            monkeypatch.chdir(here)
            bound.bind(place.name)
        else:
            place.symlink_to("/dev/zero" if kind == "device without an end" else "/dev/tty")
        if arguments[0] == "backfill":
            # A store of a kind that backfill takes is looked for first.
            arguments = ("embedders", "--config", "regraft.yaml")
        assert "a pipe, a socket or a device, not a file" in refused(here, arguments)


@pytest.mark.thorough
def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    for text in (b"# a comment", b"- ", b"x: [1]\n", b"\0"):
        (tmp_path / "regraft.yaml").write_bytes(text * (21_000_000 // len(text)))
        assert "it has more than 1,048,576 bytes, which is too large for a configuration" in refused(
            tmp_path, ("embedders",)
        )


@pytest.mark.thorough
def test_as_much_as_may_be_is_read(written) -> None:
    text = one("    base_url: http://127.0.0.1/v1\n")
    comment = "# note\n" * ((config._MOST_BYTES - len(text)) // 7)
    assert list(written(text + comment).embedders) == ["a"]
