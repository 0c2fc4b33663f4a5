"""Pipeline parallelism: each device has some of the layers, and micro-batches pass through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads._data import find_network
from workloads._devices import choose_devices
from workloads._errors import OptionError
from workloads._options import BatchScope, Options, Precision
from workloads._passes import Passes, build_network, make_ready
from workloads.methods._cutting import cut, survey
from workloads.methods._method import Exchanged, Launch, Method, Part, Setup
from workloads.methods._schedules import Pass, order
from workloads.methods.process_group import connect
from workloads.networks import blocks


class Pipeline(Method):
    """A stage per process: consecutive blocks of the network, on a device of their own.

    The network is cut such that the forward passes of stages have about as many operations.
    Activations are sent between stages and, on the way back, their gradients. A step's gradient is
    the mean over its micro-batches, so it equals that on one device except for layers that look at
    a batch as a whole (batch normalisation) or draw random numbers (dropout). Auxiliary classifiers
    are left out.

    Parameters
    ----------
    setup
        Everything that the method is made from.
    device
        The device of this process.
    """

    launch = Launch.SPAWN
    parts = 1
    own = range(1)

    def __init__(self, setup: Setup, device: torch.device) -> None:
        options, self._rank, size = setup.options, setup.world.rank, setup.world.size
        self._is_first, self._is_last = self._rank == 0, self._rank == size - 1
        self.devices = (device,)
        self.exchanged = Exchanged()
        self._notes = setup.notes
        self._passes = Passes(options, setup.network, device.type)
        network = build_network(options, setup.network)
        known = survey(network, setup.network.input)
        own = cut([block.operations for block in known], size)[self._rank]
        self._input = known[own.start - 1].output
        stage = [block for _, block in blocks(network)[own.start : own.stop]]
        self._stage = nn.Sequential(*stage).to(device)
        make_ready(network, options, self._notes, part=self._stage)
        self._optimizer = self._passes.optimizer(self._stage.parameters())
        self._micro_batches = options.micro_batches
        self._order = order(options.schedule, self._rank, size, options.micro_batches)
        self._number = torch.bfloat16 if options.precision is Precision.BF16 else torch.float32
        # Each direction has its own group: within one, what two neighbours send each other might
        # wait for its turn, and so both for each other.
        down, up = dist.new_group(), dist.new_group()
        self._previous = Neighbour(self._rank - 1, receives=down, sends=up)
        self._next = Neighbour(self._rank + 1, receives=up, sends=down)
        self._flights: dict[int, Flight] = {}

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error unless several devices are requested, and exist."""
        if options.gpus == 1:
            raise OptionError("a pipeline needs a device per stage, two at least", "give --gpus 2")
        if options.precision is Precision.AMP:
            raise OptionError(
                "--precision amp scales the loss by whether gradients overflow, which stages of a "
                "pipeline do not tell each other",
                "give --precision bf16 or fp32",
            )
        network = find_network(options.network)
        with torch.device("meta"):
            known = survey(network.build(), network.input)
        cut([block.operations for block in known], options.gpus)
        batch = options.batch * (options.gpus if options.batch_scope is BatchScope.GPU else 1)
        check_micro_batches(batch, options.micro_batches)
        choose_devices(options.device, local)

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Connect to the other processes, and build the stage."""
        local = setup.world.local_rank
        device = choose_devices(setup.options.device, local + 1)[local]
        if device.type == "cuda":
            torch.cuda.set_device(device)
        connect(setup.world, "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", device)
        return cls(setup, device)

    def load(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Copy inputs to the device of the first stage, and labels to that of the last stage."""
        ((inputs, labels),) = parts
        device = self.devices[0]
        return [
            Part(
                inputs.to(device, non_blocking=True) if self._is_first else inputs,
                labels.to(device, non_blocking=True) if self._is_last else labels,
            )
        ]

    def step(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Run the passes of the micro-batches in the schedule's order, then update the stage."""
        (part,) = parts
        pieces = micro_batches(part, self._micro_batches)
        losses = []
        for which, number in self._order:
            if which is Pass.FORWARD:
                with self._notes.range(f"FP micro-batch {number}"):
                    flight = self._forward(pieces[number], len(part.labels))
                self._flights[number] = flight
                if self._is_last:
                    losses.append(flight.outputs.detach())
            else:
                with self._notes.process_range(f"BP micro-batch {number}"):
                    self._backward(self._flights.pop(number))
        self._settle()
        with self._notes.range("WU"), self._notes.range("optimizer"):
            self._passes.update(self._optimizer)
        return [torch.stack(losses).sum()] if self._is_last else []

    def evaluate(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Evaluate the network on the whole batch at once."""
        (part,) = parts
        inputs = self._inputs(part)
        if self._is_last:
            return [self._passes.evaluate(self._stage, Part(inputs, part.labels))]
        self._stage.eval()
        with torch.no_grad():
            self._hand_on(self._compute(inputs))
        self._stage.train()
        self._settle()
        return []

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of the values over all processes, computed on the CPU."""
        summed = values.cpu()
        dist.all_reduce(summed)
        return summed

    def close(self) -> None:
        """Leave the job."""
        dist.destroy_process_group()

    def _forward(self, piece: Part, batch: int) -> Flight:
        """Run the forward pass of a micro-batch; its loss is weighted by its share of the batch."""
        inputs = self._inputs(piece)
        if self._is_last:
            loss = self._passes.loss(self._stage, Part(inputs, piece.labels))
            return Flight(inputs, loss * (len(piece.labels) / batch))
        outputs = self._compute(inputs)
        self.exchanged.activations += self._hand_on(outputs)
        return Flight(inputs, outputs)

    def _backward(self, flight: Flight) -> None:
        """Run the backward pass of a micro-batch."""
        gradient = None
        if not self._is_last:
            gradient = torch.empty_like(flight.outputs)
            with self._notes.range("receive activation gradient"):
                self._next.receive(gradient)
        torch.autograd.backward(flight.outputs, gradient)
        if flight.inputs.grad is not None:
            with self._notes.range("send activation gradient"):
                self.exchanged.activations += self._previous.send(flight.inputs.grad)

    def _inputs(self, piece: Part) -> Tensor:
        """Return the inputs of the stage: those of the network, or outputs of the stage before."""
        if self._is_first:
            return piece.inputs
        shape = (len(piece.labels), *self._input)
        inputs = torch.empty(shape, dtype=self._number, device=self.devices[0])
        with self._notes.range("receive activation"):
            self._previous.receive(inputs)
        return inputs.requires_grad_()

    def _compute(self, inputs: Tensor) -> Tensor:
        """Return the stage's outputs."""
        lower = self._number is not torch.float32
        with torch.autocast(self.devices[0].type, self._number, enabled=lower):
            outputs: Tensor = self._stage(inputs)
        return outputs.to(self._number)

    def _hand_on(self, outputs: Tensor) -> int:
        with self._notes.range("send activation"):
            return self._next.send(outputs.detach())

    def _settle(self) -> None:
        """Wait until the stages before and after have received all that was sent to them."""
        self._previous.settle()
        self._next.settle()


class Flight(NamedTuple):
    """Inputs and outputs of a stage for a micro-batch between its forward and backward pass."""

    inputs: Tensor
    outputs: Tensor


class Neighbour:
    """Connection to the process with the pipeline stage before or after this one.

    Parameters
    ----------
    rank
        Rank of the process.
    receives, sends
        Process groups for receiving from it, and for sending to it.
    """

    def __init__(self, rank: int, receives: dist.ProcessGroup, sends: dist.ProcessGroup) -> None:
        self._rank, self._receives, self._sends = rank, receives, sends
        self._sending: tuple[dist.Work, Tensor] | None = None

    def send(self, tensor: Tensor) -> int:
        """Start sending a tensor, once the one before has been sent; return its bytes."""
        self.settle()
        whole = tensor.contiguous()
        work = dist.isend(whole, self._rank, group=self._sends)
        self._sending = None if work is None else (work, whole)
        return whole.nbytes

    def receive(self, tensor: Tensor) -> None:
        """Wait for a tensor, and write it into `tensor`."""
        dist.recv(tensor, self._rank, group=self._receives)

    def settle(self) -> None:
        """Wait until all that was sent has been received."""
        if self._sending:
            self._sending[0].wait()
            self._sending = None


def micro_batches(part: Part, count: int) -> list[Part]:
    """Split a batch into micro-batches whose sizes differ by at most one."""
    pieces = zip(part.inputs.tensor_split(count), part.labels.tensor_split(count), strict=True)
    return [Part(*piece) for piece in pieces]


def check_micro_batches(batch: int, count: int) -> None:
    """Raise an error if a batch has fewer samples than micro-batches.

    Raises
    ------
    OptionError
        If the batch has fewer samples.
    """
    if batch < count:
        raise OptionError(
            f"a batch of {batch} does not make {count} micro-batches",
            "give a larger --batch, or fewer --micro-batches",
        )
