"""Questions by phase of a small serving trace, as typed: rows, and the JSON that they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_helpers import ROOT, tracekit

PREFILL = "execute_context_2(50)_generation_0(0)"
DECODE = "execute_context_0(0)_generation_4(4)"


def serving(path: Path, *steps: tuple[str, int]) -> Path:
    """Write steps of a server, us; in each a copy of 10 us to the GPU, and a kernel to its end."""
    events: list[dict[str, Any]] = []
    at = 1_000
    for number, (name, length) in enumerate(steps):
        place = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**place, "cat": "user_annotation", "name": name, "ts": at, "dur": length})
        for which, (call, op, begin, end) in enumerate(
            [("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", 5, 15),
             ("cudaLaunchKernel", "gemm", 20, length)]
        ):  # fmt: skip
            correlation = 1 + 2 * number + which
            args = {"correlation": correlation}
            events.append({**place, "cat": "cuda_runtime", "name": call, "ts": at + 1 + which,
                           "dur": 1, "args": args})  # fmt: skip
            more = {} if which else {"bytes": 4_000}
            events.append({
                "ph": "X", "pid": 0, "tid": 7, "cat": "kernel" if which else "gpu_memcpy",
                "name": op, "ts": at + begin, "dur": end - begin,
                "args": {**args, "device": 0, "stream": 7, **more},
            })  # fmt: skip
        at += length
    devices = [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]
    path.write_text(json.dumps({"deviceProperties": devices, "traceEvents": events}))
    return path


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEKIT_STORE", str(tmp_path / "store"))
    a = [(PREFILL, 1_000), (DECODE, 100), (DECODE, 101), (DECODE, 99)] * 6
    b = [(PREFILL, 1_000), *[(DECODE, 150), (DECODE, 151), (DECODE, 149)] * 2] * 6
    for name, steps in (("a", a), ("b", b)):
        tracekit("ingest", str(serving(tmp_path / f"{name}.json", *steps)))
    return tmp_path


def rows(*words: str) -> list[dict[str, Any]]:
    """Return the rows of an answer whose JSON is as its schema says."""
    document = json.loads(tracekit(*words, "--format", "json").stdout)
    schema = ROOT / "schemas" / "json" / f"{words[0]}.schema.json"
    jsonschema.validate(document, json.loads(schema.read_text()))
    found: list[dict[str, Any]] = document["rows"]
    return found


@pytest.mark.slow
def test_each_question_by_phase(served: Path) -> None:
    told = {row["phase"]: row for row in rows("breakdown", "a", "--by", "phase")}
    assert (told["decode"]["steps"], told["prefill"]["steps"]) == (18, 6)
    idle = {row["phase"]: row["idle_ns"] for row in rows("idle", "a", "--by", "phase")}
    # Nothing runs for 5 us after a copy, and for 5 before that of the next step, if there is one.
    assert idle == {"decode": 18 * 10_000 - 5_000, "prefill": 6 * 10_000}
    assert sum(idle.values()) == sum(row["idle_ns"] for row in rows("idle", "a"))
    moved = {row["phase"]: row["bytes"] for row in rows("links", "a", "--by", "phase")}
    assert moved == {"decode": 18 * 4_000, "prefill": 6 * 4_000}


@pytest.mark.slow
def test_a_comparison_by_phase(served: Path) -> None:
    found = rows("compare", "a", "b", "--by", "phase", "--skip", "0")
    told = {row["phase"]: (row["a_steps"], row["b_steps"], row["verdict"]) for row in found}
    assert told == {"prefill": (6, 6, "too small to matter"), "decode": (18, 36, "slower")}
    decode = next(row for row in found if row["phase"] == "decode")
    # The last step ends with its op, 5 us before the next would begin.
    expected = (18 * 100_000 - 5_000) / 18, (36 * 150_000 - 5_000) / 36
    assert (decode["a_ns"], decode["b_ns"]) == pytest.approx(expected)
    assert "tokens" in tracekit("compare", "a", "b", "--by", "phase").stdout
