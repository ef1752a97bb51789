"""Recognizes the application that a Chroma folder belongs to, and names its collections as the user knows them.

``docs/formats/chroma.md``, "Applications". The application's own database is only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.formats.chroma.database import ChromaCollection
from regraft.language import tr

#: Open WebUI: the folder of its vectors, and the database beside that folder.
OPEN_WEBUI_FOLDER, OPEN_WEBUI_DATABASE = "vector_db", "webui.db"
#: Collections of MemPalace.
_MEMPALACE = {"mempalace_drawers": tr("drawers of the palace"), "mempalace_closets": tr("closets of the palace")}
#: Open WebUI's own collection, and the prefixes of those of files and of memories.
_BASES, _FILE, _MEMORY = "knowledge-bases", "file-", "user-memory-"
#: Tables of Open WebUI and the column with the title.
_TITLES = {"knowledge": "name", "file": "filename"}


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The application of a Chroma folder."""

    #: "open-webui", "mempalace", or "none".
    application: str
    #: What each collection is for the user, by the collection's id.
    titles: dict[str, str] = msgspec.field(default_factory=dict)
    #: The name alone of the row that each collection belongs to, by the collection's id.
    names: dict[str, str] = msgspec.field(default_factory=dict)
    #: Names of collections that no row of the application refers to, by the collection's id.
    unreferenced: dict[str, str] = msgspec.field(default_factory=dict)
    #: Titles of the application's rows whose collection is missing.
    without_collection: tuple[str, ...] = ()
    #: Why the application's database cannot be read; None if it can.
    problem: str | None = None

    def base_name(self, collection: ChromaCollection) -> str:
        """Return the name of the base that a collection becomes."""
        return self.names.get(collection.id) or self.titles.get(collection.id) or collection.name


def open_webui_database(root: Path) -> Path | None:
    """Return the path of Open WebUI's database if a Chroma folder belongs to Open WebUI, else None."""
    absolute = root.absolute()
    path = absolute.parent / OPEN_WEBUI_DATABASE
    return path if absolute.name == OPEN_WEBUI_FOLDER and path.is_file() else None


def read_layout(root: Path, collections: Iterable[ChromaCollection]) -> Layout:
    """Recognize the application that a Chroma folder belongs to, and name its collections."""
    collections = list(collections)
    webui = open_webui_database(root)
    if webui is not None:
        try:
            return _read_open_webui(webui, collections)
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            return Layout(application="open-webui", problem=str(error))
    titles = {one.id: _MEMPALACE[one.name] for one in collections if one.name in _MEMPALACE}
    return Layout(application="mempalace" if titles else "none", titles=titles)


def _read_open_webui(path: Path, collections: list[ChromaCollection]) -> Layout:
    """Read the titles of Open WebUI's knowledge bases and files; ``path`` is that of its database.

    Raises:
        apsw.Error, OSError, UnicodeDecodeError: the database cannot be read.
    """
    titles: dict[str, str] = {}
    named: dict[str, str] = {}
    unreferenced: dict[str, str] = {}
    with sqlite.open_readonly(path, beside_writers=True) as db:
        tables = sqlite.table_names(db)
        has_memories = "memory" in tables
        for one in collections:
            title, name = _read_title(db, one.name, tables)
            if name is not None:
                named[one.id] = name
            if title is not None:
                titles[one.id] = title
            elif has_memories and {"knowledge", "file"} <= tables:
                unreferenced[one.id] = one.name
        names = {one.name for one in collections}
        missing = []
        if "knowledge" in tables:
            rows = db.execute("SELECT CAST(id AS TEXT), CAST(name AS TEXT) FROM knowledge ORDER BY name, id")
            missing = [str(title) for key, title in rows if str(key) not in names]
    return Layout(
        application="open-webui",
        titles=titles,
        names=named,
        unreferenced=unreferenced,
        without_collection=tuple(missing),
    )


def ids_by_word(layout: Layout, collections: Iterable[ChromaCollection]) -> dict[str, str]:
    """Map the words by which a user can name a collection to its id.

    Such a word is the collection's name, its title, or the name alone that the application shows, if it is unique; in
    this order.
    """
    words: dict[str, str] = {}
    for named in ({one.id: one.name for one in collections}, layout.titles, layout.names):
        count = Counter(named.values())
        words |= {word: key for key, word in named.items() if count[word] == 1 and word not in words}
    return words


def _read_title(db: apsw.Connection, name: str, tables: set[str]) -> tuple[str | None, str | None]:
    """Return the title and the name that the collection ``name`` has in Open WebUI; each may be None.

    Args:
        db: Open WebUI's database.
        name: name of the collection.
        tables: tables of the database.
    """
    if name == _BASES:
        return tr("index of knowledge bases"), None
    if name.startswith(_MEMORY):
        user = name.removeprefix(_MEMORY)
        if "memory" in tables and db.execute("SELECT 1 FROM memory WHERE user_id = ?", (user,)).get is not None:
            return tr("memories of user {user}", user=user), None
        return None, None
    table, key = ("file", name.removeprefix(_FILE)) if name.startswith(_FILE) else ("knowledge", name)
    if table not in tables:
        return None, None
    row: object = db.execute(f"SELECT CAST({_TITLES[table]} AS TEXT) FROM {table} WHERE id = ?", (key,)).get
    if row is None:
        return None, None
    title = tr("file {name}", name=row) if table == "file" else tr("knowledge base {name}", name=row)
    return title, str(row)
