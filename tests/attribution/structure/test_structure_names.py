"""Which names of kernels structure takes for those of gradients."""

from __future__ import annotations

import pytest

from tracekit.attribution.structure._kernel_hints import _matches


@pytest.mark.parametrize(
    ("name", "is_gradient"),
    [
        ("void cudnn::cnn::wgrad2d_grouped_direct_kernel<float>", True),
        ("void at::native::softmax_grad_kernel<float>(float*)", True),
        ("relu_gradKernel", True),
        # cuDNN runs it for a transposed convolution, which decoders have in forward; the gradient
        # is in the name of what it is given alone.
        ("void convolveNd_dgrad_float_engine<__half, (int)3>(int, kernel_gradNd_params)", False),
        ("xmma_cudnn::implicit_gemm::strided_dgrad_indexed::kernel<Ampere_hmma>", False),
    ],
)
def test_gradients_are_told_by_names_that_no_forward_pass_has(
    name: str, *, is_gradient: bool
) -> None:
    assert _matches((name,))["backward"].tolist() == [is_gradient]


@pytest.mark.parametrize(
    ("name", "is_first"),
    [
        ("void at::native::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(T1 *)", True),
        ("cunn_SoftMaxBackward<4, float, float, float, LogSoftMaxBackwardEpilogue>", True),
        ("elementwise_kernel<at::native::mse_backward_cuda_kernel(at::TensorIterator&)>", True),
        ("void cunn_ClassNLLCriterion_updateGradInput_kernel<float>(float*, float*)", True),
        ("triton_red_fused__log_softmax__log_softmax_backward_data_nll_loss_backward_5", True),
        ("binary_cross_entropy_with_logits_backward", True),
        ("smooth_l1_backward_cuda_kernel", True),
        # Other words hold the letters of a loss, and in mangled names nothing parts words.
        ("_ZN5torch13dropout_paramsEPK16rms_norm_bwd_opt", False),
        ("transformSequence_grad", False),
        # One kernel for the loss and its gradient, which runs in forward passes.
        ("liger_cross_entropy_kernel", False),
        ("void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>", False),
        ("softmax_warp_backward<float, float, float, 10, false, false>", False),  # of attention
        ("gelu_backward", False),
    ],
)
def test_gradients_of_losses(name: str, *, is_first: bool) -> None:
    found = _matches((name,))
    assert found["loss_gradient"].tolist() == [is_first]
    assert found["backward"].all() or not is_first


def test_optimizers_of_bitsandbytes_are_told_as_rules_tell_them() -> None:
    name = "void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>(__nv_bfloat16*)"
    assert _matches((name,))["optimizer"].all()
