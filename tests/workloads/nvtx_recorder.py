"""A stand-in for the package nvtx that keeps what is annotated, on a clock that counts events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

TICK = 100
"""What the clock advances by at each event, which leaves room for launches in between."""


@dataclass(eq=False)
class Span:
    """A range; `style` is that of the canonical table."""

    name: str
    style: str
    start: int
    end: int = -1


@dataclass
class Recorder:
    """Has the functions of ``nvtx`` that the workloads call."""

    spans: list[Span] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    domains: set[str] = field(default_factory=set)
    now: int = 0
    _stack: list[Span] = field(default_factory=list)

    @contextmanager
    def annotate(self, name: str, *, domain: str) -> Iterator[None]:
        """Record a push/pop range."""
        self.push_range(name, domain=domain)
        try:
            yield
        finally:
            self.pop_range(domain=domain)

    def push_range(self, name: str, *, domain: str) -> None:
        """Open a push/pop range."""
        self._stack.append(self._open(name, "push_pop", domain))

    def pop_range(self, *, domain: str) -> None:
        """Close the push/pop range that was opened last."""
        self.domains.add(domain)
        self._close(self._stack.pop())

    def start_range(self, name: str, *, domain: str) -> Span:
        """Open a start/end range."""
        return self._open(name, "start_end", domain)

    def end_range(self, opened: Span) -> None:
        """Close a start/end range."""
        self._close(opened)

    def mark(self, name: str, *, domain: str) -> None:
        """Record a mark."""
        self.domains.add(domain)
        self.marks.append(name)

    def named(self, name: str) -> list[Span]:
        """Return the ranges of a name."""
        return [span for span in self.spans if span.name == name]

    def within(self, outer: Span) -> list[str]:
        """Return the names of the ranges within another, in order."""
        return [
            span.name
            for span in self.spans
            if span is not outer and outer.start < span.start and span.end < outer.end
        ]

    def _open(self, name: str, style: str, domain: str) -> Span:
        self.domains.add(domain)
        self.now += TICK
        self.spans.append(Span(name, style, self.now))
        return self.spans[-1]

    def _close(self, span: Span) -> None:
        self.now += TICK
        span.end = self.now
