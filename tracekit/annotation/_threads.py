"""What each thread of a training program is doing (stage, evaluation), as PyTorch's hooks show."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

from ._spans import Ranges, Spans
from ._step_hooks import Steps
from ._step_windows import Windows

FORWARD, LOSS, BACKWARD = "FP", "FP loss", "BP"
STEP, CLEAR, CLIP = "WU step", "WU zero_grad", "WU clip_grad"
SCALER, EXCHANGE = "WU grad_scaler", "WU gradient exchange"
EVALUATION, INPUT = "ME", "IO"

Call = Callable[[], Any]


class Roles:
    """What each data set (by `id`) is used for: true for training, false for evaluation only.

    Both kinds of data sets may be read while gradients are enabled.
    """

    def __init__(self) -> None:
        self._trains: dict[int, bool] = {}
        self.trained_in_evaluation: WeakSet[Any] = WeakSet()
        """Networks with backward passes while they were in `eval()`."""
        self.compiles = False
        """Whether parts of the program are compiled, inside which no hooks are called."""

    def learn(self, data: int | None, *, trains: bool) -> None:
        """Remember whether a data set is used for training; once it is, it stays so."""
        if data is not None and not self._trains.get(data, False):
            self._trains[data] = trains

    def of(self, data: int | None) -> bool | None:
        """Return whether a data set is used for training; None if not known."""
        return None if data is None else self._trains.get(data)


class Thread(threading.local):
    """What the calling thread does in training (forward and backward passes, steps, evaluation).

    Most methods run the function they are given, inside the ranges that apply to it. State is
    thread-local.

    Parameters
    ----------
    ranges
        Writer of the ranges.
    optimizers
        Optimizers that exist now, each with an ordinal in order of creation.
    roles
        What each data set is used for.
    windows
        Windows of steps to record; None records all.
    """

    def __init__(
        self, ranges: Ranges, optimizers: Mapping[Any, int], roles: Roles,
        windows: Windows | None = None,
    ) -> None:  # fmt: skip
        self._spans = Spans(ranges)
        self._steps = Steps(ranges, optimizers, windows)
        self._optimizers = optimizers
        self._roles = roles
        self.is_inside = False
        """Whether calls belong to the open span, and are not annotated."""
        self.steps_made = 0
        """Number of optimizer steps so far."""
        self.layers: Mapping[int, str] = {}
        """Modules that get ranges inside the open pass: id -> name."""
        self.open_layers: tuple[str, ...] = ()
        """Names of those of these modules that are running, outermost first."""
        self._data: int | None = None
        self._has_trained = False
        self._awaits_backward = False
        self._in_step = False
        self._is_scaled = False
        self._evaluated: Any = None
        """Network being evaluated while gradients are enabled."""

    @property
    def evaluates(self) -> bool:
        """True while the thread is in metric evaluation."""
        return self._spans.last == EVALUATION

    @property
    def may_exchange(self) -> bool:
        """True while there are gradients that no optimizer has used, for ranks to exchange."""
        return self._steps.has_passes and self._has_trained and not self._awaits_backward

    def forward(
        self,
        call: Call,
        network: Any,
        layers: Mapping[int, str],
        *,
        has_grad: bool,
        is_trained: Callable[[], bool],
    ) -> Any:
        """Run the forward pass of a whole network, in a range of training or of evaluation.

        `is_trained` tells whether the network is trained (see `_is_evaluation`); `layers` has names
        of layers by id.
        """
        if self._is_evaluation(network, has_grad=has_grad, is_trained=is_trained):
            self._begin_evaluation()
            self._evaluated = network if has_grad else None
            return self._run(call, self._spans.depth)
        self._resume()
        if has_grad and self._trains:
            self._steps.take_forward()
            self._roles.learn(self._data, trains=True)
        depth = self._spans.depth
        self._spans.enter(FORWARD)
        self.layers = layers
        result = self._run(call, depth)
        if has_grad and (network.training or self._has_trained):
            self._awaits_backward = True
        return result

    def loss(self, call: Call, *, has_grad: bool) -> Any:
        """Run the loss function, in a range of its own if gradients are enabled (`has_grad`).

        In an evaluation, the loss gets no range.
        """
        if self.evaluates or not has_grad:
            return call()
        return self._within(LOSS, call)

    def replica(self, call: Call) -> Any:
        """Run the forward pass of one replica (`DataParallel`), on a thread of its own."""
        return self._within(FORWARD, call)

    def backward(self, call: Call) -> Any:
        """Run a backward pass in a range that applies to all threads: several take part."""
        if self._evaluated is not None:  # it was none
            self._roles.trained_in_evaluation.add(self._evaluated)
        self._resume()
        self._has_trained = True
        self._awaits_backward = False
        self._steps.take_backward()
        depth = self._spans.depth
        self._spans.enter_process(BACKWARD)
        return self._run(call, depth)

    def step(self, optimizer: object, call: Call) -> Any:
        """Run an optimizer's step in a range; passes that the optimizer runs interrupt it."""
        if self._in_step:
            return call()
        if self._steps.are_counted and not self._is_scaled:
            self._in_step = True
            try:
                return call()
            finally:
                self._in_step = False
                self._steps.count()
        self._resume()
        self._steps.take_pass()
        depth = self._spans.depth
        self._spans.enter(STEP, yields=True)
        self._in_step = True
        try:
            return call()
        finally:
            self._in_step = False
            self._spans.leave(depth)
            self.count_step(optimizer)

    def count_step(self, optimizer: object) -> None:
        """Count an optimizer's step, even one that a gradient scaler skipped."""
        self.steps_made += 1
        self._awaits_backward = False
        self._steps.take_pass()
        self._steps.take_step(optimizer)
        if not self._is_scaled:
            self._steps.close()

    def scaled_step(self, call: Call) -> Any:
        """Run an optimizer's step through a gradient scaler, in a range.

        The iteration ends only with the scaler's update, which follows after all optimizers.
        """
        self._is_scaled = True
        return self.update(SCALER, call)

    def scaler_update(self, call: Call) -> Any:
        """Run the update of a gradient scaler, in a range; it may end the iteration."""
        self._is_scaled = False
        try:
            return self.update(SCALER, call)
        finally:
            self._steps.close()

    def clear(self, call: Call) -> Any:
        """Run the clearing of gradients (``zero_grad``), in a range; it may end an iteration."""
        if not self._in_step:
            self._steps.take_clear(compiles=self._roles.compiles)
        return self.update(CLEAR, call)

    def update(self, name: str, call: Call) -> Any:
        """Run a part of the weight update, such as clearing gradients, in a range `name`."""
        if name != CLEAR:  # gradients are cleared before the loss is computed, too
            self._resume()
        depth = self._spans.depth
        self._spans.enter(name, yields=name == SCALER)
        try:
            return call()
        finally:
            self._spans.leave(depth)

    def fetch(self, call: Call, data: int | None, *, has_grad: bool) -> Any:
        """Fetch a batch from a data set, which may begin an iteration."""
        begins = has_grad and self._roles.of(data) is not False
        self._data = data if has_grad else None
        if begins:
            self._resume()
            self._awaits_backward = False
            self._steps.take_input()
        try:
            return self.load(call, has_grad=has_grad)
        except StopIteration:
            self._steps.set_apart()
            raise

    def load(self, call: Call, *, has_grad: bool) -> Any:
        """Fetch input in a range of the stage IO, or inside the range of an evaluation (ME).

        Fetching without gradients begins an evaluation, if the program has trained before.
        """
        if not has_grad and self._trains:
            self._begin_evaluation()
        if self.evaluates:
            return self._run(call, self._spans.depth)
        return self._within(INPUT, call)

    def record_gradients(self) -> None:
        """End an evaluation that ran without gradients, since they are enabled again."""
        if self._evaluated is None and not self.is_inside:
            self._resume()

    def train(self) -> None:
        """End an evaluation that ran with gradients, since a network is put in `train()`."""
        if self._evaluated is not None and not self.is_inside:
            self._resume()

    def finish(self) -> None:
        """End the open iteration when the program ends."""
        self._steps.finish()

    def _is_evaluation(
        self, network: Any, *, has_grad: bool, is_trained: Callable[[], bool]
    ) -> bool:
        """Test whether a forward pass is metric evaluation.

        It is if gradients are off, or if the network is in `eval()` and has been trained. A pass of
        a network that is not trained is part of the step, such as of a target or teacher network.
        """
        if not self._trains or self._is_within_training():
            return False
        if not has_grad:
            return self.evaluates or is_trained()
        learned = self._roles.trained_in_evaluation
        return (
            self._has_trained and not network.training and network not in learned and is_trained()
        )

    def _is_within_training(self) -> bool:
        """Test whether a pass without gradients is part of a step, such as a teacher network's.

        It is if it runs between a forward and its backward pass, or after a training batch was
        fetched.
        """
        is_fetched = self._steps.has_input_alone and self._roles.of(self._data) is True
        return self._awaits_backward or is_fetched

    @property
    def _trains(self) -> bool:
        """True if the program trains: it ran a backward pass, or has an optimizer."""
        return self._has_trained or bool(self._optimizers)

    def _begin_evaluation(self) -> None:
        """Begin metric evaluation, which lasts until training goes on."""
        if not self.evaluates:
            self._steps.set_apart()
            self._roles.learn(self._data, trains=False)
            self._spans.enter(EVALUATION)

    def _within(self, name: str, call: Call) -> Any:
        depth = self._spans.depth
        self._spans.enter(name)
        return self._run(call, depth)

    def _run(self, call: Call, depth: int) -> Any:
        """Run a function, then close stages until `depth` are open."""
        self.is_inside = True
        try:
            return call()
        finally:
            self.is_inside = False
            self.layers = {}
            self._spans.leave(depth)

    def _resume(self) -> None:
        """End metric evaluation, since the training loop goes on."""
        self._evaluated = None
        if self.evaluates:
            self._spans.leave(self._spans.depth - 1)
