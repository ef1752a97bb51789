"""What is wrong with a vector, told by its characters; and a database that is held."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.formats.redb import RedbError, RedbInUse, block_writers
from regraft.formats.rsclaw.vectors import NotNumbers, VectorFlaw, find_flaw, float32_bytes
from regraft.formats.vector_checks import LARGEST_NORM


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("[1.0,2e-7]", None),
        ("[-0,1]", None),
        ("[1e5]", None),
        ("[ 1 ,\n2 ]", None),
        ("[]", VectorFlaw.EMPTY),
        ("[ ]", VectorFlaw.EMPTY),
        ("[0.0,-0.0,0e0]", VectorFlaw.ZERO),
        ("[null,1]", VectorFlaw.NOT_FINITE),
        ("[1e39]", VectorFlaw.NOT_FINITE),
        ("[1E+400]", VectorFlaw.NOT_FINITE),
        (f"[1{'0' * 45}]", VectorFlaw.NOT_FINITE),
        ('"a"', VectorFlaw.NOT_NUMBERS),
        ("[[1],2]", VectorFlaw.NOT_NUMBERS),
        ('["1"]', VectorFlaw.NOT_NUMBERS),
        ("[true]", VectorFlaw.NOT_NUMBERS),
        ("[{}]", VectorFlaw.NOT_NUMBERS),
        ("null", VectorFlaw.NOT_NUMBERS),
        ("1", VectorFlaw.NOT_NUMBERS),
    ],
)
def test_what_is_wrong_with_a_vector(text: str, flaw: VectorFlaw | None) -> None:
    assert find_flaw(text.encode()) == flaw


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
        assert find_flaw(text) in (VectorFlaw.NOT_NUMBERS, VectorFlaw.NOT_FINITE)
        return
    if not all(map(math.isfinite, singles)):
        assert find_flaw(text) is VectorFlaw.NOT_FINITE
    elif any(singles):
        assert find_flaw(text) is (None if math.hypot(*singles) < LARGEST_NORM else VectorFlaw.OVERFLOW)
    else:
        # What is too small for a float32 is zero there, and is no zero in the text.
        assert find_flaw(text) in (VectorFlaw.EMPTY, VectorFlaw.ZERO, None)


def test_a_database_that_is_held_can_be_read_and_not_be_locked(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "kb.redb"
    path.write_bytes(b"x")
    with block_writers(path), block_writers(path), path.open("rb") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(RedbInUse), block_writers(path):
            pass


def test_what_cannot_be_opened_cannot_be_held(tmp_path: Path) -> None:
    with pytest.raises(RedbError, match="cannot be read"), block_writers(tmp_path):
        pass
