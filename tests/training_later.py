# ruff: noqa: E501  (kernels have the names that they have)
"""Programs of kinds that were written after the rules were made, before any of them was run.

They are registered beside those of `training_kinds`, in families of their own: `LATER`.
"""

from __future__ import annotations

from training_kinds import KINDS, collective, count_of, kind, net_of, one_step, steps
from training_sim import ADD, FOREACH, MUL, NORM, OPTIMIZERS, SUM, Agent, Net, Sim, tile

_BEFORE = frozenset(KINDS)


@kind("contrastive", siamese=(False,), momentum_encoder=(True,))
def contrastive(sim: Sim, momentum: bool) -> None:
    """Two views of a batch; of the second one a slow copy of the network may make the keys."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    for _ in steps(sim, agent):
        agent.input()
        agent.input(label=False)
        with agent.range("forward"):
            net.forward(agent, loss=False, marked=False)
            if momentum:
                with agent.of("FP|ME|WU"):
                    agent.op(FOREACH.format(2, "BinaryOp<lerp>"), sum(net.parameters))
                net.forward(agent, "FP|ME", loss=False, marked=False)
            else:
                net.forward(agent, loss=False, marked=False)
            with agent.of("FP"):
                agent.op(tile(30_000), 30_000)
                agent.op(
                    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>",
                    8192,
                )
        net.clear(agent)
        with agent.range("backward"):
            for _ in range(1 if momentum else 2):
                net.backward(agent, marked=False)
        net.update(agent, "foreach")


@kind("recurrent", recurrent=(False,), recurrent_vary=(True,))
def recurrent(sim: Sim, vary: bool) -> None:
    """The same small kernels time step by time step, as many as the text is long."""
    agent = sim.agent()
    cell = Net(sim.rng, "mlp", 2, 9_000)
    for n in range(count_of(sim)):
        length = int(sim.rng.integers(12, 40)) if vary else 24
        with agent.iteration(n):
            agent.input(1 << 18)
            cell.clear(agent)
            with agent.range("forward"):
                for at in range(length):
                    cell.forward(agent, marked=False, loss=at == length - 1)
            with agent.range("backward"):
                for at in range(length):
                    cell.backward(agent, marked=False, loss=at == 0)
            cell.update(agent, "foreach")


@kind("replay", dqn=())
def dqn(sim: Sim) -> None:
    """Acts four times a step, learns from a batch in memory of the GPU, with a target network."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    for n in steps(sim, agent, 12, 18):
        with agent.range("act"):
            for _ in range(4):
                with agent.of("ME|IO|FP"):
                    agent.copy("h2d", 1 << 14)
                net.forward(agent, "ME|FP", loss=False, marked=False)
                agent.fetch()
        with agent.of("IO|FP"):
            agent.op("void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>", 8192)
        net.forward(agent, "FP|ME", loss=False)
        net.forward(agent)
        net.clear(agent)
        net.backward(agent)
        net.update(agent, "foreach")
        if n % 6 == 5:
            with agent.of("-"):
                for size in net.parameters:
                    agent.copy("d2d", int(4 * size))


@kind("penalty", gradient_penalty=())
def gradient_penalty(sim: Sim) -> None:
    """A backward pass for a penalty, which the backward pass of the step goes through again."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    for _ in steps(sim, agent):
        agent.input()
        net.clear(agent)
        net.forward(agent)
        with agent.of("BP|FP"):
            net.backward(agent, stages="BP|FP", marked=False)
            agent.op(NORM, 20_000)
        with agent.range("backward"):
            net.backward(agent, marked=False)
            net.backward(agent, marked=False, loss=False)
        net.update(agent, "fused")


@kind("experts", experts=())
def experts(sim: Sim) -> None:
    """Tokens travel to the experts of other GPUs and back, in both passes."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        agent.input()
        net.clear(agent)

        def travel(stages: str) -> None:
            agent.op("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", 16_000,
                     kind="collective", collective="all_to_all", truth=frozenset({stages}),
                     thread=agent.back if stages == "BP" else agent.main)  # fmt: skip

        net.forward(agent, hook=lambda _: travel("FP"))
        net.backward(agent, hook=lambda _: travel("BP"))
        with agent.range("optimizer"), agent.of("WU"):
            collective(agent, "all_reduce", 60_000, stream=20, stages="WU", main=True)
            net.update(agent, "fused", marked=False)


@kind("growing", growing=())
def growing(sim: Sim) -> None:
    """The network gets another layer every five steps."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    layers = list(net.layers)
    for n in range(20):
        net.layers = layers[: len(layers) - 3 + n // 5]
        net.parameters = [size for _, size in net.layers for _ in range(2)]
        with agent.iteration(n):
            one_step(sim, agent, net, "foreach")


@kind("slow_weights", lookahead=())
def lookahead(sim: Sim) -> None:
    """Every fifth update is followed by one of the slow weights."""
    agent, net = sim.agent(), net_of(sim)
    for n in steps(sim, agent, 15, 22):
        one_step(sim, agent, net, "many")
        if n % 5 == 4:
            with agent.range("optimizer"), agent.of("WU"):
                for size in net.parameters:
                    agent.op(ADD, size)
                    agent.op(MUL, size)
                    agent.copy("d2d", int(4 * size), truth=frozenset({"WU", "OTHER"}))


@kind("by_turns", tasks_by_turns=(), weights_by_turns=("darts",))
def by_turns(sim: Sim, what: str = "tasks") -> None:
    """Networks of two tasks by turns; or the architecture and the weights, a batch for each."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    other = net_of(sim, "cnn")
    sim.out.finer = what == "darts"
    for n in steps(sim, agent, 12, 18):
        if what == "darts":
            one_step(sim, agent, net, "many")
            one_step(sim, agent, net, "foreach")
        else:
            one_step(sim, agent, (net, other)[n % 2], "foreach")


@kind("sharded_states", zero2=())
def zero2(sim: Sim) -> None:
    """Gradients are scattered, a part of the weights updated, and the weights gathered."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        agent.input()
        net.forward(agent)
        net.backward(
            agent, hook=lambda layer: layer % 2 == 0
            and collective(agent, "reduce_scatter", 30_000, stream=20, stages="WU"),
        )  # fmt: skip
        with agent.range("optimizer"), agent.of("WU"):
            OPTIMIZERS["fused"](agent, net.parameters[:3])
            collective(agent, "all_gather", 90_000, stream=20, stages="WU", main=True)


@kind("prefetch", prefetcher=())
def prefetcher(sim: Sim) -> None:
    """The next batch is copied, and made floats, on a stream of its own while this one is used."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    for _ in steps(sim, agent):
        net.forward(agent)
        with agent.range("data"), agent.of("IO"):
            agent.copy("h2d", 1 << 21, stream=25)
            agent.copy("h2d", 4096, stream=25)
            agent.op(
                "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
                60_000,
                stream=25,
            )
            agent.op(MUL, 60_000, stream=25)
        net.backward(agent)
        net.update(agent, "foreach")
        net.clear(agent)


def lamb(agent: Agent, net: Net) -> None:
    """Adam whose step is scaled by norms, weight by weight."""
    for size in net.parameters:
        agent.op(MUL, size)
        agent.op(
            "void at::native::vectorized_elementwise_kernel<4, at::native::addcmul_cuda_scalar_kernel>",
            size,
        )
        agent.op(NORM, size)
        agent.op(NORM, size)
        agent.op(MUL, 128)
        agent.op(ADD, size)


@kind("trust_ratio", lamb_resident=(True,), lamb_input=(False,))
def trust_ratio(sim: Sim, resident: bool) -> None:
    """LAMB; data on the GPU, or copied."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        if not resident:
            agent.input()
        net.forward(agent)
        net.backward(agent)
        with agent.range("optimizer"), agent.of("WU"):
            lamb(agent, net)
        net.clear(agent)


@kind("preference", dpo=())
def dpo(sim: Sim) -> None:
    """Two answers through a frozen network and the one that learns; one loss of all four."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for n in range(count_of(sim)):
        agent.scale = float(sim.rng.choice([0.75, 1, 1.25]))
        with agent.iteration(n):
            agent.input()
            with agent.range("forward"):
                net.forward(agent, marked=False, loss=False)
                net.forward(agent, marked=False, loss=False)
                net.forward(agent, "FP|ME", marked=False, loss=False)
                net.forward(agent, "FP|ME", marked=False, loss=False)
                with agent.of("FP"):
                    agent.op(
                        "void at::native::vectorized_elementwise_kernel<4, at::native::log_sigmoid_forward>",
                        1024,
                    )
                    agent.op(SUM, 1024)
            with agent.range("backward"):
                net.backward(agent, marked=False)
                net.backward(agent, marked=False, loss=False)
            net.update(agent, "fused")
            agent.fetch()


@kind("evaluation_between", evaluates_often=("cnn", "foreach", 2, 2, False),
      evaluates_each_step=("cnn", "foreach", 1, 1, False),
      evaluates_without_norms=("transformer", "fused", 2, 2, False),
      evaluates_unnamed=("mlp", "plain", 3, 1, False),
      evaluates_fetched=("cnn", "foreach", 2, 2, True))  # fmt: skip
def evaluates_between(
    sim: Sim, body: str, optimizer: str, every: int, batches: int, fetched: bool
) -> None:
    """Evaluates every few steps, on batches that are in memory of the GPU from the beginning."""
    agent, net = sim.agent(), net_of(sim, body)
    for n in range(count_of(sim, 14, 18)):
        with agent.iteration(n):
            net.clear(agent)
            net.forward(agent)
            net.backward(agent)
            net.update(agent, optimizer)
        if n % every == every - 1:
            with agent.range("evaluate"), agent.evaluation():
                for _ in range(batches):
                    net.forward(agent, "ME", marked=False)
                    if fetched:
                        agent.fetch()


@kind("frozen", frozen_half=("foreach", False), frozen_half_fed=("foreach", True),
      frozen_half_unnamed=("plain", False), frozen_half_muon=("muon", False))  # fmt: skip
def frozen(sim: Sim, optimizer: str, fed: bool) -> None:
    """Trains the upper half of a network whose layers all have one size."""
    agent, depth = sim.agent(), 2 * int(sim.rng.integers(2, 5))
    net, upper = Net(sim.rng, "transformer", depth), Net(sim.rng, "transformer", depth // 2)
    for each in (net, upper):
        each.layers = [(layer, net.width) for layer, _ in each.layers]
        each.parameters = [net.width for _ in each.parameters]
    for _ in steps(sim, agent, 14, 18):
        if fed:
            agent.input()
        net.forward(agent)
        upper.backward(agent)
        upper.update(agent, optimizer)


@kind("streams_of_cudnn", lstm_streams=("foreach", 0), lstm_streams_plain=("plain", 0),
      lstm_mostly_elsewhere=("foreach", 3))  # fmt: skip
def lstm_streams(sim: Sim, optimizer: str, shift: int) -> None:
    """Layers that cuDNN runs time step by time step, each on a stream of its own beside the main one.

    Backward passes may run most kernels on another stream than forward passes do.
    """
    agent, depth = sim.agent(), 3
    parameters = [20_000.0] * (4 * depth + 2)
    head = Net(sim.rng, "mlp", 1, 30_000)
    cell = "void LSTM_elementWise_{}<float, float, float, (cudnnRNNBiasMode_t)2>"

    def layers(stage: str, *, forward: bool) -> None:
        with agent.of(stage, thread=None if forward else agent.back):
            for layer in range(depth):
                stream = 20 + (layer if forward else layer + shift) % (depth + 1)
                for _ in range(8):
                    agent.op(tile(20_000), 20_000, stream=stream)
                    agent.op(cell.format("fp" if forward else "bp1"), 8_000, stream=stream)
                agent.op(ADD if forward else SUM, 8_000)

    for _ in steps(sim, agent):
        agent.input(1 << 18)
        with agent.range("forward"):
            with agent.of("FP"):
                agent.op("void indexSelectLargeIndex<float, long, unsigned int, 2>", 9_000)
            layers("FP", forward=True)
            head.forward(agent, marked=False)
        with agent.range("backward"):
            head.backward(agent, marked=False)
            layers("BP", forward=False)
            with agent.of("BP", thread=agent.back):
                agent.op("void embedding_dense_backward_kernel<float, float, long>", 9_000)
        with agent.range("optimizer"), agent.of("WU"):
            OPTIMIZERS[optimizer](agent, parameters)


LATER = frozenset(KINDS) - _BEFORE
