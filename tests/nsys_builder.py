"""Traces of literal rows for the tests.

`NsysBuilder` writes a file in the schema of any nsys version that ``schemas/nsys`` describes:

    with NsysBuilder(tmp_path / "t.sqlite", schema="3.0.0") as nsys:
        nsys.push_pop(90, 130, "forward")
        nsys.call(100, 105, correlation=1)
        nsys.kernel(110, 120, correlation=1, name="gemm<float>(int)")

Whatever the version has no table or column for is left out, so one test can build the same trace
for all versions. The writer lies in ``sample_traces``, which pytest's ``pythonpath`` names.
"""

from __future__ import annotations

from typing import Any

from nsys_writer import NsysWriter, global_pid, global_tid, load_schema, schema_versions

__all__ = ["NsysBuilder", "global_pid", "global_tid", "load_schema", "schema_versions"]


class NsysBuilder(NsysWriter):
    """`NsysWriter` with a short form for a kernel and the call that launches it."""

    _correlation = 1_000_000

    def launch(
        self, at: int, start: int, end: int, *, pid: int = 100, tid: int | None = None, **op: Any
    ) -> int:
        """Add a launch of 5 ns at `at` and its kernel; return their correlation id.

        `op` is passed on to `kernel`. The ids count from 1,000,000 so that they stay clear of
        those that a test gives itself.
        """
        self._correlation += 1
        self.call(at, at + 5, correlation=self._correlation, pid=pid, tid=tid)
        self.kernel(start, end, correlation=self._correlation, pid=pid, **op)
        return self._correlation
