"""Write the sizes of tensors in matrix products, from which FLOPs and rooflines are computed.

A range around each multiplying function of `torch.nn.functional` has a name in the form of
``emit_nvtx(record_shapes=True)``: ``aten::linear, sizes = [[8, 3], [5, 3], [5]]``, followed by
types and values that FLOPs need. The function's node in the backward pass gets such a range too,
inside the ranges of the layers that called it, since that pass runs on autograd's threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from ._spans import Ranges

_MOST = 20_000
"""Largest number of operators, and of backward ranges of each, that get names: these stay in
memory, here and in the profiler."""
_BEHIND = frozenset({
    "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward",
    "SliceBackward", "AddBackward",
})  # fmt: skip
_DEEPEST = 4
"""Largest number of autograd nodes followed from a result: views of the product, and a bias."""
_FLASH = "_scaled_dot_product_flash_attention_backward"
_BACKWARD = {
    **dict.fromkeys(("AddmmBackward", "MmBackward", "LinearBackward"), "linear_backward"),
    "ConvolutionBackward": "convolution_backward",
    "ScaledDotProductFlashAttentionBackward": _FLASH,
    "ScaledDotProductFlashAttentionForCpuBackward": _FLASH,
    "ScaledDotProductEfficientAttentionBackward":
        "_scaled_dot_product_efficient_attention_backward",
    "ScaledDotProductCudnnAttentionBackward": "_scaled_dot_product_cudnn_attention_backward",
}  # fmt: skip
"""Operator of each autograd node: name of the node -> operator."""
_CAUSAL_AT = {
    _FLASH: 11, "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
}  # fmt: skip
_TRANSPOSED_AT, _CONVOLUTION_MASK_AT, _LINEAR_MASK_AT = 7, 10, 3
_DIGITS = "0123456789"

_NONE = ((), "", False)
"""Values of a missing argument."""

Function = Callable[..., Any]
Argument = tuple[Sequence[int], Any, bool]
"""Sizes of a tensor, its type, and whether it needs a gradient."""
Described = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Tensors passed to a function, and its other arguments."""


# These have the signatures of the functions that they describe.
def _linear(input: Any, weight: Any, bias: Any = None) -> Described:  # noqa: A002
    return (input, weight, bias), ()


def _convolution(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    dilation: Any = 1, groups: Any = 1,
) -> Described:  # fmt: skip
    return (input, weight, bias), (stride, padding, dilation, groups)


def _transposed(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,  # noqa: A002
    output_padding: Any = 0, groups: Any = 1, dilation: Any = 1,
) -> Described:  # fmt: skip
    return (input, weight, bias), (stride, padding, output_padding, groups, dilation)


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0,
    is_causal: Any = None, scale: Any = None, enable_gqa: Any = None,
) -> Described:  # fmt: skip
    del scale, enable_gqa
    return (query, key, value, attn_mask), (dropout_p, bool(is_causal))


FUNCTIONS: dict[str, Callable[..., Described]] = {
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "scaled_dot_product_attention": _attention,
}
"""Multiplying functions of `torch.nn.functional`: name -> function that describes a call."""


class Sizes:
    """Hooks on functions with matrix products, which write ranges named with tensor sizes.

    Parameters
    ----------
    torch
        The package `torch`.
    ranges
        Writer of the ranges.
    layers
        Function that returns the names of the layers open on the calling thread.
    is_wanted
        Function that returns whether the calling thread is to write sizes now.
    """

    def __init__(
        self,
        torch: Any,
        ranges: Ranges,
        layers: Callable[[], tuple[str, ...]],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._ranges = ranges
        self._layers = layers
        self._is_wanted = is_wanted
        self._plain = frozenset({torch.Tensor, torch.nn.Parameter})
        self._is_autocast = torch.is_autocast_enabled
        functorch = getattr(torch._C, "_functorch", None)
        self._transforms = getattr(functorch, "peek_interpreter_stack", lambda: None)
        self._scripts = torch._C._get_tracing_state
        self._known: dict[Hashable, _Operator] = {}
        self._open = _Open()

    def around(self, name: str) -> Callable[[Function], Function]:
        """Return a decorator that puts a range with sizes around the function `name`."""
        describe, push, pop = FUNCTIONS[name], self._ranges.push, self._ranges.pop

        def make(original: Function) -> Function:
            def hook(*args: Any, **kwargs: Any) -> Any:
                operator = self._operator(name, describe, args, kwargs)
                if operator is None:
                    return original(*args, **kwargs)
                push(operator.text)
                try:
                    result = original(*args, **kwargs)
                finally:
                    pop()
                if result.grad_fn is not None:
                    self._follow(result, operator)
                return result

            return hook

        return make

    def _operator(
        self,
        name: str,
        describe: Callable[..., Described],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> _Operator | None:
        """Return a call of a hooked function with its tensor sizes; None: the call gets no range.

        That is so if sizes are not wanted now, if the tensors' sizes are not those computed with
        (as under `vmap`), if the arguments are wrong, or if there are too many names.
        """
        if self._transforms() is not None or self._scripts() is not None:
            return None  # `vmap` hides a dimension, TorchScript names what it sees in here
        if not self._is_wanted():
            return None
        arguments: list[Argument] = []
        try:
            tensors, values = describe(*args, **kwargs)
            for each in tensors:
                if type(each) in self._plain:
                    arguments.append((each.shape, each.dtype, each.requires_grad))
                elif each is None:
                    arguments.append(_NONE)
                else:
                    return None  # shards, tensors that only exist for a compiler, ...
            is_cast = self._is_autocast()
            key = name, tuple(arguments), values, is_cast
            known = self._known.get(key)
        except TypeError:  # the function itself says what is wrong
            return None
        if known is None and len(self._known) < _MOST:
            known = self._known[key] = _Operator(*key[:3], is_cast=is_cast)
        return known

    def _follow(self, result: Any, operator: _Operator) -> None:
        """Put a range with sizes around the backward pass of a function, by its result's node."""
        node = result.grad_fn
        kind = node.name()
        for _ in range(_DEEPEST):
            if kind.rstrip(_DIGITS) not in _BEHIND:
                break
            node = node.next_functions[0][0]
            kind = node.name()
        layers = self._layers()
        hooks = operator.nodes.get((kind, layers))
        if hooks is None:
            backward = _BACKWARD.get(kind.rstrip(_DIGITS))
            if backward is None or len(operator.nodes) >= _MOST:
                return
            text = operator.backward_text(backward, result.shape)
            hooks = operator.nodes[kind, layers] = self._open.around(self._ranges, (*layers, text))
        if hasattr(node, "register_prehook"):
            node.register_prehook(hooks[0])
            node.register_hook(hooks[1])


class _Operator:
    """Call of a hooked function (a matrix product), with the sizes of its tensors.

    If autocast converts the tensors, their types are not known and not written.
    """

    def __init__(
        self, name: str, arguments: Sequence[Argument], values: tuple[Any, ...], *, is_cast: bool
    ) -> None:
        self._name = name
        self._values = values
        self._shapes = [list(shape) for shape, _, _ in arguments]
        self._types = (
            None if is_cast else [str(each).rpartition(".")[2] for _, each, _ in arguments]
        )
        self._wanted = [each for _, _, each in arguments[:3]]
        self.text = _text(name, self._shapes, self._types, ("",) * len(arguments) + values)
        self.nodes: dict[tuple[str, tuple[str, ...]], tuple[Function, Function]] = {}
        """Functions called before and after an autograd node: (node, layers) -> functions."""

    def backward_text(self, operator: str, result: Sequence[int]) -> str:
        """Return the name of the range around the operator's backward pass.

        `result`: size of the forward pass's result.
        """
        shapes, types = self._shapes, self._types
        values: dict[int, Any] = {}
        if operator == "linear_backward":
            values[_LINEAR_MASK_AT] = self._wanted
            order = [0, None, 1]
        elif operator == "convolution_backward":
            values[_TRANSPOSED_AT] = "transpose" in self._name
            values[_CONVOLUTION_MASK_AT] = self._wanted
            order = [None, 0, 1]
        else:
            values[_CAUSAL_AT[operator]] = self._values[1]
            order = [None, 0, 1, 2]
        return _text(
            operator,
            [list(result) if place is None else shapes[place] for place in order],
            types and [types[place or 0] for place in order],
            [values.get(place, "") for place in range(max(values) + 1)],
        )


def _text(
    operator: str, shapes: Sequence[list[int]], types: Sequence[str] | None, values: Sequence[Any]
) -> str:
    """Return the name of a range: ``OPERATOR, sizes = [...]``, then types and values if known."""
    text = f"aten::{operator}, sizes = {list(shapes)}"
    if types is not None:
        text += f", types = {_strings(types)}"
    return f"{text}, values = {_strings(map(_value, values))}" if any(values) else text


def _value(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def _strings(values: Iterable[str]) -> str:
    """Return texts without quotes or backslashes as a JSON list."""
    quoted = ", ".join(f'"{each}"' for each in values)
    return f"[{quoted}]"


class _Open(threading.local):
    """Number of open ranges around autograd nodes, per thread."""

    def __init__(self) -> None:
        self._depth = 0

    def around(self, ranges: Ranges, names: Sequence[str]) -> tuple[Function, Function]:
        """Return functions that autograd calls before and after a node, to open and close ranges.

        Such nodes do not nest.
        """

        def leave() -> None:
            while self._depth:
                self._depth -= 1
                ranges.pop()

        def begin(_: object) -> None:
            leave()  # of a node that failed
            for name in names:
                ranges.push(name)
                self._depth += 1

        def end(_: object, __: object) -> None:
            leave()

        return begin, end
