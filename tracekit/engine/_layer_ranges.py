"""Find the layer of the network that each range belongs to, in forward and backward passes.

A layer is a module's range: the innermost range around an operator that is not an operator itself
and contains no complete pass. If a program names no modules, each outermost operator of a pass is a
layer, named after the operator and its ordinal among those of this name.

PyTorch numbers operators for its backward pass: an operator's range and the range of its backward
have the same sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.engine._range_loops import inherit, inherit_outermost, mark_around
from tracekit.engine._range_paths import Array, parent_rows, path_labels, path_number
from tracekit.model import PATH_SEPARATOR, Trace
from tracekit.support.compiled import compiled, given

_SEQUENCE = r"seq ?= ?(\d+)"
_ENGINE = r"^autograd::engine::evaluate_function"
_BACKWARD = r"stashed seq|(^|::)(\w*Backward\w*|AccumulateGrad), "
_OPERATOR = r"^[\w.]+::|^nccl:|^record_param_comms"
_LIBRARY = r"^(NCCL|MPI|UCX|DALI|TSL|cuBLAS|cuDNN|cuSPARSE|cuSOLVER|cuFFT)"
_IS_PASS = pl.col("stage").cast(pl.String).is_in(("FP", "BP")).fill_null(value=False)
_LEVELS = 16
"""Number of nested modules that are distinguished."""

BY_SEQUENCE, BY_RANGE = "sequence", "range"
"""How work in the backward pass is matched with the forward pass."""
_JOINED = (BY_RANGE, BY_SEQUENCE)


@dataclass(frozen=True)
class RangeLayers:
    """The layers of a network, and the layer of each range."""

    layers: pl.Series
    """Names of the layers, in the order of the forward pass."""
    of_range: pl.Series
    """For each range number the index of its layer, null if it has none."""
    joined: pl.Series
    """For each range number how the layer was found: by autograd's sequence number (`BY_SEQUENCE`)
    or by the enclosing range (`BY_RANGE`)."""


@dataclass(frozen=True)
class _Ranges:
    """The push/pop ranges (`table`), and for each the row of the range around it (`parents`)."""

    table: pl.DataFrame
    parents: Array

    def innermost(self, marked: pl.Expr) -> Array:
        """Return per range the row of the innermost marked range among it and those around it.

        `marked` is a boolean expression over the table of ranges. The result is -1 where no range
        is marked.
        """
        found = np.empty(self.parents.size, np.int64)
        compiled(inherit, found.size)(self.parents, self._rows(marked), found)
        return found

    def outermost(self, marked: pl.Expr, stop: pl.Expr) -> Array:
        """Return per range the row of the outermost marked range among it and those around it.

        `marked` and `stop` are boolean expressions over the table of ranges. The search upward ends
        below a range where `stop` is true. The result is -1 where no range is marked.
        """
        found = np.empty(self.parents.size, np.int64)
        stops = given(self.table.select(stop.alias("stop")).to_series())
        compiled(inherit_outermost, found.size)(self.parents, self._rows(marked), stops, found)
        return found

    def _rows(self, marked: pl.Expr) -> Array:
        rows = pl.when(marked).then(pl.int_range(pl.len())).otherwise(-1)
        return given(self.table.select(rows.cast(pl.Int64)).to_series())


def range_layers(trace: Trace) -> RangeLayers:
    """Return the layers of a run's network, and the layer that each range belongs to."""
    ranges = _ranges(trace)
    module = ranges.innermost(pl.col("module"))
    apart = pl.col("around") | pl.col("module")
    unit = ranges.outermost(pl.col("operator") & ~pl.col("marker"), apart)
    labels = path_labels(trace)
    named = _named_units(ranges, np.where(module < 0, unit, -1), labels)
    texts = _module_texts(ranges, module, labels)
    forward = pl.select(pl.coalesce(_gathered(texts, module), _gathered(named, unit))).to_series()
    never = pl.col("range").is_null()
    marker = ranges.outermost(pl.col("marker") & pl.col("sequence").is_not_null(), never)
    source = _gathered(_forward_rows(ranges), marker)
    inside = marker >= 0
    text = forward.zip_with(~pl.Series(inside), forward.gather(source))
    return _numbered(ranges, text, inside)


def _ranges(trace: Trace) -> _Ranges:
    """Read the ranges and classify each by name: operator, autograd marker or module."""
    read = trace["ranges"].filter(pl.col("style") == "push_pop").select(
        "range", "process", "thread", "start", "end", "parent", "stage",
        pl.col("name", "domain").cast(pl.Categorical(pl.Categories.random())), path=path_number(),
    ).collect()  # fmt: skip
    table = _by_name(read if read["range"].is_sorted() else read.sort("range"))
    parents = parent_rows(table)
    around = table.select(_IS_PASS & ~pl.col("operator")).to_series() | _steps(trace, table)
    marks = around.to_numpy().copy()
    compiled(mark_around, parents.size)(parents, marks)
    around = pl.Series("around", marks, dtype=pl.Boolean)
    table = _with_sequences(table.drop("thread", "end", "parent"), parents).with_columns(around)
    ranges = _Ranges(table, parents)
    # A range inside a numbered operator divides only its forward pass: it is a module only if it
    # holds operators, each with a number to find its backward pass by.
    numbered = pl.col("operator") & ~pl.col("marker") & pl.col("sequence").is_not_null()
    is_part = ranges.innermost(numbered) >= 0
    holds = table["operator"].to_numpy().copy()
    compiled(mark_around, parents.size)(parents, holds)
    is_other = ~pl.col("operator") & ~pl.col("marker") & ~pl.col("around")
    return _Ranges(table.with_columns(module=is_other & pl.Series(holds | ~is_part)), parents)


def _by_name(ranges: pl.DataFrame) -> pl.DataFrame:
    """Replace name and domain of ranges by ``sequence, marker, operator``, derived from them.

    These are autograd's sequence number, and whether a range is an autograd marker or an operator.
    """
    name = pl.col("name").fill_null("")
    by_name = _of_distinct(
        ranges["name"],
        sequence=name.str.extract(_SEQUENCE).cast(pl.Int64, strict=False),
        engine=name.str.contains(_ENGINE),
        backward=name.str.contains(_BACKWARD),
        named=name.str.contains(_OPERATOR),
    )
    library = pl.col("domain").str.contains(_LIBRARY).fill_null(value=False)
    numbered = pl.col("sequence").is_not_null()
    return ranges.hstack(by_name).hstack(_of_distinct(ranges["domain"], library=library)).select(
        pl.exclude("name", "domain", *by_name.columns, "library"), "sequence",
        marker=pl.col("engine") | (numbered & pl.col("backward")),
        operator=pl.col("engine") | numbered | pl.col("named") | pl.col("library"),
    )  # fmt: skip


def _of_distinct(texts: pl.Series, **of_text: pl.Expr) -> pl.DataFrame:
    """Evaluate expressions on texts (categorical), once per distinct one; return all rows."""
    distinct = texts.unique()
    codes, text_codes = (given(each.to_physical(), np.int64, null=-1) for each in (texts, distinct))
    # The last place is that of null, -1.
    places = np.empty(int(text_codes.max(initial=-1)) + 2, np.int64)
    places[text_codes] = np.arange(text_codes.size)
    rows: pl.DataFrame = distinct.cast(pl.String).to_frame().select(**of_text)[places[codes]]
    return rows


def _steps(trace: Trace, table: pl.DataFrame) -> pl.Series:
    """Return whether each range is a training step, that is, a row of the table `iterations`."""
    where = ["process", "thread", "start", "end"]
    steps = trace["iterations"].select(where).unique().collect()
    begin = table.select("range", *where).filter(pl.col("start").is_in(steps["start"].implode()))
    found = begin.join(steps, on=where, how="semi")["range"]
    return table.select(step=pl.col("range").is_in(found.implode())).to_series()


def _with_sequences(table: pl.DataFrame, parents: Array) -> pl.DataFrame:
    """Give autograd markers without a sequence number that of the first marker inside each."""
    inner = pl.DataFrame({"row": parents}).hstack(table.select("sequence", "marker"))
    known = inner.filter(pl.col("marker") & pl.col("sequence").is_not_null() & (pl.col("row") >= 0))
    first = known.group_by("row").agg(inside=pl.col("sequence").first())
    rows = table.with_columns(row=pl.int_range(pl.len()))
    sequence = pl.when("marker").then(pl.coalesce("sequence", "inside")).otherwise("sequence")
    joined = rows.join(first, on="row", how="left", maintain_order="left")
    return joined.with_columns(sequence=sequence).drop("row", "inside")


def _forward_rows(ranges: _Ranges) -> pl.Series:
    """Return for each backward marker the row of its forward operator.

    This is the last operator with the marker's sequence number that began before it. Earlier ones
    only enclose it, or are not differentiated and show the number that comes next.
    """
    inside = pl.Series(ranges.innermost(pl.col("marker"))) >= 0
    rows = ranges.table.select("process", "sequence", "start", "marker", inside=inside)
    rows = rows.with_row_index("row").drop_nulls("sequence").sort("start", "row")
    key = ["process", "sequence"]
    forward = rows.filter(~pl.col("inside")).select(*key, "start", found="row")
    markers = rows.filter("marker").select(*key, "start", "row").join_asof(
        forward, on="start", by=key, check_sortedness=False
    )  # fmt: skip
    every = pl.DataFrame({"row": np.arange(ranges.parents.size)})
    return every.join(markers, on="row", how="left", maintain_order="left")["found"]


def _module_texts(ranges: _Ranges, module: Array, labels: pl.DataFrame) -> pl.Series:
    """Return the name of each module range: labels of the modules around it, then its own label.

    `module` has, for each range, the row in `ranges` of the innermost module range that contains it
    or is it; `labels` has, for each path of nested range names, the text to show (``label``).
    """
    paths = ranges.table["path"]
    around = _gathered(pl.Series(module), ranges.parents)
    rows = ranges.table.select("path", "module", above=_gathered(paths, around))
    texts = rows.filter("module").unique("path").join(labels, on="path", how="left").select(
        "path", "above", "label", text=pl.when(pl.col("above").is_null()).then("label")
    )  # fmt: skip
    for _ in range(_LEVELS):
        if not texts["text"].null_count():
            break
        outer = texts.select(above="path", outer="text")
        joined = pl.concat_str("outer", "label", separator=PATH_SEPARATOR)
        texts = texts.join(outer, on="above", how="left").select(
            "path", "above", "label", text=pl.coalesce("text", joined)
        )
    found = texts.select("path", text=pl.coalesce("text", "label"))
    return rows.join(found, on="path", how="left", maintain_order="left")["text"]


def _named_units(ranges: _Ranges, unit: Array, labels: pl.DataFrame) -> pl.Series:
    """Name layers by operator, where no modules are named: the operator's name and its ordinal.

    The result has an element per range: null unless the range is an outermost operator of a pass.
    `unit` is the row of the outermost operator around each range. `labels` has a name (``label``)
    for each path of nested ranges (``path``): here, the operator's.
    """
    passing = ranges.innermost(pl.col("around"))
    rows = ranges.table.select(
        "path", row=pl.int_range(pl.len()), unit=pl.Series(unit), within=pl.Series(passing)
    )
    units = rows.filter((pl.col("unit") == pl.col("row")) & (pl.col("within") >= 0))
    passes = ranges.table.select(
        "path", backward=(pl.col("stage") == "BP").fill_null(value=False)
    ).join(labels, on="path", how="left", maintain_order="left")  # fmt: skip
    around = passes.select("backward", around="label")[units["within"]]
    named = units.join(labels, on="path", how="left", maintain_order="left").hstack(around)
    ahead = pl.when(~pl.col("backward")).then("around")
    # Where only one pass has operators of this name, they need no mention of it.
    alone = ~pl.col("backward") & (ahead.drop_nulls().n_unique().over("label") == 1)
    text = named.select(
        "row",
        text=pl.concat_str(
            pl.when(~alone).then(pl.col("around") + PATH_SEPARATOR).otherwise(pl.lit("")),
            "label", pl.lit(" "), pl.int_range(1, pl.len() + 1).over("within", "label"),
        ),
    )  # fmt: skip
    return rows.join(text, on="row", how="left", maintain_order="left")["text"]


def _gathered(values: pl.Series, rows: Array | pl.Series) -> pl.Series:
    """Return the values at these rows; null where a row is negative or null."""
    places = pl.Series(rows)
    return values.gather(places.set(places < 0, None))


def _numbered(ranges: _Ranges, text: pl.Series, inside: Array) -> RangeLayers:
    """Assign ids to layers, the distinct texts, in the order of their first forward pass.

    `text` is the name of each range's layer; `inside`, whether the layer was found by autograd's
    sequence number (else by the enclosing range).
    """
    coded = text.cast(pl.Categorical(pl.Categories.random()))
    codes = given(coded.to_physical(), np.int64, null=-1)
    layers = coded.filter(~inside).drop_nulls().unique(maintain_order=True)
    places = np.full(int(codes.max(initial=-1)) + 2, -1)  # the last one is that of no text, -1
    places[given(layers.to_physical())] = np.arange(len(layers))
    numbers = given(ranges.table["range"])
    every = np.full(int(numbers[-1]) + 1 if numbers.size else 0, -1)
    joined = np.full(every.size, len(_JOINED), np.uint8)
    every[numbers] = places[codes]
    joined[numbers] = np.where(codes < 0, len(_JOINED), inside)
    of_range, method = pl.Series(every), pl.Series(joined)
    return RangeLayers(
        layers.cast(pl.String),
        of_range.set(of_range < 0, None),
        method.set(method == len(_JOINED), None).cat.to(pl.Enum(_JOINED)),
    )
