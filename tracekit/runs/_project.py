"""The question `project`: estimates step times of jobs on other hardware or architectures.

An architecture is how a job exchanges weights, such as AllReduce or a parameter server.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from tracekit.support.questions import AutoSkip, ChosenRuns, Option, question
from tracekit.support.schemas import NO_RUN, Json

if TYPE_CHECKING:
    from tracekit.model import Answer
    from tracekit.runs._question import Selection

_KNOWN = "What is known of runs"
_JSON = Json(
    "project",
    run=NO_RUN,
    of_rows="The result; its columns depend on the question.",
    meta={
        "modelled?": "text: How times are modelled; absent from a list of jobs.",
        "hardware?": "text: What jobs run on in the model; absent from a list of jobs.",
        "gain?": "text: How many jobs gain on other architectures, by the step of a replica and by "
        "the samples of all of them.",
        "warnings": "texts: What is not known of jobs and how it is given, one sentence each.",
    },
    rows={
        "job?": "text: Name of the job.",
        "architecture?": "text or null: How it trains now; all in means over all of them.",
        "to?": "text: The architecture that it is moved to.",
        "resource?": "text: The resource whose peak is another.",
        "value?": "text or number: That peak as it is written; in distributions, the value.",
        "peak?": "number: That peak, FLOP/s or bytes/s.",
        "workers?": "integer or null: Replicas, each on a GPU of its own; on other architectures, "
        "those that there are then.",
        "batch?": "integer or null: Samples of a step, of each replica.",
        "evidence?": {"description": "That times are modelled.", "const": "modelled"},
        "flops?": "number or null: Floating point operations of a step, of each replica.",
        "memory_bytes?": "number or null: Bytes that its kernels read from and write to the "
        "memory of the GPU.",
        "input_bytes?": "number or null: Bytes of input that are copied to the GPU.",
        "weight_bytes?": "number or null: Bytes of weights and gradients that it exchanges.",
        "embedding_bytes?": "number or null: How many of these are of embedding tables.",
        "touched_bytes?": "number or null: Bytes of the rows of these that a step touches.",
        "measured_s?": "number or null: How long a step took, s.",
        "measured_input_s?": "number or null: How long its input was copied, s.",
        "measured_compute_s?": "number or null: How long kernels ran that are taken to be bound "
        "by arithmetic, s.",
        "measured_memory_s?": "number or null: How long all other kernels ran, s.",
        "measured_weights_s?": "number or null: How long weights and gradients were exchanged, s.",
        "input_ns?": "number or null: Modelled time of its input, ns.",
        "compute_ns?": "number or null: Modelled time of its arithmetic, ns.",
        "memory_ns?": "number or null: Modelled time of its memory, ns.",
        "weights_ns?": "number or null: Modelled time of its exchange, ns.",
        "step_ns?": "number or null: The sum of these four.",
        "overlapped_ns?": "number or null: The longest of them: what no overlap can beat.",
        "input_share?": "number or null: Share of the step; or the mean of shares.",
        "compute_share?": "number or null: Share of the step; or the mean of shares.",
        "memory_share?": "number or null: Share of the step; or the mean of shares.",
        "weights_share?": "number or null: Share of the step; or the mean of shares.",
        "bound?": "one of input, compute, memory, weights or null: The longest component.",
        "samples_per_s?": "number or null: Samples that all replicas handle, modelled.",
        "speedup?": "number or null: By how much a step is shorter; or the mean of that.",
        "throughput_speedup?": "number or null: By how much more samples all replicas handle.",
        "faster_share?": "number or null: Share of jobs, or of replicas, whose step is shorter.",
        "throughput_faster_share?": "number or null: Share of jobs, or of replicas of jobs, whose "
        "replicas together handle more samples.",
        "weighting?": "one of job, node: Whether each job counts one, or by its replicas.",
        "jobs?": "integer: Number of jobs.",
        "nodes?": "integer or null: Number of their replicas.",
        "measure?": "text: What is distributed.",
        "job_share?": "number: Share of jobs with at most this value.",
        "node_share?": "number or null: Share of replicas of jobs with at most this value.",
        "component?": "one of step, input, compute, memory, weights: The step, or a component of "
        "it.",
        "estimated_ns?": "number or null: Its modelled time, ns.",
        "measured_ns?": "number or null: Its measured time, ns.",
        "error_percent?": "number or null: 100 (estimated - measured) / measured.",
        "efficiency?": "number or null: Share of the peak that was reached; null for the step.",
    },
)


@question(
    "tracekit project --jobs jobs.toml --figure components.html",
    "tracekit project --jobs jobs.csv --what means --to AllReduce-Local",
    "tracekit project --jobs jobs.csv --what hardware --sweep pcie=50GB/s",
    "tracekit project run --flops 2T --memory-bytes 32GB --what measured",
    figures={"figure": "Draw components, speedups by hardware, or distributions"},
    writes=_JSON,
    is_of_latest=True,
)
def project(
    runs: "Selection",
    *,
    jobs: Annotated[
        str | None,
        Option("Jobs, instead of runs: TOML or CSV, or `worked`, an example.", "FILE"),
    ] = None,
    what: Annotated[
        Literal[
            "jobs", "components", "architectures", "hardware", "means", "distribution", "measured"
        ],
        Option(
            "Jobs and their volumes; step time by component; step times with other ways to "
            "exchange weights (architectures), or on other hardware; means, or distribution, of "
            "the components' shares (with --to or --sweep: of speedups); modelled against "
            "measured times."
        ),
    ] = "components",
    to: Annotated[
        Sequence[str],
        Option(
            "1w1g, 1wng, PS/Worker, AllReduce-Local, AllReduce-Cluster or PEARL; may be given "
            "several times. Default: all.",
            "ARCHITECTURE",
            typed=list[str] | None,
        ),
    ] = (),
    hardware: Annotated[
        str,
        Option("Peaks of a cluster: pai, v100, or TOML.", "FILE"),
    ] = "pai",
    sweep: Annotated[
        Mapping[str, Sequence[str]] | None,
        Option(
            "Peaks to try of compute, memory, pcie, ethernet or nvlink, such as "
            "ethernet=25Gb/s,100Gb/s. Default: those of the hardware's file.",
            "RESOURCE=PEAKS",
            unit="peaks",
            typed=list[str] | None,
        ),
    ] = None,
    pcie_share: Annotated[
        int,
        Option("Replicas that share a path for their input.", least=1),
    ] = 1,
    architecture: Annotated[
        str | None, Option("How they train. Default: as recorded.", "NAME", panel=_KNOWN)
    ] = None,
    workers: Annotated[
        int | None,
        Option("Number of GPUs.", least=1, panel=_KNOWN),
    ] = None,
    flops: Annotated[
        float | None,
        Option("FLOPs of a step on one GPU, such as 1.56T.", "COUNT", unit="count", panel=_KNOWN),
    ] = None,
    memory_bytes: Annotated[
        float | None,
        Option("Bytes its kernels read and write, as 32GB.", "SIZE", unit="bytes", panel=_KNOWN),
    ] = None,
    input_bytes: Annotated[
        float | None,
        Option("Bytes of its input. Default: as recorded.", "SIZE", unit="bytes", panel=_KNOWN),
    ] = None,
    weight_bytes: Annotated[
        float | None,
        Option("Bytes it exchanges. Default: as recorded.", "SIZE", unit="bytes", panel=_KNOWN),
    ] = None,
    features: Annotated[
        Mapping[str, Any] | None,
        Option("Facts that traces do not have: column of the jobs -> value.", flag=""),
    ] = None,
    skip: AutoSkip = "auto",
    **_: Unpack[ChosenRuns],
) -> "Answer":
    """Estimate step times of jobs on other hardware, or with other ways to exchange weights.

    docs/evidence/studies.md has the formulas. Bytes and times of a run are taken from its trace if
    they were recorded.
    """
    from tracekit.runs._projections import projected

    options = {
        "flops": flops, "memory_bytes": memory_bytes, "input_bytes": input_bytes,
        "weight_bytes": weight_bytes, "architecture": architecture, "workers": workers,
    }  # fmt: skip
    known = {key: value for key, value in options.items() if value is not None}
    return projected(
        runs, {**(features or {}), **known}, jobs=jobs, what=what, hardware=hardware, to=to,
        sweep=sweep or {}, pcie_share=pcie_share, skip=skip,
    )  # fmt: skip
