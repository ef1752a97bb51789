"""Messages in Chinese: by locale or --lang; JSON, what is kept in files, names and codes are the same in every one."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from generations import profile
from harness import REPO

from regraft import errors, language
from regraft.api import outcome
from regraft.cli.output import parse_agreement
from regraft.report.labels import label_of

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
NOW = "2026-01-31T12:00:00Z"
#: Three words in a row are a sentence that nobody has translated.
_ENGLISH = re.compile(r"(?<![\w/.:`'-])[a-z]{2,} [a-z]{2,} [a-z]{2,}(?![\w/`'-])")
#: Names, commands and paths of the sample that are in what is printed.
_AS_IT_IS = re.compile(r"regraft [a-z-]+( \S+)*|`[^`]*`|/\S+( \S+)*")


def spoken(*words: object, locale: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "REGRAFT_"))
    }
    environment |= {"LANG": locale or "C.UTF-8", "PYTHONUTF8": "1", **more}
    command = [sys.executable, "-P", "-m", "regraft", *map(str, words)]
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chinese") / "library"
    done = spoken("migrate", SAMPLE, "--to", folder, "--now", NOW, "--yes", locale="zh_CN.UTF-8")
    assert "完成：4 个知识库中的 3 个。" in done.stdout, done.stdout + done.stderr
    return folder


def test_a_second_run_in_another_language_writes_no_base_again(library: Path, tmp_path: Path) -> None:
    """Bases of the sample have notices, whose messages are translated."""
    copy = shutil.copytree(library, tmp_path / "library")
    before = {path: path.stat().st_mtime_ns for path in copy.glob("KnowledgeBase/*/.cherry/*")}
    assert len(before) == 3
    for words in (("--lang", "en"), ("--lang", "zh")):
        assert spoken(*words, "migrate", SAMPLE, "--to", copy, "--now", NOW, "--yes").returncode == 1
        assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("zh_CN.UTF-8", ()),
        ("zh_TW.UTF-8", ()),
        ("zh", ()),
        ("en_US.UTF-8", ("--lang", "zh")),
        ("C.UTF-8", ("--lang=zh",)),
    ],
)
def test_the_locale_or_an_option_chooses_chinese(locale: str, words: tuple[str, ...]) -> None:
    assert spoken(*words, "inspect", "nowhere", locale=locale).stderr == (
        "regraft：nowhere：没有这个文件或文件夹；请检查拼写。\n"
    )
    assert spoken("inspect", "nowhere", *words, locale=locale).stderr.startswith("regraft：nowhere：")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("locale", "words"),
    [("zh_CN.UTF-8", ("--lang", "en")), ("de_DE.UTF-8", ()), ("C.UTF-8", ()), ("zh_CN.UTF-8", ("--json",))],
)
def test_other_locales_and_json_are_english(locale: str, words: tuple[str, ...]) -> None:
    done = spoken("inspect", "nowhere", *words, locale=locale)
    assert "no such file or folder" in done.stdout + done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows answers in its own words, in the language of its user")
@pytest.mark.parametrize(
    "name",
    (
        *("EACCES", "EBUSY", "EDQUOT", "EEXIST", "EFBIG", "EINVAL", "EIO", "EISDIR", "ELOOP", "EMFILE", "ENAMETOOLONG"),
        *("ENOENT", "ENOSPC", "ENOTDIR", "ENOTEMPTY", "EPERM", "EPIPE", "EROFS", "ETIMEDOUT", "EXDEV", "ECONNREFUSED"),
    ),
)
def test_reasons_of_the_system_are_in_chinese(name: str) -> None:
    reason = os.strerror(getattr(errno, name))
    with language.use_language("zh"):
        by_text = errors.StoreNotWritable(path="store", reason=reason)
        nested = language.tr("it cannot be read ({strerror})", strerror=reason)
        found = outcome.as_regraft_error(OSError(getattr(errno, name), reason, "file"))
    for text in (str(by_text), nested, str(found)):
        assert reason not in text
        assert re.search("[\u4e00-\u9fff]", text)
    assert str(errors.StoreNotWritable(path="store", reason=reason)).startswith(f"store: cannot be written ({reason})")
    assert f"file: {reason}" in str(outcome.as_regraft_error(OSError(getattr(errno, name), reason, "file")))


@pytest.mark.thorough
def test_reasons_of_sqlite_are_in_chinese_and_json_is_english(tmp_path: Path) -> None:
    with pytest.raises(apsw.CantOpenError) as caught:
        apsw.Connection(str(tmp_path / "nowhere" / "x.sqlite"))
    with language.use_language("zh"):
        message = str(errors.SourceUnreadable(path="x", reason=caught.value))
    assert "不能打开数据库文件" in message
    if os.name == "nt":
        return  # such a name is not too long there: it is missing
    long = "x" * 300
    assert "文件名过长" in spoken("inspect", long, locale="zh_CN.UTF-8").stderr
    assert os.strerror(errno.ENAMETOOLONG) in spoken("inspect", long, "--json", locale="zh_CN.UTF-8").stdout


@pytest.mark.thorough
def test_a_language_that_is_not_there_is_refused_with_those_that_are() -> None:
    done = spoken("--lang", "xx", "inspect", "nowhere")
    assert (done.returncode, "'en', 'zh'" in done.stderr) == (2, True)


def test_behind_two_hyphens_an_option_is_a_path() -> None:
    arguments = ["inspect", "--", "--lang", "zh"]
    assert language._split_option(arguments) == (arguments, None)


#: Runs several command lines in one process, and prints what they say.
_SEVERAL = """
import json, sys
from click.testing import CliRunner
from regraft import language
language.set_language(["--lang", "zh"])
from regraft.cli import cli
said = []
for words in json.load(sys.stdin):
    done = CliRunner().invoke(cli, words, prog_name="regraft")
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    said.append(done.stdout + done.stderr)
json.dump(said, sys.stdout)
"""


def all_spoken(lines: list[list[str]]) -> list[tuple[str, str]]:
    """Run command lines in a process whose language is Chinese; return each with what it says."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SEVERAL],
        env=environment,
        input=json.dumps(lines),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(" ".join(line), text) for line, text in zip(lines, json.loads(done.stdout), strict=True)]


@pytest.mark.thorough
def test_everything_is_said_in_chinese(library: Path, tmp_path: Path) -> None:
    lines = [
        ["check", library],
        ["check", library, "--quick", "-v"],
        ["inspect", library],
        ["inspect", library, "-v"],
        ["search", library, "tomato seedlings"],
        ["repair", library, "--dry-run"],
        ["fix", library, "--dry-run"],
        ["gc", library, "--dry-run"],
        ["reconcile", library, "--dry-run"],
        ["upgrade", library, "--dry-run"],
        ["history", library],
        ["undo", library, "--dry-run"],
        ["rescue", library, "--dry-run"],
        ["export", library, tmp_path / "units.parquet"],
        ["repair", library],
        ["backfill", library, "--dry-run"],
    ]
    said = all_spoken([[str(word) for word in line] for line in lines])
    assert [line for line, text in said if not re.search("[\u4e00-\u9fff]", text)] == []
    english = [
        (line, one)
        for line, text in said
        for one in text.splitlines()
        if not one.lstrip().startswith(("… ", "“")) and _ENGLISH.search(_AS_IT_IS.sub("", one))
    ]
    assert english == []


@pytest.mark.thorough
def test_help_is_chinese() -> None:
    names = ["migrate", "check", "install", "backfill", "search", "undo", "compare", "export", ""]
    said = all_spoken([[*filter(None, [name]), "--help"] for name in names])
    assert [line for line, text in said if "用法" not in text or "选项" not in text] == []
    english = [
        (line, one)
        for line, text in said
        for one in text.splitlines()
        if not one.startswith("    regraft") and "Usage" not in one and _ENGLISH.search(_AS_IT_IS.sub("", one))
    ]
    assert english == []


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "words", [("check",), ("inspect",), ("history",), ("repair", "--dry-run"), ("search", "tomato")]
)
def test_json_is_the_same_in_every_locale(library: Path, words: tuple[str, ...]) -> None:
    name, *options = words

    def document(locale: str) -> dict[str, object]:
        found = json.loads(spoken(name, library, *options, "--json", locale=locale).stdout)
        found.pop("run")
        return dict(found)

    assert document("zh_CN.UTF-8") == document("en_US.UTF-8")


@pytest.mark.thorough
def test_what_is_kept_in_files_is_english(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "library"
    spoken("migrate", SAMPLE, "--to", other, "--now", NOW, "--yes", "-q", locale="en_US.UTF-8")
    # JSON doubles the backslashes of Windows.
    names = {folder: json.dumps(str(folder), ensure_ascii=False)[1:-1] for folder in (library, other)}
    texts = [(folder / "report.json").read_text("utf-8").replace(name, "X") for folder, name in names.items()]
    reports = [json.loads(text) for text in texts]
    for report in reports:
        for key in ("run", "target", "preflight"):
            report.pop(key, None)
    assert reports[0] == reports[1]
    pages = [(folder / "report.html").read_text("utf-8") for folder in (library, other)]
    assert ['<html lang="zh">' in pages[0], '<html lang="en">' in pages[1]] == [True, True]
    assert "迁移报告" in pages[0]


@pytest.mark.thorough
def test_a_page_in_one_language_replaces_that_in_another(library: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for locale, name in (("zh_CN.UTF-8", "zh"), ("C.UTF-8", "en")):
        done = spoken("check", library, "--report", page, locale=locale)
        assert done.returncode in (0, 1), done.stderr
        assert page.read_text("utf-8").startswith(f'<!doctype html>\n<html lang="{name}">')


@pytest.mark.thorough
def test_actions_of_a_run_are_kept_in_english(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(library, copy)
    orphan = next((copy / "KnowledgeBase").iterdir()) / "raw" / "left over.txt"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_text("of nothing")
    os.utime(orphan, (1_600_000_000, 1_600_000_000))
    done = spoken("gc", copy, "--only", "raw.orphan", "--yes", locale="zh_CN.UTF-8")
    assert "移到回收区" in done.stdout, done.stdout
    actions = json.loads(spoken("history", copy, "--json").stdout)["runs"][0]["actions"]
    assert any("which no item names, to the trash" in action["message"] for action in actions), actions
    assert "移到回收区" in spoken("history", copy, locale="zh_CN.UTF-8").stdout


@pytest.mark.thorough
def test_a_message_of_several_parts_is_kept_in_english(library: Path, tmp_path: Path) -> None:
    into = profile(tmp_path / "profile", "2.1")
    words = ("install", library, "--profile", into, "--base", "Boat workshop", "--yes")
    spoken(*words, "--recreate-provider", "openai")
    done = spoken(*words, "--as-new", "--name", "Slipway", locale="zh_CN.UTF-8")
    assert "名称改为“Slipway”" in done.stdout, done.stdout + done.stderr
    actions = json.loads(spoken("history", into, "--json").stdout)["runs"][0]["actions"]
    (message,) = (action["message"] for action in actions if action["action"] == "insert-base")
    assert message.isascii()
    assert message.endswith(", under the name Slipway")


@pytest.mark.thorough
def test_counted_things_and_labels_are_aligned_by_columns(library: Path) -> None:
    from wcwidth import wcswidth

    lines = spoken("migrate", SAMPLE, "--to", library, "--now", NOW, "--yes", locale="zh_CN.UTF-8").stdout.splitlines()
    head, *rows = lines[: lines.index("")]
    ends = {
        wcswidth(line[: line.index(word)])
        for line, word in ((head, "结果"), (rows[0], "没有变化"), (rows[1], "没有变化"))
    }
    assert len(ends) == 1, lines


def test_kept_text_is_translated_by_the_messages_that_it_was_made_of() -> None:
    again = language.translate_text
    assert again("nothing was written", "zh") == "没有写入任何内容"
    assert again("Next: regraft check x", "zh") == "下一步：regraft check x"
    assert again("copy its folder, 1,204 files", "zh") == "复制它的文件夹，1,204 个文件"
    assert again("its vector file ABC is truncated: the last 10,384 bytes are missing", "zh") == (
        "它的向量文件 ABC 已被截断：末尾缺少 10,384 字节"
    )
    assert (
        again(
            "its vector file ABC is truncated: the last 10,384 bytes are missing; --salvage can salvage 2 of"
            " about 5 rows",
            "zh",
        )
        == "它的向量文件 ABC 已被截断：末尾缺少 10,384 字节；用 --salvage 可以救回约 5 行中的 2 行"
    )
    assert again("delete 1 vector not referenced by any indexed text", "zh") == (
        "删除 1 个向量（没有已索引的文本使用）"
    )
    assert again("undo: delete 2 vectors of a base without a model", "zh") == (
        "撤销：删除 2 个向量（属于没有模型的知识库）"
    )
    assert again("delete 1 relation of a missing note", "zh") == "删除属于不存在的笔记的 1 个关系"
    assert again("delete 8 tags not used by any note or memory", "zh") == "删除没有笔记或记忆使用的 8 个标签"
    added = "add it to the profile with 13 items, with the model a::b, as a new base of 3ef4, under the name X y"
    assert again(added, "zh") == "登记到应用数据目录：13 个数据源，模型为 a::b，作为 3ef4 的新知识库，名称改为“X y”"
    assert again("", "zh") == ""
    assert again("of a stranger's making", "zh") == "of a stranger's making"
    assert again("nothing was written", "en") == "nothing was written"


@pytest.mark.thorough
def test_a_second_run_speaks_its_own_language(tmp_path: Path) -> None:
    target = tmp_path / "library"
    first = spoken("migrate", SAMPLE, "--to", target, "--now", NOW, "--yes")
    second = spoken("migrate", SAMPLE, "--to", target, "--now", NOW, "--yes", locale="zh_CN.UTF-8")
    assert "its vector file" in first.stdout
    warned = [line for line in second.stdout.splitlines() if line.startswith(("警告：", "错误："))]
    assert any("没有行：目录 /home/mei/Documents/Boat workshop 的 8 个文件中的 1 个" in line for line in warned), warned
    assert any("已被截断：末尾缺少 10,384 字节；用 --salvage 可以救回约 5 行中的 2 行" in line for line in warned), (
        warned
    )
    assert "have no rows" not in second.stdout
    warnings = json.loads((target / "report.json").read_text("utf-8"))["warnings"]
    assert any("have no rows in v1" in warning["message"] for warning in warnings), warnings


def test_a_name_in_a_message_is_in_the_language_of_the_reader() -> None:
    def failed() -> str:
        return language.tr("failed during the {step}: {error}", step=label_of("upgrade"), error="no_model")

    with language.use_language("zh"):
        assert failed() == "在升级时失败：no_model"
    assert failed() == "failed during the upgrade: no_model"
    in_chinese = (
        "from regraft.language import tr, use_language\n"
        "from regraft.report.labels import label_of\n"
        "with use_language('en'): print(tr('failed during the {step}: {error}', step=label_of('upgrade'), error=1))\n"
    )
    environment = {**os.environ, language.VARIABLE: "zh"}
    done = subprocess.run([sys.executable, "-P", "-c", in_chinese], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "failed during the upgrade: 1"


def test_a_blank_parts_chinese_from_latin() -> None:
    assert language.fill_template("上面的{count:,}个", {"count": 3}) == "上面的 3 个"
    assert language.fill_template("{path} 是{names}。", {"path": "/a", "names": "v2 备份"}) == "/a 是 v2 备份。"
    assert language.fill_template("知识库{name!r}", {"name": "社区"}) == "知识库'社区'"


def test_explanations_are_in_the_language_of_the_reader() -> None:
    page = spoken("explain", "embedders", locale="zh_CN.UTF-8").stdout
    assert page.startswith("# 嵌入器\n"), page[:80]
    assert spoken("explain", "embedders").stdout.startswith("# Embedders\n")
    # A page without a translation.
    assert spoken("explain", "errors", locale="zh_CN.UTF-8").stdout.startswith("# ")
    error = spoken("explain", "TargetNotOurs", locale="zh_CN.UTF-8").stdout
    assert error.startswith("TargetNotOurs  （错误，退出码 2）\n  PATH：文件夹不是空的"), error
    finding = spoken("explain", "item.tombstone", locale="zh_CN.UTF-8").stdout
    assert finding.startswith("item.tombstone  （问题，错误）\n"), finding


def test_wrong_values_are_named_in_the_language_of_the_reader() -> None:
    said = spoken("migrate", "x", "--to", "y", "--jobs", "z", locale="zh_CN.UTF-8").stderr
    assert "'--jobs' 的值无效：'z' 不是有效的整数（见 regraft migrate --help）。" in said, said


@pytest.mark.parametrize(
    ("answer", "agrees"),
    [("", True), (" Y ", True), ("是", True), ("n", False), ("否", False), ("x", None)],
)
def test_a_question_takes_answers_in_both_languages(answer: str, agrees: bool | None) -> None:
    with language.use_language("zh"):
        assert parse_agreement(answer) is agrees


def test_a_message_that_no_translation_changes_keeps_the_language_of_its_facts() -> None:
    with language.use_language("zh"):
        assert language.tr("{question} [Y/n]", question=language.tr("Continue?")) == "继续吗？ [Y/n]"


def test_a_translated_text_contains_no_header_of_the_catalog() -> None:
    text = "1 of 8 files of the folder /home/mei/Documents/Boat workshop have no rows in v1"
    translated = language.translate_text(text, "zh")
    assert translated == "没有行：目录 /home/mei/Documents/Boat workshop 的 8 个文件中的 1 个"
    assert language.translate_text("", "zh") == ""
