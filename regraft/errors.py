"""Every error that regraft reports to a person.

Each class is one message: what happened to what, and what to do about it. The table of errors in ``docs/errors.md`` is
generated from the classes.
"""

from __future__ import annotations

import importlib
from importlib import import_module
from typing import Any, ClassVar

from regraft.language import tr
from regraft.text import printable

WORTH_READING = 1
REFUSED = 2
STOPPED = 3
INTERRUPTED = 130


class RegraftError(Exception):
    """An error that is reported to a person in one sentence.

    ``message`` is a ``str.format`` template over the facts that the constructor takes. It is an attribute and not the
    docstring, which ``python -OO`` removes. ``exit_status`` is the exit status of the process.
    """

    message: ClassVar[str] = "{message}"
    exit_status: ClassVar[int] = REFUSED

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        super().__init__(tr(self.template(), **{name: _written(value) for name, value in facts.items()}))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.facts)

    @classmethod
    def template(cls) -> str:
        """Return the message template on one line."""
        return " ".join(cls.message.split())

    @property
    def code(self) -> str:
        """Return the error's stable name, the class name."""
        return type(self).__name__


def _written(value: object) -> object:
    """Return what a fact is in a message: a number as it is, anything else as text that can be shown."""
    return value if isinstance(value, int | float | None) else printable(value)


def _rebuild(error: type[RegraftError], facts: dict[str, object]) -> RegraftError:
    """Make an error again on the other side of a process boundary."""
    return error(**facts)


# --- what the user named -------------------------------------------------------------------------------------------


class WrongUsage(RegraftError, ValueError):
    message = "{problem} ({hint})."


class SourceNotFound(RegraftError, FileNotFoundError):
    message = "{path}: there is nothing at this path; check the spelling."


class SourceUnrecognised(RegraftError, ValueError):
    message = (
        "{path}: not a knowledge base that regraft knows ({found}); give a v1 backup (zip or folder), a profile "
        "folder, an export folder, a knowledge JSON file, a library that regraft wrote, a database of codex-mem, a "
        "data folder of AngelMemory, or a knowledge base of rsclaw."
    )


class BackupTooNew(RegraftError, ValueError):
    message = (
        "{path}: a backup in the format .cherrybackup, which this version does not read; restore it in the "
        "application that wrote it and give the profile folder, or make a backup as a zip file in the application "
        "(Settings, Data)."
    )


class SourceNotMigratable(RegraftError, ValueError):
    message = "{path}: this is {what}; {advice}."


class NotChecked(RegraftError, ValueError):
    message = "{path}: this is {what}, which this version does not check; {advice}."


class SourceUnreadable(RegraftError, OSError):
    message = "{path}: cannot be read ({reason}); check that the file is complete and that you may read it."


class BrokenJson(RegraftError, ValueError):
    message = "{path}: {where} is not valid JSON: {reason}; the source is incomplete or damaged, take another one."


class ArchiveUnsafe(RegraftError, ValueError):
    message = "{path}: refused, the archive is not safe to read: {reason}."


class ArchiveEncrypted(RegraftError, ValueError):
    message = "{path}: the archive is protected by a password; unpack it yourself and give the folder."


class ApplicationRunning(RegraftError, BlockingIOError):
    message = (
        "{path}: the application is running ({sign}), so that its data may change while it is read; quit it, or give "
        "--while-running to read what it has written so far (safe for a copy that nobody writes to)."
    )


class ProfileAmbiguous(RegraftError, ValueError):
    message = "{path}: the application's settings name several data folders ({folders}); give the one that you mean."


class BaseUnknown(RegraftError, LookupError):
    message = "{base}: no base has this name or id; there are: {known}."


class ModelOptionInvalid(RegraftError, ValueError):
    message = "{option} {value}: {reason}."


# --- the target ----------------------------------------------------------------------------------------------------


class TargetNotOurs(RegraftError, FileExistsError):
    message = "{path}: not empty and not written by regraft ({found}); give an empty or a new folder."


class TargetOverlapsSource(RegraftError, ValueError):
    message = "{path}: the target and the source {source} lie inside one another; give a target outside the source."


class TargetLocked(RegraftError, BlockingIOError):
    message = "{path}: another regraft is working on this target; wait until it has finished."


class TargetNotWritable(RegraftError, PermissionError):
    message = "{path}: cannot be written ({reason}); choose a folder that you may write to."


class ReportNotWritable(RegraftError, PermissionError):
    message = "{path}: no report page can be written here ({reason}); name another file."


class TargetBaseChanged(RegraftError, FileExistsError):
    message = (
        '{path}: base "{base}" would be carried anew (its source or your options differ), but its migrated copy '
        "was changed since regraft wrote it; migrate to another folder, or remove this copy first."
    )


class TargetBaseForeign(RegraftError, FileExistsError):
    message = (
        '{path}: base "{base}" came here by regraft {writer}, and regraft {command} does not write over that; give '
        "another folder."
    )


class TargetCatalogChanged(RegraftError, FileExistsError):
    message = "{path}: changed since regraft wrote it, and this run would write it anew; migrate to another folder."


class TargetHasItem(RegraftError, FileExistsError):
    message = (
        '{path}: base "{base}" in it has the item {item} already, which base "{other}" of the source has too; '
        "migrate to another folder."
    )


class LedgerUnreadable(RegraftError, ValueError):
    message = (
        "{path}: regraft's own record of this target cannot be read ({reason}); migrate to another folder, or move "
        ".regraft away (what its runs did can then no longer be taken back, and their trash is in it)."
    )


class NotEnoughSpace(RegraftError, OSError):
    message = "{path}: about {needed} are needed and {free} are free; free some space or choose another disk."


class WorkFolderTooSmall(RegraftError, OSError):
    message = (
        "{path}: reading this archive without writing to the target needs about {needed} of temporary space and "
        "{free} are free; point TMPDIR to a larger disk."
    )


class TemporaryCopyFailed(RegraftError):
    message = (
        "{path}: reading it needs a temporary copy, and {folder} cannot be written ({reason}); free space there, "
        "raise the limit on file sizes, or point TMPDIR to another folder."
    )

    exit_status = STOPPED


class Declined(RegraftError, RuntimeError):
    message = "{path}: you answered no; nothing was written."


# --- embedding -------------------------------------------------------------------------------------------------------


class EmbedderDiffers(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: it is not the model that made the vectors of {base}: of {count} texts that have one, a "
        "quarter or more come out otherwise (cosine {cosine}, not {least} or more); nothing was written, name the "
        "base's own model. If a prefix is missing, write it into the configuration."
    )


class EmbedderUnsteady(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: it gave one text two vectors (cosine {cosine}, not {least} or more) when the order of "
        "texts changed; nothing was written, such vectors are worth nothing."
    )


class ProbeRefused(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: it refuses texts of {base} that have a vector already ({reason}), so that nobody can "
        "tell whether it is their model; nothing was written, mend its settings or give --no-probe."
    )


class EveryTextRejected(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: it refuses whatever is sent ({reason}); check its model, dimensions and encoding in "
        "the configuration."
    )


class ModelDiffers(RegraftError, ValueError):
    message = (
        "Embedder {embedder} is model {model}, but {reason}; name another embedder, or list that model under "
        "model_ids in the configuration if it is the same one."
    )


class ModelSet(RegraftError, ValueError):
    message = (
        "{base}: its model is {model} already, not {wanted}; vectors of two models cannot be mixed. regraft restore "
        "makes a new base with another model."
    )


class DimensionsMissing(RegraftError, ValueError):
    message = "{base}: neither a catalog nor any vector says how many dimensions its vectors have; give --dimensions."


class EmbedderUnnamed(RegraftError, LookupError):
    message = "{path}: {problem}; give --embedder, {known}."


class QueryNotEmbedded(RegraftError, RuntimeError):
    message = "Embedder {embedder}: it gave no vector for the query ({reason}); --mode bm25 searches by words alone."


class BackfillStopped(RegraftError, OSError):
    message = (
        "{path}: stopped: {reason}; what was written stays (vectors: {written}), run the same command again to go on."
    )

    exit_status = STOPPED


class BackfillInterrupted(RegraftError, RuntimeError):
    message = "Interrupted; what was written stays (vectors: {written}), run the same command again to go on."

    exit_status = INTERRUPTED


# --- changing a store ------------------------------------------------------------------------------------------------


class NotChanged(RegraftError, ValueError):
    message = "{path}: this is {what}, which regraft {command} does not change; {advice}."


class ApplicationOpen(RegraftError, BlockingIOError):
    message = "{path}: the application is running ({sign}); quit it first, its data are not changed under it."


class StoreBusy(RegraftError, BlockingIOError):
    message = "{path}: another program has it open for writing; quit that, then run the same command again."


class StoreNotWritable(RegraftError, PermissionError):
    message = "{path}: cannot be written ({reason}); nothing was changed, make it writable first."


class StoreOnTwoDisks(RegraftError, OSError):
    message = (
        "{path}: on another disk than {root}, so that nothing can be moved between them in one step; put both on one."
    )


class PlanOutdated(RegraftError, ValueError):
    message = "{path}: {reason}; nothing of it was changed, run the same command again."


class ProfileUnknown(RegraftError, ValueError):
    message = (
        "{path}: {what}, which this regraft does not know; nothing was changed, use a regraft of the application's "
        "own time."
    )


class NotRestored(RegraftError, ValueError):
    message = "{path}: base {base} is not restored: {reason}."


class ModelNotSet(RegraftError, ValueError):
    message = "{path}: base {base} gets no model: {reason}."


class NotMended(RegraftError, ValueError):
    message = "{path}: {findings} would still be found afterwards; all was taken back (run {run}), please report this."

    exit_status = STOPPED


class ChangesStopped(RegraftError, OSError):
    message = (
        "{path}: stopped: {reason}; every file is whole (changes made so far: {finished}), run the same command "
        "again to go on."
    )

    exit_status = STOPPED


class StoreDamaged(RegraftError, ValueError):
    message = (
        "{path}: cannot be changed as it is ({reason}); nothing was changed, see regraft check, or take another copy."
    )


class RunUnknown(RegraftError, LookupError):
    message = "{path}: {problem}; regraft history shows the runs."


class UndoRefused(RegraftError, ValueError):
    message = "{path}: {what} changed since run {run}; nothing was taken back, so that no later change is lost."


# --- a search ------------------------------------------------------------------------------------------------------


class NotSearchable(RegraftError, ValueError):
    message = "{path}: this is {what}, which cannot be searched; {advice}."


class BaseFailed(RegraftError, ValueError):
    message = (
        "{path}: base {base} failed ({reason}), and the application does not search it; --raw asks its index alone, "
        "if it has one."
    )


class BaseNotListed(RegraftError, LookupError):
    message = "{path}: the catalog has no base {base}; --raw asks its index alone."


class BaseWithoutIndex(RegraftError, LookupError):
    message = "{path}: base {base} has no index that can be read; see regraft inspect."


class QueryWithoutWord(RegraftError, ValueError):
    message = "The query has no letter, digit or _ to search for; write a word."


class QueryTooLong(RegraftError, ValueError):
    message = "The query is too long: {reason}; shorten it."


class QueryVectorMissing(RegraftError, ValueError):
    message = (
        "{path}: base {base} is searched by {mode}, which needs the query's vector; give --embedder NAME, or "
        "--vector FILE with {dimensions} numbers made by {model}, or --mode bm25."
    )


class QueryVectorUnfit(RegraftError, ValueError):
    message = (
        "{path}: the vector has {found} numbers, those of base {base} have {expected}; make it with the base's own "
        "model."
    )


# --- embedders -----------------------------------------------------------------------------------------------------


class ConfigInvalid(RegraftError, ValueError):
    message = "{path}:{line}: {problem}; {advice}."


class EmbedderUnknown(RegraftError, LookupError):
    message = (
        "{path}: no embedder {name} ({known}); give one that is there, or write it there as regraft explain "
        "embedders shows."
    )


class EmbedderKeyMissing(RegraftError, LookupError):
    message = (
        "Embedder {embedder}: its key is expected in the environment variable {variable}, which {reason}; set it and "
        "run the same command again."
    )


class EmbedderRefused(RegraftError, PermissionError):
    message = "Embedder {embedder}: {server} refuses to work ({reason}); {advice}."


class ModelUnreadable(RegraftError, OSError):
    message = (
        "{path}: no model that {library} can load ({reason}); give the folder of one on this disk, nothing is "
        "downloaded."
    )


class AnswerUnfit(RegraftError, ValueError):
    """An unusable answer of an embedder.

    ``fault`` is ``wrong_count``, ``wrong_order``, ``wrong_dimensions``, ``not_numbers``, ``non_finite`` or
    ``zero_vector``; ``position`` is the place of the bad vector, from 0, where it is one alone, else None.
    """

    message = (
        "Embedder {embedder}: its answer was refused, {reason}; nothing of it was written, check that this is the "
        "model that you mean."
    )

    exit_status = WORTH_READING

    @property
    def fault(self) -> str:
        """Return what is wrong."""
        return str(self.facts["fault"])

    @property
    def position(self) -> int | None:
        """Return the place of the one bad vector."""
        place = self.facts["position"]
        return place if isinstance(place, int) else None


# --- the index store -----------------------------------------------------------------------------------------------


class IndexForeign(RegraftError, ValueError):
    message = "{path}: this is the index of base {found}, not of {base}; {advice}."


class IndexVersionUnknown(RegraftError, ValueError):
    message = (
        "{path}: its layout has version {found} and this regraft knows {known}; it was left as it is, use a version "
        "of regraft that knows it."
    )


class IndexIncomplete(RegraftError, ValueError):
    message = "{path}: no whole index ({missing} missing); it was left as it is, take another copy of it."


class IndexHotJournal(RegraftError, BlockingIOError):
    message = (
        "{path}: an unfinished transaction lies beside it ({journal}); open it once for writing, which finishes it, "
        "or wait for the program that writes to it."
    )


class IndexBusy(RegraftError, BlockingIOError):
    message = "{path}: another program writes to it without a pause; wait until that has finished."


class IndexReadOnly(RegraftError, PermissionError):
    message = "{path}: opened for reading only; open it for writing to change it."


class StoreClosed(RegraftError, ValueError):
    message = "{path}: the store was closed; open it again."


class IndexUnchanged(RegraftError, OSError):
    message = "{path}: {doing} failed ({reason}); no row was changed, mend that and do it again."


class MaterialRefused(RegraftError, ValueError):
    message = "{material}: this material cannot be stored: {reason}; nothing was changed."


class UnitRefused(RegraftError, ValueError):
    message = (
        "{material}: unit {unit}, from {start} to {end}, {reason} (UTF-16 units, the text has {length}); nothing was "
        "changed, cut the text again."
    )


class EmbeddingRefused(RegraftError, ValueError):
    message = (
        "{material}: the vector of text {hash} has {found} bytes where the base has {expected}, a multiple of 4; "
        "nothing was changed, embed the text with the base's own model."
    )


class CoverageGap(RegraftError, LookupError):
    message = (
        "{material}: {missing} of its texts have no vector (the first is that of unit {unit}); nothing was changed, "
        "give the missing vectors."
    )


class FullTextOutOfStep(RegraftError, ValueError):
    message = (
        "{path}: its full-text index does not match its bodies ({when} giving space back); every row is still there, "
        "build the full-text index anew."
    )


# --- stopped midway ------------------------------------------------------------------------------------------------


class StoppedMidway(RegraftError, OSError):
    message = (
        "{path}: stopped while {doing}: {reason}; what was finished stays whole (bases: {finished}), run the same "
        "command again to go on."
    )

    exit_status = STOPPED


class StoppedBySystem(RegraftError, OSError):
    message = "Stopped by the system: {reason}."

    exit_status = STOPPED


class OutputLost(RegraftError, OSError):
    message = (
        "{output} cannot be written ({reason}), so that not all of the result is there; what the command was asked "
        "to do is done, and stays."
    )

    exit_status = STOPPED


class FaultOfRegraft(RegraftError, RuntimeError):
    message = "{kind}: {reason}; this is a fault of regraft, please report it (-vv shows where it came from)."

    exit_status = STOPPED


class BooksDoNotBalance(RegraftError, ArithmeticError):
    message = (
        "{base}: {read} rows were read, but {carried} carried and {skipped} skipped do not add up to them; nothing "
        "of this base was published, please report this."
    )

    exit_status = STOPPED


class VerificationFailed(RegraftError, ValueError):
    message = (
        "{base}: the new index is not what was read ({reason}); nothing of this base was published, please report this."
    )

    exit_status = STOPPED


class Interrupted(RegraftError, RuntimeError):
    message = "Interrupted; what was finished stays whole (bases: {finished}), run the same command again to go on."

    exit_status = INTERRUPTED


def error_classes() -> list[type[RegraftError]]:
    """Return every concrete error class: of this module and of those beside it, each in order."""
    more = ("formats.redb.",)
    modules = (globals(), *(vars(import_module(f"regraft.{name}errors")) for name in more))
    found = (value for module in modules for value in module.values() if isinstance(value, type))
    return [value for value in dict.fromkeys(found) if issubclass(value, RegraftError) and value is not RegraftError]


# Errors about where regraft may write; see :mod:`regraft.errors` and :mod:`regraft.disk.writable`.
#
# None is an ``OSError``: what goes on after a file that cannot be written must not go on after one of these.


class LinkInStore(RegraftError):
    message = (
        "{path}: a link (to {goal}) stands where a folder or file itself belongs; regraft writes and removes nothing "
        "through links, so put what it leads to in its place, or remove it."
    )


class JournalNamesAnother(RegraftError):
    message = (
        "{path}: this unfinished transaction names another file ({named}), which would be removed with it; open the "
        "database once in the program that wrote it, or move this file away."
    )


class OutsideStore(RegraftError):
    message = "{path}: lies outside of what this command may change; nothing was written there."


class ConsentMissing(RegraftError, RuntimeError):
    message = (
        "regraft {command} would change what is there, and nobody is there to be asked: nothing was written; see the "
        "plan with --dry-run, and add --yes to go on."
    )


# Errors of what takes bases from one machine to another: packs, backups of version 7, other profiles.


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


# Errors of the application's profiles; see :mod:`regraft.errors`.


class ProfilePending(RegraftError, BlockingIOError):
    message = (
        "{path}: {pending}. What is written now would be thrown away at the next start: start the application once, "
        "let it finish, quit it, then run the same command again."
    )


# Errors about what stands in a store's files: damage, and definitions that a layout does not have.


class SchemaForeign(RegraftError, ValueError):
    message = (
        "{path}: {what}, which the layout does not have and which could change other rows than are meant; no row was "
        "changed, see regraft check and mend that first."
    )


class OtherRowsChanged(RegraftError, RuntimeError):
    message = (
        "{path}: rows of {tables} changed with those that were meant, by a rule that the layout does not have; all "
        "of it was taken back, see regraft check and mend that first."
    )


class RowsMayBeRefused(RegraftError, ValueError):
    message = (
        "{path}: {index} is an index that the layout does not have and that can refuse new rows of {table}; nothing "
        "was begun, drop it first."
    )


class StoppedAtDamage(RegraftError, ValueError):
    message = (
        "{path}: stopped at damage ({reason}); what was done before is whole ({finished}), see regraft check; "
        "regraft undo takes it back."
    )

    exit_status = STOPPED


# Errors of stores of other systems; see :mod:`regraft.errors`.


class GenerationUnknown(RegraftError, ValueError):
    message = "{path}: this is {what}, a later generation than regraft knows ({known}); nothing was read or written."


class MigrationForeign(RegraftError, ValueError):
    message = (
        "{path}: {what}, which is not the migration 006 that regraft knows; nothing was changed, ask for a regraft "
        "of that codex-mem."
    )


class ProjectUnknown(BaseUnknown):
    message = "{base}: no project of the database has this id, and no single one this name or slug; it has {known}."


class SidecarUnfit(RegraftError, ValueError):
    message = "{path}: {reason}; regraft rebuild makes all vectors of the notes anew."


class CollectionOfOtherVersion(RegraftError, ValueError):
    message = (
        "{path}: another version of chromadb than {version} wrote it, and that one could not read it any more "
        "afterwards ({reason}); nothing was changed, install the chromadb that the application uses beside regraft."
    )


class FullTextNotRebuilt(RegraftError, ValueError):
    message = (
        "{path}: its full-text index could not be rebuilt ({reason}); nothing was changed in it. A backup of the "
        "file brings it back."
    )


class CollectionRefused(RegraftError, OSError):
    message = "{path}: chromadb cannot work with it: {reason}; nothing of it was changed."


class NotRecalled(RegraftError, ValueError):
    message = "{path}: this is {what}, which has no notes to recall; give a data folder of AngelMemory."


class NoteUnknown(RegraftError, LookupError):
    message = "{path}: no note has the short id {short_id} ({known}); AngelMemory itself shows the id 0 as -1."


class NoteAmbiguous(RegraftError, LookupError):
    message = "{path}: several notes have the short id {short_id} ({files}); regraft repair gives each one of its own."


class NoteGone(RegraftError, FileNotFoundError):
    message = (
        "{path}: the file of note {short_id} is gone (raw/{file}); put it back, or let regraft repair remove the "
        "record."
    )


class NoteOutside(RegraftError, ValueError):
    message = "{path}: the path of note {short_id} leads out of raw/ ({file}); it is not read."


# What a fleet says where it is stopped.


class FleetInterrupted(RegraftError, RuntimeError):
    message = "Interrupted; what was finished stays (libraries: {finished}), go on with: {command}."

    exit_status = INTERRUPTED


class StorageFailed(RegraftError, OSError):
    message = (
        "{url} could not be read or written ({reason}). It is tried again; after that, go on with regraft fleet resume."
    )

    exit_status = STOPPED


class StorageRefused(RegraftError, PermissionError):
    message = (
        "{url} may not be read or written ({reason}). Look at the credentials of this machine, and at the bucket's "
        "rules."
    )


class LibraryHeld(RegraftError, RuntimeError):
    message = (
        "{url} is worked on by somebody else, who has it for {seconds} s more. Go on later with regraft fleet resume."
    )

    exit_status = STOPPED


class LibraryChanged(RegraftError, RuntimeError):
    message = (
        "{url} was changed by somebody else meanwhile, so that nothing of this was published. It is tried again; "
        "after that, go on with regraft fleet resume."
    )

    exit_status = STOPPED


class LibraryUnsafe(RegraftError, ValueError):
    message = "{url} was not read: {reason}."


# Optional parts of regraft: libraries that are imported when they are needed, never before.


def import_optional(module: str, purpose: str, extra: str) -> Any:
    """Return a module of an optional library.

    Args:
        module: its name, for example ``pyarrow.parquet``.
        purpose: what needs it, in the plural, as an error says it: ``Parquet files``.
        extra: the extra of regraft that brings it.

    Raises:
        WrongUsage: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise not_installed_error(module, purpose, extra) from error


def not_installed_error(module: str, purpose: str, extra: str) -> WrongUsage:
    """Return the error that says which extra brings a module; the arguments are those of :func:`needed`."""
    library = module.partition(".")[0]
    problem = tr("{purpose} need {library}, which is not installed", purpose=purpose, library=library)
    return WrongUsage(problem=problem, hint=tr('install it: pip install "regraft[{extra}]"', extra=extra))
