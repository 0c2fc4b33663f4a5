"""Programs that forget to end their ranges: each lies in all that came before it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nsys_builder import NsysBuilder

PUSHES = 60_000
MOST = 640 << 10
"""KiB."""
_RUN = """
import sys
from pathlib import Path
from tracekit.cli import main
try:
    main()
finally:
    status = Path("/proc/self/status").read_text()
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    Path("peak").write_text(peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no peak of memory is told")
def test_ranges_that_are_never_ended_take_little_memory(tmp_path: Path) -> None:
    with NsysBuilder(tmp_path / "t.sqlite", schema="3.0.0") as nsys:
        for number in range(PUSHES):
            nsys.push_pop(10 * number, None, "forward" if number % 2 else "step")
            if number % 1000 == 1:
                nsys.launch(10 * number + 1, 10 * number + 6, 10 * number + 9, name="gemm")
        for thread in range(200, 400):
            nsys.push_pop(1, 1000, "work", tid=thread)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "breakdown", "t.sqlite", "--by", "range", "--format", "json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert sum(row["ops"] for row in rows) == len(rows) == PUSHES // 1000
    texts = {row["range"] for row in rows}
    assert "step > forward" in texts
    # The last launch is made in range PUSHES - 999, counted from 0.
    ends = " > ".join(["step > forward"] * 4), " > ".join(["step > forward"] * 12)
    assert f"{ends[0]} > ... ({PUSHES - 998 - 32} more) > {ends[1]}" in texts
    assert max(len(row["range"]) for row in rows) < 500
    assert int((tmp_path / "peak").read_text()) < MOST
