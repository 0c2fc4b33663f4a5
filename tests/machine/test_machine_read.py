"""Topology files are recognised by their content, and faults of a machine are reported."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_machine_nccl_xml import BRIDGED
from test_machine_nvlink_status import PAIR_RATES
from test_machine_topo_matrix import A100_PAIRS, DGX_1V

from tracekit.errors import InputError, TracekitError
from tracekit.machine import Link, Machine, problems, read_topology, unknown_bandwidths
from tracekit.machine._read import MAX_TEXT

OURS = """
version = 1
[nodes]
GPU = 2
CPU = 1
[[links]]
type = "pcie"
between = "GPU*-CPU0"
"""


@pytest.mark.parametrize(
    ("text", "gpus"), [(DGX_1V, 8), (A100_PAIRS, 4), (PAIR_RATES, 4), (BRIDGED, 3), (OURS, 2)]
)
@pytest.mark.parametrize("name", ["topology.txt", "topology.toml", "topology.xml", "a.sqlite"])
def test_what_a_file_is_does_not_depend_on_its_name(
    tmp_path: Path, text: str, gpus: int, name: str
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert len(read_topology(path).gpus) == gpus


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("text", [DGX_1V, BRIDGED.partition("\n")[2]])
def test_texts_from_windows(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "topology"
    path.write_text(text, encoding=encoding)
    assert len(read_topology(path).gpus) in (3, 8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (
            b"Hello, world.\n",
            r"has no topology of a known format: give the output of `nvidia-smi topo -m`",
        ),
        (b"\x7fELF\x02\x01\x01\0\0\0", "it is not text"),
        (bytes(range(1, 256)), "topology"),
        (b"GPU 0: Tesla V100 (UUID: GPU-01)\n", "topology"),
        (b"PK\x03\x04 \x14", "topology"),
        (b"version = 1\n[nodes]\nGPU = \n", "is not TOML"),
        (b"SQLite format 3\0" + bytes(100), "cannot be read"),
        (b"# only a comment\n", "topology"),
    ],
)
def test_files_that_are_no_topology(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_topology(path)
    assert str(path) in str(caught.value)


def test_large_files_are_not_read_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(DGX_1V.encode())
        file.write(b"\n" * MAX_TEXT)
    with pytest.raises(InputError, match=r"cannot read the topology .*: it is larger than 16 MiB"):
        read_topology(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read_topology(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read \(No such file or directory\)"):
        read_topology(tmp_path / "absent")


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=400),
        st.text(alphabet="GPU0123NVXSY \t\n<>/=[]\"'&", max_size=200).map(str.encode),
        st.tuples(st.integers(0, len(BRIDGED)), st.integers(0, len(BRIDGED))).map(
            lambda cut: (BRIDGED[: min(cut)] + BRIDGED[max(cut) :]).encode()
        ),
        st.tuples(st.integers(0, len(DGX_1V)), st.integers(0, len(DGX_1V))).map(
            lambda cut: (DGX_1V[: min(cut)] + DGX_1V[max(cut) :]).encode()
        ),
    )
)
def test_no_file_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    try:
        machine = read_topology(path)
    except TracekitError:
        return
    assert machine.gpus
    problems(machine)


def test_nothing_is_wrong_with_a_machine_that_is_known() -> None:
    nodes = {"GPU0": {"type": "gpu"}, "GPU1": {"type": "gpu"}, "CPU0": {"type": "host"}}
    links = [
        Link(("GPU0", "GPU1"), "nvlink", 4, 100),
        Link(("GPU0", "CPU0"), "pcie", bandwidth=10),
        Link(("GPU1", "CPU0"), "pcie", bandwidth=10),
    ]
    assert problems(Machine.of("known", nodes, links)) == ()


def test_what_is_wrong_with_a_machine_is_said() -> None:
    nodes: dict[str, dict[str, object]] = {f"GPU{gpu}": {"type": "gpu"} for gpu in range(5)}
    nodes["GPU3"]["product"] = "Tesla V100-SXM2-16GB"
    nodes["CPU0"] = {"type": "host"}
    links = [
        Link(("GPU0", "GPU1"), "nvlink", 19),
        Link(("GPU2", "GPU3"), "nvlink", 7, 175),
        Link(("GPU0", "CPU0"), "pcie"),
        Link(("GPU1", "CPU0"), "pcie"),
    ]
    odd = Machine.of("odd", nodes, links)
    assert unknown_bandwidths(odd) == (
        "1 nvlink link of unknown bandwidth: GPU0-GPU1",
        "2 pcie links of unknown bandwidth: GPU0-CPU0, GPU1-CPU0",
    )
    assert problems(odd) == (
        "GPU4: no link at all",
        "GPU0: 19 NVLinks, more than any GPU has (18)",
        "GPU1: 19 NVLinks, more than any GPU has (18)",
        "GPU3: 7 NVLinks, more than Tesla V100-SXM2-16GB has (6)",
        "GPUs differ in their number of NVLinks: 0 of GPU4; 7 of GPU2, GPU3; 19 of GPU0, GPU1",
        "8 pairs of GPUs without a route: GPU0-GPU2, GPU0-GPU3, GPU0-GPU4, GPU1-GPU2 and 4 more",
        "4 parts that PCIe and hosts do not join: GPU0, GPU1 | GPU2 | GPU3 | GPU4",
    )


@pytest.mark.parametrize(
    "text",
    [
        "GPU0 " + "a1" * 500_000 + "!\n",
        "GPU 0: " + "a" * 1_000_000 + " (UUID: GPU-01)\nLink 0: 1" + " " * 1_000_000 + "x\n",
        "\x1b[" * 500_000,
        "GPU0 " * 200_000,
        "[" * 1_000_000,
        "a = " + "[" * 500_000,
        f"\tGPU0\tCPU Affinity\nGPU0\tX\t{'1' * 100_000}\n",
    ],
)
def test_odd_texts_take_no_time(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    started = time.process_time()
    with contextlib.suppress(InputError):
        read_topology(path)
    assert time.process_time() - started < 5
