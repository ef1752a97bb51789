"""Names that write on a terminal, turn its direction or hide: no command and no page shows them as they are."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import angel_store
import apsw
import codex_mem_store
import profiles
import pytest
import stranded
from extras import needs
from fault_server import FaultServer, failing
from harness import NOW, Outcome, run
from lacking import configured
from v1 import Row, Source, base, file, folder, note, page, vector_of

from regraft.cli import cli

#: As it may not appear, and what of it a line of our own would look like.
FAKE = "regraft: all is well"
EVIL = f"evil\x1b[31m\x07\x9b2J\x7f\r\n{FAKE}\n\u202egnp\u2066\u200b\u2028\ufeff\U000e0041 <b onload=x>&"
#: The same as far as a file system takes it.
EVIL_FILE = f"evil\x1b[31m\n{FAKE}\n\u202e\u200b" if os.name != "nt" else "evil\u202e\u200b"


def unclean(text: str) -> set[str]:
    """Return the characters of an output that nobody can see, or that write elsewhere."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Co")} - {"\n", "\t"}


def check_output(done: Outcome, *, as_json: bool) -> None:
    for text in (done.stdout, done.stderr):
        assert not unclean(text), (unclean(text), text)
        assert not any(line.lstrip().startswith(FAKE) for line in text.splitlines()), text
    assert "bug in regraft" not in done.stderr
    assert done.stderr.count("\n") <= 1 or not done.stderr.startswith("regraft: ")
    if as_json:
        assert isinstance(json.loads(done.stdout), dict)


@dataclass
class World:
    """Stores with such names, and a server that answers with one."""

    place: Path
    server: FaultServer
    config: Path

    @property
    def source(self) -> Path:
        return self.place / EVIL_FILE / "v1"

    @property
    def library(self) -> Path:
        return self.place / EVIL_FILE / "library"

    def in_catalog(self, *statements: tuple[str, tuple[Any, ...]], path: Path | None = None) -> None:
        with closing(apsw.Connection(str(path or self.library / "catalog.sqlite"))) as db:
            db.execute("PRAGMA foreign_keys = OFF")
            for statement, values in statements:
                db.execute(statement, values)


def source_of(server_text: str = "fog") -> Source:
    model = {"id": f"m{EVIL}", "name": EVIL, "provider": "acme", "group": EVIL}
    items = [
        file("f", "F", name=f"{EVIL_FILE}.pdf"),
        page("p", "P", address=f"https://example.org/{EVIL}"),
        note("n", "N", text=f"{EVIL} {server_text}"),
        folder("d", "D", path=f"/home/{EVIL}"),
    ]
    rows = [Row(loader, f"{server_text} of {loader}", source=f"/{EVIL}/{loader}.md") for loader in "FPND"]
    rows += [Row("F", f"without a vector {EVIL}", vector=None), Row(EVIL, EVIL)]
    other = base(f"bad{EVIL_FILE[:4]}", note("o", "O", text=EVIL), name=EVIL, model=model)
    llm = {"providers": [{"id": "acme", "name": EVIL, "enabled": True, "models": [model]}]}
    return Source([base("kb", *items, name=f"{EVIL} one", model=model), other], {"kb": rows, "badevil": b"junk"}, llm)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    (place / EVIL_FILE).mkdir()
    source_of().write(place / EVIL_FILE / "v1")
    target = place / EVIL_FILE / "library"
    done = run("migrate", place / EVIL_FILE / "v1", "--to", target, "--now", NOW, "--carry-text")
    assert done.status == 1
    check_output(done, as_json=False)
    return place


@pytest.fixture
def world(stores: Path, tmp_path: Path, server: FaultServer) -> World:
    made = World(tmp_path / "world", server, configured(tmp_path / "regraft.yaml", server))
    shutil.copytree(stores, made.place)
    server.behave = failing(400, EVIL)
    made.in_catalog(
        ("UPDATE knowledge_base SET name = name || ?", (EVIL,)),
        ("UPDATE knowledge_item SET error = ? WHERE status = 'failed'", (EVIL,)),
        ("UPDATE knowledge_item SET data = '{' || ? WHERE type = 'url'", (EVIL,)),
        ("UPDATE knowledge_base SET error = ? WHERE status = 'failed'", (EVIL,)),
    )
    with closing(apsw.Connection(str(made.library / ".regraft" / "ledger.sqlite"))) as db:
        db.execute("UPDATE run SET source = source || ?", (EVIL,))
    return made


def in_place(*more: object) -> Callable[[World], list[list[object]]]:
    return lambda world: [[world.library, *more]]


def codex(world: World) -> Path:
    path = codex_mem_store.write(world.place / EVIL_FILE / "codex", projects=1, notes=2)
    codex_mem_store.run_sql(path, "UPDATE projects SET name = ?, slug = ?", EVIL, EVIL, triggers=False)
    codex_mem_store.run_sql(path, "UPDATE memory_items SET title = title || ?", EVIL)
    return path


def angel(world: World) -> Path:
    notes = {f"{EVIL_FILE}/a.md": f"# {EVIL_FILE[:12]}\nthe fog bell\r\n\x1b[31mred\u202e\n"}
    return angel_store.build(world.place / EVIL_FILE / "angel", notes).root


def after_upgrade(world: World) -> Path:
    made = stranded.profile(world.place / EVIL_FILE / "upgraded", source_of("lamp"), lost=("kb",))
    world.in_catalog(("UPDATE knowledge_base SET name = ?", (EVIL,)), path=made / stranded.DATABASE)
    return made


def parquet(world: World) -> Path:
    path = world.place / EVIL_FILE / "units.parquet"
    assert run("export", world.library, path).status in (0, 1)
    return path


def undoable(world: World) -> list[list[object]]:
    assert run("repair", world.library, "-y").status in (0, 1)
    return [[world.library], [world.library, EVIL]]


def queries(world: World) -> Path:
    path = world.place / "queries.jsonl"
    vector = list(memoryview(vector_of("fog")).cast("f"))
    path.write_text(json.dumps({"id": EVIL, "vector": vector}) + "\n", "utf-8")
    return path


def embedded(world: World, *more: object) -> list[object]:
    return ["--config", world.config, "--embedder", "mine", *more]


#: The arguments of every command, each list one run of it.
COMMANDS: dict[str, Callable[[World], list[list[object]]]] = {
    "inspect": lambda world: [[world.source], [world.library], [codex(world)], [angel(world)], [world.place / EVIL]],
    "check": lambda world: [
        [world.source],
        [world.library],
        [world.library, "--base", EVIL],
        [codex(world)],
        [world.library, "--part", "50%", "--state", world.place / EVIL],
    ],
    "migrate": lambda world: [
        [world.source, "--to", world.place / EVIL_FILE / "new", "--now", NOW],
        [world.source, "--to", world.library, "--now", NOW],
        [world.source, "--to", world.place / "mapped", "--map-model", EVIL],
    ],
    "search": lambda world: [
        [world.library, "fog", "--base", "kb", "--mode", "bm25"],
        [world.library, EVIL, "--base", "kb", *embedded(world)],
        [codex(world), "evil"],
    ],
    "compare": lambda world: [
        [world.source, world.library],
        [world.source, world.library, "--queries", queries(world)],
    ],
    "certify": lambda world: [[world.library], [world.source, world.library], [world.library, *embedded(world), "-y"]],
    "recall": lambda world: [[angel(world), 0], [world.place / EVIL_FILE / "angel", 7]],
    "embedders": in_place("--snippet"),
    "export": in_place(Path("units.parquet")),
    "import": lambda world: [[parquet(world), "--to", world.place / EVIL_FILE / "imported"]],
    "explain": lambda _: [[EVIL], ["item.tombstone"]],
    "fix": in_place("-y"),
    "gc": in_place("-y"),
    "sync": lambda world: [
        [world.library, "--base", "kb", "--no-embed", "-y"],
        [world.library, "--base", "kb", "--source", world.place / EVIL_FILE, "--no-embed", "-y"],
    ],
    "repair": in_place("-y"),
    "reconcile": in_place("-y"),
    "clear-failed": lambda world: [[codex(world), "-y"], [world.library]],
    "backfill": lambda world: [[world.library, "-y", *embedded(world, "--no-probe")]],
    "rebuild": lambda world: [[codex(world), "-y", *embedded(world)]],
    "restore": lambda world: [
        [world.library, "-y", "--base", "kb", "--model", "acme::embed", "--dimensions", 8, *embedded(world)]
    ],
    "upgrade": in_place("-y"),
    "rescue": lambda world: [[after_upgrade(world), "-y"]],
    "install": lambda world: [
        [world.library, "-y", "--profile", profiles.profile(world.place / EVIL_FILE / "profile")]
    ],
    "pack": lambda world: [[world.library, world.place / EVIL_FILE / "pack.zip"]],
    "fleet": lambda world: [
        ["check", world.place / EVIL_FILE, "--results", world.place / "checked.parquet"],
        ["check", EVIL, "--results", world.place / "nothing.parquet"],
        ["backfill", EVIL, "--results", world.place / "filled.parquet", *embedded(world, "--no-probe")],
        ["resume", world.place / EVIL_FILE / "library"],
    ],
    "history": in_place("-v"),
    "undo": undoable,
}


def test_every_command_is_tried() -> None:
    # The page has tests of its own, with such names.
    assert {*COMMANDS, "ui"} == set(cli.commands)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", ["text", "verbose", "json"])
@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=needs("parquet")) if one == "import" else one for one in COMMANDS]
)
def test_no_name_writes_on_the_terminal(command: str, form: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.place / EVIL_FILE)
    options = {"text": [], "verbose": ["-v"], "json": ["--json"]}[form]
    for arguments in COMMANDS[command](world):
        check_output(run(command, *arguments, *options), as_json=form == "json")


def test_names_are_seen_as_escapes(world: World) -> None:
    seen = run("inspect", world.library).stdout
    assert r"evil\x1b[31m\x07\x9b2J\x7f" in seen
    assert r"\u202egnp\u2066\u200b" in seen
    assert run("inspect", world.library, "--json").document["bases"][0]["name"].startswith(EVIL)


@pytest.mark.parametrize("name", ["migrate", "check"])
def test_pages_show_no_name_as_it_is(name: str, world: World) -> None:
    path = world.place / "page.html"
    if name == "migrate":
        run("migrate", world.source, "--to", world.place / "again", "--report", path, "--now", NOW)
    else:
        run("check", world.library, "--report", path)
    text = path.read_text("utf-8")
    assert not unclean(text)
    assert "<b onload" not in text
    assert "<script" not in text
    assert "default-src 'none'" in text


@pytest.mark.skipif(os.name != "posix", reason="every name is Unicode here")
def test_names_that_are_no_utf8(world: World) -> None:
    place = Path(os.fsdecode(bytes(world.place) + b"/\xff\x9b2J"))
    shutil.copytree(world.source, place / "v1")
    for arguments in (
        ("inspect", place / "v1"),
        ("check", place / "v1"),
        ("migrate", place / "v1", "--to", world.place / "lib"),
        ("migrate", world.source, "--to", place / "lib"),
        ("inspect", place / "nothing"),
    ):
        for options in ([], ["--json"]):
            check_output(run(*arguments, *options), as_json=bool(options))
