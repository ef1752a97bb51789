"""Errors of what takes bases from one machine to another: packs, backups of version 7, other profiles."""

from __future__ import annotations

from regraft.errors import STOPPED, RegraftError, SourceUnrecognised


class PackUnreadable(RegraftError, ValueError):
    message = (
        "{path}: the manifest of this pack cannot be read ({reason}); take another copy of the pack, or a newer "
        "regraft."
    )


class PackDamaged(RegraftError, ValueError):
    message = "{path}: {file} is not what was packed ({reason}); nothing was written, take another copy of the pack."


class ProfileInUse(RegraftError, BlockingIOError):
    message = (
        "{path}: the application is running ({sign}), so that what is read could change meanwhile; nothing was "
        "written, quit it first."
    )


class BackupSlim(RegraftError, LookupError):
    message = (
        "{path}: a slim backup has the rows of base {base}, and neither its index nor its files; take a full backup, "
        "or the profile that it was made of."
    )


class BaseAmbiguous(RegraftError, LookupError):
    message = (
        "{base}: several bases of the source are called so or begin so ({known}); give the id of the one that you mean."
    )


class PackThere(RegraftError, FileExistsError):
    message = "{path}: there is {what} already; nothing was written, name another file or move this one away."


class NothingToPack(RegraftError, LookupError):
    message = "{path}: none of its bases can be packed ({reason}); nothing was written."


class CopyDiffers(RegraftError, OSError):
    message = "{path}: this copy is not what was copied ({reason}); it was not used, check the disk."

    exit_status = STOPPED


class MigrationUnfinished(SourceUnrecognised):
    message = (
        "{path}: an unfinished migration, nothing of which is in its place yet; run it again: {command} (or delete "
        "the folder)."
    )


class TargetBaseOfAnother(RegraftError, FileExistsError):
    message = (
        "{path}: its base {base} was migrated from another knowledge base, none of whose documents is in this one; "
        "give another folder."
    )


class RepairSourceDiffers(RegraftError, ValueError):
    message = (
        "{path}: nothing is taken from it for base {base}: {reason}; nothing was written, name another source, or "
        "choose other bases with --base."
    )
