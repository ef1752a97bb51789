"""How findings are collected, limited in time, and shown as text and in the document."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import closing
from typing import Any

import apsw
import pytest

from checks.audit import collector as collector_module
from checks.audit import findings as findings_module
from checks.audit.collector import FindingCollector, Level, OutOfTime, add_commands, display_text
from checks.audit.findings import Audit, Finding, RowNumbers, format_audit
from checks.systems import load_findings
from regraft.report.progress import SilentProgress

LONG = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT count(*) FROM n"


@pytest.fixture(autouse=True)
def registry() -> None:
    load_findings()


def found(findings: FindingCollector) -> list[tuple[Any, ...]]:
    return [(one.name, one.base, one.message, one.count, one.samples, one.subject) for one in findings.to_findings()]


# --- counting --------------------------------------------------------------------------------------------------------


def test_instances_of_one_message_in_one_base_are_one_finding() -> None:
    findings = FindingCollector()
    for number in range(5):
        findings.add("unit.id", "{n} wrong", base="b", noun="unit", sample=number, row=10 + number)
    findings.add("unit.id", "{n} wrong", base="c", noun="unit", sample=b"one", row=7)
    findings.add("unit.id", "{n} other", base="b", noun="unit", count=3)
    findings.add("file.corrupt", "damaged {n}", base="b", sample="x")
    assert found(findings) == [
        # In the order of the registry.
        ("file.corrupt", "b", "damaged {n}", 1, ("x",), "x"),
        ("unit.id", "b", "5 units wrong", 5, ("0", "1", "2"), None),
        ("unit.id", "c", "1 unit wrong", 1, ("one",), "one"),
        ("unit.id", "b", "3 units other", 3, (), None),
    ]
    assert [one.rows and list(one.rows) for one in findings.to_findings()] == [None, [10, 11, 12, 13, 14], [7], None]
    assert {one.severity for one in findings.to_findings()} == {"error"}
    assert (findings.count("unit.id", "b"), findings.count("unit.id", "c"), findings.count("unit.id", None)) == (
        8,
        1,
        0,
    )
    findings.discard("unit.id", "b")
    assert [(one.name, one.base) for one in findings.to_findings()] == [("file.corrupt", "b"), ("unit.id", "c")]


def test_a_severity_and_what_is_beyond_repair_are_those_of_the_first_instance() -> None:
    findings = FindingCollector()
    findings.add("unit.id", "m", severity="note", is_beyond_repair=True)
    findings.add("unit.gap", "m")
    findings.add("unit.gap", "m", severity="error", is_beyond_repair=True)
    assert [(one.severity, one.is_beyond_repair, one.count, one.subject) for one in findings.to_findings()] == [
        ("note", True, 1, None),
        ("warning", False, 2, None),
    ]


@pytest.mark.parametrize("count", [0, 2, 3, 4, 9, 10])
def test_many_row_numbers_are_kept_in_their_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowNumbers, "_IN_MEMORY", 3)
    rows = RowNumbers()
    wanted = [(7 * number) % 11 for number in range(count)]
    for number in wanted:
        rows.append(number)
    assert list(rows) == list(rows) == wanted
    assert isinstance(rows._recent, array)
    assert len(rows._recent) == count % 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"K\xc3\xbcche", "Küche"),
        (b"\xff", "\ufffd"),
        (7, "7"),
        (None, "None"),
        ("half \ud83d", "half ?"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200 + "…"),
    ],
)
def test_values_of_any_type_are_shown(value: object, text: str) -> None:
    assert display_text(value) == text


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which a test changes."""
    now = [100.0]
    monkeypatch.setattr(collector_module.time, "monotonic", lambda: now[0])
    return now


def test_time_is_over_after_its_limit_and_not_at_it(clock: list[float]) -> None:
    limited, unlimited = FindingCollector(max_duration=5, _started=clock[0]), FindingCollector(_started=clock[0])
    clock[0] += 5
    limited.check_time()
    clock[0] += 0.001
    unlimited.check_time()
    with pytest.raises(OutOfTime):
        limited.check_time()


class Counted(SilentProgress):
    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []

    def step(self, count: float = 1, size: float = 0) -> None:
        self.steps.append((count, size))


def test_a_check_that_fails_is_a_finding_and_the_next_one_runs() -> None:
    done: list[str] = []

    def fail(error: Exception) -> Callable[[], None]:
        def step() -> None:
            raise error

        return step

    progress = Counted()
    findings = FindingCollector(progress=progress)
    steps = [
        ("bad value", fail(ValueError("bad"))),
        ("first", lambda: done.append("first")),
        ("damaged", fail(apsw.CorruptError("malformed"))),
        ("time", fail(OutOfTime())),
        ("last", lambda: done.append("last")),
    ]
    findings.run("index", steps, "b")
    assert done == ["first", "last"]
    assert found(findings) == [
        (
            "file.corrupt",
            "b",
            "its file is damaged: 2 checks failed",
            2,
            ("bad value: bad", "damaged: malformed"),
            None,
        )
    ]
    assert findings.skipped_checks() == ("index: time",)
    assert progress.steps == [(0.2, 0)] * 5
    full = apsw.FullError("disk full")
    full.extendedresult = apsw.SQLITE_FULL
    with pytest.raises(apsw.FullError):
        findings.run("index", [("full", fail(full))], "b")


def test_a_part_of_a_store_that_cannot_be_checked_is_a_finding_of_its_base_and_a_full_disk_is_none() -> None:
    done: list[str] = []

    def fail(error: Exception) -> Callable[[], None]:
        def step() -> None:
            raise error

        return step

    progress, findings = Counted(), FindingCollector()
    steps = [
        ("one", "b", fail(OSError("gone"))),
        ("two", None, lambda: done.append("two")),
        ("three", None, fail(OutOfTime())),
    ]
    findings.run_parts(steps, progress, "file.unreadable", lambda name, error: f"{name}: {error}")
    assert done == ["two"]
    assert found(findings) == [("file.unreadable", "b", "one: gone", 1, ("one",), "one")]
    assert findings.skipped_checks() == ("three",)
    assert progress.steps == [(1, 0)] * 3
    full = apsw.FullError("disk full")
    full.extendedresult = apsw.SQLITE_FULL
    with pytest.raises(apsw.FullError):
        findings.run_parts([("full", None, fail(full))], progress, "file.unreadable", lambda name, _: name)


def test_checks_after_the_time_limit_are_named_and_none_of_them_runs(clock: list[float]) -> None:
    findings = FindingCollector(max_duration=5, _started=clock[0])

    def too_long() -> None:
        clock[0] += 6
        raise apsw.InterruptError

    steps = [("first", too_long), ("second", lambda: pytest.fail("it ran"))]
    findings.run("b", steps, "b")
    assert (findings.to_findings(), findings.skipped_checks()) == ((), ("b: first", "b: second"))
    findings = FindingCollector(max_duration=5, _started=clock[0])
    parts = [(name, "b", step) for name, step in steps]
    findings.run_parts(parts, SilentProgress(), "file.unreadable", lambda name, _: name)
    assert (findings.to_findings(), findings.skipped_checks()) == ((), ("first", "second"))


def test_statements_are_stopped_by_their_number_of_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_module, "_INSTRUCTIONS", 100)
    monkeypatch.setattr(collector_module, "_LEAST_INSTRUCTIONS", 2000)
    monkeypatch.setattr(collector_module, "_INSTRUCTIONS_PER_BYTE", 10)
    with closing(apsw.Connection(":memory:")) as db:
        with FindingCollector().limit_statements(db, 0), pytest.raises(apsw.InterruptError):
            db.execute(LONG.format(1000))
        assert db.execute(LONG.format(1000)).get == 1000
        # A larger file may take longer.
        with FindingCollector().limit_statements(db, 100_000):
            assert db.execute(LONG.format(1000)).get == 1000
        calls = []
        monkeypatch.setattr(FindingCollector, "_is_out_of_time", lambda _: calls.append(1) is not None)
        with FindingCollector().limit_statements(db, 0), pytest.raises(apsw.InterruptError):
            db.execute(LONG.format(1000))
        # 2000 instructions are twenty calls of a hundred; the next one ends it.
        assert len(calls) == 20


# --- what was checked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "names", "not_checked", "sentence"),
    [
        (Level.QUICK, (), (), "Checked structure and counts; without --quick, TEXTS are read too."),
        (Level.DEFAULT, (), (), "Checked; with --deep, DATABASES are checked too."),
        (Level.DEEP, (), (), "Everything was checked."),
        (Level.DEEP, ("unit.id",), (), "Everything was checked."),
        (Level.DEEP, ("unit.id", "file.corrupt"), (), "All that can be read was checked."),
        (Level.DEEP, ("file.unreadable",), (), "All that can be read was checked."),
        (Level.DEEP, (), ("a", "b", "a"), "Time limit reached: 2 checks missing (a, b)."),
        (Level.QUICK, (), ("a", "b", "c"), "Time limit reached: 3 checks missing (a, b, c)."),
        (Level.QUICK, (), ("a", "b", "c", "d"), "Time limit reached: 4 checks missing (a, b, c…)."),
    ],
)
def test_the_last_sentence_says_what_was_not_checked(
    level: Level, names: tuple[str, ...], not_checked: tuple[str, ...], sentence: str
) -> None:
    findings = FindingCollector(level, not_checked=list(not_checked))
    for name in names:
        findings.add(name, "m")
    assert findings.closing("TEXTS", "DATABASES") == sentence


def test_only_the_findings_that_are_needed_are_looked_for() -> None:
    assert FindingCollector().may_report("unit.id")
    limited = FindingCollector(names=frozenset({"unit.id"}))
    assert limited.may_report("unit.gap", "unit.id")
    assert not limited.may_report("unit.gap")


# --- commands and text -----------------------------------------------------------------------------------------------


def finding(name: str, base: str | None = None, message: str = "m", **more: Any) -> Finding:
    return Finding(name=name, severity=findings_module.FINDINGS[name].severity, message=message, base=base, **more)


def audit(*findings: Finding, **more: Any) -> Audit:
    return Audit(findings=findings, **{"checked": {}, "names": {"b": "B", "c": "C"}, "closing": "End."} | more)


def test_a_finding_gets_the_command_of_the_registry() -> None:
    audited = audit(
        finding("unit.id"),
        finding("unit.id", is_beyond_repair=True),
        finding("file.corrupt"),
        finding("schema.missing", "b"),
    )

    def line(command: Any, options: Any) -> str:
        return " ".join([*command, "STORE", *options])

    assert [one.repair for one in add_commands(audited, line).findings] == [
        "repair STORE --only unit.id",
        None,
        None,
        "upgrade STORE",
    ]
    with_base = add_commands(audited, line, {"upgrade"})
    assert with_base.findings[-1].repair == "upgrade STORE --base b"
    assert add_commands(audited, line, {"repair"}).findings[-1].repair == "upgrade STORE"


def test_findings_are_listed_by_severity_and_base() -> None:
    audited = audit(
        finding("unit.gap", "c"),
        finding("unit.id", "x", "of a base without a name"),
        finding("unit.id", "c", "of the second"),
        finding("v1.leftover", message="a note"),
        finding("unit.id", "b", "of the first", repair="regraft repair"),
        finding("base.exists", message="of no base", repair="regraft x"),
        checked={"bases": 2, "units": 1, "bytes": 7, "rows": 0},
    )
    assert format_audit(audited, "TITLE").splitlines() == [
        "TITLE",
        "",
        "errors:",
        "  of no base [base.exists]",
        "    fix: regraft x",
        "  B  (b)",
        "    of the first [unit.id]",
        "      fix: regraft repair",
        "  C  (c)",
        "    of the second [unit.id]",
        "  x  (x)",
        "    of a base without a name [unit.id]",
        "",
        "warnings:",
        "  C  (c)",
        "    m [unit.gap]",
        "",
        "notes:",
        "  a note [v1.leftover]",
        "",
        "2 bases, 0 rows, 1 unit: 4 errors, 1 warning, 1 note. End.",
    ]
    assert [one.name for one in audited.in_order()][:2] == ["base.exists", "unit.id"]
    assert format_audit(audit(opening="FIRST"), "TITLE").splitlines() == ["TITLE", "FIRST", "", ": nothing found. End."]


def test_of_many_findings_of_a_name_some_are_shown() -> None:
    many = [finding("unit.id", "b", f"message {number}") for number in range(3)]
    assert "more of" not in format_audit(audit(*many), "T")
    for count in (4, 6):
        more = [finding("unit.id", "c", f"message {number}") for number in range(3, count)]
        text = format_audit(audit(*many, *more), "T")
        assert [f"message {number} " in text for number in range(count)] == [number < 3 for number in range(count)]
        # A base of which nothing is shown has no heading.
        assert "C  (c)" not in text
        assert f"  … and {count - 3} more of unit.id (-v shows all)" in text.splitlines()
        whole = format_audit(audit(*many, *more), "T", verbose=True)
        assert all(f"message {number} " in whole for number in range(count))
        assert "C  (c)" in whole
        assert "more of" not in whole


def test_samples_and_the_rest_of_a_long_message_are_shown_on_demand() -> None:
    one = finding("unit.id", "b", "x" * 301, samples=("s1", "s2"), names={"s1": "Name"})
    short, whole = (format_audit(audit(one), "T", verbose=verbose).splitlines() for verbose in (False, True))
    assert f"    {'x' * 300}… [unit.id]" in short
    assert f"    {'x' * 301} [unit.id]" in whole
    assert "      for example: Name (s1), s2" in whole
    assert not any("for example" in text for text in short)
    assert f"    {'x' * 300} [unit.id]" in format_audit(audit(finding("unit.id", "b", "x" * 300)), "T").splitlines()
    assert "for example" not in format_audit(audit(finding("unit.id")), "T", verbose=True)


def test_an_audit_of_some_findings_only() -> None:
    whole = audit(finding("unit.id"), finding("unit.gap"), opening="FIRST")
    assert whole.only(()) is whole
    only = whole.only(["unit.gap", "body.id", "unit.gap"])
    assert [one.name for one in only.findings] == ["unit.gap"]
    assert (only.opening, only.closing) == ("", "Looked for unit.gap, body.id only.")


def test_the_document_counts_by_severity_and_name() -> None:
    audited = audit(
        finding("unit.id", "b", names={"s": "N"}, samples=("s",)),
        finding("unit.gap"),
        finding("unit.id"),
        level="quick",
    )
    document = audited.report(None)  # type: ignore[arg-type]
    assert document.summary.by_severity == {"error": 2, "warning": 1, "note": 0}
    assert list(document.summary.by_name.items()) == [("unit.gap", 1), ("unit.id", 2)]
    assert [(one.name, one.base) for one in document.findings] == [
        ("unit.id", None),
        ("unit.id", "b"),
        ("unit.gap", None),
    ]
    assert document.findings[1].names == {"s": "N"}
    assert document.findings[0].names is findings_module.UNSET
    assert (document.level, document.not_checked) == ("quick", ())
    planned = audit().report(None)  # type: ignore[arg-type]
    assert planned.level is planned.not_checked is planned.part is findings_module.UNSET
