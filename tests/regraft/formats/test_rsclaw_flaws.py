"""What is wrong with a vector, told by its characters; and a database that is held."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.formats.redb import RedbError, RedbInUse
from regraft.formats.redb.reader import held
from regraft.formats.rsclaw.vectors import Flaw, NotNumbers, flaw_of, float32_bytes


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("[1.0,2e-7]", None),
        ("[-0,1]", None),
        ("[1e5]", None),
        ("[ 1 ,\n2 ]", None),
        ("[]", Flaw.EMPTY),
        ("[ ]", Flaw.EMPTY),
        ("[0.0,-0.0,0e0]", Flaw.ZERO),
        ("[null,1]", Flaw.NOT_FINITE),
        ("[1e39]", Flaw.NOT_FINITE),
        ("[1E+400]", Flaw.NOT_FINITE),
        (f"[1{'0' * 45}]", Flaw.NOT_FINITE),
        ('"a"', Flaw.NOT_NUMBERS),
        ("[[1],2]", Flaw.NOT_NUMBERS),
        ('["1"]', Flaw.NOT_NUMBERS),
        ("[true]", Flaw.NOT_NUMBERS),
        ("[{}]", Flaw.NOT_NUMBERS),
        ("null", Flaw.NOT_NUMBERS),
        ("1", Flaw.NOT_NUMBERS),
    ],
)
def test_what_is_wrong_with_a_vector(text: str, flaw: Flaw | None) -> None:
    assert flaw_of(text.encode()) == flaw


@given(
    st.lists(
        st.none() | st.floats(allow_nan=False) | st.integers(-(10**50), 10**50) | st.booleans() | st.text(max_size=3)
    )
)
def test_its_characters_tell_what_its_numbers_do(vector: list[object]) -> None:
    text = json.dumps(vector).replace("Infinity", "1e999").encode()
    try:
        singles = struct.unpack(f"<{len(vector)}f", float32_bytes(text))
    except NotNumbers:
        assert flaw_of(text) in (Flaw.NOT_NUMBERS, Flaw.NOT_FINITE)
        return
    if not all(map(math.isfinite, singles)):
        assert flaw_of(text) is Flaw.NOT_FINITE
    elif any(singles):
        assert flaw_of(text) is None
    else:
        # What is too small for a float32 is zero there, and is no zero in the text.
        assert flaw_of(text) in (Flaw.EMPTY, Flaw.ZERO, None)


def test_a_database_that_is_held_can_be_read_and_not_be_locked(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "kb.redb"
    path.write_bytes(b"x")
    with held(path), held(path), path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(RedbInUse), held(path):
            pass


def test_what_cannot_be_opened_cannot_be_held(tmp_path: Path) -> None:
    with pytest.raises(RedbError, match="cannot be read"), held(tmp_path):
        pass
