"""Write NVTX annotations of a training program: ranges, marks, labels, in the domain ``tracekit``.

Names of ranges state the stage of the work inside; ``README.md`` beside this file lists them.
Without annotations nothing is imported, created or hooked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from workloads._errors import MissingError
from workloads._tell import tell

if TYPE_CHECKING:
    from torch import nn

DOMAIN = "tracekit"
"""The NVTX domain of all annotations."""

LABEL = "tracekit.label"
"""Begin of the mark for a label; ``key=value`` follows."""

RANK = "tracekit.rank"
"""Begin of the mark by which a process states its rank; ``1 of 4`` follows."""

_NOTHING = nullcontext()
_INJECTIONS = ("NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH")
_PAYLOADS_SINCE = (0, 2, 12)


class Annotations:
    """Writer of a program's NVTX annotations into a trace; this base class writes none."""

    def range(self, name: str) -> AbstractContextManager[Any]:
        """Return a push/pop range around work of the calling thread."""
        del name
        return _NOTHING

    def process_range(self, name: str) -> AbstractContextManager[Any]:
        """Return a start/end range around work of any thread of the process.

        It is used for the backward pass, which PyTorch runs on one thread per device.
        """
        del name
        return _NOTHING

    def mark(self, name: str) -> None:
        """Mark a point in time."""

    def labels(self, labels: Mapping[str, object]) -> None:
        """Write labels (name -> value) of the run, which tracekit stores with the run."""
        for key, value in labels.items():
            self.mark(f"{LABEL} {key}={value}")

    def rank(self, rank: int, size: int) -> None:
        """Write the rank of this process into its trace, for traces that do not record it.

        Nothing is written for a job of one process.
        """
        if size > 1:
            self.mark(f"{RANK} {rank} of {size}")

    def layers(self, module: nn.Module) -> None:
        """Put a range around the forward pass of each layer of a network, if layers are wanted.

        Layers are the modules without children, and the network's immediate children: its blocks.
        """


class NvtxAnnotations(Annotations):
    """Writer of annotations through the package ``nvtx``; cheap if no profiler is attached.

    Parameters
    ----------
    layers
        Whether layers get ranges of their own.

    Raises
    ------
    MissingError
        If that package is not installed.
    """

    def __init__(self, *, layers: bool) -> None:
        self._layers = layers
        try:
            import nvtx  # noqa: PLC0415
        except ImportError as error:
            raise MissingError(
                "the package nvtx is not installed",
                "pip install 'tracekit[workloads]', or train with --no-nvtx",
            ) from error
        self._nvtx = nvtx

    def range(self, name: str) -> AbstractContextManager[Any]:
        """Return a push/pop range around work of the calling thread."""
        return self._nvtx.annotate(name, domain=DOMAIN)  # type: ignore[no-any-return]

    def process_range(self, name: str) -> AbstractContextManager[Any]:
        """Return a start/end range around work of any thread of the process."""
        return _ProcessRange(self._nvtx, name)

    def mark(self, name: str) -> None:
        """Mark a point in time."""
        self._nvtx.mark(name, domain=DOMAIN)

    def layers(self, module: nn.Module) -> None:
        """Put a range around the forward pass of each layer of a network, if `layers` is set."""
        if self._layers:
            for name, layer in named_layers(module):
                self._enclose(layer, layer_name(name, layer))

    def _enclose(self, layer: nn.Module, name: str) -> None:
        nvtx = self._nvtx

        def push(*_: object) -> None:
            nvtx.push_range(name, domain=DOMAIN)

        def pop(*_: object) -> None:
            nvtx.pop_range(domain=DOMAIN)

        layer.register_forward_pre_hook(push)
        layer.register_forward_hook(pop)


class _ProcessRange:
    """A start/end range of NVTX as a context manager."""

    def __init__(self, nvtx: Any, name: str) -> None:
        self._nvtx = nvtx
        self._name = name

    def __enter__(self) -> None:
        self._id = self._nvtx.start_range(self._name, domain=DOMAIN)

    def __exit__(self, *_: object) -> None:
        self._nvtx.end_range(self._id)


def make_annotations(*, wanted: bool, layers: bool) -> Annotations:
    """Return a writer of annotations; if they are not `wanted`, it writes nothing.

    Raises
    ------
    MissingError
        If annotations are `wanted` and the package ``nvtx`` is not installed.
    """
    return NvtxAnnotations(layers=layers) if wanted else Annotations()


def named_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a network with their names.

    Layers are the modules without children, and the network's immediate children.
    """
    for name, layer in module.named_modules():
        is_leaf = next(layer.children(), None) is None
        if name and (is_leaf or "." not in name):
            yield name, layer


def layer_name(name: str, layer: nn.Module) -> str:
    """Return the name of a layer's range, such as ``layer conv1 (Conv2d)``."""
    return f"layer {name} ({type(layer).__name__})"


def warn_of_lost_ranges() -> None:
    """Warn on stderr if the attached profiler is of a version that may not record the ranges."""
    if not any(os.environ.get(name) for name in _INJECTIONS):
        return
    try:
        installed = version("nvtx")
    except PackageNotFoundError:
        return  # which is said where it is needed
    if _numbers(installed) >= _PAYLOADS_SINCE:
        tell(
            f"nvtx {installed} writes ranges in a form that older versions of Nsight "
            "Systems (2024.2 among them) do not record: if ranges are missing from the trace, "
            "pip install 'nvtx<0.2.12'"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])
