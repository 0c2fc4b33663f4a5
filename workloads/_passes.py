"""Computation that all methods share: loss, gradients, and update of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workloads._annotate import Annotations
from workloads._errors import OptionError
from workloads._options import Options, Precision
from workloads.methods._method import Part
from workloads.networks import Network

_NUMBERS = {Precision.AMP: torch.float16, Precision.BF16: torch.bfloat16}
_HAS_TF32 = (8, 0)
"""Least compute capability of GPUs with TF32 (Ampere)."""


def build_network(options: Options, network: Network) -> nn.Module:
    """Return the network, with initial weights that depend on the seed only."""
    torch.manual_seed(options.seed)
    return network.build()


def make_ready(
    module: nn.Module, options: Options, notes: Annotations, *, part: nn.Module | None = None
) -> None:
    """Put ranges around a network's layers, or compile it (compiled code has no layers).

    Parameters
    ----------
    module
        The network, which names the layers.
    options
        Options of the run.
    notes
        Writer of annotations.
    part
        Part of the network that this process calls; None for the whole network.
    """
    if options.compile is None:
        notes.layers(module)
    else:
        (part or module).compile(backend=options.compile)


class Passes:
    """Forward pass, backward pass and update, in the requested precision.

    Parameters
    ----------
    options
        Options of the run.
    network
        The network, which has the weights of auxiliary losses.
    kind
        Type of the devices, ``cpu`` or ``cuda``.

    Raises
    ------
    OptionError
        If these devices do not support the precision.
    """

    def __init__(self, options: Options, network: Network, kind: str) -> None:
        if options.precision is Precision.AMP and kind != "cuda":
            raise OptionError(
                "--precision amp computes in numbers of 16 bits whose gradients are scaled, which "
                "is for GPUs",
                "give --precision bf16 on the CPU",
            )
        _multiply(options.precision, kind)
        torch.backends.cudnn.benchmark = options.cudnn_benchmark
        self._options = options
        self._weights = network.auxiliary
        self._kind = kind
        self._scaler = torch.amp.GradScaler(kind, enabled=options.precision is Precision.AMP)

    def loss(self, module: nn.Module, part: Part) -> Tensor:
        """Return the mean loss of a part of the batch, auxiliary losses included."""
        with self._autocast():
            return total_loss(module(part.inputs), part.labels, self._weights)

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Add the gradients of losses to those of the parameters, on all devices at once."""
        torch.autograd.backward([self._scaler.scale(loss) for loss in losses])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer: stochastic gradient descent with momentum."""
        rate, momentum = self._options.learning_rate, self._options.momentum
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Update parameters by their gradients, and clear these."""
        self._scaler.step(optimizer)
        self._scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def evaluate(self, module: nn.Module, part: Part) -> Tensor:
        """Return mean loss and share of correct answers for a part of a batch; shape (2,)."""
        module.eval()
        with torch.no_grad(), self._autocast():
            logits = module(part.inputs)
            loss = total_loss(logits, part.labels, ())
            right = (logits.argmax(-1) == part.labels).float().mean()
        module.train()
        return torch.stack([loss.float(), right])

    def _autocast(self) -> torch.amp.autocast:
        numbers = _NUMBERS.get(self._options.precision)
        return torch.autocast(self._kind, numbers, enabled=numbers is not None)


def _multiply(precision: Precision, kind: str) -> None:
    """Set how 32-bit matrices are multiplied, with TF32 or in full precision.

    PyTorch's default mixes the two.
    """
    is_tf32 = precision is Precision.TF32
    if is_tf32 and (kind != "cuda" or torch.cuda.get_device_capability() < _HAS_TF32):
        raise OptionError(
            "--precision tf32 is for GPUs of Ampere's generation and later", "give --precision fp32"
        )
    torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = is_tf32


def total_loss(
    outputs: Tensor | Sequence[Tensor], labels: Tensor, weights: Sequence[float]
) -> Tensor:
    """Return the cross entropy of logits, plus that of auxiliary logits times their weights.

    Parameters
    ----------
    outputs
        Logits of shape (batch, ..., classes); or a sequence of these and the auxiliary logits.
    labels
        Classes of shape (batch, ...).
    weights
        Weight of each auxiliary classifier.
    """
    if isinstance(outputs, Tensor):
        return cross_entropy(outputs.flatten(0, -2), labels.flatten())
    main, *auxiliary = outputs
    loss = total_loss(main, labels, ())
    for weight, logits in zip(weights, auxiliary, strict=True):
        loss = loss + weight * total_loss(logits, labels, ())
    return loss
