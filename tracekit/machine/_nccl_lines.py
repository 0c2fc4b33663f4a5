"""Parse the lines of an NCCL_DEBUG=INFO log that are of use into columns.

Every line of NCCL begins with ``host:pid:tid [device] NCCL INFO``; launchers may put anything
before it, and lines of ranks interleave with each other and with the program's own output. The
patterns below are for kinds of lines of NCCL 2.4 to 2.28 (and RCCL, which kept the format). No
pattern can backtrack, and every number in one is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit.errors import InputError

BLOCK_BYTES = 32 << 20
"""Bytes of a file that are read at once."""

WHOLE_LINE = 1000
"""Characters from which on a line may be incomplete: NCCL cuts lines at 1,024."""

_PREFIX = (
    r"(?P<full>(?P<host>[^\s:\]]+):(?P<pid>\d{1,9}):(?P<tid>\d{1,9}) \[(?P<device>-?\d{1,9})\] "
    r"NCCL INFO (?P<message>.*))"
)
_ANSI = r"\x1b\[[0-9;]*[A-Za-z]"
_VERSION = r"[NR]CCL version[ :]+(\d[\w.+\-]*)"


@dataclass(frozen=True)
class _Kind:
    """A kind of log line: a text it contains, its pattern, and which groups are integers."""

    having: str
    pattern: str
    always: str
    """A group of the pattern that is never empty in a match."""
    numbers: tuple[str, ...] = ()


_KINDS: Mapping[str, _Kind] = {
    # "- Init" has no blank before it in the lines of communicators that were split off (2.22).
    "inits": _Kind(
        "- Init ",
        r"comm (?P<pointer>0x[0-9a-fA-F]{1,16}) rank (?P<rank>\d{1,9}) n[rR]anks (?P<ranks>\d{1,9})"
        r" cudaDev (?P<cuda_device>\d{1,9})(?: nvmlDev (?P<nvml_device>-?\d{1,9}))?"
        r"(?: busId (?P<bus>[0-9a-fA-F]{1,12}))?(?: parent (?P<parent>0x[0-9a-fA-F]{1,16}))?"
        r"(?: splitCount (?P<splits>\d{1,9}))?(?: color (?P<color>-?\d{1,10}))?"
        r"(?: key -?\d{1,10})?(?: commId 0x(?P<id>[0-9a-fA-F]{1,16}))?.*- Init "
        r"(?P<stage>START|COMPLETE)",
        "rank",
        ("rank", "ranks", "cuda_device", "nvml_device"),
    ),
    "orders": _Kind(
        "Channel ",
        r"^Channel (?P<channel>\d{1,4})(?:/(?P<total>\d{1,4}))? : *(?P<order>\d[\d ]*)"
        r"(?P<dots>\.\.\.)?\s*$",
        "channel",
        ("channel", "total"),
    ),
    "connections": _Kind(
        " via ",
        r"^(?:Ring|Channel) (?P<channel>\d{1,4})(?:/(?P<index>\d{1,4}))? : "
        r"(?P<from_rank>\d{1,9})(?:\[(?P<from_device>\w{1,12})\])? -> "
        r"(?P<to_rank>\d{1,9})(?:\[(?P<to_device>\w{1,12})\])?"
        r"(?: \[(?P<side>send|receive)\])? +via (?P<transport>\S.*)$",
        "channel",
        ("channel", "index", "from_rank", "to_rank"),
    ),
    "collnet": _Kind(
        "] via COLLNET",
        r"^Coll(?:Net)? (?P<channel>\d{1,4})(?:/(?P<index>\d{1,4}))? : (?P<rank>\d{1,9})"
        r"(?:\[\w{1,12}\])? \[(?P<side>send|receive)\] +via (?P<transport>\S.*)$",
        "channel",
        ("channel", "index", "rank"),
    ),
    "neighbours": _Kind(
        "Ring ",
        r"^Ring (?P<channel>\d{1,4}) : (?P<before>\d{1,9}) -> (?P<rank>\d{1,9}) -> "
        r"(?P<after>\d{1,9})(?:$| comm )",
        "channel",
        ("channel", "before", "rank", "after"),
    ),
    "branches": _Kind(
        "Tree ",
        r"^Tree (?P<channel>\d{1,4}) : (?P<parent>-?\d{1,9}) -> (?P<rank>\d{1,9}) -> -?\d",
        "channel",
        ("channel", "parent", "rank"),
    ),
    "trees": _Kind("Trees ", r"^Trees (?P<elements>\[.*)$", "elements"),
    "connected": _Kind("Connected ", r"^Connected (?P<what>\w[\w +]*)", "what"),
    "totals": _Kind(
        "coll channels",
        r"(?:^|, )(?P<total>\d{1,4}) coll channels(?:, \d{1,4} collnet channels)?"
        r"(?:, (?P<nvls>\d{1,4}) nvls channels)?",
        "total",
        ("total", "nvls"),
    ),
    "tunings": _Kind(
        " Bytes -> ",
        r"^(?:(?P<name>\w+)(?: \[Symmetric\])?: *)?(?P<bytes>\d{1,18}) Bytes -> "
        r"(?:Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)|Kernel (?P<kernel>\w+) nchannels "
        r"(?P<wide>\d{1,4}))(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,4})\.\.(?P<high>\d{1,4})\})?"
        r"(?:.* comm (?P<pointer>0x[0-9a-fA-F]{1,16}))?",
        "bytes",
        ("bytes", "wide", "low", "high"),
    ),
    # Several NICs that are one to NCCL stand in braces: a number is then not that of one NIC.
    "nics": _Kind(
        " : Using [", r"^NET/(?P<network>\w{1,20}) : Using (?P<devices>\[[^{]*)$", "devices"
    ),
    "calls": _Kind(
        ": opCount ",
        r"^(?P<name>\w+): opCount (?P<op_count>[0-9a-fA-F]{1,15}) sendbuff \S+ recvbuff \S+ "
        r"(?:acc \S+ )?count (?P<count>\d{1,18}) datatype (?P<datatype>\d{1,4}) op -?\d+ "
        r"root (?P<root>-?\d{1,9}) comm (?P<pointer>0x[0-9a-fA-F]{1,16}) "
        r"\[nranks=(?P<ranks>\d{1,9})\]",
        "count",
        ("count", "datatype", "root", "ranks"),
    ),
}
_WRITER = ("line", "host", "pid", "tid", "device")


@dataclass(frozen=True)
class Lines:
    """Lines of all log files of NCCL, one table per kind of line.

    Every table begins with ``line`` (a running number over all files), ``host``, ``pid``, ``tid``
    and ``device`` (the CUDA device of the thread that wrote the line).
    """

    tables: dict[str, pl.DataFrame]
    versions: tuple[str, ...]
    without: tuple[Path, ...]
    """Files without a line of NCCL."""
    writers: pl.DataFrame
    """``host, pid`` of all processes with a line of any kind."""

    def __getitem__(self, kind: str) -> pl.DataFrame:
        return self.tables[kind]


def read_lines(files: list[Path]) -> Lines:
    """Read the lines of NCCL in log files into tables, one per kind of line.

    Raises
    ------
    InputError
        If a file cannot be read, or none of them has a line of NCCL's.
    """
    parts: list[dict[str, pl.DataFrame]] = []
    versions: dict[str, None] = {}
    writers = [pl.DataFrame(schema={"host": pl.String, "pid": pl.Int64})]
    without, first = [], 0
    for file in files:
        found = 0
        for text in _blocks(file):
            lines = _numbered(text, first)
            first += text.count("\n") + 1
            versions.update(dict.fromkeys(lines["text"].str.extract(_VERSION).drop_nulls()))
            written = _written(lines)
            found += written.height
            writers.append(written.select("host", "pid").unique())
            parts.append({kind: _table(written, each) for kind, each in _KINDS.items()})
        if not found:
            without.append(file)
    if len(without) == len(files):
        raise InputError(
            f"no NCCL INFO lines in {', '.join(map(str, files))}",
            "set NCCL_DEBUG=INFO (and NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,COLL)",
        )
    tables = {kind: pl.concat([part[kind] for part in parts]) for kind in _KINDS}
    wrote = pl.concat(writers).unique(maintain_order=True)
    return Lines(tables, tuple(versions), tuple(without), wrote)


def _blocks(file: Path) -> Iterator[str]:
    """Yield a file's text in blocks of complete lines; bytes that are not UTF-8 are replaced."""
    try:
        with file.open("rb") as stream:
            rest = b""
            while block := stream.read(BLOCK_BYTES):
                complete, newline, after = block.rpartition(b"\n")
                if newline:
                    yield (rest + complete).decode(errors="replace")
                    rest = after
                else:  # A line longer than a block is nothing of NCCL's.
                    rest = block[:WHOLE_LINE]
            if rest:
                yield rest.decode(errors="replace")
    except FileNotFoundError as error:
        raise InputError(f"no file {file}", "check the path") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read", error.strerror) from error


def _numbered(text: str, first: int) -> pl.DataFrame:
    """Return ``line, text`` of the lines that may be of a known kind, numbered from `first`."""
    every = pl.Series("text", [text], dtype=pl.String).str.split("\n").explode()
    lines = every.to_frame().with_row_index("line", offset=0)
    return lines.select(pl.col("line").cast(pl.Int64) + first, "text").filter(
        pl.col("text").str.contains("NCCL INFO", literal=True)
        | pl.col("text").str.contains("CCL version", literal=True)
    )


def _written(lines: pl.DataFrame) -> pl.DataFrame:
    """Split log lines into ``host, pid, tid, device`` of the writer, ``message``, and ``whole``.

    ``whole``: the line is not cut at NCCL's limit.
    """
    plain = pl.col("text").str.replace_all(_ANSI, "").str.strip_chars_end()
    return (
        lines.select("line", plain.str.extract_groups(_PREFIX).alias("groups"))
        .unnest("groups")
        .drop_nulls("message")
        .select(
            "line",
            "host",
            pl.col("pid", "tid", "device").cast(pl.Int64),
            "message",
            whole=pl.col("full").str.len_chars() < WHOLE_LINE,
        )
    )


def _table(written: pl.DataFrame, kind: _Kind) -> pl.DataFrame:
    """Return the lines of one kind as a table, one column for each group of its pattern."""
    groups = pl.col("message").str.extract_groups(kind.pattern).alias("groups")
    return (
        written.filter(pl.col("message").str.contains(kind.having, literal=True))
        .select(*_WRITER, "whole", groups)
        .unnest("groups")
        .filter(pl.col(kind.always).is_not_null())
        .with_columns(pl.col(kind.numbers).cast(pl.Int64, strict=False))
    )
