"""What a copy does, and between which GPUs, of the codes that CUPTI and nsys record alike."""

from __future__ import annotations

import polars as pl

from tracekit.model import KIND

# What a kind of copy means in every version of CUPTI and nsys: the direction as recorded, the kind.
_COPY_KINDS = {
    0: ("Unknown", "unknown"),
    1: ("HtoD", "h2d"),
    2: ("DtoH", "d2h"),
    3: ("HtoA", "h2d"),
    4: ("AtoH", "d2h"),
    5: ("AtoA", "d2d"),
    6: ("AtoD", "d2d"),
    7: ("DtoA", "d2d"),
    8: ("DtoD", "d2d"),
    9: ("HtoH", "h2h"),
    10: ("PtoP", "p2p"),
}


def classified(
    copies: pl.DataFrame, *, host_memory: tuple[int, ...], device_memory: tuple[int, ...]
) -> pl.DataFrame:
    """Add to copies what they do, between which GPUs, and how that is called.

    Parameters
    ----------
    copies
        ``copyKind, srcKind, dstKind`` as recorded; ``device``, the GPU that ran the copy; and
        ``src_device, dst_device``, the GPUs at its ends where the copy names them, else null.
    host_memory, device_memory
        The kinds of memory that lie on the host, and on a GPU (managed memory may be on either).

    Returns
    -------
    The copies with ``copy_kind, kind, name, short_name``, and with ``src_device, dst_device``
    filled in. A copy that the driver makes from GPU to GPU through host memory is recorded as two,
    to the host and from it, with device memory at both ends of each: its kind is ``staged``.
    """
    copies = copies.with_columns(
        copy_kind=_by_code(0), kind=_by_memory(_by_code(1), host_memory, device_memory)
    ).with_columns(_ends())
    between = (pl.col("kind") == "d2d") & (pl.col("src_device") != pl.col("dst_device"))
    on_gpus = pl.all_horizontal(pl.col("srcKind", "dstKind").is_in(device_memory))
    halves = pl.col("copy_kind").is_in(("HtoD", "DtoH")) & on_gpus
    kind = (
        pl.when(between).then(pl.lit("p2p")).when(halves).then(pl.lit("staged")).otherwise("kind")
    )
    name = pl.format("[CUDA memcpy {}]", "copy_kind").cast(pl.Categorical())
    return copies.with_columns(kind=kind.cast(KIND), name=name, short_name=name)


def _by_code(part: int) -> pl.Expr:
    return pl.col("copyKind").replace_strict(
        list(_COPY_KINDS),
        [row[part] for row in _COPY_KINDS.values()],
        default=_COPY_KINDS[0][part],
        return_dtype=pl.String,
    )


def _by_memory(kind: pl.Expr, host: tuple[int, ...], gpu: tuple[int, ...]) -> pl.Expr:
    """Take the kind of a copy of unknown direction from the kinds of memory at its ends."""
    source, target = pl.col("srcKind"), pl.col("dstKind")
    return (
        pl.when(kind != "unknown").then(kind)
        .when(source.is_in(host) & target.is_in(gpu)).then(pl.lit("h2d"))
        .when(source.is_in(gpu) & target.is_in(host)).then(pl.lit("d2h"))
        .when(source.is_in(gpu) & target.is_in(gpu)).then(pl.lit("d2d"))
        .when(source.is_in(host) & target.is_in(host)).then(pl.lit("h2h"))
        .otherwise(kind)
    )  # fmt: skip


def _ends() -> list[pl.Expr]:
    """Fill in the GPU at the ends of a copy that names none: it is the one that ran the copy."""
    kind, here = pl.col("kind"), pl.col("device")
    return [
        pl.when(kind == "p2p").then("src_device")
        .when(kind.is_in(("d2h", "d2d"))).then(pl.coalesce("src_device", here))
        .alias("src_device"),
        pl.when(kind == "p2p").then("dst_device")
        .when(kind.is_in(("h2d", "d2d"))).then(pl.coalesce("dst_device", here))
        .alias("dst_device"),
    ]  # fmt: skip
