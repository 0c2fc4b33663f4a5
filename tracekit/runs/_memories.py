"""How much memory runs take: of each, and of several beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import UsageError
from tracekit.runs._memory_answers import Remembered, check_what, memory_answer, remembered
from tracekit.runs._question import question_of
from tracekit.runs._selecting import Reference, select_runs
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.model import Answer


@question_of
def memory(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    what: str = "use",
    smi: StrPath | None = None,
    table: StrPath | None = None,
    root: int = 0,
    capacity: int | None = None,
    margin: float = 0.1,
    store: StrPath | None = None,
) -> Answer:
    """List memory before and in training by GPU, the root's extra, growth, or the largest batch.

    Parameters
    ----------
    references, where
        The runs, as for `select_runs`.
    what
        ``use`` (see `tracekit.analysis.studies.memory_use`), ``table`` (`memory_table`),
        ``extra`` (`memory_extra`), ``growth`` (`memory_growth`) or ``largest-batch``
        (`largest_batch`).
    smi
        A file of samples of nvidia-smi.
    table
        A file of what was measured elsewhere instead; see `analysis.studies.read_memory_table`.
    root
        The GPU that gathers gradients.
    capacity
        Memory of a GPU, bytes.
    margin
        Part of it that is to stay free, 0 to 1.

    Raises
    ------
    UsageError
        If an option is unknown or lacks.
    """
    check_what(what)
    of = _remembered(references, where, smi, table, store)
    return memory_answer(of, what=what, root=root, capacity=capacity, margin=margin)


def _remembered(
    references: Sequence[Reference],
    where: Mapping[str, str] | None,
    smi: StrPath | None,
    table: StrPath | None,
    store: StrPath | None,
) -> Remembered:
    from tracekit.analysis.studies import read_memory_table
    from tracekit.sources import read_smi

    if table is not None:
        if references or where or smi is not None:
            raise UsageError("memory is of runs or of a table", "give either, not both")
        return Remembered(read_memory_table(Path(table)), {"table": str(table)})
    chosen = select_runs(references, where=where, store=store)
    return remembered(chosen, None if smi is None else read_smi(Path(smi)))
