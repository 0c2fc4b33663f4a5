"""Statistics of step times: error of means, differences, shifts, cold steps, modes.

Several analyses import this package; it imports none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.statistics._differences import (
        FAR,
        LEVEL,
        METHOD,
        NO_SLOWER,
        OF_ROWS,
        STEADY,
        Shift,
        adjusted_p_values,
        differences,
        mean_errors,
        p_values,
        quantile,
        shift,
        welch_error,
    )
    from tracekit.analysis.statistics._kinds_of_steps import (
        Regular,
        Skip,
        before_a_short_end,
        cold_steps,
        kinds_of,
        left_out_notes,
        modes,
        outliers,
        regularly_slow,
        within_kinds,
    )
    from tracekit.analysis.statistics._long_run import (
        COSINES,
        ENOUGH,
        SHOW_DRIFT,
        SLOW,
        Flags,
        Floats,
        LongRun,
        Numbers,
        long_run,
    )

__getattr__, __dir__ = lazily(__name__)
