"""`tracekit project`: what jobs would take on other architectures and hardware."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import tracekit
from tracekit.cli._command import command
from tracekit.cli._options import (
    RunsArgument,
)
from tracekit.errors import UsageError
from tracekit.support.questions import AutoSkip, Folder, Labels, Option
from tracekit.support.schemas import NO_RUN, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model import Answer


What = Literal[
    "jobs", "components", "architectures", "hardware", "means", "distribution", "measured"
]
"""Tables that can be requested."""
_KNOWN = "What is known of runs"


def parse_sweep(texts: "Sequence[str]") -> dict[str, list[str]]:
    """Return the peaks to try written as `ethernet=10Gb/s,100Gb/s`: resource -> texts.

    Raises
    ------
    UsageError
        If one is written differently, or a resource occurs twice.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        resource, equals, values = text.partition("=")
        if not equals or not values:
            raise UsageError(f"{text!r} is no sweep", "write --sweep ethernet=10Gb/s,100Gb/s")
        if resource in found:
            raise UsageError(f"{resource} is swept twice", "give its values in one --sweep")
        found[resource] = [value.strip() for value in values.split(",")]
    return found


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


@command(
    "tracekit project --jobs jobs.toml --figure components.html",
    "tracekit project --jobs jobs.csv --what means --to AllReduce-Local",
    "tracekit project --jobs jobs.csv --what hardware --sweep pcie=50GB/s",
    "tracekit project run --flops 2T --memory-bytes 32GB --what measured",
    figures={"figure": "Draw components, speedups by hardware, or distributions"},
    writes=[_JSON],
)
def project(
    runs: RunsArgument = None,
    *,
    jobs: Annotated[
        str | None,
        Option("Jobs, instead of runs: TOML or CSV, or `worked`, an example.", "FILE"),
    ] = None,
    what: Annotated[
        What,
        Option(
            "Jobs and their volumes; time by component; the same on other architectures, or "
            "hardware; means, or distributions, of shares (of speedups, with --to or --sweep); "
            "the model against what was measured."
        ),
    ] = "components",
    to: Annotated[
        list[str] | None,
        Option(
            "1w1g, 1wng, PS/Worker, AllReduce-Local, AllReduce-Cluster or PEARL; may be given "
            "several times. Default: all.",
            "ARCHITECTURE",
        ),
    ] = None,
    hardware: Annotated[
        str,
        Option("Peaks of a cluster: pai, v100, or TOML.", "FILE"),
    ] = "pai",
    sweep: Annotated[
        list[str] | None,
        Option(
            "Peaks to try of compute, memory, pcie, ethernet or nvlink, such as "
            "ethernet=25Gb/s,100Gb/s. Default: those of the hardware's file.",
            "RESOURCE=PEAKS",
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
    skip: AutoSkip = "auto",
    where: Labels = None,
    store: Folder = None,
) -> "Answer":
    """Say, by a model, what a step would take on other architectures and hardware.

    docs/studies.md has the formulas. Of runs, volumes are measured as far as a trace holds them.
    """
    sizes = {
        "memory_bytes": memory_bytes, "input_bytes": input_bytes, "weight_bytes": weight_bytes,
        "flops": flops,
    }  # fmt: skip
    features: dict[str, Any] = {key: float(size) for key, size in sizes.items() if size is not None}
    told = {"architecture": architecture, "workers": workers}
    features |= {key: value for key, value in told.items() if value is not None}
    return tracekit.project.answer(
        runs or (), jobs=jobs, what=what, hardware=hardware, to=to or (),
        sweep=parse_sweep(sweep or []), pcie_share=pcie_share, features=features,
        skip=skip, where=where or {}, store=store,
    )  # fmt: skip
