"""Folders of original files that a base follows, and what happens to them."""

from __future__ import annotations

from pathlib import Path

#: Characters of a text; the chunk size of a base is 1,024 by default, so that each file has several units.
PARAGRAPHS = 4


def text_of(number: int | str, changed: str = "") -> str:
    """Return a Markdown text of four units; ``changed`` replaces a word of the third."""
    paragraphs = [f"Paragraph {one} of document {number}. " + f"word{number}x{one} " * 80 for one in range(PARAGRAPHS)]
    if changed:
        paragraphs[2] = paragraphs[2].replace("Paragraph", changed)
    return f"# Document {number}\n\n" + "\n\n".join(paragraphs) + "\n"


def write_files(folder: Path, count: int) -> Path:
    """Write files into a folder and a folder in it."""
    (folder / "inner").mkdir(parents=True)
    for number in range(count):
        place(folder, number).write_text(text_of(number), encoding="utf-8", newline="\n")
    return folder


def place(folder: Path, number: int) -> Path:
    """Return where the file of a number is."""
    return (folder / "inner" if number % 2 else folder) / f"document {number}.md"


def edit(folder: Path) -> None:
    """Change one file, rename one, delete one, and add one."""
    place(folder, 0).write_text(text_of(0, "Clause"), encoding="utf-8", newline="\n")
    place(folder, 1).rename(folder / "renamed.md")
    place(folder, 2).unlink()
    (folder / "new.txt").write_text("a new file\n", encoding="utf-8")
