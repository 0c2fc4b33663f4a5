"""What collectives are for, by their place: literal programs on one GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import polars as pl
import pytest
from chunk_helpers import assert_same_in_chunks
from effort import by_day, examples
from trace_builder import TraceBuilder, default_rules

from tracekit.attribution import Rules, attribute
from tracekit.attribution._exchanges import Doubtful
from tracekit.model import Trace

NAMES = {
    "AR": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "AR32": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "AG": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "RS": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "BC": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "RED": "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "SR": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)",
    "unpack": "split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char**, long*)",
    "pack": "chunk_cat_cuda_kernel<float, c10::BFloat16>(float**, c10::BFloat16*, long*)",
    "gemm": "ampere_bf16_s16816gemm_bf16_128x128",
    "conv": "sm80_xmma_fprop_implicit_gemm",
    "gemm2": "ampere_bf16_s16816gemm_bf16_256x64",
    "gemm3": "ampere_bf16_s16816gemm_bf16_64x64",
    "gemm4": "ampere_bf16_s16816gemm_bf16_128x64",
    "gemm_bw": "ampere_bf16_s16816gemm_bf16_128x128_dgrad",
    "softmax": "softmax_warp_forward",
    "softmax_bw": "softmax_warp_backward",
    "norm": "vectorized_layer_norm_kernel",
    "norm_bw": "layer_norm_grad_input_kernel",
    "add": "vectorized_elementwise_kernel<4, CUDAFunctor_add>",
    "adam": "multi_tensor_apply_kernel<AdamFunctor>",
}
SIZES = {"gemm2": 8192, "gemm3": 2048, "gemm4": 1024, "softmax": 512, "softmax_bw": 512}
RANGES = {"F": "forward", "B": "backward", "W": "optimizer"}


class Program:
    """Steps of forward, backward and update on one GPU, as texts of what is launched.

    A token is a name of `NAMES`, and its stream where that is not 7. On the computing stream ops
    run one after the other. A collective of another stream starts when it is launched; with ``!``
    the computing stream goes on when it has ended, else at once. A collective with ``-`` is short.
    """

    def __init__(self, *, autograd: bool = True, ranges: str = "FBW") -> None:
        self.builder = TraceBuilder()
        self.builder.thread(0, "main")
        self.builder.thread(1, "pt_autograd_0" if autograd else "worker")
        self.autograd, self.ranges = autograd, ranges
        self.expected: list[tuple[str, str]] = []
        self.host = 0
        self.free = {7: 0}

    def step(self, forward: str, backward: str, update: str, times: int = 1) -> Program:
        for _ in range(times):
            for stage, text in zip("FBW", (forward, backward, update), strict=True):
                self._pass(stage, text)
        return self

    def outside(self, text: str) -> None:
        """Launch on the main thread, in no range."""
        self._pass("-", text)

    def _pass(self, stage: str, text: str) -> None:
        begin = self.host
        for token in text.split():
            self._launch(token, 1 if stage == "B" and self.autograd else 0)
        self.host += 2
        if stage in self.ranges:
            self.builder.range(begin, self.host, RANGES[stage])
        self.host += 10

    def _launch(self, token: str, thread: int) -> None:
        name, _, rest = token.partition("@")
        waited, stream = rest.endswith("!"), int(rest.rstrip("!") or 7)
        name, short = name.rstrip("-"), name.endswith("-")
        takes = 8 if short else 60 if name in ("AR", "AR32", "AG", "RS", "BC", "RED") else 30
        self.host += 4
        # A stream of its own waits for what was computed so far.
        start = max(self.host + 3, self.free[7], self.free.get(stream, 0))
        copies = {"kind": "h2d", "bytes": 1 << 20} if name == "h2d" else {}
        self.builder.op(
            NAMES.get(name, name), self.host, thread=thread, start=start, end=start + takes,
            stream=stream, launch_size=SIZES.get(name, 4096), **copies,
        )  # fmt: skip
        self.free[stream] = start + takes
        if waited:
            self.free[7] = start + takes

    def trace(self, rules: Rules | None = None) -> Trace:
        return self.builder.judged(rules)


def told(trace: Trace) -> dict[str, Counter[tuple[str, str]]]:
    """Return how often collectives of each name have which stage, from which source."""
    short = {name: word for word, name in NAMES.items()}
    ops = trace.read("ops").select(pl.col("name", "stage", "stage_source").cast(pl.String))
    found: dict[str, Counter[tuple[str, str]]] = {}
    for name, stage, source in ops.iter_rows():
        if name.startswith("nccl"):
            found.setdefault(short[name], Counter())[stage, source] += 1
    return found


PASS, WEIGHTS, GRADIENTS = "pass_exchange", "weight_exchange", "gradient_exchange"
TP_FORWARD = "norm gemm gemm AR add norm gemm gemm AR add gemm"
TP_BACKWARD = "gemm gemm AR norm add gemm gemm AR gemm norm"


@pytest.mark.parametrize("ranges", ["FBW", "FW", "FB"])
@pytest.mark.parametrize("autograd", [True, False])
@pytest.mark.parametrize("stream", ["", "@9!"])
def test_tensor_parallelism(ranges: str, stream: str, *, autograd: bool) -> None:
    if not autograd and "B" not in ranges:
        pytest.skip("no one says what is backward")
    texts = (text.replace("AR", f"AR{stream}") for text in (TP_FORWARD, TP_BACKWARD))
    trace = Program(autograd=autograd, ranges=ranges).step(*texts, "adam adam", 5).trace()
    assert told(trace) == {"AR": {("FP", PASS): 10, ("BP", PASS): 10}}
    assert not [text for text in trace.warnings if "exchanges of gradients" in text]
    (evidence,) = trace.read("verdicts")["evidence"]
    assert evidence.endswith("; by place 20 collectives of passes (tensor parallelism)")


@pytest.mark.parametrize("autograd", [True, False])
@pytest.mark.parametrize("stream", ["", "@9!"])
def test_tensor_parallelism_without_ranges(stream: str, *, autograd: bool) -> None:
    forward = "h2d norm gemm gemm2 AR add norm gemm3 gemm AR add gemm4 softmax"
    backward = "softmax_bw gemm4 gemm_bw AR norm_bw add gemm_bw gemm3 AR gemm2 norm_bw"
    texts = (text.replace("AR", f"AR{stream}") for text in (forward, backward))
    trace = Program(autograd=autograd, ranges="").step(*texts, "adam adam", 8).trace()
    (verdict,) = trace.read("verdicts").to_dicts()
    if verdict["decides"]:
        assert told(trace) == {"AR": {("FP", PASS): 16, ("BP", PASS): 16}}
    else:  # one that tells no passes leaves what is so by definition
        assert not autograd
        assert told(trace) == {"AR": {("WU", GRADIENTS): 32}}


def test_tensor_parallelism_beside_data_parallelism() -> None:
    backward = "gemm gemm AR norm gemm AR32@20 gemm AR gemm norm AR32@20 gemm gemm"
    trace = Program().step(TP_FORWARD, backward, "adam", 5).trace()
    assert told(trace) == {
        "AR": {("FP", PASS): 10, ("BP", PASS): 10}, "AR32": {("WU", GRADIENTS): 10},
    }  # fmt: skip


@pytest.mark.parametrize("gradients", ["AR32", "AR32@9!"])
def test_gradients_on_the_stream_of_tensor_parallelism(gradients: str) -> None:
    """They have another type: forward holds none like them."""
    stream = gradients[4:]
    texts = [text.replace("AR", f"AR{stream}") for text in (TP_FORWARD, TP_BACKWARD)]
    backward = f"{texts[1]} {gradients} gemm norm {gradients} gemm"
    trace = Program().step(texts[0], backward, "adam", 5).trace()
    assert told(trace) == {
        "AR": {("FP", PASS): 10, ("BP", PASS): 10}, "AR32": {("WU", GRADIENTS): 10},
    }  # fmt: skip


def test_a_loss_that_is_split_over_gpus() -> None:
    """Only forward passes sum its parts, as numbers of another type."""
    trace = Program().step(f"{TP_FORWARD} AR32 AR32 softmax", TP_BACKWARD, "adam", 5).trace()
    assert told(trace) == {
        "AR": {("FP", PASS): 10, ("BP", PASS): 10}, "AR32": {("FP", PASS): 10},
    }  # fmt: skip


def test_sequence_parallelism() -> None:
    forward = "norm AG@9! gemm gemm RS@9! norm AG@9! gemm gemm RS@9! norm gemm"
    backward = "gemm AG@9! gemm gemm RS@9! norm AG@9! gemm gemm RS@9! norm gemm"
    trace = Program().step(forward, backward, "adam", 4).trace()
    assert told(trace) == {
        "AG": {("FP", PASS): 8, ("BP", PASS): 8}, "RS": {("FP", PASS): 8, ("BP", PASS): 8},
    }  # fmt: skip


def test_sequence_parallelism_beside_gradients_of_weights() -> None:
    """As Megatron does: gradients of weights are computed while those of inputs are sent."""
    forward = "norm AG@9! gemm gemm RS@9! norm AG@9! gemm gemm RS@9! norm gemm"
    backward = "gemm AG@9! gemm RS@9 gemm norm AG@9! gemm RS@9 gemm norm gemm"
    trace = Program().step(forward, backward, "adam", 4).trace()
    assert told(trace) == {
        "AG": {("FP", PASS): 8, ("BP", PASS): 8}, "RS": {("FP", PASS): 8, ("BP", PASS): 8},
    }  # fmt: skip


def test_the_last_layer_of_backward() -> None:
    """No layer follows its all-reduce; what is averaged by hand comes in rows."""
    backward = "gemm gemm AR norm gemm gemm gemm AR add"
    for autograd in (True, False):
        program = Program(autograd=autograd).step(TP_FORWARD, backward, "adam", 3)
        assert told(program.trace()) == {"AR": {("FP", PASS): 6, ("BP", PASS): 6}}
    program = Program().step(TP_FORWARD, backward, "AR adam", 3)
    assert told(program.trace())["AR"]["WU", GRADIENTS] == 3
    program = Program().step(TP_FORWARD, f"{TP_BACKWARD} AR AR AR", "adam", 3)
    assert told(program.trace())["AR"]["WU", GRADIENTS] == 9


def test_recomputed_forward_passes() -> None:
    """Backward computes forward anew, with its all-reduces."""
    trace = Program().step(TP_FORWARD, f"{TP_FORWARD} {TP_BACKWARD}", "adam", 4).trace()
    assert told(trace) == {"AR": {("FP", PASS): 8, ("BP", PASS): 16}}


@pytest.mark.parametrize(
    "backward",
    [
        "gemm gemm AR@20 norm gemm gemm AR@20 norm gemm AR@20",  # DDP
        "gemm gemm AR@20! norm gemm gemm AR@20! norm gemm",  # without overlap, as DeepSpeed may
        "gemm gemm AR norm gemm gemm AR norm gemm",
        "gemm gemm norm gemm gemm norm gemm AR AR add AR add",  # averaged by hand
        "gemm gemm norm gemm AR",
    ],
)
@pytest.mark.parametrize("ranges", ["FBW", "FW"])
def test_gradients(backward: str, ranges: str) -> None:
    trace = Program(ranges=ranges).step("norm gemm norm gemm gemm", backward, "adam", 5).trace()
    assert told(trace) == {"AR": {("WU", GRADIENTS): 5 * backward.count("AR")}}
    assert not [text for text in trace.warnings if "exchanges of gradients" in text]


def test_gradients_averaged_by_the_main_thread() -> None:
    """In a range of backward, or of the update, but after all layers."""
    program = Program()
    for update in ("AR AR add AR adam", "AR AR AR adam"):
        program.step("norm gemm norm gemm", "gemm gemm norm gemm", update, 3)
    assert told(program.trace()) == {"AR": {("WU", GRADIENTS): 18}}


@pytest.mark.parametrize(
    ("forward", "stream"),
    [
        ("norm gemm norm gemm add AR add", ""),
        # A count of boxes, or the centre of a teacher's outputs, before the loss.
        ("norm gemm norm gemm AR-@20! softmax", "@20"),
    ],
)
def test_a_loss_that_is_averaged_makes_no_tensor_parallelism(forward: str, stream: str) -> None:
    backward = f"gemm gemm AR{stream} norm gemm gemm AR{stream} norm gemm"
    trace = Program().step(forward, backward, "adam", 5).trace()
    assert told(trace) == {"AR": {("WU", GRADIENTS): 15}}


@pytest.mark.parametrize("waits", ["", "!"])
def test_sharded_weights(waits: str) -> None:
    gather, scatter = f"AG@20{waits}", "RS@21"
    forward = f"{gather} norm gemm gemm {gather} norm gemm gemm"
    backward = f"{gather} gemm gemm norm {scatter} {gather} gemm gemm norm gemm {scatter}"
    trace = Program().step(forward, backward, "adam", 5).trace()
    assert told(trace) == {"AG": {("WU", WEIGHTS): 20}, "RS": {("WU", GRADIENTS): 10}}
    (evidence,) = trace.read("verdicts")["evidence"]
    assert evidence.endswith("; by place 20 collectives of weights")
    assert not [text for text in trace.warnings if "exchanges of gradients" in text]


@pytest.mark.parametrize("again", ["", "AG@28! "])
def test_keys_that_are_gathered_beside_sharded_weights(again: str) -> None:
    """Context parallelism: the gradients of what forward gathers are scattered, and none waits."""
    forward = "AG@20 norm gemm AG@28! gemm2 gemm " * 2
    backward = f"AG@20 gemm gemm {again}gemm2 RS@28! gemm norm RS@21 gemm " * 2
    trace = Program().step(forward, backward, "adam", 5).trace()
    passes = Counter({("FP", PASS): 10, ("BP", PASS): 10 * bool(again)})
    assert told(trace) == {
        "AG": +passes + Counter({("WU", WEIGHTS): 20}),
        "RS": {("BP", PASS): 10, ("WU", GRADIENTS): 10},
    }


def test_weights_whose_gradients_are_scattered_at_once_are_no_keys() -> None:
    """HSDP that waits for each exchange: shards are summed over nodes beside backward."""
    forward, backward = "AG@20! norm gemm gemm " * 2, "AG@20! gemm gemm norm RS@20! AR@24 gemm " * 2
    trace = Program().step(forward, backward, "adam", 5).trace()
    assert set(told(trace)["AG"]) == {("WU", WEIGHTS)}
    assert set(told(trace)["RS"]) == {("WU", GRADIENTS)}


def test_weights_that_are_handed_out() -> None:
    """As `DataParallel` does before each forward pass, and adds up gradients after it."""
    forward = "BC@20! BC@20! BC@20! gemm norm gemm"
    trace = Program().step(forward, "gemm norm gemm RED@20", "adam", 5).trace()
    assert told(trace) == {"BC": {("WU", WEIGHTS): 15}, "RED": {("WU", GRADIENTS): 5}}
    assert not [text for text in trace.warnings if "exchanges of gradients" in text]


def test_statistics_of_batches_over_gpus() -> None:
    """Batch normalisation over GPUs gathers in forward, on the computing stream."""
    forward, backward = "conv AG norm conv AG norm gemm", "gemm norm AR32@20 conv norm conv AR32@20"
    trace = Program().step(forward, backward, "adam", 5).trace()
    assert told(trace) == {"AG": {("FP", PASS): 10}, "AR32": {("WU", GRADIENTS): 10}}


def test_gradients_of_statistics_over_gpus() -> None:
    """What forward gathers on the computing stream, backward reduces there, as often."""
    forward = "conv AG norm conv AG norm gemm"
    backward = "gemm norm AR conv gemm norm AR conv AR32@20"
    trace = Program().step(forward, backward, "adam", 5).trace()
    assert told(trace) == {
        "AG": {("FP", PASS): 10}, "AR": {("BP", PASS): 10}, "AR32": {("WU", GRADIENTS): 5},
    }  # fmt: skip
    # Gradients are reduced more often than features are gathered.
    backward = "gemm AR norm gemm AR norm gemm AR norm conv"
    trace = Program().step("conv norm conv AG norm gemm", backward, "adam", 5).trace()
    assert told(trace)["AR"] == {("WU", GRADIENTS): 15}


def test_where_no_stream_computes_most_nothing_is_said_of_places() -> None:
    texts = (TP_FORWARD, TP_BACKWARD)
    spread = (
        " ".join(f"{w}@{8 + n % 3}" if w == "gemm" else w for n, w in enumerate(text.split()))
        for text in texts
    )
    trace = Program().step(*spread, "adam", 5).trace()
    assert set(told(trace)["AR"]) == {("WU", GRADIENTS)}


def _rules(path: Path, entry: str) -> Rules:
    path.write_text(f"version = 1\n[[exchange]]\ncollective = ['all_reduce']\n{entry}\n")
    return Rules.load(path)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("stage = 'WU'", {("WU", GRADIENTS): 20}),
        ("ignore = true", {("FP", "nvtx"): 10, ("BP", "backward_thread"): 10}),
    ],
)
def test_rules_of_the_user_decide(
    tmp_path: Path, entry: str, found: dict[tuple[str, str], int]
) -> None:
    program = Program().step(TP_FORWARD, TP_BACKWARD, "adam", 5)
    assert told(program.trace(_rules(tmp_path / "r.toml", entry))) == {"AR": found}


@pytest.mark.parametrize("ranges", ["FBW", ""])
def test_kernels_that_pack_what_is_exchanged_are_of_the_exchange(ranges: str) -> None:
    """Those of FSDP2: 3.4 % of GPU time of a simulated training had the stage of the pass."""
    forward = "AG@20 unpack norm gemm gemm2 add " * 3
    backward = "AG@20 unpack gemm gemm3 norm add pack@21 RS@21 " * 3
    trace = Program(ranges=ranges).step(forward, backward, "adam adam", 4).trace()
    packs = trace.read("ops").filter(pl.col("name").cast(pl.String).str.contains("chunk|split"))
    assert packs.height == 36
    assert packs.select(pl.col("stage", "stage_source").cast(pl.String)).unique().rows() == [
        ("WU", "weight_exchange")
    ]


def test_messages_that_ranges_of_passes_leave_out_are_told_by_order() -> None:
    """A pipeline receives before a pass and sends after it, as a rule outside of its range."""
    program = Program()
    for _ in range(6):
        program.outside("SR@9!")
        program.step("norm gemm gemm2 add gemm3 softmax", "", "")
        program.outside("SR@9!")
        program.step("", "softmax_bw gemm gemm_bw norm_bw gemm gemm2", "adam adam adam")
    assert told(program.trace()) == {"SR": {("FP", "structure"): 12}}


def test_where_nothing_trains_there_are_no_places() -> None:
    trace = Program(ranges="").step(TP_FORWARD, "", "", 5).trace()
    assert told(trace) == {"AR": {("FP", "verdict"): 10}}


@pytest.mark.parametrize("back", ["RS", "AR"])
def test_features_of_two_towers_are_of_the_passes(back: str) -> None:
    """Weights whose gradients are all-reduced beside the backward pass are not gathered."""
    forward = "norm gemm gemm add AG@20! AG@20! gemm2 softmax gemm"
    backward = f"gemm gemm2 {back}@20! {back}@20! gemm gemm norm AR32@20 gemm gemm add gemm"
    trace = Program(ranges="").step(forward, backward, "adam adam", 5).trace()
    found = told(trace)
    assert found["AG"] == {("FP", PASS): 10}
    assert found[back] == {("BP", PASS): 10}
    assert found["AR32"] == {("WU", GRADIENTS): 5}


def test_weights_that_are_gathered_for_forward_alone_are_told_by_their_gradients() -> None:
    """Shards within a node, copies of which other nodes hold (HYBRID_SHARD_ZERO2)."""
    forward = "AG@20! norm gemm gemm2 add AG@20! gemm gemm add AG@20! gemm softmax"
    backward = "gemm gemm RS@20 AR32@21 gemm gemm RS@20 AR32@21 gemm norm gemm RS@20 AR32@21 gemm"
    trace = Program(ranges="").step(forward, backward, "adam adam", 5).trace()
    assert {stage for each in told(trace).values() for stage, _ in each} == {"WU"}


def test_what_is_broadcast_to_a_process_that_infers_is_no_forward_pass() -> None:
    """It may be the weights of a training elsewhere: 1.7 % of GPU time of a simulated decoder."""
    trace = Program(ranges="").step("norm gemm softmax BC@9 gemm AR", "", "", 5).trace()
    assert told(trace) == {"AR": {("FP", "verdict"): 5}, "BC": {("OTHER", "none"): 5}}


def test_a_process_that_trains_beside_one_that_infers() -> None:
    """Both run collectives of the same name; only those of the first one are told by place."""
    program = Program().step(TP_FORWARD, TP_BACKWARD, "adam", 5)
    for n in range(200):
        program.builder.op(NAMES["gemm"], 10 * n, thread=10)
        program.builder.op("softmax_warp_forward", 10 * n + 3, thread=10)
        program.builder.op(NAMES["AR"], 10 * n + 5, thread=10)
    assert told(program.trace()) == {
        "AR": {("FP", PASS): 10, ("BP", PASS): 10, ("FP", "verdict"): 200}
    }


@pytest.mark.slow
@pytest.mark.parametrize("heights", by_day([[1], [7], [3, 1, 50]], [3, 1, 50]))
def test_places_are_the_same_chunk_by_chunk(heights: list[int]) -> None:
    trace = Program().step(TP_FORWARD, TP_BACKWARD, "adam", 4).builder.trace()
    assert_same_in_chunks(trace, attribute(trace, default_rules()), heights)


def _generated(seed: int, kind: str) -> tuple[Program, dict[str, Counter[tuple[str, str]]]]:
    """Return a program of one kind, of random size, and what its collectives are."""
    random = Random(seed)
    layers, steps, passes = random.randint(2, 9), random.randint(3, 5), random.choice([1, 2, 4])
    stream, ranges = random.choice(["", "@9!"]), random.choice(["FBW", "FW"])
    forward, backward = ["norm gemm gemm2 add"] * layers, ["gemm gemm3 norm add gemm"] * layers
    each, update, n = layers * steps * passes, "adam " * random.randint(1, 4), layers * passes
    if kind == "tensor":
        forward, backward = ([f"{text} AR{stream} add" for text in p] for p in (forward, backward))
        expected = {"AR": {("FP", PASS): each, ("BP", PASS): each}}
    elif kind == "sequence":
        forward, backward = (
            [f"AG{stream} {text} RS{stream}" for text in p] for p in (forward, backward)
        )
        both = {("FP", PASS): each, ("BP", PASS): each}
        expected = {"AG": both, "RS": both}
    elif kind == "sharded":
        forward = [f"AG@20{random.choice(['', '!'])} {text}" for text in forward]
        backward = [f"AG@20 {text} RS@21" for text in backward]
        expected = {"AG": {("WU", WEIGHTS): 2 * each}, "RS": {("WU", GRADIENTS): each}}
    else:
        exchange = {"overlapped": "AR@20", "waited": "AR@20!", "by hand": ""}[kind]
        backward = [f"{text} {exchange}" for text in backward]
        update = f"{'AR ' * n if kind == 'by hand' else ''}{update}"
        expected = {"AR": {("WU", GRADIENTS): steps * n}}
    program = Program(ranges=ranges)
    for _ in range(steps):
        for left in range(passes - 1, -1, -1):
            texts = " ".join(forward), " ".join(backward)
            program.step(*texts, "" if left else update)
    return program, {name: Counter(found) for name, found in expected.items()}


@pytest.mark.parametrize("seed", range(examples(4)))
@pytest.mark.parametrize(
    "kind", ["tensor", "sequence", "sharded", "overlapped", "waited", "by hand"]
)
def test_generated_programs(kind: str, seed: int) -> None:
    program, expected = _generated(seed, kind)
    assert told(program.trace()) == expected


@pytest.mark.parametrize(
    ("name", "collective", "length", "worth"),
    [
        ("Generic_1", "unknown", 40, True),
        ("Generic_1", "unknown", 1, False),
        ("SendRecv", "send_recv", 40, False),
    ],
)
def test_collectives_that_do_not_name_their_operation_are_told(
    name: str, collective: str, length: int, worth: bool
) -> None:
    """RCCL runs any operation by a kernel of one name."""
    builder = TraceBuilder()
    builder.range(0, 900, "backward")
    for turn in range(8):
        at = 100 * turn + 10
        builder.op("gemm_bwd", at, start=at + 2, end=at + 42)
    builder.op(f"ncclDevKernel_{name}", 850, start=860, end=860 + length, stream=20,
               kind="collective", collective=collective)  # fmt: skip
    said = [text for text in builder.attributed().warnings if "name their operation" in text]
    assert len(said) == worth
    assert not worth or "take 11 % of GPU time" in said[0]


@pytest.mark.parametrize(
    ("name", "back", "told"),
    [("data loading", 80_000, True), ("data loading", 80_000 // 3, False),
     ("data loading", 0, False), ("evaluate", 80_000, True)],
)  # fmt: skip
def test_input_that_may_come_back_from_the_host_is_told(name: str, back: int, told: bool) -> None:
    """An optimizer on the host returns weights, as input is copied; or they return to generate."""
    builder = TraceBuilder()
    for turn in range(4):
        at = 1000 * turn
        builder.range(at, at + 200, name)
        builder.op("copy", at + 10, start=at + 20, end=at + 60, kind="h2d", bytes=200_000)
        builder.range(at + 210, at + 900, "backward")
        builder.op("gemm", at + 220, start=at + 230, end=at + 430)
        for part in range(3):
            begin = at + 440 + 10 * part
            builder.op("copy", begin, start=begin, end=begin + 10, kind="d2h", bytes=back)
    said = [text for text in builder.attributed().warnings if "come back" in text]
    assert len(said) == told
    share = "1 MB and 15 % of GPU time, may be weights or activations that come back: 1 MB are"
    assert not told or share in said[0]


@pytest.mark.parametrize("program", ["split", "replicas", "server"])
def test_copies_between_gpus_that_may_carry_activations_are_told(program: str) -> None:
    """One thread drives both GPUs: activations of a model split over them counted as update."""
    builder = TraceBuilder()
    # Begin, end of forward and backward passes of each GPU, and of the copies between.
    forward = {0: (10, 100), 1: (10 if program == "replicas" else 130, 220)}
    backward = {0: (340 if program == "split" else 230, 440), 1: (230, 320)}
    for begin in range(0, 6_000, 600):
        builder.range(begin, begin + 225, "forward")
        builder.range(begin + 226, begin + 450, "backward")
        builder.range(begin + 450, begin + 590, "optimizer")
        for name, stage in (("gemm", forward), ("gemm_dgrad", backward)):
            for device, (start, end) in stage.items():
                builder.op(
                    name, begin + start - 1, start=begin + start, end=begin + end, device=device
                )
        for at, source in ((102, 0), (322, 1)):
            builder.op("copy", begin + at, start=begin + at + 2, end=begin + at + 12, kind="p2p",
                       bytes=1 << 20, src_device=source, dst_device=1 - source)  # fmt: skip
        builder.op("adam", begin + 500, start=begin + 502, end=begin + 540)
    said = [text for text in builder.attributed().warnings if "split over GPUs" in text]
    assert len(said) == (program == "split")
    assert not said or "in 10 of 10 steps a GPU begins its passes only after one from" in said[0]


def _doubts(builder: TraceBuilder, source: str) -> list[str]:
    """Return the warnings of doubt of 960 ns of ops, whose stages have one source."""
    for op in builder.rows["ops"]:
        op["stage_source"] = source
    doubtful, opinions = Doubtful(), {"stage_source": "x", "other_source": "x", "total_ns": 960}
    doubtful.add(builder.trace().read("ops"))
    return list(doubtful.warnings(pl.DataFrame([opinions])))


@pytest.mark.parametrize(
    ("source", "size", "told"),
    [("structure", 1 << 23, True), ("nvtx", 1 << 23, False), ("structure", 4, False)],
)
def test_copies_to_the_host_that_update_by_their_place_are_told(
    source: str, size: int, *, told: bool
) -> None:
    """Results copied after each update counted as update, 21 % of a step in place of 2."""
    builder = TraceBuilder()
    builder.op("copy", 10, start=20, end=220, kind="d2h", bytes=size, stage="WU")
    builder.op("gemm", 230, start=240, end=1_000, stage="BP")
    said = _doubts(builder, source)
    assert bool(said) is told
    assert not told or said[0].startswith("copies to the host, 21 % of GPU time, count as weight")


@pytest.mark.parametrize(
    ("source", "back", "told"),
    [("structure", 9, True), ("nvtx", 9, False), ("structure", 99, False)],
)
def test_messages_that_may_carry_gradients_are_told(source: str, back: int, *, told: bool) -> None:
    """What a pipeline's first stage waits for counted as forward pass, 21 % of its time."""
    builder = TraceBuilder()
    for stage, begin, takes in (("FP", 20, 200), ("BP", 300, back)):
        builder.op("ncclDevKernel_SendRecv", begin - 9, start=begin, end=begin + takes,
                   kind="collective", collective="send_recv", stage=stage)  # fmt: skip
    said = _doubts(builder, source)
    assert bool(said) is told
    assert not told or said[0].startswith("messages to other processes, 21 % of GPU time, count as")


@pytest.mark.parametrize(("hook", "named"), [("power", False), ("power", True), (None, False)])
def test_products_by_which_a_hook_compresses_gradients_are_told(
    hook: str | None, named: bool
) -> None:
    """They were BP without a word, 16 % of a window; only a range in the hook names them."""
    builder = TraceBuilder()
    for step in range(4):
        begin = 1_000 * step
        builder.range(begin, begin + 900, f"step {step}")
        builder.range(begin + 10, begin + 290, "forward")
        builder.range(begin + 800, begin + 890, "optimizer")
        ops = [("gemm_nn", 20, 0), ("gemm_wgrad", 310, 1), ("gemm_dgrad", 340, 1),
               ("gemm_lowrank", 370, 1), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400, 1),
               ("gemm_lowrank", 430, 1), ("adam", 810, 0)]  # fmt: skip
        for name, at, thread in ops:
            if hook or "lowrank" not in name:
                kind = "collective" if "nccl" in name else "compute"
                of = {"collective": "all_reduce"} if "nccl" in name else {}
                builder.op(name, begin + at, thread=thread, end=begin + at + 25, kind=kind, **of)
        if named:
            builder.range(begin + 365, begin + 480, "powerSGD_hook", thread=1)
    trace = builder.attributed()
    told = [text for text in trace.warnings if "PowerSGD" in text]
    assert bool(told) is (hook is not None and not named)
    assert not told or "in 3 of 3 backward passes" in told[0]
    found = trace.read("ops").filter(pl.col("name").cast(pl.String) == "gemm_lowrank")["stage"]
    assert {*found} == ({"WU" if named else "BP"} if hook else set())
