"""Find the layer of the network that each range belongs to, in forward and backward passes.

A layer is a module's range: the innermost range around an operator that is not an operator itself
and contains no complete pass. If a program names no modules, each outermost operator of a pass is a
layer, named after the operator and its ordinal among those of this name.

PyTorch numbers operators for its backward pass: an operator's range and the range of its backward
have the same sequence number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """The push/pop ranges in order of their numbers, and what their names tell."""

    table: pl.DataFrame
    """``range, process, start, path, stage``."""
    parents: Array
    """The row of the range around each, -1 for a root."""
    sequence: Array
    """Autograd's sequence number, -1 if it has none."""
    marker: Array
    operator: Array
    """Whether it is an autograd marker, and an operator."""
    around: Array
    """Whether it is or contains a complete pass or a training step."""

    def innermost(self, marked: Array) -> Array:
        """Return per range the row of the innermost marked range among it and those around it.

        The result is -1 where no range is marked.
        """
        found = np.empty(marked.size, np.int64)
        compiled(inherit, found.size)(self.parents, self._rows(marked), found)
        return found

    def outermost(self, marked: Array, stops: Array) -> Array:
        """Return per range the row of the outermost marked range among it and those around it.

        The search upward ends below a range where `stops` is true. The result is -1 where no range
        is marked.
        """
        found = np.empty(marked.size, np.int64)
        rows = self._rows(marked)
        compiled(inherit_outermost, found.size)(self.parents, rows, stops, found)
        return found

    def holding(self, marked: Array) -> Array:
        """Test for each range whether it or one inside it is marked."""
        marks = marked.copy()
        compiled(mark_around, marks.size)(self.parents, marks)
        return marks

    def modules(self) -> Array:
        """Test for each range whether it is a module's."""
        # A range inside a numbered operator divides only its forward pass: it is a module only if
        # it holds operators, each with a number to find its backward pass by.
        numbered = self.operator & ~self.marker & (self.sequence >= 0)
        is_part = self.innermost(numbered) >= 0
        is_other = ~(self.operator | self.marker | self.around)
        return is_other & (~is_part | self.holding(self.operator))

    @staticmethod
    def _rows(marked: Array) -> Array:
        return np.where(marked, np.arange(marked.size), -1)


def range_layers(trace: Trace) -> RangeLayers:
    """Return the layers of a run's network, and the layer that each range belongs to."""
    ranges = _ranges(trace)
    is_module = ranges.modules()
    module = ranges.innermost(is_module)
    unit = ranges.outermost(ranges.operator & ~ranges.marker, ranges.around | is_module)
    labels = path_labels(trace)
    of_unit = _gathered(_named_units(ranges, np.where(module < 0, unit, -1), labels), unit)
    of_module = _gathered(_module_texts(ranges, module, labels), module)
    forward = of_module.zip_with(of_module.is_not_null(), of_unit)
    never = np.zeros_like(ranges.marker)
    marker = ranges.outermost(ranges.marker & (ranges.sequence >= 0), never)
    inside = marker >= 0
    source = np.where(inside, _forward_rows(ranges)[marker], np.arange(marker.size))
    return _numbered(ranges, _gathered(forward, source), inside)


def _ranges(trace: Trace) -> _Ranges:
    """Read the ranges and classify each by name: operator, autograd marker or module."""
    read = trace["ranges"].filter(pl.col("style") == "push_pop").select(
        "range", "process", "thread", "start", "end", "parent", "stage",
        pl.col("name", "domain").cast(pl.Categorical(pl.Categories.random())), path=path_number(),
        is_pass=_IS_PASS,
    ).collect()  # fmt: skip
    table = read if read["range"].is_sorted() else read.sort("range")
    parents = parent_rows(table)
    name = pl.col("name").fill_null("")
    sequence, engine, backward, named = _of_distinct(
        table["name"],
        name.str.extract(_SEQUENCE).cast(pl.Int64, strict=False).fill_null(-1),
        *(name.str.contains(pattern) for pattern in (_ENGINE, _BACKWARD, _OPERATOR)),
    )
    is_library = pl.col("domain").str.contains(_LIBRARY).fill_null(value=False)
    (library,) = _of_distinct(table["domain"], is_library)
    marker = engine | ((sequence >= 0) & backward)
    operator = engine | (sequence >= 0) | named | library
    outer = (given(table["is_pass"]) & ~operator) | _steps(trace, table)
    sequence = _with_inside(sequence, marker, parents)
    table = table.select("range", "process", "start", "path", "stage")
    ranges = _Ranges(table, parents, sequence, marker, operator, outer)
    return replace(ranges, around=ranges.holding(outer))


def _of_distinct(texts: pl.Series, *of_text: pl.Expr) -> list[Array]:
    """Evaluate expressions on texts (categorical), once per distinct one; return all rows."""
    distinct = texts.unique()
    codes, text_codes = (given(each.to_physical(), np.int64, null=-1) for each in (texts, distinct))
    # The last place is that of null, -1.
    places = np.empty(int(text_codes.max(initial=-1)) + 2, np.int64)
    places[text_codes] = np.arange(text_codes.size)
    rows = places[codes]
    named = (each.alias(str(place)) for place, each in enumerate(of_text))
    found = distinct.cast(pl.String).to_frame().select(named)
    return [given(column)[rows] for column in found]


def _steps(trace: Trace, table: pl.DataFrame) -> Array:
    """Return whether each range is a training step, that is, a row of the table `iterations`."""
    where = ["process", "thread", "start", "end"]
    steps = trace.read("iterations").select(where)
    begin = table.lazy().select(*where, row=pl.int_range(pl.len()))
    begin = begin.filter(pl.col("start").is_in(steps["start"].implode()))
    rows = begin.join(steps.lazy(), on=where, how="semi").select("row")
    found = np.zeros(table.height, np.bool_)
    found[rows.collect(engine="in-memory").to_series()] = True
    return found


def _with_inside(sequence: Array, marker: Array, parents: Array) -> Array:
    """Give autograd markers without a sequence number that of the first marker inside each."""
    known = np.flatnonzero(marker & (sequence >= 0) & (parents >= 0))[::-1]
    inside = np.full(sequence.size, -1)
    inside[parents[known]] = sequence[known]  # of several the last one assigned remains
    return np.where(marker & (sequence < 0), inside, sequence)


def _forward_rows(ranges: _Ranges) -> Array:
    """Return for each backward marker the row of its forward operator, -1 where there is none.

    This is the last operator with the marker's sequence number that began before it. Earlier ones
    only enclose it, or are not differentiated and show the number that comes next.
    """
    found = np.full(ranges.marker.size, -1)
    if ranges.marker.any():
        inside = ranges.innermost(ranges.marker) >= 0
        rows = ranges.table.select(
            "process", "start", row=pl.int_range(pl.len()), inside=pl.Series(inside),
            marker=pl.Series(ranges.marker), sequence=pl.Series(ranges.sequence),
        ).filter(pl.col("sequence") >= 0).sort("start", "row")  # fmt: skip
        key = ["process", "sequence"]
        forward = rows.filter(~pl.col("inside")).select(*key, "start", found="row")
        markers = rows.filter("marker").select(*key, "start", "row").join_asof(
            forward, on="start", by=key, check_sortedness=False
        )  # fmt: skip
        found[given(markers["row"])] = given(markers["found"], null=-1)
    return found


def _module_texts(ranges: _Ranges, module: Array, labels: pl.DataFrame) -> pl.Series:
    """Return the name of each module range: labels of the modules around it, then its own label.

    `module` has, for each range, the row in `ranges` of the innermost module range that contains it
    or is it; `labels` has, for each path of nested range names, the text to show (``label``).
    """
    paths = ranges.table["path"]
    own = np.arange(module.size)
    around = np.where(ranges.parents >= 0, module[ranges.parents], -1)
    rows = ranges.table.select(
        "path", module=pl.Series(module == own), above=_gathered(paths, around)
    )
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
    passing = ranges.innermost(ranges.around)
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
    forward = np.flatnonzero(~inside & (codes >= 0))
    layers, first = np.unique(codes[forward], return_index=True)
    order = np.argsort(first)
    places = np.full(int(codes.max(initial=-1)) + 2, -1)  # the last one is that of no text, -1
    places[layers[order]] = np.arange(layers.size)
    numbers = given(ranges.table["range"])
    every = np.full(int(numbers[-1]) + 1 if numbers.size else 0, -1)
    joined = np.full(every.size, len(_JOINED), np.uint8)
    every[numbers] = places[codes]
    joined[numbers] = np.where(codes < 0, len(_JOINED), inside)
    of_range, method = pl.Series(every), pl.Series(joined)
    return RangeLayers(
        text.gather(forward[first[order]]),
        of_range.set(of_range < 0, None),
        method.set(method == len(_JOINED), None).cat.to(pl.Enum(_JOINED)),
    )
