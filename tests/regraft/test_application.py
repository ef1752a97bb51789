"""The installed application is found in the system's usual places only, and started where it uses the profile."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from faults import posix
from patience import NEVER_SECONDS
from profiles import profile

from regraft.api import application
from regraft.errors import ApplicationNotStarted


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "APPDATA", "LOCALAPPDATA", "ProgramFiles", "ProgramFiles(x86)"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    return home


def program(path: Path, text: str = "") -> Path:
    """Write a program that notes its arguments and working folder beside itself, and ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        text or f'#!/bin/sh\nprintf "%s\\n" "$PWD" "$@" > "{path}.part"\nmv "{path}.part" "{path}.started"\n', "utf-8"
    )
    path.chmod(0o755)
    return path


def image(home: Path) -> Path:
    return program(home / "Applications" / "Cherry-Studio-2.0.8-x86_64.AppImage")


def entry(home: Path, command: str, name: str = "cherrystudio.desktop") -> Path:
    path = home / ".local" / "share" / "applications" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[Desktop Entry]\nType=Application\nName=Cherry Studio\nExec={command}\n", "utf-8")
    return path


# --- where -----------------------------------------------------------------------------------------------------------


def test_windows_installs_for_a_user_and_for_all(home, monkeypatch):
    assert application.find_program("win32") is None
    monkeypatch.setenv("ProgramFiles", str(home / "Program Files"))
    monkeypatch.setenv("LOCALAPPDATA", str(home / "AppData" / "Local"))
    program(home / "AppData" / "Local" / "Programs" / "Other" / "Cherry Studio.exe")
    program(home / "Program Files" / "Cherry Studio" / "Uninstall.exe")
    assert application.find_program("win32") is None
    for_all = program(home / "Program Files" / "Cherry Studio" / "Cherry Studio.exe")
    assert application.find_program("win32") == [str(for_all)]
    own = program(home / "AppData" / "Local" / "Programs" / "Cherry Studio" / "Cherry Studio.exe")
    assert application.find_program("win32") == [str(own)]
    monkeypatch.setenv("LOCALAPPDATA", "relative")
    assert application.find_program("win32") == [str(for_all)]


def test_macos_opens_a_bundle(home):
    assert application.find_program("darwin") is None
    (home / "Applications").mkdir()
    (home / "Applications" / "Cherry Studio").mkdir()
    assert application.find_program("darwin") is None
    (home / "Applications" / "Cherry Studio.app").mkdir()
    assert application.find_program("darwin") == ["/usr/bin/open", "-a", str(home / "Applications/Cherry Studio.app")]


@posix
def test_linux_has_images_and_desktop_entries(home):
    assert application.find_program("linux") is None
    path = image(home)
    assert application.find_program("linux") == [str(path)]
    path.chmod(0o644)
    assert application.find_program("linux") is None
    installed = program(home / "opt" / "Cherry Studio" / "cherrystudio")
    entry(home, f'"{installed}" --no-sandbox 100%% @@u %U @@')
    assert application.find_program("linux") == [str(installed), "--no-sandbox", "100%"]


@posix
@pytest.mark.parametrize(
    "command", ["cherrystudio %U", "env X=1 cherrystudio", "/no/such/program", '"unclosed', "", "\0"]
)
def test_a_desktop_entry_that_names_no_program_is_passed_over(home, command):
    entry(home, command)
    assert application.find_program("linux") is None


def test_what_downloads_and_settings_name_is_never_run(home):
    named = program(home / "Downloads" / "Cherry-Studio.AppImage")
    settings = home / ".cherrystudio" / "config" / "config.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        json.dumps({"appDataPath": [{"executablePath": str(named), "dataPath": str(home / "data")}]}), "utf-8"
    )
    profile(home / "data")
    assert application.find_program() is None
    assert not application.can_start(home / "data")


# --- for which profile -----------------------------------------------------------------------------------------------


@posix
def test_it_is_started_once_found_in_a_process_of_its_own(home):
    made, path = profile(home / ".config" / "CherryStudio"), image(home)
    assert application.can_start(made)
    process = application.start_application(made)
    assert process.wait(NEVER_SECONDS) == 0
    assert Path(f"{path}.started").read_text("utf-8").splitlines() == [str(home)]


@posix
def test_it_does_not_end_with_the_process_that_started_it(home):
    made = profile(home / ".config" / "CherryStudio")
    program(home / "bin" / "cherry-studio.AppImage", '#!/bin/sh\nps -o sid= -p $$ > "$HOME/session"\n')
    application.start_application(made).wait(NEVER_SECONDS)
    assert int((home / "session").read_text("utf-8")) != os.getsid(0)


@posix
def test_another_profile_is_not_opened_by_it(home, tmp_path):
    image(home)
    other = profile(tmp_path / "copy")
    assert not application.can_start(other)
    with pytest.raises(ApplicationNotStarted, match="it opens another profile; start it as you usually do") as caught:
        application.start_application(other)
    assert caught.value.code == "ApplicationNotStarted"
    assert not list(home.rglob("*.started"))


@posix
def test_it_is_not_started_twice(home):
    made, _ = profile(home / ".config" / "CherryStudio"), image(home)
    (made / "SingletonLock").symlink_to(f"{socket.gethostname()}-{os.getpid()}")
    assert not application.can_start(made)
    with pytest.raises(ApplicationNotStarted, match=f"it is running already .process {os.getpid()}."):
        application.start_application(made)
    assert not list(home.rglob("*.started"))


@posix
def test_a_program_that_cannot_run_is_one_line(home):
    made = profile(home / ".config" / "CherryStudio")
    program(home / "bin" / "cherry-studio.AppImage", "#!/no/such/interpreter\n")
    with pytest.raises(ApplicationNotStarted, match="The application was not started: No such file or directory"):
        application.start_application(made)


def test_a_frozen_program_gives_its_libraries_not_away(home, monkeypatch):
    monkeypatch.setattr(application.sys, "frozen", True, raising=False)
    for name, value in {"LD_LIBRARY_PATH": "/bundle", "LD_LIBRARY_PATH_ORIG": "/own", "REGRAFT_LANG": "en"}.items():
        monkeypatch.setenv(name, value)
    environment = application._environment()
    assert environment["LD_LIBRARY_PATH"] == "/own"
    assert not {"LD_LIBRARY_PATH_ORIG", "REGRAFT_LANG"} & set(environment)
    monkeypatch.delenv("LD_LIBRARY_PATH_ORIG")
    assert "LD_LIBRARY_PATH" not in application._environment()
