"""Copies between GPUs: what waits for what, on streams that stand in for those of CUDA.

The stand-ins follow CUDA's rules (a stream does one thing after another, and waits for events) and
PyTorch's own for copies between devices: a copy begins once the current streams of both have come
to it, and both go on behind it. Each thing that is done knows all that was done before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from workloads.methods import _copies  # noqa: E402
from workloads.methods._copies import fetch, send  # noqa: E402


class Stream:
    """Does one thing after another; `done` is all that is over once it comes to the next."""

    def __init__(self, device: int) -> None:
        self.device, self.done = device, frozenset[str]()

    def do(self, what: str) -> frozenset[str]:
        """Do something, and return all that is done before."""
        before, self.done = self.done, self.done | {what}
        return before

    def wait_stream(self, other: Stream) -> None:
        self.done |= other.done

    def wait_event(self, event: frozenset[str]) -> None:
        self.done |= event

    def record_event(self) -> frozenset[str]:
        return self.done


class Machine:
    """GPUs with a current stream each."""

    def __init__(self) -> None:
        self.current = {device: Stream(device) for device in range(4)}
        self.before: dict[str, frozenset[str]] = {}
        self.made: Counter[int] = Counter()

    def current_stream(self, device: int) -> Stream:
        return self.current[device]

    def Stream(self, device: int) -> Stream:  # noqa: N802 - as in torch.cuda
        self.made[device] += 1
        return Stream(device)

    @contextmanager
    def stream(self, chosen: Stream) -> Iterator[None]:
        usual, self.current[chosen.device] = self.current[chosen.device], chosen
        yield
        self.current[chosen.device] = usual

    def compute(self, what: str, device: int) -> None:
        self.before[what] = self.current[device].do(what)

    def copy(self, what: str, source: int, target: int) -> None:
        there, here = self.current[source], self.current[target]
        self.before[what] = there.done | here.done
        there.done = here.done = self.before[what] | {what}


class Data:
    """A tensor on a GPU."""

    is_cuda = True

    def __init__(self, machine: Machine, name: str, device: int) -> None:
        self.machine, self.name, self.device = machine, name, device
        self.used_on: list[Stream] = []

    def to(self, device: int, **_: Any) -> Data:
        self.machine.copy(f"{self.name}>{device}", self.device, device)
        return Data(self.machine, self.name, device)

    def copy_(self, source: Data, **_: Any) -> Data:
        self.machine.copy(f"{source.name}>{self.device}", source.device, self.device)
        return self

    def record_stream(self, stream: Stream) -> None:
        self.used_on.append(stream)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setattr(_copies, "torch", SimpleNamespace(cuda=made))
    _copies._streams.cache_clear()
    yield made
    _copies._streams.cache_clear()


def test_copies_of_several_peers_overlap(machine: Machine) -> None:
    for device in range(4):
        machine.compute(f"pass of {device}", device)
    peers = [Data(machine, f"g{device}", device) for device in (1, 2, 3)]
    copies = [fetch(peer, 0) for peer in peers]
    machine.compute("more of the pass", 0)
    arrived = [copy.arrive() for copy in copies]
    machine.compute("sum", 0)
    for device in (1, 2, 3):
        # It waits for what it copies, and for nothing else: no other copy, nor the target's pass.
        assert machine.before[f"g{device}>0"] == {f"pass of {device}"}
    assert "g1>0" not in machine.before["more of the pass"]
    assert {"g1>0", "g2>0", "g3>0"} <= machine.before["sum"]
    # Memory that is freed is not handed out again before what has read it is through.
    assert all(each.used_on == [machine.current[0]] for each in arrived)
    machine.compute("next pass", 1)
    assert "g1>0" in machine.before["next pass"]


def test_weights_go_where_they_are_not_in_use_any_more(machine: Machine) -> None:
    machine.compute("pass of 1", 1)
    machine.compute("update", 0)
    weight = Data(machine, "w", 0)
    copies = [send(weight, Data(machine, "w", device)) for device in (1, 2)]
    for copy in copies:
        copy.arrive()
    assert machine.before["w>1"] == {"pass of 1", "update"}
    assert machine.before["w>2"] == {"update"}
    for device in (0, 1):
        machine.compute(f"next of {device}", device)
        assert "w>1" in machine.before[f"next of {device}"]


def test_each_pair_has_streams_of_its_own_and_keeps_them(machine: Machine) -> None:
    for _ in range(3):
        for device in (1, 2):
            fetch(Data(machine, "g", device), 0).arrive()
    assert machine.made == {0: 2, 1: 1, 2: 1}


def test_on_the_cpu_a_copy_has_arrived_at_once() -> None:
    source, target = torch.arange(3.0), torch.zeros(3)
    fetched = fetch(source, source.device).arrive()
    assert fetched.tolist() == [0, 1, 2]
    assert fetched.data_ptr() != source.data_ptr()
    assert send(source, target).arrive() is target
    assert target.tolist() == [0, 1, 2]
