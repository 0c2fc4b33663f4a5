# ruff: noqa: E501  (kernels have the names that they have)
"""Programs that people run, written by someone who never saw the rules: `STRANGERS`.

They launch what PyTorch, JAX and libraries for them launch, and are registered beside those of
`training_kinds`, in families of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from training_kinds import KINDS, collective, count_of, kind, net_of, steps
from training_sim import THIRD, Agent, Layer, Net, Sim, attention, convolution, dense

_BEFORE = frozenset(KINDS)


# Names as libraries give them.


def elementwise(functor: str, tensors: int = 3) -> str:
    """Name PyTorch's kernel that applies a functor to each element."""
    data = f"std::array<char*, {tensors}ul>"
    return f"void at::native::vectorized_elementwise_kernel<4, {functor}, {data} >(int, {functor}, {data})"


def lambda_of(function: str) -> str:
    """Name PyTorch's kernel that applies a lambda of some function to each element."""
    return elementwise(
        f"at::native::(anonymous namespace)::{function}(at::TensorIteratorBase&)::{{lambda()#1}}"
        "::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}",
        2,
    )


def reduction(op: str) -> str:
    """Name PyTorch's kernel that reduces."""
    return f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::{op}<float, float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::{op}<float, float, float, float>, unsigned int, float, 4>)"


def lists(depth: int, functor: str) -> str:
    """Name PyTorch's kernel that applies a functor to lists of tensors."""
    inner = "at::native::(anonymous namespace)::"
    return f"void {inner}multi_tensor_apply_kernel<{inner}TensorListMetadata<{depth}>, {inner}{functor}>({inner}TensorListMetadata<{depth}>)"


def product(size: float, layout: str = "tn") -> str:
    """Name cuBLAS's kernel for a product of half-precision matrices."""
    shape = (
        "64x64_sliced1x2_ldg8_f2f_stages_64x5"
        if size < 30_000
        else "128x64_ldg8_f2f_stages_64x4"
        if size < 90_000
        else "256x128_ldg8_f2f_stages_64x3"
    )
    return f"ampere_bf16_s16816gemm_bf16_{shape}_{layout}"


_BINARY = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::{0}<float> >"
_UNARY = "at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::{0}<float> >"
FILL = elementwise("at::native::FillFunctor<float>", 1)
PLUS = elementwise("at::native::CUDAFunctor_add<float>")
PLUS_SELF = elementwise("at::native::CUDAFunctorOnSelf_add<float>", 2)
TIMES = elementwise(_BINARY.format("MulFunctor"))
SCALED = elementwise(_UNARY.format("MulFunctor"), 2)
DIVIDED = elementwise(_BINARY.format("DivFunctor"))
RELU = lambda_of("launch_clamp_scalar")
RELU_BACK = lambda_of("threshold_kernel_impl")
POWER = lambda_of("pow_tensor_scalar_kernel_impl")
EXP = lambda_of("exp_kernel_cuda")
ABS = lambda_of("abs_kernel_cuda")
SIGN = lambda_of("sign_kernel_cuda")
COMPARED = lambda_of("compare_scalar_kernel")
GREATER = lambda_of("maximum_kernel_cuda")
HUBER = lambda_of("smooth_l1_kernel_cuda")
HUBER_BACK = lambda_of("smooth_l1_backward_cuda_kernel")
BINARY_LOSS = lambda_of("binary_cross_entropy_with_logits")
EQUAL = elementwise("at::native::CompareEqFunctor<long>")
SAMPLE = "void at::native::(anonymous namespace)::sampleMultinomialOnce<float, float>"
SILU, SILU_BACK = lambda_of("silu_kernel"), lambda_of("silu_backward_kernel")
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >"
STRIDED = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 3, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*)"
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
INDEX = "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_kernel_impl<at::native::OpaqueType<4> > > >(long)"
INDEX_PUT = "void at::native::indexing_backward_kernel_small_stride<float, unsigned char>(long const*, long const*, float const*, float*, long, long, long, long, bool)"
NORMAL = "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::normal_and_transform<float, float, 4ul, at::CUDAGeneratorImpl*> >(long, at::PhiloxCudaState)"
UNIFORM = NORMAL.replace("normal_and_transform", "uniform_and_transform")
SUMMED, MEAN, NORMED = (
    reduction("func_wrapper_t"), reduction("MeanOps"), reduction("NormTwoOps"),
)  # fmt: skip
LARGEST = reduction("ArgMaxOps")
SORT = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<float, long, unsigned long long>::Policy900, false, float, long, unsigned long long>"
LOSS = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*, int, int, int)",
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*)",
)
LOSS_BACK = (
    "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*, float const*)",
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true, false>(float*, float const*, float const*, int, int, int)",
)
SQUARES = (lambda_of("mse_kernel_cuda"), MEAN)
SQUARES_BACK = (DIVIDED, lambda_of("mse_backward_cuda_kernel"))
LONG_LOSS = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)",
    LOSS[1],
)
LONG_LOSS_BACK = (
    LOSS_BACK[0],
    "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, float, float, float, at::native::(anonymous namespace)::LogSoftMaxBackwardEpilogue>(float*, float const*, float const*, long)",
)


# Layers.


def run(agent: Agent, size: float, *names: str) -> None:
    """Launch some kernels of one size."""
    for name in names:
        agent.op(name, size)


def linear(agent: Agent, size: float, forward: bool, *, weights: bool = True) -> None:
    """A product; backward, one for the input and one for the weights that are trained."""
    if forward:
        agent.op(product(size), size)
        return
    agent.op(product(size, "nn"), size)
    if weights:
        agent.op(product(size, "nt"), size)


RMS = (POWER, MEAN, lambda_of("rsqrt_kernel_cuda"), TIMES, TIMES)
RMS_BACK = (TIMES, SUMMED, TIMES, TIMES, SUMMED, DIVIDED, PLUS)


def decoded(agent: Agent, size: float, forward: bool, *, lora: bool, bits: int) -> None:
    """A product with a weight that may lie in 4 bits, and that may have small ones beside it."""
    if bits == 4:
        agent.op("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*, float*, __nv_bfloat16*, int, int)", size / 4)  # fmt: skip
    linear(agent, size, forward, weights=not lora)
    if lora:
        for _ in range(2):
            linear(agent, size / 16, forward)
        run(agent, size / 4, SCALED, PLUS)


def llama(agent: Agent, size: float, forward: bool, *, lora: bool = False, bits: int = 16) -> None:
    """A decoder layer with RMS norm, rotary embedding, flash attention, gated feed-forward.

    Weights may be frozen beside small ones (LoRA), and lie in 4 bits that are decoded for each use.
    """
    flash = "void pytorch_flash::flash_{}_kernel<pytorch_flash::Flash_{}_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t> >"

    def projection(width: float) -> None:
        decoded(agent, width, forward, lora=lora, bits=bits)

    def norm() -> None:
        run(agent, size / 4, *(RMS if forward else RMS_BACK))

    def rotary() -> None:
        run(agent, size / 4, TIMES, lambda_of("neg_kernel_cuda"), CAT, TIMES, PLUS)

    if forward:
        norm()
        for _ in range(3):
            projection(size)
        rotary()
        agent.op(flash.format("fwd", "fwd"), size)
        projection(size)
        agent.op(PLUS, size / 4)
        norm()
        projection(2 * size)
        agent.op(SILU, size / 2)
        projection(2 * size)
        agent.op(TIMES, size / 2)
        projection(2 * size)
        agent.op(PLUS, size / 4)
        return
    projection(2 * size)
    run(agent, size / 2, TIMES, TIMES)
    projection(2 * size)
    agent.op(SILU_BACK, size / 2)
    projection(2 * size)
    agent.op(PLUS, size / 4)
    norm()
    projection(size)
    for part in ("bwd_dot_do_o", "bwd_dq_dk_dv_loop_seqk_parallel", "bwd_convert_dq"):
        agent.op(flash.format(part, "bwd"), size * (2 if "loop" in part else 0.2))
    rotary()
    for _ in range(3):
        projection(size)
    agent.op(PLUS, size / 4)
    norm()


def llama_lora(agent: Agent, size: float, forward: bool) -> None:
    """A decoder layer that is frozen, with small weights beside."""
    llama(agent, size, forward, lora=True)


def llama_4bit(agent: Agent, size: float, forward: bool) -> None:
    """A decoder layer in 4 bits, with small weights beside."""
    llama(agent, size, forward, lora=True, bits=4)


def frozen_convolution(agent: Agent, size: float, forward: bool) -> None:
    """A convolution whose batch norm is frozen: a factor and a summand."""
    kernel = "sm80_xmma_{}_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_kernel_cudnn"
    if forward:
        run(agent, size / 2, "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>")  # fmt: skip
        agent.op(kernel.format("fprop"), size)
        run(agent, size / 2, TIMES, PLUS, RELU)
        return
    run(agent, size / 2, RELU_BACK, TIMES)
    agent.op(kernel.format("dgrad"), size)
    agent.op(kernel.format("wgrad").replace("tf32f32_f32_nhwckrsc", "f32f32_f32_nhwckrsc"), size)


def residual(agent: Agent, size: float, forward: bool) -> None:
    """Group norm, SiLU and a convolution, in half precision."""
    norm = "void at::native::(anonymous namespace)::{}<c10::Half>"
    kernel = "sm80_xmma_{}_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x256x32_stage3_warpsize2x4x1_g1_tensor16x8x16_kernel_cudnn"
    if forward:
        run(agent, size / 4, norm.format("RowwiseMomentsCUDAKernel"), norm.format("ComputeFusedParamsCUDAKernel"))  # fmt: skip
        run(agent, size / 2, PLUS, SILU)
        agent.op(kernel.format("fprop"), size)
        agent.op(PLUS, size / 2)
        return
    agent.op(kernel.format("dgrad"), size)
    agent.op(kernel.format("wgrad"), size)
    agent.op(SUMMED, size / 4)
    run(agent, size / 2, SILU_BACK, norm.format("ComputeInternalGradientsCUDAKernel"), norm.format("ComputeBackwardFusedParamsCUDAKernel"), PLUS)  # fmt: skip
    agent.op(norm.format("GammaBetaBackwardCUDAKernel2"), size / 8)


def eight_bit(agent: Agent, size: float, forward: bool) -> None:
    """A layer of Transformer Engine: norm, casts with scales, products in 8 bits."""
    te = "void transformer_engine::{}"
    cast = te.format(
        "cast_transpose_fused_kernel_notaligned<false, false, false, float, 8, 4, __nv_bfloat16, {}>"
    )
    gemm = "nvjet_qqtst_{}_128x6_2x1_v_bz_{}"
    attn = (
        "cudnn_generated_fort_native_sdpa_sm90_flash_{}_wgmma_f16_knob_{}_64x128x64_4x1x1_kernel0_0"
    )
    shape = "128x128" if size < 90_000 else "128x256"
    if forward:
        agent.op(te.format("normalization::ln_fwd_tuned_kernel<transformer_engine::normalization::Kernel_traits<__nv_bfloat16, __nv_fp8_e4m3> >"), size / 4)  # fmt: skip
        agent.op(cast.format("__nv_fp8_e4m3"), size / 2)
        agent.op(gemm.format(shape, "TNT"), 3 * size)
        agent.op(attn.format("fprop", 7), size)
        agent.op(cast.format("__nv_fp8_e4m3"), size / 2)
        agent.op(gemm.format(shape, "TNN"), size)
        agent.op(te.format("gated_act_kernel<__nv_bfloat16, float, &transformer_engine::swish>"), size)  # fmt: skip
        return
    agent.op(te.format("dgated_act_kernel<__nv_bfloat16, float, &transformer_engine::dswish>"), size)  # fmt: skip
    agent.op(cast.format("__nv_fp8_e5m2"), size / 2)
    agent.op(gemm.format(shape, "TNT"), size)
    agent.op(gemm.format(shape, "TNN"), size)
    agent.op(attn.format("bprop", 11), 2 * size)
    agent.op(cast.format("__nv_fp8_e5m2"), size / 2)
    agent.op(gemm.format(shape, "TNT"), 3 * size)
    agent.op(gemm.format(shape, "TNN"), 3 * size)
    agent.op(te.format("normalization::ln_bwd_tuned_kernel<transformer_engine::normalization::Kernel_traits<__nv_bfloat16> >"), size / 4)  # fmt: skip
    agent.op(te.format("normalization::ln_bwd_finalize_tuned_kernel<>"), size / 16)


def built(sim: Sim, *layers: Layer, depth: int = 0, width: float = 40_000) -> Net:
    """Return a network of layers that take turns."""
    net = Net(sim.rng, "mlp", depth or int(sim.rng.integers(3, 6)), width)
    net.layers = [(layers[n % len(layers)], size) for n, (_, size) in enumerate(net.layers)]
    return net


def part_of(sim: Sim, net: Net, first: int) -> Net:
    """Return the layers of a network from one on: those that are trained."""
    part = Net(sim.rng, "mlp", 1)
    part.layers = net.layers[first:]
    part.parameters = net.parameters[2 * first :]
    return part


# What programs share.


@contextmanager
def backward(agent: Agent, *loss: str, stages: str = "BP") -> Iterator[None]:
    """Call backward: the gradient of the loss is made by the caller, all else by its thread."""
    with agent.range("backward"), agent.of(stages):
        agent.op(FILL, 128)
        with agent.of(stages, thread=agent.back):
            run(agent, 2048 * agent.scale, *loss)
            yield


def back(agent: Agent, *nets: Net, loss: Sequence[str] = LOSS_BACK, again: bool = False) -> None:
    """Run a backward pass through networks, the last of them first."""
    with backward(agent, *loss):
        for net in reversed(nets):
            net.backward(agent, marked=False, loss=False, again=again)


def forth(agent: Agent, *nets: Net, loss: Sequence[str] = LOSS, stages: str = "FP") -> None:
    """Run a forward pass through networks, and a loss."""
    with agent.range("forward"), agent.of(stages):
        for net in nets:
            net.forward(agent, stages, marked=False, loss=False)
        run(agent, 2048 * agent.scale, *loss)


def on_lists(agent: Agent, sizes: Sequence[float], *functors: tuple[int, str]) -> None:
    """Apply functors to lists of tensors, as many a launch as fit."""
    for depth, functor in functors:
        for at in range(0, len(sizes), 30):
            agent.op(lists(depth, functor), sum(sizes[at : at + 30]))


DECAY = (1, "BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>, float")
ADAMW = (
    DECAY,
    (2, "TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>, float"),
    DECAY,
    (3, "PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies<float>, float"),
    (2, "UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt<float>"),
    (1, "BinaryOpScalarListFunctor<float, 1, 1, 0>, std::divides<float>"),
    (1, "BinaryOpScalarFunctor<float, 1, 1, 0>, std::plus<float>, float"),
    (3, "PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides<float>"),
)
MOMENTUM = (
    (2, "BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float"),
    DECAY,
    (2, "BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float"),
    (2, "BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float"),
)
FUSED = (
    (4, "FusedAdamMathFunctor<float, 4, (at::native::(anonymous namespace)::ADAM_MODE)1, false>"),
)
AVERAGE = ((2, "TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>, float"),)
LENGTH = (1, "LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>")


def clip(agent: Agent, sizes: Sequence[float]) -> None:
    """Shorten gradients to a length (clip_grad_norm_)."""
    on_lists(agent, sizes, LENGTH)
    agent.op("void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float>", 256)
    run(agent, 256, CAT, NORMED, PLUS_SELF, lambda_of("reciprocal_kernel_cuda"), RELU)
    on_lists(agent, sizes, (1, "BinaryOpScalarTensorFunctor<float, 1, 1, 0>, std::multiplies<float>"))  # fmt: skip


def update(
    agent: Agent, *nets: Net, how: tuple[tuple[int, str], ...] = ADAMW, clipped: bool = False
) -> None:
    """Apply gradients of networks that share an optimizer."""
    sizes = [size for net in nets for size in net.parameters]
    with agent.range("optimizer"), agent.of("WU"):
        if clipped:
            clip(agent, sizes)
        on_lists(agent, sizes, *how)


def beside(sim: Sim, agent: Agent, thread: int, stream: int) -> Agent:
    """Return a thread of its own with a stream of its own; or the same thread, where all is one."""
    thread = agent.main if sim.mode == "one_thread" else thread
    return Agent(sim, thread, thread, stream, 0, agent.now)


def wait_for(agent: Agent, stream: int) -> None:
    """Let the agent's stream wait for another."""
    free, key = agent.sim.free, (agent.device, agent.stream)
    free[key] = max(free.get(key, 0), free.get((agent.device, stream), 0))


def evaluate(agent: Agent, batches: int, *nets: Net, fetch: bool = True) -> None:
    """Run networks forward over batches, without gradients, and count what is right."""
    with agent.range("validation"), agent.evaluation():
        for _ in range(batches):
            with agent.of("ME|IO"):
                agent.copy("h2d", int((1 << 22) * agent.scale))
                agent.copy("h2d", 4096)
            with agent.of("ME"):
                for net in nets:
                    net.forward(agent, "ME", marked=False, loss=False)
                run(agent, 2048 * agent.scale, *LOSS, LARGEST)
                run(agent, 256, EQUAL, SUMMED)
            if fetch:
                agent.fetch()


# Vision.


def propose(agent: Agent, images: int, stages: str, *, host: bool) -> None:
    """Choose boxes for each image: the best ones, decoded, without those that overlap."""
    for _ in range(images):
        with agent.of(stages):
            run(agent, 16_000, "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>")
            run(agent, 8_000, INDEX, EXP, TIMES, PLUS, RELU, RELU)
            run(agent, 8_000, SORT, INDEX)
            agent.op("void vision::ops::(anonymous namespace)::nms_kernel_impl<float>(int, double, float const*, unsigned long long*)", 30_000)  # fmt: skip
            if host:
                agent.copy("d2h", 1 << 17, waits=True)
                agent.now += int(agent.sim.rng.integers(40_000, 90_000))
                agent.copy("h2d", 8_192)
            else:
                agent.op("vision::ops::(anonymous namespace)::gather_keep_from_mask(bool*, unsigned long long const*, int)", 256)  # fmt: skip
        agent.fetch()
        with agent.of(stages):
            run(agent, 2_000, INDEX, INDEX)


@kind("detection", detector=(True, False), detector_evaluates=(False, True))
def detection(sim: Sim, host: bool, evaluates: bool) -> None:
    """Faster R-CNN of torchvision: frozen batch norms, a frozen stem, loops over images in forward."""
    agent, backbone = sim.agent(), built(sim, frozen_convolution, depth=7)
    upper, heads = part_of(sim, backbone, 2), built(sim, dense, depth=3, width=20_000)
    roi = "void vision::ops::(anonymous namespace)::roi_align_{}_kernel_impl<float>"

    def look(images: int, stages: str) -> None:
        with agent.of(f"{stages}|IO"):
            for _ in range(images):
                run(agent, 20_000, PLUS, DIVIDED, "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>")  # fmt: skip
                agent.copy("d2d", 1 << 21)
        with agent.of(stages):
            backbone.forward(agent, stages, marked=False, loss=False)
        propose(agent, images, stages, host=host)
        with agent.of(stages):
            run(agent, 20_000, CAT, *([roi.format("forward")] * 4))
            heads.forward(agent, stages, marked=False, loss=False)

    for n in range(count_of(sim, 10, 14)):
        agent.scale = float(sim.rng.choice([0.8, 1, 1.2]))
        with agent.iteration(n):
            with agent.range("data"), agent.of("IO"):
                for _ in range(2):
                    agent.copy("h2d", int((1 << 21) * agent.scale), waits=True)
                    for _ in range(3):
                        agent.copy("h2d", 512, waits=True)
            with agent.range("forward"):
                look(2, "FP")
                with agent.of("FP"):
                    run(agent, 4_096, SORT, INDEX, *LOSS, HUBER, SUMMED)
                    run(agent, 4_096, BINARY_LOSS, MEAN, PLUS)
            agent.fetch()
            with backward(agent, *LOSS_BACK, HUBER_BACK):
                heads.backward(agent, marked=False, loss=False)
                run(agent, 20_000, FILL, *([roi.format("backward")] * 4), PLUS)
                upper.backward(agent, marked=False, loss=False)
            update(agent, upper, heads, how=MOMENTUM)
        if evaluates and n % 5 == 4:
            agent.scale = 0.5
            with agent.range("evaluate"), agent.evaluation():
                for _ in range(4):
                    with agent.of("ME|IO"):
                        agent.copy("h2d", 1 << 20, waits=True)
                    look(1, "ME")
                    propose(agent, 1, "ME", host=host)
                    with agent.of("ME"):
                        agent.copy("d2h", 4_096, waits=True)


UPSAMPLED = "void at::native::(anonymous namespace)::upsample_bilinear2d_{}out_frame<float, float>"


def count_pixels(agent: Agent, body: Net, head: Net, *, flips: bool) -> None:
    """Evaluate a segmentation, on each image's flips too if asked."""
    with agent.range("evaluate"), agent.evaluation():
        for _ in range(3):
            with agent.of("ME|IO"):
                agent.copy("h2d", 1 << 21)
            with agent.of("ME"):
                for _ in range(4 if flips else 1):
                    if flips:
                        agent.op("void at::native::(anonymous namespace)::flip_kernel_impl", 30_000)
                    body.forward(agent, "ME", marked=False, loss=False)
                    head.forward(agent, "ME", marked=False, loss=False)
                    agent.op(UPSAMPLED.format(""), 60_000)
                run(agent, 30_000, LARGEST, "void at::native::kernelHistogram1D<long, long, int, 1, 2, -1>")  # fmt: skip
    agent.fetch()


@kind("segmentation", auxiliary_head=(False,), auxiliary_head_flips=(True,))
def segmentation(sim: Sim, flips: bool) -> None:
    """Segments images with two heads, of which evaluation (of each image's flips too) uses one."""
    agent, body = sim.agent(), net_of(sim, "cnn")
    head, aside = built(sim, convolution, depth=2), built(sim, convolution, depth=1)
    loss = ("void at::native::(anonymous namespace)::nll_loss2d_forward_kernel<float, float, int>",)
    for n in range(count_of(sim, 12, 17)):
        with agent.iteration(n):
            agent.input(1 << 23)
            with agent.range("forward"), agent.of("FP"):
                for net in (body, head, aside):
                    net.forward(agent, marked=False, loss=False)
                    if net is not body:
                        agent.op(UPSAMPLED.format(""), 60_000)
                for _ in range(2):
                    run(agent, 40_000, LONG_LOSS[0], *loss)
                run(agent, 128, SCALED, PLUS)
            with backward(agent, SCALED):
                for net in (aside, head):
                    run(agent, 40_000, loss[0].replace("forward", "backward"), LONG_LOSS_BACK[1])
                    agent.op(UPSAMPLED.format("backward_"), 60_000)
                    net.backward(agent, marked=False, loss=False)
                agent.op(PLUS, 20_000)
                body.backward(agent, marked=False, loss=False)
            update(agent, body, head, aside, how=MOMENTUM)
            if n % 3 == 2:
                agent.fetch()
        if n % 6 == 5:
            count_pixels(agent, body, head, flips=flips)


@kind("masked", masked_autoencoder=())
def masked_autoencoder(sim: Sim) -> None:
    """MAE: a fourth of the patches passes the encoder, all pass a narrow decoder; clipped, scaled."""
    agent, encoder = sim.agent(), net_of(sim, "transformer")
    decoder = built(sim, attention, dense, depth=4, width=15_000)
    check = "UnaryOpFunctor<float, 1, 1, 0>, at::native::_amp_foreach_non_finite_check_and_unscale_cuda_(std::vector<at::Tensor>, at::Tensor&, at::Tensor const&)::{lambda(float)#1}"
    for _ in steps(sim, agent):
        agent.input(1 << 23, label=False)
        with agent.range("forward"), agent.of("FP"):
            agent.op("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_kernel", 30_000)  # fmt: skip
            run(agent, 4_096, UNIFORM, SORT, SORT, GATHER)
            encoder.forward(agent, marked=False, loss=False)
            run(agent, 9_000, CAT, GATHER, PLUS)
            decoder.forward(agent, marked=False, loss=False)
            run(agent, 9_000, PLUS, POWER, MEAN, TIMES)
        agent.fetch()
        with agent.of("FP|BP"):
            agent.op(SCALED, 128)
        with backward(agent, TIMES, DIVIDED):
            decoder.backward(agent, marked=False, loss=False)
            run(agent, 9_000, "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_gather_internal_kernel<true, float> >")  # fmt: skip
            encoder.backward(agent, marked=False, loss=False)
            agent.op("sm80_xmma_wgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_kernel", 30_000)  # fmt: skip
        with agent.range("optimizer"), agent.of("WU"):
            on_lists(agent, encoder.parameters + decoder.parameters, (1, check))
        agent.fetch()
        update(agent, encoder, decoder, clipped=True)
        with agent.of("WU"):
            agent.op("at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)", 128)  # fmt: skip


@kind("adversarial", adversarial_examples=(5, "foreach"), adversarial_free=(2, "plain"))
def adversarial(sim: Sim, inner: int, how: str) -> None:
    """Attacks each batch by some passes for gradients of the input, then trains on the result."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    for _ in steps(sim, agent, 10, 14):
        agent.input()
        with agent.of("FP|IO|OTHER"):
            run(agent, 40_000, UNIFORM, PLUS, RELU)
        for _ in range(inner):
            forth(agent, net)
            back(agent, net)
            with agent.of("FP|BP|OTHER"):
                run(agent, 40_000, SIGN, SCALED, PLUS, RELU, RELU)
        forth(agent, net)
        back(agent, net)
        if how == "plain":
            net.update(agent, "plain")
        else:
            update(agent, net, how=MOMENTUM)


@kind("averaging", averaged_with_norms=())
def weight_averaging(sim: Sim) -> None:
    """SWA: weights are averaged after each of the last epochs; then all data pass for batch norms."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    for epoch in range(4):
        for n in range(4):
            agent.scale = 0.6 if n == 3 else 1.0
            with agent.iteration(4 * epoch + n):
                agent.input()
                forth(agent, net)
                back(agent, net)
                update(agent, net, how=MOMENTUM)
        agent.scale = 1.0
        if epoch > 1:
            with agent.of("WU"):
                on_lists(agent, net.parameters, *AVERAGE)
    with agent.range("update_bn"):
        for _ in range(4):
            with agent.of("IO|ME"):
                agent.copy("h2d", 1 << 22)
            net.forward(agent, "FP|ME|WU", marked=False, loss=False)
    evaluate(agent, 3, net)


SHAPES = ("256x128_16x3", "128x128_32x3", "64x256_32x4", "256x64_16x4")


@kind("resuming", resumed_benchmark=())
def resumed(sim: Sim) -> None:
    """Resumes from a file; cuDNN tries its algorithms within the first step, and for the last batch."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    with agent.of("-"):
        for size in net.parameters * 3:
            agent.copy("h2d", int(4 * size), waits=True)
    trial = "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688{}_optimized_tf32_{}_nhwc_align4>"
    count = count_of(sim)

    tried: tuple[str, ...] = ()

    def tries(what: str) -> None:
        with agent.of("-"):
            for shape in tried:
                for _ in range(2):
                    agent.op(trial.format(what, shape), 40_000)

    def after(_: int) -> None:
        tries("dgrad")
        tries("wgrad")

    for n in range(count):
        agent.scale = 0.6 if n == count - 1 else 1.0
        tried = SHAPES if n in (0, count - 1) else ()
        with agent.iteration(n):
            agent.input()
            net.forward(agent, hook=lambda _: tries("fprop"))
            net.backward(agent, hook=after)
            update(agent, net, how=MOMENTUM)
            if n % 2:
                agent.fetch()


@kind("finder", learning_rate_finder=())
def learning_rate_finder(sim: Sim) -> None:
    """Tries learning rates with a loss read each step, puts weights back, and trains with the best."""
    agent, net = sim.agent(), net_of(sim)
    with agent.of("-"):
        for size in net.parameters:
            agent.copy("d2h", int(4 * size), waits=True)
    for n in range(24):
        if n == 12:
            with agent.of("-"):
                for size in net.parameters:
                    agent.copy("h2d", int(4 * size), waits=True)
        with agent.iteration(n):
            agent.input()
            forth(agent, net)
            back(agent, net)
            update(agent, net)
            if n < 12:
                agent.fetch()


@kind("augmenting", dali_pipeline=(True,), mixed_on_gpu=(False,))
def augmenting(sim: Sim, dali: bool) -> None:
    """Images are decoded and changed on the GPU: by DALI ahead of time, or by Kornia with mixup."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    pipe = beside(sim, agent, THIRD, 27)

    def prepare() -> None:
        with pipe.of("IO"):
            pipe.copy("h2d", 1 << 20)
            run(pipe, 30_000, "void nvjpeg::DecodeSingleGPU::decodeHuffmanKernel<8>", "void nvjpeg::DecodeSingleGPU::idct8x8Kernel")  # fmt: skip
            run(pipe, 40_000, "void dali::resampling::BatchedSeparableResampleKernel<2, float, unsigned char>", "void dali::kernels::slice_flip_normalize::SliceNormalizeKernel_2D<float, unsigned char, 3>")  # fmt: skip
            pipe.copy("h2d", 4_096)

    for n in range(count_of(sim)):
        if dali:
            # The pipeline is a batch ahead, so its ops are not of the step beside them.
            pipe.now = agent.now if sim.mode == "one_thread" else max(pipe.now, agent.now - 90_000)
            prepare()
            agent.now = pipe.now if sim.mode == "one_thread" else agent.now
        with agent.iteration(n):
            if dali:
                wait_for(agent, 27)
                with agent.of("IO"):
                    agent.copy("d2d", 1 << 22)
            else:
                agent.input()
                with agent.range("augment"), agent.of("IO|FP"):
                    run(agent, 40_000, UNIFORM, "void at::native::(anonymous namespace)::grid_sampler_2d_kernel<float, int>", TIMES, PLUS, RELU)  # fmt: skip
                    run(agent, 40_000, POWER, INDEX, SCALED, SCALED, PLUS)
                    run(agent, 1_024, "void at::native::_scatter_gather_elementwise_kernel<128, 8>", SCALED, PLUS)  # fmt: skip
            forth(agent, net)
            back(agent, net)
            update(agent, net, how=MOMENTUM)


# Language.


@kind("quantised", qlora=(True, 1), qlora_accumulates=(False, 3))
def qlora(sim: Sim, again: bool, passes: int) -> None:
    """QLoRA: frozen weights in 4 bits, decoded for each use in both passes, and an 8-bit optimizer."""
    agent, net = sim.agent(), built(sim, llama_4bit, depth=3)
    adapters = [size / 16 for size in net.parameters for _ in range(7)]
    for _ in steps(sim, agent, 8, 12):
        for _ in range(passes):
            agent.scale = float(sim.rng.choice([0.7, 1, 1.3]))
            with agent.range("data"), agent.of("IO"):
                for _ in range(3):
                    agent.copy("h2d", 16_384)
            with agent.of("FP"):
                agent.op(GATHER, 20_000)
            forth(agent, net, loss=(product(90_000), CAST, *LONG_LOSS))
            back(agent, net, loss=(*LONG_LOSS_BACK, CAST, product(90_000, "nn")), again=again)
        with agent.range("optimizer"), agent.of("WU"):
            clip(agent, adapters)
            for size in adapters:
                agent.op("void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>(__nv_bfloat16*, __nv_bfloat16*, unsigned char*, unsigned char*)", size)  # fmt: skip
        agent.fetch()


@kind("merging", lora_merged_for_evaluation=())
def merged(sim: Sim) -> None:
    """LoRA whose small weights are added to the frozen ones to evaluate, and taken off again."""
    agent, net = sim.agent(), built(sim, llama_lora)
    whole, sizes = part_of(sim, net, 0), net.parameters
    whole.layers = [(llama, size) for _, size in net.layers]
    net.parameters = [size / 16 for size in sizes]

    def merge(name: str) -> None:
        with agent.range(name), agent.of("ME|WU|OTHER"):
            for size in sizes:
                run(agent, size, product(size, "nn"), SCALED, PLUS)

    for n in range(count_of(sim, 10, 15)):
        with agent.iteration(n):
            agent.input(1 << 15)
            forth(agent, net)
            back(agent, net)
            update(agent, net)
        if n % 4 == 3:
            merge("merge")
            evaluate(agent, 3, whole)
            merge("unmerge")


@kind("reasoning", grpo=(False,), grpo_with_graphs=(True,))
def grpo(sim: Sim, graphs: bool) -> None:
    """GRPO: writes answers token by token, scores them on the host, and learns from them in parts."""
    agent, net = sim.agent(), built(sim, llama, depth=2)
    for _ in steps(sim, agent, 8, 10):
        with agent.range("generate"), agent.of("FP|ME"):
            with agent.of("IO|FP|ME"):
                agent.copy("h2d", 8_192)
            net.forward(agent, "FP|ME", marked=False, loss=False)
            agent.scale = 0.05
            for token in range(int(sim.rng.integers(5, 12))):
                if graphs:
                    agent.op(None, 300_000, kind="graph")
                else:
                    agent.op(GATHER, 512)
                    net.forward(agent, "FP|ME", marked=False, loss=False)
                    run(agent, 2_048, CAT, CAT)
                run(agent, 4_096, SCALED, LONG_LOSS[0], SORT, SAMPLE)
                if graphs or token % 4 == 3:
                    agent.copy("d2h", 512, waits=True)
            agent.scale = 1.0
        agent.fetch()
        agent.now += int(sim.rng.integers(200_000, 600_000))
        with agent.range("score"), agent.of("FP|ME"):
            with agent.of("IO|FP|ME"):
                agent.copy("h2d", 1_024)
            net.forward(agent, "FP|ME", marked=False, loss=False)
            run(agent, 20_000, product(20_000), LONG_LOSS[0], GATHER)
            run(agent, 512, MEAN, reduction("WelfordOps"), PLUS, DIVIDED)
        for _ in range(2):
            with agent.range("forward"), agent.of("FP"):
                net.forward(agent, marked=False, loss=False)
                run(agent, 20_000, product(20_000), LONG_LOSS[0], GATHER)
                run(agent, 2_048, PLUS, EXP, RELU, TIMES, MEAN)
            back(agent, net, loss=(DIVIDED, TIMES, TIMES, LONG_LOSS_BACK[1], product(20_000, "nt")))  # fmt: skip
        update(agent, net, how=FUSED, clipped=True)
        agent.fetch()


@kind("eight_bits", fp8_training=())
def fp8(sim: Sim) -> None:
    """Transformer Engine in 8 bits: scales follow from the largest values, once a step for each pass."""
    agent, net = sim.agent(), built(sim, eight_bit)
    scales = "void transformer_engine::delayed_scaling_recipe::(anonymous namespace)::kernel_bulk(transformer_engine::delayed_scaling_recipe::(anonymous namespace)::AmaxParams)"
    for n in steps(sim, agent):
        agent.input(1 << 16)
        with agent.of("FP"):
            agent.op(GATHER, 20_000)
        forth(agent, net, loss=(scales, *LONG_LOSS))
        with backward(agent, *LONG_LOSS_BACK):
            net.backward(agent, marked=False, loss=False)
            run(agent, 256, scales, FILL)
        with agent.range("optimizer"), agent.of("WU"):
            on_lists(agent, net.parameters, (1, "transformer_engine::multi_tensor_l2norm::L2NormFunctor<float>"))  # fmt: skip
            agent.op("transformer_engine::multi_tensor_l2norm::cleanup(float*, float*, float*, float*, bool, int)", 256)  # fmt: skip
            on_lists(agent, net.parameters, (5, "transformer_engine::multi_tensor_adam::AdamFunctorMaster<__nv_bfloat16, __nv_bfloat16, float, int>"))  # fmt: skip
        if n % 5 == 0:
            agent.fetch()


@kind("offloading", activations_offloaded=(True,), activations_on_host=(False,))
def activations_offloaded(sim: Sim, own_stream: bool) -> None:
    """Activations wait in host memory for the backward pass; copied beside the passes, or within."""
    agent, net = sim.agent(), built(sim, llama)
    away, home = (31, 32) if own_stream else (None, None)

    def out(layer: int) -> None:
        with agent.of("FP|OTHER"):
            if layer:
                agent.copy("d2h", 1 << 20, stream=away, after=((0, 7),), waits=not own_stream)

    def in_(layer: int) -> None:
        with agent.of("BP|OTHER", thread=agent.back):
            if layer:
                agent.copy("h2d", 1 << 20, stream=home)
        if home:
            wait_for(agent, home)

    for n in steps(sim, agent):
        agent.input(1 << 16)
        with agent.range("forward"):
            net.forward(agent, marked=False, loss=False, hook=out)
            with agent.of("FP"):
                run(agent, 20_000, *LONG_LOSS)
        with backward(agent, *LONG_LOSS_BACK):
            net.backward(agent, marked=False, loss=False, hook=in_)
        update(agent, net, how=FUSED)
        if n % 4 == 0:
            agent.fetch()


@kind("states_on_host", zero_offload=(1,), zero_offload_accumulates=(2,))
def zero_offload(sim: Sim, passes: int) -> None:
    """ZeRO-Offload: gradients go to the host, whose Adam sends weights back: no kernel updates."""
    agent, net = sim.agent(), built(sim, llama)
    for _ in steps(sim, agent):
        for _ in range(passes):
            agent.input(1 << 16)
            forth(agent, net, loss=LONG_LOSS)

            def leave(layer: int) -> None:
                with agent.of("BP|WU", thread=agent.back):
                    agent.op(CAT, net.parameters[2 * layer])
                    agent.copy(
                        "d2h", int(2 * net.parameters[2 * layer]), stream=33, after=((0, 7),)
                    )

            with backward(agent, *LONG_LOSS_BACK):
                net.backward(agent, marked=False, loss=False, hook=leave)
        agent.fetch()
        with agent.range("optimizer"), agent.of("WU"):
            for size in net.parameters:
                agent.now += int(sim.rng.integers(60_000, 120_000))
                agent.copy("h2d", int(2 * size))


@kind("estimating", sophia=())
def sophia(sim: Sim) -> None:
    """Sophia: every fifth step another pass, whose labels are sampled, estimates the curvature."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for n in steps(sim, agent, 12, 18):
        agent.input(1 << 16)
        forth(agent, net)
        back(agent, net)
        with agent.range("optimizer"), agent.of("WU"):
            clip(agent, net.parameters)
            for size in net.parameters:
                run(agent, size, SCALED, SCALED, PLUS, ABS, DIVIDED)
                run(agent, size, RELU, SIGN, TIMES)
        if n % 5 == 4:
            with agent.of("FP|WU"):
                net.forward(agent, "FP|WU", loss=False)
                run(agent, 2_048, LOSS[0], SAMPLE, *LOSS)
            with backward(agent, *LOSS_BACK, stages="BP|WU"):
                net.backward(agent, stages="BP|WU", marked=False, loss=False)
            with agent.range("hessian"), agent.of("WU"):
                for size in net.parameters:
                    run(agent, size, SCALED, lambda_of("addcmul_cuda_scalar_kernel"))


@kind("sign", lion_logs_norms=())
def lion(sim: Sim) -> None:
    """Lion, whose update is a sign; every third step lengths of all gradients are logged one by one."""
    agent, net = sim.agent(), built(sim, llama)
    for n in steps(sim, agent):
        agent.input(1 << 16)
        forth(agent, net, loss=LONG_LOSS)
        back(agent, net, loss=LONG_LOSS_BACK)
        if n % 3 == 2:
            with agent.range("log"):
                for size in net.parameters:
                    with agent.of("BP|WU|ME|OTHER"):
                        agent.op(NORMED, size)
                    agent.fetch()
        with agent.range("optimizer"), agent.of("WU"):
            for size in net.parameters:
                run(agent, size, SCALED, SCALED, PLUS, SIGN, PLUS)
                agent.op(lambda_of("lerp_scalar_kernel"), size)


@kind("truncated", truncated_through_time=())
def truncated(sim: Sim) -> None:
    """A long text is copied once and cut into pieces; each is a step, and a state is handed on."""
    agent, net, cell = sim.agent(), Net(sim.rng, "mlp", 1, 20_000), Net(sim.rng, "mlp", 1, 9_000)
    number = 0
    part = "void elemWiseRNNcell<float, float, float, (cudnnRNNMode_t)2, (cudnnRNNBiasMode_t)2>"
    for _ in range(3):
        with agent.of("IO"):
            agent.copy("h2d", 1 << 20)
        for _ in range(6):
            with agent.iteration(number):
                with agent.range("forward"), agent.of("FP"):
                    agent.op(GATHER, 8_192)
                    for _ in range(12):
                        run(agent, 9_000, product(9_000), part)
                    net.forward(agent, marked=False, loss=False)
                    run(agent, 2_048, *LOSS)
                with backward(agent, *LOSS_BACK):
                    net.backward(agent, marked=False, loss=False)
                    for _ in range(12):
                        run(agent, 9_000, part.replace("cell", "cell_bp"), product(9_000, "nn"))
                    run(agent, 30_000, product(30_000, "nt"), SUMMED, INDEX_PUT)
                update(agent, net, cell, how=MOMENTUM[2:], clipped=True)
                if number % 4 == 3:
                    agent.fetch()
            number += 1


@kind("delayed", zero_bubble=())
def zero_bubble(sim: Sim) -> None:
    """A stage of a pipeline that puts off the gradients of weights to fill its gaps."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    with agent.of("-"):
        agent.fill(len(net.parameters))
    for _ in steps(sim, agent, 8, 12):
        for part in range(7):
            if part < 4:
                with agent.range("forward"):
                    collective(agent, "send_recv", 8_000, stream=30, stages="FP", main=True)
                    net.forward(agent, loss=False, marked=False)
                    collective(agent, "send_recv", 8_000, stream=31, stages="FP")
            if 1 <= part < 5:
                with agent.range("backward input"):
                    collective(agent, "send_recv", 8_000, stream=30, stages="BP", main=True)
                    with agent.of("BP", thread=agent.back):
                        for _, size in reversed(net.layers):
                            run(agent, size, product(size, "nn"), SILU_BACK)
                    collective(agent, "send_recv", 8_000, stream=31, stages="BP")
            if part >= 3:
                with agent.range("backward weights"), agent.of("BP", thread=agent.back):
                    for _, size in reversed(net.layers):
                        run(agent, size, product(size, "nt"), SUMMED, PLUS)
        update(agent, net, how=FUSED, clipped=True)


@kind("rarely_joined", outer_steps=())
def diloco(sim: Sim) -> None:
    """DiLoCo: workers train alone, and every fifth step join by an outer step with momentum."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for n in steps(sim, agent, 15, 19):
        agent.input(1 << 16)
        forth(agent, net)
        back(agent, net)
        update(agent, net)
        if n % 5 == 4:
            with agent.range("outer optimizer"), agent.of("WU"):
                for size in net.parameters:
                    agent.op(PLUS, size)
                    collective(agent, "all_reduce", size, stream=20, stages="WU", main=True)
                    agent.op(DIVIDED, size)
                on_lists(agent, net.parameters, *MOMENTUM)


@kind("ring", ring_attention=())
def ring(sim: Sim) -> None:
    """Long texts over four GPUs: keys travel around a ring within attention, in both passes."""
    agent, net = sim.agent(), built(sim, dense, depth=4)
    flash = "void flash_{}_kernel<Flash_{}_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >"

    def attend(stage: str) -> None:
        way = "fwd" if stage == "FP" else "bwd_dq_dk_dv_loop_seqk_parallel"
        with agent.of(stage, thread=agent.main if stage == "FP" else agent.back):
            for _ in range(4):
                collective(agent, "send_recv", 12_000, stream=22, stages=stage)
                run(agent, 30_000, flash.format(way, stage.lower()), PLUS)
                wait_for(agent, 22)

    for _ in steps(sim, agent, 10, 13):
        agent.input(1 << 18)
        with agent.range("forward"):
            net.forward(agent, marked=False, loss=False, hook=lambda _: attend("FP"))
            with agent.of("FP"):
                run(agent, 20_000, *LONG_LOSS)
        with backward(agent, *LONG_LOSS_BACK):
            net.backward(agent, marked=False, loss=False, hook=lambda _: attend("BP"))
        with agent.of("WU"):
            collective(agent, "all_reduce", 90_000, stream=20, stages="WU", main=True)
        update(agent, net, how=FUSED)


# Sound, graphs, tables, scenes.


@kind("speech", speech_loss_on_host=(True,), speech_loss_on_gpu=(False,))
def speech(sim: Sim, host: bool) -> None:
    """Speech of many lengths: spectra on the GPU, some of them masked, and a CTC loss on either."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    part = "void at::native::(anonymous namespace)::ctc_loss_{}_gpu_kernel<float, long>"
    for n in range(count_of(sim)):
        agent.scale = float(sim.rng.choice([0.5, 0.8, 1, 1.3, 1.7]))
        with agent.iteration(n):
            agent.input(1 << 20)
            with agent.range("features"), agent.of("FP|IO"):
                agent.op("void vector_fft<512u, EPT<16>, (padding_t)1, (twiddle_t)0, r2c>", 20_000)
                run(agent, 20_000, ABS, product(20_000), lambda_of("log_kernel_cuda"))  # fmt: skip
                for _ in range(2):
                    run(agent, 20_000, lambda_of("masked_fill_kernel"))
            with agent.range("forward"):
                net.forward(agent, marked=False, loss=False)
                with agent.of("FP"):
                    agent.op(LONG_LOSS[0], 20_000)
                    if host:
                        agent.copy("d2h", 1 << 19, waits=True)
                        agent.now += int(sim.rng.integers(100_000, 300_000))
                    else:
                        agent.op(part.format("log_alpha"), 20_000)
                        run(agent, 512, DIVIDED, MEAN)
            if host:
                # The caller runs what is backward on the host, and the copy of its result.
                with agent.range("backward"), agent.of("BP"):
                    agent.now += int(sim.rng.integers(50_000, 100_000))
                    agent.copy("h2d", 1 << 19)
                    with agent.of("BP", thread=agent.back):
                        agent.op(LONG_LOSS_BACK[1], 20_000)
                        net.backward(agent, marked=False, loss=False)
            else:
                names = [part.format(f"backward_{x}") for x in ("log_beta", "collect_nonblank")]
                back(agent, net, loss=(DIVIDED, FILL, *names, LONG_LOSS_BACK[1]))
            update(agent, net, clipped=True)
            if n % 4 == 3 and not host:
                agent.fetch()


def sample_neighbours(agent: Agent) -> None:
    """Sample neighbours of some nodes, and fetch their features from host memory."""
    with agent.range("data"):
        with agent.of("IO"):
            agent.copy("h2d", 8_192)
        for _ in range(3):
            with agent.of("IO"):
                run(agent, 9_000, "void dgl::aten::impl::(anonymous namespace)::_CSRRowWiseSampleUniformKernel<long, 128>", "void at_cuda_detail::cub::DeviceScanKernel<long>", "void dgl::cuda::hash::generate_hashmap_duplicates<long, 128, 8>")  # fmt: skip
            agent.fetch()
        with agent.of("IO"):
            run(agent, 60_000 * agent.scale, "void dgl::aten::impl::IndexSelectMultiKernel<float, long>")  # fmt: skip
            run(agent, 2_000, "void dgl::aten::impl::IndexSelectSingleKernel<long, long>")  # fmt: skip


def graph_layers(agent: Agent, stage: str, order: Sequence[float], spmm: str) -> None:
    """Run layers of a graph network in some order; the first one needs no gradient of its input."""
    with agent.of(stage, thread=agent.back if stage == "BP" else None):
        for size in (agent.scale * each for each in order):
            if stage == "BP":
                run(agent, size, RELU_BACK, product(size, "nt"))
                if size != agent.scale * order[-1]:
                    run(agent, size, product(size, "nn"), spmm)
                continue
            run(agent, size, spmm, product(size), PLUS, RELU)
            if stage == "FP":
                agent.op("void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>", size)  # fmt: skip


@kind("graph_networks", graph_sampled=(True,), graph_whole=(False,))
def graph_networks(sim: Sim, sampled: bool) -> None:
    """Graph networks: neighbours sampled on the GPU by DGL; or the whole graph, tested each epoch."""
    agent, sizes = sim.agent(), [20_000.0, 35_000.0, 9_000.0]
    net = Net(sim.rng, "mlp", 3, 20_000)
    spmm = (
        "void dgl::aten::cuda::SpMMCsrKernel<long, float, dgl::aten::cuda::binary::CopyLhs<float>, dgl::aten::cuda::reduce::Sum<long, float, false>, false, false>"
        if sampled
        else "void cusparse::csrmm_v3_kernel<cusparse::CsrMMPolicy<128, false, true, 4u, 32u, 32u>, int, int, float, float, float>"
    )

    def layers(stage: str, order: Sequence[float]) -> None:
        graph_layers(agent, stage, order, spmm)

    for n in range(count_of(sim, 12, 20)):
        agent.scale = float(sim.rng.choice([0.9, 1, 1.1])) if sampled else 1.0
        with agent.iteration(n):
            if sampled:
                sample_neighbours(agent)
            with agent.range("forward"):
                layers("FP", sizes)
                with agent.of("FP"):
                    run(agent, 2_048, INDEX, *LOSS)
            with backward(agent, *LOSS_BACK, FILL, INDEX_PUT):
                layers("BP", sizes[::-1])
            update(agent, net)
            if not sampled:
                agent.fetch()
        if not sampled:
            with agent.range("test"):
                layers("ME", sizes)
                with agent.of("ME"):
                    agent.op(LARGEST, 2_048)
                for _ in range(3):
                    with agent.of("ME"):
                        run(agent, 1_024, INDEX, EQUAL, SUMMED)
                    agent.fetch()


@kind("recommendation", embedding_exchange=(False,), embedding_exchange_ahead=(True,))
def recommendation(sim: Sim, ahead: bool) -> None:
    """TorchRec: rows of tables travel between GPUs; the tables' update is part of the backward pass."""
    agent, bottom, top = sim.agent(), net_of(sim, "mlp"), net_of(sim, "mlp")
    rows = "void {}embedding_{}codegen_{}unweighted_kernel{}<float, float, float, long, 8ul>"

    def travel(stage: str, stream: int, size: float, after: int = 7) -> None:
        agent.op(
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
            size,
            kind="collective",
            collective="all_to_all",
            stream=stream,
            truth=frozenset(stage.split("|")),
            after=((0, after),),
        )

    def feed() -> None:
        stream = 26 if ahead else None
        with agent.range("data"), agent.of("IO"):
            agent.copy("h2d", 1 << 19, stream=stream)
            agent.copy("h2d", 4_096, stream=stream)
        with agent.of("IO|FP"):
            agent.op("void fbgemm_gpu::permute_2D_sparse_data_kernel<false, long, long, float>", 9_000, stream=stream)  # fmt: skip
            travel("IO|FP", 24, 4_000, stream or agent.stream)

    if ahead:
        feed()
    for n in steps(sim, agent):
        if not ahead:
            feed()
        wait_for(agent, 24)
        with agent.range("forward"):
            with agent.of("FP"):
                agent.op(rows.format("split_", "", "forward_", "_v2"), 60_000)
                travel("FP", 23, 20_000)
            bottom.forward(agent, marked=False, loss=False)
            wait_for(agent, 23)
            with agent.of("FP"):
                run(agent, 20_000, CAT, product(20_000, "nn"), INDEX, CAT)
                top.forward(agent, marked=False, loss=False)
                run(agent, 2_048, BINARY_LOSS, MEAN)
        if ahead:
            # Belongs to the next step, though this one launches it.
            agent.step = -1
            feed()
            agent.step = n
        with backward(agent, DIVIDED, TIMES):
            top.backward(agent, marked=False, loss=False)
            run(agent, 20_000, STRIDED, INDEX_PUT, product(20_000, "nt"), product(20_000, "nn"))
            travel("BP", 23, 20_000)
            bottom.backward(agent, marked=False, loss=False)
            wait_for(agent, 23)
            agent.op(SORT, 9_000)
            with agent.of("WU|BP", thread=agent.back):
                agent.op(rows.format("split_", "backward_", "rowwise_adagrad_", "_warp_per_row_1"), 60_000)  # fmt: skip
            collective(agent, "all_reduce", 30_000, stream=20, stages="WU", main=True)
        update(agent, bottom, top, how=MOMENTUM)


@kind("scenes", hash_grid=())
def hash_grid(sim: Sim) -> None:
    """Instant NGP: rays march through a grid of occupancy (renewed every fifth step), tiny networks."""
    agent = sim.agent()
    half = [40_000.0, 3_000.0]
    mlp = "void tcnn::kernel_mlp_fused{}<128, 8, __half, (tcnn::Activation)0, false>"
    grid = "void tcnn::kernel_grid{}<__half, 3u, 2u, (tcnn::HashType)0>"
    for n in range(count_of(sim, 14, 20)):
        agent.scale = float(sim.rng.uniform(0.8, 1.2))
        rays = 40_000 * agent.scale
        with agent.iteration(n):
            if n % 5 == 0:
                with agent.range("occupancy"), agent.of("FP|ME|OTHER"):
                    run(agent, 30_000, UNIFORM, PLUS, grid.format(""), mlp.format(""), EXP)  # fmt: skip
                    run(agent, 30_000, SCALED, GREATER, MEAN, COMPARED)
            with agent.range("data"), agent.of("IO|FP"):
                run(agent, 4_096, UNIFORM, INDEX, INDEX, product(4_096), NORMED, DIVIDED)
            with agent.range("march"), agent.of("FP"):
                agent.op("nerfacc::device::traverse_grids_kernel(int, float const*, float const*)", rays)  # fmt: skip
            agent.fetch()
            with agent.range("forward"), agent.of("FP"):
                agent.op("nerfacc::device::traverse_grids_kernel(int, float const*, float const*)", rays)  # fmt: skip
                run(agent, rays, grid.format(""), mlp.format(""), EXP)
                run(agent, rays, "void tcnn::kernel_sh<__half>", CAT, mlp.format(""))
                run(agent, rays, "void nerfacc::device::exclusive_scan_kernel<float>", TIMES)
                run(agent, 9_000, "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true>", HUBER, MEAN)  # fmt: skip
                agent.op(SCALED, 128)
            with backward(agent, SCALED, DIVIDED, HUBER_BACK):
                run(
                    agent, rays, GATHER, TIMES, "void nerfacc::device::exclusive_scan_kernel<float>"
                )
                for _ in range(2):
                    run(agent, rays, mlp.format("_backward"), product(rays, "nt"), CAST)
                run(agent, rays, FILL, grid.format("_backward"))
            with agent.range("optimizer"), agent.of("WU"):
                on_lists(agent, half, *ADAMW)
            if n % 5 == 4:
                agent.fetch()


@kind("splats", gaussian_splats=())
def gaussian_splats(sim: Sim) -> None:
    """Gaussian splatting: one view a step, and every sixth one Gaussians are split and pruned."""
    agent, size = sim.agent(), 50_000.0
    scan = "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<unsigned int>, unsigned int*>"
    blur = "void conv_depthwise2d_{}_kernel_generic<float, int>"
    for n in steps(sim, agent, 14, 20):
        with agent.range("forward"), agent.of("FP"):
            run(agent, size, lambda_of("sigmoid_kernel_cuda"), EXP, NORMED, DIVIDED, CAT)  # fmt: skip
            run(agent, size, "void preprocessCUDA<3>(int, int, int, float const*, float const*)", scan)  # fmt: skip
            agent.copy("d2h", 4, waits=True)
            run(agent, size, "duplicateWithKeys(int, float2 const*, float const*, unsigned int const*)", *[SORT] * 4, "identifyTileRanges(int, unsigned long*, uint2*)", "void renderCUDA<3u>(uint2 const*, unsigned int const*, int, int)")  # fmt: skip
            with agent.of("IO"):
                agent.copy("h2d", 1 << 22)
            run(agent, 40_000, PLUS, ABS, MEAN)
            for _ in range(5):
                run(agent, 40_000, blur.format("forward"), TIMES)
            run(agent, 40_000, DIVIDED, MEAN)
        with backward(agent, DIVIDED, TIMES):
            for _ in range(5):
                run(agent, 40_000, TIMES, blur.format("backward"))
            run(agent, size, FILL, FILL, "void PerGaussianRenderCUDA<3u>(uint2 const*, unsigned int const*)", "computeCov2DCUDA(int, float3 const*, int const*)", "void preprocessCUDA<3>(int, int, int, float3 const*, int const*)")  # fmt: skip
            run(agent, size, SILU_BACK, TIMES, DIVIDED)
        agent.fetch()
        with agent.of("WU|OTHER"):
            run(agent, size / 4, INDEX, GREATER, NORMED, INDEX_PUT)
        if n % 6 == 5:
            with agent.range("densify"):
                for _ in range(2):
                    with agent.of("WU|OTHER"):
                        run(agent, size, NORMED, COMPARED, scan)
                    agent.fetch()
                    with agent.of("WU|OTHER"):
                        run(agent, size / 4, INDEX, NORMAL, *[CAT] * 18)
            size *= float(sim.rng.uniform(0.95, 1.3))
        with agent.range("optimizer"), agent.of("WU"):
            for part in (1, 1, 15, 1, 1, 1.3):
                on_lists(agent, [size * part / 4], *ADAMW[1:])


@kind("latent", latent_diffusion=())
def latent_diffusion(sim: Sim) -> None:
    """Images and captions are encoded without gradients, noise is added, and a mean of weights kept."""
    agent, net = sim.agent(), built(sim, residual, attention, depth=6)
    encoder = built(sim, residual, depth=3, width=60_000)
    words = built(sim, attention, dense, depth=4, width=9_000)
    for n in steps(sim, agent):
        agent.input(1 << 23)
        with agent.range("encode"), agent.of("FP|ME|IO"):
            encoder.forward(agent, "FP|ME|IO", marked=False, loss=False)
            run(agent, 9_000, EXP, NORMAL, TIMES, PLUS, SCALED)
            words.forward(agent, "FP|ME|IO", marked=False, loss=False)
        with agent.of("FP"):
            run(agent, 9_000, NORMAL, "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<unsigned int, 4, random_from_to_kernel>")  # fmt: skip
            run(agent, 9_000, INDEX, INDEX, TIMES, TIMES, PLUS)
        forth(agent, net, loss=SQUARES)
        back(agent, net, loss=SQUARES_BACK)
        update(agent, net, clipped=True)
        with agent.range("ema"), agent.of("WU"):
            on_lists(agent, net.parameters, *AVERAGE)
        if n % 3 == 2:
            agent.fetch()


# Several losses, several passes.


@kind("teaching", teacher_on_stream=())
def teacher_on_stream(sim: Sim) -> None:
    """A teacher without gradients runs on a stream of its own beside the student's forward pass."""
    agent, net = sim.agent(), net_of(sim, "cnn")
    teacher, aside = Net(sim.rng, "cnn", 8, 60_000), Agent(sim, agent.main, agent.main, 35, 0)
    for n in steps(sim, agent):
        agent.input()
        aside.now, aside.step = agent.now, n
        wait_for(aside, agent.stream)
        with agent.range("forward"):
            with aside.evaluation():
                teacher.forward(aside, "FP|ME", marked=False, loss=False)
            agent.now = aside.now
            net.forward(agent, marked=False, loss=False)
            wait_for(agent, 35)
            with agent.of("FP"):
                run(agent, 2_048, SCALED, LOSS[0], SCALED, LOSS[0], lambda_of("kl_div_kernel"), *LOSS)  # fmt: skip
        back(agent, net, loss=(*LOSS_BACK, TIMES, LOSS_BACK[1], SCALED))
        update(agent, net, how=MOMENTUM)


def project(agent: Agent, body: Net) -> None:
    """Take from each gradient what works against another one."""
    with agent.range("project"), agent.of("BP|WU"):
        for _ in range(6):
            run(agent, 60_000, "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>, cublasGemvTensor<float> > >", NORMED)  # fmt: skip
            agent.fetch()
            run(agent, 60_000, SCALED, PLUS)
        for size in body.parameters:
            agent.copy("d2d", int(4 * size))


@kind("tasks", two_backward_calls=(False,), gradient_surgery=(True,))
def tasks(sim: Sim, surgery: bool) -> None:
    """Tasks share a body, and each has its backward call; their gradients may be made not to conflict."""
    agent, body = sim.agent(), net_of(sim)
    heads = [built(sim, dense, depth=2, width=15_000) for _ in range(3 if surgery else 2)]
    for _ in steps(sim, agent, 10, 14):
        agent.input()
        with agent.range("forward"), agent.of("FP"):
            for net in (body, *heads):
                net.forward(agent, marked=False, loss=False)
                if net is not body:
                    run(agent, 2_048, *LOSS)
        for at, head in enumerate(heads):
            back(agent, body, head)
            if surgery:
                with agent.of("BP|WU"):
                    run(agent, 60_000, CAT)
            elif at:
                with agent.of("BP", thread=agent.back):
                    for size in body.parameters:
                        agent.op(PLUS_SELF, size)
        if surgery:
            project(agent, body)
        update(agent, body, *heads)


@kind("local", layers_alone=())
def forward_forward(sim: Sim) -> None:
    """Each layer has a loss, a backward pass and an update of its own, one layer after the other."""
    agent, sizes = sim.agent(), [30_000.0, 50_000.0, 40_000.0]
    for _ in steps(sim, agent):
        agent.input()
        with agent.of("FP|IO"):
            run(agent, 8_192, SORT, INDEX)
        for size in sizes:
            with agent.range("forward"), agent.of("FP"):
                for _ in range(2):
                    run(agent, size, NORMED, DIVIDED, product(size), RELU)
                    run(agent, 2_048, POWER, MEAN)
                run(agent, 2_048, CAT, lambda_of("softplus_kernel"), MEAN)
            with backward(agent, DIVIDED, lambda_of("softplus_backward_kernel")):
                for _ in range(2):
                    run(agent, size, TIMES, RELU_BACK, product(size, "nt"), SUMMED)
            with agent.range("optimizer"), agent.of("WU"):
                on_lists(agent, [size, 512], *ADAMW)


@kind("gathered", clip_gathers=())
def clip_gathers(sim: Sim) -> None:
    """CLIP: two towers whose outcomes are gathered from all GPUs for the loss; gradients in buckets."""
    agent, images, words = sim.agent(), net_of(sim, "cnn"), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        agent.input(1 << 23)
        with agent.range("forward"), agent.of("FP"):
            for net in (images, words):
                net.forward(agent, marked=False, loss=False)
                run(agent, 2_048, NORMED, DIVIDED)
            for _ in range(2):
                collective(agent, "all_gather", 8_000, stream=20, stages="FP", main=True)
                agent.op(CAT, 8_000)
            run(agent, 20_000, product(20_000), SCALED, product(20_000), SCALED, *LOSS, *LOSS)

        def bucket(layer: int) -> None:
            if layer % 2 == 0:
                collective(agent, "all_reduce", 30_000, stream=20, stages="WU")

        with backward(agent, *LOSS_BACK, *LOSS_BACK, SCALED):
            for _ in range(2):
                run(agent, 20_000, product(20_000, "nn"), product(20_000, "nt"))
                collective(agent, "reduce_scatter", 8_000, stream=20, stages="BP", main=True)
            for net in (words, images):
                net.backward(agent, marked=False, loss=False, hook=bucket)
        wait_for(agent, 20)
        update(agent, images, words)
        with agent.of("WU|OTHER"):
            agent.op(RELU, 128)


@kind("recycling", recycled_folding=())
def recycled(sim: Sim) -> None:
    """Folding: the network runs a random number of times on its own result, the last time to learn."""
    agent, net = sim.agent(), net_of(sim, "transformer")
    for _ in steps(sim, agent):
        agent.input(1 << 20)
        with agent.range("forward"), agent.of("FP"):
            for _ in range(int(sim.rng.integers(1, 5))):
                run(agent, 9_000, "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", PLUS)  # fmt: skip
                net.forward(agent, marked=False, loss=False)
            run(agent, 9_000, lambda_of("sqrt_kernel_cuda"), RELU, MEAN)
            run(agent, 2_048, *LOSS)
        back(agent, net, again=True)
        update(agent, net, clipped=True)
        with agent.range("ema"), agent.of("WU"):
            for size in net.parameters:
                run(agent, size, PLUS, SCALED, PLUS)


@kind("solvers", adjoint_solver=())
def adjoint_solver(sim: Sim) -> None:
    """A neural ODE: a solver steps forward till the error is small, and backward solves another one."""
    agent, net = sim.agent(), built(sim, dense, depth=2, width=20_000)
    head = built(sim, dense, depth=1, width=9_000)
    for _ in steps(sim, agent, 10, 13):
        agent.input(1 << 18)
        with agent.range("forward"):
            for _ in range(int(sim.rng.integers(2, 4))):
                for _ in range(6):
                    net.forward(agent, marked=False, loss=False)
                    with agent.of("FP"):
                        run(agent, 9_000, SCALED, PLUS)
                with agent.of("FP"):
                    run(agent, 9_000, DIVIDED, NORMED)
                agent.fetch()
            head.forward(agent, marked=False)
        with backward(agent, *LOSS_BACK):
            head.backward(agent, marked=False, loss=False)
            for _ in range(int(sim.rng.integers(2, 4))):
                for _ in range(6):
                    agent.again = True
                    net.forward(agent, "BP", marked=False, loss=False)
                    agent.again = False
                    net.backward(agent, marked=False, loss=False)
                    run(agent, 9_000, SCALED, PLUS)
                run(agent, 9_000, DIVIDED, NORMED)
                agent.fetch()
        update(agent, net, head)


@kind("forces", force_field=())
def force_field(sim: Sim) -> None:
    """Energies of molecules, and forces as their gradient, which evaluation needs as well."""
    agent, net = sim.agent(), built(sim, dense, depth=4, width=25_000)
    spread = "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true, at::native::ReduceAdd>"

    def energy(stage: str, gradient: str) -> None:
        net.forward(
            agent,
            stage,
            marked=False,
            loss=False,
            hook=lambda _: run(agent, 15_000, GATHER, TIMES, spread),
        )
        with agent.of(gradient):
            agent.op(FILL, 512)
        net.backward(
            agent,
            stages=gradient,
            marked=False,
            loss=False,
            hook=lambda _: run(agent, 15_000, GATHER, TIMES, INDEX_PUT),
        )

    for n in range(count_of(sim, 12, 16)):
        agent.scale = float(sim.rng.uniform(0.8, 1.2))
        with agent.iteration(n):
            with agent.range("data"), agent.of("IO"):
                for _ in range(7):
                    agent.copy("h2d", 16_384)
            with agent.range("forward"), agent.of("FP"):
                energy("FP", "FP|BP")
                run(agent, 4_096, *SQUARES, *SQUARES, PLUS)
            with backward(agent, *SQUARES_BACK):
                net.backward(agent, marked=False, loss=False)
                run(agent, 20_000, GATHER, TIMES, spread)
                net.backward(agent, marked=False, loss=False)
            update(agent, net, clipped=True)
            with agent.range("ema"), agent.of("WU"):
                on_lists(agent, net.parameters, *AVERAGE)
        if n % 6 == 5:
            with agent.range("validation"):
                for _ in range(3):
                    with agent.of("ME|IO"):
                        for _ in range(7):
                            agent.copy("h2d", 16_384)
                    with agent.of("ME"):
                        energy("ME", "ME")
                        run(agent, 4_096, *SQUARES)
                        agent.copy("d2h", 4_096, waits=True)


@kind("private", private_gradients=())
def private(sim: Sim) -> None:
    """Opacus: hooks make each example's gradients, which are shortened one by one; noise is added."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    for n in range(count_of(sim)):
        agent.scale = float(sim.rng.uniform(0.7, 1.3))
        with agent.iteration(n):
            agent.input()
            forth(agent, net)

            def each(layer: int) -> None:
                with agent.of("BP", thread=agent.back):
                    size = net.layers[layer][1]
                    run(agent, 2 * size, STRIDED, "void gemmSN_NN_kernel<float, 256, 4, 2, 8, 4, 4, false, cublasGemvTensorStridedBatched<float const> >", SUMMED)  # fmt: skip

            with backward(agent, *LOSS_BACK):
                net.backward(agent, marked=False, loss=False, hook=each)
            with agent.range("optimizer"), agent.of("WU"):
                for size in net.parameters:
                    agent.op(NORMED, 2 * size)
                run(agent, 512, CAT, NORMED, PLUS_SELF, DIVIDED, RELU)
                for size in net.parameters:
                    agent.op("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false>", 2 * size)  # fmt: skip
                for size in net.parameters:
                    run(agent, size, NORMAL, PLUS, SCALED)
                on_lists(agent, net.parameters, *MOMENTUM)


@kind("worlds", world_model=())
def world_model(sim: Sim) -> None:
    """Dreamer: a model of the world learns, then an actor in what it imagines, then a critic."""
    agent, world = sim.agent(), net_of(sim, "cnn")
    actor, critic = built(sim, dense, depth=2, width=9_000), built(sim, dense, depth=2, width=9_000)
    cell = built(sim, dense, depth=1, width=12_000)
    for _ in steps(sim, agent, 8, 12):
        agent.input(1 << 22)
        forth(agent, world, *[cell] * 6, loss=SQUARES)
        back(agent, world, *[cell] * 6, loss=SQUARES_BACK)
        update(agent, world, cell, clipped=True)
        forth(agent, *[actor, cell] * 5, critic, loss=(MEAN,))
        back(agent, *[actor, cell] * 5, critic, loss=(DIVIDED,))
        update(agent, actor, clipped=True)
        forth(agent, critic, loss=SQUARES)
        back(agent, critic, loss=SQUARES_BACK)
        update(agent, critic, clipped=True)
        with agent.of("WU"):
            on_lists(agent, critic.parameters, *AVERAGE)
        agent.fetch()


# Compilers.


@kind("inductor", compiled_with_optimizer=(False,), compiled_evaluates=(True,))
def compiled_with_optimizer(sim: Sim, evaluates: bool) -> None:
    """torch.compile of the network and of its optimizer: names tell what was fused, not when."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    norm = "triton_per_fused__to_copy_add_native_layer_norm{}_{}"

    def fore(stage: str, base: int) -> None:
        with agent.of(stage):
            agent.op(f"triton_poi_fused_embedding_{base}", 9_000)
            for k, (_, size) in enumerate(net.layers):
                agent.op(norm.format("", base + 1 + k % 3), size / 4)
                agent.op(product(size), size)
                agent.op(f"triton_poi_fused_gelu_{base + 4}", size / 2)
                agent.op(product(size), size)
            agent.op(f"triton_red_fused__log_softmax_nll_loss_forward_{base + 5}", 20_000)

    for n in range(count_of(sim)):
        with agent.iteration(n):
            agent.input(1 << 16)
            with agent.range("forward"):
                fore("FP", 0)
            with backward(agent, "triton_red_fused__log_softmax__log_softmax_backward_data_nll_loss_backward_0"):  # fmt: skip
                for k, (_, size) in reversed(list(enumerate(net.layers))):
                    run(agent, size, product(size, "nn"), product(size, "nt"))
                    agent.op("triton_poi_fused_gelu_gelu_backward_3", size / 2)
                    run(agent, size, product(size, "nn"), product(size, "nt"))
                    agent.op("triton_red_fused_native_layer_norm_backward_sum_4", size / 4)
                    agent.op(norm.format("_backward", 5 + k % 3), size / 4)
                agent.op("triton_poi_fused_embedding_dense_backward_9", 9_000)
            with agent.range("optimizer"), agent.of("WU"):
                for part in range(2):
                    agent.op(f"triton_for_fused_{part}", sum(net.parameters) / 2)
        if evaluates and n % 5 == 4:
            with agent.range("evaluate"), agent.evaluation():
                for _ in range(3):
                    with agent.of("ME|IO"):
                        agent.copy("h2d", 1 << 16)
                    fore("ME", 10)
                    agent.fetch()


def xla_forward(agent: Agent, net: Net, stage: str, base: int) -> None:
    """Launch what XLA makes of a forward pass, in a module whose numbers begin somewhere."""
    with agent.of(stage):
        agent.op(f"loop_gather_fusion_{base}", 9_000)
        for k, (_, size) in enumerate(net.layers, base):
            agent.op(f"input_reduce_fusion_{k}", size / 4)
            agent.op(f"gemm_fusion_dot_{k}_0", size)
            agent.op(f"loop_tanh_multiply_fusion_{k}", size / 2)
        agent.op(f"triton_softmax_{base}", 8_192)
        agent.op(f"input_reduce_select_fusion_{base}", 2_048)


def xla_backward(agent: Agent, net: Net) -> None:
    """Launch what XLA makes of a backward pass."""
    agent.op("loop_subtract_exponential_fusion", 8_192)
    for k, (_, size) in reversed(list(enumerate(net.layers))):
        agent.op(f"loop_multiply_add_fusion_{k}", size / 2)
        agent.op(f"gemm_fusion_dot_{50 + k}_0", size)
        agent.op(f"gemm_fusion_dot_{80 + k}_0", size)
        agent.op(f"input_reduce_fusion_{60 + k}", size / 4)
    agent.op("input_scatter_fusion", 9_000)


@kind("xla", jax_step=(1, False), jax_accumulates=(3, False), jax_evaluates=(1, True))
def jax_step(sim: Sim, passes: int, evaluates: bool) -> None:
    """JAX: one compiled function is a step, launched by one thread, with XLA's numbered names."""
    agent, net = sim.agent(), net_of(sim, "mlp")
    with agent.of("-"):
        for size in net.parameters * 2:
            agent.copy("h2d", int(4 * size))

    for n in range(count_of(sim)):
        with agent.iteration(n):
            with agent.range("data"), agent.of("IO"):
                agent.copy("h2d", 1 << 18, stream=14)
            wait_for(agent, 14)
            for _ in range(passes):
                xla_forward(agent, net, "FP", 0)
                with agent.of("BP"):
                    xla_backward(agent, net)
                    if passes > 1:
                        agent.op("loop_add_fusion_7", sum(net.parameters))
            with agent.of("WU"):
                run(agent, 9_000, "input_multiply_reduce_fusion_3", "loop_select_minimum_fusion")
                for k, size in enumerate(net.parameters):
                    agent.op(f"loop_add_multiply_sqrt_divide_fusion_{k}", size)
            if n % 4 == 3:
                agent.fetch()
        if evaluates and n % 4 == 3:
            for _ in range(3):
                with agent.of("ME|IO"):
                    agent.copy("h2d", 1 << 18, stream=14)
                wait_for(agent, 14)
                xla_forward(agent, net, "ME", 200)
            agent.fetch()


STRANGERS = frozenset(KINDS) - _BEFORE
