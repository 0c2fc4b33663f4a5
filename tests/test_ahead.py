"""Work done ahead: in order, not too far ahead, and over when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tracekit.support import ahead as _ahead
from tracekit.support.ahead import ahead


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ahead")]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No thread outlives the work."""
    yield
    assert _threads() == []


@pytest.mark.parametrize("count", [0, 1, 3, 50])
@pytest.mark.parametrize("cores", [1, 3])
def test_results_come_in_order(count: int, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ahead, "cores", lambda: cores)

    def work(item: int) -> int:
        time.sleep(0.001 * (item % 3))
        return item * item

    assert list(ahead(work, range(count))) == [item * item for item in range(count)]


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ahead, "cores", lambda: 2)
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            taken.append(item)
            yield item

    for done, result in enumerate(ahead(lambda item: item, items(), waiting=1)):
        assert result == done
        assert len(taken) <= done + 1 + 2


def test_an_error_of_the_work_comes_in_its_place() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    results = ahead(work, range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert list(results) == []


def test_an_error_of_the_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("items")

    with pytest.raises(KeyError, match="items"):
        list(ahead(lambda item: item, items()))


def test_leaving_early_ends_the_work() -> None:
    done: list[int] = []
    results = ahead(done.append, range(1000))
    next(results)
    results.close()
    assert len(done) < 100
