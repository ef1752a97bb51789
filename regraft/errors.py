"""Every error that regraft reports to a person.

Each class is one message: what happened to which object, why, and what to do next. The table of errors in
``docs/errors.md`` is generated from the classes.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

from regraft.language import tr
from regraft.text import printable

WORTH_READING = 1
REFUSED = 2
STOPPED = 3
INTERRUPTED = 130


class RegraftError(Exception):
    """An error that is reported to a person in one sentence.

    ``message`` is a ``str.format`` template; the constructor takes its values. It is an attribute and not the
    docstring, because ``python -OO`` removes docstrings. ``exit_status`` is the exit status of the process.
    """

    message: ClassVar[str] = "{message}"
    exit_status: ClassVar[int] = REFUSED

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        # Numbers keep their type for format specifications; texts are made safe to print.
        values = {
            name: value if isinstance(value, int | float | None) else printable(value) for name, value in facts.items()
        }
        # Windows ends reasons in Chinese with a full stop, which Python removes in other languages only.
        values |= {name: str(values[name]).removesuffix("。") for name in values.keys() & {"reason", "problem"}}
        super().__init__(tr(self.template(), **values))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error by its class and facts: exceptions with keyword arguments cannot be pickled otherwise."""
        return _rebuild, (type(self), self.facts)

    @classmethod
    def template(cls) -> str:
        """Return the message template on one line."""
        return " ".join(cls.message.split())

    @property
    def code(self) -> str:
        """The stable name of the error: the class name."""
        return type(self).__name__


def _rebuild(error: type[RegraftError], facts: dict[str, object]) -> RegraftError:
    """Make an error again from its class and facts; pickle calls this function."""
    return error(**facts)


# --- what the user named -------------------------------------------------------------------------------------------


class WrongUsage(RegraftError, ValueError):
    message = "{problem} ({hint})."


class SourceNotFound(RegraftError, FileNotFoundError):
    message = "{path}: no such file or folder; check the spelling."


class SourceUnrecognised(RegraftError, ValueError):
    message = (
        "{path}: not a knowledge base that regraft knows ({found}); give a v1 backup (zip or folder), a profile "
        "folder, an export folder, a knowledge JSON file, a library written by regraft, a database of codex-mem, a "
        "data folder of AngelMemory, a folder of Chroma, or a knowledge base of rsclaw."
    )


class BackupInFolder(SourceUnrecognised):
    message = "{path}: this folder is not a knowledge base, but contains the v1 backup {name}; run: {command}."


class ParquetFileGiven(SourceUnrecognised):
    message = "{path}: this is a Parquet file; to make a library of it, run: regraft import {file} --to library."


class StoresInFolder(SourceUnrecognised):
    message = "{path}: this folder is not a knowledge base, but contains some; give the path of one: {names}."


class BackupTooNew(RegraftError, ValueError):
    message = (
        "{path}: this version does not read backups in the format .cherrybackup; restore the backup in the application "
        "that wrote it and give the profile folder, or make a backup as a zip file in the application (Settings, "
        "Data)."
    )


class SourceNotMigratable(RegraftError, ValueError):
    message = "{path}: this is {what}; {advice}."


class NotChecked(RegraftError, ValueError):
    message = "{path}: this is {what}, which this version does not check; {advice}."


class SourceUnreadable(RegraftError, OSError):
    message = (
        "{path}: cannot be read ({reason}); check that the file is complete and that you have permission to read it."
    )


class BrokenJson(RegraftError, ValueError):
    message = "{path}: {where} is not valid JSON: {reason}; the source is incomplete or damaged, use another copy."


class ArchiveUnsafe(RegraftError, ValueError):
    message = "{path}: the archive is not safe to read: {reason}."


class ArchiveEncrypted(RegraftError, ValueError):
    message = "{path}: the archive is encrypted; unpack it yourself and give the folder."


class ApplicationRunning(RegraftError, BlockingIOError):
    message = (
        "{path}: the application is running ({sign}), so its data may change while they are read; quit it, or give "
        "--while-running to read what it has written so far (safe for a copy that no program writes to)."
    )


class ApplicationNotStarted(RegraftError, OSError):
    message = "The application was not started: {reason}; start it as you usually do."


class ProfileAmbiguous(RegraftError, ValueError):
    message = "{path}: the application's settings name several data folders ({folders}); give one of them."


class BaseUnknown(RegraftError, LookupError):
    message = "{base}: no base has this name or id; known bases: {known}."


class ModelOptionInvalid(RegraftError, ValueError):
    message = "{option} {value}: {reason}."


# --- the target ----------------------------------------------------------------------------------------------------


class TargetNotOurs(RegraftError, FileExistsError):
    message = "{path}: the folder is not empty and was not written by regraft ({found}); give an empty or a new folder."


class TargetOverlapsSource(RegraftError, ValueError):
    message = (
        "{path}: one of the target and the source {source} contains the other; give a target outside of the source."
    )


class TargetLocked(RegraftError, BlockingIOError):
    message = "{path}: another regraft process is using this target; wait until it has finished."


class ChangeUnfinished(RegraftError, BlockingIOError):
    message = (
        "{path}: a run that was stopped, or is still at work, has moved {name} away; wait until it has finished, or "
        "run this command without --dry-run, which completes or reverts the change first."
    )


class TargetNotWritable(RegraftError, PermissionError):
    message = "{path}: cannot be written ({reason}); choose another place."


class ReportNotWritable(RegraftError, PermissionError):
    message = "{path}: the report page cannot be written ({reason}); give another file."


class TargetBaseChanged(RegraftError, FileExistsError):
    message = (
        '{path}: base "{base}" would be rewritten (its source or your options differ), but its migrated copy was '
        "changed after regraft wrote it; migrate to another folder, or remove this copy first."
    )


class TargetBaseForeign(RegraftError, FileExistsError):
    message = (
        '{path}: base "{base}" was written here by regraft {writer}, and regraft {command} does not overwrite it; give '
        "another folder."
    )


class TargetCatalogChanged(RegraftError, FileExistsError):
    message = "{path}: changed after regraft wrote it, and this run would rewrite it; migrate to another folder."


class TargetHasItem(RegraftError, FileExistsError):
    message = (
        '{path}: its base "{base}" already has the item {item}, which base "{other}" of the source has as well; '
        "migrate to another folder."
    )


class LedgerUnreadable(RegraftError, ValueError):
    message = (
        "{path}: regraft's record of this target cannot be read ({reason}); migrate to another folder, or move "
        ".regraft away (its runs can then no longer be undone, and their trash is in it)."
    )


class NotEnoughSpace(RegraftError, OSError):
    message = "{path}: about {needed} are needed, but only {free} are free; free some space or choose another disk."


class WorkFolderTooSmall(RegraftError, OSError):
    message = (
        "{path}: reading this archive needs about {needed} of temporary space, but only {free} are free; set TMPDIR to "
        "a folder on a larger disk."
    )


class TemporaryCopyFailed(RegraftError):
    message = (
        "{path}: reading it requires a temporary copy, but {folder} cannot be written ({reason}); free space there, "
        "raise the limit on file sizes, or set TMPDIR to another folder."
    )
    exit_status = STOPPED


# Not an OSError: readers of a file take those as a fault of the file.
class VectorExtensionUnusable(RegraftError):
    message = (
        "The SQLite extension sqlite-vec cannot be loaded ({reason}), so vectors cannot be checked; nothing was "
        "written. Reinstall regraft for this system."
    )
    exit_status = STOPPED


class InputEnded(RegraftError, EOFError):
    message = "The input ended before all questions were answered; nothing was written."
    exit_status = WORTH_READING


class Declined(RegraftError, RuntimeError):
    message = "{path}: you answered no; nothing was written."


# --- embedding -------------------------------------------------------------------------------------------------------


class EmbedderDiffers(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: this is not the model that made the vectors of {base}: of {count} texts that have a "
        "vector, at least a quarter get another one (cosine {cosine} instead of {least} or more); nothing was written. "
        "Use the base's own model. If a prefix is missing, add it to the configuration."
    )


class EmbedderUnsteady(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: it returned two different vectors for one text when the order of the texts changed "
        "(cosine {cosine} instead of {least} or more), so its vectors are useless; nothing was written."
    )


class ProbeRefused(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: it rejects texts of {base} that already have a vector ({reason}), so regraft cannot "
        "verify that it is their model; nothing was written. Correct its settings or give --no-probe."
    )


class EveryTextRejected(RegraftError, ValueError):
    message = (
        "Embedder {embedder}: it rejects every text ({reason}); check its model, dimensions and encoding in the "
        "configuration."
    )


class ModelDiffers(RegraftError, ValueError):
    message = (
        "Embedder {embedder} is model {model}, but {reason}; use another embedder, or list that model under model_ids "
        "in the configuration if it is the same one."
    )


class ModelSet(RegraftError, ValueError):
    message = (
        "{base}: its model is already {model}, not {wanted}; vectors of two models cannot be mixed. regraft restore "
        "creates a new base with another model."
    )


class DimensionsMissing(RegraftError, ValueError):
    message = (
        "{base}: the number of dimensions is unknown, because it has neither a catalog entry nor any vector; give "
        "--dimensions."
    )


class EmbedderUnnamed(RegraftError, LookupError):
    message = "{path}: {problem}; give --embedder, {known}."


class QueryNotEmbedded(RegraftError, RuntimeError):
    message = "Embedder {embedder}: it returned no vector for the query ({reason}); --mode bm25 searches by words only."


class BackfillStopped(RegraftError, OSError):
    message = (
        "{path}: stopped: {reason}. Vectors written so far are kept ({written}); run the same command again to "
        "continue."
    )
    exit_status = STOPPED


class BackfillInterrupted(RegraftError, RuntimeError):
    message = "Interrupted. Vectors written so far are kept ({written}); run the same command again to continue."
    exit_status = INTERRUPTED


# --- changing a store ------------------------------------------------------------------------------------------------


class NotChanged(RegraftError, ValueError):
    message = "{path}: this is {what}, which regraft {command} does not take; {advice}."


class ApplicationOpen(RegraftError, BlockingIOError):
    message = (
        "{path}: the application is running ({sign}); quit it first, because its data cannot be changed while it runs."
    )


class StoreBusy(RegraftError, BlockingIOError):
    message = "{path}: another program has it open for writing; quit that program, then run the same command again."


class StoreNotWritable(RegraftError, PermissionError):
    message = "{path}: cannot be written ({reason}); nothing was changed. Make it writable first."


class CheckStateNotWritable(RegraftError, PermissionError):
    message = (
        "{path}: the state of the rolling check cannot be written ({reason}); give a file in another place with "
        "--state FILE."
    )


class CheckStateUnusable(RegraftError, RuntimeError):
    message = "{path}: this run cannot use it as the state of its rolling check ({reason}); {advice}."


class CheckStateLocked(RegraftError, BlockingIOError):
    message = "{path}: another run is using this state of a rolling check; wait until it has finished."


class StoreOnTwoDisks(RegraftError, OSError):
    message = (
        "{path}: it is on another disk than {root}, so files cannot be moved between them in one step; put both on one "
        "disk."
    )


class PlanOutdated(RegraftError, ValueError):
    message = "{path}: {reason}; nothing was changed. Run the same command again."


class ProfileUnknown(RegraftError, ValueError):
    message = (
        "{path}: {what}, which this regraft does not know; nothing was changed. Use a version of regraft that matches "
        "the application."
    )


class NotRestored(RegraftError, ValueError):
    message = "{path}: base {base} was not restored: {reason}."


class ModelNotSet(RegraftError, ValueError):
    message = "{path}: no model was set for base {base}: {reason}."


class NotMended(RegraftError, ValueError):
    message = "{path}: the repair would leave {findings}, so it was undone completely (run {run}); please report this."
    exit_status = STOPPED


class ChangesStopped(RegraftError, OSError):
    message = (
        "{path}: stopped: {reason}. Every file is intact (changes made so far: {finished}); run the same command again "
        "to continue."
    )
    exit_status = STOPPED


class StoreDamaged(RegraftError, ValueError):
    message = (
        "{path}: cannot be changed in its current state ({reason}); nothing was changed. Run regraft check, or use "
        "another copy."
    )


class RunUnknown(RegraftError, LookupError):
    message = "{path}: {problem}; regraft history lists the runs."


class UndoRefused(RegraftError, ValueError):
    message = "{path}: {what} changed since run {run}; nothing was undone, so that no later change is lost."


class UndoOfLastCopy(RegraftError, ValueError):
    message = (
        "{path}: the undo of run {run} would remove the vectors of {bases}, and {origin}, from which they were copied, "
        "no longer exists; nothing was undone. They may be the last copy, so pack them first: {pack}; then name the "
        "run: {again}."
    )


class UndoBesideJournal(RegraftError, ValueError):
    message = (
        "{path}: {file} has the journal of an unfinished transaction, so it cannot be compared with what run {run} "
        "wrote; nothing was undone. Roll back the transaction first: {repair}; then name the run: {again}."
    )


# --- a search ------------------------------------------------------------------------------------------------------


class NotSearchable(RegraftError, ValueError):
    message = "{path}: this is {what}, which cannot be searched; {advice}."


class BaseFailed(RegraftError, ValueError):
    message = (
        "{path}: base {base} failed ({reason}), so the application does not search it; --raw searches its index only, "
        "if it has one."
    )


class BaseNotListed(RegraftError, LookupError):
    message = "{path}: the catalog has no base {base}; --raw searches its index only."


class BaseWithoutIndex(RegraftError, LookupError):
    message = "{path}: base {base} has no readable index; run regraft inspect."


class QueryWithoutWord(RegraftError, ValueError):
    message = "The query contains no letter, digit or _ to search for; give at least one word."


class QueryTooLong(RegraftError, ValueError):
    message = "The query is too long: {reason}; shorten it."


class QueryVectorMissing(RegraftError, ValueError):
    message = (
        "{path}: searching base {base} by {mode} needs a vector of the query; give --embedder NAME, or --vector FILE "
        "with {dimensions} numbers made by {model}, or --mode bm25."
    )


class QueryVectorUnfit(RegraftError, ValueError):
    message = (
        "{path}: the vector has {found} numbers, but those of base {base} have {expected}; make it with the base's own "
        "model."
    )


# --- embedders -----------------------------------------------------------------------------------------------------


class ConfigInvalid(RegraftError, ValueError):
    message = "{path}:{line}: {problem}; {advice}."


class EmbedderUnknown(RegraftError, LookupError):
    message = (
        "{path}: no embedder {name} ({known}); give an existing one, or add it as regraft explain embedders shows."
    )


class EmbedderKeyMissing(RegraftError, LookupError):
    message = (
        "Embedder {embedder}: its key is read from the environment variable {variable}, which {reason}; set it and run "
        "the same command again."
    )


class EmbedderRefused(RegraftError, PermissionError):
    message = "Embedder {embedder}: {server} rejects all requests ({reason}); {advice}."


class ModelUnreadable(RegraftError, OSError):
    message = (
        "{path}: not a model that {library} can load ({reason}); give the folder of a model on this disk (nothing is "
        "downloaded)."
    )


class AnswerUnfit(RegraftError, ValueError):
    """An unusable answer of an embedder.

    ``fault`` is ``wrong_count``, ``wrong_order``, ``wrong_dimensions``, ``not_numbers``, ``non_finite`` or
    ``zero_vector``; ``position`` is the index of the bad vector, or None if there is not exactly one.
    """

    #: The tokens that the server counted for the answer; None if it sent no count.
    tokens: int | None = None

    message = (
        "Embedder {embedder}: its answer is not usable: {reason}; nothing of it was written. Check that this is the "
        "right model."
    )
    exit_status = WORTH_READING

    @property
    def fault(self) -> str:
        """The kind of fault."""
        return str(self.facts["fault"])

    @property
    def position(self) -> int | None:
        """The index of the only bad vector, or None."""
        place = self.facts["position"]
        return place if isinstance(place, int) else None


# --- the index store -----------------------------------------------------------------------------------------------


class IndexForeign(RegraftError, ValueError):
    message = "{path}: this is the index of base {found}, not of {base}; {advice}."


class IndexVersionUnknown(RegraftError, ValueError):
    message = (
        "{path}: its layout has version {found}, but this regraft knows only {known}. It was not changed; use a "
        "version of regraft that knows it."
    )


class IndexIncomplete(RegraftError, ValueError):
    message = "{path}: the index is incomplete ({missing} missing). It was not changed; use another copy."


class IndexHotJournal(RegraftError, BlockingIOError):
    message = (
        "{path}: it has an unfinished transaction ({journal}); open the index once for writing, which completes the "
        "transaction, or wait for the program that is writing to it."
    )


class IndexBusy(RegraftError, BlockingIOError):
    message = "{path}: another program keeps writing to it; wait until it has finished."


class IndexReadOnly(RegraftError, PermissionError):
    message = "{path}: it was opened for reading only; open it for writing to change it."


class StoreClosed(RegraftError, ValueError):
    message = "{path}: the store is closed; open it again."


class IndexUnchanged(RegraftError, OSError):
    message = "{path}: {doing} failed ({reason}); no row was changed. Fix the problem and try again."


class MaterialRefused(RegraftError, ValueError):
    message = "{material}: this material cannot be stored: {reason}; nothing was changed."


class UnitRefused(RegraftError, ValueError):
    message = (
        "{material}: unit {unit}, from {start} to {end}, {reason} (in UTF-16 units; the text has {length}); nothing "
        "was changed. Split the text again."
    )


class EmbeddingRefused(RegraftError, ValueError):
    message = (
        "{material}: the vector of text {hash} has {found} bytes, but those of the base have {expected}, a multiple of "
        "4; nothing was changed. Embed the text with the base's own model."
    )


class CoverageGap(RegraftError, LookupError):
    message = (
        "{material}: {missing} of its texts have no vector (the first one is that of unit {unit}); nothing was "
        "changed. Give the missing vectors."
    )


class FullTextOutOfStep(RegraftError, ValueError):
    message = (
        "{path}: its full-text index does not match its text ({when} reclaiming space); no row was lost. Rebuild the "
        "full-text index."
    )


# --- stopped midway ------------------------------------------------------------------------------------------------


class StoppedMidway(RegraftError, OSError):
    message = (
        "{path}: stopped while {doing}: {reason}. What was finished is complete (bases: {finished}); run the same "
        "command again to continue."
    )
    exit_status = STOPPED


class InstallationStopped(RegraftError, OSError):
    message = (
        "{path}: the migrated bases could not be installed: {reason}. The profile is as it was, and the library "
        "{library} is complete; run the same command again to install it."
    )
    exit_status = STOPPED


class StoppedBySystem(RegraftError, OSError):
    message = "Stopped by the system: {reason}."
    exit_status = STOPPED


class OutputLost(RegraftError, OSError):
    message = "{output} cannot be written ({reason}), so the output is incomplete; the command itself was completed."
    exit_status = STOPPED


class FaultOfRegraft(RegraftError, RuntimeError):
    message = "{kind}: {reason}; this is a bug in regraft, please report it (-vv shows where it occurred)."
    exit_status = STOPPED


class BooksDoNotBalance(RegraftError, ArithmeticError):
    message = (
        "{base}: {read} rows were read, but {carried} migrated and {skipped} skipped rows do not add up to that; "
        "nothing of this base was published. Please report this."
    )
    exit_status = STOPPED


class VerificationFailed(RegraftError, ValueError):
    message = (
        "{base}: the new index differs from its source ({reason}); nothing of this base was published. Please report "
        "this."
    )
    exit_status = STOPPED


class Interrupted(RegraftError, RuntimeError):
    message = (
        "Interrupted. What was finished is complete (bases or changes: {finished}); run the same command again to "
        "continue."
    )
    exit_status = INTERRUPTED


# --- where regraft may write ------------------------------------------------------------------------------------------

# Not OSErrors: code that continues after a file that cannot be written must not continue after these.


class LinkInStore(RegraftError):
    message = (
        "{path}: this must be a file or folder, but it is a link (to {goal}); regraft does not write or remove "
        "anything through links. Replace the link by its target, or remove it."
    )


class JournalNamesAnother(RegraftError):
    message = (
        "{path}: this unfinished transaction names another file ({named}), which would be removed with it; open the "
        "database once in the program that wrote it, or move this file away."
    )


class OutsideStore(RegraftError):
    message = "{path}: outside of the folders that this command may change; nothing was written there."


class ConsentMissing(RegraftError, RuntimeError):
    message = (
        "regraft {command} needs your confirmation, but cannot ask for it without a terminal; nothing was written or "
        "sent. Use --yes to confirm; --dry-run, if the command has it, shows the plan."
    )


# --- packs, backups of version 7, profiles ----------------------------------------------------------------------------


class PackUnreadable(RegraftError, ValueError):
    message = (
        "{path}: the manifest of this pack cannot be read ({reason}); use another copy of the pack, or a newer regraft."
    )


class PackDamaged(RegraftError, ValueError):
    message = (
        "{path}: {file} differs from what was packed ({reason}); nothing was written. Use another copy of the pack."
    )


class ProfileInUse(RegraftError, BlockingIOError):
    message = (
        "{path}: the application is running ({sign}), so its data could change while they are read; nothing was "
        "written. Quit it first."
    )


class BackupSlim(RegraftError, LookupError):
    message = (
        "{path}: this slim backup has the rows of base {base}, but neither its index nor its files; use a full backup, "
        "or the profile that was backed up."
    )


class BaseAmbiguous(RegraftError, LookupError):
    message = "{base}: several bases of the source have this name or prefix ({known}); give the id of one of them."


class PackThere(RegraftError, FileExistsError):
    message = "{path}: {what} already exists here; nothing was written. Give another file name or move this one away."


class NothingToPack(RegraftError, LookupError):
    message = "{path}: none of its bases can be packed ({reason}); nothing was written."


class CopyDiffers(RegraftError, OSError):
    message = "{path}: this copy differs from its original ({reason}). It was not used; check the disk."
    exit_status = STOPPED


class MigrationUnfinished(SourceUnrecognised):
    message = (
        "{path}: an unfinished migration that has published nothing yet; run it again: {command} (or delete the "
        "folder)."
    )


class TargetBaseOfAnother(RegraftError, FileExistsError):
    message = (
        "{path}: its base {base} was migrated from another knowledge base, which has no document in common with this "
        "one; give another folder."
    )


class RepairSourceDiffers(RegraftError, ValueError):
    message = (
        "{path}: it cannot be used to repair base {base}: {reason}; nothing was written. Give another source, or "
        "select other bases with --base."
    )


class ReuseDiffers(RegraftError, ValueError):
    message = (
        "{path}: the vectors of {base} cannot be used for {store}: {reason}; nothing was written. Leave this "
        "source out of --reuse, or out of reuse in regraft.yaml."
    )


class ProfilePending(RegraftError, BlockingIOError):
    message = (
        "{path}: {pending}. The application would discard changes at its next start: start the application once, let "
        "it finish, quit it, then run the same command again."
    )


# --- damage, and definitions that do not belong to a layout -----------------------------------------------------------


class SchemaForeign(RegraftError, ValueError):
    message = (
        "{path}: {what}, which does not belong to the layout and could change other rows than intended; no row was "
        "changed. Run regraft check and repair that first."
    )


class OtherRowsChanged(RegraftError, RuntimeError):
    message = (
        "{path}: rows of {tables} would have changed as well, because of a rule that does not belong to the layout. "
        "Everything was rolled back; run regraft check and repair that first."
    )


class RowsMayBeRefused(RegraftError, ValueError):
    message = (
        "{path}: the index {index} does not belong to the layout and can reject new rows of {table}; nothing was "
        "started. Drop it first."
    )


class StoppedAtDamage(RegraftError, ValueError):
    message = (
        "{path}: stopped at damaged data ({reason}). Earlier changes are complete ({finished}); run regraft check, or "
        "regraft undo to take them back."
    )
    exit_status = STOPPED


# --- stores of other systems ------------------------------------------------------------------------------------------


class GenerationUnknown(RegraftError, ValueError):
    message = "{path}: this is {what}, a later version than regraft knows ({known}); nothing was read or written."


class MigrationForeign(RegraftError, ValueError):
    message = (
        "{path}: {what}, which is not the migration 006 that regraft knows; nothing was changed. Use a version of "
        "regraft for that codex-mem."
    )


class ProjectUnknown(BaseUnknown):
    message = "{base}: no project has this id, and not exactly one has this name or slug; the database has {known}."


class SidecarUnfit(RegraftError, ValueError):
    message = "{path}: {reason}; regraft rebuild creates all vectors of the notes again."


class CollectionOfOtherVersion(RegraftError, ValueError):
    message = (
        "{path}: it was written by another version of chromadb than {version}, which could not read it after the "
        "change ({reason}); nothing was changed. Install the chromadb version of the application beside regraft."
    )


class FullTextNotRebuilt(RegraftError, ValueError):
    message = (
        "{path}: its full-text index could not be rebuilt ({reason}); nothing was changed. Restore the file from a "
        "backup."
    )


class CollectionRefused(RegraftError, OSError):
    message = "{path}: chromadb cannot use it: {reason}; nothing was changed."


class NotBrowsed(RegraftError, ValueError):
    message = "{path}: this is {what}, whose texts the page cannot show; go back to see what can be done with it."


class NotRecalled(RegraftError, ValueError):
    message = "{path}: this is {what}, which has no notes to recall; give a data folder of AngelMemory."


class NoteUnknown(RegraftError, LookupError):
    message = "{path}: no note has the short id {short_id} ({known}); AngelMemory itself shows the id 0 as -1."


class NoteAmbiguous(RegraftError, LookupError):
    message = "{path}: several notes have the short id {short_id} ({files}); regraft repair gives each note its own id."


class NoteGone(RegraftError, FileNotFoundError):
    message = (
        "{path}: the file of note {short_id} is missing (raw/{file}); put it back, or remove the record with regraft "
        "repair."
    )


class NoteOutside(RegraftError, ValueError):
    message = "{path}: the path of note {short_id} leads out of raw/ ({file}), so it was not read."


# --- fleets -----------------------------------------------------------------------------------------------------------


class FleetInterrupted(RegraftError, RuntimeError):
    message = "Interrupted. Finished libraries are complete ({finished}); continue with: {command}."
    exit_status = INTERRUPTED


class StorageFailed(RegraftError, OSError):
    message = (
        "{url} could not be read or written ({reason}). If further attempts fail, too, run the command again, or "
        "regraft fleet resume."
    )
    exit_status = STOPPED


class StorageRefused(RegraftError, PermissionError):
    message = (
        "{url} may not be read or written ({reason}). Check its name, the credentials of this machine, and the access "
        "rules of the bucket."
    )


class FleetRefused(RegraftError, RuntimeError):
    message = (
        "The first {count} libraries were refused for the same reason ({code}: {reason}). "
        "Next: {command} (or --keep-going)."
    )


class NoNodeFits(RegraftError, RuntimeError):
    message = "No node had room for {seconds} s (--max-wait): {reason}. Continue with regraft fleet resume."
    exit_status = STOPPED


class LibraryHeld(RegraftError, RuntimeError):
    message = "{url} is in use by another process, for {seconds} s more. Continue later with regraft fleet resume."
    exit_status = STOPPED


class LibraryChanged(RegraftError, RuntimeError):
    message = (
        "{url} was changed by another process, so nothing was published. It will be tried again; if that fails, "
        "continue with regraft fleet resume."
    )
    exit_status = STOPPED


class LibraryUnsafe(RegraftError, ValueError):
    message = "{url} was not read: {reason}."


# --- optional libraries -----------------------------------------------------------------------------------------------


def import_optional(module: str, purpose: str, extra: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: its name, for example ``pyarrow.parquet``.
        purpose: what needs it, in the plural, for the error: ``Parquet files``.
        extra: the extra of regraft that installs it.

    Raises:
        WrongUsage: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise not_installed_error(module, purpose, extra) from error


def not_installed_error(module: str, purpose: str, extra: str) -> WrongUsage:
    """Return the error about a missing module; the arguments are those of :func:`import_optional`."""
    library = module.partition(".")[0]
    problem = tr("{purpose} need {library}, which is not installed", purpose=purpose, library=library)
    return WrongUsage(problem=problem, hint=tr('install it: pip install "regraft[{extra}]"', extra=extra))


# --- all of them ------------------------------------------------------------------------------------------------------


def error_classes() -> list[type[RegraftError]]:
    """Return every concrete error class, in the order of their definitions."""
    # The reader of redb files is self-contained and defines its own errors.
    modules = (globals(), vars(importlib.import_module("regraft.formats.redb.errors")))
    found = (value for module in modules for value in module.values() if isinstance(value, type))
    return [value for value in dict.fromkeys(found) if issubclass(value, RegraftError) and value is not RegraftError]
