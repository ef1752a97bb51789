"""What writes to a file system, told from the text of a module: the rule behind the one boundary for writes.

Names are followed through imports and their aliases. Where the kind of an object cannot be told, the name of the method
decides: a method of ours is not to be called like one of ``pathlib`` that writes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

#: Functions of ``os`` that write, or give a handle that may.
OF_OS = frozenset(
    {"chflags", "chmod", "chown", "copy_file_range", "creat", "fchmod", "fchown", "ftruncate"}
    | {"lchmod", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod", "posix_fallocate", "pwrite"}
    | {"pwritev", "remove", "removedirs", "removexattr", "rename", "renames", "replace", "rmdir", "sendfile"}
    | {"setxattr", "symlink", "truncate", "unlink", "utime", "write", "writev", "system", "popen", "startfile"}
)
#: Functions of ``shutil`` that do not write.
NOT_OF_SHUTIL = frozenset({"disk_usage", "get_terminal_size", "which", "copyfileobj"})
#: Modules that make files, whatever is called of them.
MAKERS = frozenset({"tempfile", "subprocess"})
#: Methods of ``pathlib.Path`` that write, and that nothing else is called.
OF_PATHS = frozenset(
    {"unlink", "rmdir", "mkdir", "touch", "chmod", "lchmod", "symlink_to", "hardlink_to", "link_to", "write_text"}
    | {"write_bytes", "rename"}
)
#: Our own packages, which are held against the rule themselves.
OURS = ("regraft.", "repair.", "checks.", "migrators.")
#: What is called so is open for reading, and its ``open`` takes the name of what is in it.
READERS = frozenset({"self", "tree", "zip", "archive", "alone", "directory", "database"})
#: Classes that open a file by a mode, and functions likewise.
BY_MODE = {
    "open": 1,
    "io.open": 1,
    "codecs.open": 1,
    "io.FileIO": 1,
    "gzip.open": 1,
    "gzip.GzipFile": 1,
    "bz2.open": 1,
    "bz2.BZ2File": 1,
    "lzma.open": 1,
    "lzma.LZMAFile": 1,
    "tarfile.open": 1,
    "tarfile.TarFile": 1,
    "zipfile.ZipFile": 1,
    "zipfile.PyZipFile": 1,
    "os.fdopen": 1,
}
#: Functions of libraries that write to a path.
LIBRARIES = frozenset(
    {
        "apsw.Connection",
        "sqlite3.connect",
        "pyarrow.parquet.ParquetWriter",
        "pyarrow.parquet.write_table",
        "pyarrow.OSFile",
        "pyarrow.memory_map",
        "pyarrow.create_memory_map",
        "mmap.mmap",
        "chromadb.PersistentClient",
        "logging.FileHandler",
    }
)
"""Kept short on purpose: what is not listed here writes only by a handle that a listed one gave."""


#: Statements with which SQLite opens another file.
OTHER_FILE = re.compile(r"\s*(ATTACH|VACUUM\s+INTO)\b", re.IGNORECASE)

#: What the rule has to catch.
WRITING = [
    "import os\nos.replace(a, b)",
    "import os as system\nsystem.unlink(a)",
    "from os import replace\nreplace(a, b)",
    "from os import rename as move\nmove(a, b)",
    "import os\ndo = os.remove",
    "import os\nwith_retries(os.link, a, b)",
    "import os\nos.open(a, os.O_RDWR)",
    "import os\nos.makedirs(a)",
    "import os\ngetattr(os, 'unlink')(a)",
    "import os.path\nos.truncate(a, 0)",
    "import shutil\nshutil.rmtree(a)",
    "from shutil import copyfile\ncopyfile(a, b)",
    "import shutil as files\nfiles.move(a, b)",
    "from functools import partial\nimport shutil\npartial(shutil.copy2, a)",
    "import tempfile\ntempfile.mkdtemp()",
    "from tempfile import TemporaryDirectory as Folder\nFolder()",
    "import subprocess\nsubprocess.run(['rm', a])",
    "path.unlink()",
    "(folder / 'a').mkdir(parents=True)",
    "Path(a).rename(b)",
    "path.replace(other)",
    "do = path.replace",
    "path.touch()",
    "path.write_text(a)",
    "self._path.write_bytes(a)",
    "path.symlink_to(a)",
    "path.hardlink_to(a)",
    "path.chmod(0o600)",
    "for one in paths: one.rmdir()",
    "list(map(Path.unlink, paths))",
    "open(a, 'w')",
    "open(a, mode='ab')",
    "open(a, 'r+b')",
    "open(a, mode)",
    "import io\nio.open(a, 'x')",
    "import io\nio.FileIO(a, 'w')",
    "path.open('w')",
    "path.open(mode='x', encoding='utf-8')",
    "path.open('rb' if a else 'wb')",
    "(a / b).open(how)",
    "import zipfile\nzipfile.ZipFile(a, 'w')",
    "from zipfile import ZipFile as Zip\nZip(a, mode='a')",
    "import gzip\ngzip.open(a, 'wb')",
    "import tarfile\ntarfile.open(a, 'x')",
    "import apsw\napsw.Connection(a)",
    "from apsw import Connection\nConnection(a)",
    "import chromadb\nchromadb.PersistentClient(path=a)",
    "import pyarrow.parquet as pq\npq.write_table(a, b)",
]
#: What it has to let pass.
READING = [
    "import os\nos.stat(a), os.walk(a), os.path.join(a, b), os.fsync(a)",
    "import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1)",
    "import shutil\nshutil.disk_usage(a)",
    "open(a), open(a, 'rb'), path.open(), path.open('rb'), path.open(encoding='utf-8')",
    "text.replace('a', 'b')",
    "from regraft.identity import replace\nreplace(a, b=c)",
    "import zipfile\nzipfile.ZipFile(a)",
    "self.tree.open(name)",
    "import apsw\ndef f(db: apsw.Connection) -> apsw.Connection | None: ...",
    "from regraft.ledger import durable\ndurable.replace(a, b)",
    "path.exists(), path.read_bytes(), path.stat()",
]


def writes(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the line and the text of every expression of a module that writes to a file system."""
    nodes = list(ast.walk(tree))
    names = dict(_imported(nodes))
    types = {id(inner) for kind in _types(nodes) for inner in ast.walk(kind)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    found = set()
    for node in nodes:
        if isinstance(node, ast.Call) and _opens(node, names):
            found.add((node.lineno, ast.unparse(node.func)))
        elif isinstance(node, ast.Attribute | ast.Name) and id(node) not in types:
            is_handed_on = isinstance(node, ast.Attribute) and node.attr == "replace" and id(node) not in called
            if is_handed_on or _is_writer(node, names):
                found.add((node.lineno, ast.unparse(node)))
    return sorted(found)


def _types(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Yield what only names a type: a handle that somebody is given was opened elsewhere."""
    for node in nodes:
        for name in ("annotation", "returns", "slice"):
            kind = getattr(node, name, None)
            if isinstance(kind, ast.AST):
                yield kind


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that a module gives to what it imports, with what that is called at home."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _full(node: ast.AST, names: dict[str, str]) -> str:
    """Return the full name of what an expression stands for, as far as imports tell."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id if node.id in ("open", "getattr") else "")
    if isinstance(node, ast.Attribute):
        inner = _full(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _is_writer(node: ast.Attribute | ast.Name, names: dict[str, str]) -> bool:
    """Tell whether an expression is a function that writes, or a method of paths that does, called or handed on."""
    name = _full(node, names)
    module, _, function = name.rpartition(".")
    if module in ("os", "posix", "nt"):
        return function in OF_OS
    if module == "shutil":
        return function not in NOT_OF_SHUTIL
    if module.split(".")[0] in MAKERS or name in LIBRARIES:
        return True
    return isinstance(node, ast.Attribute) and node.attr in OF_PATHS and not module.startswith(OURS)


def _opens(call: ast.Call, names: dict[str, str]) -> bool:
    """Tell whether a call opens for writing, or moves a path.

    ``replace`` of a path has one argument, that of a text has two.
    """
    name = _full(call.func, names)
    if name == "getattr":
        return any(isinstance(one, ast.Constant) and one.value in OF_OS | OF_PATHS for one in call.args[1:2])
    if name == "os.open":
        # Nowhere is no file.
        return [ast.unparse(one) for one in call.args[:1]] != ["os.devnull"]
    if name in BY_MODE:
        return _writable(_mode(call, BY_MODE[name]))
    if not isinstance(call.func, ast.Attribute) or name.startswith(OURS):
        return False
    if call.func.attr == "open" and ast.unparse(call.func.value).rpartition(".")[2].strip("_") not in READERS:
        return _writable(_mode(call, 0))
    return call.func.attr == "replace" and len(call.args) == 1 and not call.keywords


def _mode(call: ast.Call, place: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "mode":
            return keyword.value
    return call.args[place] if len(call.args) > place else None


def _writable(mode: ast.expr | None) -> bool:
    """Tell whether a mode may write: one that is no constant may."""
    if mode is None:
        return False
    if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
        return bool(set(mode.value) & set("wxa+"))
    return not isinstance(mode, ast.Constant)
