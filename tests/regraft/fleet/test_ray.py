"""A fleet on a cluster of Ray: the same as on one machine."""

from __future__ import annotations

import errno
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from extras import needs, optional
from fleet_nodes import WORK as WAITING
from fleet_nodes import nodes_of
from fleet_work import LARGE, TROUBLE
from harness import run_as_given

from regraft.cli.fleet import parse_library_options as parse
from regraft.errors import StoppedBySystem
from regraft.fleet import ray_pool, results
from regraft.fleet.engine import TaskResult
from regraft.fleet.manifest import Library
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import FleetOrder
from regraft.fleet.run import Fleet
from regraft.processes import interrupts
from regraft.report.document import Run

ray = optional("ray")
pytestmark = needs("ray")

SAMPLE = Path(__file__).parents[3] / "sample_v1" / "backup"


def test_a_cluster_comes_to_what_one_machine_comes_to(joined: str, tmp_path: Path) -> None:
    manifest = tmp_path / "libraries.jsonl"
    manifest.write_text(
        "".join(f'{{"source": "{path.as_posix()}"}}\n' for path in (SAMPLE, *SAMPLE.parent.glob("*.zip"))), "utf-8"
    )
    for name, engine in (("local", []), ("ray", ["--engine", "ray", "--address", joined])):
        done = run_as_given(
            "fleet", "check", manifest, "--results", tmp_path / f"{name}.parquet", *engine, "-q",
            "--", "--now", "2026-01-31T12:00:00Z",
        )  # fmt: skip
        assert done.status == 1, done.stderr
    order, local = results.read_results(tmp_path / "local.parquet")
    same, on_ray = results.read_results(tmp_path / "ray.parquet")
    assert (order.libraries, on_ray.keys()) == (same.libraries, local.keys())
    for number, rows in local.items():
        for one, other in zip(rows, on_ray[number], strict=True):
            assert [one.base, one.outcome, one.findings, one.totals] == [
                other.base,
                other.outcome,
                other.findings,
                other.totals,
            ]
        own = on_ray[number][0]
        assert (own.host, own.pid != rows[0].pid) == (socket.gethostname(), True)
        # What the process printed is there.
        assert own.log is not None
        assert (Path(own.log).is_file(), str(own.pid) in Path(own.log).name) == (True, True)


def test_a_worker_that_is_killed_takes_only_its_library_along(joined: str, tmp_path: Path) -> None:
    troubles = ("fine", "killed", "killed once", "full once", "refused")
    libraries = tuple(Library(source=str(tmp_path / f"{number} {one}")) for number, one in enumerate(troubles))
    order, out = FleetOrder(command="check", options=(), libraries=libraries), tmp_path / "out.parquet"
    pool = partial(RayPool, TROUBLE, joined, 2)
    Fleet(parse=parse, order=order, path=out, pool=pool, attempts=2, pause_seconds=0.01).run(Run(command="fleet check"))

    rows = [found[0] for _, found in sorted(results.read_results(out)[1].items())]
    assert [row.outcome for row in rows] == ["done", "killed", "done", "done", "refused"]
    assert [row.attempts for row in rows] == [1, 2, 2, 2, 1]
    assert (rows[1].code, "worker died unexpectedly" in str(rows[1].message)) == ("WorkerCrashedError", True)


def test_a_node_that_kills_what_has_not_started_is_left_out(
    joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [node] = nodes = ray.nodes()

    def full(*_: Any, **__: Any) -> NoReturn:
        # Ray's own words.
        raise ray.exceptions.OutOfMemoryError(f"low on memory. Memory on the node (IP: 10.0.0.2, ID: {node['NodeID']})")

    monkeypatch.setattr(ray, "get", full)
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, node | {"NodeID": "b" * 56}])
    order = FleetOrder(
        command="check", options=(), libraries=tuple(Library(source=str(tmp_path / f"{n} fine")) for n in range(3))
    )
    out, pool = tmp_path / "out.jsonl", partial(RayPool, TROUBLE, joined, 1)
    Fleet(parse=parse, order=order, path=out, pool=pool, attempts=1).run(Run(command="fleet check"))
    rows = [found[0] for found in results.read_results(out)[1].values()]
    assert [(row.outcome, row.code) for row in rows] == [("killed", "OutOfMemoryError")] * 3
    [said] = [record.getMessage() for record in caplog.records if record.name == ray_pool.__name__]
    assert f"({node['NodeID'][:8]}) is left out: the last 3 libraries failed there (OutOfMemoryError: " in said


@pytest.mark.parametrize(
    ("code", "attempts"),
    [("ObjectLostError", 1), ("ObjectLostError", 2), ("GetTimeoutError", 1), ("GetTimeoutError", 2)],
)
def test_a_result_that_the_cluster_has_lost_is_made_again(
    joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, attempts: int
) -> None:
    get, ended = ray.get, []

    def losing(handle: Any, **settings: Any) -> Any:
        found = get(handle, **settings)
        if isinstance(found, TaskResult):
            ended.append(found)
            # Neither the head nor the node may answer any more, so nobody says that the object is lost.
            assert settings["timeout"] > 0
            if len(ended) == 1 and code == "ObjectLostError":
                raise ray.exceptions.ObjectLostError(handle.hex(), b"", "")
            if len(ended) == 1:
                raise ray.exceptions.GetTimeoutError("Get timed out: some object(s) not ready.")
        return found

    monkeypatch.setattr(ray, "get", losing)
    order = FleetOrder(command="check", options=(), libraries=(Library(source=str(tmp_path / "library")),))
    out, pool = tmp_path / "out.jsonl", partial(RayPool, LARGE, joined, 1)
    fleet = Fleet(parse=parse, order=order, path=out, pool=pool, attempts=attempts, pause_seconds=0.01)
    fleet.run(Run(command="fleet check"))
    [row] = results.read_results(out)[1][0]
    end = ("killed", code) if attempts == 1 else ("done", None)
    assert (row.outcome, row.code, row.attempts, len(ended)) == (*end, attempts, attempts)
    assert len(row.totals or "") == (1_000_002 if row.outcome == "done" else 0)
    said = {"ObjectLostError": "All copies of", "GetTimeoutError": "Get timed out"}[code]
    assert (said in str(row.message)) == (row.outcome == "killed")


def test_a_node_that_stops_answering_does_not_keep_its_libraries(
    joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find_nodes, sources = ray.nodes, [tmp_path / f"library {number}" for number in range(3)]
    later, max_wait = [0.0], 1_000.0
    monkeypatch.setattr(ray_pool, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later[0]))

    def cut_off() -> list[dict[str, Any]]:
        starts = sum(len(nodes_of(source)) for source in sources)
        if starts > 2:
            (tmp_path / "go").touch()
        if starts == 2:
            # The cluster has needed longer to find that out than anything may wait.
            later[0] = max_wait
        # Once both cores are busy, the cluster counts the node as dead, but Ray still waits for it.
        return [one | {"Alive": starts != 2} for one in find_nodes()]

    monkeypatch.setattr(ray, "nodes", cut_off)
    monkeypatch.setattr(ray_pool, "_LOOK_SECONDS", 0.1)
    order = FleetOrder(command="check", options=(), libraries=tuple(Library(source=str(one)) for one in sources))
    out, pool = tmp_path / "out.jsonl", partial(RayPool, WAITING, joined, 3, max_wait)
    Fleet(parse=parse, order=order, path=out, pool=pool, pause_seconds=0.01).run(Run(command="fleet check"))
    rows = [found[0] for _, found in sorted(results.read_results(out)[1].items())]
    assert [row.outcome for row in rows] == ["done"] * 3
    # One that was not known to have started is submitted again, which is no attempt.
    assert {row.attempts for row in rows} <= {1, 2}
    end = f"({find_nodes()[0]['NodeID'][:8]}) was lost; its libraries are tried again"
    [said] = [record.getMessage() for record in caplog.records if record.name == ray_pool.__name__]
    assert said.endswith(end)


def test_a_library_that_is_not_started_although_there_is_room_is_submitted_again(
    joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, made = ray.remote, []

    def asks_a_node_that_does_not_answer(**options: Any) -> Any:
        made.append(options)
        return remote(**options, resources={"of a node that does not answer": 1} if len(made) == 1 else None)

    monkeypatch.setattr(ray, "remote", asks_a_node_that_does_not_answer)
    monkeypatch.setattr(ray_pool, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(ray_pool, "_STALL_SECONDS", 0.01)
    order = FleetOrder(command="check", options=(), libraries=(Library(source=str(tmp_path / "fine")),))
    out = tmp_path / "out.jsonl"
    Fleet(parse=parse, order=order, path=out, pool=partial(RayPool, TROUBLE, joined, 1)).run(Run(command="fleet check"))
    [row] = results.read_results(out)[1][0]
    assert (row.outcome, row.attempts, len(made) > 1) == ("done", 1, True)


def test_libraries_that_no_node_has_room_for_do_not_wait_one_after_the_other(
    joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray_pool, "_LOOK_SECONDS", 0.01)
    libraries = tuple(Library(source=str(tmp_path / f"{number}"), bytes=1 << 50) for number in range(5))
    order, out = FleetOrder(command="check", options=(), libraries=libraries), tmp_path / "out.jsonl"
    fleet = Fleet(parse=parse, order=order, path=out, pool=partial(RayPool, TROUBLE, joined, 1, 0.5))
    fleet.run(Run(command="fleet check"))
    rows = [found[0] for found in results.read_results(out)[1].values()]
    assert [(row.outcome, row.code) for row in rows] == [("stopped", "NoNodeFits")] * 5
    # The wait began once.
    assert sum("no library is running" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("error", [ConnectionError("no GCS"), "AuthenticationError"])
def test_a_cluster_that_is_not_there_is_refused_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | str
) -> None:
    def nowhere(**_: object) -> None:
        raise getattr(ray.exceptions, error)("no GCS") if isinstance(error, str) else error

    monkeypatch.setattr(ray, "init", nowhere)
    with socket.create_server(("127.0.0.1", 0)) as server:
        # A server that ends each connection answers.
        threading.Thread(target=end_connection, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        message = refused_at(address, tmp_path)
    assert f"no Ray cluster at {address} (" in message
    assert "no GCS" in message


def test_an_address_where_a_server_has_stopped_is_refused_without_asking_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray waits for minutes"))
    monkeypatch.setattr(ray_pool, "_CONNECT_SECONDS", 0.1)
    # The system accepts the connection; nobody reads from it.
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert f"no Ray cluster at {address} (timed out)" in refused_at(address, tmp_path)


def test_a_fleet_whose_cluster_has_lost_its_head_ends_and_says_how_to_continue(
    joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand_answer = ray_pool.demand_answer

    def lose_head(address: tuple[str, int], seconds: float) -> None:
        demand_answer(address, seconds)
        if nodes_of(tmp_path / "waits"):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(ray_pool, "demand_answer", lose_head)
    monkeypatch.setattr(ray_pool, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(ray_pool, "_HEAD_SECONDS", 0.0)
    monkeypatch.setattr(interrupts, "is_shutdown_skipped", False)
    # Nobody else ends the connection to the cluster then.
    monkeypatch.setattr(ray_pool.atexit, "unregister", lambda _: ray.shutdown())
    order = FleetOrder(command="check", options=(), libraries=(Library(source=str(tmp_path / "waits")),))
    out = tmp_path / "out.jsonl"
    fleet = Fleet(parse=parse, order=order, path=out, pool=partial(RayPool, WAITING, joined, 1))
    with pytest.raises(StoppedBySystem) as caught:
        fleet.run(Run(command="fleet check"))
    assert f"the head of the Ray cluster ({joined}) has not answered" in str(caught.value)
    assert f"s (Connection refused); continue with: regraft fleet resume {out}" in str(caught.value)
    assert interrupts.is_shutdown_skipped
    # What was in progress is in the journal.
    assert [*results.read_results(out)[1].started] == [0]


def end_connection(server: socket.socket) -> None:
    """Accept a connection, and end it."""
    server.accept()[0].close()


def refused_at(address: str, folder: Path) -> str:
    """Run a fleet on a cluster that is not there, which writes nothing; return its message."""
    out = folder / "out.parquet"
    done = run_as_given(
        "fleet", "check", SAMPLE.parent, "--results", out, "--engine", "ray", "--address", address, "--json"
    )
    assert (done.status, done.document["error"]["code"]) == (2, "WrongUsage")
    assert list(folder.iterdir()) == []
    return str(done.document["error"]["message"])


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_an_address_where_nobody_answers_is_refused_without_asking_ray(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray waits for minutes"))
    with socket.socket() as taken:
        # Bound, but not listening.
        taken.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{taken.getsockname()[1]}")
        message = refused_at(address, tmp_path)
    assert f"no Ray cluster at {address} (" in message
    assert message.endswith("(start one with ray start, or omit --address).")


def test_a_cluster_of_this_machine_that_does_not_start_in_time_is_refused_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "The current node timed out during startup."

    def start(**_: object) -> None:
        raise Exception(reason)

    monkeypatch.setattr(ray, "init", start)
    done = run_as_given(
        "fleet", "check", SAMPLE.parent, "--results", tmp_path / "out.parquet", "--engine", "ray", "--json"
    )
    assert (done.status, done.document["error"]["code"], list(tmp_path.iterdir())) == (2, "WrongUsage", [])
    assert f"no Ray cluster at local ({reason})" in done.document["error"]["message"]
    assert "use --engine local" in done.document["error"]["message"]


def test_without_ray_a_fleet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run_as_given("fleet", "check", SAMPLE.parent, "--results", tmp_path / "out.parquet", "--engine", "ray")
    assert (done.status, list(tmp_path.iterdir())) == (2, [])
    assert 'pip install "regraft[ray]"' in done.stderr


def test_an_address_without_ray_is_refused(tmp_path: Path) -> None:
    done = run_as_given("fleet", "check", SAMPLE.parent, "--results", tmp_path / "out.parquet", "--address", "auto")
    assert (done.status, list(tmp_path.iterdir())) == (2, [])
    assert "--address is only for --engine ray (add --engine ray)" in done.stderr
