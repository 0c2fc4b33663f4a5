"""NCCL and MPI calls of a run, the participants of each collective, and ranks of processes.

Several analyses import this package; it imports none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.calls._collective_calls import (
        ASSUMED,
        Found,
        collective_calls,
        find_collectives,
        in_stretch,
        nccl_messages,
        only_value,
        participants,
        with_iterations,
    )
    from tracekit.analysis.calls._excerpt import excerpt
    from tracekit.analysis.calls._groups import (
        MEMBERS,
        OF_GROUPS,
        TOGETHER,
        communicator_groups,
        ends_by_arrivals,
        group_members,
        groups_of_ops,
        members_of_rows,
        same_groups,
        unnamed_groups,
    )
    from tracekit.analysis.calls._mpi_calls import (
        annotated_calls,
        from_the_start,
        mpi_calls,
        outermost,
        within,
    )
    from tracekit.analysis.calls._nccl_calls import (
        collective_kernels,
        communicators,
        hex_ids,
        made_communicators,
        read_calls,
        unsized_of_others,
        why_unsized,
        with_kernels,
    )
    from tracekit.analysis.calls._ranks import (
        job_size,
        log_processes,
        process_ranks,
        uncounted_waits,
        unrecorded_ranks,
        unseen_participants,
        with_devices,
    )

__getattr__, __dir__ = lazily(__name__)
