"""Trains a network with annotations: ``python -m workloads.train --help``."""

from pathlib import Path
from typing import Annotated

import typer

from workloads._annotate import warn_of_lost_ranges
from workloads._command import command
from workloads._epochs import parse_images
from workloads._options import (
    BatchScope,
    Compiler,
    DeviceKind,
    Exchange,
    Options,
    Precision,
    Root,
    Scaling,
    Schedule,
    Staging,
)
from workloads._summary import check_place
from workloads._world import find_place

_DEFAULT = Options()
_LENGTH, _DATA, _METHOD, _TRACE = "How long", "Data", "Methods", "Trace and results"


def train(
    *,
    network: Annotated[
        str, typer.Option("--network", metavar="NAME", help="What to train, such as lenet.")
    ] = _DEFAULT.network,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="How devices work together: none, p2p, nccl, gloo, mpi, ps, pipeline, or "
            "module:Class of your own.",
        ),
    ] = _DEFAULT.method,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            min=1,
            help="On how many devices. Default: 1, or what torchrun or mpiexec has started.",
        ),
    ] = None,
    device: Annotated[
        DeviceKind, typer.Option("--device", help="auto is the GPU if there is one.")
    ] = _DEFAULT.device,
    precision: Annotated[
        Precision,
        typer.Option("--precision", help="tf32 and amp (16 bits, scaled) are for GPUs."),
    ] = _DEFAULT.precision,
    auxiliary: Annotated[
        bool,
        typer.Option(
            "--auxiliary/--no-auxiliary",
            help="Train auxiliary classifiers, where the network has some.",
        ),
    ] = _DEFAULT.auxiliary,
    compiler: Annotated[
        Compiler | None,
        typer.Option("--compile", help="Compile the network with torch.compile by this backend."),
    ] = _DEFAULT.compile,
    cudnn_benchmark: Annotated[
        bool,
        typer.Option(
            "--cudnn-benchmark/--no-cudnn-benchmark",
            help="Let cuDNN try its algorithms in the first step, and take the fastest.",
        ),
    ] = _DEFAULT.cudnn_benchmark,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", min=0, help="Of stochastic gradient descent.")
    ] = _DEFAULT.learning_rate,
    momentum: Annotated[
        float, typer.Option("--momentum", min=0, max=1, help="Likewise.")
    ] = _DEFAULT.momentum,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="What weights and samples depend on.")
    ] = _DEFAULT.seed,
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Samples of a step.", rich_help_panel=_LENGTH)
    ] = _DEFAULT.batch,
    batch_scope: Annotated[
        BatchScope,
        typer.Option(
            "--batch-scope", help="Of each GPU, or of all together.", rich_help_panel=_LENGTH
        ),
    ] = _DEFAULT.batch_scope,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=0, help="Steps to measure. Default: 20.", rich_help_panel=_LENGTH
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=1,
            help="Epochs to measure, of ceil(images / batch) steps each.",
            rich_help_panel=_LENGTH,
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="N",
            help="Samples of an epoch; 256K is 256 x 1024. Default: what --data holds.",
            rich_help_panel=_LENGTH,
        ),
    ] = None,
    scaling: Annotated[
        Scaling | None,
        typer.Option(
            "--scaling",
            help="strong: the GPUs share --images; weak: each brings as many. Default: strong, "
            "without a label that says so.",
            rich_help_panel=_LENGTH,
        ),
    ] = None,
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up", min=0, help="Steps before those measured.", rich_help_panel=_LENGTH
        ),
    ] = _DEFAULT.warm_up,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            "--evaluate-every",
            min=1,
            metavar="N",
            help="Evaluate the network every so many steps. Default: never.",
            rich_help_panel=_LENGTH,
        ),
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="synthetic|PATH",
            help="A .npz or .pt file, or a folder of such (python -m workloads.data).",
            rich_help_panel=_DATA,
        ),
    ] = "synthetic",
    image_size: Annotated[
        int | None,
        typer.Option(
            "--image-size",
            min=1,
            help="Height and width of synthetic images. Default: as published.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    root: Annotated[
        Root,
        typer.Option(
            "--root",
            help="p2p: parameters are updated at device 0, or each at its own.",
            rich_help_panel=_METHOD,
        ),
    ] = _DEFAULT.root,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap/--no-overlap",
            help="p2p, mpi: a bucket of gradients sets out as soon as the backward pass has it.",
            rich_help_panel=_METHOD,
        ),
    ] = _DEFAULT.overlap,
    exchange: Annotated[
        Exchange,
        typer.Option(
            "--exchange",
            help="nccl, gloo: DistributedDataParallel; reduce to a root and broadcast; or "
            "sharded: FSDP.",
            rich_help_panel=_METHOD,
        ),
    ] = _DEFAULT.exchange,
    bucket_mb: Annotated[
        float,
        typer.Option(
            "--bucket-mb",
            min=0.001,
            help="nccl, gloo, mpi, ps, p2p --overlap: MiB of gradients that travel together.",
            rich_help_panel=_METHOD,
        ),
    ] = _DEFAULT.bucket_mb,
    mpi_staging: Annotated[
        Staging,
        typer.Option(
            "--mpi-staging",
            help="mpi: through host memory, or from the device.",
            rich_help_panel=_METHOD,
        ),
    ] = _DEFAULT.mpi_staging,
    schedule: Annotated[
        Schedule,
        typer.Option("--schedule", help="pipeline: order of passes.", rich_help_panel=_METHOD),
    ] = _DEFAULT.schedule,
    micro_batches: Annotated[
        int,
        typer.Option(
            "--micro-batches", min=1, help="pipeline: of a batch.", rich_help_panel=_METHOD
        ),
    ] = _DEFAULT.micro_batches,
    nvtx: Annotated[
        bool, typer.Option("--nvtx/--no-nvtx", help="Annotate.", rich_help_panel=_TRACE)
    ] = _DEFAULT.nvtx,
    layers: Annotated[
        bool,
        typer.Option("--layers/--no-layers", help="Annotate layers.", rich_help_panel=_TRACE),
    ] = _DEFAULT.layers,
    capture_range: Annotated[
        bool,
        typer.Option(
            "--capture-range/--no-capture-range",
            help="Tell a profiler that waits for it where the measured steps are.",
            rich_help_panel=_TRACE,
        ),
    ] = _DEFAULT.capture_range,
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary",
            metavar="FILE",
            help="Write losses, times, bytes and labels to this file, as JSON.",
            rich_help_panel=_TRACE,
        ),
    ] = None,
) -> None:
    """Train a network on one or more devices, with NVTX annotations for tracekit."""
    from workloads._launch import run  # noqa: PLC0415

    if summary is not None:
        check_place(summary)
    place = find_place()
    options = Options(
        network=network,
        method=method,
        gpus=gpus or (place.size if place else 1),
        batch=batch,
        batch_scope=batch_scope,
        steps=steps,
        epochs=epochs,
        images=None if images is None else parse_images(images),
        scaling=scaling,
        warm_up=warm_up,
        data=None if data == "synthetic" else Path(data),
        image_size=image_size,
        auxiliary=auxiliary,
        precision=precision,
        compile=compiler,
        cudnn_benchmark=cudnn_benchmark,
        seed=seed,
        learning_rate=learning_rate,
        momentum=momentum,
        evaluate_every=evaluate_every,
        device=device,
        root=root,
        overlap=overlap,
        exchange=exchange,
        bucket_mb=bucket_mb,
        schedule=schedule,
        micro_batches=micro_batches,
        mpi_staging=mpi_staging,
        nvtx=nvtx,
        layers=layers,
        capture_range=capture_range,
        summary=summary,
    )
    if options.nvtx:
        warn_of_lost_ranges()
    told = run(options)
    if told is not None:
        if options.summary is not None:
            told.write(options.summary)
        typer.echo(told.as_text())


app = command(
    train,
    "Examples:\n  python -m workloads.train --network lenet --method gloo --gpus 2 --steps 20\n"
    "  nsys profile -t cuda,nvtx,osrt python -m workloads.train --method p2p --gpus 4",
)

if __name__ == "__main__":
    app(prog_name="python -m workloads.train")
