"""The CSV of GPU traces that nvprof prints."""

from __future__ import annotations

import random
from contextlib import suppress
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from source_helpers import column, remarks, rows

from tracekit.errors import (
    DamagedTraceError,
    InputError,
    MissingDataError,
    NotATraceError,
    UnsupportedTraceError,
)
from tracekit.model import Trace
from tracekit.sources import read
from tracekit.sources.nvprof._csv import printed_times

NAMES = (
    "Start", "Duration", "Size", "SrcMemType", "DstMemType", "Device", "Context", "Stream",
    "Src Dev", "Src Ctx", "Dst Dev", "Dst Ctx", "Name", "Correlation_ID",
)  # fmt: skip
HEADER = ",".join(f'"{name}"' for name in NAMES)
UNITS = "ms,us,KB,,,,,,,,,,,"
BANNER = "==77== NVPROF is profiling process 77, command: /usr/bin/python train.py --key secret\n"
RESULT = "==77== Profiling application: python train.py\n==77== Profiling result:\n"
V100 = "Tesla V100-SXM2-16GB"


def line(start: str, duration: str, name: str = "k(int)", **cells: str) -> str:
    given = {"Device": f"{V100} (0)", "Context": "1", "Stream": "7", **cells}
    given |= {"Start": start, "Duration": duration, "Name": name}
    bare = ("Start", "Duration", "Size", "Correlation_ID")
    texts = (given.get(each.replace(" ", "_"), given.get(each, "")) for each in NAMES)
    return ",".join(
        text if each in bare or not text else f'"{text}"'
        for each, text in zip(NAMES, texts, strict=True)
    )


def document(*lines: str, units: str = UNITS, before: str = BANNER + RESULT) -> str:
    return before + "\n".join((HEADER, units, *lines)) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


def trace_of(path: Path, text: str) -> Trace:
    path.write_bytes(text.encode())
    return read(path)


def test_all_kinds_of_work(path):
    trace = trace_of(
        path,
        document(
            line("1.500001", "2.001000", "void gemm<float, int>(int, float*) [12]"),
            line("2.000000", "1.000000", "[CUDA memcpy HtoD]", Size="0.125000",
                 SrcMemType="Pinned", DstMemType="Device", Correlation_ID="13"),
            line("3.000000", "1.000000", "[CUDA memcpy PtoP]", Size="1.003906",
                 SrcMemType="Device", DstMemType="Device",
                 Src_Dev=f"{V100} (0)", Dst_Dev=f"{V100} (3)"),
            line("4.000000", "1.000000", "[CUDA memset]", Size="2.000000", SrcMemType="Device"),
        ),
    )  # fmt: skip
    assert rows(trace, "ops", "start", "end", "kind", "name", "bytes", "correlation") == [
        (1_500_001, 1_502_002, "compute", "void gemm<float, int>(int, float*)", None, 12),
        (2_000_000, 2_001_000, "h2d", "[CUDA memcpy HtoD]", 128, 13),
        (3_000_000, 3_001_000, "p2p", "[CUDA memcpy PtoP]", 1028, None),
        (4_000_000, 4_001_000, "memset", "[CUDA memset]", 2048, None),
    ]
    assert rows(trace, "ops", "device", "context", "stream", "src_device", "dst_device") == [
        (0, 1, 7, None, None), (0, 1, 7, None, 0), (0, 1, 7, 0, 3), (0, 1, 7, None, 0),
    ]  # fmt: skip
    assert column(trace, "ops", "short_name")[0] == "gemm"
    assert rows(trace, "devices", "device", "name", "active", "identity") == [
        (0, V100, True, "ordinal"), (3, V100, False, "ordinal"),
    ]  # fmt: skip
    assert rows(trace, "processes", "pid", "name") == [(77, "python")]
    assert rows(trace, "reports", "format", "session_start") == [("nvprof CSV", None)]
    assert remarks(trace) == ("sizes of copies and memsets are rounded, as nvprof printed them",)
    absent = [text.split(" were")[0] for text in trace.warnings if text.startswith("no ")]
    assert absent == ["no API calls", "no NVTX ranges"]
    assert rows(trace, "contents", "feature", "rows") == [
        ("kernels", 1), ("copies", 2), ("memsets", 1), ("CUDA calls", 0), ("NVTX events", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("s", "123456789.123456789", 123_456_789_123_456_789),
        ("ms", "9007199254.740993", 9_007_199_254_740_993),
        ("us", "0.0015", 2),
        ("us", "1.999500", 2_000),
        ("ns", "17.000000", 17),
        ("ns", "9007199254740993"[:15], 900_719_925_474_099),
        ("us", "5.", 5_000),
        ("ms", "2.048000e-03", 2_048),
        ("ms", "2.0485e-03", 2_049),
        ("us", "4.9e-04", 0),
        ("s", "1.5e-10", 0),
        ("s", "1.234567890123e+03", 1_234_567_890_123),
        ("ms", "1e+06", 1_000_000_000_000),
    ],
)
def test_times_are_exact(path, unit, text, expected):
    trace = trace_of(path, document(line(text, "1"), units=f"{unit},us,KB" + "," * 11))
    assert rows(trace, "ops", "start", "end") == [(expected, expected + 1_000)]


def test_numbers_with_exponents_keep_every_row(path):
    """nvprof prints the shortest kernels so, among others that it does not."""
    lines = [line("1.5", text) for text in ("2.048000e-03", "2.048", "9.6e-03", "1.2e-02", "17")]
    trace = trace_of(path, document(*lines, units="ms,ms,KB" + "," * 11))
    lengths = [end - start for start, end in rows(trace, "ops", "start", "end")]
    assert sorted(lengths) == [2_048, 9_600, 12_000, 2_048_000, 17_000_000]
    assert not any("no valid times" in text for text in trace.warnings)


@settings(deadline=None)
@given(st.floats(1e-9, 1e8), st.sampled_from(["s", "ms", "us", "ns"]))
def test_exponents_are_as_decimals_are(number: float, unit: str) -> None:
    digits = {"s": 9, "ms": 6, "us": 3, "ns": 0}[unit]
    text = f"{number:.6e}"
    exact = (Decimal(text) * 10**digits).quantize(Decimal(1), ROUND_HALF_UP)
    frame = pl.DataFrame({"x": [text]})
    assert frame.select(printed_times(frame["x"], digits)).item() == int(exact)


def test_the_first_op_may_start_at_zero(path):
    assert column(trace_of(path, document(line("0.000000", "1"))), "ops", "start") == [0]


@pytest.mark.parametrize(
    ("name", "source", "target", "expected"),
    [
        ("HtoD", "Pageable", "Device", ("h2d", "HtoD", None, 0)),
        ("HtoD", "Device", "Device", ("staged", "HtoD", None, 0)),
        ("DtoH", "Device", "Device", ("staged", "DtoH", 0, None)),
        ("DtoH", "Device", "Pinned", ("d2h", "DtoH", 0, None)),
        ("DtoD", "Device", "Device", ("d2d", "DtoD", 0, 0)),
        ("HtoD", "", "", ("h2d", "HtoD", None, 0)),
        ("PtoP", "Device", "Device", ("p2p", "PtoP", None, None)),
        ("XtoY", "", "", ("unknown", "Unknown", None, None)),
    ],
)
def test_copies(path, name, source, target, expected):
    copy = line("1", "1", f"[CUDA memcpy {name}]", SrcMemType=source, DstMemType=target)
    trace = trace_of(path, document(copy))
    assert rows(trace, "ops", "kind", "copy_kind", "src_device", "dst_device") == [expected]


@pytest.mark.parametrize(
    ("unit", "size", "expected"),
    [("B", "17.000000", 17), ("MB", "1.5", 1_572_864), ("GB", "0.000001", 1_074), ("", "3", None)],
)
def test_sizes(path, unit, size, expected):
    copy = line("1", "1", "[CUDA memcpy DtoD]", Size=size)
    trace = trace_of(path, document(copy, units=f"ms,us,{unit}" + "," * 11))
    assert column(trace, "ops", "bytes") == [expected]
    assert len(remarks(trace)) == (unit in ("MB", "GB"))


def test_columns_in_another_order_and_fewer_of_them(path):
    text = '"Name","Device","Duration","Start"\n,,us,ms\n"a, b","K40 (2)",3.0,1.0\n'
    trace = trace_of(path, text)
    assert rows(trace, "ops", "start", "end", "device", "stream", "name") == [
        (1_000_000, 1_003_000, 2, None, "a, b")
    ]
    assert "the process was not recorded; its id is set to 0" in trace.warnings


def test_windows_ends_of_lines_a_mark_and_no_last_end(path):
    text = document(line("1", "1", Correlation_ID="4")).replace("\n", "\r\n").removesuffix("\r\n")
    trace = trace_of(path, "\ufeff" + text)
    assert rows(trace, "ops", "start", "correlation") == [(1_000_000, 4)]
    assert rows(trace, "processes", "pid") == [(77,)]


def test_names_that_are_mangled(path):
    trace = trace_of(path, document(line("1", "1", "_ZN2at4gemmIfEEvi")))
    assert rows(trace, "ops", "name", "short_name") == [("void at::gemm<float>(int)", "gemm")]


def test_what_is_no_gpu_work_is_left_out_and_counted(path):
    trace = trace_of(
        path,
        document(
            line("1", "1"),
            "step 3, loss 2.5",
            "==77== Warning: something",
            "",
            line("x", "1"),
            line("-1", "1"),
            line("ten", "1"),
            line("999999999999999", "1"),
            line("2", "1", "cudaLaunchKernel", Device=""),
            line("3", "1", "[Unified Memory Memcpy HtoD]"),
            '"unclosed',
            line("4", "1"),
        ),
    )
    assert column(trace, "ops", "start") == [1_000_000, 4_000_000]
    assert remarks(trace) == (
        "2 lines could not be read as rows of the trace and were left out",
        "4 rows have no valid times and were left out",
        "1 rows name no GPU, as those of CUDA calls, and were left out",
        "1 events of unified memory and the like were left out",
    )


def test_sections_of_several_processes_have_their_own_units(path):
    other = document(line("2", "1"), units="s,ms" + "," * 12, before="==9== Profiling result:\n")
    trace = trace_of(path, document(line("1", "1")) + other)
    assert rows(trace, "processes", "process", "pid") == [(0, 9), (1, 77)]
    assert rows(trace, "ops", "start", "end", "process") == [
        (1_000_000, 1_001_000, 1),
        (2_000_000_000, 2_001_000_000, 0),
    ]
    assert column(trace, "devices", "identity") == ["assumed"]
    assert any("the file has 2 sections" in text for text in trace.warnings)
    assert any("times in seconds are rounded" in text for text in trace.warnings)


def test_a_line_of_nvprof_between_header_and_units(path):
    text = document(line("1", "1")).replace(UNITS, f"==77== Warning: x\n{UNITS}")
    assert column(trace_of(path, text), "ops", "start") == [1_000_000]


@pytest.mark.slow
def test_blocks_do_not_matter(path, monkeypatch):
    text = document(*(line(f"{at}", "1", f"k{at % 3}") for at in range(50)))
    whole = trace_of(path, text).read("ops")
    for size in (1, 7, 100, 500):
        monkeypatch.setattr("tracekit.sources.nvprof._csv._BLOCK_BYTES", size)
        assert read(path).read("ops").equals(whole)


def _refused(path: Path, text: str, error: type[InputError], says: str) -> None:
    with pytest.raises(InputError) as caught:
        trace_of(path, text)
    assert type(caught.value) is error
    assert says in caught.value.what
    assert str(path) in caught.value.what
    assert caught.value.hint


SUMMARY = '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,ms,,us,us,us,\n'


PLAIN = (
    "   Start  Duration  Grid Size  Block Size  Regs*  SSMem*  DSMem*      Size  Throughput"
    "  SrcMemType  DstMemType           Device   Context    Stream  Name\n"
    "240.94ms  1.6320us          -           -      -       -       -  4.0000KB  2.3374GB/s"
    "    Pageable      Device  Tesla V100-SXM2         1         7  [CUDA memcpy HtoD]\n"
)
"""A GPU trace as nvprof prints it without ``--csv``."""
PLAIN_API = "   Start  Duration  Name\n108.38ms  6.2130us  cuDeviceGetCount\n"
PLAIN_SUMMARY = "Time(%)      Time     Calls       Avg       Min       Max  Name\n"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (BANNER + RESULT + PLAIN, UnsupportedTraceError, "is a GPU trace that nvprof printed as"),
        (PLAIN, UnsupportedTraceError, "is a GPU trace that nvprof printed as text"),
        (BANNER + PLAIN_API, UnsupportedTraceError, "is an API trace of nvprof"),
        (PLAIN_API, UnsupportedTraceError, "is an API trace of nvprof"),
        (BANNER + PLAIN_SUMMARY, UnsupportedTraceError, "is a summary of nvprof"),
        (f"            Type  {PLAIN_SUMMARY}", UnsupportedTraceError, "is a summary of nvprof"),
        ('"Start","Duration","Name","Correlation_ID"\nus,us,,\n0.0,2.8,"cuInit",1\n',
         UnsupportedTraceError, "is an API trace of nvprof"),
        (BANNER + RESULT + SUMMARY, UnsupportedTraceError, "is a summary of nvprof"),
        (BANNER + RESULT + "Start  Duration  Grid Size\n", UnsupportedTraceError, "but no CSV"),
        (BANNER + RESULT + "No kernels were profiled.\n", MissingDataError, "no GPU work"),
        (document(), MissingDataError, "no GPU work"),
        (document(line("?", "1"), line("?", "1")), MissingDataError, "no times of 2 GPU ops"),
        (document(line("1", "1"), units="parsec,us" + "," * 12), DamagedTraceError, "of units"),
        (document(line("1", "1"), units=line("0", "1")), DamagedTraceError, "of units"),
        (BANNER + HEADER + "\n", DamagedTraceError, "of units"),
        (document(line("1", "1")) + HEADER + "\n" + HEADER + "\n", DamagedTraceError, "of units"),
        (document(line("1", "1")) + '"Start","Duration","Name"\nus,us,\n',
         UnsupportedTraceError, "different columns"),
        (document(line("1", "1")) + line("2", "1")[:-9], DamagedTraceError, "is cut short"),
        ("Start,Duration\n1,2\n", NotATraceError, "is not a trace"),
    ],
)  # fmt: skip
def test_what_is_refused(path, text, error, says):
    _refused(path, text, error, says)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_garbage_gives_an_error_of_ours_or_a_trace(path, seed):
    chance = random.Random(seed)
    content = bytearray(document(*(line(f"{at}", "1") for at in range(9))).encode())
    for _ in range(chance.randrange(1, 30)):
        content[chance.randrange(len(content))] = chance.choice(b'",\n\r=0.9\x00\xff(')
    path.write_bytes(content[: chance.randrange(1, len(content))])
    with suppress(InputError):
        ops = read(path).read("ops")
        assert (ops["end"] >= ops["start"]).all()
        assert ops.select("process", "device").null_count().row(0) == (0, 0)


def test_spaces_before_the_number_of_a_gpu_are_no_other_gpu(path):
    trace = trace_of(path, document(line("1", "1", Device=f"{V100}   (2)")))
    assert rows(trace, "devices", "device", "name") == [(2, V100)]
