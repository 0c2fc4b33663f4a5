"""How much memory there is, and what questions take: what does not fit is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tracekit.errors import UsageError
from tracekit.support.memory import NEEDS, free, require

ROOT = Path(__file__).resolve().parents[1]

MEMINFO = "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n"
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def _put(folder: Path, names: tuple[str, str, str], limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {cached}\nx{names[2]} 5\n")


def _machine(root: Path, groups: str, meminfo: str = MEMINFO) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(meminfo)
    (root / "proc/self/cgroup").write_text(groups)
    return root


class TestFree:
    def test_a_machine_without_groups(self, tmp_path: Path) -> None:
        assert free(_machine(tmp_path, "")) == 5000 * 1024

    def test_a_system_that_says_nothing_sets_no_limit(self, tmp_path: Path) -> None:
        assert free(tmp_path) == sys.maxsize

    def test_version_2(self, tmp_path: Path) -> None:
        root = _machine(tmp_path, "0::/job/step\n")
        _put(root / "sys/fs/cgroup/job/step", V2, "max", 100, 0)
        _put(root / "sys/fs/cgroup/job", V2, "1000", 700, 250)
        assert free(root) == 1000 - 700 + 250

    def test_version_1(self, tmp_path: Path) -> None:
        root = _machine(tmp_path, "5:devices:/\n4:cpu,memory:/job\n1:name=systemd:/\n")
        _put(root / "sys/fs/cgroup/memory/job", V1, "2000", 1500, 100)
        _put(root / "sys/fs/cgroup/memory", V1, "9223372036854771712", 1500, 100)
        assert free(root) == 600

    def test_in_a_container_the_group_is_what_is_mounted(self, tmp_path: Path) -> None:
        root = _machine(tmp_path, "0::/host/path\n")
        _put(root / "sys/fs/cgroup", V2, "1000", 1500, 0)
        assert free(root) == 0

    def test_this_machine(self) -> None:
        assert free() > 0


class TestRequire:
    def test_what_fits_is_let_pass(self) -> None:
        require("critical-path", 1_000_000, 2 << 30)

    def test_what_does_not_says_how_much_it_takes_and_what_to_do(self) -> None:
        with pytest.raises(UsageError) as caught:
            require("critical-path", 40_000_000, 22 << 30)
        said = str(caught.value)
        assert re.match(
            r"critical-path of 40,000,000 rows takes about \d\d GiB of memory, and 22 GiB are"
            r" allowed: choose some steps with --iterations 10:20, or allow more with --memory"
            r" \d+MiB$", said,
        )  # fmt: skip
        enough = int(said.rsplit(" ", 1)[1].removesuffix("MiB")) << 20
        require("critical-path", 40_000_000, enough)

    def test_some_steps_take_their_share(self) -> None:
        require("critical-path", 30_000_000, 1 << 30, share=0.01)
        with pytest.raises(UsageError, match="of 3,000,000 rows"):
            require("critical-path", 30_000_000, 1 << 30, share=0.1)

    def test_what_is_read_all_the_same_counts_where_some_steps_are_asked_for(self) -> None:
        with pytest.raises(UsageError):
            require("export", 30_000_000, 1 << 30, share=0.001)
        # Of more than a million rows, others are not read.
        require("export", 30_000_000, 2 << 30, share=0.001)
        require("export", 300_000_000, 2 << 30, share=0.0001)
        with pytest.raises(UsageError):
            require("export", 30_000_000, 2 << 30, share=0.02)

    def test_a_question_of_all_steps_names_no_steps(self) -> None:
        with pytest.raises(UsageError) as caught:
            require("flops", 30_000_000, 1 << 30)
        # It reads all of a run to look at some of its steps.
        with pytest.raises(UsageError, match="idle of 30,000,000 rows"):
            require("idle", 30_000_000, 1 << 30, share=0.001)
        assert "--iterations" not in str(caught.value)

    def test_by_default_it_is_what_is_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracekit.support.memory.free", lambda: 50 << 20)
        with pytest.raises(UsageError, match="and 50 MiB are free"):
            require("breakdown", 1, None)


_PAGE = (ROOT / "docs" / "evidence" / "performance.md").read_text(encoding="utf-8")
_TABLE = _PAGE.split("benchmarks/memory.py -->")[1].split("<!-- end of memory")[0]
_MEASURED = {
    name: [int(each.replace(",", "")) for each in re.findall(r"\((-?[\d,]+)\)", cells)]
    for name, cells in re.findall(r"^\| `([^`]+)` \|(.*)\|$", _TABLE, re.MULTILINE)
}
"""Bytes a kernel by what is asked, as the page lists them."""


def test_ingests_keep_to_a_tenth_above_their_limit() -> None:
    [limit] = re.findall(r"`ingest --memory (\d+)MiB`", _TABLE)
    rows = re.findall(r"^\| `(ingest.*)` \|(.*)\|$", _TABLE, re.MULTILINE)
    assert [name for name, _ in rows] == ["ingest, nothing compiled", "ingest"]
    for _, cells in rows:
        peaks = [int(cell.split()[0]) for cell in cells.split("|") if cell.strip() != "-"]
        assert peaks
        assert max(peaks) <= 1.1 * int(limit)


@pytest.mark.parametrize("name", NEEDS)
def test_a_need_is_no_less_than_what_was_measured(name: str) -> None:
    asked = {each for each in _MEASURED if _need_of(each) == name}
    most = max(grown for each in asked for grown in _MEASURED[each])
    assert asked
    in_steps = NEEDS[name].beside_bytes if name == "export" else None
    assert most <= (in_steps or NEEDS[name].row_bytes)


_PEAKS = {
    name: [
        int(cell.split()[0].replace(",", "")) if cell != "-" else 0 for cell in cells.split(" | ")
    ]
    for name, cells in re.findall(r"^\| `([^`]+)` \| (.*) \|$", _TABLE, re.MULTILINE)
    if cells.count(" | ") == 2 * 3 - 1
}
"""MiB of 1, 4 and 8 M kernels of either export."""


@pytest.mark.parametrize("name", [name for name in NEEDS if name not in ("export", "memory")])
def test_what_is_told_covers_each_peak(name: str) -> None:
    for asked in (each for each in _PEAKS if _need_of(each) == name):
        for place, peak in enumerate(_PEAKS[asked]):
            rows = (1, 4, 8)[place % 3] * 1_000_000
            require(name, rows, 64 << 30)
            if peak:
                with pytest.raises(UsageError):
                    require(name, rows, (peak << 20) - 1)


def _need_of(question: str) -> str:
    """Return the need that covers what a row of the page asks."""
    return question if question in NEEDS else question.split(" by ", maxsplit=1)[0]
