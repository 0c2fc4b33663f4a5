"""The generator of PyTorch's traces writes what a real one holds, and the same for a seed."""

from __future__ import annotations

import gzip
import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import tracekit
from tracekit.sources.kineto import _document

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("generate_kineto")


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("same_tables")


def test_events_are_those_that_the_profiler_writes(generator: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    job = generator.Job(megabytes=1, layers=3, operators=4, depth=2, stack=2, sizes=1)
    found = generator.generate(path, job)
    events = json.loads(path.read_text())["traceEvents"]
    kinds = Counter((each["ph"], each.get("cat")) for each in events)

    assert len(events) == found["events"]
    assert path.stat().st_size == found["bytes"]
    # Of each step: 24 operators forward and backward, 2 exchanges, 4 updates, a copy and a memset.
    assert kinds["X", "kernel"] == 30 * found["steps"]
    assert kinds["X", "gpu_memcpy"] == kinds["X", "gpu_memset"] == found["steps"]
    assert kinds["X", "cuda_runtime"] == kinds["s", "ac2g"] == 32 * found["steps"]
    assert kinds["s", "fwdbwd"] == kinds["f", "fwdbwd"] == 12 * found["steps"]
    assert kinds["X", "python_function"] == 24 * found["steps"]
    launches = {each["args"]["correlation"]: each for each in events if each.get("cat") == "kernel"}
    calls = {each["args"]["correlation"]: each for each in events
             if each.get("cat") == "cuda_runtime"}  # fmt: skip
    assert all(calls[number]["ts"] < each["ts"] for number, each in launches.items())


def test_the_seed_decides(generator: Any, tmp_path: Path) -> None:
    texts = []
    for seed, name in ((4, "a.json"), (4, "b.json.gz"), (5, "a.json")):
        path = tmp_path / name
        generator.generate(path, generator.drawn(seed, megabytes=1, layers=2))
        text = path.read_bytes()
        texts.append((gzip.decompress(text) if name.endswith("z") else text).replace(b".gz", b""))
    assert texts[0].replace(b"a.json", b"b.json") == texts[1]
    assert texts[1] != texts[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(each, marks=pytest.mark.nightly) for each in (2, 3))]
)
def test_tables_of_drawn_traces_are_the_same_with_compiled_loops_and_without(
    generator: Any, same: Any, tmp_path: Path, seed: int
) -> None:
    path = tmp_path / f"drawn.json{'.gz' * (seed % 2)}"
    generator.generate(path, generator.drawn(seed, megabytes=1, layers=4))
    for least, folder in ((1 << 62, "plain"), (0, "compiled")):
        with patch.object(_document, "FEWEST_BYTES", least):
            run, _ = tracekit.ingest(path, store=tmp_path / "store" / folder)
        same.write(run, tmp_path / folder)
    assert run.trace.height("ops") > 0
    assert list(same.differences(tmp_path / "plain", tmp_path / "compiled")) == []
    (tmp_path / "plain" / "ops.parquet").unlink()
    assert list(same.differences(tmp_path / "plain", tmp_path / "compiled")) == ["ops"]
