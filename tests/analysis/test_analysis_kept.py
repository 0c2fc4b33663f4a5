"""Answers about a long run, from sums that an earlier question cached in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracekit

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp_4gpu.sqlite"


@pytest.mark.usefixtures("samples_read_once")
@pytest.mark.parametrize(
    ("question", "options", "reads_ops"),
    [
        ("diagnose", {"only": ["tiny_kernels"]}, "tracekit.analysis.diagnosis._parts.Part.ops"),
        ("breakdown", {"by": "range", "inclusive": True}, "tracekit.engine._inclusive.path_tree"),
    ],
)
def test_what_is_added_up_of_a_long_run_is_read_once(
    question: str, options: dict[str, Any], reads_ops: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = tracekit.ingest(SAMPLE, store=tmp_path)[0]

    def asked() -> object:
        answer = getattr(tracekit.open(run.id, store=tmp_path), question).answer(**options)
        return answer.rows.to_dicts(), answer.meta

    told = asked()
    monkeypatch.setattr("tracekit.model._trace._LONG", 0)
    assert asked() == told
    monkeypatch.setattr(reads_ops, None)
    assert asked() == told
