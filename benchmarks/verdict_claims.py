"""Try what commands other than `compare` say with an interval or a test, where the truth is known.

Each function draws noise and returns how often the command is wrong; `verdicts.py` writes the
tables.
"""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from verdict_kinds import SPREAD, Floats, Kind

from tracekit.analysis.breakdowns._breakdown import outlier_ranks
from tracekit.analysis.diagnosis._exchange_rules import _HALF, _TWICE, _exceeds_chance
from tracekit.analysis.statistics import cold_steps, differences
from tracekit.analysis.studies import overhead
from tracekit.analysis.studies._ratios import step_interval
from tracekit.analysis.studies._study import STUDY

TRIALS = 200
LENGTHS = ((5, 5), (20, 20), (200, 200), (200, 8), (2_000, 200))
"""Numbers of steps of both runs of a ratio."""
RANKS = (5, 8, 16, 64, 1_024)
WAITED = ((2, 5), (2, 20), (2, 200), (8, 5), (8, 20), (8, 200))
"""Numbers of ranks and of steps."""
KERNELS, SLOWER_KERNELS = 200, 20
ROWS = (5, 20, 200)
"""Numbers of steps of comparisons by kernel."""
_NS = 10_000


def _random(*names: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"held out {names}".encode()))


def ratios(kind: Kind, steps: tuple[int, int]) -> tuple[float, float | None]:
    """Return how often the ratio of two runs is without an interval, and how many hold the truth.

    Runs are drawn alike, so that the overhead of a method is 0.
    """
    random = _random("ratios", kind.name, steps)
    drawn = [_NS * kind.draw(random, TRIALS, number) for number in steps]
    rows = [
        {"network": f"{at}", "batch": 1, "gpus": 1, "method": method, **_study_of(lengths)}
        for method, runs in zip(("p2p", "nccl"), drawn, strict=True)
        for at, lengths in enumerate(runs)
    ]
    study = pl.DataFrame([{name: row.get(name) for name in STUDY} for row in rows], STUDY)
    found = overhead(study).rows.drop_nulls("from_percent")
    right = found.filter((found["from_percent"] <= 0) & (found["to_percent"] >= 0)).height
    return 1 - found.height / TRIALS, right / found.height if found.height else None


def _study_of(lengths: Floats) -> dict[str, Any]:
    steps = np.rint(lengths[cold_steps(lengths) :]).astype(np.int64)
    parts = pl.DataFrame({"iteration": np.arange(len(steps)), "length_ns": steps})
    measured: Any = SimpleNamespace(parts=parts, iterations=range(len(steps)), devices=1)
    return {"iterations": len(steps), "step_ns": steps.mean(), **step_interval(measured)}


def unusual_ranks(number: int) -> tuple[float, float]:
    """Return how often ranks that vary alike are called unusual, and one that is 20 % slower."""
    random = _random("ranks", number)
    busy = _NS * (100 + SPREAD * random.normal(size=(TRIALS, number)))
    slow = busy * np.where(np.arange(number) == 1, 1.2, 1)
    told = [
        [{each["rank"] for each in outlier_ranks(_by_rank(run))} for run in runs]
        for runs in (busy, slow)
    ]
    return sum(map(bool, told[0])) / TRIALS, sum(1 in each for each in told[1]) / TRIALS


def _by_rank(busy: Floats) -> pl.DataFrame:
    return pl.DataFrame({"rank": np.arange(len(busy)), "busy_ns": np.rint(busy).astype(np.int64)})


def stragglers(kind: Kind, ranks: int, steps: int) -> tuple[float, float]:
    """Return how often equal ranks have a straggler, and ranks of which one is 10 % slower.

    As in `diagnose`: the rank that costs most is slower than the median of the others, and costs
    more than all others together, beyond chance.
    """
    random = _random("stragglers", kind.name, ranks, steps)
    drawn = kind.draw(random, TRIALS * ranks, steps).reshape(TRIALS, ranks, steps)
    slow = drawn * np.where(np.arange(ranks) == 0, 1.1, 1)[:, np.newaxis]
    found = [sum(map(_has_straggler, each)) / TRIALS for each in (drawn, slow)]
    return found[0], found[1]


def _has_straggler(times: Floats) -> bool:
    ranks = len(times)
    last = times.argmax(axis=0)
    waits = (times.max(axis=0) - times).sum(axis=0) / (ranks - 1)
    caused = np.where(np.arange(ranks)[:, np.newaxis] == last, waits, 0)
    worst = int(caused.sum(axis=1).argmax())
    often, share, chance = (last == worst).mean(), caused[worst].sum() / caused.sum(), 1 / ranks
    if often < min(_TWICE * chance, (1 + chance) / 2) or share < _HALF:
        return False
    others = np.delete(times, worst, axis=0)
    apart = caused[worst] - np.delete(caused, worst, axis=0).sum(axis=0)
    slower = times[worst] - np.median(others, axis=0)
    return all(_exceeds_chance(pl.Series(each), ranks) for each in (apart, slower))


def kernels(kind: Kind, steps: int) -> tuple[float, float]:
    """Return how often any kernel of equal runs differs, and the share of wrong ones among others.

    All kernels of a step go with it (a clock), and vary by a quarter as much alone. In the other
    runs one kernel of ten is 10 % slower.
    """
    random = _random("kernels", kind.name, steps)
    any_, shares = 0, []
    for _ in range(TRIALS // 4):
        a, b = (
            _NS * (kind.draw(random, 1, steps) + SPREAD / 4 * random.normal(size=(KERNELS, steps)))
            for _ in range(2)
        )
        slower = b * np.where(np.arange(KERNELS) < SLOWER_KERNELS, 1.1, 1)[:, np.newaxis]
        told = [_differ(a, each) for each in (b, slower)]
        any_ += bool(told[0].any())
        shares.append(told[1][SLOWER_KERNELS:].sum() / max(told[1].sum(), 1))
    return any_ / len(shares), float(np.mean(shares))


def _differ(a: Floats, b: Floats) -> Any:
    found = differences(np.rint(a).astype(np.int64), np.rint(b).astype(np.int64))
    return (found.low > 0) | (found.high < 0)
