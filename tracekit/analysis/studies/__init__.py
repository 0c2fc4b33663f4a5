"""Tables over many runs: scaling, overhead, memory, bubbles, stalls, projections."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.studies._api_calls import api_by_run, api_calls, profiler_overhead
    from tracekit.analysis.studies._bubbles import (
        Bubbles,
        bubble_theory,
        bubbles_of_run,
        pipeline_bubbles,
    )
    from tracekit.analysis.studies._epochs import (
        BatchScope,
        exchange,
        images_per_step,
        study_iterations,
    )
    from tracekit.analysis.studies._job_features import (
        JOBS,
        MEDIA,
        Hardware,
        job_features,
        jobs_frame,
        load_hardware,
        read_jobs,
    )
    from tracekit.analysis.studies._measured_elsewhere import (
        Published,
        beside,
        load_published,
        read_times,
    )
    from tracekit.analysis.studies._memory_points import memory_points, read_memory_table
    from tracekit.analysis.studies._overhead import crossovers, overhead, overhead_matrix
    from tracekit.analysis.studies._projection import (
        COMPONENTS,
        distribution,
        gains,
        measured_against,
        project_architectures,
        step_times,
        sweep_hardware,
        weighted_means,
    )
    from tracekit.analysis.studies._scaling import scaling
    from tracekit.analysis.studies._study import (
        basis_of,
        study,
        study_notes,
        study_row,
        study_stages,
        without_empty,
    )

__getattr__, __dir__ = lazily(__name__)
