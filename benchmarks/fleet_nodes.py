"""Loses nodes of a Ray cluster, adds one, and kills the driver, while a fleet migrates 200 libraries.

``python -m benchmarks.fleet_nodes`` (Linux, as root; some minutes). The head of the cluster has no core. Each node is a
raylet in a network namespace of its own, joined to the others by a bridge. The libraries are copies of the sample's
backup, each with a mark in its uploads. They are migrated by local processes first, and then on the cluster: the driver
is killed after a fifth of the libraries and resumed, a node is killed after two fifths, another one joins after three
fifths, and does not answer any more after four fifths, though its tasks go on. Results stay on the node that made them
until the driver reads them, so some are lost with their node. Every library has to be done, with the same files as
without any loss.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).parents[1] / "sample_v1" / "backup"
NOW = "2026-01-31T12:00:00Z"
#: Namespaces are named after this process, so that several runs do not meet.
PREFIX = f"rg{os.getpid() % 100_000}"
HEAD = "10.77.0.1"
PORT = 6_390
#: Seconds after which the run has failed: nothing may wait forever.
LONGEST = 1_800.0


def run(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run([*map(str, words)], check=check, capture_output=True, text=True)


def in_namespace(name: str, *words: object) -> list[str]:
    """Return a command line that runs in a namespace."""
    return ["ip", "netns", "exec", name, *map(str, words)]


@contextmanager
def network(names: list[str]) -> Iterator[None]:
    """Make a namespace for each name, with an address of its own, joined by a bridge inside of the first one."""
    bridge = names[0]
    try:
        for number, name in enumerate(names):
            run("ip", "netns", "add", name)
            run(*in_namespace(name, "ip", "link", "set", "lo", "up"))
            if number == 0:
                run(*in_namespace(name, "ip", "link", "add", "br0", "type", "bridge"))
                run(*in_namespace(name, "ip", "addr", "add", f"{HEAD}/24", "dev", "br0"))
                run(*in_namespace(name, "ip", "link", "set", "br0", "up"))
                continue
            run(*in_namespace(bridge, "ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0",
                              "netns", name))  # fmt: skip
            run(*in_namespace(bridge, "ip", "link", "set", f"to{number}", "master", "br0", "up"))
            run(*in_namespace(name, "ip", "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0"))
            run(*in_namespace(name, "ip", "link", "set", "eth0", "up"))
        yield
    finally:
        for name in names:
            kill_node(name)
            run("ip", "netns", "del", name, check=False)


def kill_node(name: str) -> None:
    """Kill all processes in a namespace, as a power failure does."""
    for _ in range(3):
        for pid in pids_of(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def silence_node(name: str) -> None:
    """Stop the process of Ray that answers for a node; those that it has started go on."""
    for pid in pids_of(name):
        if Path(f"/proc/{pid}/comm").read_text("utf-8").strip() == "raylet":
            os.kill(pid, signal.SIGSTOP)


def pids_of(name: str) -> list[int]:
    """Return the processes in a namespace."""
    return list(map(int, run("ip", "netns", "pids", name, check=False).stdout.split()))


def start_raylet(name: str, folder: Path, *options: object) -> None:
    """Start the processes of a node in a namespace."""
    line = in_namespace(name, sys.executable, "-P", "-m", "ray.scripts.scripts", "start",
                        "--object-store-memory=100000000", *options)  # fmt: skip
    with (folder / f"{name}.log").open("w") as log:
        subprocess.run(line, check=True, stdout=log, stderr=subprocess.STDOUT, cwd=folder)


def start_node(name: str, number: int, folder: Path, cores: int) -> None:
    """Let a node join the cluster."""
    start_raylet(name, folder, f"--address={HEAD}:{PORT}", f"--node-ip-address=10.77.0.{number + 1}",
                 f"--num-cpus={cores}")  # fmt: skip


def make_libraries(folder: Path, count: int) -> None:
    """Copy the sample, with a mark of its own in each copy."""
    for number in range(count):
        copy = folder / f"library {number:03}"
        shutil.copytree(SAMPLE, copy)
        for path in (copy / "Data" / "Files").iterdir():
            path.write_bytes(path.read_bytes() + f"library {number}\n".encode())


def content(library: Path) -> dict[str, bytes]:
    """Return all files of a library but those that tell of its runs."""
    files = (path for path in library.rglob("*") if path.is_file())
    found = {path.relative_to(library).as_posix(): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if not name.startswith((".regraft/", "report."))}


class Driver:
    """The process of a fleet on the cluster."""

    def __init__(self, name: str, folder: Path, *words: object) -> None:
        line = in_namespace(
            name, sys.executable, "-P", "-m", "regraft", "fleet", words[0], "--engine", "ray",
            "--address", f"{HEAD}:{PORT}", *words[1:],
        )  # fmt: skip
        with (folder / "driver.log").open("a") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, cwd=folder)

    def wait_for(self, journal: Path, libraries: int) -> None:
        """Wait until so many libraries have ended."""
        end = time.monotonic() + LONGEST
        while not journal.exists() or journal.read_bytes().count(b"\n[") < libraries:
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"the driver has ended with {self.process.returncode}, or does not go on")
            time.sleep(0.2)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the libraries."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in rows if row["base"] is None]


def migrate_on_cluster(folder: Path, sources: Path, count: int, names: list[str]) -> Path:
    """Migrate the libraries while nodes are lost and join, and the driver is killed; returns the results."""
    head, first, lost, new = names
    # One core each: with more, a node would do the work of several.
    start_raylet(head, folder, "--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--num-cpus=0",
                 "--include-dashboard=false", f"--temp-dir={folder}/ray",
                 '--system-config={"max_direct_call_object_size": 0}')  # fmt: skip
    start_node(first, 1, folder, 1)
    start_node(lost, 2, folder, 1)
    out = folder / "cluster.jsonl"
    journal = folder / "cluster.jsonl.journal"
    driver = Driver(head, folder, "migrate", sources, "--to", folder / "cluster", "--results", out, "-q",
                    "--", "--now", NOW)  # fmt: skip
    driver.wait_for(journal, count // 5)
    for pid in _descendants(driver.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    driver.process.wait()
    print(f"driver killed after {count // 5} libraries", flush=True)
    driver = Driver(head, folder, "resume", out, "-q")
    driver.wait_for(journal, 2 * count // 5)
    kill_node(lost)
    print(f"node {lost} killed after {2 * count // 5} libraries", flush=True)
    driver.wait_for(journal, 3 * count // 5)
    start_node(new, 3, folder, 1)
    print(f"node {new} has joined after {3 * count // 5} libraries", flush=True)
    driver.wait_for(journal, 4 * count // 5)
    silence_node(new)
    print(f"node {new} does not answer any more after {4 * count // 5} libraries", flush=True)
    status = driver.process.wait(LONGEST)
    print(f"exit status {status}", flush=True)
    return out


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in map(int, children) for one in _descendants(child))]


def main() -> None:
    """Run both fleets and compare what they leave."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--libraries", type=int, default=200)
    arguments.add_argument("--keep", action="store_true", help="keep the folder")
    options = arguments.parse_args()
    # Ray demands a token of nodes that are reached over a network.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32), RAY_USAGE_STATS_ENABLED="0")
    # Sockets of Ray have short paths only.
    folder = Path(tempfile.mkdtemp(prefix="rg", dir=os.environ.get("TMPDIR", "/tmp")))
    names = [f"{PREFIX}{letter}" for letter in "habc"]
    with ExitStack() as stack:
        if not options.keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(network(names))
        sources = folder / "sources"
        make_libraries(sources, options.libraries)
        alone = folder / "alone.jsonl"
        begun = time.monotonic()
        run(sys.executable, "-P", "-m", "regraft", "fleet", "migrate", sources, "--to", folder / "alone",
            "--results", alone, "-q", "--", "--now", NOW, check=False)  # fmt: skip
        print(f"local: {time.monotonic() - begun:.0f} s", flush=True)
        begun = time.monotonic()
        rows = rows_of(migrate_on_cluster(folder, sources, options.libraries, names))
        print(f"cluster: {time.monotonic() - begun:.0f} s", flush=True)
        outcomes = Counter(row["outcome"] for row in rows)
        differing = [
            one["source"]
            for one, other in zip(rows, rows_of(alone), strict=True)
            if one["outcome"] != other["outcome"] or content(Path(one["target"])) != content(Path(other["target"]))
        ]
        attempts = Counter(row["attempts"] for row in rows)
        processes = Counter(row["pid"] for row in rows)
        print(f"outcomes {dict(outcomes)}, attempts {dict(attempts)}, differing {differing}")
        print(f"libraries of each process: {sorted(processes.values())}")
        if differing or len(rows) != options.libraries or set(outcomes) - {"done", "worth-reading"}:
            sys.exit(1)


if __name__ == "__main__":
    main()
