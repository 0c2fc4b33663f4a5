"""Training programs with NVTX annotations, whose traces show the cost of each stage of a step.

They need PyTorch, but not tracekit: ``python -m workloads.train --help``.
"""
