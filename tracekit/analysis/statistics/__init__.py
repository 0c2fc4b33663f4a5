"""Statistics of steps: means that are known so well, differences, shifts, cold steps.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.statistics._cold_steps import Skip, cold_steps
    from tracekit.analysis.statistics._long_run import (
        COSINES,
        ENOUGH,
        Flags,
        Floats,
        Numbers,
        long_run,
    )
    from tracekit.analysis.statistics._shift import Shift, shift, spread_of
    from tracekit.analysis.statistics._statistics import (
        LEVEL,
        METHOD,
        adjusted,
        differences,
        p_values,
        welch_error,
    )
    from tracekit.analysis.statistics._student import quantile

__getattr__, __dir__ = lazily(__name__)
