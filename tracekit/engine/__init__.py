"""Engine: streams a run's ops once into sums, by window, stage, group and range.

Busy time comes from here alone: `StageTally`, `GroupTally` and the tallies of ranges add up the ops
of a whole run by start, in compiled loops; `union_length` and `layered_lengths` are for frames of
intervals in any order. Every sum is a whole number of ns or ops. Those of several reports are added
in any order, but for a GPU that several of them saw: its union is found over all its ops.

Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.engine._group_sums import GroupTally, GroupTotals
    from tracekit.engine._host_time import Work, has_ops, innermost_stretches, on_host
    from tracekit.engine._inclusive import inclusive_kernels, inclusive_ranges, projected_ranges
    from tracekit.engine._intervals import layered_lengths, union_length
    from tracekit.engine._launch_groups import NEEDED, host_marks, launch_groups
    from tracekit.engine._layer_ranges import BY_RANGE, BY_SEQUENCE, RangeLayers, range_layers
    from tracekit.engine._lines import Lines, extended
    from tracekit.engine._range_paths import (
        named_ranges,
        range_paths,
        shown,
        sorting,
        with_path_texts,
    )
    from tracekit.engine._stage_sums import DeviceSums, StageSums, StageTally, kept_sums
    from tracekit.engine._steps import (
        Counted,
        by_host,
        chosen_steps,
        counted_steps,
        inside_steps,
        numbered_alike,
        parse_between,
        parse_iterations,
        parse_ranks,
        some_steps,
        split,
        step_windows,
        torn,
        with_steps,
        within,
    )
    from tracekit.engine._stream import Named, Receivers, hand_out, sum_up
    from tracekit.engine._windows import (
        chosen_windows,
        cut,
        first_iterations,
        iteration_windows,
        iterations_in,
        latest,
    )

__getattr__, __dir__ = lazily(__name__)
