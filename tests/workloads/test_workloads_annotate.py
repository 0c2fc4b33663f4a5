"""What the training programs write into a trace, and what tracekit makes of it."""

from __future__ import annotations

import sys
from itertools import pairwise

import polars as pl
import pytest
from rank_helpers import modules_of

torch = pytest.importorskip("torch")

from nvtx_recorder import TICK, Recorder, Span  # noqa: E402
from trace_builder import TraceBuilder, default_rules, iterations_of, stages  # noqa: E402

from tracekit.support.labels import label_fault  # noqa: E402
from workloads import _annotate  # noqa: E402
from workloads._annotate import (  # noqa: E402
    LABEL,
    Annotations,
    NvtxAnnotations,
    layer_name,
    named_layers,
    warn_of_lost_ranges,
)
from workloads._loop import MEASURED, _captured, train  # noqa: E402
from workloads._options import Options  # noqa: E402
from workloads.methods._method import World  # noqa: E402
from workloads.methods.none import Single  # noqa: E402
from workloads.networks import NETWORKS, build  # noqa: E402

TRAINER, ENGINE = 0, 1
"""The thread that runs the loop, and the one that PyTorch runs backward passes on."""

STAGES = ("IO", "FP", "BP", "WU", "gradient exchange", "optimizer", "weight exchange")
"""The ranges of a step of p2p, in order."""

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setitem(sys.modules, "nvtx", made)
    return made


def _lenet(**options: object) -> Options:
    given = {"batch": 4, "steps": 2, "layers": False, **options}
    return Options(**given)


def _after(span: Span) -> int:
    return span.start + TICK // 2


def _before_end(span: Span) -> int:
    return span.end - TICK // 2


def test_a_step_of_several_devices_is_annotated_stage_by_stage(recorder: Recorder) -> None:
    train(_lenet(method="p2p", gpus=2), World())
    assert recorder.domains == {"tracekit"}
    assert [span.name for span in recorder.spans] == [
        name for step in ("iteration 0", "iteration 1") for name in (step, *STAGES)
    ]
    for name in ("iteration 0", "iteration 1"):
        (step,) = recorder.named(name)
        assert recorder.within(step)[:4] == ["IO", "FP", "BP", "WU"]
    for update in recorder.named("WU"):
        inside = ["gradient exchange", "optimizer", "weight exchange"]
        assert recorder.within(update) == inside
    assert {span.style for span in recorder.named("BP")} == {"start_end"}
    assert {span.style for span in recorder.spans if span.name != "BP"} == {"push_pop"}


def test_what_is_not_a_measured_step_is_no_iteration(recorder: Recorder) -> None:
    train(_lenet(warm_up=2, steps=3, evaluate_every=2, capture_range=True), World())
    warm_ups = [recorder.named(f"warm-up {number}")[0] for number in (0, 1)]
    (measured,) = recorder.named(MEASURED)
    steps = [recorder.named(f"iteration {number}")[0] for number in (0, 1, 2)]
    (evaluation,) = recorder.named("ME")
    order = [*warm_ups, *steps[:2], evaluation, steps[2]]
    assert all(one.end < other.start for one, other in pairwise(order))
    assert measured.start > warm_ups[1].end
    assert measured.end > steps[2].end
    assert {"iteration 0", "ME"} <= set(recorder.within(measured))


def test_processes_that_are_several_say_which_they_are(recorder: Recorder) -> None:
    notes = NvtxAnnotations(layers=False)
    notes.rank(0, 1)
    notes.rank(1, 4)
    assert recorder.marks == ["tracekit.rank 1 of 4"]


def test_a_profiler_records_once_all_processes_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One for all of them begins with the first that tells it, and ends with the first."""
    happened: list[str] = []

    class Gpu(Single):
        devices = (torch.device("cuda"),)

        def __init__(self) -> None:
            pass

        def total(self, values: torch.Tensor) -> torch.Tensor:
            happened.append("all are here")
            return values

    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: happened.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: happened.append("stop"))
    with _captured(Annotations(), Gpu(), wanted=True):
        happened.append("steps")
    here = "all are here"
    assert happened == [here, "start", here, "steps", here, "stop"]


@pytest.mark.parametrize("autograd", ["pt_autograd_0", None])
def test_tracekit_finds_the_stage_of_what_each_range_launches(
    recorder: Recorder, autograd: str | None
) -> None:
    train(
        _lenet(method="p2p", gpus=2, steps=3, evaluate_every=3, layers=True, capture_range=True),
        World(),
    )
    trace = TraceBuilder()
    trace.thread(ENGINE, autograd)
    for span in recorder.spans:
        trace.range(span.start, span.end, span.name, style=span.style, thread=TRAINER)
    expected: dict[str, tuple[str, int | None]] = {}

    def launch(name: str, at: int, stage: str, step: int | None, **op: object) -> None:
        trace.op(f"{name} {step}", at=at, **op)
        expected[f"{name} {step}"] = (stage, step)

    for step in range(3):
        (iteration,) = recorder.named(f"iteration {step}")
        loading, forward, backward, update, gather, optimizer, scatter = (
            recorder.named(name)[step] for name in STAGES
        )
        convolution = recorder.named("layer conv2 (Conv2d)")[2 * step]
        copy = {"kind": "p2p", "bytes": 1000}
        launch("input", _after(loading), "IO", step, kind="h2d", bytes=10)
        launch("loss", _before_end(forward), "FP", step)
        launch("conv", _after(convolution), "FP", step)
        launch("ones", _after(backward), "BP", step)
        launch("gradient of conv", _after(backward) + 1, "BP", step, thread=ENGINE)
        launch("last gradient", _before_end(backward), "BP", step, thread=ENGINE)
        launch("first of update", _after(update), "WU", step)
        launch("from others", _after(gather), "WU", step, **copy)
        launch("average", _after(gather) + 1, "WU", step)
        launch("elementwise", _after(optimizer), "WU", step)
        launch("to others", _after(scatter), "WU", step, **copy)
        trace.op(f"{ALL_REDUCE}", at=_after(backward) + 2, thread=ENGINE, kind="collective")
        assert iteration.end > update.end
    launch("test", _after(recorder.named("ME")[0]), "ME", None)
    found = trace.attributed()
    told = stages(found)
    assert {name: (told[name][0], iterations_of(found)[name]) for name in expected} == expected
    assert told[ALL_REDUCE] == ("WU", "gradient_exchange")


@pytest.mark.parametrize("name", NETWORKS)
def test_names_of_layers_say_nothing_of_stages(name: str) -> None:
    with torch.device("meta"):
        network = build(name)
    names = [layer_name(*layer) for layer in named_layers(network)]
    assert len(names) == len(set(names))
    rules = default_rules()
    found = pl.DataFrame({"name": names, "domain": "tracekit"}).filter(
        rules.outcome("range", "stage", {"name": "name", "domain": "domain"}).is_not_null()
        | rules.any_of("iteration", {"name": "name"})
    )
    assert found["name"].to_list() == []


def test_layers_are_the_modules_without_modules_and_the_blocks() -> None:
    network = torch.nn.Sequential()
    network.add_module("conv1", torch.nn.Conv2d(1, 1, 1))
    network.add_module("block", torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU()))
    assert [layer_name(*layer) for layer in named_layers(network)] == [
        "layer conv1 (Conv2d)",
        "layer block (Sequential)",
        "layer block.0 (Linear)",
        "layer block.1 (ReLU)",
    ]


def test_layers_run_within_the_forward_pass(recorder: Recorder) -> None:
    train(_lenet(steps=1, layers=True), World())
    (forward,) = recorder.named("FP")
    layers = [span.name for span in recorder.spans if span.name.startswith("layer ")]
    assert recorder.within(forward) == layers
    assert layers[:2] == ["layer conv1 (Conv2d)", "layer tanh1 (Tanh)"]
    assert len(layers) == 13


def test_labels_say_what_the_run_is(recorder: Recorder) -> None:
    summary = train(_lenet(method="p2p", gpus=2, seed=7), World())
    pairs = dict(mark.removeprefix(f"{LABEL} ").split("=", 1) for mark in recorder.marks)
    assert pairs == summary.labels
    wanted = {
        "network": "lenet", "batch": "4", "batch_scope": "gpu", "gpus": "2", "method": "p2p",
        "root": "0", "seed": "7", "parameters": "61706", "precision": "fp32", "device": "cpu",
        "torch": torch.__version__, "data": "synthetic",
    }  # fmt: skip
    assert wanted.items() <= pairs.items()
    assert all(label_fault(key, value) is None for key, value in pairs.items())
    assert "scaling" not in pairs


@pytest.mark.training
def test_without_annotations_nvtx_is_not_even_imported() -> None:
    loaded = modules_of(Options(steps=1, batch=1, nvtx=False))
    assert "torch" in loaded
    assert "nvtx" not in loaded


@pytest.mark.parametrize(
    ("installed", "injected", "warns"),
    [
        ("0.2.11", True, False),
        ("0.2.12", True, True),
        ("0.3", True, True),
        ("0.2.12", False, False),
    ],
)
def test_a_version_of_nvtx_that_may_lose_ranges_is_told_under_a_profiler(
    installed: str,
    injected: bool,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_annotate, "version", lambda package: installed)
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    if injected:
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "libToolsInjection64.so")
    warn_of_lost_ranges()
    told = capsys.readouterr().err
    assert told.count("\n") == (1 if warns else 0)
    assert ("nvtx<0.2.12" in told) == warns
