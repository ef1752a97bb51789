"""Measures how a large chat history beside small knowledge tables slows the reading of a profile.

``python -m benchmarks.profile`` makes a profile of the sample's state with an IndexedDB of 600 MB of chats around it (a
minute, and twice that on the disk), then migrates it and its backup of version 6, each in a fresh process. The floor is
reading the same bytes once. The exit status is 1 when a limit is broken: 60 s, 1,000 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium_files import IDB, idb_order, local_key, local_text, names, row, row_key  # noqa: E402
from leveldb_files import Folder, TableSpec, batch  # noqa: E402

BACKUP = ROOT / "sample_v1" / "backup"
FILES, CHATS, NOTES = 1, 2, 3
#: Chromium's tables have about this size.
TABLE_BYTES = 2 << 20
CHAT_BYTES = 8_000
MAX_SECONDS, MAX_PEAK_MB = 60, 1_000
_KILOBYTES = 1024 if sys.platform == "darwin" else 1


def chats(megabytes: int) -> list[list[tuple[bytes, int, bytes]]]:
    """Return the entries of tables that hold that many MB of chats, in the order of their keys."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(4_000)]
    tables = []
    each = TABLE_BYTES // CHAT_BYTES
    for table in range(megabytes * (1 << 20) // TABLE_BYTES):
        entries = []
        for place in range(each):
            number = table * each + place
            text = " ".join(chance.choices(words, k=CHAT_BYTES // 7))
            value = row({"id": f"block-{number:08}", "messageId": "m", "content": text})
            entries.append((row_key(CHATS, f"block-{number:08}"), 1_000 + number, value))
        tables.append(entries)
    return tables


def make_profile(profile: Path, megabytes: int) -> None:
    """Make a profile of the sample's state."""
    shutil.copytree(BACKUP / "Data", profile / "Data")
    state: dict[str, Any] = json.loads((BACKUP / "data.json").read_text("utf-8"))
    text = local_text(state["localStorage"]["persist:cherry-studio"], wide=True)
    entry = (local_key("file://", "persist:cherry-studio"), text)
    Folder(profile / "Local Storage" / "leveldb", logs={3: [batch(1, [entry])]}).write()
    stores = names({FILES: "files", CHATS: "message_blocks", NOTES: "knowledge_notes"})
    small = [(key, 1 + place, value) for place, (key, value) in enumerate(stores.items())]
    for store, name in ((FILES, "files"), (NOTES, "knowledge_notes")):
        rows = state["indexedDB"].get(name, [])
        small += [(row_key(store, one["id"]), 500 + place, row(one)) for place, one in enumerate(rows)]
    tables = [TableSpec(5, small, level=2)]
    tables += [TableSpec(10 + place, entries, level=2, kind=1) for place, entries in enumerate(chats(megabytes))]
    folder = profile / "IndexedDB" / "file__0.indexeddb.leveldb"
    Folder(folder, IDB, idb_order, tables=tables, logs={99_999: []}).write()


def packed(profile: Path, archive: Path) -> Path:
    """Pack a profile as a backup of version 6."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr("metadata.json", json.dumps({"version": 6, "appName": "Cherry Studio"}))
        for path in sorted(profile.rglob("*")):
            file.write(path, path.relative_to(profile))
    return archive


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds and its peak memory in MB."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024 / _KILOBYTES / 1e6


def reading_seconds(folder: Path) -> float:
    """Return how long reading every byte of a folder takes."""
    begin = time.perf_counter()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 20):
                    pass
    return time.perf_counter() - begin


def main() -> None:
    """Measure, print, and end with 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=600, help="of chats [default: 600]")
    parser.add_argument("--make", type=Path, help="only make the profile, in this folder")
    asked = parser.parse_args()
    if asked.make:
        make_profile(asked.make, asked.megabytes)
        return
    broken = False
    with tempfile.TemporaryDirectory(prefix="regraft-benchmark-") as place:
        profile = Path(place, "CherryStudio")
        # In a process of its own: what this one holds would count as the measured ones' memory.
        make = [sys.executable, "-m", "benchmarks.profile", "--make", str(profile)]
        subprocess.run([*make, "--megabytes", str(asked.megabytes)], check=True)
        size = sum(path.stat().st_size for path in profile.rglob("*") if path.is_file()) / 1e6
        print(f"{size:,.0f} MB of profile; reading its bytes once takes {reading_seconds(profile):.2f} s")
        for name, source in (("profile", profile), ("zip", packed(profile, Path(place, "backup.zip")))):
            target = Path(place, f"library of {name}")
            command = [sys.executable, "-m", "regraft", "migrate", str(source), "--to", str(target), "-q"]
            seconds, peak = measured([*command, "--fail-on", "never"])
            print(f"regraft migrate, {name}: {seconds:.2f} s, {peak:,.0f} MB at the peak")
            broken = broken or seconds > MAX_SECONDS or peak > MAX_PEAK_MB
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
