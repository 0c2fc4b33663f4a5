"""For programs that train in processes of their own, and compile nothing."""

WITHOUT_COMPILER = """
import sys, types
sys.modules["torch._dynamo"] = types.SimpleNamespace(
    disable=lambda work, *_, **__: work, graph_break=lambda: None
)
"""
"""Begin of a program: else its first optimizer imports PyTorch's compiler, for a second or two."""
