"""Figures without data: each is refused with what to record for it, or shows what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from nsys_builder import NsysBuilder

import tracekit
from tracekit.errors import MissingDataError, UsageError
from tracekit.present import save_figure
from tracekit.runs import DECLARED

if TYPE_CHECKING:
    from pathlib import Path

FIGURES = [(name, figure) for name, each in DECLARED.items()
           if not each.is_of_files for figure in each.figures]  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {"whatif": {"host": "2x"}}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    """Return a run of one kernel, in no range."""
    folder = tmp_path_factory.mktemp("bare")
    with NsysBuilder(folder / "bare.sqlite", schema="3.0.0") as nsys:
        nsys.launch(100, 110, 120, name="gemm")
    return tracekit.ingest(folder / "bare.sqlite", store=folder / "store")[0]


@pytest.mark.parametrize(("name", "figure"), FIGURES)
def test_a_figure_without_data_says_what_to_record(
    bare: tracekit.Run, name: str, figure: str, tmp_path: Path
) -> None:
    try:
        if DECLARED[name].is_of_runs:
            answer = getattr(tracekit, name).answer([bare])
        else:
            answer = getattr(bare, name).answer(**OPTIONS.get(name, {}))
    except (MissingDataError, UsageError):
        return  # said before there is a figure
    if figure not in answer.figures:
        with pytest.raises(UsageError):
            answer.figure(figure)
        return
    drawn, path = answer.figure(figure), tmp_path / "figure.json"
    if any(trace.x is not None and len(trace.x) for trace in drawn.data):
        return
    with pytest.raises(MissingDataError, match="nothing to draw") as refused:
        save_figure(drawn, path)
    assert "record" in str(refused.value)
    assert not path.exists()


def test_a_matrix_without_transfers_advises_no_counters(bare: tracekit.Run, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no transfers: `tracekit info`"):
        save_figure(bare.links.answer().figure("matrix"), tmp_path / "matrix.json")
