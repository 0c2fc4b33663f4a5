"""What the help of an nsys says of it, and the command that records what is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_nsys import HELP, make_fake_nsys

from tracekit.errors import RecordingError, UsageError
from tracekit.recording import Nsys, Wanted, find_nsys, profile_command

NEWER = """
\t--gpu-metrics-devices=

\t-t, --trace=

\t   Possible values are 'cuda', 'nvtx'.
"""


@pytest.fixture(scope="module")
def nsys() -> Nsys:
    return Nsys.of("/opt/nsys", "2023.4\n", HELP)


def test_the_help_says_what_it_can_do(nsys: Nsys) -> None:
    assert nsys.traces == {"cuda", "nvtx", "mpi", "osrt", "none"}
    assert {"capture-range-end", "sample", "mpi-impl", "output", "show-output"} <= nsys.options
    assert "stats" not in nsys.options
    assert nsys.version == "2023.4"
    # The last option of a help has no other behind it.
    assert Nsys.of("nsys", "", NEWER).traces == {"cuda", "nvtx"}
    assert Nsys.of("nsys", "", "").traces == frozenset()


def _said(nsys: Nsys, **wanted: Any) -> list[str]:
    return profile_command(nsys, Wanted(**wanted))[2:]


QUIET = ["--sample=none", "--cpuctxsw=none"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({}, ["--trace=cuda,nvtx", *QUIET]),
        ({"mpi": "mpich"}, ["--trace=cuda,nvtx,mpi", "--mpi-impl=mpich", *QUIET]),
        ({"why_idle": True}, ["--trace=cuda,nvtx,osrt", *QUIET]),
        ({"trace": "nvtx", "mpi": "mpich"}, ["--trace=nvtx", *QUIET]),
        (
            {"trace": "nvtx,mpi,nvtx", "mpi": "openmpi"},
            ["--trace=nvtx,mpi", "--mpi-impl=openmpi", *QUIET],
        ),
        (
            {"capture_range": "cuda", "trace": "cuda"},
            ["--trace=cuda", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", *QUIET],
        ),
        (
            {"capture_range": "iteration 3@tracekit", "trace": "nvtx"},
            ["--trace=nvtx", "--capture-range=nvtx", "--nvtx-capture=iteration 3@tracekit",
             "--capture-range-end=stop", *QUIET],
        ),
        (
            {"every": 1000, "length": 3, "trace": "nvtx"},
            ["--trace=nvtx", "--capture-range=nvtx", "--nvtx-capture=window@tracekit",
             "--capture-range-end=repeat", *QUIET],
        ),
        (
            {"memory_usage": True, "gpu_metrics": "all", "nic_metrics": True, "graph_nodes": True,
             "trace": "cuda", "cpu_samples": True, "more": ("--delay=5",)},
            ["--trace=cuda", "--cuda-memory-usage=true", "--cuda-graph-trace=node",
             "--gpu-metrics-device=all", "--nic-metrics=true", "--delay=5"],
        ),
    ],
)  # fmt: skip
def test_what_is_wanted(nsys: Nsys, wanted: dict[str, Any], said: list[str]) -> None:
    assert _said(nsys, **wanted) == said


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (
            {"every": 3, "length": 3},
            "windows of 3 steps do not begin every 3 steps: such as --every 1000",
        ),
        ({"every": 9, "length": 0}, "windows of 0 steps"),
        ({"every": 9, "length": 3, "capture_range": "cuda"}, "leave out --capture-range"),
    ],
)
def test_windows_that_cannot_be(nsys: Nsys, wanted: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        _said(nsys, **wanted)


def test_options_that_other_versions_name_otherwise_or_lack() -> None:
    newer = Nsys.of("nsys", "2026.1", NEWER)
    assert _said(newer, gpu_metrics="0", trace="cuda") == [
        "--trace=cuda",
        "--gpu-metrics-devices=0",
    ]
    older = Nsys("nsys", "", frozenset({"capture-range", "stop-on-range-end"}), frozenset())
    assert _said(older, capture_range="cuda")[1:] == [
        "--capture-range=cudaProfilerApi",
        "--stop-on-range-end=false",
    ]


def test_events_of_nccl_where_nsys_has_them(nsys: Nsys) -> None:
    newest = Nsys("nsys", "", frozenset({"nccl-trace"}), frozenset({"cuda", "nvtx", "nccl"}))
    assert _said(newest, nccl="coll,p2p", trace="cuda,nvtx") == [
        "--trace=cuda,nvtx,nccl",
        "--nccl-trace=coll,p2p",
    ]
    with pytest.raises(UsageError, match="cannot trace 'nccl'"):
        _said(nsys, nccl="default")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"memory_usage": True}, r"nsys \(2026.1\) has no option --cuda-memory-usage: use a newer"),
        ({"trace": "osrt"}, r"nsys \(2026.1\) cannot trace 'osrt': it traces cuda, nvtx"),
    ],
)
def test_what_an_nsys_cannot_record(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        profile_command(Nsys.of("nsys", "2026.1", NEWER), Wanted(**{"trace": "cuda"} | wanted))


def test_names_of_traces() -> None:
    assert Wanted(trace="cuda, nvtx,").traces == ("cuda", "nvtx")
    assert Wanted(trace="").traces == ()


class TestFinding:
    def test_by_option_variable_and_path(self, tmp_path: Path, monkeypatch: Any) -> None:
        program = make_fake_nsys(tmp_path)
        monkeypatch.setenv("TRACEKIT_NSYS", str(program))
        assert find_nsys().program == str(program)
        monkeypatch.delenv("TRACEKIT_NSYS")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        found = find_nsys()
        assert found.program == str(program)
        assert found.version == "NVIDIA Nsight Systems version 2023.4.4"
        assert "mpi" in found.traces

    def test_there_is_none(self, monkeypatch: Any) -> None:
        with pytest.raises(RecordingError, match="no /no/such here to record with: install"):
            find_nsys("/no/such")

    def test_it_is_too_old(self, tmp_path: Path) -> None:
        old = make_fake_nsys(tmp_path)
        old.write_text(old.read_text().replace("2023.4.4", "2019.5.2.16-b54ef97"))
        with pytest.raises(RecordingError, match=r"/nsys \(2019.5.2.16-b54ef97\) is too old"):
            find_nsys(str(old))

    def test_what_this_machine_allows(self, tmp_path: Path, monkeypatch: Any) -> None:
        """When threads are on a CPU is recorded where it may be."""
        program = str(make_fake_nsys(tmp_path))
        assert "--cpuctxsw=process-tree" in profile_command(find_nsys(program), Wanted())
        monkeypatch.setenv("SWITCHES", "Fail")
        assert "--cpuctxsw=none" in profile_command(find_nsys(program), Wanted())

    def test_it_does_not_run(self, tmp_path: Path) -> None:
        broken = tmp_path / "nsys"
        broken.write_text("#!/no/such/interpreter\n")
        broken.chmod(0o755)
        with pytest.raises(RecordingError, match="does not run"):
            find_nsys(str(broken))
