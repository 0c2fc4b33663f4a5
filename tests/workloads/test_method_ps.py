"""Training by a parameter server, and the mailbox between it and its workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from rank_helpers import train_each

torch = pytest.importorskip("torch")
pytest.importorskip("grpc")

from workloads._errors import MissingError, OptionError, RankError  # noqa: E402
from workloads._loop import train  # noqa: E402
from workloads._options import BatchScope, Options, Precision  # noqa: E402
from workloads._summary import Summary  # noqa: E402
from workloads.methods import ps  # noqa: E402
from workloads.methods._mailbox import CHUNK, Courier, Mailbox, cut  # noqa: E402
from workloads.methods._method import World  # noqa: E402
from workloads.methods.ps import ParameterServer  # noqa: E402

PATIENCE_S = 30


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """Give a mailbox for two others."""
    opened = Mailbox(2)
    yield opened
    opened.close()


@pytest.fixture
def couriers(mailbox: Mailbox) -> Iterator[list[Courier]]:
    """Give the two others' ways to it."""
    opened = [Courier(mailbox.address, rank) for rank in (1, 2)]
    yield opened
    for courier in opened:
        courier.close()


def _taken(courier: Courier) -> bytes:
    return b"".join(courier.take())


def test_what_is_put_comes_in_order_of_ranks(mailbox: Mailbox, couriers: list[Courier]) -> None:
    for word in (b"once", b"again"):
        for courier in reversed(couriers):
            courier.put(memoryview(word + b"%d" % courier.rank))
        assert mailbox.collect() == [word + b"1", word + b"2"]
        mailbox.publish(memoryview(word))
        assert [_taken(courier) for courier in couriers] == [word, word]


def test_more_than_a_message_holds(mailbox: Mailbox, couriers: list[Courier]) -> None:
    much = np.random.default_rng(0).integers(0, 255, 4 * CHUNK + 12_345, np.uint8)
    for courier in couriers:
        courier.put(much.data)
    assert [bytes(data) == much.tobytes() for data in mailbox.collect()] == [True, True]
    mailbox.publish(much.data)
    assert _taken(couriers[1]) == much.tobytes()
    assert [len(chunk) for chunk in cut(much.data)] == [CHUNK] * 4 + [12_345]


def test_who_takes_waits_for_what_is_published(mailbox: Mailbox, couriers: list[Courier]) -> None:
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(_taken, courier) for courier in couriers]
        assert not any(one.done() for one in taken)
        mailbox.publish(memoryview(b"weights"))
        assert [one.result(PATIENCE_S) for one in taken] == [b"weights"] * 2


def test_a_worker_that_leaves_ends_the_wait_of_all(
    mailbox: Mailbox, couriers: list[Courier]
) -> None:
    with ThreadPoolExecutor(2) as pool:
        couriers[0].put(memoryview(b"gradients"))
        collected, taken = pool.submit(mailbox.collect), pool.submit(_taken, couriers[0])
        couriers[1].close()
        with pytest.raises(RankError, match="process 2 left before"):
            collected.result(PATIENCE_S)
        with pytest.raises(RankError, match=r"process 1 .* broke \(process 2 has left\)"):
            taken.result(PATIENCE_S)


def test_a_server_that_ends_ends_the_wait_of_workers() -> None:
    mailbox = Mailbox(1)
    courier = Courier(mailbox.address, 1)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(_taken, courier)
        threading.Timer(0.2, mailbox.close).start()
        with pytest.raises(RankError, match=r"process 1 and the parameter server at 127\.0\.0\.1:"):
            taken.result(PATIENCE_S)
    courier.close()


def test_it_serves_until_all_have_left() -> None:
    mailbox = Mailbox(1)
    courier = Courier(mailbox.address, 1)
    courier.put(memoryview(b"gradients"))
    mailbox.collect()
    mailbox.publish(memoryview(b"weights"))
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(mailbox.close, PATIENCE_S)
        assert _taken(courier) == b"weights"
        assert not closed.done()
        courier.close()
        closed.result(PATIENCE_S / 2)


def test_a_worker_that_does_not_come(mailbox: Mailbox) -> None:
    courier = Courier(mailbox.address, 1)
    with pytest.raises(RankError, match=r"1 processes have not joined within 0\.1 s"):
        mailbox.await_all(0.1)
    courier.close()


def test_no_server_at_all() -> None:
    with pytest.raises(RankError, match="no answer"):
        Courier("127.0.0.1:1", 1, patience_s=0.3)


# -- training --------------------------------------------------------------------------------------

WORKERS = 3
BASE = Options(
    batch=12,
    batch_scope=BatchScope.GLOBAL,
    steps=4,
    evaluate_every=4,
    learning_rate=0.05,
    nvtx=False,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Summary]:
    """Return what training twice by a parameter server gave."""
    wanted = replace(BASE, method="ps", gpus=WORKERS)
    return train_each([wanted, wanted], WORKERS, tmp_path_factory.mktemp("stores"))


@pytest.mark.training
def test_training_is_that_of_one_device(runs: list[Summary]) -> None:
    alone, found = train(BASE, World()), runs[0]
    assert found.losses == pytest.approx(alone.losses, abs=5e-7)
    assert max(found.losses) > min(found.losses) + 0.05
    assert found.evaluations[0].loss == pytest.approx(alone.evaluations[0].loss, abs=5e-7)


@pytest.mark.training
def test_it_comes_out_the_same_each_time(runs: list[Summary]) -> None:
    assert runs[0].losses == runs[1].losses


@pytest.mark.training
def test_bytes_of_all_workers_but_the_servers_own(runs: list[Summary]) -> None:
    for found in runs:
        assert found.gather_bytes == (WORKERS - 1) * 4 * 61_706
        assert found.scatter_bytes == (WORKERS - 1) * 4 * 61_706
        assert (found.activation_bytes, found.evidence) == (0, "copied")


def test_without_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ps, "find_spec", {"mpi4py": object()}.get)
    with pytest.raises(MissingError, match="grpcio is not installed"):
        ParameterServer.check(BASE, 1)


def test_scaled_gradients() -> None:
    with pytest.raises(OptionError, match="another factor"):
        ParameterServer.check(replace(BASE, precision=Precision.AMP), 1)
