"""The verdict of ``regraft certify`` in words, and its HTML page with charts, which is safe to share.

The page contains no text, vector, message, sample or path, and no name of a base, item, file or model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from checks.audit.findings import FINDINGS
from checks.audit.page import BaseLabel, histogram_columns
from checks.certify import findings as names
from regraft.formats.cherry_v2.layout import is_uuid
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import format_count, join_list, tr
from regraft.report.html import BarPart, render_page
from regraft.report.labels import format_severity_count, severity_heading

Document = dict[str, Any]
Values = dict[str, object]

#: What each proof says, if nothing contradicts it.
STATEMENTS = {
    "texts": tr("all texts and vectors can be read"),
    "vectors": tr("every vector can be used, and has the usual length and norm"),
    "coverage": tr("every text has a vector"),
    "hashes": tr("every vector is stored under the hash of its text"),
    "shared": tr("different texts have different vectors"),
    "reachable": tr("every text that has a vector can be found by a search"),
    "self": tr("vectors find their own texts"),
    "index": tr("the index finds what a comparison with every vector finds"),
    "words": tr("texts are found by their own words"),
    "sets": tr("A and B have the same texts and vectors"),
    "neighbors": tr("A and B find the same nearest texts"),
    "model": tr("the embedder makes the stored vectors again"),
    "known-item": tr("the last third of a text finds the text"),
}
#: What each suspicion says, without numbers and names.
_SUSPICIONS = {
    names.TWO_GROUPS: tr("its vectors fall into two groups far apart, as those of two models do"),
    names.BASE_APART: tr("its vectors point in other directions than those of the other bases of its model"),
}
#: Outcomes from the worst to the best, and what heads the statements of each.
_HEADINGS = {
    "found": tr("Contradicted by a finding"),
    "sampled": tr("Proven for a sample"),
    "proven": tr("Proven for all"),
    "not-checked": tr("Not checked"),
}


class Verdict(NamedTuple):
    """Statements about all bases with the same outcome, and a heading for them."""

    outcome: str
    heading: str
    statements: list[str]


def group_by_outcome(bases: Sequence[Document]) -> list[Verdict]:
    """Group the statements of ``certify`` by outcome.

    A statement gets its worst outcome in any base of the JSON output.
    """
    outcomes: dict[str, set[str]] = {name: set() for name in names.PROOFS}
    for base in bases:
        for proof in base["proofs"]:
            outcomes[proof["name"]].add(proof["outcome"])
    found: dict[str, list[str]] = {outcome: [] for outcome in _HEADINGS}
    for name, every in outcomes.items():
        found[next((one for one in _HEADINGS if one in every), "not-checked")].append(STATEMENTS[name])
    return [Verdict(outcome, _HEADINGS[outcome], found[outcome]) for outcome in _HEADINGS if found[outcome]]


def format_closing(document: Document) -> str:
    """Return the last sentence of the text output: the number of findings, and that the rest is not proven."""
    counted = document["summary"]["by_severity"]
    if not document["bases"] and not document["findings"]:
        return tr("There is no base to certify.")
    message = join_list(format_severity_count(number, severity) for severity, number in counted.items() if number)
    return tr("{found}. What was not checked is not proven.", found=message or tr("Nothing found"))


def render_certify_page(document: Document) -> str:
    """Return the JSON output of ``certify`` as one HTML page that needs no network."""
    kind = KIND_NAMES[Kind(document["source"]["kind"])]
    title = tr("Certification of {kind}", kind=kind)
    return render_page("certify.html", "certify", title=title, **_Page(document).values())


class _Page:
    """Computes the values of the page's template from the JSON output of ``certify``."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._bases: list[Document] = document["bases"]

    def values(self) -> Values:
        """Return the values that the page's template uses, by name."""
        document, bases = self._document, self._bases
        labelled = list(self._labeled_bases())
        return {
            "lead": format_closing(document),
            "run": document["run"],
            "facts": list(self._facts()),
            "verdict": group_by_outcome(bases),
            "numbers": {
                tr("bases"): f"{len(bases):,}",
                tr("texts"): f"{sum(base['texts'] for base in bases):,}",
                tr("with a usable vector"): f"{sum(base['findable'] for base in bases):,}",
            },
            "severities": [
                BarPart(severity, severity_heading(severity), number)
                for severity, number in document["summary"]["by_severity"].items()
            ],
            "findings": self._findings(),
            "suspicions": [
                f"{label}: {_SUSPICIONS[one['name']]}"
                for one in document["suspicions"]
                for label, base in labelled
                if (base["side"], base["id"]) == (one["side"], one["base"])
            ],
            "coverage": [
                {"label": label, "part": base["findable"], "whole": base["texts"]} for label, base in labelled
            ],
            **self._charts(labelled),
            "proofs": [
                {
                    "label": label,
                    "proofs": [(STATEMENTS[one["name"]], one["outcome"], one["checked"]) for one in base["proofs"]],
                }
                for label, base in labelled
            ],
        }

    def _charts(self, labelled: list[tuple[str, Document]]) -> Values:
        """Return the values of the histograms: norms, nearest neighbors, and cosines with an embedder's vectors.

        ``labelled`` are the bases with their labels. A base without the numbers is left out of a histogram.
        """
        checked = [(label, base) for label, base in labelled if (base["model_check"] or {}).get("texts")]
        return {
            "norms": [self._norms(label, base["norms"]) for label, base in labelled if base["norms"]],
            "neighbors": [self._neighbors(label, base["neighbors"]) for label, base in labelled if base["neighbors"]],
            "models": [self._model(label, base["model_check"]) for label, base in checked],
        }

    def _facts(self) -> Iterator[str]:
        """Yield the facts below the title: when the run was, and how many queries it used."""
        run, sample = self._document["run"], self._document["sample"]
        begin, end = (datetime.fromisoformat(run[key]) for key in ("started_at", "finished_at"))
        yield f"{begin:%Y-%m-%d %H:%M:%S} UTC, {(end - begin).total_seconds():.1f} s"
        if sample is None:
            yield tr("every text was used as a query")
        else:
            yield tr("at most {sample:,} queries of each base", sample=sample)

    def _labeled_bases(self) -> Iterator[tuple[str, Document]]:
        """Yield each base of the JSON output, with the label that replaces its name on the page."""
        places: Counter[str] = Counter()
        has_second = self._document.get("target") is not None
        for base in self._bases:
            places[base["side"]] += 1
            label = str(BaseLabel(places[base["side"]], base["id"][:8].lower() if is_uuid(base["id"]) else ""))
            yield (f"{base['side'].upper()}: {label}" if has_second else label), base

    def _findings(self) -> list[Values]:
        """Return the rows of the table of findings: one for each severity and name, with the number of cases."""
        counts: Counter[tuple[str, str]] = Counter()
        for finding in self._document["findings"]:
            counts[finding["severity"], finding["name"]] += finding["count"]
        return [
            {
                "severity": severity,
                "name": name,
                "cases": count,
                "meaning": FINDINGS[name].meaning,
                "remedy": FINDINGS[name].remedy,
            }
            for (severity, name), count in counts.items()
        ]

    def _norms(self, label: str, norms: Document) -> Values:
        """Build the histogram of the norms of a base's vectors."""
        ends = [f"{norms['least']:.4g}", "", f"{norms['most']:.4g}"]
        message = tr("median {median:.4g}", median=norms["median"])
        return _histogram(label, norms["bars"], ends, message)

    def _neighbors(self, label: str, neighbors: Document) -> Values:
        """Build the histogram of how many nearest texts of a query are the same in A and B."""
        message = tr(
            "{overlap:.2%} over {queries}; for {reordered} the same texts come in another order",
            overlap=neighbors["overlap"],
            queries=format_count(neighbors["queries"], "query"),
            reordered=format_count(neighbors["reordered"], "query"),
        )
        return _histogram(label, neighbors["bars"], ["0", "5", "10"], message)

    def _model(self, label: str, model_check: Document) -> Values:
        """Build the histogram of the cosines between stored vectors and those of the embedder for the same texts."""
        message = tr(
            "{same} of {texts} have the same vector; searching with the ends of {ends} texts finds {found} of them",
            same=model_check["same"],
            texts=model_check["texts"],
            found=model_check["found"],
            ends=model_check["ends"],
        )
        return _histogram(label, model_check["cosines"], ["0", "0.5", "1"], message)


def _histogram(label: str, counts: Sequence[int], ends: Sequence[str], message: str) -> Values:
    """Build a histogram with a bar for each count.

    Args:
        label: the label of the base.
        counts: the counts, from left to right.
        ends: texts below the horizontal axis.
        message: a sentence about the numbers.
    """
    columns = list(histogram_columns({at: number for at, number in enumerate(counts) if number}, len(counts)))
    numbers = join_list(f"{number:,}" for number in counts)
    return {
        "label": label,
        "columns": columns,
        "ends": ends,
        "message": message,
        "numbers": numbers,
        "about": f"{label}. {message}. {numbers}",
    }
