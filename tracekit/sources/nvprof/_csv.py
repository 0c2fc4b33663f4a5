"""Read the CSV that ``nvprof --print-gpu-trace --csv`` prints.

Lines ``==PID== ...`` name a process; a header, a row of units and the data rows follow. Columns,
their order and units are those of that header: nvprof chooses units by the values. A file has
several sections of this kind if several processes printed into it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath

import polars as pl

from tracekit.errors import DamagedTraceError, MissingDataError, UnsupportedTraceError
from tracekit.model import KIND, NO_KERNELS, Recording
from tracekit.sources._copies import COPY_KINDS, memsets
from tracekit.sources._identities import HOST, OPS, Identities, contents, report, small
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._seen import NO_CALLS, NO_RANGES, Seen, absences, counted, no_work
from tracekit.sources._times import Filter, Times
from tracekit.sources.nvprof._input import COPIES
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

FORMAT = "nvprof CSV"
_RECORD = "nvprof --print-gpu-trace --csv --log-file FILE PROGRAM (nvprof -o run.nvvp records more)"
_RECORD_MORE = "record with `nvprof -o run.nvvp`"
_TELLING = {"Start", "Duration", "Name"}
_API_TRACE = "an API trace of nvprof, without GPU work"
_HEAD_BYTES, _HEAD_LINES = 1 << 16, 50
_BLOCK_BYTES = 1 << 24
_NO_PROCESS = 0

_TIME_DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
_SIZES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
# Directions and kinds of memory by the numbers that CUPTI gives them.
_DIRECTIONS = {direction: code for code, (direction, _) in COPY_KINDS.items()}
_MEMORY = {
    "Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5, "Device Static": 6,
    "Managed Static": 7,
}  # fmt: skip

_PROCESS_LINE = re.compile(r"^==(\d{1,9})==(?: NVPROF is profiling process \d+, command: (\S+))?")
_COLUMNS = (
    "Start", "Duration", "Size", "SrcMemType", "DstMemType", "Device", "Context", "Stream",
    "Src Dev", "Dst Dev", "Name", "Correlation_ID",
)  # fmt: skip
_KEPT = (
    "start", "end", "pid", "device", "context", "stream", "correlation", "name", "short_name",
    "kind", "bytes", "copy_kind", "src_device", "dst_device",
)  # fmt: skip
_PRINT = "GPU trace"
_FEATURES = (
    ("kernels", _PRINT, "GPU time by stage and kernel", _RECORD),
    ("copies", _PRINT, "input data and peer copies", _RECORD),
    ("memsets", _PRINT, "GPU time of memsets", _RECORD),
    ("CUDA calls", _PRINT, "which thread launched an op, and when", "nvprof -o run.nvvp PROGRAM"),
    (
        "NVTX events",
        _PRINT,
        "stages, layers and iterations",
        "nvprof -o run.nvvp PROGRAM, with NVTX ranges in the program",
    ),
)
_LOST = {
    "foreign": "lines could not be read as rows of the trace and were left out",
    "untimed": "rows have no valid times and were left out",
    "unplaced": "rows name no GPU, as those of CUDA calls, and were left out",
    "others": "events of unified memory and the like were left out",
}


def is_csv(path: Path) -> bool:
    """Test whether a file begins like CSV that nvprof printed.

    Also true for prints that are not supported, such as summaries: see `read_csv`.
    """
    return any(
        (cells := _cells(line)) >= _TELLING
        or _is_summary(cells)
        or _is_banner(line)
        or _is_plain(line)
        for line in _head(path)
    )


def read_csv(path: Path, workspace: Workspace, progress: Progress = lambda *_: None) -> Recording:
    """Read nvprof's CSV of a GPU trace into tracekit's tables; ops get their stage only later.

    Times are exactly as printed, and count from the start of nvprof; the time of day is not
    printed, so ``session_start`` is null. nvprof prints sizes with few decimals in units of 1024 (a
    KB is 1024 bytes): bytes are ``round(value * unit)``, so above 1 MB they may be off by a few. A
    file of this kind has no CUDA calls and no NVTX ranges.

    Raises
    ------
    UnsupportedTraceError
        If it is another print of nvprof: an API trace, a summary, or one without ``--csv``; or if
        its sections have different columns.
    MissingDataError
        If it contains no GPU work.
    DamagedTraceError
        If it is cut short, or no units follow a header.
    """
    _check_kind(path)
    size = path.stat().st_size
    progress("read GPU work", 0, size)
    work = _Work(path)
    ops = Seen(work.batches(), workspace, *OPS)
    progress("read GPU work", size, size)
    if not len(ops):
        reason = no_work(work.lost["untimed"])
        raise MissingDataError(f"{reason} in {path} (CSV of nvprof)", f"record with {_RECORD}")
    calls, ranges = Seen((), workspace, *HOST), Seen((), workspace, *HOST)
    identities = Identities(ops, calls, ranges, origin=0)
    pids = ops.distinct["pid"].unique()
    return Recording(
        tables={
            "processes": identities.processes(work.programs),
            "threads": identities.threads(),
            # Processes may count their GPUs differently.
            "devices": identities.devices(work.gpus, "ordinal" if len(pids) == 1 else "assumed"),
            "reports": report(path, FORMAT),
            "contents": contents(_FEATURES, work.counts),
        },
        streams=identities.streams(),
        warnings=(
            *absences(
                len(ops), 0, _RECORD,
                (work.counts["kernels"], NO_KERNELS, f"record with `{_RECORD}`"),
                (False, NO_CALLS, _RECORD_MORE),
                (False, NO_RANGES, f"put NVTX ranges into the program and {_RECORD_MORE}"),
            ),
            *(("the process was not recorded; its id is set to 0",)
              if _NO_PROCESS in pids else ()),
            *work.remarks,
        ),
    )  # fmt: skip


def _head(path: Path) -> list[str]:
    """Return the first lines of a file; empty if it is not text."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return [] if b"\0" in head else head.decode("utf-8-sig", "replace").splitlines()[:_HEAD_LINES]


def _cells(line: str) -> set[str]:
    return set(_row(line))


def _row(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _is_summary(cells: set[str]) -> bool:
    return {"Time(%)", "Calls", "Name"} <= cells


def _is_plain(line: str) -> bool:
    """Test whether a line is a table header that nvprof prints without ``--csv``."""
    words = set(line.split())
    return "," not in line and (words >= _TELLING or _is_summary(words))


def _is_banner(line: str) -> bool:
    found = _PROCESS_LINE.match(line)
    return bool(found and found[2])


def _check_kind(path: Path) -> None:
    """Raise an error that tells why output of nvprof is not supported, such as a summary."""
    lines = _head(path)
    header = next((cells for line in lines if (cells := _cells(line)) >= _TELLING), None)
    if header is not None:
        if "Device" not in header:
            raise UnsupportedTraceError(f"{path} is {_API_TRACE}", f"record with {_RECORD}")
        return
    plain = next((set(line.split()) for line in lines if _is_plain(line)), set[str]())
    if any(_is_summary(_cells(line)) for line in lines) or _is_summary(plain):
        kind = "a summary of nvprof, without the times of single ops"
    elif "Device" in plain:
        kind = "a GPU trace that nvprof printed as text, with times rounded and names cut"
    elif plain:
        kind = _API_TRACE
    elif any("No kernels were profiled" in line for line in lines):
        raise MissingDataError(f"no GPU work in {path} (print of nvprof)", f"record with {_RECORD}")
    else:
        kind = "a print of nvprof, but no CSV of a GPU trace"
    raise UnsupportedTraceError(f"{path} is {kind}", f"record with {_RECORD}")


class _Work:
    """GPU work in a CSV file of nvprof, read section by section (one per process)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = self._section_pid = _NO_PROCESS
        self._header: list[str] = []
        self._units: dict[str, str] | None = None
        self._sections = 0
        self.lost: Counter[str] = Counter()
        """Reason -> number of ops that were left out, or lack an attribute."""
        self._coarse = self._rounded = False
        self._times: Filter | None = None
        self._names = KernelNames()
        self.programs: dict[int, str | None] = {}
        """Process id -> name of its executable."""
        self.counts = dict.fromkeys(("kernels", "copies", "memsets"), 0)
        """Feature -> number of ops."""
        self.gpus = pl.DataFrame(schema={"device": pl.Int32, "name": pl.String})
        """GPUs named in cells."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings on rows that were left out, and on the precision of printed times and sizes."""
        notes = (
            (self._rounded, "sizes of copies and memsets are rounded, as nvprof printed them"),
            (self._coarse, "times in seconds are rounded, usually to microseconds, as printed"),
            (self._sections > 1, (f"the file has {self._sections} sections, each of which may "
             "count its times from its own start")),
        )  # fmt: skip
        return (*counted(self.lost, _LOST), *(note for there, note in notes if there))

    def batches(self) -> Iterator[pl.DataFrame]:
        """Yield the ops (kernels, copies, memsets) in the order of the file.

        Raises
        ------
        DamagedTraceError, UnsupportedTraceError
            As for `read_csv`.
        """
        for lines, is_complete in _blocks(self._path):
            yield from self._split(lines)
            if not is_complete and not self._ends_well(lines[-1]):
                raise DamagedTraceError(
                    f"{self._path} is cut short: its last line is incomplete",
                    "copy or record it again",
                )
        if self._units is None:
            raise self._no_units()

    def _ends_well(self, line: str) -> bool:
        return line.startswith("==") or bool(_whole_rows(pl.Series([line]), len(self._header))[0])

    def _split(self, lines: pl.Series) -> Iterator[pl.DataFrame]:
        """Take process ids and headers from `lines`; yield the data rows between them."""
        words = pl.lit(lines).str.contains("Start", literal=True) & pl.lit(lines).str.contains(
            "Duration", literal=True
        )
        marks = pl.select(pl.lit(lines).str.starts_with("==") | words).to_series().arg_true()
        begin = 0
        for at in marks:
            if match := _PROCESS_LINE.match(lines[at]):
                self._pid = int(match[1])
                if match[2]:
                    self.programs[self._pid] = PurePath(match[2]).name or None
            elif set(header := _row(lines[at])) >= _TELLING:
                yield from self._rows(lines[begin:at])
                self._open(header)
                begin = at + 1
        yield from self._rows(lines[begin:])

    def _open(self, header: list[str]) -> None:
        if self._sections and self._units is None:
            raise self._no_units()
        if self._header not in ([], header):
            raise UnsupportedTraceError(
                f"{self._path} has sections with different columns",
                "split it before each header, and read the part that is a GPU trace",
            )
        self._header, self._units = header, None
        self._section_pid = self._pid
        self._sections += 1

    def _rows(self, lines: pl.Series) -> Iterator[pl.DataFrame]:
        """Yield the rows of the current section; its first line has the units of the columns."""
        is_comment = lines.str.starts_with("==") | (lines.str.strip_chars() == "")
        lines = lines.filter(~is_comment)
        if not self._header:
            self.lost["foreign"] += len(lines)
            return
        if self._units is None and len(lines):
            self._units = self._read_units(lines[0])
            lines = lines[1:]
        rows = lines.filter(_whole_rows(lines, len(self._header)))
        self.lost["foreign"] += len(lines) - len(rows)
        if len(rows):
            yield self._ops(_table(rows, self._header, self._path))

    def _read_units(self, line: str) -> dict[str, str]:
        units = dict(zip(reversed(self._header), reversed(_row(line)), strict=False))
        if any(units.get(name) not in _TIME_DIGITS for name in ("Start", "Duration")):
            raise self._no_units()
        self._coarse |= "s" in (units["Start"], units["Duration"])
        return units

    def _no_units(self) -> DamagedTraceError:
        return DamagedTraceError(
            f"{self._path} is damaged: no row of units of time (s, ms, us, ns) follows a header",
            "copy or record it again",
        )

    def _ops(self, rows: pl.DataFrame) -> pl.DataFrame:
        units = self._units or {}
        ops = rows.select(
            start=printed_times(rows["Start"], _TIME_DIGITS[units["Start"]]),
            duration=printed_times(rows["Duration"], _TIME_DIGITS[units["Duration"]]),
            bytes=printed_bytes(_SIZES.get(units.get("Size", ""))),
            pid=pl.lit(self._section_pid, pl.Int64),
            device=_gpu("Device"),
            src_device=_gpu("Src Dev"),
            dst_device=_gpu("Dst Dev"),
            context=small(_integer("Context")).cast(pl.Int32),
            stream=_integer("Stream"),
            correlation=pl.coalesce(
                _integer("Correlation_ID"), pl.col("Name").str.extract(_BRACKET).cast(pl.Int64)
            ),
            name=pl.col("Name").str.replace(_BRACKET, ""),
            direction=pl.col("Name").str.extract(r"^\[CUDA memcpy (\w+)"),
            srcKind=_by_word("SrcMemType", _MEMORY),
            dstKind=_by_word("DstMemType", _MEMORY),
        ).with_columns(end=pl.col("start") + pl.col("duration"))
        kept = self._kept(ops)
        self._know_gpus(rows)
        made = [self._copies(kept), self._memsets(kept), self._kernels(kept)]
        self._rounded |= units.get("Size") != "B" and any(
            each["bytes"].count() for each in made[:2]
        )
        return pl.concat([each.select(_KEPT) for each in made])

    def _kept(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Drop and count rows without times, GPU or name, and rows that are no GPU work."""
        timed = self._within(ops.drop_nulls("end"))
        placed = timed.drop_nulls(["device", "name"])
        work = placed.filter(
            ~pl.col("name").str.starts_with("[") | pl.col("name").str.starts_with("[CUDA mem")
        )
        self.lost["untimed"] += ops.height - timed.height
        self.lost["unplaced"] += timed.height - placed.height
        self.lost["others"] += placed.height - work.height
        return work

    def _within(self, ops: pl.DataFrame) -> pl.DataFrame:
        if self._times is None and ops.height:
            self._times = Times(self._path, ops["start"].to_list()).within("GPU ops")
        return self._times(ops) if self._times else ops

    def _know_gpus(self, rows: pl.DataFrame) -> None:
        cells = pl.concat([rows[name].alias("cell") for name in ("Device", "Src Dev", "Dst Dev")])
        named = cells.unique().to_frame().select(
            device=_gpu("cell"), name=pl.col("cell").str.extract(_GPU, 1)
        )  # fmt: skip
        known = pl.concat([self.gpus, named.drop_nulls().sort("device", "name")])
        self.gpus = known.unique("device", keep="first", maintain_order=True)

    def _copies(self, ops: pl.DataFrame) -> pl.DataFrame:
        copies = ops.drop_nulls("direction").drop("name")
        self.counts["copies"] += copies.height
        coded = copies.with_columns(copyKind=_by_word("direction", _DIRECTIONS))
        return COPIES.ended(COPIES.directed(coded))

    def _memsets(self, ops: pl.DataFrame) -> pl.DataFrame:
        found = ops.filter(pl.col("name").str.starts_with("[CUDA memset"))
        self.counts["memsets"] += found.height
        return memsets(found).with_columns(copy_kind=pl.lit(None, pl.String))

    def _kernels(self, ops: pl.DataFrame) -> pl.DataFrame:
        kernels = ops.filter(~pl.col("name").str.starts_with("["))
        self.counts["kernels"] += kernels.height
        none = pl.lit(None, pl.Int32)
        return kernels.with_columns(
            *self._names.of(kernels["name"]),
            kind=pl.lit("compute", KIND),
            bytes=pl.lit(None, pl.Int64),
            copy_kind=pl.lit(None, pl.String),
            src_device=none,
            dst_device=none,
        )


def _blocks(path: Path) -> Iterator[tuple[pl.Series, bool]]:
    """Yield the lines of a file in blocks, and whether the last line is complete."""
    encoding = "utf-8-sig"
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            text = (block + file.readline()).decode(encoding, "replace")
            lines = pl.Series([text.removesuffix("\n")]).str.split("\n").explode()
            yield lines.str.strip_chars_end("\r"), text.endswith("\n")
            encoding = "utf-8"


def _whole_rows(lines: pl.Series, columns: int) -> pl.Series:
    """Test for each line whether it is complete: one cell per column, and all quotes closed."""
    bare = lines.str.replace_all('"[^"]*"', "")
    return (bare.str.count_matches(",", literal=True) == columns - 1) & ~bare.str.contains(
        '"', literal=True
    )


def _table(lines: pl.Series, header: list[str], path: Path) -> pl.DataFrame:
    """Split complete CSV rows into texts by column; columns absent from `header` are null."""
    places = {name: header.index(name) for name in _COLUMNS if name in header}
    try:
        cells = pl.read_csv(
            io.BytesIO("\n".join(lines).encode()),
            has_header=False,
            schema={f"{place}": pl.String for place in range(len(header))},
            truncate_ragged_lines=True,  # a quote inside a cell without quotes
        )
    except pl.exceptions.PolarsError as error:
        raise DamagedTraceError(
            f"{path} is damaged: its rows are not CSV ({error})", "copy or record it again"
        ) from error
    none = pl.lit(None, pl.String)
    return cells.select(
        (pl.col(f"{places[name]}") if name in places else none).alias(name) for name in _COLUMNS
    )


_BRACKET = r" \[(\d{1,18})\]$"
_GPU = r"^(.*\S)? *\((\d{1,9})\)$"


def _gpu(column: str) -> pl.Expr:
    """Return the index of the GPU in a cell such as ``Tesla V100-SXM2-16GB (3)``."""
    return pl.col(column).str.extract(_GPU, 2).cast(pl.Int32)


def _integer(column: str) -> pl.Expr:
    return pl.col(column).str.extract(r"^(\d{1,18})$").cast(pl.Int64)


def _by_word(column: str, words: dict[str, int]) -> pl.Expr:
    return pl.col(column).replace_strict(words, default=0, return_dtype=pl.Int64)


# -- numbers as nvprof prints them, parsed exactly


_DECIMAL = r"^\d{1,15}(\.\d*)?$"
_EXPONENT = r"^(\d)(?:\.(\d{0,15}))?[eE]([+-]?\d{1,2})$"
"""Pattern for the notation in which nvprof prints very small and very large numbers."""
_MOST = 1 << 61
_MOST_DIGITS = 18
_ZEROS = 100


def printed_times(texts: pl.Series, digits: int) -> pl.Expr:
    """Convert printed times in units of ``10**digits`` ns to ns, with or without an exponent."""
    plain = _nanoseconds(texts.name, digits)
    if not texts.str.contains("[eE]").any():
        return plain
    return pl.coalesce(plain, _of_exponent(pl.col(texts.name), digits))


def _nanoseconds(column: str, digits: int) -> pl.Expr:
    """Convert decimals, in units of ``10**digits`` ns, to ns; null if invalid.

    The digits of the text are used, since floating point numbers would round them.
    """
    text = pl.col(column)
    parts = pl.when(text.str.contains(_DECIMAL)).then(text).str.splitn(".", 2).struct
    integer = parts.field("field_0").cast(pl.Int64)
    shown = parts.field("field_1").fill_null("").str.pad_end(digits + 1, "0")
    part = (shown.str.slice(0, digits + 1).cast(pl.Int64) + 5) // 10
    scale = int(10**digits)
    return pl.when(integer <= _MOST // scale).then(integer) * scale + part


def _of_exponent(text: pl.Expr, digits: int) -> pl.Expr:
    """Convert decimals such as ``2.048000e-03``, in units of ``10**digits`` ns, to ns.

    The decimal point is moved among the digits, padded with zeros, and the next digit rounds.
    """
    parts = text.str.extract_groups(_EXPONENT).struct
    places = parts.field("3").str.strip_prefix("+").cast(pl.Int64) + 1 + digits
    zeros = pl.lit("0" * _ZEROS)
    fraction = parts.field("2").fill_null("")
    shown = pl.concat_str([zeros, parts.field("1"), fraction, zeros])
    fits = places.is_between(1 - _ZEROS, _MOST_DIGITS)
    integer = pl.when(fits).then(shown.str.slice(0, places + _ZEROS)).cast(pl.Int64, strict=False)
    following = shown.str.slice(places + _ZEROS, 1).cast(pl.Int64, strict=False)
    return integer + (following >= 5).cast(pl.Int64)  # noqa: PLR2004


def printed_bytes(unit: int | None) -> pl.Expr:
    """Return printed sizes, in units of `unit` bytes, as bytes; nvprof prints rounded values."""
    text = pl.col("Size")
    if unit is None:
        return pl.lit(None, pl.Int64)
    is_number = text.str.contains(_DECIMAL) | text.str.contains(_EXPONENT)
    size = pl.when(is_number).then(text).cast(pl.Float64) * unit
    return pl.when(size < _MOST).then(size).round().cast(pl.Int64)
