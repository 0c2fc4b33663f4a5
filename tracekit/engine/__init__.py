"""Engine: streams a run's ops (kernels, copies, memsets) once into sums by window, stage and range.

A window is an interval of a device's time, such as a step. Busy time (the length of the union of
intervals) is computed here alone: `StageTally`, `GroupTally` and the aggregators of ranges add up
the ops of a run, ordered by start, in compiled loops; `union_length` and `layered_lengths` take
frames of intervals in any order. Every sum is a whole number of ns or ops. Sums of several reports
can be added in any order, except for a GPU that occurs in several reports: its union is computed
over all its ops.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.engine._group_sums import GroupTally, GroupTotals, median_lengths
    from tracekit.engine._host_time import Work, has_ops, innermost_stretches, on_host
    from tracekit.engine._inclusive import inclusive_kernels, inclusive_ranges
    from tracekit.engine._intervals import layered_lengths, union_length
    from tracekit.engine._launch_groups import NEEDED, host_marks, launch_groups
    from tracekit.engine._layer_ranges import BY_RANGE, BY_SEQUENCE, RangeLayers, range_layers
    from tracekit.engine._lines import Lines, Numbers, extended
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
        begun_in_steps,
        by_host,
        chosen_steps,
        counted_steps,
        inside_steps,
        parse_iterations,
        parse_ranks,
        some_steps,
        split,
        step_windows,
        torn,
        with_steps,
        within,
    )
    from tracekit.engine._stream import Named, Receivers, Summed, hand_out, sum_in, sum_up
    from tracekit.engine._windows import (
        chosen_windows,
        cut,
        first_iterations,
        iterations_in,
        latest,
        numbered_alike,
        run_windows,
    )

__getattr__, __dir__ = lazily(__name__)
