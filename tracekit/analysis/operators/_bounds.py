"""Least bytes that operators move, and their least times at the peak rates of their GPU (modelled).

They follow from recorded sizes and types; caches, and kernels that read the data twice, are not
modelled. ``docs/roofline.md`` has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracekit.analysis.operators._formulas import GRADIENTS, MULTIPLYING_FORMS, size, table
from tracekit.errors import UsageError
from tracekit.machine import peak_flops, peak_memory_bandwidth, products_of_gpus
from tracekit.model import Trace

_WIDTHS = {
    **dict.fromkeys(("double", "float64", "long int", "long", "int64", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("c10::Half", "Half", "half", "float16", "c10::BFloat16", "BFloat16",
                     "bfloat16", "short", "int16"), 2),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "uint8", "int8", "c10::Float8_e4m3fn",
                     "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "float8_e4m3fn"), 1),
    "c10::complex<double>": 16,
}  # fmt: skip
_NO_TENSOR = ("", "Scalar", "ScalarList")
_FLOATING = "(?i)half|float|double"
_OF_PRECISION = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
_JOINED = r"CatArrayBatched\w*<(?:[\w: ()]*OpaqueType<(\d{1,2})u?>|([\w:<>]+?),)"
_ARGUMENTS = ["sizes", "types_text", "inputs", "operands"]
_MOST = float(1 << 62)
_PLACES = ("place_a", "place_b", "place_c")
_A, _B, _C = (pl.col(name) for name in "abc")
_SIZES = {f"size_{name}": size(pl.col(name)).cast(pl.Float64) for name in "abc"}
_SIZE_A, _SIZE_B, _SIZE_C = map(pl.col, _SIZES)
_FLOPS = pl.col("flops").cast(pl.Float64)
_LENGTH = pl.col("end") - pl.col("start")
_KNOWN = pl.col("flops").is_not_null()
_NS = 10**9


def with_bytes(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``bytes``, the least that each operator reads and writes; null if unknown.

    Parameters
    ----------
    rows
        Columns of `recorded_operators`; ``flops``; ``wants_input`` and ``wants_weight`` (whether a
        backward operator computes the gradient of its input, of its weight); ``precision``, which
        gives the width of a multiplication's operands if types were not recorded (as with
        `emit_nvtx`); and ``element_bytes``, bytes per element that a kernel copies, by its name.
    """
    of_operands = pl.when(pl.col("form").is_in(list(MULTIPLYING_FORMS))).then("precision")
    typed = rows.with_columns(types_text=pl.col("types").list.join("\t"), operands=of_operands)
    found = typed.join(_of_arguments(typed), on=_ARGUMENTS, how="left", nulls_equal=True,
                      maintain_order="left")  # fmt: skip
    found = found.join(table().select("operator", *_PLACES), on="operator", how="left",
                       maintain_order="left").with_columns(**_SIZES)  # fmt: skip
    total = pl.col("read") + pl.coalesce(_results(), _written() * pl.col("width"))
    of_gradients = _of_gradients() * pl.col("width")
    # Of a long list no sizes are recorded: it looks as if it had one number.
    elements = pl.col("shapes").list.eval(
        pl.when((pl.element().list.len() > 0).all()).then(size(pl.element()).cast(pl.Float64).sum())
    )
    joined = 2 * elements.list.first() * pl.col("element_bytes")
    moved = (
        pl.when(pl.col("form").is_in(GRADIENTS)).then(of_gradients)
        .when(pl.col("form") == "joined").then(joined)
        .otherwise(total)
    )  # fmt: skip
    helpers = ("types_text", "operands", "read", "width", "spread", "widths", *_PLACES, *_SIZES)
    fits = pl.col("bytes").is_between(0, _MOST, closed="left")  # negative: another form than known
    return (
        found.with_columns(bytes=moved.round())
        .with_columns(bytes=pl.when(fits).then("bytes").cast(pl.Int64)).drop(helpers)
    )  # fmt: skip


def element_bytes(name: pl.Expr) -> pl.Expr:
    """Return bytes per element that a ``torch.cat`` kernel copies, by its name; else null."""
    width = name.str.extract(_JOINED, 1).cast(pl.Int64)
    by_type = name.str.extract(_JOINED, 2)
    return pl.coalesce(width, by_type.replace_strict(_WIDTHS, default=None, return_dtype=pl.Int64))


def _of_arguments(rows: pl.DataFrame) -> pl.DataFrame:
    """Return bytes and element widths of each argument list: ``read, width, spread, widths``.

    ``read`` is the size of all arguments in bytes. An elementwise result has ``width`` bytes per
    element, as the widest floating-point argument (if any), and ``spread`` elements, by
    broadcasting all arguments; numbers without dimensions count only if there are no tensors.
    ``widths``: bytes per element of each argument, in order.
    """
    alike = rows.unique(_ARGUMENTS).drop_nulls("shapes").with_row_index("key")
    same = pl.col("shapes").list.len() == pl.col("types").list.len()
    same_types = pl.when(same).then("types")
    filled = alike.with_columns(types=same_types).filter(pl.col("types").is_not_null()
                                                    | pl.col("types_text").is_null())  # fmt: skip
    none = pl.lit(None, pl.String).repeat_by(pl.col("shapes").list.len())
    arguments = (
        filled.select("key", "inputs", "operands", "shapes", type=pl.coalesce("types", none))
        .with_columns(place=pl.int_ranges(0, pl.col("shapes").list.len()))
        .explode("shapes", "type", "place")
        .filter(pl.col("place") < pl.col("inputs").fill_null(_MOST))
    )
    is_one = pl.col("shapes").list.len() > 0
    by_precision = pl.col("operands").replace_strict(_OF_PRECISION, default=None,
                                                      return_dtype=pl.Int64)  # fmt: skip
    by_type = pl.col("type").replace_strict(_WIDTHS, default=None, return_dtype=pl.Int64)
    no_tensor = pl.col("type").is_in(_NO_TENSOR) | (pl.col("type").is_null() & ~is_one)
    sized = arguments.with_columns(
        is_one=is_one,
        floating=pl.col("type").str.contains(_FLOATING) | pl.col("type").is_null(),
        width=pl.when(no_tensor & ~is_one).then(0).when(pl.col("type").is_null())
        .then(by_precision).otherwise(by_type),
        elements=size(pl.col("shapes")).cast(pl.Float64),
    )  # fmt: skip
    tensors = sized.filter(pl.col("width").is_null() | (pl.col("width") > 0))
    best = tensors.group_by("key").agg(
        read=pl.when(pl.col("width").is_not_null().all()).then(
            (pl.col("elements") * pl.col("width")).sum()
        ),
        width=pl.col("width").sort_by("is_one", "floating", "width").last(),
    )
    each = sized.sort("key", "place").group_by("key", maintain_order=True).agg(widths="width")
    return (
        alike.select("key", *_ARGUMENTS).join(best, on="key", how="left")
        .join(each, on="key", how="left")
        .join(_broadcast(tensors), on="key", how="left").drop("key")
        .with_columns(pl.col("spread").fill_null(1.0))
    )  # fmt: skip


def _broadcast(arguments: pl.DataFrame) -> pl.DataFrame:
    """Return ``key, spread``: per argument list (key), elements of the broadcast shape."""
    shape = pl.col("shapes").list.reverse()
    return (
        arguments.select("key", along=shape, at=pl.int_ranges(0, shape.list.len()))
        .explode("along", "at")
        .group_by("key", "at").agg(pl.col("along").max().fill_null(1))
        .group_by("key").agg(spread=pl.col("along").cast(pl.Float64).product())
    )  # fmt: skip


def _written() -> pl.Expr:
    """Return how many elements an operator moves besides its arguments, mostly its result."""
    inner, values = (each.list.last().cast(pl.Float64) for each in (_A, _C))
    channels = _B.list.first().cast(pl.Float64)
    rows = _SIZE_A / inner
    taken = _SIZE_B * inner
    packed_alike = _A.list.len() == _B.list.len()  # and no cache whose tokens are in pages
    forms = {
        ("matrix", "linear"): _FLOPS / (2 * inner),
        ("convolution",): _FLOPS * channels / (2 * _SIZE_B),
        ("attention",): rows * values,
        ("attention_by_position",): pl.when(packed_alike).then(rows * values),
        ("elementwise",): pl.col("spread"),
        ("comparison",): pl.col("spread") / pl.col("width"),  # a byte each
        ("arguments",): pl.lit(0.0),
        ("attention_by_position_backward",): pl.when(packed_alike).then(0.0),
        # The rows that are taken are read and written; the rest of the table is not.
        ("rows",): 2 * taken - _SIZE_A,
    }
    known = (pl.when(pl.col("form").is_in(names)).then(value) for names, value in forms.items())
    found = pl.coalesce(*known)
    return pl.when(found.is_finite()).then(found)


def _results() -> pl.Expr:
    """Return bytes moved besides the arguments, where arguments differ in type.

    Each gradient, and each result of a normalisation, has size and type of one argument. Of tables
    and caches, which are arguments, only the used rows count, so the rest is subtracted.
    """
    first, second, third = (
        elements * _width(pl.col(place))
        for place, elements in zip(_PLACES, (_SIZE_A, _SIZE_B, _SIZE_C), strict=True)
    )
    is_form = pl.col("form").is_in
    alike = pl.sum_horizontal(first, second, third)
    # Positions are the first argument; of each a row of sines and cosines is taken.
    turned = (
        pl.sum_horizontal(first, second)
        - third
        + _rows_of(_C, _SIZE_C, _size_at(0), _width(pl.col("place_c")))
    )
    heads = (_B.list.get(-2, null_on_oob=True) * (_B.list.last() + _C.list.last())).cast(pl.Float64)
    output = first / _A.list.last() * _C.list.last()
    attended = output - second - third + pl.col("taken") * heads * _width(pl.col("place_b"))
    # The two caches are the arguments behind key and value; places in them are the third operand.
    kept = sum(
        _rows_of(shape, elements, _SIZE_C, _width(pl.col(place)) + _width(pl.col(place) + 2))
        - elements * _width(pl.col(place))
        for shape, elements, place in ((_A, _SIZE_A, "place_a"), (_B, _SIZE_B, "place_b"))
    ) - sum(_size_at(n) * _width(pl.lit(n)) for n in (2, 3))
    return (
        pl.when(is_form(("attention_backward", "attention_by_position_gradients", "results")))
        .then(alike)
        .when(is_form(("rotated",))).then(turned)
        .when(is_form(("attention_paged",))).then(attended)
        .when(is_form(("stored",))).then(kept)
    )  # fmt: skip


def _width(place: pl.Expr) -> pl.Expr:
    return pl.col("widths").list.get(place, null_on_oob=True)


def _size_at(place: int) -> pl.Expr:
    return size(pl.col("shapes").list.get(place, null_on_oob=True)).cast(pl.Float64)


def _rows_of(shape: pl.Expr, elements: pl.Expr, rows: pl.Expr, width: pl.Expr) -> pl.Expr:
    """Return bytes of `rows` slices along the first dimension of a tensor of size `shape`.

    The tensor has `elements` elements of `width` bytes.
    """
    return rows * (elements / shape.list.first()) * width


def _of_gradients() -> pl.Expr:
    """Return the elements that a backward operator moves, by the gradients that it must compute."""
    for_each = (pl.col(name).cast(pl.Float64) for name in ("wants_input", "wants_weight"))
    return _SIZE_A + sum(for_each) * (_SIZE_B + _SIZE_C)


def with_peaks(
    trace: Trace, work: pl.DataFrame, peak: int | None
) -> tuple[pl.DataFrame, dict[str, Mapping[str, int]]]:
    """Add ``ideal_ns``, time of FLOPs at the peak rate; also return GPU -> precision -> peak."""
    if peak is not None:
        return work.with_columns(ideal_ns=pl.col("flops") / peak * _NS), {"given": {"any": peak}}
    gpus = trace.read("devices")
    devices = gpus.select("device", name=products_of_gpus(gpus))
    known = {name: peak_flops(name) for name in devices["name"].unique().drop_nulls().sort()}
    rows = [(name, *pair) for name, each in known.items() for pair in each.items()]
    schema = {"name": pl.String, "precision": pl.String, "peak": pl.Int64}
    table = devices.join(pl.DataFrame(rows, schema=schema, orient="row"), on="name")
    found = work.join(table.select("device", "precision", "peak"), on=["device", "precision"],
                      how="left", maintain_order="left")  # fmt: skip
    multiplied = set(work.filter(_KNOWN)["precision"])
    used = {
        name: {precision: peak for precision, peak in each.items()
               if precision in multiplied}
        for name, each in known.items()
    }  # fmt: skip
    return found.with_columns(ideal_ns=pl.col("flops") / pl.col("peak") * _NS), {
        name: each for name, each in used.items() if each
    }


def memory_bandwidths(trace: Trace, rate: int | None) -> pl.DataFrame:
    """Return ``device, name, bandwidth``: peak memory rate, bytes/s; null if unknown.

    The rate is `rate` if given, else the recorded rate, else the known rate of the GPU's model.
    """
    if rate is not None and rate <= 0:
        raise UsageError(
            f"the memory bandwidth is {rate} bytes/s", "give more than 0, such as 3.35TB"
        )
    gpus = trace.read("devices")
    devices = gpus.select("device", "peak_memory_bandwidth", name=products_of_gpus(gpus))
    names = devices["name"].unique().drop_nulls().to_list()
    by_name = {name: peak_memory_bandwidth(name) for name in names}
    of_product = pl.col("name").replace_strict(by_name, default=None, return_dtype=pl.Int64)
    bandwidth = pl.coalesce(pl.lit(rate, pl.Int64), "peak_memory_bandwidth", of_product)
    return devices.select("device", pl.col("name").replace("", None), bandwidth=bandwidth)


def with_bounds(trace: Trace, work: pl.DataFrame, bandwidths: pl.DataFrame) -> pl.DataFrame:
    """Add ``bound_ns``, the least time of an operator's kernels, and ``bound``, what limits it."""
    kernels = trace["ops"].filter((pl.col("kind") == "compute") & (_LENGTH > 0))
    shortest = kernels.group_by("device").agg(shortest_ns=_LENGTH.min()).collect()
    computes = pl.col("form").is_in(list(MULTIPLYING_FORMS)).fill_null(value=False)
    limits = {
        "launch": (pl.col("kernels") * pl.col("shortest_ns")).cast(pl.Float64),
        "computing": pl.when(computes).then("ideal_ns").otherwise(0.0),
        "memory": pl.col("bytes") / pl.col("bandwidth") * _NS,
    }
    known = pl.all_horizontal(each.is_not_null() for each in limits.values())
    least = pl.max_horizontal(*limits.values())
    sets = (pl.when(limit == least).then(pl.lit(name)) for name, limit in limits.items())
    return (
        work.join(shortest, on="device", how="left", maintain_order="left")
        .join(bandwidths.select("device", "bandwidth"), on="device", how="left",
              maintain_order="left")
        .with_columns(bound_ns=pl.when(known).then(least), bound=pl.when(known)
                      .then(pl.coalesce(*sets)))
        .drop("shortest_ns", "bandwidth")
    )  # fmt: skip
