"""Decode CUPTI's codes for memory copies (kind, source and target GPU); name memsets and graphs."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.model import HOST_MEMORY, KIND, is_migration

COPY_KINDS = {
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
    11: ("Unified HtoD", "h2d"),
    12: ("Unified DtoH", "d2h"),
    13: ("Unified DtoD", "d2d"),
}
"""Code of a copy kind -> recorded direction, and kind; the same in all versions. Those of unified
memory are nsys's own."""
DIRECTION = pl.Enum([direction for direction, _ in COPY_KINDS.values()])
"""Type of directions: small codes, as most ops have none."""


@dataclass(frozen=True)
class Copies:
    """Decoder of memory copies, for recorders that write CUPTI's codes."""

    host_memory: tuple[int, ...]
    device_memory: tuple[int, ...]
    managed_memory: tuple[int, ...] = ()
    """Codes of memory on the host (pageable, pinned), memory on a GPU, and managed memory."""
    here: str = "device"
    source: str = "src_device"
    target: str = "dst_device"
    """Names of the columns with the GPU that ran a copy, its source GPU and its target GPU; the
    last two are null where the copy does not name them."""

    def directed(self, copies: pl.DataFrame) -> pl.DataFrame:
        """Decode the codes ``copyKind, srcKind, dstKind`` of copies.

        Returns
        -------
        The copies with ``copy_kind`` (direction such as HtoD), ``kind`` (such as h2d) and
        ``host_memory`` (pageable, pinned, managed) added.
        """
        known = copies.with_columns(copy_kind=_by_code(0), kind=self._by_memory(_by_code(1)))
        return known.with_columns(host_memory=self._of_host())

    def _of_host(self) -> pl.Expr:
        """Return the type of a copy's host memory, such as pinned; null without host memory."""
        names = dict(zip(self.host_memory, HOST_MEMORY.categories, strict=False)) | dict.fromkeys(
            self.managed_memory, "managed"
        )
        side = pl.when(pl.col("kind") == "h2d").then("srcKind").when(pl.col("kind") == "d2h").then(
            "dstKind"
        )  # fmt: skip
        memory = side.replace_strict(names, default=None, return_dtype=HOST_MEMORY)
        return pl.when(is_migration()).then(pl.lit("managed", HOST_MEMORY)).otherwise(memory)

    def ended(self, copies: pl.DataFrame) -> pl.DataFrame:
        """Fill in the source and target GPU of copies where missing; correct the kind; add names.

        A copy from GPU to GPU through host memory is recorded as a DtoH and an HtoD copy, both with
        GPU memory as source and target. The kind of such copies becomes ``staged``.

        Returns
        -------
        The copies with ``name, short_name`` added.
        """
        copies = copies.with_columns(self._ends())
        between = (pl.col("kind") == "d2d") & (pl.col(self.source) != pl.col(self.target))
        on_gpus = pl.all_horizontal(pl.col("srcKind", "dstKind").is_in(self.device_memory))
        halves = pl.col("copy_kind").is_in(("HtoD", "DtoH")) & on_gpus
        kind = (
            pl.when(between).then(pl.lit("p2p"))
            .when(halves).then(pl.lit("staged"))
            .otherwise("kind")
        )  # fmt: skip
        name = pl.format("[CUDA memcpy {}]", "copy_kind").cast(pl.Categorical())
        return copies.with_columns(kind=kind.cast(KIND), name=name, short_name=name)

    def _by_memory(self, kind: pl.Expr) -> pl.Expr:
        """Return the kind (such as h2d) of copies: `kind`, or if that is unknown, from the memory.

        The memory types at both ends decide: host to GPU memory is h2d.
        """
        from_host, to_host = (pl.col(end).is_in(self.host_memory) for end in _MEMORY)
        from_gpu, to_gpu = (pl.col(end).is_in(self.device_memory) for end in _MEMORY)
        return (
            pl.when(kind != "unknown").then(kind)
            .when(from_host & to_gpu).then(pl.lit("h2d"))
            .when(from_gpu & to_host).then(pl.lit("d2h"))
            .when(from_gpu & to_gpu).then(pl.lit("d2d"))
            .when(from_host & to_host).then(pl.lit("h2h"))
            .otherwise(kind)
        )  # fmt: skip

    def _ends(self) -> list[pl.Expr]:
        """Return expressions for the source and the target GPU of copies.

        If a copy names no GPU for an end in GPU memory, it is the GPU that ran the copy (for copies
        between GPUs: null).
        """
        kind, source, target = pl.col("kind"), pl.col(self.source), pl.col(self.target)
        return [
            pl.when(kind == "p2p").then(source)
            .when(kind.is_in(("d2h", "d2d"))).then(pl.coalesce(source, self.here))
            .alias(self.source),
            pl.when(kind == "p2p").then(target)
            .when(kind.is_in(("h2d", "d2d"))).then(pl.coalesce(target, self.here))
            .alias(self.target),
        ]  # fmt: skip


def memsets(ops: pl.DataFrame, target: str = "dst_device", here: str = "device") -> pl.DataFrame:
    """Add kind and names to memsets, and the column `target`: a copy of the column `here`."""
    return _titled(ops, "memset", pl.lit("[CUDA memset]")).with_columns(pl.col(here).alias(target))


def graphs(ops: pl.DataFrame) -> pl.DataFrame:
    """Add kind and names to launches of whole CUDA graphs, which are named by ``graphId``."""
    return _titled(ops, "graph", pl.format("[CUDA graph {}]", pl.col("graphId").fill_null(0)))


def _titled(ops: pl.DataFrame, kind: str, name: pl.Expr) -> pl.DataFrame:
    name = name.cast(pl.Categorical())
    return ops.with_columns(kind=pl.lit(kind, KIND), name=name, short_name=name)


_MEMORY = ("srcKind", "dstKind")


def _by_code(part: int) -> pl.Expr:
    """Decode ``copyKind``: `part` 0 gives a direction such as HtoD, `part` 1 a kind such as h2d."""
    return pl.col("copyKind").replace_strict(
        list(COPY_KINDS),
        [row[part] for row in COPY_KINDS.values()],
        default=COPY_KINDS[0][part],
        return_dtype=pl.String,
    )
