"""Sampled counters in nsys exports: throughput of NVLink, PCIe and NICs, and activity of SMs.

The ids of metrics differ between files, so metrics are recognised by name; names differ between
GPUs and between versions of nsys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from tracekit.model import METRIC
from tracekit.sources._export_tables import ExportFile
from tracekit.sources._reading import Where
from tracekit.sources._times import Filter
from tracekit.sources.nsys._metadata import Metadata, shifted
from tracekit.sources.sqlite import SqlType

GPU_METRICS = "GPU_METRICS"
GENERIC_EVENTS = "GENERIC_EVENTS"
NIC_METRICS = "NET_NIC_METRIC"

# Of a GPU: shares of a peak. Requests to its memory through PCIe are counted, not timed.
_OF_GPUS = {
    "nvlink_rx": re.compile(r"nvlink.*\b(rx|receiv)"),
    "nvlink_tx": re.compile(r"nvlink.*\b(tx|transmit)"),
    "pcie_rx": re.compile(r"pcie (rx|read)\b(?!.*request)"),
    "pcie_tx": re.compile(r"pcie (tx|write)\b(?!.*request)"),
    "sm_active": re.compile(r"sms? active$"),
}
_PERCENT = ("", "%", "throughput %")
_USER_DATA = "user data"
_OF_NICS = {
    "nic_rx": re.compile(r"\bbytes received\b|rx_bytes$"),
    "nic_tx": re.compile(r"\bbytes sent\b|tx_bytes$"),
    "nic_wait": re.compile(r"\bsend waits\b|xmit_wait$"),
}
_LONGEST_NAME = 200
_PLAIN_NAME = re.compile(r"[\w %/().,:\[\]+-]+")
"""Pattern of names that need no quotes in a JSON path."""

_GPU_MASK = 0xFF  # the bits of a type's number that are the GPU's
_FIRST_OF_TYPE = Where("typeId", "first")
_WANTED: dict[str, pl.DataType | type[pl.DataType]] = {
    "typeId": pl.Int64, "metricId": pl.Int64, "device": pl.Int32, "metric": METRIC,
    "recorded_name": pl.Categorical(),
}  # fmt: skip


class Metrics:
    """Counter samples of links (NVLink, PCIe, NIC) and of multiprocessors (SMs) in an nsys export.

    Parameters
    ----------
    file, metadata
        The export and its metadata.
    gpus
        Id of a GPU in the export -> device number.
    """

    def __init__(self, file: ExportFile, metadata: Metadata, gpus: Mapping[int, int]) -> None:
        self._file = file
        self._metadata = metadata
        self._in_json = not file.holds_rows(GPU_METRICS)
        named = _named_in_json(file) if self._in_json else _named(file)
        self._wanted = _wanted(named, gpus)

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on samples of GPUs that the export does not describe."""
        lost = self._wanted.filter(pl.col("device").is_null())["typeId"].n_unique()
        text = "GPUs were sampled that the export does not describe, so their device is not known"
        return (f"{lost:,} {text}",) if lost else ()

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the table ``metrics`` (counter samples): first of GPUs, then of NICs."""
        samples = self._of_json(rows) if self._in_json else self._of_gpus(rows)
        if not self._wanted.is_empty():
            yield from (_of_report(batch, unit="percent") for batch in samples)
        yield from map(_of_report, self._of_nics(rows))

    def _of_gpus(self, rows: int) -> Iterator[pl.DataFrame]:
        columns = ("timestamp", "rawTimestamp", "typeId", "metricId", "value")
        within_times = self._file.times.within(f"samples of {GPU_METRICS}", "time")
        for batch in self._file.batches(GPU_METRICS, dict.fromkeys(columns, "int"), rows):
            samples = self._clocked(batch.drop_nulls("value"), within_times)
            yield samples.join(self._wanted, on=["typeId", "metricId"], maintain_order="left")

    def _of_json(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield GPU samples of exports before 2023, in which each sample is a JSON text.

        It has the values of all metrics at one time.
        """
        columns: dict[str, SqlType] = {
            **dict.fromkeys(("timestamp", "rawTimestamp", "typeId"), "int"), "data": "text"
        }  # fmt: skip
        within_times = self._file.times.within(f"samples of {GENERIC_EVENTS}", "time")
        for batch in self._file.batches(GENERIC_EVENTS, columns, rows):
            samples = self._clocked(batch, within_times)
            for name in self._wanted["recorded_name"].unique(maintain_order=True):
                value = pl.col("data").str.json_path_match(f'$["{name}"]')
                of_name = self._wanted.filter(pl.col("recorded_name") == name)
                yield (
                    samples.join(of_name, on="typeId", maintain_order="left")
                    .with_columns(value=value.cast(pl.Float64, strict=False))
                    .filter(pl.col("value").is_finite())
                )

    def _clocked(self, samples: pl.DataFrame, within_times: Filter) -> pl.DataFrame:
        """Add ``time`` to samples, ns since the session's start; drop samples without a time."""
        # The raw time is not shifted with the others, so it serves where none are.
        raw = pl.col("rawTimestamp") if not self._metadata.time_shift else pl.lit(None)
        timed = samples.with_columns(time=pl.coalesce("timestamp", raw)).drop_nulls("time")
        return shifted(within_times(timed), self._metadata, "time")

    def _of_nics(self, rows: int) -> Iterator[pl.DataFrame]:
        counters = _nic_counters(self._file)
        if counters.is_empty():
            return
        nics = _nic_names(self._file)
        keys = ("metricsListId", "metricsIdx")
        columns = ("start", "end", "globalId", *keys, "value")
        for batch in self._file.batches(NIC_METRICS, dict.fromkeys(columns, "int"), rows):
            samples = shifted(batch.drop_nulls(["end", "value"]), self._metadata, "start", "end")
            yield (
                samples.join(counters, on=keys, maintain_order="left")
                .join(nics, on="globalId", how="left", maintain_order="left")
                .with_columns(nic=pl.coalesce("nic", pl.format("NIC {}", "globalId")), time="end")
            )


def _of_report(samples: pl.DataFrame, unit: str | None = None) -> pl.DataFrame:
    labelled = samples if unit is None else samples.with_columns(unit=pl.lit(unit))
    columns = ("device", "nic", "metric", "recorded_name", "start", "time", "value", "unit")
    present = [name for name in columns if name in labelled.columns]
    return labelled.select(present)


def _named(file: ExportFile) -> dict[int, dict[str, int | None]]:
    """Return type id (of a GPU's set of metrics) -> metric name -> metric id, for all metrics."""
    columns: dict[str, SqlType] = {"typeId": "int", "metricId": "int", "metricName": "text"}
    rows = file.read("TARGET_INFO_GPU_METRICS", columns).drop_nulls()
    named: dict[int, dict[str, int | None]] = {}
    distinct = rows.unique(["typeId", "metricId"], keep="first", maintain_order=True)
    for type_id, number, name in distinct.rows():
        named.setdefault(type_id, {}).setdefault(name, number)
    return named


def _named_in_json(file: ExportFile) -> dict[int, dict[str, int | None]]:
    """Return type id (of a GPU's set of metrics) -> metric name -> None: JSON has no metric ids.

    The names are taken from the first sample of each type.
    """
    if not file.has(GENERIC_EVENTS, "typeId", "data"):
        return {}
    rows = file.read(
        GENERIC_EVENTS, {"typeId": "int", "data": "text"}, [_FIRST_OF_TYPE]
    ).drop_nulls()
    return {
        type_id: dict.fromkeys(name for name in _keys(data) if _PLAIN_NAME.fullmatch(name))
        for type_id, data in rows.rows()
    }


def _keys(text: str) -> Iterable[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return value if isinstance(value, dict) else ()


def _wanted(named: Mapping[int, Mapping[str, int | None]], gpus: Mapping[int, int]) -> pl.DataFrame:
    rows = [
        (type_id, numbers[name], gpus.get(type_id & _GPU_MASK), metric, name)
        for type_id, numbers in named.items()
        for name, metric in _gpu_metrics(numbers).items()
    ]
    return pl.DataFrame(rows, schema=_WANTED, orient="row")


def _gpu_metrics(names: Iterable[str]) -> dict[str, str]:
    """Return name in the export -> tracekit's name of the metric, for known metrics of a GPU.

    NVLink's user data and protocol overhead are counted separately; if both are recorded, only user
    data count, as the data that programs moved.
    """
    found = {name: metric for name in names if (metric := _gpu_metric(name))}
    useful = {metric for name, metric in found.items() if _USER_DATA in name.lower()}
    return {
        name: metric
        for name, metric in found.items()
        if metric not in useful or _USER_DATA in name.lower()
    }


def _gpu_metric(name: str) -> str | None:
    metric, _, unit = name.lower().partition("[")
    return _match(metric, _OF_GPUS) if unit.strip(" ]") in _PERCENT else None


def _match(name: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    short = name[:_LONGEST_NAME].strip()
    return next((metric for metric, each in patterns.items() if each.search(short)), None)


def _nic_counters(file: ExportFile) -> pl.DataFrame:
    """Return the NIC counters known: ``metricsListId, metricsIdx, metric, recorded_name, unit``."""
    columns: dict[str, SqlType] = {
        **dict.fromkeys(("metricsListId", "metricsIdx"), "int"), "name": "text", "unit": "text"
    }  # fmt: skip
    if not file.has("TARGET_INFO_NETWORK_METRICS"):
        return pl.DataFrame()
    rows = file.read("TARGET_INFO_NETWORK_METRICS", columns).drop_nulls(["name"])
    distinct = rows.unique(["metricsListId", "metricsIdx"], keep="first", maintain_order=True)
    names = distinct["name"].to_list()
    return (
        distinct.with_columns(
            pl.Series("metric", [_match(name.lower(), _OF_NICS) for name in names], METRIC)
        )
        .select("metricsListId", "metricsIdx", "metric", "unit", recorded_name="name")
        .drop_nulls("metric")
    )


def _nic_names(file: ExportFile) -> pl.DataFrame:
    """Return NIC names: ``globalId, nic``."""
    ids = file.read("NIC_ID_MAP", {"nicId": "int", "globalId": "int"})
    names = file.read("TARGET_INFO_NIC_INFO", {"nicId": "int", "name": "text"})
    return (
        ids.join(names.drop_nulls().unique("nicId", keep="first"), on="nicId")
        .unique("globalId", keep="first")
        .select("globalId", nic="name")
    )
