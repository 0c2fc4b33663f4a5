"""Recognise the format of a trace file, and read it with the reader of that format.

Files that are no traces but often lie beside them are recognised by their first bytes, so that the
error can tell which file to give instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracekit.errors import (
    DamagedTraceError,
    InputError,
    NotATraceError,
    UnsupportedTraceError,
    UsageError,
)
from tracekit.model import Recording, Trace
from tracekit.sources import kineto
from tracekit.sources._formats import FORMATS, Opening
from tracekit.sources.columnar import table_files
from tracekit.sources.kineto._document import head_of
from tracekit.sources.sqlite import MAGIC
from tracekit.sources.xplane._wire import WireError, fields
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace


def read(path: Path, progress: Progress = lambda *_: None) -> Trace:
    """Read a trace file of any format into tables in memory; for arguments see `open_report`."""
    return open_report(path, Workspace(), progress).trace()


def content_files(path: Path) -> list[Path]:
    """Return the files of a trace: the tables of a columnar nsys export, else `path` itself."""
    return table_files(path) if path.is_dir() else [path]


def open_report(
    path: Path,
    workspace: Workspace,
    progress: Progress = lambda *_: None,
    nsys_tool: str | None = None,
    captures: Sequence[Path] = (),
) -> Recording:
    """Read a trace file of any format; ops get their stage and launching call only later.

    Parameters
    ----------
    path
        The file, or the folder of a columnar export.
    workspace
        Folder and memory budget for its tables; it must exist as long as they are read.
    progress
        Callback that receives progress.
    nsys_tool
        The nsys program that exports reports; None: ``TRACEKIT_NSYS``, else the one on PATH.
    captures
        PyTorch traces recorded while the CUDA graphs of this trace were captured.

    Raises
    ------
    InputError
        If the file does not exist, or cannot be read.
    UsageError
        If captures are given with a trace that is not of PyTorch's profiler.
    NotATraceError, UnsupportedTraceError
        If the file is no trace, or a trace of an unsupported kind.
    DamagedTraceError, MissingDataError
        If the trace is cut short or corrupt, or contains nothing to analyse.
    """
    check_readable(path)
    for capture in captures:
        check_readable(capture)
    if captures and not all(map(kineto.is_kineto, (path, *captures))):
        raise UsageError(
            "only traces of PyTorch's profiler are joined with a capture",
            "leave out --capture: nsys records how nodes of graphs were captured itself",
        )
    one = Opening(path, workspace, progress, nsys_tool, captures)
    for each in FORMATS:
        if each.begins(path) and (recording := each.read(one)) is not None:
            return recording
    if path.is_dir():
        raise NotATraceError(f"the strings in {path} were not written by nsys", READS)
    head = _head(path)
    if not head.startswith(MAGIC):
        raise refusal(path)
    raise NotATraceError(
        f"{path} is an SQLite database, but not a trace (no table StringIds or StringTable)",
        READS,
    )


def check_readable(path: Path) -> None:
    """Raise an `InputError` with the reason if `path` cannot be a trace, such as an empty file."""
    try:
        if path.is_dir():
            _check_folder(path)
            return
        if path.exists() and not path.is_file():  # reading a pipe would wait for its writer
            raise NotATraceError(f"{path} is not a regular file", "give the file of a trace")
        head = _head(path)
    except FileNotFoundError as error:
        raise InputError(f"no file {path}", "check the path") from error
    except PermissionError as error:
        raise InputError(f"{path} may not be read", "check its permissions: ls -l") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not head:
        raise NotATraceError(f"{path} is empty", "export the report again")
    if not any(head):
        raise DamagedTraceError(
            f"{path} begins with zeros, as an export does that was interrupted",
            "export the report again",
        )
    if any(each.begins(path) for each in FORMATS):
        return
    raise refusal(path)


def _check_folder(folder: Path) -> None:
    """Raise an error if a folder is no columnar nsys export; it tells what its first file is."""
    try:
        table_files(folder)
    except NotATraceError:
        files = (file for file in sorted(folder.iterdir()) if file.is_file() and _head(file))
        if (first := next(files, None)) is None:
            raise
        if any(each.begins(first) for each in FORMATS):
            raise NotATraceError(
                f"{folder} is a directory with a trace in it, {first.name}",
                f"give its files, --run NAME makes one run of them: tracekit ingest {folder}/*",
            ) from None
        if (known := _known(head_of(first)[:HEAD])) and known[1] != _FOLDER:
            problem = f"{folder} is a directory, and its file {first.name} is {known[0]}"
            raise UnsupportedTraceError(problem, known[1].format(path=folder)) from None
        raise


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


HEAD = 4096
READS = (
    "tracekit reads nsys reports and their SQLite, Parquet and Arrow exports, nvprof databases and"
    " CSV, PyTorch traces, AMD's RPDs, databases and JSON of rocprofv3, JAX's profiles, and rings:"
    " nsys export --type sqlite REPORT"
)
_FOLDER = "give the folder of an export, or an SQLite one: nsys export --type sqlite REPORT"
_NVPROF = "tracekit reads databases of nvprof: nvprof -o run.nvvp PROGRAM"
_NSYS = "record a timeline: nsys profile -t cuda,nvtx -o run PROGRAM"
_TORCH = "record a timeline: torch.profiler.profile(), prof.export_chrome_trace(FILE)"
_ROCPROF = (
    "record with rocprofv3 --kernel-trace --memory-copy-trace --hip-runtime-trace --marker-trace"
    " -f json -- PROGRAM"
)


@dataclass(frozen=True)
class _Other:
    """A kind of file that is no trace: its first bytes, its name, a hint what to give instead."""

    begins: str
    what: str
    hint: str


_FILES = (
    _Other(r"PAR1", "a Parquet file", _FOLDER),
    _Other(r"ARROW1", "an Arrow file", _FOLDER),
    _Other(r"\xff\xff\xff\xff", "an Arrow stream", _FOLDER),
    _Other(r"\x89HDF", "an HDF5 file", READS),
    _Other(r"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first: unzstd {path}"),
    _Other(r"PK\x03\x04", "a zip archive", "unpack it first: unzip {path}"),
    _Other(
        r"NVR\x00",
        "a report of Nsight Compute, which has counters of kernels that were run again one by"
        " one, and not when they ran",
        _NSYS,
    ),
    _Other(
        r"[\x05-\x30]\n[\x03-\x2e]\d+\.\d+\.\d+",
        "an execution trace of Chakra, which has dependencies but no times of GPU work",
        _TORCH,
    ),
    _Other(
        r'\s*(?:==PROF==[^\n]*\n)*"?ID"?,"?Process ID"?,"?Process Name"?',
        "a table of Nsight Compute, which has counters of kernels, and not when they ran",
        _NSYS,
    ),
    _Other(
        r'"?Index"?,"?KernelName"?|"?Name"?,"?Calls"?,"?TotalDurationNs"?',
        "a table of rocprof, the recorder before rocprofv3",
        _ROCPROF,
    ),
    _Other(r'"?Kind"?,"?Agent_Id"?', "a table of rocprofv3", _ROCPROF),
    _Other(r"\x80\x02\}", "a pickle, as PyTorch's flight recorder dumps one",
           "for a job that hangs: tracekit hang {path}"),
    _Other(r"\x80[\x03-\x05]", "a pickle, as PyTorch's snapshots of memory are", _TORCH),
    _Other(r"<\?xml", "an XML file, as a session of the Visual Profiler is", _NVPROF),
)  # fmt: skip
_JSON = (
    _Other(
        r'"schema"\s*:\s*"[^"]*chakra',
        "an execution trace of PyTorch (Chakra), which has dependencies, and not when"
        " GPUs worked",
        _TORCH,
    ),
    _Other(r'"pg_config"|"collective_seq_id"', "a dump of PyTorch's flight recorder",
           "for a job that hangs: tracekit hang {path}"),
    _Other(r'"communicators_count"|"ras"\s*:|"event"\s*:\s*"PEER_', "an answer of NCCL's RAS",
           "for a job that hangs: tracekit hang {path}"),
    _Other(
        r'"coll_perf"|"p2p_perf"|"dump_stats"',
        "a log of NCCL's inspector, which has durations of collectives, and not when they ran",
        "for these: tracekit nccl-inspector {path}",
    ),
    _Other(r'CPU HIP API"', "JSON of rocprof, the recorder before rocprofv3", _ROCPROF),
    _Other(
        r'"name"\s*:\s*"(?:thread|process)_name"[^}]*\{\s*"name"\s*:\s*"(?:Hip |GPU\d)',
        "the JSON that rpd2tracing.py writes of an RPD",
        "give the RPD itself: the .rpd that it was made from",
    ),
    _Other(
        r'"name"\s*:\s*"(?:forward|backward)-compute"',
        "a timeline of a pipeline-parallel job",
        "for what its stragglers cost: tracekit straggler-cost {path}",
    ),
    _Other(
        r'\A\s*\[\s*\{[^{}]*"ph"\s*:',
        "a list of Chrome events without the object that PyTorch's profiler writes around it",
        "put those of PyTorch into one: gzip -cdf {path} | jq -c '{{traceEvents: .}}' > trace.json",
    ),
)  # fmt: skip


def refusal(path: Path) -> InputError:
    """Return the error for a file of unknown format; it tells what the file is, if possible."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    head = head_of(path)[:HEAD]
    if known := _known(head):
        kind, hint = known
        inside = "packed with gzip, and in it " if packed else ""
        return UnsupportedTraceError(f"{path} is {inside}{kind}", hint.format(path=path))
    if packed:
        return UnsupportedTraceError(f"{path} is a gzip archive", f"unpack it first: gunzip {path}")
    return NotATraceError(f"{path} is not a trace", READS)


def _known(head: bytes) -> tuple[str, str] | None:
    """Return the kind of non-trace file that begins with `head`, and a hint; None if unknown."""
    is_json = head.lstrip()[:1] in (b"{", b"[")
    look, kinds = (re.search, _JSON) if is_json else (re.match, _FILES)
    for each in kinds:
        if look(each.begins.encode("latin-1"), head):
            return each.what, each.hint
    if is_json:
        keys = ", ".join(_keys(head))
        return "JSON, but not a PyTorch trace" + (f" (it has {keys})" if keys else ""), READS
    if _is_perfetto(head):
        kind = "a trace of Perfetto, as rocprofv3 and rocprof-sys write them, too"
        return kind, f"{_ROCPROF}; of a PyTorch trace give the JSON"
    return None


def _keys(head: bytes) -> list[str]:
    """Return the first keys of a JSON object, or of the first object if the text is a JSON list."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \n\t[")
    depth, found = 0, []
    for token in re.finditer(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]', text):
        if token[2] and depth == 1 and token[1].isprintable():
            found.append(token[1][:_LONGEST_KEY])
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth < 1 or len(found) == _MOST_KEYS:
            break
    return found


_LONGEST_KEY, _MOST_KEYS = 40, 6
_PACKET = frozenset((6, 8, 10, 11, 12, 13, 33, 36, 41, 42, 43, 44, 58, 59, 60, 79, 87))
"""Field numbers in packets of Perfetto that recorders of programs write."""


def _is_perfetto(head: bytes) -> bool:
    """Test whether a file begins like a Perfetto trace: with two packets, or one long packet."""
    data = np.frombuffer(head, np.uint8)
    at = 0
    for _ in range(2):
        begin = at + 2 + (at + 1 < data.size and data[at + 1] >= 128)  # noqa: PLR2004
        if begin >= data.size or data[at] != 0x0A:  # noqa: PLR2004
            return False
        length = int(data[at + 1] & 127) | (int(data[at + 2]) << 7 if begin == at + 3 else 0)
        at = begin + length
        if not length or at > data.size:
            return False
        try:
            numbers = {number for number, *_ in fields(data, begin, at)}
        except WireError:
            return False
        if not numbers or not numbers <= _PACKET or not numbers & {8, 10, 36, 60}:
            return False
    return True
