"""Results of a training run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads._errors import MissingError


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of the network after a step.

    `step` is the number of measured steps before it; `accuracy` is the share of correct answers.
    """

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Summary:
    """Results of a training run, of all processes together.

    Parameters
    ----------
    labels
        Labels of the run, such as network, batch, gpus, method and versions: name -> value.
    losses
        Mean loss over the global batch for each step, warm-up steps first.
    warm_up
        Number of warm-up steps.
    seconds
        Duration of the measured steps, without evaluations.
    images_per_s
        Samples per step divided by the mean step time; None if nothing was measured.
    epoch_steps
        Number of steps per epoch; None if its images are not known.
    parameter_bytes
        Bytes of all parameters (S).
    evidence
        Meaning of the next three: ``copied`` bytes, or ``message`` bytes passed to collectives.
    gather_bytes, scatter_bytes, activation_bytes
        Bytes of gradients, of weights, and of activations and their gradients, per measured step.
    evaluations
        Results of evaluations, in order.
    """

    labels: Mapping[str, str]
    losses: Sequence[float]
    warm_up: int
    seconds: float
    images_per_s: float | None
    epoch_steps: int | None
    parameter_bytes: int
    evidence: str
    gather_bytes: float
    scatter_bytes: float
    activation_bytes: float
    evaluations: Sequence[Evaluation]

    def write(self, file: Path) -> None:
        """Write the whole summary as JSON."""
        file.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def as_text(self) -> str:
        """Return the main results as text, one per line."""
        measured = self.losses[self.warm_up :]
        rows: dict[str, Any] = {
            key: self.labels[key] for key in ("network", "method", "gpus", "batch", "device")
        }
        rows["parameters"] = f"{self.labels['parameters']} ({self.parameter_bytes} bytes)"
        if measured:
            rows["steps"] = f"{len(measured)} in {self.seconds:.3f} s"
            rows["step"] = f"{1e3 * self.seconds / len(measured):.3f} ms"
            rows["loss"] = f"{measured[0]:.6f} first, {measured[-1]:.6f} last"
        if self.images_per_s is not None:
            rows["images/s"] = f"{self.images_per_s:.1f}"
        rows["exchanged"] = self._exchanged()
        for each in self.evaluations[-1:]:
            rows["accuracy"] = f"{each.accuracy:.4f} after {each.step} steps"
        width = max(map(len, rows))
        return "\n".join(f"{key:<{width}}  {value}" for key, value in rows.items())

    def _exchanged(self) -> str:
        moved = {
            "gradients": self.gather_bytes,
            "weights": self.scatter_bytes,
            "activations": self.activation_bytes,
        }
        told = [f"{round(count)} of {what}" for what, count in moved.items() if count]
        if not told:
            return "nothing"
        return f"bytes per step, {self.evidence}: {', '.join(told)}"


def check_place(file: Path) -> None:
    """Raise an error before training if the summary file cannot be written.

    Raises
    ------
    MissingError
        If the file cannot be written.
    """
    place = file if file.exists() else file.parent
    if file.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise MissingError(
            f"the summary cannot be written to {file}", "name a file in a folder that is there"
        )
