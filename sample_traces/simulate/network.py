"""The networks of the studies, described by their layers in ``networks/*.toml``.

A layer is a text: ``conv 64 3x3 /2 valid``, ``fc 1000``, ``pool max 3x3 /2``, ``global``, ``lrn``,
``dropout``; padding keeps the size unless it is ``valid``. A list in place of a layer holds
branches, whose outputs are put side by side; a table repeats layers, or adds what they make of
their input to the input (``residual``), which a ``shortcut`` may bring to size.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("networks")
FLOAT = 4
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """What a kernel does: work and bytes that grow with the batch, and bytes that do not."""

    name: str
    flops_per_image: int
    bytes_per_image: int
    fixed_bytes: int = 0

    def work(self, images: int) -> tuple[int, int]:
        """Return operations and bytes for a batch."""
        return self.flops_per_image * images, self.bytes_per_image * images + self.fixed_bytes


@dataclass(frozen=True)
class Layer:
    """A layer: its kernels both ways, and how many weights each of its arrays has.

    Per image it hands on `outputs` elements, and keeps `kept` for the backward pass.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    arrays: tuple[int, ...]
    outputs: int
    kept: int

    @property
    def weights(self) -> int:
        """How many weights it has."""
        return sum(self.arrays)

    @cached_property
    def parts(self) -> tuple[Layer, ...]:
        """Return its arrays, each as a layer of its own."""
        return tuple(
            replace(self, name=f"{self.name}.{number}", arrays=(size,))
            for number, size in enumerate(self.arrays)
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the layer's weights, and of their gradients."""
        return FLOAT * self.weights


@dataclass(frozen=True)
class Network:
    """A network: its layers in the order in which they run forward."""

    name: str
    input: Shape
    layers: tuple[Layer, ...]

    @property
    def weights(self) -> int:
        """How many weights it has."""
        return sum(layer.weights for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return FLOAT * self.weights

    @property
    def input_elements(self) -> int:
        """Elements of an image."""
        return prod(self.input)

    @property
    def activation_bytes(self) -> int:
        """Bytes that the layers keep for the backward pass, per image."""
        return FLOAT * sum(layer.kept for layer in self.layers)


@cache
def network_names() -> tuple[str, ...]:
    """Return the names of all networks."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def load_network(name: str) -> Network:
    """Read a network's description and work out its layers."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        described = tomllib.load(file)
    builder = _Builder(described["after_conv"].split())
    shape = builder.sequence(described["layers"], tuple(described["input"]), "")
    builder.add("loss", (_pass("softmax_forward", 3 * prod(shape)),),
                (_pass("softmax_backward", 3 * prod(shape)),), (), 1)  # fmt: skip
    return Network(name, tuple(described["input"]), tuple(builder.layers))


def _pass(name: str, elements: int) -> Kernel:
    """Describe a kernel that touches some elements per image and computes next to nothing."""
    return Kernel(name, 0, FLOAT * elements)


class _Builder:
    """Works out layers from their texts, and the shapes between them."""

    def __init__(self, after_conv: list[str]) -> None:
        self._after_conv = after_conv
        self.layers: list[Layer] = []

    def add(
        self, name: str, forward: tuple[Kernel, ...], backward: tuple[Kernel, ...],
        arrays: tuple[int, ...], outputs: int, kept: int = 0,
    ) -> None:  # fmt: skip
        """Append a layer; backward kernels are in the order in which they run."""
        self.layers.append(Layer(name, forward, backward, arrays, outputs, kept or outputs))

    def sequence(self, items: list[Any], shape: Shape, prefix: str) -> Shape:
        """Append layers one after the other; return the shape they make."""
        for number, item in enumerate(items, 1):
            shape = self._item(item, shape, f"{prefix}{number}")
        return shape

    def _item(self, item: Any, shape: Shape, name: str) -> Shape:
        if isinstance(item, str):
            return self._layer(item, shape, name)
        if isinstance(item, list):
            shapes = [
                self.sequence(branch, shape, f"{name}{letter}")
                for letter, branch in zip("abcdefgh", item, strict=False)
            ]
            return (sum(each[0] for each in shapes), *shapes[0][1:])
        for number in range(item.get("repeat", 1)):
            shape = self._block(item, shape, f"{name}r{number + 1}." if "repeat" in item else name)
        return shape

    def _block(self, item: dict[str, Any], shape: Shape, name: str) -> Shape:
        if "residual" not in item:
            return self.sequence(item["layers"], shape, name)
        if "shortcut" in item:
            self._layer(item["shortcut"], shape, f"{name}s")
        made = self.sequence(item["residual"], shape, f"{name}.")
        size = prod(made)
        self.add(f"add{name}", (_pass("add_relu_forward", 3 * size),),
                 (_pass("add_relu_backward", 3 * size),), (), size)  # fmt: skip
        return made

    def _layer(self, text: str, shape: Shape, number: str) -> Shape:
        kind, *words = text.split()
        name = f"{kind}{number}"
        match kind:
            case "conv":
                return self._convolution(name, words, shape)
            case "fc":
                return self._product(name, words, prod(shape))
            case "pool":
                made = (shape[0], *_window(words[1:], shape))
                return self._simple(name, "pool", shape, made, factor=1)
            case "global":
                return self._simple(name, "pool", shape, (shape[0], 1, 1), factor=1)
            case "lrn" | "dropout":
                return self._simple(name, kind, shape, shape, factor=2 if kind == "lrn" else 1)
        raise ValueError(f"no such layer: {text}")

    def _simple(self, name: str, kind: str, shape: Shape, made: Shape, *, factor: int) -> Shape:
        touched = factor * (prod(shape) + prod(made))
        forward, backward = (_pass(f"{kind}_{way}", touched) for way in ("forward", "backward"))
        self.add(name, (forward,), (backward,), (), prod(made))
        return made

    def _convolution(self, name: str, words: list[str], shape: Shape) -> Shape:
        channels, groups = int(words[0]), 2 if "g2" in words else 1
        taps = prod(int(side) for side in words[1].split("x"))
        made = (channels, *_window(words[1:], shape))
        weights = taps * shape[0] // groups * channels
        moved, flops = prod(shape) + prod(made), 2 * weights * prod(made[1:])
        self._matrix(name, "conv", flops, moved, weights, made, self._after_conv)
        return made

    def _product(self, name: str, words: list[str], inputs: int) -> Shape:
        outputs = int(words[0])
        weights = inputs * outputs
        self._matrix(
            name, "gemm", 2 * weights, inputs + outputs, weights, (outputs,), words[1:]
        )  # fmt: skip
        return (outputs,)

    def _matrix(
        self, name: str, kind: str, flops: int, moved: int, weights: int, made: Shape,
        after: list[str],
    ) -> None:  # fmt: skip
        """Append a convolution or product with what follows it: normalisation, activation."""
        size, is_first = prod(made), not self.layers
        fprop, dgrad, wgrad = (
            Kernel(f"{kind}_{way}", flops, FLOAT * moved, FLOAT * weights)
            for way in ("fprop", "dgrad", "wgrad")
        )
        forward, backward = [fprop], [wgrad] if is_first else [dgrad, wgrad]
        if "bn" in after:
            forward.append(_pass("batch_norm_forward", 3 * size))
            backward.insert(0, _pass("batch_norm_backward", 5 * size))
        if "relu" in after:
            forward.append(_pass("relu_forward", 2 * size))
            backward.insert(0, _pass("relu_backward", 3 * size))
        extra = 2 if "bn" in after else 1
        kept = size * len(forward)
        arrays = (weights, *[made[0]] * extra)
        self.add(name, tuple(forward), tuple(backward), arrays, size, kept)


def _window(words: list[str], shape: Shape) -> Shape:
    """Return the height and width that a sliding window leaves."""
    sides = [int(side) for side in words[0].split("x")]
    stride = next((int(word[1:]) for word in words if word.startswith("/")), 1)
    if "valid" in words:
        return tuple(
            (have - side) // stride + 1 for have, side in zip(shape[1:], sides, strict=True)
        )
    return tuple(ceil(have / stride) for have in shape[1:])
