"""Prometheus metrics in a file for node_exporter's textfile collector."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from regraft import errors
from regraft.disk import durable, links, writable
from regraft.errors import WrongUsage
from regraft.language import tr


class MetricsFile:
    """A file with the metrics of one command; an existing file must be an earlier one of the same command.

    Args:
        path: the file.
        command: the command; its metrics are called ``regraft_COMMAND_…``.
        labels: labels of every metric.

    Raises:
        WrongUsage: the library prometheus_client is not installed.
    """

    def __init__(self, path: Path, command: str, labels: dict[str, str]) -> None:
        client = errors.import_optional("prometheus_client", tr("metrics"), "metrics")
        self._core = errors.import_optional("prometheus_client.core", tr("metrics"), "metrics")
        self.path = path
        self._command = command
        #: The first line of the file; a file without it is not overwritten.
        self._mark = f"# Written by regraft {command}.\n".encode()
        self._labels = labels
        self._families: list[Any] = []
        self._registry = client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._generate = client.generate_latest

    @property
    def files(self) -> tuple[Path, Path]:
        """The file, and the temporary file that replaces it."""
        return self.path, self.path.with_name(f"{self.path.name}.new")

    def demand_path(self, places: Iterable[Path] = ()) -> None:
        """Check that the file can be written, that it is outside of ``places``, and that no other file is replaced.

        Raises:
            TargetNotWritable, WrongUsage: a check failed.
            OSError: the file cannot be read.
        """
        writable.demand_output(self.path, places)
        for path in self.files:
            if not self._is_overwritable(path):
                problem = tr(
                    "{path} exists and is not a metrics file of regraft {command}", path=path, command=self._command
                )
                raise WrongUsage(problem=problem, hint=tr("use another file"))

    def _is_overwritable(self, path: Path) -> bool:
        """Whether a file does not exist, is empty, or is a metrics file of an earlier run."""
        if not os.path.lexists(path):
            return True
        if path.is_symlink() or not path.is_file():
            return False
        with links.open_for_reading(path) as file:
            return file.read(len(self._mark)) in (b"", self._mark)

    def add(self, name: str, about: str, value: float) -> None:
        """Add a gauge with one value; ``about`` is its help text."""
        self.add_labelled(name, about, (), {(): value})

    def add_labelled(
        self, name: str, about: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
    ) -> None:
        """Add a gauge with further labels; ``values`` maps their values to that of the gauge."""
        self._families.append(self.family("Gauge", name, about, labels, values))

    def family(
        self,
        kind: str,
        name: str,
        about: str,
        labels: tuple[str, ...] = (),
        values: Mapping[tuple[str, ...], float] | None = None,
    ) -> Any:
        """Make a metric of prometheus_client; without ``values`` it is empty.

        Args:
            kind: "Gauge", "Counter" and so on.
            name: its name after ``regraft_COMMAND_``.
            about: its help text.
            labels: names of labels besides those of the file.
            values: values of the metric by those of ``labels``.
        """
        full = f"regraft_{self._command}_{name}"
        family = getattr(self._core, f"{kind}MetricFamily")(full, about, labels=[*self._labels, *labels])
        for words, value in sorted((values or {}).items()):
            family.add_metric([*self._labels.values(), *words], value)
        return family

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; called by ``prometheus_client``."""
        yield from self._families

    def write(self) -> None:
        """Write all metrics to the file, in one step.

        Raises:
            OSError, RegraftError: it cannot be written.
        """
        path, new = self.files
        text = self._mark + self._generate(self._registry)
        with writable.allow_writes(path.parent, entries_only=True):
            try:
                durable.write_text_atomically(path, text.decode(), new)
            except OSError:
                with suppress(OSError):
                    durable.remove(new, missing_ok=True)
                raise
