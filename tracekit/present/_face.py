"""How an answer looks: as HTML in a notebook, and in its drawings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tracekit.model import Answer


class _Face:
    """Implementation of `tracekit.model.Face`; drawing code is loaded on first use."""

    def html(self, answer: Answer) -> str:
        """Return the answer as a table with its notes."""
        from tracekit.present._kernel_names import with_readable_names
        from tracekit.present._notebook import html

        return html(with_readable_names(answer.for_people), answer.meta, answer.title)

    def draw(self, answer: Answer, drawing: str) -> go.Figure:
        """Return one of the drawings of the answer."""
        from tracekit.present._drawings import DRAWINGS

        return DRAWINGS[drawing](answer)


FACE = _Face()
"""The one that answers get where they are looked at."""
