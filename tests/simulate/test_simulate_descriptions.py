"""What the simulator is told: assumptions, networks, jobs, schedules."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from simulate.__main__ import main
from simulate.grid import BUNDLED, grid, scenarios
from simulate.job import Job
from simulate.network import load_network, network_names
from simulate.parameters import Parameters, described, kernel_ns, load_parameters
from simulate.pipeline import cut, order_passes
from simulate.transport import Pass

SIMULATOR = Path(__file__).resolve().parents[2] / "sample_traces" / "simulate"


def test_every_assumption_has_a_unit_and_a_source() -> None:
    assert set(described()) == {field.name for field in fields(Parameters)}
    for name, entry in described().items():
        assert set(entry) - {"range"} == {"value", "unit", "source"}, name
        low, high = entry.get("range", (entry["value"], entry["value"]))
        assert low <= entry["value"] <= high, name
        assert len(str(entry["source"])) > 15, name


def test_unknown_assumptions_are_refused() -> None:
    with pytest.raises(ValueError, match="no such parameter: speed_of_light"):
        load_parameters(speed_of_light=1.0)


def test_the_simulator_imports_nothing_of_tracekit() -> None:
    for path in SIMULATOR.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in {"tracekit", "polars"} for name in names), path


def test_it_runs_where_there_is_no_tracekit(tmp_path: Path) -> None:
    script = (
        "import sys, runpy; sys.modules['tracekit'] = None; "
        f"sys.argv = ['simulate', 'scenarios', {str(tmp_path)!r}, '--only', 'launch_bound',"
        f" '--workers', '0']; runpy.run_path({str(SIMULATOR)!r}, run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, capture_output=True)
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"launch_bound.sqlite", "launch_bound.truth.json.gz"}


def test_a_kernel_is_held_by_what_takes_longer_and_by_being_small() -> None:
    p = load_parameters(
        peak_flops=10**12, compute_efficiency=0.5, half_flops=10**6,
        memory_bandwidth=10**11, memory_efficiency=0.5, half_bytes=10**4, kernel_floor_ns=1_500,
    )  # fmt: skip
    # 10^9 operations at half of 10^12 per second, and 2,000 ns for being small.
    assert kernel_ns(1e9, 1e6, p) == 2_002_000
    # 10^8 bytes at half of 10^11 per second, and 200 ns.
    assert kernel_ns(1e6, 1e8, p) == 2_000_200
    assert kernel_ns(0, 100, p) == 1_500
    # At 10^6 operations it is at half of its efficiency, and at far more at nearly all of it.
    assert kernel_ns(1e6, 0, p) == 2 * round(1e6 / 0.5e12 * 1e9)


# Weights as published of these networks, biases and normalisations included.
WEIGHTS = {
    "lenet": 61_706,
    "alexnet": 60_965_224,
    "googlenet": 6_998_552,
    "inception-v3": 23_834_568,
    "resnet-110": 54_591_528,
}
GIGA_OPERATIONS = {"alexnet": 1.45, "googlenet": 3.17, "inception-v3": 11.4}
"""Of a forward pass, a multiplication with its addition counted as two."""


def test_the_networks_have_the_weights_of_their_papers() -> None:
    assert {name: load_network(name).weights for name in network_names()} == WEIGHTS


@pytest.mark.parametrize(("name", "operations"), GIGA_OPERATIONS.items())
def test_the_networks_have_the_operations_of_their_papers(name: str, operations: float) -> None:
    kernels = [kernel for layer in load_network(name).layers for kernel in layer.forward]
    total = sum(kernel.flops_per_image for kernel in kernels)
    assert total / 1e9 == pytest.approx(operations, rel=0.02)


def test_resnet_has_110_layers() -> None:
    layers = load_network("resnet-110").layers
    depth = [each for each in layers if each.name.startswith(("conv", "fc"))]
    shortcuts = [each for each in depth if each.name.endswith("s")]
    assert len(depth) - len(shortcuts) == 110


def test_a_convolution_by_hand() -> None:
    conv, pool = load_network("lenet").layers[:2]
    # 6 windows of 5 x 5 on 32 x 32 leave 28 x 28; a multiplication and an addition for each tap.
    assert conv.arrays == (6 * 25, 6)
    fprop, relu = conv.forward
    assert fprop.work(images=2) == (2 * 2 * 25 * 6 * 28 * 28, 4 * (2 * (1024 + 4704) + 150))
    assert relu.work(images=1) == (0, 4 * 2 * 4704)
    # The first layer needs no gradient of its input.
    assert [kernel.name for kernel in conv.backward] == ["relu_backward", "conv_wgrad"]
    assert pool.outputs == 6 * 14 * 14


def _makespan(schedule: str, stages: int, micro_batches: int, forward: int, backward: int) -> int:
    """When all passes are done if a pass starts as soon as its stage and its input are there."""
    todo = {stage: order_passes(schedule, stage, stages, micro_batches) for stage in range(stages)}
    done: dict[tuple[int, Pass], int] = {}
    free = dict.fromkeys(range(stages), 0)
    while any(todo.values()):
        for stage, passes in todo.items():
            if not passes:
                continue
            way, number = passes[0]
            before = stage - 1 if way == "F" else stage + 1
            needs = [(before, passes[0])] if 0 <= before < stages else []
            needs += [(stage, ("F", number))] if way == "B" else []
            if all(need in done for need in needs):
                start = max([free[stage], *(done[need] for need in needs)])
                free[stage] = start + (forward if way == "F" else backward)
                done[stage, passes.pop(0)] = free[stage]
    return max(done.values())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipelines_have_the_bubble_of_theory(schedule: str) -> None:
    # (p - 1) / (m + p - 1) of the time is bubble: 3 of 11 parts, of which each is 3 long.
    assert _makespan(schedule, 4, 8, 1, 2) == 33
    assert _makespan(schedule, 4, 1, 1, 2) == 12


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stage", range(4))
def test_every_micro_batch_goes_forward_before_it_goes_back(schedule: str, stage: int) -> None:
    passes = order_passes(schedule, stage, 4, 6)
    assert sorted(passes) == [(way, number) for way in "BF" for number in range(6)]
    assert all(passes.index(("F", n)) < passes.index(("B", n)) for n in range(6))


def test_1f1b_holds_no_more_micro_batches_than_stages_follow() -> None:
    held = most = 0
    for way, _ in order_passes("1f1b", 1, 4, 8):
        held += 1 if way == "F" else -1
        most = max(most, held)
    assert most == 3


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_network_is_cut_into_that_many_stages(stages: int) -> None:
    layers = load_network("alexnet").layers
    parts = cut(layers, stages, 16, load_parameters())
    assert len(parts) == stages
    assert [layer for part in parts for layer in part] == list(layers)
    assert all(parts)


def test_what_a_job_may_not_be() -> None:
    with pytest.raises(ValueError, match="pattern is 'ring'"):
        Job(pattern="ring")
    with pytest.raises(ValueError, match="within one process"):
        Job(method="p2p", processes="per_gpu")
    with pytest.raises(ValueError, match="one thread"):
        Job(method="nccl", drivers="one")


def test_the_grid_is_that_of_the_studies() -> None:
    jobs = dict(grid())
    assert len(jobs) == 5 * 3 * 4 * 2 * 2
    weak, strong = (jobs[f"lenet-batch16-gpus4-p2p-{scaling}"] for scaling in ("weak", "strong"))
    assert (strong.epoch_steps, weak.epoch_steps) == (4096, 16384)
    assert len({job.seed for job in jobs.values()}) == 240
    assert dict(grid(program="pytorch"))["lenet-batch16-gpus4-nccl-weak"].processes == "per_gpu"


def test_bundled_scenarios_are_some_of_all() -> None:
    assert set(BUNDLED) < set(scenarios())


@pytest.mark.slow
def test_the_command_tells_and_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["list"])
    assert set(scenarios()) == {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    asked = ["--network", "lenet", "--gpus", "1", "--workers", "0", "--program", "pytorch"]
    main(["grid", str(tmp_path), *asked])
    made = {path.stem for path in tmp_path.glob("*.sqlite")}
    assert made == {name for name, _ in grid(["lenet"], [1])}
    assert len(list(tmp_path.glob("*.truth.json.gz"))) == len(made) == 12
    with pytest.raises(SystemExit):
        main(["grid", str(tmp_path), "--network", "vgg"])
