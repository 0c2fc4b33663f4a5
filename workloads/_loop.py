"""The training loop, which every process of a job runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from workloads._annotate import Annotations, make_annotations
from workloads._data import Data, Share, Synthetic, check_images, find_network
from workloads._epochs import Plan, plan
from workloads._errors import MissingError
from workloads._labels import run_labels
from workloads._options import Options
from workloads._stored import Shards, Stored
from workloads._summary import Evaluation, Summary
from workloads._tell import tell
from workloads.methods import find_method
from workloads.methods._method import Method, Setup, World
from workloads.networks import Network

MEASURED = "measured"
"""Name of the range around the measured steps, for ``nsys profile --capture-range=nvtx``."""

_FLOAT_BYTES = 4
_REPORTS = 10
"""Largest number of progress messages in a run."""
_NOBODY = torch.zeros(1, dtype=torch.int64)
"""Tensor that processes add up to wait for each other."""


def train(options: Options, world: World) -> Summary:
    """Train, as one process of a job.

    Returns
    -------
    Summary of all processes together, the same in each of them.

    Raises
    ------
    WorkloadError
        If this host cannot fulfil the options.
    """
    network = find_network(options.network, options.image_size, auxiliary=options.auxiliary)
    notes = make_annotations(wanted=options.nvtx, layers=options.layers)
    shards = None if options.data is None else Shards(options.data, network)
    if shards is not None:
        network = shards.network
    much = plan(options, None if shards is None else shards.count)
    check_images(network, much.batch // options.gpus)
    try:
        with find_method(options.method).open(Setup(options, network, world, notes)) as method:
            data = _open_data(shards, network, method, much, options.seed)
            return Loop(options, much, network, method, data, notes, world).run()
    except torch.OutOfMemoryError as error:
        raise MissingError(
            f"the memory of a GPU does not hold {options.network} and a batch of {options.batch}",
            "give a smaller --batch",
        ) from error


class Loop:
    """Runs the training steps of a run in one process of the job.

    Parameters
    ----------
    options, much, network
        Options of the run, how much it trains, and the network.
    method, data
        Method of training, and the data.
    notes
        Writer of annotations.
    world
        The processes of the job; rank 0 reports progress to the user.
    """

    def __init__(
        self,
        options: Options,
        much: Plan,
        network: Network,
        method: Method,
        data: Data,
        notes: Annotations,
        world: World,
    ) -> None:
        self._options, self._much, self._network = options, much, network
        self._method, self._data = method, data
        self._notes, self._world = notes, world
        self._losses: list[float] = []
        self._evaluations: list[Evaluation] = []

    def run(self) -> Summary:
        """Train, and return the summary of all processes."""
        labels = run_labels(self._options, self._much, self._network, self._method)
        warm_up, steps = self._options.warm_up, self._much.steps
        if warm_up:
            self._run_steps(range(warm_up))
        before = self._exchanged()
        with _captured(self._notes, self._method, wanted=self._options.capture_range):
            self._notes.rank(self._world.rank, self._world.size)
            self._notes.labels(labels)
            seconds = self._measure()
        gather, scatter, activations = ((self._exchanged() - before) / max(1, steps)).tolist()
        return Summary(
            labels=labels,
            losses=self._losses,
            warm_up=warm_up,
            seconds=seconds,
            images_per_s=self._much.batch * steps / seconds if steps else None,
            epoch_steps=self._much.epoch_steps,
            parameter_bytes=_FLOAT_BYTES * self._network.parameters,
            evidence=self._method.exchanged.evidence,
            gather_bytes=gather,
            scatter_bytes=scatter,
            activation_bytes=activations,
            evaluations=self._evaluations,
        )

    def _measure(self) -> float:
        """Run the measured steps, and return their duration in seconds."""
        seconds = 0.0
        done, warm_up = 0, self._options.warm_up
        every = self._options.evaluate_every
        for stop in pauses(self._much.steps, every):
            seconds += self._run_steps(range(warm_up + done, warm_up + stop))
            self._say(f"step {stop} of {self._much.steps}: loss {self._losses[-1]:.6f}")
            if every and stop % every == 0:
                self._evaluate(stop)
            done = stop
        return seconds

    def _run_steps(self, numbers: range) -> float:
        """Run the steps `numbers`, wait for the devices, and return the duration in seconds."""
        shares = []
        self._wait()
        begun = time.perf_counter()
        for number in numbers:
            shares.append(self._step(number))
            self._tell(number, numbers.stop)
        self._wait()
        seconds = time.perf_counter() - begun
        self._losses += self._totals(shares).tolist()
        return seconds

    def _tell(self, number: int, stop: int) -> None:
        """Print progress from time to time, without the loss.

        The host would have to wait for the devices to know it.
        """
        done, steps = number + 1 - self._options.warm_up, self._much.steps
        if done > 0 and done % -(-steps // _REPORTS) == 0 and number + 1 < stop:
            self._say(f"step {done} of {steps}")

    def _step(self, number: int) -> Sequence[Tensor]:
        measured = number - self._options.warm_up
        name = f"iteration {measured}" if measured >= 0 else f"warm-up {number}"
        with self._notes.range(name):
            with self._notes.range("IO"):
                parts = self._method.load(self._data.step(number))
            return self._method.step(parts)

    def _evaluate(self, step: int) -> None:
        with self._notes.range("ME"):
            shares = self._method.evaluate(self._method.load(self._data.evaluation()))
            self._wait()
        totals = [self._totals([[share[which] for share in shares]]) for which in (0, 1)]
        loss, accuracy = (float(total) for total in totals)
        self._evaluations.append(Evaluation(step, loss, accuracy))
        self._say(f"after step {step}: loss {loss:.6f}, accuracy {accuracy:.4f}")

    def _totals(self, shares: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return means over the parts of all processes, one per column of values."""
        own = [sum(float(part) for part in parts) for parts in shares]
        return self._method.total(torch.tensor(own, dtype=torch.float64)) / self._method.parts

    def _exchanged(self) -> Tensor:
        """Return the bytes that all processes have exchanged: gradients, weights, activations."""
        now = self._method.exchanged
        counts = torch.tensor([now.gather, now.scatter, now.activations], dtype=torch.int64)
        return self._method.total(counts)

    def _say(self, text: str) -> None:
        if self._world.rank == 0:
            tell(text)

    def _wait(self) -> None:
        for device in self._method.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)


def pauses(steps: int, evaluate_every: int | None) -> list[int]:
    """Return the numbers of steps after which a run pauses: for evaluations, and at its end."""
    evaluated = range(evaluate_every, steps, evaluate_every) if evaluate_every else ()
    return sorted({*evaluated, steps} - {0})


@contextmanager
def _captured(notes: Annotations, method: Method, *, wanted: bool) -> Iterator[None]:
    """Tell a profiler that waits for it when to start and when to stop recording.

    A profiler of several processes starts and stops with the first one that tells it: so all
    processes wait for each other before the start and before the stop.
    """
    if not wanted:
        yield
        return
    has_gpu = method.devices[0].type == "cuda"
    method.total(_NOBODY)
    if has_gpu:
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    with notes.process_range(MEASURED):
        method.total(_NOBODY)
        yield
        method.total(_NOBODY)
    if has_gpu:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _open_data(
    shards: Shards | None, network: Network, method: Method, much: Plan, seed: int
) -> Data:
    pin = method.devices[0].type == "cuda"
    share = Share(much.batch, method.parts, method.own, pin=pin)
    if shards is None:
        return Synthetic(network, share, seed)
    return Stored(shards, share, seed)
