"""Hooks on PyTorch functions, by which the training stages of a program are known.

Each hook replaces one function and calls it; `Hooks.remove` restores the original.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, finalize

from ._imports import when_imported
from ._sizes import FUNCTIONS, Sizes
from ._spans import Ranges
from ._step_hooks import moments
from ._step_windows import Windows
from ._threads import CLIP, EXCHANGE, SCALER, Roles, Thread

_HOOKED = "_tracekit_hooked"
_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced",
)  # fmt: skip
_LOSSES = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
"""Loss functions whose names do not end in ``loss``."""

Function = Callable[..., Any]


class Hooks:
    """All hooks on PyTorch in a program, which write the ranges.

    Parameters
    ----------
    torch
        The package `torch`.
    ranges
        Writer of the ranges.
    layers
        Depth of layers that get ranges: 1 for a network's children, 0 for none.
    networks
        Networks whose forward and backward passes are annotated; empty for all.
    optimizers
        Optimizers whose steps end iterations; empty for all.
    windows
        Windows of steps to record; None to record all.
    has_sizes
        Whether to write tensor sizes, if layers are annotated.
    is_silent
        Whether nothing is written between windows, so that steps are only counted there.
    """

    def __init__(
        self,
        torch: Any,
        ranges: Ranges,
        layers: int,
        networks: Iterable[Any] = (),
        optimizers: Collection[Any] = (),
        windows: Windows | None = None,
        *,
        has_sizes: bool = True,
        is_silent: bool = False,
    ) -> None:
        self._torch = torch
        self._ranges = ranges
        self._layers = Layers(layers)
        self._networks = WeakSet(part for each in networks for part in each.modules())
        self._has_own_optimizers = bool(optimizers)
        self._optimizers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._windows = windows
        for each in optimizers:
            self._register(each)
        self._roles = Roles()
        self._trained: WeakSet[Any] = WeakSet()
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
        self.thread = Thread(ranges, self._optimizers, self._roles, windows)
        self._sizes = (
            Sizes(torch, ranges, lambda: self.thread.open_layers, self._tells_sizes)
            if layers and has_sizes
            else None
        )
        self._stop_waiting: Callable[[], None] = lambda: None
        self._replaced: list[_Replaced] = []
        self._rests = False
        if windows is not None and is_silent:
            windows.on_rest = self._rest

    def install(self) -> None:
        """Install all hooks; those for modules not imported yet are installed after the import."""
        self._stop_waiting = when_imported(
            {
                "torch.nn.modules.module": self._hook_modules,
                "torch.nn.functional": self._hook_functions,
                "torch.jit._builtins": self._hook_scripting,
                "torch.autograd": self._hook_autograd,
                "torch.autograd.grad_mode": self._hook_grad_mode,
                "torch.optim.optimizer": self._hook_optimizers,
                "torch.utils.data.dataloader": self._hook_loaders,
                "torch.nn.utils": self._hook_clipping,
                "torch.nn.utils.clip_grad": self._hook_clipping,
                "torch.amp.grad_scaler": self._hook_scaler,
                "torch.distributed": self._hook_collectives,
                "torch.nn.parallel.distributed": self._hook_exchange,
                "torch.distributed.fsdp.fully_sharded_data_parallel": self._hook_exchange,
            }
        )
        self._hook_compiling()
        atexit.register(self.thread.finish)

    def remove(self) -> None:
        """Remove the hooks: restore all replaced functions."""
        self._stop_waiting()
        atexit.unregister(self.thread.finish)
        while self._replaced:
            self._replaced.pop().take_out()

    def fetch(self, call: Callable[[], Any], data: int | None) -> Any:
        """Fetch a batch by `call`, in a range; `data` is the id of the data set, if known."""
        if self._rests or self.thread.is_inside:
            return call()
        return self.thread.fetch(call, data, has_grad=self._torch.is_grad_enabled())

    def hook_step(self, optimizer: Any) -> None:
        """Install a hook on the step of an optimizer's class."""
        thread = self.thread

        def make(original: Function) -> Function:
            def step(self: Any, *args: Any, **kwargs: Any) -> Any:
                return thread.step(self, lambda: original(self, *args, **kwargs))

            return step

        if not getattr(getattr(optimizer, "step", None), _HOOKED, False):
            self._replace(optimizer, "step", make)

    def _rest(self, *, removed: bool) -> None:
        """Remove the hooks not needed to count optimizer steps, or (not `removed`) restore them."""
        self._rests = removed
        for each in self._replaced:
            if each.rests:
                each.take_out() if removed else each.put_in()

    def _replace(
        self,
        owner: Any,
        name: str,
        make: Callable[[Function], Function],
        *,
        rests: bool = False,
    ) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        hook = _seen_through(original, make(original), self._is_compiling)
        setattr(hook, _HOOKED, True)
        if isinstance(owner, ModuleType):
            hook.__module__ = owner.__name__  # where it is found when it is unpickled
        replaced = _Replaced(owner, name, original, hook, name not in vars(owner), rests)
        self._replaced.append(replaced)
        if not (rests and self._rests):
            replaced.put_in()

    def _enclose(
        self,
        owner: Any,
        name: str,
        run: Callable[[Callable[[], Any]], Any],
        *,
        rests: bool = False,
    ) -> None:
        """Replace function `name` of `owner` (module or class) by one that hands calls to `run`.

        Calls made inside another hook go to the original function.

        `rests`: the hook is removed while steps are only counted.
        """
        thread = self.thread

        def make(original: Function) -> Function:
            def hook(*args: Any, **kwargs: Any) -> Any:
                if thread.is_inside:
                    return original(*args, **kwargs)
                return run(lambda: original(*args, **kwargs))

            return hook

        self._replace(owner, name, make, rests=rests)

    def _hook_modules(self, module: ModuleType) -> None:
        thread, ranges = self.thread, self._ranges

        def make(original: Function) -> Function:
            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
                if not thread.is_inside:
                    return outermost(self, lambda: original(self, *args, **kwargs))
                name = thread.layers.get(id(self))
                if name is None:
                    return original(self, *args, **kwargs)
                ranges.push(name)
                around = thread.open_layers
                thread.open_layers = (*around, name)
                try:
                    return original(self, *args, **kwargs)
                finally:
                    thread.open_layers = around
                    ranges.pop()

            return __call__

        def make_train(original: Function) -> Function:
            def train(self: Any, mode: bool = True) -> Any:  # noqa: FBT001, FBT002
                if mode:
                    thread.train()
                return original(self, mode)

            return train

        outermost = self._outermost
        self._enclose(module.Module, "zero_grad", thread.clear, rests=True)
        self._replace(module.Module, "__call__", make, rests=True)
        self._replace(module.Module, "train", make_train, rests=True)

    def _hook_functions(self, module: ModuleType) -> None:
        self._hook_losses(module)
        if self._sizes is not None:
            for name in FUNCTIONS:
                self._replace(module, name, self._sizes.around(name), rests=True)

    @property
    def _is_recorded(self) -> bool:
        """True if ranges are recorded now: inside a window of steps, or without windows always."""
        return self._windows is None or self._windows.is_open

    def _tells_sizes(self) -> bool:
        """Test whether to write tensor sizes now.

        Not in layers that a backward pass recomputes, outside of windows of steps to record, and in
        workers of data loaders.
        """
        return self._is_recorded and not self._in_backward() and not _is_worker()

    def _hook_scripting(self, module: ModuleType) -> None:
        """Let TorchScript find the builtin behind a hook, as a builtin has no source to compile."""

        def make(original: Function) -> Function:
            def _find_builtin(function: Any) -> Any:
                if getattr(function, _HOOKED, False):
                    function = function.__wrapped__
                return original(function)

            return _find_builtin

        self._replace(module, "_find_builtin", make)

    def _hook_losses(self, module: ModuleType) -> None:
        def run(call: Callable[[], Any]) -> Any:
            if self._in_backward():
                return call()
            return self.thread.loss(call, has_grad=self._torch.is_grad_enabled())

        for name in [each for each in vars(module) if each.endswith("_loss") or each in _LOSSES]:
            if not name.startswith("_"):
                self._enclose(module, name, run, rests=True)

    def _hook_compiling(self) -> None:
        roles, windows = self._roles, self._windows

        def make(original: Function) -> Function:
            def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001
                roles.compiles = True
                if windows is not None:  # what it has seen would be compiled again
                    windows.rest_no_more()
                return original(*args, **kwargs)

            return compile

        self._replace(self._torch, "compile", make)

    def _outermost(self, module: Any, call: Callable[[], Any]) -> Any:
        """Run a module that no other module calls; a network's forward pass gets a range."""
        if self._is_elsewhere(module):
            return call()
        if getattr(module, "_is_replica", False):
            return self.thread.replica(call)
        return self.thread.forward(
            call,
            module,
            self._layers.of(module) if self._is_recorded else {},
            has_grad=self._torch.is_grad_enabled(),
            is_trained=lambda: self._is_trained(module),
        )

    def _is_trained(self, module: Any) -> bool:
        """Test whether an optimizer has a weight of the network, or a weight has a gradient."""
        if module in self._trained:
            return True
        groups = (group for each in self._optimizers for group in each.param_groups)
        optimized = {id(weight) for group in groups for weight in group["params"]}
        weights = list(module.parameters())
        found = any(id(each) in optimized or each.grad is not None for each in weights)
        if found:
            self._trained.add(module)
        return found or not weights

    def _is_elsewhere(self, module: Any) -> bool:
        """Test whether a module's call gets no range.

        The module is not selected, or runs in a backward pass or in a data loader's worker.
        """
        if self._networks and module not in self._networks:
            return True
        return self._in_backward() or _is_worker()

    def _in_backward(self) -> bool:
        """Test whether this thread runs a backward pass, which may recompute layers."""
        return bool(self._torch._C._current_graph_task_id() != -1)

    def _hook_autograd(self, module: ModuleType) -> None:
        def run(call: Callable[[], Any]) -> Any:
            return call() if self._in_backward() else self.thread.backward(call)

        self._enclose(module, "backward", run, rests=True)
        self._enclose(module, "grad", run, rests=True)

    def _hook_grad_mode(self, module: ModuleType) -> None:
        thread, torch = self.thread, self._torch

        def make(original: Function) -> Function:
            def __exit__(self: Any, *args: Any) -> Any:  # noqa: N807
                result = original(self, *args)
                if thread.evaluates and torch.is_grad_enabled():
                    thread.record_gradients()
                return result

            return __exit__

        for name in ("no_grad", "inference_mode", "set_grad_enabled"):
            self._replace(getattr(module, name), "__exit__", make, rests=True)
        # It is a function, too.
        self._replace(module.set_grad_enabled, "__init__", make, rests=True)

    def _hook_optimizers(self, module: ModuleType) -> None:
        hooks: Any = self
        base = module.Optimizer

        def make(original: Function) -> Function:
            def _patch_step_function(self: Any) -> None:
                original(self)
                hooks.add_optimizer(self)

            return _patch_step_function

        self._replace(base, "_patch_step_function", make)
        self._enclose(base, "zero_grad", self.thread.clear, rests=True)
        for kind in _below(base):
            if getattr(kind.step, "hooked", False):
                self.hook_step(kind)

    def add_optimizer(self, optimizer: Any) -> None:
        """Install a hook on the steps of a new optimizer.

        Its steps end iterations unless the program chose other optimizers for that.
        """
        if not self._has_own_optimizers:
            self._register(optimizer)
        self.hook_step(type(optimizer))

    def _register(self, optimizer: Any) -> None:
        self._optimizers[optimizer] = next(moments)
        if self._windows is not None:  # without it steps may be told by passes
            finalize(optimizer, self._windows.rest, removed=False).atexit = False

    def _hook_loaders(self, module: ModuleType) -> None:
        hooks: Any = self

        def make(original: Function) -> Function:
            def __next__(self: Any) -> Any:  # noqa: N807
                return hooks.fetch(lambda: original(self), id(self._dataset))

            return __next__

        def load(call: Callable[[], Any]) -> Any:
            return hooks.thread.load(call, has_grad=hooks._torch.is_grad_enabled())

        self._enclose(module.DataLoader, "__iter__", load, rests=True)  # which starts its workers
        self._replace(module._BaseDataLoaderIter, "__next__", make)

    def _hook_clipping(self, module: ModuleType) -> None:
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = functools.partial(self.thread.update, CLIP)
            self._enclose(module, name, clip, rests=True)

    def _hook_scaler(self, module: ModuleType) -> None:
        thread, scaler = self.thread, module.GradScaler

        def make(original: Function) -> Function:
            def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                made = thread.steps_made
                result = thread.scaled_step(lambda: original(self, optimizer, *args, **kwargs))
                if thread.steps_made == made:
                    thread.count_step(optimizer)
                return result

            return step

        self._replace(scaler, "step", make)
        unscale = functools.partial(thread.update, SCALER)
        self._enclose(scaler, "unscale_", unscale, rests=True)
        self._enclose(scaler, "update", thread.scaler_update)

    def _hook_collectives(self, module: ModuleType) -> None:
        for name in _COLLECTIVES:
            self._replace(module, name, self._exchanging, rests=True)

    def _exchanging(self, original: Function) -> Function:
        """Wrap a collective function: a call that may exchange gradients gets a range."""
        thread, ranges = self.thread, self._ranges

        def collective(*args: Any, **kwargs: Any) -> Any:
            if not self._in_backward() and (thread.is_inside or not thread.may_exchange):
                return original(*args, **kwargs)
            ranges.push(EXCHANGE)
            try:
                return original(*args, **kwargs)
            finally:
                ranges.pop()

        return collective

    def _hook_exchange(self, module: ModuleType) -> None:
        """Put ranges around the communication hooks that a program gives to DDP or FSDP."""

        def make(original: Function) -> Function:
            def register_comm_hook(self: Any, state: object, hook: Function) -> Any:
                return original(self, state, functools.wraps(hook)(hooks._exchanging(hook)))

            return register_comm_hook

        hooks: Any = self
        for name in ("DistributedDataParallel", "FullyShardedDataParallel"):
            if hasattr(module, name):
                self._replace(getattr(module, name), "register_comm_hook", make)


class _Replaced(NamedTuple):
    """A function that a hook replaces; `rests`: the hook is not needed to count steps."""

    owner: Any
    name: str
    original: Any
    hook: Any
    is_inherited: bool
    rests: bool

    def put_in(self) -> None:
        if getattr(self.owner, self.name) is self.original:
            setattr(self.owner, self.name, self.hook)

    def take_out(self) -> None:
        """Restore the original function, unless other code has replaced the hook since."""
        if getattr(self.owner, self.name) is not self.hook:
            return
        if self.is_inherited:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


def _seen_through(original: Function, instead: Function, is_compiling: Function) -> Any:
    """Return a hook that calls `instead`, but that compilers treat as the `original`.

    `torch.compile` identifies functions by their code object, so each replacement has its own, and
    `torch.jit.script` reads the source of the original with the globals of this module.
    """

    def hook(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        return instead(*args, **kwargs)

    code = hook.__code__.replace(co_name=getattr(original, "__name__", "hook"))
    known = getattr(original, "__globals__", globals())
    function = FunctionType(code, known, code.co_name, None, hook.__closure__)
    return functools.wraps(original)(function)


def _is_worker() -> bool:
    """Test whether this process is a data loader's worker."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _below(base: Any) -> Iterator[Any]:
    """Yield all subclasses of a class, direct or not."""
    for each in base.__subclasses__():
        yield each
        yield from _below(each)


_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Names of the attributes in which wrapper modules keep the wrapped one."""
_CONTAINERS = frozenset({"ModuleList", "ModuleDict"})
"""Modules that are never called, and so are not a level of their own."""


class Layers:
    """Names of the layers of networks, down to a depth; each network is examined once.

    Parameters
    ----------
    depth
        Number of levels: 1 for the network's children, 2 for their children too; 0 for none.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._known: WeakKeyDictionary[Any, Mapping[int, str]] = WeakKeyDictionary()

    def of(self, network: Any) -> Mapping[int, str]:
        """Return the range names of a network's layers: id of the module -> name."""
        if self._depth == 0:
            return {}
        known = self._known.get(network)
        if known is None:
            found = _layers(network, "", 0, self._depth)
            known = self._known[network] = {
                id(layer): f"layer {name} ({type(layer).__name__})" for name, layer in found
            }
        return known


def _layers(module: Any, prefix: str, level: int, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the layers inside a module, down to `depth`, with their names below `prefix`.

    The module is at depth `level`. Wrapper modules and containers are no level of their own, and
    wrappers add no name.
    """
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if name in _WRAPPERS:
            yield from _layers(child, prefix, level, depth)
        elif type(child).__name__ in _CONTAINERS:
            yield from _layers(child, path, level, depth)
        else:
            yield path, child
            if level + 1 < depth:
                yield from _layers(child, path, level + 1, depth)
