"""Records programs with Nsight Systems: which command that takes, and running it."""

from tracekit.recording._calibration import Cost, calibrate, in_turn
from tracekit.recording._launchers import LAUNCHERS, Launch, is_python, split
from tracekit.recording._machine import gpu_count
from tracekit.recording._names import file_name
from tracekit.recording._nsys import Nsys, find_nsys
from tracekit.recording._perform import perform, unfinished
from tracekit.recording._plan import Plan, plan, reports_in
from tracekit.recording._profile import Wanted, profile_command, trace_names
from tracekit.recording._study import Configuration, Study, load_study, study_names

__all__ = [
    "LAUNCHERS",
    "Configuration",
    "Cost",
    "Launch",
    "Nsys",
    "Plan",
    "Study",
    "Wanted",
    "calibrate",
    "file_name",
    "find_nsys",
    "gpu_count",
    "in_turn",
    "is_python",
    "load_study",
    "perform",
    "plan",
    "profile_command",
    "reports_in",
    "split",
    "study_names",
    "trace_names",
    "unfinished",
]
