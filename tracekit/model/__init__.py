"""Canonical tables of a run (columns, types), and `Trace`, which has them as polars frames."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.model._answer import Answer, Headline, traits, with_readable_names
    from tracekit.model._checks import damaged_files
    from tracekit.model._clocks import Clock, GivenClock, Place, same_machine, with_clocks
    from tracekit.model._combine import UNMATCHED, combine, with_one_tree
    from tracekit.model._paths import (
        PATH_SEPARATOR,
        PathNodes,
        PathTree,
        in_any,
        path_number,
        path_texts,
    )
    from tracekit.model._readable_names import (
        normalised_name,
        readable_names,
        split_brackets,
    )
    from tracekit.model._recording import KEYS, Maker, Recording, Stream
    from tracekit.model._run import Run, Runs
    from tracekit.model._tables import (
        COLLECTIVE_CALLS,
        DERIVED,
        DEVICE_SUMS,
        DEVICES,
        EVENT_RECORDS,
        GRAPH_NODES,
        HOST,
        MACHINE,
        MEMORY,
        OPS,
        PATH_TEXTS,
        PATHS,
        RANGES,
        REPORTS,
        SYNCS,
        TABLES,
        TRANSFERS,
        Column,
        PolarsType,
        Table,
    )
    from tracekit.model._trace import (
        Frames,
        Stretch,
        Trace,
        TraceWriter,
        missing_files,
        replace_table,
    )
    from tracekit.model._vocabulary import (
        COLLECTIVE,
        COLLECTIVES,
        EVIDENCE,
        HOST_MEMORY,
        KERNEL_KINDS,
        KIND,
        KINDS,
        METHOD,
        METRIC,
        NO_KERNELS,
        RANGE_STYLE,
        STAGE,
        STAGE_SOURCE,
        STAGE_SOURCES,
        STAGES,
        STEPS_UNMARKED,
        SYNC_TYPE,
        TESTED,
        VERDICT,
        VERDICTS,
        WORK_MISSING,
        is_migration,
    )

__getattr__, __dir__ = lazily(__name__)
