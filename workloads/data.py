"""Writes a data set for the training programs: ``python -m workloads.data OUT``."""

from pathlib import Path
from typing import Annotated

import typer

from workloads._command import command

_SHARDS = 8


def data(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write to.")],
    *,
    network: Annotated[
        str, typer.Option("--network", metavar="NAME", help="What the samples are for.")
    ] = "lenet",
    images: Annotated[
        str, typer.Option("--images", metavar="N", help="How many; 4K is 4 x 1024.")
    ] = "4K",
    shards: Annotated[int, typer.Option("--shards", min=1, help="How many files.")] = _SHARDS,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Height and width of the images.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="What the samples depend on.")] = 0,
) -> None:
    """Write made-up samples to .npz files with the arrays images and labels."""
    import torch  # noqa: PLC0415

    from workloads._data import find_network, sample  # noqa: PLC0415
    from workloads._epochs import parse_images  # noqa: PLC0415
    from workloads._stored import write_shard  # noqa: PLC0415

    chosen = find_network(network, image_size)
    count = parse_images(images)
    out.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        size = (shard + 1) * count // shards - shard * count // shards
        generator = torch.Generator().manual_seed(seed * shards + shard)
        write_shard(out / f"shard-{shard:05}.npz", sample(chosen, size, generator))
    typer.echo(f"{count} samples for {network} in {shards} files: {out}")


app = command(data, "Example:\n  python -m workloads.data lenet-data --images 8K")

if __name__ == "__main__":
    app(prog_name="python -m workloads.data")
