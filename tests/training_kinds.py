# ruff: noqa: E501  (kernels have the names that they have)
"""Programs of many kinds, simulated launch by launch, with the stage and the step of every op.

    simulated = simulate("gan_fused", mode="one_thread", seed=3)

`KINDS` names the programs by family; a third of the families is held apart (`held_apart`): no rule
was made on these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from training_sim import (
    ADD,
    BACK,
    FOREACH,
    MUL,
    NCCL,
    NORM,
    OPTIMIZERS,
    OTHER_BACK,
    OTHER_MAIN,
    SUM,
    THIRD,
    Agent,
    Net,
    Sim,
    Simulated,
    dense,
    tile,
)

Kind = Callable[[Sim], None]
KINDS: dict[str, tuple[str, Kind]] = {}
"""By name: the family and the program."""
APART = frozenset(
    {
        "accumulation", "checkpointing", "compile", "diffusion", "fsdp", "graphs", "lbfgs", "maml",
        "ranges",
    }
)  # fmt: skip
"""The families that no rule was made on: those whose hash is a multiple of three (`held_apart`)."""


def kind(family: str, **names: tuple[Any, ...]) -> Callable[[Callable[..., None]], None]:
    """Register a program under some names, each with what it is called with beside the machine."""

    def register(program: Callable[..., None]) -> None:
        for name, given in (names or {program.__name__: ()}).items():
            KINDS[name] = family, lambda sim, given=given: program(sim, *given)

    return register


def held_apart(name: str) -> bool:
    """Tell whether a kind is of a third that no rule was made on: by its family's hash."""
    return int(hashlib.sha256(KINDS[name][0].encode()).hexdigest(), 16) % 3 == 0


def simulate(name: str, mode: str, seed: int = 1) -> Simulated:
    """Run a program."""
    sim = Sim(mode, int(hashlib.sha256(f"{name} {seed}".encode()).hexdigest()[:8], 16))
    KINDS[name][1](sim)
    sim.out.ops.sort(key=lambda row: (row["launch"], row["start"]))
    return sim.out


def net_of(sim: Sim, body: str = "", **more: Any) -> Net:
    """Return a network of some depth."""
    body = body or str(sim.rng.choice(["mlp", "cnn", "transformer"]))
    return Net(sim.rng, body, int(sim.rng.integers(4, 8)), **more)


def count_of(sim: Sim, least: int = 10, most: int = 16) -> int:
    """Return how many steps a program runs."""
    return int(sim.rng.integers(least, most))


def steps(sim: Sim, agent: Agent, least: int = 10, most: int = 16) -> Iterator[int]:
    """Run a program's steps: yield the number of each within its iteration."""
    for n in range(count_of(sim, least, most)):
        with agent.iteration(n):
            yield n


def set_size(sim: Sim, agent: Agent, n: int, count: int, how: str = "last") -> None:
    """Set the size of a step: the last batch is smaller, or each differs."""
    if how == "each":
        agent.scale = float(sim.rng.choice([0.5, 0.75, 1, 1.25, 1.6]))
    else:
        agent.scale = 0.6 if n == count - 1 else 1.0


def one_step(sim: Sim, agent: Agent, net: Net, optimizer: str, *, fetch: bool = False) -> None:
    """Run a usual step, within an iteration."""
    agent.input()
    net.clear(agent)
    net.forward(agent)
    net.backward(agent)
    net.update(agent, optimizer)
    if fetch:
        agent.fetch()


# Usual training.


@kind(
    "plain", cnn=("cnn", "fused", "last"), transformer=("transformer", "foreach", "last"),
    lengths_vary=("transformer", "fused", "each"), lengths_vary_plain=("mlp", "plain", "each"),
    single_step=("cnn", "fused", "one"),
)  # fmt: skip
def plain_training(sim: Sim, body: str, optimizer: str, how: str) -> None:
    agent, net = sim.agent(), net_of(sim, body)
    count = 1 if how == "one" else count_of(sim)
    for n in range(count):
        set_size(sim, agent, n, count, how)
        with agent.iteration(n):
            one_step(sim, agent, net, optimizer, fetch=n % 4 == 3)


@kind("resident", resident_named=("foreach", False), resident_unnamed=("plain", False),
      resident_fetched=("plain", True))  # fmt: skip
def resident(sim: Sim, optimizer: str, fetch: bool) -> None:
    """Data that lie on the GPU: a batch is an index of them."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    for n in range(count_of(sim)):
        with agent.iteration(n):
            with agent.of("IO|FP"):
                agent.op(
                    "void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>", 4096
                )
            net.forward(agent)
            net.clear(agent)
            net.backward(agent)
            net.update(agent, optimizer)
        if fetch:
            agent.fetch()


@kind("accumulation", accum4_fused=(4, "fused", False), accum3_many=(3, "many", False),
      accum3_plain=(3, "plain", False), accum2_vary=(2, "foreach", True))  # fmt: skip
def accumulation(sim: Sim, passes: int, optimizer: str, vary: bool) -> None:
    agent, net = sim.agent(), net_of(sim)
    for _ in steps(sim, agent):
        for part in range(passes):
            set_size(sim, agent, part, passes + 1, "each" if vary else "last")
            agent.input()
            if not part:
                net.clear(agent)
            net.forward(agent)
            net.backward(agent)
        net.update(agent, optimizer)
        agent.fetch()


@kind("clipping", clipping_foreach=("foreach",), clipping_many=("many",), clipping_plain=("plain",))
def clipping(sim: Sim, optimizer: str) -> None:
    agent, net = sim.agent(), net_of(sim)
    for _ in steps(sim, agent):
        agent.input()
        net.clear(agent)
        net.forward(agent)
        net.backward(agent)
        with agent.range("optimizer"):
            with agent.of("WU"):
                for size in net.parameters:
                    agent.op(NORM, size)
                agent.op(SUM, 1024)
                for size in net.parameters:
                    agent.op(MUL, size)
            net.update(agent, optimizer, marked=False)


@kind("amp", amp_skipped=("foreach",), amp_skipped_many=("many",))
def amp_skipped(sim: Sim, optimizer: str) -> None:
    """Half precision: an update is left out where gradients overflow."""
    agent, net = sim.agent(), net_of(sim)
    check = FOREACH.format(1, "amp_foreach_non_finite_check_and_unscale_cuda_impl")
    for n in steps(sim, agent, 12, 18):
        agent.input()
        net.clear(agent)
        net.forward(agent)
        net.backward(agent)
        with agent.range("optimizer"):
            with agent.of("WU"):
                agent.op(check, sum(net.parameters))
            agent.fetch()
            if n not in (0, 1, 7):
                net.update(agent, optimizer, marked=False)
            with agent.of("WU"):
                agent.op("at::native::amp_update_scale_cuda_kernel(float*)", 128)


@kind("ema", ema_foreach=("foreach",), ema_plain=("plain",))
def ema(sim: Sim, optimizer: str) -> None:
    """A mean of the weights follows each update."""
    agent, net = sim.agent(), net_of(sim)
    for _ in steps(sim, agent):
        one_step(sim, agent, net, optimizer)
        with agent.range("optimizer"), agent.of("WU"):
            for size in net.parameters:
                agent.op(
                    "void at::native::vectorized_elementwise_kernel<4, at::native::lerp_scalar_kernel>",
                    size,
                )


@kind("lora", lora_fused=("fused", False), lora_late=("foreach", True))
def lora(sim: Sim, optimizer: str, late: bool) -> None:
    """Weights that are frozen but for small ones beside them."""
    agent = sim.agent()
    net = net_of(sim, "transformer")
    sizes = net.parameters
    net.parameters = [size / 20 for size in sizes]
    for _ in steps(sim, agent):
        agent.input(label=not late)
        net.forward(agent)
        if late:
            with agent.of("IO"):
                agent.copy("h2d", 1 << 17)
        with agent.range("backward"), agent.of("BP", thread=agent.back):
            agent.op("void at::native::nll_loss_backward_reduce_cuda_kernel_2d<float, long>", 1024)
            for layer, size in reversed(net.layers):
                agent.op("void at::native::vectorized_elementwise_kernel<4, at::native::GeluBackwardCUDAKernelImpl>" if layer is dense
                         else "fmha_cutlassB_f32_aligned_64x64_k64_sm80", size / 2)  # fmt: skip
                agent.op(tile(size), size)
                agent.op(tile(size / 20), size / 20)
        net.update(agent, optimizer)


@kind("checkpointing", checkpointing_fused=("fused",), checkpointing_plain=("plain",))
def checkpointing(sim: Sim, optimizer: str) -> None:
    """Activations that are computed again in the backward pass."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        agent.input()
        net.clear(agent)
        net.forward(agent)
        net.backward(agent, again=True)
        net.update(agent, optimizer)


@kind("hooks", optimizer_in_backward=("foreach",), optimizer_in_backward_fused=("fused",))
def in_hooks(sim: Sim, optimizer: str) -> None:
    """Each layer's weights are updated as soon as its gradients are there."""
    agent, net = sim.agent(), net_of(sim)
    for _ in steps(sim, agent):
        agent.input()
        net.forward(agent)

        def hook(layer: int) -> None:
            with agent.of("WU|BP", thread=agent.back):
                OPTIMIZERS[optimizer](agent, net.parameters[2 * layer : 2 * layer + 2])

        net.backward(agent, hook=hook)


@kind("multiplying", muon_adam_first=("adam_then_muon", False), muon_adam_last=("muon_then_adam", False),
      muon_alone=("muon", False), shampoo=("shampoo", False), muon_resident=("adam_then_muon", True),
      shampoo_resident=("shampoo", True))  # fmt: skip
def multiplying(sim: Sim, optimizer: str, resident: bool) -> None:
    """Optimizers that multiply matrices."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for n in steps(sim, agent):
        if not resident:
            agent.input()
        net.forward(agent)
        net.clear(agent)
        net.backward(agent)
        net.update(agent, optimizer)
        if n % 5 == 4:
            agent.fetch()


# Several networks, or several passes, in one step.


@kind(
    "gan",
    gan_fused=("fused", 1),
    gan_many=("many", 1),
    gan_plain=("plain", 1),
    wgan5=("foreach", 5),
)
def gan(sim: Sim, optimizer: str, critics: int) -> None:
    agent = sim.agent()
    maker, judge = net_of(sim, "mlp"), net_of(sim, "cnn")

    def judge_made() -> None:
        agent.op(
            "void at::native::distribution_elementwise_grid_stride_kernel<float, 4, normal>", 4096
        )
        maker.forward(agent, loss=False, marked=False)
        judge.forward(agent, marked=False)

    for _ in steps(sim, agent):
        for _ in range(critics):
            agent.input()
            judge.clear(agent)
            with agent.of("FP"), agent.range("forward"):
                judge_made()
                judge.forward(agent, marked=False)
            judge.backward(agent)
            judge.backward(agent)
            judge.update(agent, optimizer)
        maker.clear(agent)
        with agent.of("FP"), agent.range("forward"):
            judge_made()
        with agent.range("backward"):
            judge.backward(agent, marked=False)
            maker.backward(agent, marked=False, loss=False)
        maker.update(agent, optimizer)
        agent.fetch()


@kind("dcgan", dcgan=())
def dcgan(sim: Sim) -> None:
    """Real and fake batches pass backward each; the fake one is used again for the generator."""
    agent = sim.agent()
    maker, judge = net_of(sim, "cnn"), net_of(sim, "cnn")
    for n in steps(sim, agent):
        agent.input()
        judge.clear(agent)
        judge.forward(agent)
        judge.backward(agent)
        with agent.range("forward"):
            maker.forward(agent, loss=False, marked=False)
            judge.forward(agent, marked=False)
        judge.backward(agent)
        judge.update(agent, "foreach")
        maker.clear(agent)
        judge.forward(agent)
        with agent.range("backward"):
            judge.backward(agent, marked=False)
            maker.backward(agent, marked=False, loss=False)
        maker.update(agent, "foreach")
        if n % 3 == 2:
            agent.fetch()


@kind("sam", sam_named=("foreach",), sam_plain=("plain",))
def sam(sim: Sim, optimizer: str) -> None:
    """Two passes a step: the second one at weights that were moved uphill."""
    agent, net = sim.agent(), net_of(sim)
    for _ in steps(sim, agent):
        agent.input()
        net.forward(agent)
        net.backward(agent)
        with agent.range("optimizer"), agent.of("WU"):
            for size in net.parameters:
                agent.op(NORM, size)
            for size in net.parameters:
                agent.op(MUL, size)
                agent.op(ADD, size)
        net.clear(agent)
        net.forward(agent)
        net.backward(agent)
        with agent.range("optimizer"):
            with agent.of("WU"):
                for size in net.parameters:
                    agent.op(ADD, size)
            net.update(agent, optimizer, marked=False)
        net.clear(agent)


@kind("maml", maml=())
def maml(sim: Sim) -> None:
    """Some tasks a step, each with an inner step; one backward pass goes through all."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    for _ in steps(sim, agent):
        net.clear(agent)
        for _ in range(3):
            agent.input()
            net.forward(agent)
            with agent.range("backward"), agent.of("BP", thread=agent.back):
                net.backward(agent, marked=False)
            with agent.range("forward"), agent.of("FP"):
                for size in net.parameters:
                    agent.op(MUL, size)
                    agent.op(ADD, size)
                net.forward(agent, marked=False)
        with agent.range("backward"):
            for _ in range(3):
                net.backward(agent, marked=False)
                net.backward(agent, marked=False, loss=False)
        net.update(agent, "foreach")


@kind("lbfgs", lbfgs=(False, True), lbfgs_resident=(True, True), lbfgs_even=(False, False))
def lbfgs(sim: Sim, resident: bool, uneven: bool) -> None:
    """A line search, which calls forward and backward and reads the loss."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    for _ in steps(sim, agent):
        if not resident:
            agent.input()
        for _ in range(int(sim.rng.integers(3, 7)) if uneven else 5):
            net.clear(agent)
            net.forward(agent)
            net.backward(agent)
            agent.fetch()
            with agent.range("optimizer"), agent.of("WU"):
                agent.op(
                    "void at::native::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>",
                    40_000,
                )
                agent.op(ADD, 40_000)
                agent.op("void dot_kernel<float, 128, 0, cublasDotParams>", 40_000)
                agent.op(
                    "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched>",
                    256,
                )
                agent.fetch()
                agent.op(MUL, 40_000)
                for size in net.parameters:
                    agent.op(ADD, size)


@kind("distillation", distillation=("FP|ME",))
def distillation(sim: Sim, stages: str) -> None:
    """A larger network without gradients runs before the one that learns."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    teacher = Net(sim.rng, "transformer", 9, 60_000)
    for _ in steps(sim, agent):
        agent.input()
        net.clear(agent)
        with agent.range("forward"):
            teacher.forward(agent, stages, loss=False, marked=False)
            net.forward(agent, marked=False)
        net.backward(agent)
        net.update(agent, "fused")


@kind(
    "accuracy",
    accuracy=("foreach", False),
    accuracy_plain=("plain", False),
    accuracy_own_input=("foreach", True),
)
def accuracy(sim: Sim, optimizer: str, own_input: bool) -> None:
    """Each step ends with a forward pass that measures accuracy."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    for _ in steps(sim, agent):
        one_step(sim, agent, net, optimizer)
        with agent.range("evaluation"):
            if own_input:
                with agent.of("ME|IO"):
                    agent.copy("h2d", 1 << 22)
            net.forward(agent, "ME", loss=False, marked=False)
            with agent.of("ME"):
                agent.op(
                    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps>>",
                    2048,
                )
            agent.fetch()


@kind("late_input", late_target=(1,), late_three=(3,))
def late_input(sim: Sim, parts: int) -> None:
    """Some input is copied in the midst of forward."""
    agent, net = sim.agent(), net_of(sim)
    for _ in steps(sim, agent):
        agent.input(label=False)

        def hook(layer: int) -> None:
            if layer and layer <= parts:
                with agent.of("IO|FP"):
                    agent.copy("h2d", 1 << 18)

        net.forward(agent, hook=hook)
        net.clear(agent)
        net.backward(agent)
        net.update(agent, "foreach")


@kind("gpu_input", gpu_input_same_stream=(False,), gpu_input_own_thread=(True,))
def gpu_input(sim: Sim, own: bool) -> None:
    """Images are decoded and cut on the GPU."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    loader = Agent(sim, THIRD, THIRD, 21, 0) if own else agent
    for n in steps(sim, agent):
        loader.now = max(loader.now, agent.now - 200_000) if own else loader.now
        with agent.range("data"), loader.of("IO"):
            loader.step = -1 if own else n
            loader.copy("h2d", 1 << 21)
            for name in ("nvjpeg::idct_kernel", "dali::kernels::SliceFlipNormalizePermutePadKernel",
                         "void resample_vert_kernel<float>", "void resample_horz_kernel<float>"):  # fmt: skip
                loader.op(name, 30_000)
        net.clear(agent)
        net.forward(agent)
        net.backward(agent)
        net.update(agent, "foreach")


# Evaluation and what happens between steps.


def validation(agent: Agent, net: Net, batches: int) -> None:
    """Run a network forward over some batches."""
    with agent.range("validation"):
        for _ in range(batches):
            with agent.of("ME|IO"):
                agent.copy("h2d", 1 << 22)
            net.forward(agent, "ME", marked=False)
            agent.fetch()


@kind("validation", validation_epochs=("foreach", False, False), validation_plain=("plain", False, False),
      sanity_check=("foreach", True, False), checkpoints_saved=("fused", False, True))  # fmt: skip
def with_validation(sim: Sim, optimizer: str, sanity: bool, saves: bool) -> None:
    agent, net = sim.agent(), net_of(sim)
    if sanity:
        validation(agent, net, 2)
    for epoch in range(3):
        for n in range(5):
            set_size(sim, agent, n, 5)
            with agent.iteration(5 * epoch + n):
                one_step(sim, agent, net, optimizer)
        agent.scale = 1.0
        if saves:
            with agent.of("-"):
                for size in net.parameters:
                    agent.copy("d2h", int(4 * size), waits=True)
        else:
            validation(agent, net, 3)


# Reinforcement learning.


@kind("rl", ppo=(2, 3), a2c=(0, 1))
def reinforcement(sim: Sim, epochs: int, parts: int) -> None:
    """Actions are chosen step by step; then the network learns from what came of them."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    sim.out.finer = epochs > 0
    for _ in steps(sim, agent, 8, 12):
        if epochs:
            with agent.range("rollout"):
                for _ in range(6):
                    with agent.of("ME|IO|FP"):
                        agent.copy("h2d", 1 << 16)
                    net.forward(agent, "ME|FP", loss=False, marked=False)
                    agent.fetch()
            for _ in range(epochs * parts):
                agent.input(1 << 18)
                net.clear(agent)
                net.forward(agent)
                net.backward(agent)
                net.update(agent, "foreach")
            continue
        with agent.range("forward"):
            for _ in range(5):
                with agent.of("IO|FP"):
                    agent.copy("h2d", 1 << 16)
                net.forward(agent, loss=False, marked=False)
                agent.fetch()
        net.clear(agent)
        with agent.range("backward"):
            for _ in range(5):
                net.backward(agent, marked=False)
        net.update(agent, "foreach")


@kind("beside", actor_and_learner=("actor",), two_trainings=("training",))
def beside(sim: Sim, what: str) -> None:
    """Two threads of one process, each with a network and a stream."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    other = Agent(sim, OTHER_MAIN, OTHER_MAIN if sim.mode == "one_thread" else OTHER_BACK, 13, 0)
    if sim.mode == "one_thread":
        other = Agent(sim, agent.main, agent.main, 13, 0)
    copy = net if what == "actor" else net_of(sim, "cnn")
    count = count_of(sim)
    for n in range(count):
        if sim.mode == "one_thread":
            other.now = agent.now
        if what == "actor":
            for _ in range(4):
                with other.of("ME|IO|FP"):
                    other.copy("h2d", 1 << 17)
                copy.forward(other, "ME|FP", loss=False, marked=False)
                other.fetch()
        else:
            with other.iteration(count + n):
                one_step(sim, other, copy, "foreach")
        if sim.mode == "one_thread":
            agent.now = max(agent.now, other.now)
        with agent.iteration(n):
            one_step(sim, agent, net, "fused")


# Several GPUs, as one of them sees it.


def collective(
    agent: Agent, what: str, size: float, *, stream: int, stages: str, main: bool = False
) -> None:
    """Call a collective, on the thread that is launching."""
    name = {"all_reduce": "AllReduce_Sum_f32", "all_gather": "AllGather", "send_recv": "SendRecv",
            "reduce_scatter": "ReduceScatter_Sum_f32"}[what]  # fmt: skip
    before, agent.stage = agent.stage, frozenset(stages.split("|"))
    agent.op(NCCL.format(name), size, kind="collective", collective=what, stream=stream,
             after=((agent.device, agent.stream),))  # fmt: skip
    agent.stage = before
    if main:
        key = (agent.device, agent.stream)
        agent.sim.free[key] = max(agent.sim.free[key], agent.sim.free[(agent.device, stream)])


@kind("ddp", ddp=())
def ddp(sim: Sim) -> None:
    agent, net = sim.agent(), net_of(sim)
    for _ in steps(sim, agent):
        agent.input()
        net.clear(agent)
        net.forward(agent)
        net.backward(
            agent, hook=lambda layer: layer % 2 == 0
            and collective(agent, "all_reduce", 30_000, stream=20, stages="WU"),
        )  # fmt: skip
        net.update(agent, "foreach")


@kind("fsdp", fsdp=())
def fsdp(sim: Sim) -> None:
    """Weights are gathered for each pass, and gradients scattered."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        agent.input()

        def gather(layer: int) -> None:
            if layer % 2 == 0:
                collective(agent, "all_gather", 20_000, stream=20, stages="WU", main=True)

        def scatter(layer: int) -> None:
            if layer % 2 == 0:
                collective(agent, "all_gather", 20_000, stream=20, stages="WU", main=True)
                collective(agent, "reduce_scatter", 20_000, stream=21, stages="WU")

        net.forward(agent, hook=gather)
        net.backward(agent, hook=scatter)
        net.update(agent, "foreach")


@kind("tensor_parallel", tensor_parallel=())
def tensor_parallel(sim: Sim) -> None:
    """Activations are summed over GPUs within both passes."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        agent.input()
        net.clear(agent)
        net.forward(
            agent, hook=lambda layer: layer
            and collective(agent, "all_reduce", 30_000, stream=7, stages="FP", main=True),
        )  # fmt: skip
        net.backward(
            agent, hook=lambda layer: layer
            and collective(agent, "all_reduce", 30_000, stream=7, stages="BP", main=True),
        )  # fmt: skip
        net.update(agent, "fused")


@kind("pipeline", pipeline_1f1b=(4, 2))
def one_forward_one_backward(sim: Sim, parts: int, ahead: int) -> None:
    """A middle stage of a pipeline: some forward passes wait for their backward passes."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):

        def fore() -> None:
            with agent.range("forward"):
                collective(agent, "send_recv", 8_000, stream=30, stages="FP", main=True)
                net.forward(agent, loss=False, marked=False)
                collective(agent, "send_recv", 8_000, stream=31, stages="FP")

        def back() -> None:
            with agent.range("backward"):
                collective(agent, "send_recv", 8_000, stream=30, stages="BP", main=True)
                net.backward(agent, loss=False, marked=False)
                collective(agent, "send_recv", 8_000, stream=31, stages="BP")

        net.clear(agent)
        for part in range(parts + ahead):
            if part < parts:
                fore()
            if part >= ahead:
                back()
        net.update(agent, "foreach")


@kind("data_parallel", data_parallel=())
def data_parallel(sim: Sim) -> None:
    """One process, two GPUs: each step has new threads for the copies of the network."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    second = Agent(sim, agent.main, agent.back, 7, 1)
    for n in steps(sim, agent):
        agent.input()
        with agent.range("forward"):
            with agent.of("IO|FP|WU"):
                agent.copy("p2p", 1 << 20)
            for size in net.parameters[:4]:
                with agent.of("WU|FP"):
                    agent.op(
                        NCCL.format("Broadcast"),
                        size,
                        kind="collective",
                        collective="broadcast",
                    )
            for place, one in enumerate((agent, second)):
                one.now, one.step = max(agent.now, second.now), n
                with one.of("FP", thread=agent.main if sim.mode == "one_thread" else 10 + place):
                    net.forward(one, loss=False, marked=False)
            agent.now = max(agent.now, second.now)
            with agent.of("FP"):
                agent.copy("p2p", 1 << 18)
                agent.op(
                    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>",
                    2048,
                )
        with agent.range("backward"):
            for place, one in enumerate((second, agent)):
                one.now = max(agent.now, second.now)
                one.back = agent.main if sim.mode == "one_thread" else BACK + 20 + place
                net.backward(one, marked=False, loss=one is agent)
            agent.now = max(agent.now, second.now)
            with agent.of("WU|BP", thread=agent.back):
                agent.op(
                    NCCL.format("Reduce_Sum_f32"),
                    20_000,
                    kind="collective",
                    collective="reduce",
                )
        net.update(agent, "foreach")


# What launches otherwise.


@kind("graphs", graph_of_step=("step",), graph_of_pass=("pass",))
def graphs(sim: Sim, what: str) -> None:
    """After three steps a CUDA graph, recorded as a whole, is replayed."""
    agent, net = sim.agent(), net_of(sim)
    for n in steps(sim, agent, 12, 18):
        if n < 3:
            one_step(sim, agent, net, "foreach")
            continue
        agent.input()
        if what == "step":
            with agent.of("-"):
                agent.op(None, 2_000_000, kind="graph")
            continue
        for name, stage, thread in (
            ("forward", "FP", agent.main),
            ("backward", "BP", agent.back),
        ):
            with agent.range(name), agent.of(stage, thread=thread):
                agent.op(None, 900_000, kind="graph")
        net.update(agent, "foreach")


@kind("compile", compiled=())
def compiled(sim: Sim) -> None:
    """A compiler tries kernels out before the first step, and names what it makes by number."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    for trial in range(40):
        with agent.of("-"):
            for _ in range(3):
                agent.op(f"triton_tem_fused_mm_{trial % 9}", 40_000)
    for _ in steps(sim, agent):
        agent.input()
        with agent.range("forward"), agent.of("FP"):
            for k, (_, size) in enumerate(net.layers):
                agent.op(tile(size), size)
                agent.op(f"triton_poi_fused_addmm_gelu_{k}", size / 2)
        with agent.range("backward"), agent.of("BP", thread=agent.back):
            for k, (_, size) in reversed(list(enumerate(net.layers))):
                agent.op(f"triton_poi_fused_gelu_gelu_backward_{k + 9}", size / 2)
                agent.op(tile(size), size)
                agent.op(tile(size), size)
                agent.op(f"triton_red_fused_sum_{k + 20}", size / 4)
        net.update(agent, "foreach")


# Programs that do not train.


@kind("inference", inference_two_threads=(True,), inference=(False,))
def inference(sim: Sim, two: bool) -> None:
    sim.out.trains = False
    agent, net = sim.agent(), net_of(sim, "transformer")
    other = Agent(sim, OTHER_MAIN, OTHER_MAIN, 7, 0)
    for n in range(20):
        with agent.iteration(n):
            one = other if two and n % 2 and sim.mode != "one_thread" else agent
            one.now, one.step = max(agent.now, other.now), n
            with one.of("-"):
                one.copy("h2d", 1 << 20)
            net.forward(one, "FP", loss=False)
            one.fetch()
            agent.now = max(agent.now, one.now)


@kind("diffusion", diffusion=())
def diffusion(sim: Sim) -> None:
    """Images, each of 20 forward passes."""
    sim.out.trains, sim.out.finer = False, True
    agent, net = sim.agent(), net_of(sim, "cnn")
    for n in range(8):
        with agent.iteration(n):
            with agent.of("-"):
                agent.copy("h2d", 1 << 18)
            for _ in range(20):
                net.forward(agent, "FP", loss=False)
                with agent.of("FP"):
                    agent.op(ADD, 4096)
            agent.fetch()


# Ranges that are unusual.


@kind(
    "ranges",
    names_in_chinese=("chinese",),
    ids_per_step=("ids",),
    nested_steps=("nested",),
    range_left_open=("open",),
)
def unusual_ranges(sim: Sim, how: str) -> None:
    agent, net = sim.agent(), net_of(sim)
    count = count_of(sim)
    for n in range(count):
        name = {"chinese": "训练 {}", "ids": "train_batch id=a{}f"}.get(how, "step {}")
        with agent.iteration(n, name):
            one_step(sim, agent, net, "foreach")
            if how == "nested":
                with agent.range(f"step {n}.inner"):
                    agent.fetch()
    if how == "open" and sim.mode in ("ranges", "no_backward_range"):
        begin = sim.out.ranges[len(sim.out.ranges) // 2][0]
        sim.out.ranges.append((begin, agent.now + 10**7, "logging", agent.main))
