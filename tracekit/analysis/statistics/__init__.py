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

_HOMES = {
    "COSINES": "tracekit.analysis.statistics._long_run",
    "ENOUGH": "tracekit.analysis.statistics._long_run",
    "Flags": "tracekit.analysis.statistics._long_run",
    "Floats": "tracekit.analysis.statistics._long_run",
    "LEVEL": "tracekit.analysis.statistics._statistics",
    "METHOD": "tracekit.analysis.statistics._statistics",
    "Numbers": "tracekit.analysis.statistics._long_run",
    "Shift": "tracekit.analysis.statistics._shift",
    "Skip": "tracekit.analysis.statistics._cold_steps",
    "adjusted": "tracekit.analysis.statistics._statistics",
    "cold_steps": "tracekit.analysis.statistics._cold_steps",
    "differences": "tracekit.analysis.statistics._statistics",
    "long_run": "tracekit.analysis.statistics._long_run",
    "p_values": "tracekit.analysis.statistics._statistics",
    "quantile": "tracekit.analysis.statistics._student",
    "shift": "tracekit.analysis.statistics._shift",
    "spread_of": "tracekit.analysis.statistics._shift",
    "welch_error": "tracekit.analysis.statistics._statistics",
}

__all__ = [
    "COSINES",
    "ENOUGH",
    "LEVEL",
    "METHOD",
    "Flags",
    "Floats",
    "Numbers",
    "Shift",
    "Skip",
    "adjusted",
    "cold_steps",
    "differences",
    "long_run",
    "p_values",
    "quantile",
    "shift",
    "spread_of",
    "welch_error",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
