"""Snapshots: their names, titles and blocks, and getting the exact body back."""

from __future__ import annotations

import json

import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.formats.okf import Snapshot, leading_line, note_snapshot, strip_block, url_snapshot
from regraft.text import trim

QUICK = settings(max_examples=examples(200), deadline=None)
TIMESTAMP = "2025-03-14T09:30:57.000Z"
URL = "https://docs.example.com/guide/start"

TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("\n\r\u2028\u2029\x85\"\\:-#' \ufeff\U0001f600")),
    max_size=40,
)
BODIES = st.one_of(
    TEXTS,
    TEXTS.map(lambda text: "---\n" + text),
    TEXTS.map(lambda text: "---\ntype: Note\n---\n" + text),
    TEXTS.map(lambda text: "\n---\n" + text),
)


# --- the block -----------------------------------------------------------------------------------------------------


def test_block_of_a_url() -> None:
    snapshot = Snapshot(stem="start", type="URL", title='A "quoted" title', resource=URL)
    assert snapshot.block(TIMESTAMP) == (
        f'---\ntype: "URL"\ntitle: "A \\"quoted\\" title"\nresource: "{URL}"\ntimestamp: "{TIMESTAMP}"\n---\n'
    )


def test_block_of_a_note_has_no_resource_and_keeps_every_script() -> None:
    block = Snapshot(stem="会议", type="Note", title="会议 \U0001f600\nsecond line\t").block(TIMESTAMP)
    assert block == (f'---\ntype: "Note"\ntitle: "会议 \U0001f600\\nsecond line\\t"\ntimestamp: "{TIMESTAMP}"\n---\n')


@QUICK
@given(TEXTS, st.one_of(st.none(), TEXTS))
def test_values_of_a_block_are_json_on_one_line_each(title: str, resource: str | None) -> None:
    lines = Snapshot(stem="stem", type="URL", title=title, resource=resource).block(TIMESTAMP).split("\n")
    assert (lines[0], lines[-2], lines[-1]) == ("---", "---", "")
    fields = dict(line.split(": ", 1) for line in lines[1:-2])
    expected = {"type": "URL", "title": title, "resource": resource, "timestamp": TIMESTAMP}
    assert {key: json.loads(value) for key, value in fields.items()} == {
        key: value for key, value in expected.items() if value is not None
    }
    assert list(fields) == [key for key, value in expected.items() if value is not None]


@QUICK
@given(TEXTS, st.one_of(st.none(), TEXTS), BODIES)
def test_stripping_gives_back_the_exact_body(title: str, resource: str | None, body: str) -> None:
    block = Snapshot(stem="stem", type="URL" if resource else "Note", title=title, resource=resource).block(TIMESTAMP)
    assert strip_block(block + body) == body
    assert strip_block((block + body).encode().decode()) == body


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "# Heading\n\ntext",
        "---",
        "---\n",
        "---\nno field\n---\nbody",
        "--- \ntype: x\n---\n",
        " ---\ntype: x\n---\n",
        "\n---\ntype: x\n---\n",
        "---\r\ntype: x\r\n---\r\n",
        "---\ntype: x\nbody without an end",
        "---\ntype: x\n--- body",
        "----\ntype: x\n----\n",
    ],
)
def test_text_that_begins_with_no_block_stays(text: str) -> None:
    assert strip_block(text) == text


def test_only_one_block_goes() -> None:
    block = Snapshot(stem="stem", type="Note", title="title").block(TIMESTAMP)
    assert strip_block(block * 2 + "body") == block + "body"
    assert strip_block("body" + block) == "body" + block


# --- the first heading or line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" \n\t\n\u00a0", ""),
        ("one", "one"),
        ("\n\n  one  \ntwo", "one"),
        ("intro\n# Heading\n## Other", "Heading"),
        ("intro\n\ntext\n###### Deep", "Deep"),
        ("   ## Indented  ", "Indented"),
        ("#\tTab", "Tab"),
        ("#\u3000Wide", "Wide"),
        ("#\ufeffMark", "Mark"),
        ("####### seven", "####### seven"),
        ("#hash", "#hash"),
        ("#", "#"),
        ("# \nnext", "#"),
        ("#   \n## Later", "Later"),
        ("text # no heading", "text # no heading"),
        ("# One ## still one", "One ## still one"),
        ("##  # marks", "# marks"),
        # Only \n ends a line; \r at an end is trimmed, in the middle it stays.
        ("first\r\nsecond", "first"),
        ("first\r# second", "first\r# second"),
        ("first\u2028# second", "first\u2028# second"),
        ("\x85\nsecond", "\x85"),
        ("\ufeffone", "one"),
        ("last line\n", "last line"),
    ],
)
def test_leading_line(text: str, line: str) -> None:
    assert leading_line(text) == line


@QUICK
@given(st.lists(st.text("# a\r\t\ufeff中\U0001f600", max_size=8), max_size=8))
def test_leading_line_by_definition(lines: list[str]) -> None:
    space = " \r\t\ufeff"
    trimmed = [line.strip(space) for line in lines]
    headings = []
    for line in trimmed:
        marks = len(line) - len(line.lstrip("#"))
        if 1 <= marks <= 6 and line[marks : marks + 1] and line[marks] in space:
            headings.append(line[marks:].lstrip(space))
    expected = next(iter([*headings, *filter(None, trimmed)]), "")
    assert leading_line("\n".join(lines)) == expected


# --- snapshots of urls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "content", "stem", "title"),
    [
        (URL, "intro\n# Getting started\ntext", "Getting started", "Getting started"),
        (URL, "First line\nsecond", "First line", "First line"),
        (URL, "# a/b: c?", "a_b_ c_", "a/b: c?"),
        (URL, "# dots...", "dots", "dots..."),
        (URL, "# CON", "_", "CON"),
        (URL, "x" * 100, "x" * 80, "x" * 80),
        (URL, "x" * 79 + "\U0001f600", "x" * 79, "x" * 79),
        (URL, "\U0001f600" * 41, "\U0001f600" * 40, "\U0001f600" * 40),
        (URL, "x" * 79 + " tail", "x" * 79, "x" * 79),
        # Nothing is left of the line, or only `untitled`: the address names the file, the line stays the title.
        (URL, "", "docs.example.com-start", "docs.example.com-start"),
        (URL, " \n\t", "docs.example.com-start", "docs.example.com-start"),
        (URL, "...", "docs.example.com-start", "..."),
        (URL, "untitled", "docs.example.com-start", "untitled"),
        (URL, "Untitled", "Untitled", "Untitled"),
        ("not a url", "", "page", "not a url"),
        ("not a url", "...", "page", "..."),
        ("not a url", "A line", "A line", "A line"),
    ],
)
def test_snapshot_of_a_url(url: str, content: str, stem: str, title: str) -> None:
    assert url_snapshot(url, content) == Snapshot(stem=stem, type="URL", title=title, resource=url)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://docs.example.com", "docs.example.com"),
        ("https://docs.example.com/", "docs.example.com"),
        ("https://docs.example.com//", "docs.example.com"),
        ("https://docs.example.com/a/b/", "docs.example.com-b"),
        ("https://docs.example.com/a/b?q=1#frag", "docs.example.com-b"),
        ("https://user:pw@docs.example.com:8443/a", "docs.example.com-a"),
        ("HTTPS://DOCS.Example.COM/A", "docs.example.com-A"),
        ("https://例子.测试/你好 世界", "xn--fsqu00a.xn--0zwm56d-%E4%BD%A0%E5%A5%BD%20%E4%B8%96%E7%95%8C"),
        ("https://docs.example.com/a/../b", "docs.example.com-b"),
        ("https://docs.example.com/a/./", "docs.example.com-a"),
        (" https://docs.example.com/a ", "docs.example.com-a"),
        ("http://[::1]/a", "[::1]-a"),
        ("http://0x7f.1/a", "127.0.0.1-a"),
    ],
)
def test_addresses_are_as_a_browser_reads_them(url: str, address: str) -> None:
    snapshot = url_snapshot(url, "")
    assert snapshot.title == address
    assert snapshot.stem == address.replace(":", "_")
    assert snapshot.resource == url


def test_a_long_address_is_cut_too() -> None:
    snapshot = url_snapshot(f"https://docs.example.com/{'p' * 100}", "")
    assert snapshot.title == snapshot.stem == ("docs.example.com-" + "p" * 100)[:80]


def test_the_url_is_kept_as_stored() -> None:
    url = "  https://docs.example.com/a?b=ü \n"
    assert url_snapshot(url, "line").resource == url


# --- snapshots of notes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "stem"),
    [
        ("Meeting notes", "Meeting notes"),
        ("https://example.com/clip?x=1", "https___example.com_clip_x=1"),
        ("  padded  ", "padded"),
        ("y" * 200, "y" * 80),
        ("\U0001f600" * 50, "\U0001f600" * 40),
        ("...", "note"),
        ("untitled", "note"),
        (" \n ", "note"),
        ("", "note"),
        ("nul", "_"),
        ("# heading", "# heading"),
    ],
)
def test_snapshot_of_a_note(source: str, stem: str) -> None:
    assert note_snapshot(source) == Snapshot(stem=stem, type="Note", title=trim(source), resource=None)


@pytest.mark.parametrize(
    ("source", "stem", "title"),
    [
        ("Meeting notes\n\nBody", "Meeting notes", "Meeting notes"),
        ("\n \ufeff\n\t## Meeting: notes \r\nBody", "## Meeting_ notes", "## Meeting: notes"),
        ("a\rb\u2028c\nd", "a_b\u2028c", "a\rb\u2028c"),
        ("...\nBody", "note", "..."),
        (f"{'y' * 100}\nBody", "y" * 80, "y" * 100),
        (f"{'y' * 79} z\n", "y" * 79, f"{'y' * 79} z"),
    ],
)
def test_a_note_is_called_by_its_first_line(source: str, stem: str, title: str) -> None:
    assert note_snapshot(source) == Snapshot(stem=stem, type="Note", title=title, resource=None)


@pytest.mark.parametrize("stem", [".cherry", ".Cherry"])
def test_a_snapshot_is_never_called_like_the_folder_of_the_index(stem: str) -> None:
    # Its name has `.md` at its end, so that nothing needs to be renamed.
    assert f"{note_snapshot(stem).stem}.md" == f"{stem}.md"
