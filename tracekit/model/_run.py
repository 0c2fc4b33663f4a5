"""Interface of a run that analyses use."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tracekit.model._trace import Trace


class Run(Protocol):
    """Interface of a run that analyses use, implemented by `tracekit.Run`."""

    @property
    def id(self) -> str:
        """Id of the run."""

    @property
    def name(self) -> str:
        """Name of the run."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the run: label -> value."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about the run."""

    @property
    def trace(self) -> "Trace":
        """Tables of the run."""
