"""Extended payloads of NVTX events: bytes behind a header, decoded by their declared layout."""

from __future__ import annotations

import polars as pl

from tracekit.sources._tables import ExportFile
from tracekit.sources.nsys._payload_layouts import BYTES, Layout, Type, read_layouts

_HEADER_BYTES = 32


class Payloads:
    """Decodes payloads, and counts what it cannot decode.

    Parameters
    ----------
    file
        The export.
    """

    def __init__(self, file: ExportFile) -> None:
        self._layouts = read_layouts(file)
        self._keys = pl.DataFrame(
            list(self._layouts), schema={"domain": pl.Int64, "schema": pl.Int64}, orient="row"
        )
        self._unclear = 0
        self._lost = 0
        self._partial = 0

    @property
    def losses(self) -> tuple[str, ...]:
        """Payloads that were not decoded, in words."""
        losses = (
            (self._unclear, "were left out: the export declares their layout in several ways"),
            (self._lost, "were left out: they are damaged, or their layout is not declared"),
            (self._partial, "have fields of an unknown type, which were left out"),
        )
        return tuple(f"{count:,} NVTX payloads {what}" for count, what in losses if count)

    def of(self, blobs: pl.Series) -> pl.Series:
        """Return each payload as JSON, null where there is none or it cannot be decoded."""
        rows = pl.DataFrame({"blob": blobs}).with_row_index("row")
        given = rows.drop_nulls()
        declared = _with_header(given).join(self._keys, on=["domain", "schema"], how="semi")
        parts = [pl.DataFrame(schema={"row": pl.UInt32, "json": pl.String})]
        unclear = 0
        for key, part in declared.partition_by("domain", "schema", as_dict=True).items():
            domain, schema = key
            layout = self._layouts[int(domain), int(schema)]
            if layout is None:
                unclear += part.height
            else:
                parts.append(self._decoded(part, layout))
        decoded = pl.concat(parts)
        self._unclear += unclear
        self._lost += given.height - unclear - decoded.height
        return rows.join(decoded, on="row", how="left", maintain_order="left")["json"]

    def _decoded(self, rows: pl.DataFrame, layout: Layout) -> pl.DataFrame:
        whole = rows.filter(layout.fits(pl.col("size")))
        self._partial += whole.height if layout.is_partial else 0
        return whole.select("row", json=layout.json(pl.col("blob").bin.slice(_HEADER_BYTES)))


def _with_header(rows: pl.DataFrame) -> pl.DataFrame:
    """Read the headers; a payload that is longer or shorter than its header says is left out."""
    headed = rows.with_columns(
        domain=_number(0, pl.UInt32),
        schema=_number(8, pl.UInt32),
        size=_number(16, pl.UInt64),
        total=_number(24, pl.UInt64),
    )
    length = pl.col("blob").bin.size().cast(pl.Int64)
    return headed.filter(pl.col("total") == length, pl.col("size") == length - _HEADER_BYTES).drop(
        "total"
    )


def _number(offset: int, dtype: Type) -> pl.Expr:
    stored = pl.col("blob").bin.slice(offset, BYTES[dtype])
    return stored.bin.reinterpret(dtype=dtype, endianness="little").cast(pl.Int64, strict=False)
