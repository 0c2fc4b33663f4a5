"""`tracekit project`: what jobs would take on other architectures and hardware."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    RunsArgument,
    SkipOption,
    StoreOption,
    WhereOption,
    parse_count,
    parse_labels,
    parse_size,
)
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.model import Answer


class What(StrEnum):
    """What is listed."""

    JOBS = "jobs"
    COMPONENTS = "components"
    ARCHITECTURES = "architectures"
    HARDWARE = "hardware"
    MEANS = "means"
    DISTRIBUTION = "distribution"
    MEASURED = "measured"


def _known(name: str, metavar: str, what: str) -> Any:
    return typer.Option(name, metavar=metavar, help=what, rich_help_panel="What is known of runs")


def parse_sweep(texts: "Sequence[str]") -> dict[str, list[str]]:
    """Return the peaks to try that are written as `ethernet=10Gb/s,100Gb/s`.

    Raises
    ------
    UsageError
        If one is not written so, or a resource is there twice.
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


@command(
    "tracekit project --jobs jobs.toml --figure components.html",
    "tracekit project --jobs jobs.csv --what means --to AllReduce-Local",
    "tracekit project --jobs jobs.csv --what hardware --sweep pcie=50GB/s",
    "tracekit project run --flops 2T --memory-bytes 32GB --what measured",
    figures={"figure": "Draw components, speedups by hardware, or distributions"},
)
def project(
    runs: RunsArgument = None,
    *,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            metavar="FILE",
            help="Jobs, instead of runs: TOML or CSV, or `worked`, an example.",
        ),
    ] = None,
    what: Annotated[
        What,
        typer.Option(
            "--what",
            help="Jobs and their volumes; time by component; the same on other architectures, or "
            "hardware; means, or distributions, of shares (of speedups, with --to or --sweep); "
            "the model against what was measured.",
        ),
    ] = What.COMPONENTS,
    to: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="ARCHITECTURE",
            help="1w1g, 1wng, PS/Worker, AllReduce-Local, AllReduce-Cluster or PEARL; may be given "
            "several times. Default: all.",
        ),
    ] = None,
    hardware: Annotated[
        str,
        typer.Option("--hardware", metavar="FILE", help="Peaks of a cluster: pai, v100, or TOML."),
    ] = "pai",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="RESOURCE=PEAKS",
            help="Peaks to try of compute, memory, pcie, ethernet or nvlink, such as "
            "ethernet=25Gb/s,100Gb/s. Default: those of the hardware's file.",
        ),
    ] = None,
    pcie_share: Annotated[
        int,
        typer.Option("--pcie-share", min=1, help="Replicas that share a path for their input."),
    ] = 1,
    architecture: Annotated[
        str | None, _known("--architecture", "NAME", "How they train. Default: as recorded.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="Number of GPUs.", rich_help_panel="What is known of runs"
        ),
    ] = None,
    flops: Annotated[
        str | None, _known("--flops", "COUNT", "FLOPs of a step on one GPU, such as 1.56T.")
    ] = None,
    memory_bytes: Annotated[
        str | None, _known("--memory-bytes", "SIZE", "Bytes its kernels read and write, as 32GB.")
    ] = None,
    input_bytes: Annotated[
        str | None, _known("--input-bytes", "SIZE", "Bytes of its input. Default: as recorded.")
    ] = None,
    weight_bytes: Annotated[
        str | None, _known("--weight-bytes", "SIZE", "Bytes it exchanges. Default: as recorded.")
    ] = None,
    skip: SkipOption = 0,
    where: WhereOption = None,
    store: StoreOption = None,
) -> "Answer":
    """Say, by a model, what a step would take on other architectures and hardware.

    docs/studies.md has the formulas. Of runs, volumes are measured as far as a trace holds them.
    """
    import tracekit

    sizes = {
        "memory_bytes": memory_bytes, "input_bytes": input_bytes, "weight_bytes": weight_bytes
    }  # fmt: skip
    features: dict[str, Any] = {k: float(parse_size(v)) for k, v in sizes.items() if v is not None}
    features |= {} if flops is None else {"flops": float(parse_count(flops))}
    told = {"architecture": architecture, "workers": workers}
    features |= {key: value for key, value in told.items() if value is not None}
    return tracekit.project.answer(
        runs or (), jobs=jobs, what=what.value, hardware=hardware, to=to or (),
        sweep=parse_sweep(sweep or []), pcie_share=pcie_share, features=features, skip=skip,
        where=parse_labels(where or []), store=store,
    )  # fmt: skip
