"""Phases of real serving traces, against the annotations in their JSON and TraceLens's tables."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("trace", "phase", "requests", "tokens", "busy_ms"),
    [
        # step[EXTEND bs=15 toks=15360] inside of execute_15360_context_15(sq15360...)
        ("sglang_prefilldecode", "prefill", 15, 15_360, 492.8068642578125),
        # execute_32_context_0(...)_generation_32(sq32...)
        ("vllm_decode_replay", "decode", 32, 32, 10.717697265625),
    ],
)
def test_phases_are_those_of_the_annotations(
    real_run, trace: str, phase: str, requests: int, tokens: int, busy_ms: float
) -> None:
    (row,) = real_run(f"tracelens/{trace}").breakdown("phase").to_dicts()
    assert (row["phase"], row["steps"], row["requests"], row["tokens"]) == (
        phase,
        1,
        requests,
        tokens,
    )
    assert row["busy_ns"] / 1e6 == pytest.approx(busy_ms, abs=0.001)
    assert row["token_ns"] == pytest.approx(row["window_ns"] / tokens)
