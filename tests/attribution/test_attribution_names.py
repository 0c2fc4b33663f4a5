"""What real names mean under the default rules."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.attribution import Rules
from tracekit.attribution._names import (
    RangeNames,
    base_name,
    classify_kernels,
    classify_ranges,
    classify_threads,
)

RULES = Rules.load()

RANGES = {
    "FP": """
        forward
        Forward pass
        FORWARD
        ## forward ##
        FP
        fwd
        layer1.fwd
        model_forward
        forward_step
        Model.forward(input)
        forward, seq = 3, op_id = 17
        loss
        Loss computation
        criterion
        compute_loss
        fprop
        inference
        DistributedDataParallel.forward
        FullyShardedDataParallel.forward
        FullyShardedDataParallel._pre_forward
        FSDP::pre_forward (layers.0)
        FSDP::post_forward (layers.0)
        FSDP::root_pre_forward
        [pl][profile][Strategy]DDPStrategy.training_step
        [Strategy]SingleDeviceStrategy.training_step
        DeepSpeedEngine.forward
        PipelineEngine._exec_forward_pass
        DeepSpeedZeRoOffload.pre_sub_module_forward_function
        megatron.core.pipeline_parallel.schedules.forward_step
        megatron.core.models.gpt.gpt_model.GPTModel.forward
        layer_3f
        layer_1f-layer_5b
        transformer_engine._Linear.forward.gemm
        transformer_engine._LayerNormLinear.forward.norm
        nvte_layernorm_fwd
        CachedOp::Forward
        Thunk:#name=jit(train_step)/jit(main)/jvp(Transformer)/dense/dot_general,hlo_op=fusion.3#
        jit(loss_fn)/jvp()/dot_general
    """,
    "BP": """
        backward
        Backward pass
        ## backward ##
        BP
        bwd
        loss.backward
        loss_backward()
        backward_step
        backprop
        back-propagation
        back_prop
        bprop
        dgrad
        wgrad
        layer_2b
        qkv wgrad
        compute gradients
        compute_gradients
        tape.gradient
        [pl][profile][Strategy]DDPStrategy.backward
        FSDP::pre_backward (layers.0)
        FSDP::post_backward
        FullyShardedDataParallel._post_backward_hook
        DeepSpeedEngine.backward
        DeepSpeedZeroOptimizer_Stage3.backward
        FP16_Optimizer.backward
        PipelineEngine._exec_backward_pass
        DeepSpeedZeRoOffload.pre_sub_module_backward_function
        megatron.core.pipeline_parallel.schedules.backward_step
        transformer_engine._LayerNormLinear.backward.dgrad_gemm
        transformer_engine._LayerNormLinear.backward.wgrad_gemm
        nvte_layernorm_bwd
        _backward_Convolution
        CachedOp::Backward
        Thunk:#name=jit(train_step)/jit(main)/transpose(jvp(Transformer))/dense/dot_general#
    """,
    "WU": """
        optimizer
        Optimizer step
        optimizer step 3
        optimizer.step()
        optimiser
        optim
        opt_step
        opt.step
        Optimizer.step#AdamW.step
        Optimizer.zero_grad#SGD.zero_grad
        zero_grad
        zero gradients
        weight update
        Weights update
        update_weights
        parameter update
        update
        WU
        apply_gradients
        apply gradients
        clip_grad_norm
        gradient clipping
        gradient_exchange
        gradient sync
        sync gradients
        reduce_gradients
        average gradients
        all-reduce gradients
        allreduce
        AllReduce
        nccl:all_reduce
        grad_scaler.step
        unscale_
        SGD
        adam_update
        FusedAdam
        sgd_mom_update
        KVStorePush
        horovod_allreduce
        HorovodAllreduce
        hvd.allreduce
        DeepSpeedEngine.step
        DeepSpeedEngine._take_model_step
        DeepSpeedEngine.allreduce_gradients
        DeepSpeedZeroOptimizer_Stage3.step
        DeepSpeedZeroOptimizer.reduce_gradients
        PipelineEngine._exec_optimizer_step
        PipelineEngine._exec_reduce_grads
        megatron.core.optimizer.DistributedOptimizer.step
        megatron.core.distributed.finalize_model_grads
        [pl][profile]optimizer_step_with_closure_0
        FullyShardedDataParallel.clip_grad_norm_
        nvte_multi_tensor_adam_cuda
        powerSGD_hook
        batched_powerSGD_hook
        ddp_comm_hook
        communication hook
        compress gradients
        gradient_decompression
    """,
    "IO": """
        data
        Data
        IO
        io
        input
        data loading
        Data loading
        dataloader
        DataLoader.__next__
        load_batch
        load data
        next_batch
        get_batch
        fetch data
        data_fetch
        data copy
        data copy in 58
        Copy to device
        copy_to_gpu
        batch_to_device
        to_device
        move to the GPU
        send_to_device
        images to device
        H2D
        h2d copy
        HtoD
        prefetch
        prefetcher.next
        sample data
        sample_batch
        generate_data
        preprocess
        Preprocessing
        augmentation
        decode_jpeg
        CopyCPU2GPU
        enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
        [pl][profile][_TrainingEpochLoop].train_dataloader_next
        [Strategy]SingleDeviceStrategy.batch_to_device
        [pl][profile][Strategy]SingleDeviceStrategy.batch_to_device
        [LightningDataModule]MNIST.transfer_batch_to_device
        PipelineEngine._exec_load_micro_batch
        batch-generator
        input pipeline
    """,
    "ME": """
        ME
        validation
        Validation step 3
        validate
        valid
        val
        val_step
        val epoch 3
        val_loop
        Epoch 3 / val
        eval
        evaluation
        eval_step 12
        evaluate
        test
        Test
        testing
        test_epoch
        metrics
        metric
        accuracy
        Compute Accuracy
        top1_accuracy
        [pl][profile]run_evaluation
        [pl][profile][Strategy]DDPStrategy.validation_step
        [Strategy]SingleDeviceStrategy.test_step
        [pl][profile][_EvaluationLoop].val_next
        [pl][profile]run_sanity_check
        PipelineEngine.eval_batch
        XlaModule:#hlo_module=jit_eval_step,program_id=12#
    """,
    None: """
        aten::mm
        aten::convolution_backward
        aten::_log_softmax_backward_data
        aten::nll_loss_forward, seq = 4
        autograd::engine::evaluate_function: MmBackward0
        autograd::engine::evaluate_function: OptimizerHookBackward
        MmBackward0
        MmBackward0, seq = 17, op_id = 3
        torch::autograd::AccumulateGrad
        torch::distributed::reducer::mul_out
        torch.distributed.ddp.reducer::copy_bucket_to_grad
        torch.distributed.ddp.reducer::search_unused_parameters
        c10d::allreduce_
        c10::cuda::CUDACachingAllocator::forward
        nvFuser::forward
        FusionExecutor::RunFusion
        record_param_comms
        nccl:_all_gather_base
        nccl:reduce_scatter
        FSDP::all_gather
        RegisterPostBackwardFunction
        forward_backward_func
        forward_backward_no_pipelining
        megatron.core.pipeline_parallel.schedules.forward_backward_pipelining_with_interleaving.warmup
        send_forward_recv_backward
        send_backward_recv_forward
        Forward and backward
        fwd_bwd
        backward and optimizer
        train_and_eval
        train_and_validate
        train
        Training
        epoch 3
        step 3
        Run Benchmark
        profile
        ProfilerStep#5
        latest
        contest
        fastforward
        FeedForward
        backbone
        background
        attest
        medieval
        invalid
        validity
        ioctl
        framework
        layer 3
        layer_3
        lossless
        glossary
        closure
        adamant
        sgdr
        megabyte
        some
        name
        home
        interval
        key_val_cache
        val_proj
        model to device
        photo_device
        retrieval
        evaluated_cost
        value
        Torch-Compiled Region: 0/0
        ## Call CompiledFxGraph fabc123 ##
        nvte_gelu
        transformer
        attention
        softmax
        embedding
        [pl][profile]run_training_batch
        [pl][profile]run_training_epoch
        PipelineEngine.train_batch
        XlaModule:#hlo_module=jit_train_step,program_id=12#
        XlaModule:#hlo_module=jit_loss,program_id=12#
        jit_loss_fn:XLA GPU module
        PjitFunction(loss_fn)
        jit(loss_fn)
        jit(loss_fn)/reduce_sum
        loss#step_num=3#
        XlaPassPipeline:#name=forward-allreduce,module=jit_train_step#
        XlaCompile:#module=jit_loss,program_id=3#
        update_progress_bar
        {'mod': 'Tensor', 'op': 'add', 'args': []}
    """,
}  # fmt: skip


def _table(listed: dict[str | None, str]) -> list[tuple[str, str | None]]:
    return [
        (name.strip(), meaning)
        for meaning, names in listed.items()
        for name in names.strip().splitlines()
    ]


def _stage_of_range(name: str | None, domain: str | None = None) -> str | None:
    frame = pl.DataFrame({"name": [name], "domain": [domain]}, schema_overrides={"name": pl.String,
        "domain": pl.String})  # fmt: skip
    stage: str | None = classify_ranges(frame, RULES)["stage"].item()
    return stage


def test_range_names() -> None:
    table = _table(RANGES)
    names = [name for name, _ in table]
    assert len(set(names)) == len(names)
    frame = pl.DataFrame({"name": names, "domain": None}, schema_overrides={"domain": pl.String})
    found = dict(zip(names, classify_ranges(frame, RULES)["stage"], strict=True))
    wrong = {name: (found[name], meant) for name, meant in table if found[name] != meant}
    assert wrong == {}


@pytest.mark.parametrize(
    ("domain", "name", "stage"),
    [
        ("DALI", "[DALI][GPU op] Resize", "IO"),
        ("DALI", "forward", "IO"),
        ("NCCL", "ncclAllReduce", None),
        ("NCCL", "AllReduce", None),
        ("MPI", "MPI_Allreduce", None),
        ("mine", "forward", "FP"),
        ("PyTorch", "aten::mm", None),
        ("CCCL", "cub::DeviceReduce::Sum", None),
        (None, None, None),
        ("DALI", None, "IO"),
        ("tracekit", "FP loss", "FP"),
        ("tracekit", "WU step", "WU"),
        ("tracekit", "WU zero_grad", "WU"),
        ("tracekit", "WU clip_grad", "WU"),
        ("tracekit", "WU grad_scaler", "WU"),
        ("tracekit", "WU gradient exchange", "WU"),
        ("tracekit", "layer test.loss (Optimizer)", None),
        (None, "", None),
    ],
)
def test_domains_of_ranges(domain: str | None, name: str | None, stage: str | None) -> None:
    assert _stage_of_range(name, domain) == stage


COLLECTIVES: dict[str | None, str] = {
    "all_reduce": """
        ncclAllReduceLLKernel_sum_f32
        ncclAllReduceKernel_sum_f32
        ncclAllReduceRingLLKernel_sum_f32(ncclColl)
        ncclAllReduceTreeLLKernel_sum_f16
        ncclAllReduceCollNetLLKernel_sum_f32
        _Z33ncclAllReduceRingLLKernel_sum_f328ncclColl
        ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)
        ncclKernel_AllReduce_TREE_LL_Sum_half
        ncclKernel_AllReduce_COLLNET_DIRECT_LL_PreMulSum___nv_bfloat16
        ncclKernel_AllReduce_NVLS_TREE_LL_SumPostDiv_uint8_t
        ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)
        ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)
        ncclDevKernel_AllReduce_Sum_f8e4m3_RING_LL_nop
        ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32
        ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16
        ncclSymkDevKernel_AllReduce_RSxTmaLD_AGxTmaST_sum_f16
        void vllm::cross_device_reduce_1stage<half, 8>(vllm::RankData*, vllm::RankSignals)
        void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(AllReduceParams)
        void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>()
        void one_shot_all_reduce_kernel<float, 8>(float**)
        multimem_all_reduce_kernel
    """,
    "all_gather": """
        ncclAllGatherRingLLKernel_copy_i8(ncclColl)
        ncclKernel_AllGather_RING_LL_Sum_int8_t
        ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)
        ncclDevKernel_AllGatherV_RING_LL
        ncclSymDevKernel_AllGather_LLMC
        ncclSymkDevKernel_AllGather_RailRing_LsaSTMC
        void multimem_all_gather_kernel<8>(char*)
    """,
    "reduce_scatter": """
        ncclReduceScatterRingLLKernel_sum_f16
        ncclKernel_ReduceScatter_RING_LL_Sum_float
        ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL
        ncclSymDevKernel_ReduceScatter_LDMC_sum_f32
        ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLD_sum_f32
    """,
    "broadcast": """
        ncclBroadcastRingLLKernel_copy_i8(ncclColl)
        ncclKernel_Broadcast_RING_LL_Sum_int8_t
        ncclDevKernel_Broadcast_RING_LL
    """,
    "reduce": """
        ncclReduceLLKernel_sum_f32
        ncclReduceKernel_sum_f32
        ncclReduceRingLLKernel_sum_f32(ncclColl)
        ncclReduceTreeLLKernel_sum_f32
        ncclKernel_Reduce_RING_LL_Sum_float
        ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)
        ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)
    """,
    "send_recv": """
        ncclSendRecvKernel_copy_i8
        ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t
        ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)
        void deep_ep::elastic::pp_send_impl<2>(void*)
    """,
    "all_to_all": """
        ncclDevKernel_AllToAll_RING_LL
        void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)
        void deep_ep::internode_ll::combine<true, 7168>(void*, void*)
        void deep_ep::legacy::intranode::cached_notify_combine<2>(void**, int*)
        void deep_ep::intranode::barrier<8>(int**, int)
        void deep_ep::elastic::hybrid_dispatch_impl<8>(void*)
        _ZN7deep_ep9internode8dispatchILi8EEEvPv
        void dpsk::ep::internode::notify_dispatch<false, 8>(int const*)
        void dpsk::ep::internode::cached_notify<true>(int)
        void hybrid_ep::dispatch_kernel<8>(hybrid_ep::dispatch_kernel_param_t)
        void hybrid_ep::device_sync_kernel<8>(int*)
        void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<8>(int)
        void mori::moe::EpDispatchIntraNodeKernel_bf16(mori::moe::EpDispatchCombineArgs)
        EpCombineInterNodeV1Kernel_bf16
    """,
    "unknown": """
        ncclDevKernel_Generic(ncclDevKernelArgsStorage<(unsigned long)4096>)
        ncclDevKernel_Generic_4
        nvshmemi_proxy_kernel
        void nvshmem::put_signal_kernel<8>(int*)
    """,
    None: """
        ncclDevKernel_oneRankReduce_Sum_f32
        void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*)
        void dpsk::ep::cuda::get_dispatch_layout<4>(long const*)
        void deep_ep::elastic::combine_reduce_epilogue_impl<8>(void*)
        void deep_ep::internode_ll::clean_low_latency_buffer<256>(int*)
        void hybrid_ep::permute_kernel<bf16>(void*)
        void moeA2APrepareDispatchKernel(int*)
        void moe_align_block_size_kernel<int>(int*)
        groupnorm_kernel_dispatch_up<4>
        void cutlass::Kernel<cutlass::gemm::KernelTmaWarpSpecialized, DispatchPolicy>(int)
        ncclKernel_OneRankReduce_PreMulSum_float
        void oneRankReduce<FuncPreMulSum<float> >(void*, void*, unsigned long, bool)
        void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp)
        void cub::DeviceReduceKernel<float>(float*)
        void gather_kernel(float*)
        volta_sgemm_128x64_nn
        broadcast_kernel
        void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>(int)
    """,
}  # fmt: skip


def _kernels(names: list[str], kind: str = "compute") -> pl.DataFrame:
    frame = pl.DataFrame({"name": names}).with_columns(
        pl.col("name").cast(pl.Categorical), kind=pl.lit(kind)
    )
    return classify_kernels(frame, RULES)


def test_collectives_by_name() -> None:
    table = _table(COLLECTIVES)
    found = _kernels([name for name, _ in table])
    pairs = zip(table, found["collective"], strict=True)
    wrong = {name: (is_now, meant) for (name, meant), is_now in pairs if is_now != meant}
    assert wrong == {}
    kinds = ["collective" if meant else "compute" for _, meant in table]
    assert found["kind"].to_list() == kinds


def test_only_kernels_are_collectives() -> None:
    found = _kernels(["ncclDevKernel_AllReduce_Sum_f32_RING_LL"], kind="memset")
    assert found.select("kind", "collective", "kernel_stage").row(0) == ("memset", None, None)


KERNELS: dict[str | None, str] = {
    "FP": """
        sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16
        void <unnamed>::softmax_warp_forward<float, float, float, (int)10, (bool)1>(T2 *)
        void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)
        void cunn_SoftMaxForward<4, float, float, float>(float*)
        void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)
        fmha_cutlassF_f16_aligned_64x64_rf_sm80
        void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)
        void transformer_engine::normalization::ln_fwd_general_kernel<float>(FwdParams)
    """,
    "BP": """
        sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16
        sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32
        void cudnn::cnn::wgrad2d_grouped_direct_kernel<float>(cudnnTensorStruct)
        void cudnn::bn_bw_1C11_kernel_new<float, float, 512, true, 1>(float)
        void <unnamed>::softmax_warp_backward<float, float, float, (int)10, (bool)1>(T2 *)
        void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Traits<64>>()
        fmha_cutlassB_f16_aligned_64x64_k64_sm80
        void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(float)
        void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long)
        void cuComputeGradInput<float, float, float>(float*)
        void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>(long*)
        void at::native::elementwise_kernel<128, 4, at::native::GeluBackwardCUDAKernelImpl>(int)
        void embedding_grad_kernel<float>(int)
    """,
    "WU": """
        void at::native::<unnamed>::multi_tensor_apply_kernel<TensorListMetadata<(int)4>>(T1)
        void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>>(int)
        void at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>(int)
        void mxnet::op::mxnet_op::mxnet_generic_kernel<mxnet::op::SGDMomKernel>(int, float *)
        void mxnet::op::mxnet_op::mxnet_generic_kernel<mxnet::op::ElementWiseSumCompute<float>>(int)
        void mxnet::op::ElementwiseSumKernel<float>(int)
        lamb_stage_1
        void sgd_update_kernel<float>(float*)
        adagrad_kernel
        void momentum_update<float>(float*)
        void tensorflow::functor::ApplyAdamKernel<float>(int, float*)
        void tensorflow::functor::ApplyKerasMomentumKernel<float>(int, float*)
        void phi::AdamKernelREG<float, float>(float)
        RMSPropKernel
        ncclDevKernel_AllReduce_Sum_f32_RING_LL
        ncclDevKernel_Generic
        nvshmemi_proxy_kernel
    """,
    None: """
        ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)
        volta_sgemm_128x64_nn
        ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn
        void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)
        void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp)
        void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>(Params)
        void cudnn::ops::nchwToNhwcKernel<float, float, float>(cudnn::ops::nchw2nhwc_params_t)
        triton_poi_fused_add_mul_0
        void cub::DeviceScanKernel<float>(float*)
        fused_rope_kernel
        fill_scalars_kernel
        updateMomentumKernel
    """,
}  # fmt: skip


def test_stages_by_kernel_name() -> None:
    table = _table(KERNELS)
    found = _kernels([name for name, _ in table])["kernel_stage"]
    pairs = zip(table, found, strict=True)
    wrong = {name: (is_now, meant) for (name, meant), is_now in pairs if is_now != meant}
    assert wrong == {}


THREADS = {
    "[DALI][WT]GPU executor": ("IO", False),
    "[DALI][NVJPEG]": ("IO", False),
    "PrefetchWorker": ("IO", False),
    "pt_data_worker": ("IO", False),
    "pt_data_pin": ("IO", False),
    "pin_memory": ("IO", False),
    "DataLoader 3": ("IO", False),
    "pt_autograd_0": (None, True),
    "pt_autograd_13": (None, True),
    "python3.11": (None, False),
    "pt_nccl_watchdg": (None, False),
    "cuda-EvtHandlr": (None, False),
    "": (None, False),
    None: (None, False),
}


def test_threads_by_name() -> None:
    frame = pl.DataFrame({"name": list(THREADS)}, schema={"name": pl.String})
    assert classify_threads(frame, RULES).rows() == [(n, *m) for n, m in THREADS.items()]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        # The forms that PyTorch has written, oldest first.
        ("mul, seq=12", "mul"),
        ("mul, stashed seq=12", "mul, stashed seq"),
        ("add, seq = 12", "add"),
        ("add, seq = 12, sizes = [[2, 3], []]", "add"),
        ("add, sizes = [[2, 3], [2, 3]]", "add"),
        (", sizes = [[2, 3]]", ""),
        ("aten::mm, seq = 45440, op_id = 990760", "aten::mm"),
        ("aten::mm, op_id = 990760", "aten::mm"),
        ("aten::mm, op_id = 7, sizes = [[], [2]], input_op_ids = [(6,0), (0,-1)]", "aten::mm"),
        ("aten::mm, seq = 1, op_id = 7, sizes = []", "aten::mm"),
        ("aten::mm, input_op_ids = [(6,0)]", "aten::mm"),
        ("MmBackward0, seq = 8, op_id = 3", "MmBackward0"),
        # What only looks like them.
        ("FSDP::pre_forward (a, b.c)", "FSDP::pre_forward (a, b.c)"),
        ("step 3, sequence = 4", "step 3, sequence = 4"),
        ("a, sizes = 3", "a, sizes = 3"),
        ("a, seq = x", "a, seq = x"),
        ("seq = 3", "seq = 3"),
        ("", ""),
        (None, None),
    ],
)
def test_base_name(name: str | None, base: str | None) -> None:
    frame = pl.DataFrame({"name": [name]}, schema={"name": pl.String})
    assert frame.select(base_name(pl.col("name"))).item() == base


def test_names_that_come_as_categories_are_the_same_names() -> None:
    """Also where categories of others lie between, and where chunks come in both ways."""
    chunks = [["forward", "loss", "forward"], [None, "new, seq = 7", "new"], ["loss", None, "x"]]
    others = pl.Series(["of another table"], dtype=pl.Categorical)
    plain, coded, mixed = (RangeNames(RULES) for _ in range(3))
    for number, texts in enumerate(chunks):
        rows = pl.DataFrame({"domain": [None, "NCCL", None], "name": texts}, dict.fromkeys(
            ("domain", "name"), pl.String
        ))  # fmt: skip
        as_categories = rows.with_columns(pl.col("name").cast(pl.Categorical))
        wanted = plain.of(rows).to_list()
        assert coded.of(as_categories).to_list() == wanted
        assert mixed.of(as_categories if number % 2 else rows).to_list() == wanted
    assert coded.table.equals(plain.table)
    assert others.item() == "of another table"
