"""Reads ``index_metadata.pickle``, the label of each id of a vector segment, without unpickling anything.

The file is untrusted, and a pickle can call any function. This interpreter knows the opcodes that Chroma's versions
write and nothing else: numbers, texts, dictionaries, and an instance of one class name without arguments
(``docs/formats/chroma.md``, "The label map"). No class is imported. Memory does not grow with the file: pairs are
passed on as they are read, and of a text that the pickle refers to again only its position is kept.
"""

from __future__ import annotations

import mmap
import re
import struct
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec

from regraft.disk import links
from regraft.language import tr

#: File name of the label map in the folder of a segment.
FILE = "index_metadata.pickle"
#: Module and class whose instance versions up to 0.6 wrote.
_MODULE, _CLASS = "chromadb.segment.impl.vector.local_persistent_hnsw", "PersistentData"
#: Dictionaries that map ids to labels, and back; their pairs are streamed.
ID_TO_LABEL, LABEL_TO_ID = "id_to_label", "label_to_id"
ID_TO_SEQ_ID = "id_to_seq_id"
_STREAMED = (ID_TO_LABEL, LABEL_TO_ID, ID_TO_SEQ_ID)
#: References to earlier texts, and numbers: what the dictionary that is not used consists of.
_REFERENCES = re.compile(rb"(?:(?:h.|j.{4})(?:K.|M..|J.{4}))*+", re.DOTALL)
#: Most values outside of the streamed dictionaries, and most opened dictionaries at a time.
_MAX_VALUES, _MAX_DEPTH = 64, 4
#: Longest id in bytes.
_MAX_TEXT = 1 << 20
#: Largest integer that SQLite stores.
_MAX_INTEGER = (1 << 63) - 1
#: Instructions that call a function or make an object of a class: REDUCE, INST, OBJ, NEWOBJ_EX, EXT1 to EXT4, PERSID.
_CALLS = frozenset(b"RioPQ\x92\x82\x83\x84")


class LabelMapProblem(ValueError):
    """The file is not a label map that Chroma writes; the message gives the reason."""


class ForeignInstruction(LabelMapProblem):
    """The file loads something that a label map never loads, or calls a function."""


class LabelMap(msgspec.Struct, frozen=True, kw_only=True):
    """The single values of a label map."""

    dimension: int | None = None
    total_added: int | None = None
    max_seq_id: int | None = None
    #: Whether it is an instance of a class, as versions up to 0.6 write and need it, and not a dictionary.
    is_object: bool = False


#: Receives the name of a dictionary, and pairs of its keys and values.
PairSink = Callable[[str, "list[tuple[str | int, str | int]]"], None]
#: Pairs that are passed on at once.
_BATCH = 10_000
_UINT16, _INT32, _UINT32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")


class _Dict:
    """A dictionary in the pickle. ``role``: its key in the outermost dictionary, if its pairs are streamed; else ""."""

    __slots__ = ("role", "values")

    def __init__(self, role: str) -> None:
        self.role = role
        self.values: dict[str, object] = {}


class _Global:
    """The class named by :data:`_CLASS`, or its instance."""

    __slots__ = ("is_instance", "state")

    def __init__(self) -> None:
        self.is_instance = False
        self.state: _Dict | None = None


def read_label_map(path: Path, sink: PairSink) -> LabelMap:
    """Read a label map and pass its pairs on in the order of the file.

    Args:
        path: the file.
        sink: receives every pair of :data:`ID_TO_LABEL` and :data:`LABEL_TO_ID`, and of the sequence numbers.

    Raises:
        LabelMapProblem: the file has another form; pairs may have been passed on before.
        OSError: it cannot be read.
    """
    with links.open_for_reading(path) as file:
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise LabelMapProblem(tr("it is empty")) from error
        with content:
            return _Interpreter(content, sink).run()


def read_labels(path: Path) -> tuple[LabelMap, list[tuple[str, int]]]:
    """Read a label map that chromadb just wrote: its single values, and each id with its label.

    Raises:
        LabelMapProblem, OSError: it cannot be read.
    """
    labels: list[tuple[str, int]] = []

    def add(role: str, pairs: list[tuple[str | int, str | int]]) -> None:
        """Collect the pairs of one dictionary of the label map."""
        if role == ID_TO_LABEL:
            labels.extend((str(key), int(value)) for key, value in pairs)

    return read_label_map(path, add), labels


class _Interpreter:
    """Interprets one pickle, whose pairs go to ``sink``. Single use. Every method raises LabelMapProblem."""

    def __init__(self, content: mmap.mmap, sink: PairSink) -> None:
        self._content = content
        self._size = len(content)
        self._sink = sink
        self._at = 0
        #: Values since the last open mark, and those of the marks around it.
        self._items: list[object] = []
        self._outer: list[list[object]] = []
        #: The dictionary that pairs of the open mark go to.
        self._target: _Dict | None = None
        self._outer_targets: list[_Dict | None] = []
        #: For each number that a value was given: the position of its text; -1: it is no text.
        self._memo = array("q")
        #: Where the text that was read last starts; -1: the last value is no text.
        self._last_text = -1

    def run(self) -> LabelMap:
        """Interpret the whole file."""
        steps = self._list_steps()
        content = self._content
        while True:
            try:
                code = content[self._at]
            except IndexError as error:
                raise LabelMapProblem(tr("it ends too early")) from error
            self._at += 1
            if code == 0x2E:  # STOP
                return self._result()
            step = steps.get(code)
            if step is None:
                problem = ForeignInstruction if code in _CALLS else LabelMapProblem
                raise problem(tr("it has the instruction {code}, which Chroma never writes", code=hex(code)))
            step()

    def _list_steps(self) -> dict[int, Callable[[], None]]:
        """Map each supported opcode of pickle to the function that executes it."""
        return {
            0x80: lambda: self._skip(1),  # PROTO
            0x95: lambda: self._skip(8),  # FRAME
            0x8C: lambda: self._push_text(1),
            ord("X"): lambda: self._push_text(4),
            **dict.fromkeys((*b"KMJ", 0x8A), self._push_integer),
            ord("N"): lambda: self._push(None),
            0x88: lambda: self._push(1),
            0x89: lambda: self._push(0),
            0x94: lambda: self._memoize(len(self._memo)),
            ord("q"): lambda: self._memoize(self._take_number(1)),
            ord("r"): lambda: self._memoize(self._take_number(4)),
            ord("h"): lambda: self._recall(self._take_number(1)),
            ord("j"): lambda: self._recall(self._take_number(4)),
            ord("c"): self._push_global_lines,
            0x93: lambda: self._push_global(*reversed((self._pop(), self._pop()))),
            ord(")"): lambda: self._push(()),
            0x81: self._make_instance,
            ord("}"): self._push_dict,
            ord("("): self._open_mark,
            ord("s"): self._set_item,
            ord("u"): self._set_items,
            ord("b"): self._set_state,
        }

    # --- reading ----------------------------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        """Return the next ``count`` bytes and move on behind them."""
        end = self._at + count
        if end > self._size:
            raise LabelMapProblem(tr("it ends too early"))
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def _skip(self, count: int) -> None:
        """Move on behind the next ``count`` bytes."""
        self._take(count)

    def _take_number(self, size: int) -> int:
        """Return the unsigned number in the next ``size`` bytes and move on behind them."""
        return int.from_bytes(self._take(size), "little")

    def _push_integer(self) -> None:
        """Push the integer of the current instruction."""
        try:
            value, size = self._integer_at(self._content[self._at - 1], self._at - 1)
        except (IndexError, struct.error) as error:
            raise LabelMapProblem(tr("it ends too early")) from error
        self._skip(size - 1)
        self._push(value)

    def _push_text(self, size_bytes: int) -> None:
        """Push the text of the current instruction; its first ``size_bytes`` bytes state its size."""
        start = self._at - 1
        self._skip(self._take_number(size_bytes))
        self._push(self._text_at(start), start)

    def _decode(self, raw: bytes) -> str:
        """Decode UTF-8."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise LabelMapProblem(tr("it has a text that is not UTF-8")) from error

    # --- the stack --------------------------------------------------------------------------------------------------

    def _push(self, value: object, text_at: int = -1) -> None:
        """Push a value; ``text_at`` is the offset of its instruction if it is a text, else -1."""
        self._last_text = text_at
        self._items.append(value)
        if len(self._items) > _MAX_VALUES:
            raise LabelMapProblem(tr("it has more values than a label map has"))

    def _pop(self) -> object:
        """Remove the value on top of the stack and return it."""
        if not self._items:
            raise LabelMapProblem(tr("it is not a valid pickle"))
        return self._items.pop()

    def _stream_pairs(self, target: _Dict) -> None:  # noqa: C901, PLR0912, PLR0915 - one loop, see below
        """Pass on the pairs of a streamed dictionary, up to the instruction that ends the group.

        Most of a file is read here. The instructions are handled in one loop, because calls would take most of the
        time.
        """
        content, memo, at = self._content, self._memo, self._at
        if target.role == ID_TO_SEQ_ID and (skipped := _REFERENCES.match(content, at)):
            at = skipped.end()
        pairs: list[tuple[str | int, str | int]] = []
        key: str | int | None = None
        last_text = -1
        try:
            while (code := content[at]) != 0x75:  # SETITEMS
                value: str | int
                if code == 0x8C:
                    value, last_text = self._text_at(at), at
                    at += 2 + content[at + 1]
                elif code == 0x58:  # BINUNICODE
                    value, last_text = self._text_at(at), at
                    at += 5 + _UINT32.unpack_from(content, at + 1)[0]
                elif code == 0x94:  # MEMOIZE
                    memo.append(last_text)
                    at += 1
                    continue
                elif code in b"qr":
                    size = 1 if code == 0x71 else 4
                    self._memoize_text(int.from_bytes(content[at + 1 : at + 1 + size], "little"), last_text)
                    at += 1 + size
                    continue
                elif code == 0x95:  # FRAME
                    at += 9
                    continue
                elif code in b"hj":
                    size = 1 if code == 0x68 else 4
                    last_text = memo[int.from_bytes(content[at + 1 : at + 1 + size], "little")]
                    value = self._text_at(last_text)
                    at += 1 + size
                else:
                    value, size = self._integer_at(code, at)
                    last_text = -1
                    at += size
                if key is None:
                    key = value
                else:
                    pairs.append((key, value))
                    key = None
                    if len(pairs) == _BATCH:
                        self._sink(target.role, pairs)
                        pairs = []
        except (IndexError, struct.error) as error:
            raise LabelMapProblem(tr("it ends too early")) from error
        if key is not None:
            raise LabelMapProblem(tr("it is not a valid pickle"))
        self._sink(target.role, pairs)
        self._at = at + 1

    def _text_at(self, at: int) -> str:
        """Decode the text whose instruction is at an offset."""
        content = self._content
        code = content[at] if at >= 0 else 0
        if code == 0x8C:
            first = at + 2
            size = content[at + 1]
        elif code == 0x58:
            first = at + 5
            size = _UINT32.unpack_from(content, at + 1)[0]
            if size > _MAX_TEXT:
                raise LabelMapProblem(tr("it has a text of {size:,} bytes, which is too long", size=size))
        else:
            raise LabelMapProblem(tr("it is not a valid pickle"))
        return self._decode(content[first : first + size])

    def _integer_at(self, code: int, at: int) -> tuple[int, int]:
        """Return the number whose instruction (with this opcode) is at an offset, and the instruction's length."""
        content = self._content
        if code == 0x4A:
            value, size = _INT32.unpack_from(content, at + 1)[0], 5
        elif code == 0x4D:
            value, size = _UINT16.unpack_from(content, at + 1)[0], 3
        elif code == 0x4B:
            value, size = content[at + 1], 2
        elif code == 0x8A:
            size = 2 + content[at + 1]
            value = int.from_bytes(content[at + 2 : at + size], "little", signed=True)
        else:
            raise LabelMapProblem(tr("it has the instruction {code}, which Chroma never writes", code=hex(code)))
        if not 0 <= value <= _MAX_INTEGER:
            raise LabelMapProblem(tr("a label is outside of the range that Chroma uses"))
        return value, size

    def _memoize_text(self, number: int, text_at: int) -> None:
        """Store the offset of a text under a memo number, by which the pickle refers to the text again."""
        if number > len(self._memo):
            raise LabelMapProblem(tr("it is not a valid pickle"))
        if number == len(self._memo):
            self._memo.append(text_at)
        else:
            self._memo[number] = text_at

    def _memoize(self, number: int) -> None:
        """Store the offset of the last text under a memo number."""
        # Texts only: an instruction that refers to anything else again is refused.
        self._memoize_text(number, self._last_text)

    def _recall(self, number: int) -> None:
        """Push the text that a memo number refers to."""
        if number >= len(self._memo):
            raise LabelMapProblem(tr("it is not a valid pickle"))
        at = self._memo[number]
        self._push(self._text_at(at), at)

    # --- dictionaries and the one class -----------------------------------------------------------------------------

    def _push_dict(self) -> None:
        """Push an empty dictionary; inside of the outermost one, its role is the key before it."""
        role = ""
        outer = self._target
        if outer is not None and not outer.role and len(self._items) % 2 and isinstance(self._items[-1], str):
            role = str(self._items[-1])
        self._push(_Dict(role if role in _STREAMED else ""))

    def _open_mark(self) -> None:
        """Begin a group of pairs for the dictionary on top of the stack."""
        target = self._items[-1] if self._items else None
        if not isinstance(target, _Dict) or len(self._outer) == _MAX_DEPTH:
            raise LabelMapProblem(tr("it is not a valid pickle"))
        if target.role:
            self._stream_pairs(target)
            return
        self._outer.append(self._items)
        self._outer_targets.append(self._target)
        self._items, self._target = [], target

    def _set_items(self) -> None:
        """End a group of pairs and put them into its dictionary."""
        if not self._outer or self._target is None or len(self._items) % 2:
            raise LabelMapProblem(tr("it is not a valid pickle"))
        target, items = self._target, self._items
        self._items, self._target = self._outer.pop(), self._outer_targets.pop()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._put_pair(target, key, value)

    def _set_item(self) -> None:
        """Store the value on top of the stack in the dictionary below it, under the key between them."""
        value, key = self._pop(), self._pop()
        target = self._items[-1] if self._items else None
        if not isinstance(target, _Dict):
            raise LabelMapProblem(tr("it is not a valid pickle"))
        self._put_pair(target, key, value)

    def _put_pair(self, target: _Dict, key: object, value: object) -> None:
        """Put a pair into a dictionary, or pass it on if the dictionary is streamed."""
        if target.role:
            if not isinstance(key, str | int) or not isinstance(value, str | int):
                raise LabelMapProblem(tr("it is not a valid pickle"))
            self._sink(target.role, [(key, value)])
        elif isinstance(key, str) and len(target.values) < _MAX_VALUES:
            target.values[key] = value
        else:
            raise LabelMapProblem(tr("it has other fields than a label map has"))

    def _push_global_lines(self) -> None:
        """Push the class whose module and name are the next two lines."""
        names = []
        for _ in range(2):
            end = self._content.find(b"\n", self._at, self._at + 200)
            if end < 0:
                raise LabelMapProblem(tr("it is not a valid pickle"))
            names.append(self._decode(self._take(end - self._at)))
            self._skip(1)
        self._push_global(names[0], names[1])

    def _push_global(self, module: object, name: object) -> None:
        """Push the class with this module and name; only that of a label map is allowed."""
        if (module, name) != (_MODULE, _CLASS):
            raise ForeignInstruction(
                tr("it wants to load {module}.{name}, which a label map never does", module=module, name=name)
            )
        self._push(_Global())

    def _make_instance(self) -> None:
        """Replace the class and the arguments on the stack by an instance."""
        arguments, made = self._pop(), self._pop()
        if arguments != () or not isinstance(made, _Global) or made.is_instance:
            raise LabelMapProblem(tr("it is not a valid pickle"))
        made.is_instance = True
        self._push(made)

    def _set_state(self) -> None:
        """Take the dictionary on top of the stack as the state of the instance below it."""
        state = self._pop()
        made = self._items[-1] if self._items else None
        if not isinstance(made, _Global) or not made.is_instance or not isinstance(state, _Dict):
            raise LabelMapProblem(tr("it is not a valid pickle"))
        made.state = state

    # --- the result -------------------------------------------------------------------------------------------------

    def _result(self) -> LabelMap:
        """Return the single values of the label map, or raise if the pickle is something else."""
        found = self._items[0] if len(self._items) == 1 and not self._outer else None
        is_object = isinstance(found, _Global)
        state = found.state if isinstance(found, _Global) else found
        if not isinstance(state, _Dict):
            raise LabelMapProblem(tr("it is not a dictionary"))
        maps = (state.values.get(name) for name in (ID_TO_LABEL, LABEL_TO_ID))
        if not all(isinstance(one, _Dict) for one in maps):
            raise LabelMapProblem(tr("it has no labels"))

        def integer(name: str) -> int | None:
            """Return an integer of the outermost dictionary, or None."""
            value = state.values.get(name)
            return value if isinstance(value, int) else None

        return LabelMap(
            dimension=integer("dimensionality"),
            total_added=integer("total_elements_added"),
            max_seq_id=integer("max_seq_id"),
            is_object=is_object,
        )


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_label_map(
    found: LabelMap, labels: list[tuple[str, int]], sequence_numbers: list[tuple[str, int]] | None = None
) -> bytes:
    """Encode a label map in the form of the Chroma versions that wrote an earlier one.

    Args:
        found: the single values of the earlier label map.
        labels: each id and its label.
        sequence_numbers: each id and the number of an operation. Versions before 1.0 have one for each id, and versions
            up to 0.4 return no vector without it.
    """
    pieces = [b"\x80\x04"]
    if found.is_object:
        pieces += [_encode_text(_MODULE), _encode_text(_CLASS), b"\x93)\x81"]
    pieces += [b"}("]
    for name, value in (
        ("dimensionality", found.dimension),
        ("total_elements_added", found.total_added),
        ("max_seq_id", found.max_seq_id),
    ):
        pieces += [_encode_text(name), b"N" if value is None else _encode_integer(value)]
    pieces += [_encode_text(ID_TO_LABEL), b"}("]
    pieces += [piece for key, label in labels for piece in (_encode_text(key), _encode_integer(label))]
    pieces += [b"u", _encode_text(LABEL_TO_ID), b"}("]
    pieces += [piece for key, label in labels for piece in (_encode_integer(label), _encode_text(key))]
    pieces += [b"u", _encode_text(ID_TO_SEQ_ID), b"}("]
    pieces += [
        piece for key, number in sequence_numbers or () for piece in (_encode_text(key), _encode_integer(number))
    ]
    pieces += [b"uu", b"b." if found.is_object else b"."]
    return b"".join(pieces)


def _encode_text(text: str) -> bytes:
    """Encode a text as pickle does (BINUNICODE)."""
    raw = text.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _encode_integer(value: int) -> bytes:
    """Encode an integer as pickle does: BININT or, from 2**31 on, LONG1."""
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    raw = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw
