"""Training programs annotated with NVTX, whose traces show what each stage of a step costs.

They need PyTorch, and nothing of tracekit: ``python -m workloads.train --help``.
"""
