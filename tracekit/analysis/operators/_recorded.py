"""Recorded operators with sizes of arguments and FLOPs; nested operators count once.

- NVTX under ``emit_nvtx(record_shapes=True)``: ``aten::mm, seq = 3, sizes = [[2, 3], [3, 4]]``.
  What `tracekit record --annotate` writes goes on as ``, types = ["float32", "float32"]`` and
  ``, values = ["", "", "[2, 2]"]``.
- PyTorch's profiler: the payload of the range, JSON with ``Input Dims``, ``Input type`` and
  ``Concrete Inputs``.
- PyProf: ``{'mod': 'torch', 'op': 'mm', 'args': [{..., 'type': 'tensor', 'shape': (2, 3), ...``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.operators import _formulas as formulas
from tracekit.analysis.operators._formulas import MOVING, MULTIPLYING, OPERATORS, table

if TYPE_CHECKING:
    from tracekit.model import Trace

_OPERATOR = rf"^(?:aten::|flash_attn::)?({'|'.join(MULTIPLYING)})_?(?:,|$)"
# Users name ranges `sum` or `where`, too.
_MOVER = rf"^(?:aten|aiter|sgl_kernel|_C)::({'|'.join(MOVING)})_?(?:,|$)"
_ELSEWHERE = rf"^({'|'.join(name for name in OPERATORS if '::' in name)})(?:,|$)"
_NAMED = (r"^aten::(\w+?)_?(?:,|$)", r"^(\w+(?:::\w+)+)(?:,|$)")
_PYPROF = r"^\{'mod':.*?'op': '(\w+)'"
_PYPROF_TENSOR = r"'type': 'tensor', 'shape': \([\d, ]*\), 'dtype': '\w+'"
_BACKWARD = r"(?:^|::)\w*Backward\w*, (?:stashed )?seq ?= ?\d+"
_GRAPHED = r"^aten::\w+_backward, seq ?= ?\d"
_SEQUENCE = r"seq ?= ?(\d+)"
_SIZES = r", sizes = (\[(?:\[[\d, -]*\](?:, )?)*\])"
_TOLD = {"types": r", types = (\[[^\[\]]*\])", "values": r", values = (\[.*\])$"}
_NUMBER = r"-?(0|[1-9]\d{0,17})"
_SHAPES = rf"^\[(\[({_NUMBER}(,{_NUMBER})*)?\](,\[({_NUMBER}(,{_NUMBER})*)?\])*)?\]$"
_STRING = r'"[^"\\\x00-\x1f]*"'
_TEXTS = rf"^\[\s*({_STRING}(\s*,\s*{_STRING})*)?\s*\]$"
_DTYPES = {
    "double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "Half": "float16", "half": "float16", "BFloat16": "bfloat16", "long int": "int64",
    "long": "int64", "int": "int32", "short int": "int16", "short": "int16", "signed char": "int8",
    "unsigned char": "uint8", "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2", "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}  # fmt: skip
"""Names of types in C++, and in PyTorch."""
_NO_TENSORS = ("Scalar", "ScalarList", "TensorList")
_KINETO = '{"Input Dims":'
_LIST = r"^\[(\[\[.*?\]\])[,\]]"
"""The sizes of a list of tensors that is the first argument."""
_LENGTHS = r"\((?:sq(\d{1,9}))sk(\d{1,12})(?:sqsq\d+)sqsk(\d{1,15})\)"
_SERVED = rf"^execute_(?:\d+_)?context_\d+{_LENGTHS}_generation_\d+{_LENGTHS}$"
"""Sums over the requests of a step: of new tokens, of tokens to attend to, of their products."""
_SHAPE = pl.List(pl.List(pl.Int64))
_STRINGS = pl.List(pl.String)
_MATRIX = ("matrix", "linear")
_KEY = ["process", "sequence"]
_A, _B, _C = (pl.col(name) for name in "abc")
_FORM = pl.col("form")
_PAIRS = pl.col("pairs")


def recorded_operators(trace: Trace) -> pl.DataFrame:
    """Return operators with recorded sizes, for which FLOPs or bytes can be computed.

    Returns
    -------
    ``range, process, thread, start, end, operator, sequence`` (autograd's number), ``sizes`` (as
    text), times in ns, null where not recorded; ``shapes, types`` (of all arguments), ``a, b, c``
    (sizes of the operands that FLOPs depend on), ``stride, padding, dilation, transposed, mask,
    causal`` (null if unrecorded), ``pairs`` (number of pairs of a query and a key, in attention
    over several sequences), ``taken`` (number of keys attended to), and ``form, inputs`` of
    `Operator`.
    """
    name = pl.col("name")
    patterns = (_OPERATOR, _ELSEWHERE, _MOVER, _PYPROF)
    operator = pl.coalesce(name.str.extract(pattern) for pattern in patterns)
    # Most names occur in every step.
    named = (
        trace["ranges"].select(pl.col("name").unique())
        .with_columns(operator=operator, sequence=_sequence())
        .filter(pl.col("operator").is_in(list(OPERATORS)))
        .collect()
    )  # fmt: skip
    rows = (
        trace["ranges"].filter(pl.col("style") == "push_pop")
        .filter(pl.col("name").is_in(named["name"].implode()))
        .select("range", "process", "thread", "start", "end", "name", "payload")
        .join(named.lazy(), on="name", maintain_order="left")
        .collect()
    )  # fmt: skip
    sized = rows.with_columns(_shapes_text()).filter(
        pl.col("sizes").is_not_null() | pl.col("operator").is_in(list(MULTIPLYING))
    )
    found = sized.with_columns(
        types=_size_field("types", "Input type"), values=_size_field("values", "Concrete Inputs")
    ).with_columns(
        shapes=_decoded(
            pl.when(pl.col("operator") == "cat").then(_of_list()).otherwise("sizes"),
            _SHAPES,
            _SHAPE,
        ),
        types=pl.coalesce(_decoded("types", _TEXTS, _STRINGS), _pyprof_types()),
        values=_decoded("values", _TEXTS, _STRINGS),
    )
    placed = found.join(table(), on="operator", how="left", maintain_order="left")
    shape = pl.col("shapes")
    located = placed.select(
        "range", "process", "thread", "start", "end", "operator", "sequence", "form", "sizes",
        "shapes", "types", "inputs",
        **{name: _at(shape, f"place_{name}") for name in "abc"},
        **{name: _numbers(_value(f"{name}_at")) for name in ("stride", "padding", "dilation")},
        transposed=_truth(_value("transposed_at")), causal=_truth(_value("causal_at")),
        mask=_value("mask_at").str.to_lowercase().str.extract_all("true|false|[01]")
        .list.eval(_truth(pl.element())),
        starts=_at(shape, "starts_at"),
    )  # fmt: skip
    # In `torch.nn.functional`, which PyProf records, the indices of a look-up precede the table.
    is_index = [
        pl.col("types").list.get(n, null_on_oob=True).str.starts_with("int") for n in (0, 1)
    ]
    turned = pl.when((_FORM == "rows") & is_index[0] & ~is_index[1])
    swapped = [turned.then(other).otherwise(own).alias(own) for own, other in ("ab", "ba")]
    return _with_pairs(located.with_columns(swapped), trace)


def _with_pairs(operators: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``pairs`` (of query and key) and ``taken`` (keys) to attention over several sequences.

    For a single sequence they follow from its size. For several, a serving engine writes sums over
    the requests in prefill, and over those in decode, into its step's name; used are those of the
    requests with as many queries as the operator, unless prefill and decode both have that many.
    """
    served = (
        trace["ranges"].filter(pl.col("name").str.contains(_SERVED))
        .select("thread", begun="start", until="end",
                **{f"sum_{n}": pl.col("name").str.extract(_SERVED, n).cast(pl.Int64)
                   for n in range(1, 7)})
        .collect().sort("begun")
    )  # fmt: skip
    found = operators.sort("start").join_asof(
        served, left_on="start", right_on="begun", by="thread", check_sortedness=False
    )
    queries, keys = (pl.col(name).list.first() for name in "ab")
    is_single = (pl.col("starts").list.first() == 2).fill_null(value=False)  # noqa: PLR2004
    of_step = pl.col("end") <= pl.col("until")
    first, other = ([pl.col(f"sum_{n}") for n in group] for group in ((1, 2, 3), (4, 5, 6)))
    is_first, is_other = queries == first[0], queries == other[0]

    def field(place: int) -> pl.Expr:
        one, rest = first[place], other[place]
        return pl.when(of_step).then(
            pl.when(queries == first[0] + other[0]).then(one + rest)
            .when(is_first & ~is_other).then(one).when(is_other & ~is_first).then(rest)
        )  # fmt: skip

    # What holds keys one sequence after another holds those of the step, or it is another's.
    fits = pl.col("starts").is_null() | (field(1) == keys)
    return found.with_columns(
        pairs=pl.when(is_single).then(queries * keys).when(fits).then(field(2)),
        taken=pl.when(is_single).then(keys).when(fits).then(field(1)),
    ).drop("starts", "begun", "until", *(f"sum_{n}" for n in range(1, 7)))


def has_sizes(trace: Trace) -> bool:
    """Test whether any operator's sizes were recorded."""
    name, payload = pl.col("name"), pl.col("payload")
    sized = name.str.contains(_SIZES) | name.str.starts_with("{'mod'")
    is_sized = sized | payload.str.starts_with(_KINETO)
    some = trace["ranges"].filter(is_sized.fill_null(value=False)).select("range").head(1)
    return not some.collect().is_empty()


def named_operators(trace: Trace) -> pl.DataFrame:
    """Return ``range, operator, sizes, types`` of all ranges named after PyTorch operators.

    Names of operators lack the namespace ``aten``.
    """
    operator = pl.coalesce(pl.col("name").str.extract(pattern) for pattern in _NAMED)
    rows = trace["ranges"].select("range", "name", "payload", operator=operator)
    found = rows.filter(pl.col("operator").is_not_null()).collect()
    typed = found.with_columns(_shapes_text(), types=_size_field("types", "Input type"))
    types = _decoded("types", _TEXTS, _STRINGS)
    return typed.select("range", "operator", "sizes", types=types)


def operand_types(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``dtype``: the types of the tensors in ``sizes, types``, each once, by PyTorch's names.

    Scalars count only if all arguments are scalars.
    """
    text = pl.col("types").list.join("\t")
    alike = (
        rows.select("sizes", "types", text=text).drop_nulls().unique(["sizes", "text"])
        .with_columns(shapes=_decoded("sizes", _SHAPES, _SHAPE))
        .filter(pl.col("shapes").list.len() == pl.col("types").list.len())
        .with_row_index("key")
    )  # fmt: skip
    name = pl.col("types").replace(_DTYPES)
    has_size = pl.col("shapes").list.len() > 0
    found = (
        alike.explode("shapes", "types")
        .filter(~pl.col("types").is_in(["", *_NO_TENSORS]),
                has_size | ~has_size.any().over("key"))
        .group_by("key", maintain_order=True).agg(dtype=name.unique(maintain_order=True))
        .select("key", dtype=pl.col("dtype").list.join(", "))
    )  # fmt: skip
    keyed = alike.select("key", "sizes", "text").join(found, on="key").drop("key")
    return rows.with_columns(text=text).join(
        keyed, on=["sizes", "text"], how="left", maintain_order="left"
    ).drop("text")  # fmt: skip


def backward_nodes(trace: Trace) -> pl.DataFrame:
    """Return ``process, thread, start, end`` (ns), ``sequence`` of autograd's backward nodes.

    They are sorted by start. ``sequence`` is autograd's number of the forward operator that the
    node differentiates.
    """
    sequence = _sequence()
    return (
        trace["ranges"].filter((pl.col("style") == "push_pop")
                               & pl.col("name").str.contains(_BACKWARD))
        .select("process", "thread", "start", "end", sequence=sequence)
        .collect().sort("start", "end", descending=[False, True])
    )  # fmt: skip


def backward_graphs(trace: Trace) -> list[int]:
    """Return the processes whose backward passes record an autograd graph (`create_graph`).

    There, backward operators have sequence numbers too, as autograd numbers what it records.
    """
    named = trace["ranges"].filter(pl.col("name").str.contains(_GRAPHED))
    return named.select(pl.col("process").unique()).collect()["process"].to_list()


def _sequence() -> pl.Expr:
    """Return autograd's sequence number from the name of a range."""
    return pl.col("name").str.extract(_SEQUENCE).cast(pl.Int64, strict=False)


def _shapes_text() -> pl.Expr:
    """Return the sizes of all arguments, as JSON."""
    tensors = pl.col("name").str.extract_all(_PYPROF_TENSOR).list.eval(
        pl.format("[{}]", pl.element().str.extract(r"\(([\d, ]*)\)").str.strip_chars(", "))
    )  # fmt: skip
    of_pyprof = pl.when(pl.col("name").str.starts_with("{'mod'")).then(
        pl.format("[{}]", tensors.list.join(", "))
    )
    of_nvtx = pl.col("name").str.extract(_SIZES)
    return (
        pl.coalesce(of_nvtx, _of_kineto("Input Dims"), of_pyprof)
        .str.replace_all(r",\s+", ",")
        .alias("sizes")
    )


def _of_kineto(key: str) -> pl.Expr:
    """Return the value of a key in the payload of PyTorch's profiler."""
    payload = pl.when(pl.col("payload").str.starts_with(_KINETO)).then("payload")
    return payload.str.json_path_match(f"$['{key}']")


def _size_field(column: str, key: str) -> pl.Expr:
    """Return field `column`, which follows the sizes in a range's name, or payload field `key`."""
    return pl.coalesce(pl.col("name").str.extract(_TOLD[column]), _of_kineto(key))


def _pyprof_types() -> pl.Expr:
    tensors = pl.col("name").str.extract_all(_PYPROF_TENSOR)
    return pl.when(tensors.list.len() > 0).then(
        tensors.list.eval(pl.element().str.extract(r"'dtype': '(\w+)'"))
    )


def _of_list() -> pl.Expr:
    """Return, as JSON, the sizes of tensors that an operator such as `cat` takes as one list.

    PyTorch's profiler nests them in a list; with `emit_nvtx` the list ends before the first
    argument without dimensions.
    """
    text = pl.col("sizes")
    return pl.coalesce(text.str.extract(_LIST), text.str.replace(r",\[\](,.*)?\]$", "]"))


def _decoded(column: str | pl.Expr, pattern: str, dtype: pl.List) -> pl.Expr:
    """Parse JSON lists of type `dtype`; null if the text does not match the regular expression."""
    text = pl.col(column) if isinstance(column, str) else column
    usual = pl.when(text.str.contains(pattern)).then(text)
    return usual.str.json_decode(dtype)


def _at(values: pl.Expr, place: str) -> pl.Expr:
    found = values.list.get(pl.col(place), null_on_oob=True)
    # A tensor that is none has no dimensions, as a number has.
    return pl.when(found.list.len() > 0).then(found)


def _value(place: str) -> pl.Expr:
    return pl.col("values").list.get(pl.col(place), null_on_oob=True)


def _numbers(text: pl.Expr) -> pl.Expr:
    usual = pl.when(text.str.contains(r"^\[\d{1,9}(, ?\d{1,9})*\]$|^\d{1,9}$")).then(text)
    return usual.str.extract_all(r"\d{1,9}").list.eval(pl.element().cast(pl.Int64))


def _truth(text: pl.Expr) -> pl.Expr:
    known = {"true": True, "1": True, "false": False, "0": False}
    return text.str.to_lowercase().replace_strict(known, default=None, return_dtype=pl.Boolean)


def counted_operators(
    operators: pl.DataFrame, nodes: pl.DataFrame, graphed: Sequence[int]
) -> pl.DataFrame:
    """Return one operator of each set of nested operators, with its FLOPs.

    ``aten::linear`` calls ``aten::addmm``; ``aten::conv2d`` calls ``aten::convolution``, which
    calls ``aten::cudnn_convolution``: of nested operators the outermost with known FLOPs counts, or
    the outermost if none has any.

    Parameters
    ----------
    operators
        Operators with recorded sizes, from `recorded_operators`.
    nodes
        Autograd's backward nodes, from `backward_nodes`.
    graphed
        Processes whose backward passes record a graph, from `backward_graphs`.

    Returns
    -------
    Columns of `operators`; ``flops``; ``gradients`` (for a backward convolution, the number of
    gradients it computes, by which FLOPs are to be multiplied; null if its ``mask`` was not
    recorded); and ``recomputed``, whether a backward pass repeats a forward operator (null if
    unknown).
    """
    nested = _with_recomputed(_nested(_in_nodes(operators, nodes)), graphed)
    forms = set(nested["form"].unique())
    sized = nested.with_columns(flops=_flops(_known_positions(), forms))
    found = _with_backward_matrices(_with_forward_convolutions(sized))
    known = _outermost(found.filter(pl.col("flops").is_not_null()))
    unknown = found.filter(pl.col("flops").is_null().all().over("nest"), pl.col("is_outer"))
    chosen = pl.concat([known, unknown.select(known.columns)]).sort("thread", "start")
    return chosen.with_columns(gradients=_gradients())


def _in_nodes(operators: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Add ``node``: sequence number of the autograd backward node that encloses an operator."""
    last = nodes.select("thread", node_end="end", node="sequence", begun="start")
    return (
        operators.sort("start")
        .join_asof(last, left_on="start", right_on="begun", by="thread", check_sortedness=False)
        .with_columns(node=pl.when(pl.col("end") <= pl.col("node_end")).then("node"))
        .drop("node_end", "begun")
    )


def _nested(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``is_outer`` (lies in no other operator), ``nest``: a number per outermost operator."""
    outer = _outer()
    ordered = rows.sort("thread", "start", "end", descending=[False, False, True])
    return ordered.with_columns(is_outer=outer).with_columns(nest=pl.col("is_outer").cum_sum())


def _with_recomputed(rows: pl.DataFrame, graphed: Sequence[int]) -> pl.DataFrame:
    """Add ``recomputed``: whether activation checkpointing ran a forward operator again.

    A backward pass usually records no autograd graph, so only recomputed operators have a sequence
    number there, and the same operator with equal sizes ran forward. If it does record a graph (as
    for a gradient penalty), or an old PyTorch numbers every operator, gradients may look the same:
    then null (false if no such operator ran forward).
    """
    alike = ["process", "operator", "sizes"]
    forward = rows.filter(pl.col("node").is_null()).select(alike).unique().drop_nulls("sizes")
    numbered = pl.col("sequence").is_not_null().any().over("nest")
    is_inside = pl.col("node").is_not_null()
    again = is_inside & pl.col("numbered") & ~_FORM.str.ends_with("_backward")
    all_numbered = (pl.col("numbered") | ~is_inside).all().over("process")
    is_graphed = pl.col("process").is_in(list(graphed)) | pl.col("all_numbered")
    ran = pl.col("ran").fill_null(value=False)
    recomputed = (
        pl.when(~again).then(pl.lit(value=False))
        .when(is_graphed & ~ran).then(pl.lit(value=False))
        .when(~is_graphed & ran).then(pl.lit(value=True))
    )  # fmt: skip
    return (
        rows.with_columns(numbered=numbered)
        .join(forward.with_columns(ran=pl.lit(value=True)), on=alike, how="left",
              maintain_order="left")
        .with_columns(all_numbered=all_numbered)
        .with_columns(recomputed=recomputed).drop("ran", "numbered", "all_numbered")
    )  # fmt: skip


def _outermost(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(_outer())


def _outer() -> pl.Expr:
    """Return an expression, true for ranges that no earlier range on their thread encloses."""
    ended = pl.col("end").cum_max().shift(1).over("thread")
    return (pl.col("start") >= ended).fill_null(value=True)


def _known_positions() -> pl.Expr:
    """Return a forward convolution's output positions; null without stride and padding."""
    positions = formulas.output_positions(
        _A, _B, pl.col("stride"), pl.col("padding"),
        pl.coalesce("dilation", pl.lit([1], pl.List(pl.Int64))),
    )  # fmt: skip
    turned = formulas.positions(_A, _B)
    return pl.when(pl.col("transposed").fill_null(value=False)).then(turned).otherwise(positions)


def _flops(positions: pl.Expr, forms: Container[str]) -> pl.Expr:
    """Return the FLOPs of each operator by its sizes; of a backward operator, per gradient.

    `positions` is the number of output positions of a convolution.

    The expression contains only the formulas of `forms`, since formulas are long.
    """

    def by_position() -> pl.Expr:
        return formulas.attention_by_position(_A, _B, _C, _PAIRS)

    by_form: dict[str, Callable[[], pl.Expr]] = {
        "matrix": lambda: formulas.matrix(_A, _B),
        "linear": lambda: formulas.linear(_A, _B),
        "convolution": lambda: formulas.sliding(_A, _B, positions),
        "transposed": lambda: formulas.sliding(_A, _B, formulas.positions(_A, _B)),
        "linear_backward": lambda: formulas.linear(_B, _C),
        "convolution_backward": lambda: formulas.sliding(
            _A, _C, formulas.backward_positions(_A, _B, _C, pl.col("transposed"))
        ),
        "attention": lambda: formulas.attention(_A, _B, _C),
        # Four multiplications of matrices in place of two; what is computed again is left out.
        "attention_backward": lambda: 2 * formulas.attention(_A, _B, _C),
        "attention_by_position": by_position,
        "attention_by_position_backward": lambda: 2 * by_position(),
        "attention_by_position_gradients": lambda: 2 * by_position(),
        "attention_paged": lambda: formulas.attention_of_requests(_A, _B, _C, _PAIRS),
        "attention_cached": lambda: formulas.attention_of_requests(_A, _B, _C, _PAIRS),
    }
    known = (
        pl.when(form == _FORM).then(value()) for form, value in by_form.items() if form in forms
    )
    return pl.coalesce(*known, pl.lit(None, pl.Int64))


def _with_forward_convolutions(rows: pl.DataFrame) -> pl.DataFrame:
    """Give forward convolutions of unknown stride or padding the FLOPs of their backward pass.

    The backward operator's sizes contain the output's size. It is found by the same autograd
    sequence number.
    """
    open_ones = rows.filter((_FORM == "convolution") & pl.col("flops").is_null())
    if open_ones.is_empty():
        return rows
    back = rows.filter((_FORM == "convolution_backward") & pl.col("flops").is_not_null())
    found = back.select("process", sequence="node", known=pl.col("flops"), weight="c").unique(
        _KEY, keep="none"
    )
    alone = rows.filter(_FORM == "convolution", pl.col("node").is_null()).drop_nulls("sequence")
    nests = alone.unique(["nest", *_KEY]).unique(_KEY, keep="none")
    of_nest = nests.join(found, on=_KEY).unique("nest", keep="none")
    joined = rows.join(of_nest.select("nest", "known", "weight"), on="nest", how="left",
                     maintain_order="left")  # fmt: skip
    same = (_FORM == "convolution") & (pl.col("weight") == _B)
    return joined.with_columns(
        flops=pl.coalesce("flops", pl.when(same).then("known"))
    ).drop("known", "weight")  # fmt: skip


def _with_backward_matrices(rows: pl.DataFrame) -> pl.DataFrame:
    """Give backward matrix products of unknown size the FLOPs of their forward product.

    The gradients of C = A B, (m, k) by (k, n), are C' B^T and A^T C', also with 2 m k n each.
    """
    is_matrix = _FORM.is_in(_MATRIX)
    alone = _FORM.first().over("nest").is_in(_MATRIX)  # and not one of several, as in attention
    forward = rows.filter(is_matrix & alone, pl.col("node").is_null())
    outer = forward.drop_nulls("flops").unique("nest", keep="first", maintain_order=True)
    numbers = forward.drop_nulls("sequence").select("nest", *_KEY).unique()
    known = outer.select("nest", known="flops").join(numbers, on="nest").drop("nest")
    # Operators show the number that is next: the last one that shows it is the one it is given to.
    found = known.group_by(_KEY).agg(
        pl.col("known").first(), several=pl.col("known").n_unique() > 1
    ).filter(~pl.col("several"))  # fmt: skip
    back = found.select("process", "known", node="sequence")
    joined = rows.join(back, on=["process", "node"], how="left", maintain_order="left")
    return joined.with_columns(
        flops=pl.coalesce("flops", pl.when(is_matrix).then("known"))
    ).drop("known")  # fmt: skip


def _gradients() -> pl.Expr:
    """Return how many gradients (input, weight) an operator computes, by ``mask``; else null."""
    first_two = pl.col("mask").list.head(2)
    wanted = first_two.list.eval(pl.element().cast(pl.Int64)).list.sum()
    is_told = (first_two.list.len() == 2) & (first_two.list.drop_nulls().list.len() == 2)  # noqa: PLR2004
    return pl.when(_FORM.is_in(formulas.GRADIENTS) & is_told).then(wanted).cast(pl.Int64)
