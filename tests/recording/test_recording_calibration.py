"""What a recording costs: told as a range from pairs of runs, or said to be unknown."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from fake_nsys import make_fake_nsys

from tracekit.errors import ProgramError
from tracekit.recording import Cost, Plan, Wanted, calibrate, find_nsys, plan

_OPTIMIZERS = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
"""
_PROGRAM = """
import os, sys, time
from torch.optim.optimizer import Optimizer
def above(pid):
    while pid > 1:
        with open(f"/proc/{pid}/cmdline") as line, open(f"/proc/{pid}/stat") as stat:
            yield line.read()
            pid = int(stat.read().rpartition(")")[2].split()[1])
is_recorded = any("\\0profile\\0" in line for line in above(os.getppid()))
now = 0
time.perf_counter_ns = lambda: now
main, other = Optimizer(), Optimizer()
for step in range(STEPS):
    now += 1500 if is_recorded else 1000
    main.step()
    now += 10 if is_recorded else 0  # between the steps of two optimizers
    other.step()
sys.exit(CODE)
"""


_TRAINING = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).mean().backward()
    optimizer.step()
"""


def _plan(folder: Path, steps: int = 8, code: int = 0, annotate: bool = False) -> Plan:
    """Return how to record a program on a clock of its own, with what takes PyTorch's place."""
    package = folder / "torch" / "optim"
    package.mkdir(parents=True)
    for each in (package.parent, package):
        (each / "__init__.py").touch()
    (package / "optimizer.py").write_text(_OPTIMIZERS)
    program = folder / "train.py"
    program.write_text(_PROGRAM.replace("STEPS", str(steps)).replace("CODE", str(code)))
    nsys = find_nsys(str(make_fake_nsys(folder)))
    return plan([sys.executable, str(program)], Wanted(annotate=annotate), nsys, folder / "out")


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.recording._calibration.PAIRS", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_the_cost_of_steps_is_that_of_their_median(tmp_path: Path) -> None:
    """From a step of an optimizer to its next one: 1000 ns without nsys, and 1510 with it."""
    runs: list[tuple[int, int]] = []
    cost = calibrate(_plan(tmp_path), started=lambda *each: runs.append(each))
    assert cost == Cost((1.51, 1.51), 1000.0, has_steps=True)
    assert runs == [(number, 5) for number in range(1, 6)]
    assert not list(tmp_path.glob("out*"))


@pytest.mark.slow
@pytest.mark.usefixtures("_few")
def test_where_few_steps_are_made_the_whole_program_is_meant(tmp_path: Path) -> None:
    cost = calibrate(_plan(tmp_path, steps=5), started=lambda *_: None)
    assert not cost.has_steps
    assert cost.alone_ns > 1e6
    assert len(cost.ratios) == 2
    assert "steps are unknown: no optimizer of PyTorch makes 6 or more" in str(cost)


@pytest.mark.slow
def test_a_program_that_fails_is_not_run_again(tmp_path: Path) -> None:
    runs = []
    with pytest.raises(ProgramError, match="ended with code 3 without nsys") as error:
        calibrate(_plan(tmp_path, code=3), started=lambda *each: runs.append(each))
    assert error.value.exit_code == 3
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ((1.4, 1.6, 1.5), "recording makes steps 1.40 to 1.60 times as long\n"),
        ((0.99, 1.02, 1.0), "steps 0.99 to 1.02 times as long, which may be no cost at all"),
        (
            (0.9, 1.8, 1.3),
            "the cost of recording cannot be measured here: it makes steps 0.90 to 1.80",
        ),
    ],
)
def test_a_cost_is_a_range_or_cannot_be_told(ratios: tuple[float, ...], said: str) -> None:
    text = str(Cost(ratios, 12_345_678.0, has_steps=True))
    assert said in text
    assert text.endswith("\n(3 pairs of runs, without and with nsys; 12.35 ms without)")


def test_of_a_whole_program_it_is_said() -> None:
    said = str(Cost((1.1, 1.2), 5e9, has_steps=False))
    assert said.startswith("recording makes the whole program 1.10 to 1.20 times as long\n")


@pytest.mark.nightly
@pytest.mark.usefixtures("_few")
@pytest.mark.skipif(shutil.which("nsys") is None, reason="no nsys on the path")
def test_steps_of_pytorch_are_timed_under_nsys(tmp_path: Path) -> None:
    """With annotations, which steps of some tenths of a millisecond notice."""
    program = tmp_path / "train.py"
    program.write_text(_TRAINING)
    words = [sys.executable, str(program)]
    made = plan(words, Wanted(annotate=True), find_nsys("nsys"), tmp_path / "out")
    cost = calibrate(made, started=lambda *_: None)
    assert cost.has_steps
    assert 1e4 < cost.alone_ns < 1e9
    assert 0.2 < min(cost.ratios) <= max(cost.ratios) < 20
