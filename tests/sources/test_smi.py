"""Samples of nvidia-smi: every shape of its CSV, and what people do to such files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.errors import InputError
from tracekit.sources import read_smi

MIB = 1 << 20
UUID = "5f9d1f6a-0a4b-3c1d-9e2f-000000000001"
OTHER = "5f9d1f6a-0a4b-3c1d-9e2f-000000000002"
AT = 1_525_435_201_123_000_000
"""2018/05/04 12:00:01.123 UTC."""
QUERY = "timestamp,index,uuid,memory.used"
HEADER = "timestamp, index, uuid, memory.used [MiB]\n"
LINE = f"2018/05/04 12:00:01.123, 0, GPU-{UUID}, 1234 MiB\n"
ROW = (AT, 0, UUID, 1234 * MIB, None, None)
COLUMNS = {
    "time": pl.Int64, "gpu": pl.Int32, "uuid": pl.String, "memory_used": pl.Int64,
    "memory_total": pl.Int64, "utilisation_gpu": pl.Float64,
}  # fmt: skip


@pytest.fixture
def smi(tmp_path: Path) -> Any:
    """Write a file and return its rows."""

    def rows(content: str | bytes) -> list[tuple[Any, ...]]:
        path = tmp_path / "smi.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        samples = read_smi(path)
        assert samples.schema == COLUMNS
        return samples.rows()

    return rows


def test_samples_as_the_recommended_command_writes_them(smi):
    second = f"2018/05/04 12:00:01.123, 1, GPU-{OTHER}, 0 MiB\n"
    third = f"2018/05/04 12:00:01.223, 0, GPU-{UUID}, 16160 MiB\n"
    assert smi(HEADER + LINE + second + third) == [
        ROW,
        (AT, 1, OTHER, 0, None, None),
        (AT + 100_000_000, 0, UUID, 16160 * MIB, None, None),
    ]


@pytest.mark.parametrize(
    "content",
    [
        HEADER + LINE.replace(" MiB", ""),
        LINE,
        LINE.replace(" MiB", ""),
        (HEADER + LINE).replace("\n", "\r\n"),
        (HEADER + LINE).encode("utf-8-sig"),
        (HEADER + LINE).encode("utf-16"),
        (HEADER + LINE).replace(", ", ","),
        HEADER.upper().replace("MIB", "MiB") + LINE,
        HEADER + "\n \n" + LINE + "\n",
        f"+ nvidia-smi --query-gpu={QUERY} --format=csv -l\n{HEADER}{LINE}",
        f"job 7 starts\n{HEADER}Unable to determine the device handle\n{LINE}slurm: killed\n",
        HEADER + LINE + HEADER,
        HEADER + LINE + LINE[:-20] + "\n",
        (HEADER + LINE).removesuffix("\n"),
        HEADER + LINE + LINE[:-6],
        HEADER + LINE + LINE.removesuffix(" MiB\n"),
        "timestamp, index, gpu_uuid, memory.used [MiB]\n" + LINE,
    ],
)  # fmt: skip
def test_one_sample_in_whatever_shape(smi, content):
    assert smi(content) == [ROW]


def test_columns_may_be_in_any_order_and_further_ones_between(smi):
    header = (
        "utilization.gpu [%], name, memory.used [MiB], index, power.draw [W], memory.total [MiB], "
        "timestamp, uuid\n"
    )
    line = "98 %, Tesla V100, 7 MiB, 3, 55.1 W, 16160 MiB, 2018/05/04 12:00:01, GPU-" + UUID
    assert smi(f"{header}{line}\n") == [
        (AT - 123_000_000, 3, UUID, 7 * MIB, 16160 * MIB, 98.0)
    ]  # fmt: skip


def test_headers_may_differ_within_a_file(smi):
    other = "index, memory.used [MiB], timestamp\n5, 6 MiB, 2018/05/04 12:00:01.123\n"
    assert smi(HEADER + LINE + other) == [ROW, (AT, 5, None, 6 * MIB, None, None)]


@pytest.mark.parametrize(
    "value",
    ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "N/A", "-1", "1.5", ""],
)
def test_what_is_not_known_is_null(smi, value):
    header = HEADER.replace("\n", ", memory.total [MiB], utilization.gpu [%]\n")
    line = f"2018/05/04 12:00:01.123, 0, {value}, {value}, {value}, {value}\n"
    [(time, gpu, uuid, used, total, utilisation)] = smi(header + line)
    assert (time, gpu, used, total, utilisation) == (AT, 0, None, None, None)
    assert uuid == (value if value == "-1" else None)


def test_gpus_may_be_told_by_uuid_or_index_alone(smi):
    line = f"2018/05/04 12:00:01.123, GPU-{UUID}, 5 MiB\n"
    assert smi(f"timestamp, uuid, memory.used [MiB]\n{line}") == [
        (AT, None, UUID, 5 * MIB, None, None)
    ]  # fmt: skip
    assert smi("timestamp, index, memory.used [MiB]\n2018/05/04 12:00:01.123, 2, 5 MiB\n") == [
        (AT, 2, None, 5 * MIB, None, None)
    ]


def test_other_columns_without_a_header_are_refused(smi):
    with pytest.raises(InputError, match="as CSV of nvidia-smi"):
        smi("3, 2018/05/04 12:00:01.123, 16160, 7\n")


def test_samples_are_in_the_order_of_time(smi):
    later = LINE.replace("12:00:01", "12:00:02")
    assert [row[0] - AT for row in smi(HEADER + later + LINE)] == [0, 10**9]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", HEADER, "hello\n", "a,b,c,d\n1,2,3,4\n", LINE[:-20],
        b"SQLite format 3\0" + b"x" * 99,
        b"\xff\xfe\x00", b"\xfe" * 5000,
        "timestamp, memory.used [MiB]\n2018/05/04 12:00:01, 5 MiB\n",
        HEADER + LINE.replace("2018", "9999"), HEADER + LINE.replace("/05/", "/15/"),
        HEADER + LINE.replace("2018", "\u0662\u0660\u0661\u0668"),
        HEADER + LINE.replace(", 0,", ", \u0663,"), HEADER + LINE.replace(", 0,", ", 99999999999,"),
        "index, memory.used [MiB]\n0, 5 MiB\n", ("," * 100_000) + "\n",
    ],
)  # fmt: skip
def test_anything_else_is_an_error_that_says_how_to_record(smi, content):
    with pytest.raises(InputError) as caught:
        smi(content)
    assert caught.value.what.endswith("smi.csv as CSV of nvidia-smi")
    assert caught.value.hint == (
        "record with `nvidia-smi --query-gpu=timestamp,index,uuid,memory.used --format=csv "
        "-lms 100`"
    )


@pytest.mark.parametrize("name", [".", "absent.csv"])
def test_a_file_that_cannot_be_read(tmp_path, name):
    with pytest.raises(InputError, match=r"cannot be read \((Is a directory|No such file)"):
        read_smi(tmp_path / name)


@given(st.integers(0, len(HEADER + LINE * 3)))
def test_a_file_cut_anywhere_tells_nothing_wrong(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("smi") / "smi.csv"
    path.write_text((HEADER + LINE * 3)[:length])
    whole = max(length - len(HEADER) + 1, 0) // len(LINE)
    if whole:
        assert read_smi(path).rows() == [ROW] * whole
    else:
        with pytest.raises(InputError):
            read_smi(path)


@given(st.binary(max_size=300))
def test_garbage_is_an_error_of_ours(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("smi") / "smi.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_smi(path)
