"""Model parallelism: schedules, where networks are cut, and training by it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from effort import by_day
from hypothesis import given
from hypothesis import strategies as st
from rank_helpers import built, train_each

torch = pytest.importorskip("torch")

from workloads._errors import OptionError  # noqa: E402
from workloads._loop import train  # noqa: E402
from workloads._options import BatchScope, Options, Precision, Schedule  # noqa: E402
from workloads._summary import Summary  # noqa: E402
from workloads.methods._cutting import cut, survey  # noqa: E402
from workloads.methods._method import Part, World  # noqa: E402
from workloads.methods._schedules import Pass, order  # noqa: E402
from workloads.methods.pipeline import Pipeline, check_micro_batches, micro_batches  # noqa: E402
from workloads.networks import NETWORKS, blocks, build  # noqa: E402

# -- schedules -------------------------------------------------------------------------------------


def _told(schedule: Schedule, stage: int, stages: int, count: int) -> str:
    return " ".join(f"{which}{number}" for which, number in order(schedule, stage, stages, count))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_gpipe(stage: int) -> None:
    assert _told(Schedule.GPIPE, stage, 4, 4) == "F0 F1 F2 F3 B3 B2 B1 B0"


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"),
        (1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"),
        (2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5"),
        (3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"),
    ],
)
def test_1f1b(stage: int, expected: str) -> None:
    assert _told(Schedule.ONE_F_ONE_B, stage, 4, 6) == expected


def test_1f1b_with_fewer_micro_batches_than_stages() -> None:
    told = [_told(Schedule.ONE_F_ONE_B, stage, 4, 2) for stage in range(4)]
    assert told == ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]


SIZES = {"stages": st.integers(1, 6), "count": st.integers(1, 12)}


@given(schedule=st.sampled_from(Schedule), **SIZES)
def test_each_micro_batch_goes_forward_once_and_then_backward(
    schedule: Schedule, stages: int, count: int
) -> None:
    for stage in range(stages):
        done = order(schedule, stage, stages, count)
        assert len(done) == 2 * count
        for number in range(count):
            assert done.index((Pass.FORWARD, number)) < done.index((Pass.BACKWARD, number))


def _most_in_flight(schedule: Schedule, stage: int, stages: int, count: int) -> int:
    steps = [
        1 if which is Pass.FORWARD else -1 for which, _ in order(schedule, stage, stages, count)
    ]
    return max(itertools.accumulate(steps))


@given(**SIZES)
def test_activations_that_are_kept(stages: int, count: int) -> None:
    for stage in range(stages):
        assert _most_in_flight(Schedule.GPIPE, stage, stages, count) == count
        at_most = min(stages - stage, count)
        assert _most_in_flight(Schedule.ONE_F_ONE_B, stage, stages, count) == at_most


def _time(schedule: Schedule, stages: int, count: int, forward: int, backward: int) -> int | None:
    """Return how long a step takes; None if stages wait for each other for ever.

    A stage does one thing at a time. It goes forward when the stage before has, and backward when
    the stage after has.
    """
    ends: dict[tuple[int, Pass, int], int] = {}
    left = [order(schedule, stage, stages, count) for stage in range(stages)]
    clocks = [0] * stages
    while any(left):
        before = len(ends)
        for stage, actions in enumerate(left):
            while actions:
                which, number = actions[0]
                other = stage - 1 if which is Pass.FORWARD else stage + 1
                if 0 <= other < stages and (other, which, number) not in ends:
                    break
                ready = ends.get((other, which, number), 0)
                clocks[stage] = max(clocks[stage], ready)
                clocks[stage] += forward if which is Pass.FORWARD else backward
                ends[stage, which, number] = clocks[stage]
                del actions[0]
        if len(ends) == before:
            return None
    return max(clocks)


@given(schedule=st.sampled_from(Schedule), forward=st.integers(1, 3), **SIZES)
def test_equal_stages_idle_for_as_long_as_it_takes_to_fill_the_pipeline(
    schedule: Schedule, stages: int, count: int, forward: int
) -> None:
    taken = _time(schedule, stages, count, forward, 2 * forward)
    assert taken == (count + stages - 1) * 3 * forward


def test_a_step_of_four_stages_and_eight_micro_batches() -> None:
    """33 units, of which each stage is busy for 24."""
    assert [_time(schedule, 4, 8, 1, 2) for schedule in Schedule] == [33, 33]
    assert _time(Schedule.GPIPE, 4, 1, 1, 2) == 12


# -- stages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "stages", "starts"),
    [
        ([1, 1, 1, 1], 2, [0, 2]),
        ([5, 1, 1, 1, 1, 1], 2, [0, 1]),
        ([1, 2, 3, 4, 5], 3, [0, 3, 4]),
        ([0, 7, 0, 0, 7, 0], 2, [0, 4]),  # what costs nothing stays with what is before it
        ([3, 0, 3, 3], 3, [0, 2, 3]),
        ([4], 1, [0]),
    ],
)
def test_cut(costs: list[int], stages: int, starts: list[int]) -> None:
    cuts = cut(costs, stages)
    assert [own.start for own in cuts] == starts
    assert [block for own in cuts for block in own] == list(range(len(costs)))


@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=8), data=st.data())
def test_no_other_cut_is_better(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, max(1, sum(cost > 0 for cost in costs))))
    if not any(costs):
        with pytest.raises(OptionError, match="0 blocks that compute"):
            cut(costs, stages)
        return
    ways = itertools.combinations(range(1, len(costs)), stages - 1)
    bounds = [[0, *starts, len(costs)] for starts in ways]
    best = min(max(sum(costs[a:b]) for a, b in itertools.pairwise(way)) for way in bounds)
    sums = [sum(costs[block] for block in own) for own in cut(costs, stages)]
    assert max(sums) == best
    assert min(sums) > 0


def test_survey() -> None:
    """Operations are two per weight and position: a product and a sum."""
    network = build("lenet")
    known = dict(zip(dict(blocks(network)), survey(network, NETWORKS["lenet"].input), strict=True))
    assert {name: block.operations for name, block in known.items() if block.operations} == {
        "conv1": 2 * 28 * 28 * 6 * 25,
        "conv2": 2 * 10 * 10 * 16 * 6 * 25,
        "fc1": 2 * 400 * 120,
        "fc2": 2 * 120 * 84,
        "fc3": 2 * 84 * 10,
    }
    outputs = [known[name].output for name in ("conv1", "pool1", "pool2", "flatten", "fc3")]
    assert outputs == [(6, 28, 28), (6, 14, 14), (16, 5, 5), (400,), (10,)]


PUBLISHED = {  # 10^9 products and sums, each pair counted as one
    "alexnet": 0.714,
    "googlenet": 1.498,
    "inception-v3": 5.713,
    "resnet-50": 4.089,
    "mobilenet": 0.301,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    by_day(
        [name for name in NETWORKS if name != "resnet-110-imagenet"],
        "alexnet",
        "googlenet",
        "lenet",
    ),
)
def test_every_network_can_be_cut(name: str) -> None:
    network = built(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    known = survey(network, NETWORKS[name].input)
    costs = [block.operations for block in known]
    assert sum(costs) / 2e9 == pytest.approx(PUBLISHED.get(name, sum(costs) / 2e9), rel=2e-3)
    for stages in (2, 4):
        shares = [sum(costs[block] for block in own) / sum(costs) for own in cut(costs, stages)]
        assert max(shares) < 0.5 + 1 / (2 * stages)
    after = network.state_dict()
    assert network.training
    assert all(torch.equal(value, after[key]) for key, value in before.items())


def test_more_stages_than_the_network_has() -> None:
    with pytest.raises(OptionError, match="2 blocks that compute, too few for 3 stages"):
        cut([1, 0, 1], 3)


def test_micro_batches() -> None:
    part = Part(torch.arange(14).view(7, 2), torch.arange(7))
    pieces = micro_batches(part, 3)
    assert [piece.labels.tolist() for piece in pieces] == [[0, 1, 2], [3, 4], [5, 6]]
    assert torch.equal(torch.cat([piece.inputs for piece in pieces]), part.inputs)
    with pytest.raises(OptionError, match="a batch of 7 does not make 8 micro-batches"):
        check_micro_batches(7, 8)


# -- training --------------------------------------------------------------------------------------

Runs = dict[str, tuple[Summary, Summary]]
STAGES = 3
BASE = Options(
    batch=12,
    batch_scope=BatchScope.GLOBAL,
    steps=4,
    evaluate_every=4,
    learning_rate=0.05,
    micro_batches=5,
    schedule=Schedule.ONE_F_ONE_B,
    nvtx=False,
)
WANTED = {
    "gpipe": replace(BASE, schedule=Schedule.GPIPE),
    "1f1b": BASE,
    "transformer": replace(BASE, network="transformer", micro_batches=2),
    "bf16": replace(BASE, precision=Precision.BF16),
}


def _boundary(name: str) -> int:
    """Floats of a sample that go from stage to stage."""
    known = survey(built(name), NETWORKS[name].input)
    starts = [own.start for own in cut([block.operations for block in known], STAGES)[1:]]
    return sum(torch.Size(known[start - 1].output).numel() for start in starts)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return what training gave on one device and in a pipeline."""
    options = [replace(one, method="pipeline", gpus=STAGES) for one in WANTED.values()]
    found = train_each(options, STAGES, tmp_path_factory.mktemp("stores"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = [train(one, World()) for one in WANTED.values()]
    torch.set_num_threads(threads)
    return dict(zip(WANTED, zip(alone, found, strict=True), strict=True))


@pytest.mark.training
@pytest.mark.parametrize(
    ("name", "network"),
    [("gpipe", "lenet"), ("1f1b", "lenet"), ("transformer", "transformer")],
)
def test_training_is_that_of_one_device(runs: Runs, name: str, network: str) -> None:
    alone, found = runs[name]
    assert found.losses == pytest.approx(alone.losses, abs=1e-5)
    assert max(found.losses) > min(found.losses) + 0.05
    assert found.evaluations[0].loss == pytest.approx(alone.evaluations[0].loss, abs=1e-5)
    assert found.evaluations[0].accuracy == alone.evaluations[0].accuracy
    assert found.activation_bytes == 2 * 4 * 12 * _boundary(network)
    assert (found.gather_bytes, found.scatter_bytes) == (0, 0)


@pytest.mark.training
def test_activations_of_16_bits(runs: Runs) -> None:
    alone, found = runs["bf16"]
    assert found.losses == pytest.approx(alone.losses, abs=0.05)
    assert found.activation_bytes == 2 * 2 * 12 * _boundary("lenet")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(gpus=1), "a device per stage"),
        (Options(gpus=2, precision=Precision.AMP), "stages of a pipeline do not tell"),
    ],
)
def test_what_makes_no_pipeline(options: Options, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Pipeline.check(options, options.gpus)
