"""Record programs with Nsight Systems (nsys)."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.recording._attach_request import attach, clear
    from tracekit.recording._calibration import Cost, calibrate, in_turn
    from tracekit.recording._launchers import gpu_count, is_python, split
    from tracekit.recording._nsys import Nsys, find_nsys, profile_command
    from tracekit.recording._perform import perform, unfinished
    from tracekit.recording._plan import Plan, by_window, plan, reports_in
    from tracekit.recording._study_grid import (
        Configuration,
        Study,
        file_name,
        load_study,
        study_names,
    )
    from tracekit.recording._wanted import STEPS, Wanted

__getattr__, __dir__ = lazily(__name__)
