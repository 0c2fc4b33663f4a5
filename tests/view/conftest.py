"""Views that are served while a module's tests ask them."""

from __future__ import annotations

import base64
import http.client
import json
import struct
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hostile import SAMPLES, hostile_trace

import tracekit
from tracekit.model import Trace
from tracekit.support import batches
from tracekit.view import View
from tracekit.view._sums import RunSums


@pytest.fixture(scope="module", autouse=True)
def _asked_of_samples(samples_read_once: None) -> None:
    """Let views be what is made here, not runs."""


@pytest.fixture(scope="module", autouse=True)
def _sums_made_once() -> Iterator[None]:
    """Sum up a trace once for all views of it, with batches of one size."""
    made: dict[tuple[int, int], tuple[Trace, RunSums]] = {}
    make = RunSums.of

    def of(trace: Trace) -> RunSums:
        key = id(trace), batches.ROWS
        if key not in made:
            made[key] = trace, make(trace)
        return made[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunSums, "of", of)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("view") / "store"


@pytest.fixture(scope="module")
def runs(store: Path) -> list[tracekit.Run]:
    folder = store.parent
    traces = {"hostile": hostile_trace(folder), "p2p": SAMPLES / "p2p_2gpu_start_end.sqlite"}
    return [tracekit.ingest(path, name=name, store=store)[0] for name, path in traces.items()]


@pytest.fixture(scope="module")
def served(runs: list[tracekit.Run]) -> Iterator[View]:
    with View(runs, opens=False) as view:
        yield view


@pytest.fixture(scope="module")
def counted(runs: list[tracekit.Run]) -> tracekit.Run:
    """The first run with samples of two counters and of memory, which no sample trace has."""
    trace = runs[0].trace
    first, last = (
        trace["ops"].select(pl.col("start").min(), last=pl.col("end").max()).collect().row(0)
    )
    count = 6_000
    place = pl.int_range(count, eager=True)
    samples = pl.DataFrame({"time": first + place * ((last - first) // count)}).with_columns(
        report=0, metric=pl.lit("pcie_rx"), unit=pl.lit("percent"), value=(place * 7919 % 101) * 1.0
    )
    frames = [
        samples.with_columns(device=0, recorded_name=pl.lit("PCIe RX <img> [Throughput %]")),
        samples.gather_every(3).with_columns(
            device=None, nic=pl.lit("mlx5_0"), recorded_name=pl.lit("Bytes sent"),
            unit=pl.lit("bytes"), value=pl.col("value") * 1e6 + 0.5,
        ),
    ]  # fmt: skip
    at = [first + (last - first) * part // 10 for part in (1, 2, 5, 9)]
    at.insert(1, at[0] + 1)
    used = {
        "time": at,
        "change": [9000, -4904, 8192, -4096, 512],
        "in_use": [9000, 4096, 12288, 8192, 8704],
    }
    tables = {
        "metrics": pl.concat(frames, how="diagonal"),
        "memory": pl.DataFrame(used).with_columns(report=0, process=0, device=0),
    }
    for name, rows in tables.items():
        tables[name] = rows.select(
            (pl.col(column) if column in rows.columns else pl.lit(None)).cast(kind).alias(column)
            for column, kind in trace[name].collect_schema().items()
        )
    return runs[0].with_trace(trace.with_tables(tables))


class Client:
    """Asks a view as its page does, and as others would."""

    def __init__(self, view: View) -> None:
        address = urllib.parse.urlsplit(view.address)
        self.port = int(address.port or 0)
        self.token = address.fragment.removeprefix("token=")

    def ask(
        self, target: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content; a header of no text is left out."""
        own = {"Host": f"127.0.0.1:{self.port}", "X-Tracekit-Token": self.token}
        own |= {name.replace("_", "-"): text for name, text in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, text in own.items():
            if text:
                connection.putheader(name, text)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    def data(self, path: str, **given: object) -> Any:
        """Return what is answered."""
        query = urllib.parse.urlencode({name.strip("_"): text for name, text in given.items()})
        status, _, content = self.ask(f"/{path}?{query}" if query else f"/{path}")
        assert status == 200, content
        return json.loads(content, object_hook=_integers_of)


def _integers_of(told: dict[str, Any]) -> Any:
    """Return the integers that are sent as bytes, of the smallest type that holds them all."""
    if told.keys() != {"type", "base64"}:
        return told
    kinds = {"i1": "b", "i2": "h", "i4": "i", "f8": "d"}
    content, kind = base64.b64decode(told["base64"]), kinds[told["type"]]
    found = [round(each) for (each,) in struct.iter_unpack(f"<{kind}", content)]
    smaller = [bits for name, bits in (("i2", 7), ("i4", 15), ("f8", 31)) if name == told["type"]]
    assert all(any(not -(1 << bits) <= each < 1 << bits for each in found) for bits in smaller)
    return found


@pytest.fixture(scope="module")
def client(served: View) -> Client:
    return Client(served)


@pytest.fixture
def client_of() -> Callable[[View], Client]:
    return Client
