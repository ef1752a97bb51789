"""Pages that do something: each has a form, which starts a job; a plan, which the reader confirms; and a result.

A journey turns its form into a task, a call of :mod:`regraft.api`. What writes is started as a dry run first. The page
of a job shows its progress, and then its report.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import uvicorn
from msgspec import structs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from regraft import api
from regraft.api import application, inspection
from regraft.disk import file_paths, scratch
from regraft.errors import RegraftError, WrongUsage
from regraft.kinds import Kind
from regraft.language import current_language, tr
from regraft.options import (
    BackfillOptions,
    CheckOptions,
    CompareOptions,
    FixOptions,
    InstallOptions,
    MigrateOptions,
    PackOptions,
    ProfileMigrationOptions,
    RescueOptions,
    UndoOptions,
)
from regraft.page import server, views
from regraft.page.jobs import IdleTimer, Job, Stage, StoreInUse, Task, plan_digest
from regraft.page.server import Form, desk_of, read_form
from regraft.page.views import (
    SHOWN,
    asked_path,
    clean_path,
    command_line,
    format_seconds,
    go,
    render,
    shown,
)
from regraft.report.document import encoded
from regraft.report.labels import label_of
from regraft.report.migration import as_json
from regraft.stores.locate import open_store
from regraft.text import format_bytes, one_line, printable

#: Seconds between two looks whether the server may end.
_LOOK_SECONDS = 1.0
#: Seconds between two looks at a job for its readers, and event streams at a time.
_EVENT_SECONDS, _MOST_STREAMS = 0.3, 20
#: Names that are offered for a pack: the first one that is free.
_PACK_NAMES = ("bases.zip", *(f"bases-{number}.zip" for number in range(2, 1000)))
#: The choice of a form that writes a library and changes no profile.
NO_PROFILE = "-"


class FieldProblem(Exception):
    """A field of a form has a value that cannot be used; the message is shown beside it."""

    def __init__(self, field: str, message: object) -> None:
        super().__init__(str(message))
        self.field = field


class Journey(msgspec.Struct, frozen=True):
    """A task for the reader, from a form to a result."""

    #: Title, the sentence below it, and the button of the form.
    title: str
    lead: str
    button: str
    #: Makes the task of a form, and names the stores that it works on.
    parse: Callable[[Form], tuple[Task, tuple[str, ...]]]
    #: Whether the form lists bases to choose from, and v2 profiles.
    has_bases: bool = False
    has_profiles: bool = False


# --- from a form to a task -------------------------------------------------------------------------------------------


def _read_path(form: Form, field: str, missing: str) -> str:
    """Return the path of a form's field: the offered one that was chosen, or the typed one.

    ``missing`` is the message if the field is empty.

    Raises:
        FieldProblem: the field is empty, or not a path.
    """
    offered = "" if form.text(f"{field}_at") == NO_PROFILE else form.exact(field)
    if offered and form.text(field) in ("", printable(offered)):
        return offered
    try:
        typed = clean_path(form.text(field))
    except RegraftError as error:
        raise FieldProblem(field, error) from error
    if not typed:
        raise FieldProblem(field, missing)
    return typed


def _read_source(form: Form) -> str:
    """Return the path of the store that a form is about."""
    return _read_path(form, "path", tr("Choose a file or a folder."))


def _upgrade(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of a migration, and list the paths that it may write to."""
    source = _read_source(form)
    library = _read_path(form, "library", tr("Enter the folder where the library is to be written."))
    chosen: dict[str, Any] = {
        "kind": _v1_kind(source),
        "dry_run": True,
        "bases": form.texts("base"),
        "salvage": bool(form.text("salvage")),
        "carry_text": bool(form.text("carry_text")),
        "adopt_orphans": bool(form.text("adopt_orphans")),
        **_model_options(form),
    }
    if form.text("profile_at") == NO_PROFILE and not form.text("profile"):
        return Task(function="migrate", paths=(source, library), options=MigrateOptions(**chosen)), (library,)
    profile = _read_path(
        form, "profile", tr("Choose the profile of the application, or choose to write only a library.")
    )
    options = ProfileMigrationOptions(
        **chosen, recreate_provider=_created_providers(form), as_new=bool(form.text("as_new"))
    )
    task = Task(function="migrate_into_profile", paths=(source, profile, library), options=options)
    return task, (library, profile)


def _v1_kind(source: str) -> Kind | None:
    """Return the kind as which a source is read for an upgrade.

    It is v1-profile for a v2 profile that still has the data of v1; None, to recognize the source, for all others.
    """
    with open_store(Path(source)) as found:
        return Kind.V1_PROFILE if found.has_v1_state else None


def _created_providers(form: Form) -> tuple[str, ...]:
    """Return the ids of the providers that the choices on the page of a plan create."""
    chosen = (one for old, one in form.pairs("provider:").items() if form.text(f"model:{old}") == "provider")
    return tuple(dict.fromkeys(chosen))


def _model_options(form: Form) -> dict[str, Any]:
    """Convert the choices for missing models, made on the page of a plan, to options of ``migrate`` by field name."""
    choices = form.pairs("model:")
    mapped = {old: new[4:] for old, new in choices.items() if new.startswith("map:")}
    created = tuple(old for old, new in choices.items() if new == "recreate")
    return {"map_model": mapped, "recreate_model": created}


def _check(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of a check, and list the paths that it may write to: none."""
    level = form.text("level", "default")
    if level not in ("quick", "default", "deep"):
        raise FieldProblem("level", tr("Choose one of the levels."))
    return Task(function="check", paths=(_read_source(form),), options=CheckOptions(level=level)), ()  # type: ignore[arg-type]


def _fix(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of a fix, and list the paths that it may write to."""
    path = _read_source(form)
    return Task(function="fix", paths=(path,), options=FixOptions(dry_run=True)), (path,)


def _rescue(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of a rescue, and list the paths that it may write to."""
    path = _read_source(form)
    given = form.exact("v1") or clean_path(form.text("v1"))
    options = RescueOptions(dry_run=True, v1=Path(given) if given else None, salvage=bool(form.text("salvage")))
    return Task(function="rescue", paths=(path,), options=options), (path,)


def _install(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of an installation, and list the paths that it may write to."""
    path = _read_source(form)
    profile = _read_path(form, "profile", tr("Choose the profile of the application."))
    name = form.text("name") or None
    options = InstallOptions(
        dry_run=True,
        bases=form.texts("base"),
        as_new=bool(form.text("as_new")),
        name=name,
        recreate_provider=_created_providers(form),
        **_model_options(form),
    )
    return Task(function="install", paths=(path, profile), options=options), (profile,)


def _pack(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of a pack, and list the paths that it may write to."""
    path = _read_source(form)
    target = _read_path(form, "target", tr("Enter the file to which the pack is to be written."))
    if not target.lower().endswith(".zip"):
        raise FieldProblem("target", tr("The name of a pack ends with .zip."))
    options = PackOptions(dry_run=True, bases=form.texts("base"))
    return Task(function="pack", paths=(path, target), options=options), (target,)


def _backfill(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of a backfill, and list the paths that it may write to."""
    path = _read_source(form)
    cost, config = form.text("max_cost"), form.exact("config") or clean_path(form.text("config"))
    try:
        most = float(cost) if cost else None
    except ValueError as error:
        raise FieldProblem("max_cost", tr("Write a number, such as 0.50.")) from error
    if most is not None and not 0 < most < 1e9:
        raise FieldProblem("max_cost", tr("Write a number above 0."))
    options = BackfillOptions(
        dry_run=True,
        bases=form.texts("base"),
        max_cost=most,
        config=Path(config) if config else None,
        embedder=form.text("embedder") or None,
    )
    return Task(function="backfill", paths=(path,), options=options), (path,)


def _undo(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of an undo, and list the paths that it may write to."""
    path = _read_source(form)
    return Task(function="undo", paths=(path, form.text("run")), options=UndoOptions(dry_run=True)), (path,)


def _compare(form: Form) -> tuple[Task, tuple[str, ...]]:
    """Make the task of a comparison, and list the paths that it may write to: none."""
    source, library = _read_source(form), _read_path(form, "library", tr("Choose a library."))
    return Task(function="compare", paths=(source, library), options=CompareOptions()), ()


JOURNEYS = {
    "upgrade": Journey(
        title=tr("Upgrade to v2"),
        lead=tr(
            "Brings v1 data into the new application. Vectors are copied byte for byte, and nothing is sent anywhere."
        ),
        button=tr("Show the plan"),
        parse=_upgrade,
        has_bases=True,
        has_profiles=True,
    ),
    "check": Journey(
        title=tr("Check"),
        lead=tr("Lists everything that is wrong and how to fix it. Nothing is written."),
        button=tr("Check"),
        parse=_check,
    ),
    "fix": Journey(
        title=tr("Repair"),
        lead=tr("Makes every fix that the check recommends, in the right order. They can be undone."),
        button=tr("Show the plan"),
        parse=_fix,
    ),
    "rescue": Journey(
        title=tr("Rescue a failed upgrade"),
        lead=tr("Brings back the bases that the application's own upgrade left behind, from the files that v1 left."),
        button=tr("Show the plan"),
        parse=_rescue,
    ),
    "install": Journey(
        title=tr("Put into a profile"),
        lead=tr(
            "Copies bases into the application. Existing data is not overwritten, and the whole installation "
            "can be undone."
        ),
        button=tr("Show the plan"),
        parse=_install,
        has_bases=True,
        has_profiles=True,
    ),
    "pack": Journey(
        title=tr("Pack for another computer"),
        lead=tr("Writes bases with their vectors and files to one zip file. On the other computer, open it here."),
        button=tr("Show the plan"),
        parse=_pack,
        has_bases=True,
    ),
    "backfill": Journey(
        title=tr("Missing vectors"),
        lead=tr("Computes vectors for texts that have none. The plan says what it costs; only then anything is sent."),
        button=tr("Show the plan"),
        parse=_backfill,
        has_bases=True,
    ),
    "undo": Journey(
        title=tr("Undo"),
        lead=tr("Takes back what a run changed."),
        button=tr("Show the plan"),
        parse=_undo,
    ),
    "compare": Journey(
        title=tr("Compare searches"),
        lead=tr("Searches the old vectors and the new library with the same queries, and compares the results."),
        button=tr("Compare"),
        parse=_compare,
    ),
}
#: Journeys without a form of their own: a button of another page starts them.
_WITHOUT_FORM = ("undo", "compare")


def _find_journey(request: Request) -> tuple[str, Journey]:
    """Return the journey in a request's path, after its name; raises HTTPException 404 if it does not exist."""
    name = request.path_params["journey"]
    if name not in JOURNEYS:
        raise HTTPException(404)
    return name, JOURNEYS[name]


async def _show_form(request: Request) -> Response:
    """Show the empty form of a journey."""
    name, journey = _find_journey(request)
    if name in _WITHOUT_FORM:
        raise HTTPException(404)
    path = asked_path(request)
    return await _form_page(request, name, journey, Form([]), path=path)


async def _form_page(  # noqa: PLR0913 - what a template needs
    request: Request,
    name: str,
    journey: Journey,
    form: Form,
    *,
    path: str,
    field: str = "",
    problem: str = "",
    status: int = 200,
    translations: dict[str, str] | None = None,
) -> Response:
    """Show the form of a journey.

    Args:
        request: the request.
        name: the name of the journey.
        journey: the journey.
        form: the fields that were typed, which stay.
        path: the store that the form is about.
        field: the field beside which the problem is shown.
        problem: the message about it, if any.
        status: the status of the response.
        translations: texts for this reader by English ones.
    """
    facts = await run_in_threadpool(_read_choices, journey, name, path, desk_of(request).folder)
    return render(
        request,
        "form.html",
        status,
        translations,
        name=name,
        journey=journey,
        path=path,
        form=form,
        is_new=not form.fields,
        field=field,
        problem=problem,
        command=command_line(Task(function="migrate" if name == "upgrade" else name, paths=(path,))),
        **facts,
    )


def _read_choices(journey: Journey, name: str, path: str, own: Path) -> dict[str, Any]:
    """Read what a form offers to choose from: the report on the store, v2 profiles, and a path to write to.

    ``own`` is the run's own folder, in which dropped files are.
    """
    kind, profiles, suggested = None, [], ""
    if name == "upgrade":
        # Loads the migrators, which no other form needs.
        from regraft.api.profile import choose_library  # noqa: PLC0415

        kind = _v1_kind(path)
        suggested = str(choose_library(Path(path), _folder_for_output(path, own)))
    elif name == "pack":
        suggested = str(next(free for one in _PACK_NAMES if not (free := _folder_for_output(path, own) / one).exists()))
    report = api.inspect(path, kind=kind)
    if journey.has_profiles:
        found = inspection.inspect_computer(user_folders=True).found
        # What v1 left in a profile is brought into that profile.
        profiles = [one for one in found if one.kind == Kind.V2_PROFILE and (one.path != path or kind is not None)]
    return {"report": report, "profiles": profiles, "suggested": suggested}


def _folder_for_output(path: str, own: Path) -> Path:
    """Return the folder beside a source; for a copy of a dropped file, which is in ``own``, the home folder."""
    given = Path(path).absolute()
    home = file_paths.home_folder() if own in given.parents else None
    return home or given.parent


async def _submit_form(request: Request) -> Response:
    """Start the job of a form, or show the form again with what is wrong."""
    name, journey = _find_journey(request)
    form = await read_form(request)
    path = ""
    try:
        path = _read_source(form)
        task, stores = journey.parse(form)
        return _start_job(request, task, stores, name, form)
    except FieldProblem as error:
        problem, field = str(error), error.field
    except (RegraftError, ValueError) as error:
        problem, field = str(error), "path"
    if not path or name in _WITHOUT_FORM:
        raise WrongUsage(problem=problem, hint=tr("go back and try again"))
    return await _form_page(request, name, journey, form, path=path, field=field, problem=problem, status=400)


# --- a job -----------------------------------------------------------------------------------------------------------


def _find_job(request: Request) -> Job:
    """Return the job in a request's path; raises HTTPException 404 if it does not exist."""
    job = desk_of(request).jobs.find(request.path_params["job"])
    if job is None:
        raise HTTPException(404)
    return job


async def _show_job(request: Request) -> Response:
    """Show the progress of a job, its report, or the form again if its plan failed."""
    job = _find_job(request)
    journey = JOURNEYS[job.journey]
    outcome = job.outcome
    values: dict[str, Any] = {
        "job": job,
        "journey": journey,
        "name": job.journey,
        "path": job.task.paths[0],
        "command": command_line(job.task),
        "is_plan": job.task.is_plan or job.state == "changed",
        "is_changed": job.state == "changed",
        "again": urlencode(job.form.fields, errors="surrogateescape"),
    }
    if outcome is not None and job.task.language == current_language():
        values["translations"] = outcome.translations
    if outcome is not None and outcome.state == "failed" and job.task.is_plan and job.journey not in _WITHOUT_FORM:
        # Nothing was begun: the form is shown again, with what was typed.
        return await _form_page(
            request,
            job.journey,
            journey,
            job.form,
            path=job.task.paths[0],
            field=_field_in_error(job.form, outcome.message),
            problem=outcome.message,
            translations=values.get("translations"),
        )
    if outcome is None or outcome.report is None:
        return render(request, "job.html", stage=_describe_stage(job.stage), outcome=outcome, **values)
    report = outcome.report
    values["report"] = report
    template, more = await run_in_threadpool(_describe, job, report)
    return render(request, template, **{**values, **more})


def _field_in_error(form: Form, message: str) -> str:
    """Return the name of the field whose path a message begins with; "path" if there is no such field."""
    for field in ("library", "target", "profile", "v1", "config"):
        for value in (form.text(field), form.exact(field)):
            if value and message.startswith(printable(value)):
                return field
    return "path"


def _describe(job: Job, report: msgspec.Struct) -> tuple[str, dict[str, Any]]:
    """Return the template for a report, and the values that the template needs."""
    # Loads what reads, migrates and changes stores, which takes long and is needed only here.
    from regraft.page import reports  # noqa: PLC0415

    return reports.describe(job, report)


def _describe_stage(stage: Stage) -> dict[str, Any]:
    """Describe how far a job is, in the words of the reader, for the page and its events."""
    is_size = stage.unit == "bytes"
    done, total = (format_bytes(one) if is_size else f"{one:,.0f}" for one in (stage.done, stage.total))
    share = stage.done / stage.total if stage.total else 0.0
    left = format_seconds(stage.seconds_left)
    return {
        "name": shown(label_of(stage.name)) if stage.name else "",
        "label": one_line(stage.label, 80),
        "percent": int(100 * min(share, 1.0)),
        "counts": tr("{done} of {total}", done=done, total=total) if stage.total else "",
        "left": tr("about {left} left", left=left) if left and stage.seconds > 1 else "",
    }


async def _events(request: Request) -> Response:
    """Stream the progress of a job: only its latest state, so that a slow reader costs no memory."""
    job, desk = _find_job(request), desk_of(request)
    if desk.streams >= _MOST_STREAMS:
        raise HTTPException(503, tr("Too many open pages show running jobs. This one reloads itself."))

    async def events() -> AsyncIterator[str]:
        """Yield a server-sent event for each change of the job's progress, and one at the end."""
        desk.streams += 1
        try:
            latest = ""
            while job.is_running and not desk.is_ended:
                text = json.dumps({"state": job.state, **_describe_stage(job.stage)})
                if text != latest:
                    latest = text
                    yield f"data: {text}\n\n"
                await asyncio.sleep(_EVENT_SECONDS)
            yield "event: end\ndata: {}\n\n"
        finally:
            desk.streams -= 1

    return StreamingResponse(events(), media_type="text/event-stream")


async def _confirm_plan(request: Request) -> Response:
    """Start the job that makes the changes of a confirmed plan."""
    await read_form(request)
    planned = _find_job(request)
    outcome = planned.outcome
    if outcome is None or outcome.report is None or not (planned.task.is_plan or outcome.state == "changed"):
        return go(request, f"job/{planned.id}")
    options: Any = planned.task.options
    task = structs.replace(
        planned.task,
        options=structs.replace(options, dry_run=False),
        # Packing asks nobody: it writes one new file.
        seen=None if planned.task.function == "pack" else plan_digest(outcome.report),
    )
    return _start_job(request, task, planned.stores, planned.journey, planned.form)


async def _restart_job(request: Request) -> Response:
    """Start a job again that was stopped, killed, or failed; the new job continues where that one ended."""
    await read_form(request)
    ended = _find_job(request)
    if ended.is_running:
        return go(request, f"job/{ended.id}")
    return _start_job(request, ended.task, ended.stores, ended.journey, ended.form)


def _start_job(request: Request, task: Task, stores: Iterable[str | Path], journey: str, form: Any) -> Response:
    """Start a job and go to its page, or to that of the job that works on one of the stores.

    Args:
        request: the request.
        task: what the job does.
        stores: the paths that it may write to.
        journey: the name of the journey.
        form: the form that the task was made of.
    """
    try:
        job = desk_of(request).jobs.start(structs.replace(task, language=current_language()), stores)
    except StoreInUse as error:
        return go(request, f"job/{error.job.id}")
    if not job.journey:
        job.journey, job.form = journey, form
    return go(request, f"job/{job.id}")


async def _stop_job(request: Request) -> Response:
    """Stop a job."""
    await read_form(request)
    job = _find_job(request)
    job.stop()
    return go(request, f"job/{job.id}")


async def _send_report_json(request: Request) -> Response:
    """Send the JSON document that the command prints."""
    outcome = _find_job(request).outcome
    if outcome is None or outcome.report is None:
        raise HTTPException(404)
    text = as_json(encoded(outcome.report))
    headers = {"Content-Disposition": 'attachment; filename="report.json"'}
    return Response(text.encode("utf-8", "backslashreplace"), media_type="application/json", headers=headers)


# --- starting the application ----------------------------------------------------------------------------------------


async def _start_application(request: Request) -> Response:
    """Start the application with the profile in the form, unless this server has started it already."""
    form = await read_form(request)
    desk = desk_of(request)
    # The application takes a moment to lock its profile: a second click must not start it again.
    if desk.application is not None and desk.application.poll() is None:
        text = tr("It was started already. It may take a moment until its window opens.")
        return render(request, "message.html", 409, title=tr("The application is running"), text=text)
    desk.application = await run_in_threadpool(application.start_application, form.exact("path"))
    text = tr("Your bases are in it. Quit it before you undo or change anything here.")
    return render(request, "message.html", title=tr("The application was started"), text=text)


# --- history ---------------------------------------------------------------------------------------------------------


async def _show_history(request: Request) -> Response:
    """Show the runs of regraft on a store."""
    path = asked_path(request)
    report = await run_in_threadpool(api.history, path)
    return render(
        request,
        "history.html",
        path=path,
        report=report,
        most=SHOWN,
        command=command_line(Task(function="history", paths=(path,))),
    )


ROUTES = [
    Route("/history", _show_history),
    Route("/start", _start_application, methods=["POST"]),
    Route("/job/{job}", _show_job),
    Route("/job/{job}/events", _events),
    Route("/job/{job}/report.json", _send_report_json),
    Route("/job/{job}/confirm", _confirm_plan, methods=["POST"]),
    Route("/job/{job}/again", _restart_job, methods=["POST"]),
    Route("/job/{job}/stop", _stop_job, methods=["POST"]),
    Route("/{journey}", _show_form, methods=["GET"]),
    Route("/{journey}", _submit_form, methods=["POST"]),
]


# --- the application -------------------------------------------------------------------------------------------------


def make_app(desk: server.Desk) -> Starlette:
    """Make the web application of a server."""
    routes = [
        Route("/enter/{token}", server.enter, methods=["GET"]),
        Route("/language", server.switch_language, methods=["POST"]),
        *views.ROUTES,
        *ROUTES,
    ]
    handlers: dict[Any, server.Handler] = {HTTPException: views.show_refusal, RegraftError: views.show_error}
    app = Starlette(
        routes=[Mount(f"/{desk.entrance.segment}", routes=routes)],
        middleware=[Middleware(server.Guard, desk=desk, show_error=views.show_error)],
        exception_handlers=handlers,
    )
    app.state.desk = desk
    return app


def serve(
    start: str | None,
    *,
    port: int,
    drop_limit: int,
    idle_minutes: float = server.IDLE_MINUTES,
    announce: Callable[[str, Path], object],
) -> None:
    """Run the server of the page until the Quit button or Ctrl-C is pressed, or the page was unused for some time.

    Args:
        start: the path that the first page is about; None: Home.
        port: of the address; 0: any free one.
        drop_limit: largest dropped file in megabytes.
        idle_minutes: see :data:`regraft.page.server.IDLE_MINUTES`.
        announce: called with the first address and the run's folder when the server listens.

    Raises:
        OSError: the port is in use.
    """
    with socket.create_server((server.HOST, port)) as listening, scratch.temporary_folder() as folder:
        desk = server.Desk(
            server.Entrance(listening.getsockname()[1]),
            folder,
            start=start,
            drop_limit=drop_limit,
            timer=IdleTimer(60 * idle_minutes),
        )
        config = uvicorn.Config(
            make_app(desk),
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=100,
            timeout_graceful_shutdown=1,
        )
        running = uvicorn.Server(config)
        announce(desk.entrance.address, folder)
        try:
            asyncio.run(_serve(running, listening, desk))
        except KeyboardInterrupt:
            pass
        finally:
            desk.jobs.end()


async def _serve(running: uvicorn.Server, listening: socket.socket, desk: server.Desk) -> None:
    """Serve requests until the user ends regraft, or the page was unused for some time."""

    async def watch() -> None:
        """Ask the server to end when it should."""
        while not desk.is_ended and not desk.timer.is_over(desk.jobs.running()):
            await asyncio.sleep(_LOOK_SECONDS)
        running.should_exit = True

    watching = asyncio.create_task(watch())
    await running.serve(sockets=[listening])
    watching.cancel()
