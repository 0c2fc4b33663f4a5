"""Ways of training on several devices: each computes what one device would."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_helpers import train_each

torch = pytest.importorskip("torch")

from workloads._annotate import Annotations  # noqa: E402
from workloads._errors import MissingError, OptionError  # noqa: E402
from workloads._launch import run  # noqa: E402
from workloads._loop import Loop, pauses, train  # noqa: E402
from workloads._options import (  # noqa: E402
    BatchScope,
    Compiler,
    DeviceKind,
    Exchange,
    Options,
    Precision,
    Root,
)
from workloads._passes import Passes, make_ready, total_loss  # noqa: E402
from workloads._stores import file_store  # noqa: E402
from workloads._summary import Summary  # noqa: E402
from workloads.methods import METHODS, find_method, p2p  # noqa: E402
from workloads.methods._method import World  # noqa: E402
from workloads.methods._shards import shard  # noqa: E402
from workloads.methods.p2p import spread_roots  # noqa: E402
from workloads.networks import NETWORKS  # noqa: E402

BYTES = 4 * 61_706
"""S: bytes of LeNet's parameters."""

CPU = Options(
    network="lenet", batch=12, batch_scope=BatchScope.GLOBAL, steps=6, warm_up=1, seed=2,
    evaluate_every=4, device=DeviceKind.CPU, nvtx=False,
)  # fmt: skip
GPU = replace(CPU, device=DeviceKind.CUDA, steps=4)

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def alone() -> Summary:
    """What comes out on one device."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    summary = train(CPU, World())
    torch.set_num_threads(threads)
    return summary


def _agree(one: Summary, other: Summary, tolerance: float = 5e-7) -> None:
    assert one.losses == pytest.approx(other.losses, rel=tolerance)
    assert [each.step for each in one.evaluations] == [each.step for each in other.evaluations]
    for found, expected in zip(one.evaluations, other.evaluations, strict=True):
        assert found.loss == pytest.approx(expected.loss, rel=tolerance)
        assert found.accuracy == pytest.approx(expected.accuracy, abs=1e-6)


@pytest.mark.slow
def test_one_device_learns_and_exchanges_nothing() -> None:
    summary = train(replace(CPU, batch=64, steps=20, warm_up=0, evaluate_every=20), World())
    assert len(summary.losses) == 20
    assert summary.losses[-1] < 0.5 * summary.losses[0]
    assert summary.evaluations[0].loss < 0.6 * summary.losses[0]
    assert summary.evaluations[0].accuracy > 0.5
    assert (summary.gather_bytes, summary.scatter_bytes) == (0, 0)
    assert summary.images_per_s == pytest.approx(64 * 20 / summary.seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "root", "overlap"),
    [*itertools.product([1, 2, 3], Root, [False]), (2, Root.FIRST, True), (3, Root.SPREAD, True)],
)
def test_copies_between_devices_are_as_good_as_one_device(
    gpus: int, root: Root, overlap: bool, alone: Summary
) -> None:
    summary = train(replace(CPU, method="p2p", gpus=gpus, root=root, overlap=overlap), World())
    _agree(summary, alone)
    # Of a step, each way: all but the root's own go to it. That is 2(n-1)S in all.
    assert (summary.gather_bytes, summary.scatter_bytes) == ((gpus - 1) * BYTES,) * 2
    assert summary.parameter_bytes == BYTES
    assert summary.evidence == "copied"


@pytest.mark.parametrize(
    ("root", "overlap", "bucket_mb", "there", "back"),
    [
        # Of LeNet's 5 layers with 10 parameters: a copy from each peer, and one to it.
        (Root.FIRST, False, 25, 2, 2),
        # Each of three devices is the root of some parameters, and has two peers.
        (Root.SPREAD, False, 25, 6, 6),
        # One by one, were a bucket closed by any parameter.
        (Root.FIRST, True, 1e-6, 20, 20),
        # The last two layers, then that of 400 x 120 floats, then both convolutions.
        (Root.FIRST, True, 0.03, 6, 6),
    ],
)
def test_parameters_of_two_devices_travel_together(
    monkeypatch: pytest.MonkeyPatch,
    root: Root, overlap: bool, bucket_mb: float, there: int, back: int,
) -> None:  # fmt: skip
    copies: Counter[str] = Counter()
    for name in ("fetch", "send"):
        copy = getattr(p2p, name)

        def counted(*ends: Any, name: str = name, copy: Any = copy) -> Any:
            copies[name] += 1
            return copy(*ends)

        monkeypatch.setattr(p2p, name, counted)
    options = replace(CPU, steps=1, warm_up=0, evaluate_every=None)
    found = train(
        replace(options, method="p2p", gpus=3, root=root, overlap=overlap, bucket_mb=bucket_mb),
        World(),
    )
    assert copies == {"fetch": there, "send": back}
    assert (found.gather_bytes, found.scatter_bytes) == (2 * BYTES, 2 * BYTES)


@pytest.mark.parametrize(("bucket_mb", "calls"), [(25, 1), (1e-6, 10)])
def test_a_bucket_is_reduced_and_broadcast_by_one_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bucket_mb: float, calls: int
) -> None:
    made: Counter[str] = Counter()
    for name in ("reduce", "broadcast"):
        call = getattr(torch.distributed, name)

        def counted(*given: Any, name: str = name, call: Any = call, **options: Any) -> Any:
            made[name] += 1
            return call(*given, **options)

        monkeypatch.setattr(torch.distributed, name, counted)
    options = replace(
        CPU, method="gloo", exchange=Exchange.REDUCE_BROADCAST, bucket_mb=bucket_mb, steps=1,
        warm_up=0, evaluate_every=None,
    )  # fmt: skip
    train(options, World(make_store=lambda: file_store(str(tmp_path / "store"), 1)))
    assert made == {"reduce": calls, "broadcast": calls}


BACK = {Exchange.ALL_REDUCE: 0, Exchange.REDUCE_BROADCAST: 1, Exchange.SHARDED: 2}
"""How often weights go back in a step: sharded ones are gathered for either pass."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[Exchange, Summary]:
    """What comes out of two processes, by how they exchange gradients."""
    wanted = [replace(CPU, method="gloo", gpus=2, exchange=exchange) for exchange in Exchange]
    found = train_each(wanted, 2, tmp_path_factory.mktemp("stores"))
    return dict(zip(Exchange, found, strict=True))


@pytest.mark.training
@pytest.mark.parametrize("exchange", Exchange)
def test_collectives_of_two_processes_are_as_good_as_one_device(
    exchange: Exchange, alone: Summary, pairs: dict[Exchange, Summary]
) -> None:
    summary = pairs[exchange]
    _agree(summary, alone)
    assert (summary.gather_bytes, summary.scatter_bytes) == (BYTES, BACK[exchange] * BYTES)
    assert summary.evidence == "message"


@pytest.mark.training
@pytest.mark.parametrize("exchange", Exchange)
def test_collectives_of_one_process_warn_of_nothing(
    exchange: Exchange, alone: Summary, tmp_path: Path
) -> None:
    # In this process a warning is an error.
    options = replace(CPU, method="gloo", exchange=exchange, bucket_mb=0.1)
    world = World(make_store=lambda: file_store(str(tmp_path / "store"), 1))
    summary = train(options, world)
    _agree(summary, alone)
    assert (summary.gather_bytes, summary.scatter_bytes) == (BYTES, BACK[exchange] * BYTES)


def test_a_compiled_network_computes_the_same(alone: Summary) -> None:
    summary = train(replace(CPU, compile=Compiler.EAGER), World())
    _agree(summary, alone)
    assert summary.labels["compile"] == "eager"


def test_of_a_pipeline_the_stage_is_compiled() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    stage = torch.nn.Sequential(network[1])
    make_ready(network, replace(CPU, compile=Compiler.EAGER), Annotations(), part=stage)
    assert stage._compiled_call_impl is not None
    assert network._compiled_call_impl is None


def test_numbers_are_multiplied_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch by itself convolves in TF32 and multiplies matrices in 32 bits."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    for precision, is_tf32 in ((Precision.TF32, True), (Precision.FP32, False)):
        Passes(replace(GPU, precision=precision), NETWORKS["lenet"], "cuda")
        assert torch.backends.cudnn.allow_tf32 == is_tf32
        assert (torch.get_float32_matmul_precision() == "high") == is_tf32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    with pytest.raises(OptionError, match="Ampere"):
        Passes(replace(GPU, precision=Precision.TF32), NETWORKS["lenet"], "cuda")


def test_fewer_bits_compute_about_the_same(alone: Summary) -> None:
    summary = train(replace(CPU, precision=Precision.BF16), World())
    assert summary.losses == pytest.approx(alone.losses, rel=0.05)
    assert summary.losses != pytest.approx(alone.losses, rel=1e-5)


def test_weights_and_samples_depend_on_the_seed(alone: Summary) -> None:
    assert train(CPU, World()).losses == alone.losses
    assert train(replace(CPU, seed=3), World()).losses != alone.losses


def test_no_steps_are_none() -> None:
    summary = train(replace(CPU, steps=0, warm_up=0), World())
    assert summary.losses == []
    assert summary.images_per_s is None


@pytest.mark.parametrize(
    ("sizes", "devices", "roots"),
    [
        ([5, 4, 3, 2, 1], 1, [0, 0, 0, 0, 0]),
        ([1, 8, 2, 4], 2, [1, 0, 1, 1]),
        ([3, 3, 3], 3, [0, 1, 2]),
        ([], 2, []),
    ],
)
def test_roots_are_spread_by_size(sizes: list[int], devices: int, roots: list[int]) -> None:
    assert spread_roots(sizes, devices) == roots


def test_messages_of_shards_hold_the_rows_that_fill_them_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three processes: 5 rows become 6. Both layers gather twice, what is in no block once."""
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_: None)
    sharded: list[torch.nn.Module] = []
    monkeypatch.setattr(
        "torch.distributed.fsdp.fully_shard", lambda module, **_: sharded.append(module)
    )
    layers = OrderedDict(a=torch.nn.Linear(4, 5), b=torch.nn.ReLU(), c=torch.nn.Linear(5, 2))
    network = torch.nn.Sequential(layers)
    network.register_parameter("alone", torch.nn.Parameter(torch.zeros(3)))
    volume = shard(network, torch.device("cpu"), 3)
    in_layers = 4 * (6 * 4 + 6 + 3 * 5 + 3)
    assert volume == (in_layers + 12, 2 * in_layers + 12)
    assert sharded == [layers["a"], layers["c"], network]


def test_auxiliary_logits_add_to_the_loss_by_their_weights() -> None:
    logits, labels = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])
    one = total_loss(logits, labels, ())
    assert float(one) == pytest.approx(0.693147, abs=1e-6)
    assert float(total_loss((logits, logits, logits), labels, (0.3, 0.4))) == pytest.approx(
        1.7 * float(one)
    )
    with pytest.raises(ValueError, match="zip"):
        total_loss((logits, logits), labels, (0.3, 0.4))


def test_a_network_with_auxiliary_classifiers_trains() -> None:
    options = replace(
        CPU, network="googlenet", image_size=32, batch=2, steps=1, warm_up=0, evaluate_every=1
    )
    summary = train(options, World())
    # Three classifiers that know nothing of 1000 classes, of which two weigh 0.3.
    assert summary.losses[0] == pytest.approx(1.6 * 6.9, rel=0.1)
    assert summary.parameter_bytes == 4 * NETWORKS["googlenet"].parameters


def test_auxiliary_classifiers_can_be_left_out() -> None:
    """The other weights are the same, and so is the loss but for theirs."""
    options = replace(CPU, network="googlenet", image_size=32, batch=2, steps=1, warm_up=0)
    summary = train(replace(options, auxiliary=False, evaluate_every=None), World())
    assert summary.losses[0] == pytest.approx(6.9, rel=0.1)
    assert summary.parameter_bytes == 4 * 6_624_904
    assert summary.labels["auxiliary"] == "no"
    assert summary.labels["parameters"] == "6624904"


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [
        (0, None, []),
        (1, None, [1]),
        (25, None, [25]),
        (20, 7, [7, 14, 20]),
        (4, 9, [4]),
    ],
)
def test_a_run_pauses_to_evaluate(steps: int, every: int | None, expected: list[int]) -> None:
    assert pauses(steps, every) == expected


def test_progress_is_told_without_waiting_for_the_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice alone, before and behind the measured steps: to wait would make them longer."""
    waited = []
    monkeypatch.setattr(Loop, "_wait", lambda self: waited.append(len(self._losses)))
    train(replace(CPU, steps=25, warm_up=0, evaluate_every=None), World())
    assert waited == [0, 0]
    *told, last = capsys.readouterr().err.splitlines()
    assert told == [f"workloads: step {step} of 25" for step in range(3, 25, 3)]
    assert last.startswith("workloads: step 25 of 25: loss ")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (replace(CPU, method="none", gpus=2), OptionError, "choose a --method"),
        (replace(CPU, method="nccl"), OptionError, "--method gloo"),
        (replace(GPU, method="gloo"), OptionError, "--method nccl"),
        (replace(CPU, method="carrier-pigeon"), OptionError, "methods are none, p2p"),
        (replace(CPU, method="no.such:Method"), OptionError, "cannot be loaded"),
        (replace(CPU, network="vgg"), OptionError, "networks are lenet"),
        (replace(CPU, precision=Precision.AMP), OptionError, "bf16"),
        (replace(CPU, precision=Precision.TF32), OptionError, "fp32"),
        (replace(CPU, network="alexnet", image_size=16), OptionError, "larger images"),
        (replace(CPU, network="resnet-50", image_size=32, batch=1), OptionError, "or more of"),
        (replace(CPU, method="pipeline", gpus=6), OptionError, "5 blocks .* for 6 stages"),
        (replace(CPU, method="pipeline", gpus=3, micro_batches=13), OptionError, "13 micro"),
        (
            replace(
                CPU, method="gloo", precision=Precision.AMP, exchange=Exchange.REDUCE_BROADCAST
            ),
            OptionError,
            "bf16",
        ),
        (
            replace(CPU, method="gloo", precision=Precision.AMP, exchange=Exchange.SHARDED),
            OptionError,
            "bf16",
        ),
        (replace(CPU, method="p2p", gpus=5), OptionError, "a multiple of 5"),
    ],
)
def test_what_makes_no_sense_is_an_error(
    options: Options, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        run(options)


@pytest.mark.parametrize("method", ["none", "p2p", "nccl"])
def test_without_a_gpu_asking_for_one_says_what_to_do(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingError, match=r"no CUDA device.*--device cpu"):
        run(replace(GPU, method=method))


@pytest.mark.parametrize("method", ["p2p", "nccl"])
def test_with_too_few_gpus_it_is_said_how_many_there_are(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(MissingError, match="4 GPUs are asked for and this host has 1"):
        run(replace(GPU, method=method, gpus=4))


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_found_by_name(name: str) -> None:
    if name == "mpi":
        pytest.importorskip("mpi4py")
    if name == "ps":
        pytest.importorskip("grpc")
    assert find_method(name).launch in ("alone", "spawn", "mpi")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(replace(GPU, method=method, **changed), marks=needs_gpu)
        for method, changed in [
            ("none", {}),
            ("p2p", {"gpus": min(2, torch.cuda.device_count())}),
            ("p2p", {"gpus": min(2, torch.cuda.device_count()), "root": Root.SPREAD}),
            ("nccl", {"gpus": min(2, torch.cuda.device_count())}),
            (
                "nccl",
                {"gpus": min(2, torch.cuda.device_count()), "exchange": Exchange.REDUCE_BROADCAST},
            ),
        ]
    ],
    ids=["none", "p2p", "spread", "all_reduce", "reduce_broadcast"],
)
def test_gpus_compute_what_the_cpu_does(options: Options) -> None:
    summary = run(options)
    assert summary is not None
    _agree(summary, train(replace(CPU, steps=4), World()), tolerance=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", [Precision.AMP, Precision.BF16])
def test_gpus_compute_about_the_same_in_fewer_bits(precision: Precision) -> None:
    summary = run(replace(GPU, precision=precision))
    assert summary is not None
    expected = train(replace(CPU, steps=4), World()).losses
    assert summary.losses == pytest.approx(expected, rel=0.05)
