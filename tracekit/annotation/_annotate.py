"""Turn annotation (NVTX ranges) on, for a whole program or for chosen models and optimizers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ._attach import ATTACH, Requests
from ._prepare import EVENTS, RING
from ._step_windows import WINDOWS, Every, Windows, WithinWindows

if TYPE_CHECKING:
    from ._hooks import Hooks
    from ._spans import Ranges

_LISTENER = "NVTX_INJECTION64_PATH"
"""Environment variable with the library by which a profiler listens."""

_on: list[Hooks] = []
"""The installed hooks: at most one set, otherwise all ranges would be written twice."""


class Annotation:
    """Annotations of a program (NVTX ranges), on until `close` or the end of their ``with`` block.

    Parameters
    ----------
    hooks
        The hooks on PyTorch that write ranges; None if no profiler is attached, or if annotations
        were on already.
    loader
        The loader passed to `annotate`; None without one.
    """

    def __init__(self, hooks: Hooks | None, loader: Iterable[Any] | None) -> None:
        self._hooks = hooks
        self._loader = loader

    @property
    def loader(self) -> Iterable[Any]:
        """The loader given to `annotate`, wrapped so that fetching each batch gets a range."""
        if self._loader is None:
            raise ValueError("no loader was given: annotate(loader=...)")
        return _Loader(self._loader)

    def close(self) -> None:
        """Remove all hooks from PyTorch."""
        if self._hooks is not None:
            self._hooks.remove()
            _on.remove(self._hooks)
            self._hooks = None

    def __enter__(self) -> Annotation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Loader:
    """Wrapper around any source of batches: fetching one gets a range, if annotations are on."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._batches)
        while True:
            try:
                batch = _fetched(batches, id(self._batches))
            except StopIteration:
                return
            yield batch


def _fetched(batches: Iterator[Any], data: int) -> Any:
    if hooks := _in_place():
        return hooks.fetch(lambda: next(batches), data)
    return next(batches)


def annotate(
    *,
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    layers: int = 1,
    ring: str | os.PathLike[str] | None = None,
    cuda_events: bool = False,
) -> Annotation:
    """Write NVTX ranges of training stages, layers and iterations, if a profiler is attached.

    Has the effect of ``tracekit record --annotate``, requested by the program itself. Without a
    profiler and without a ring file it does nothing.

    Parameters
    ----------
    model
        The network, or several, whose forward and backward passes are annotated; None for all.
    optimizer
        The optimizer, or several, whose steps end an iteration; None for all.
    loader
        Source of batches that is not a `DataLoader` of PyTorch; iterate over the ``loader`` of the
        result in its place.
    layers
        Depth of layers that get ranges of their own: 1 for the model's children, 0 for none.
    ring
        File of fixed size (ring buffer) that keeps the latest ranges, with or without a profiler;
        or None.
    cuda_events
        Whether to keep stages timed by CUDA events in a second ring file, `live.gpu.ring` beside
        `live.ring`. Not tested on a GPU.

    Returns
    -------
    The annotations, switched on; leaving ``with``, or ``close``, removes them.
    """
    if _in_place() is not None or not (os.environ.get(_LISTENER) or ring):
        return Annotation(None, loader)
    kept_in = None if ring is None else os.fspath(ring)
    chosen = _several(model), _several(optimizer)
    hooks = _switch_on(layers, *chosen, kept_in, has_events=cuda_events)
    return Annotation(hooks, loader)


def annotate_all(layers: int) -> None:
    """Annotate a program from its first import of PyTorch to its end.

    `layers` is the depth of layers that get ranges.
    """
    _switch_on(layers, [], [], os.environ.get(RING), has_events=EVENTS in os.environ)


def _switch_on(
    layers: int, networks: list[Any], optimizers: list[Any], ring: str | None, *, has_events: bool
) -> Hooks:
    import torch  # which the program has imported

    from ._hooks import Hooks

    ranges = _ranges(ring)
    if ring and has_events:
        from ._ring import Both, EventRanges

        ranges = Both(ranges, EventRanges(torch, ".gpu".join(os.path.splitext(ring))))
    windows = _windows(ranges)
    # A ring has what is between windows, too, but of a job that is asked for windows.
    is_silent = windows is not None and (ring is None or bool(os.environ.get(ATTACH)))
    if windows is not None and is_silent:
        ranges = WithinWindows(ranges, windows)
    has_sizes = bool(layers) and _LISTENER in os.environ
    hooks = Hooks(
        torch, ranges, layers, networks, optimizers, windows,
        has_sizes=has_sizes, is_silent=is_silent,
    )  # fmt: skip
    _on.append(hooks)
    hooks.install()
    for each in optimizers:
        hooks.hook_step(type(each))
    return hooks


def _windows(ranges: Ranges) -> Windows | None:
    """Return which steps to record, as environment variables ask; None: all steps."""
    if folder := os.environ.get(ATTACH):
        return Windows(ranges, Requests(folder))
    text = os.environ.get(WINDOWS)
    return Windows(ranges, Every(text)) if text else None


def _ranges(ring: str | None) -> Ranges:
    """Return the writer of ranges: to the attached profiler, into a ring file, or to both."""
    library = os.environ.get(_LISTENER)
    if library:
        from ._nvtx import NvtxRanges

        profiler = NvtxRanges.of_profiler(library)
        if not ring:
            return profiler
    from ._ring import Both, RingRanges

    kept = RingRanges(ring or "")
    return Both(profiler, kept) if library else kept


def _in_place() -> Hooks | None:
    """Return hooks on PyTorch that were installed earlier, by `annotate` or at Python's start."""
    first = sys.modules.get("_tracekit_annotation._annotate")
    found: list[Hooks] = getattr(first, "_on", _on) or _on
    return found[0] if found else None


def _several(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
