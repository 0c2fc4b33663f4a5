"""A run with all questions as methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tracekit import analysis, model, present
from tracekit.analysis import diagnosis
from tracekit.errors import MissingDataError
from tracekit.runs._declared import DeclaredQuestions
from tracekit.runs._gate import diagnosed_against
from tracekit.runs._opened import OpenedRun
from tracekit.runs._question import RunQuestion, of_run
from tracekit.support.files import StrPath, write_whole

if TYPE_CHECKING:
    from tracekit.analysis.communication import Traffic
    from tracekit.model import Answer
    from tracekit.view import View


def diagnose(
    run: OpenedRun,
    /,
    *,
    top: int | None = 5,
    only: Sequence[str] | None = None,
    price: bool = False,
    against: OpenedRun | None = None,
    topology: StrPath | None = None,
) -> Answer:
    """List avoidable time, largest first; see `tracekit.analysis.diagnosis.diagnose`.

    Parameters
    ----------
    top
        Number of findings to list; None lists all.
    only
        Names of the rules to apply; None applies all.
    price
        Whether to add the length of a step with the finding's problem solved, by replay, if
        `whatif` can.
    against
        A base run: say for each finding whether it is new, grown, shrunk, unchanged or gone since
        (`tracekit.analysis.diagnosis.against`), without the outliers of both. None for no base.
    topology
        The machine, as for `Run.traffic`.
    """
    traffic = run.traffic(topology=topology)
    if against is None:
        found = diagnosis.diagnose(run.trace, top=top, rules=only, traffic=traffic)
    else:
        found = diagnosed_against([run], [against], top=top, only=only, topology=topology)
    if price:
        run.require_memory("whatif")
    replays = _replays(run, found.rows["rule"], traffic, price=price)
    return of_run(run, _with_replays(found, replays)).warning(run.warnings)


def _replays(
    run: OpenedRun, rules: Iterable[str], traffic: Traffic, *, price: bool
) -> dict[str, str]:
    """Return for each rule the `whatif` command that prices it, and its result."""
    from tracekit.analysis.dependencies import CHANGES, price_of

    named = {rule: f"`tracekit whatif {CHANGES[rule][0]}`" for rule in rules if rule in CHANGES}
    if not price:
        return named
    priced = {rule: price_of(rule, run.trace, traffic) for rule in named}
    return {rule: found.text for rule, found in priced.items() if found is not None}


def _with_replays(answer: Answer, replays: Mapping[str, str]) -> Answer:
    """Add to each finding its price by replay."""
    told = pl.col("rule").replace_strict(replays, default=None, return_dtype=pl.String)
    named = {name: table.with_columns(whatif=told) for name, table in answer.tables.items()}
    replay = pl.format("By replay: {}.", told)
    advice = pl.concat_str("advice", replay, separator=" ", ignore_nulls=True)
    people = answer.for_people.with_columns(advice=advice)
    return replace(answer, rows=answer.rows.with_columns(whatif=told), tables=named, people=people)


def sql(run: OpenedRun, /, query: str) -> model.Answer:
    """Run a read-only SQL statement over the canonical tables.

    Raises
    ------
    UsageError
        If the statement is invalid, or is not read-only.
    """
    rows = analysis.query(run.trace, query, run.derived())
    answer = model.Answer(
        rows=rows, meta={"query": query}, command="sql",
        headline=lambda rows, _: present.count(rows.height, "row"),
    )  # fmt: skip
    found = of_run(run, answer)
    return replace(found, title="")


class Run(OpenedRun, DeclaredQuestions):
    """A run of a store, with all questions as methods.

    Create it with `open` or `ingest`.
    """

    diagnose = RunQuestion(diagnose)
    sql = RunQuestion(sql)

    def _repr_html_(self) -> str | None:
        try:
            return self.breakdown.answer()._repr_html_()
        except MissingDataError:
            return self.info.answer()._repr_html_()

    def report(
        self, path: StrPath, *, against: Run | None = None, beside: Sequence[Run] = ()
    ) -> None:
        """Write an HTML page about the run, a comparison or a study (``docs/report.md``).

        Parameters
        ----------
        path
            The file to write, one self-contained page.
        against
            The run to compare with; None for no comparison.
        beside
            Further runs of the study that the page is about.
        """
        from tracekit.runs._reports import report_of

        write_whole(Path(path), report_of([self, *beside], against=against).encode())

    def view(self, *, beside: Sequence[Run] = (), port: int = 0, opens: bool = True) -> View:
        """Serve the run as a page to scroll through, until it is closed: ``docs/view.md``.

        Parameters
        ----------
        beside
            Further runs to show.
        port
            Port on 127.0.0.1; 0 for any free port.
        opens
            Whether to open a browser; otherwise open `View.address`.
        """
        from tracekit.view import View

        return View([self, *beside], port=port, opens=opens)
