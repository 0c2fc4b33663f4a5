"""Count nested operators once, with the FLOPs of each."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import polars as pl

from tracekit.analysis.operators import _formulas as formulas

_MATRIX = ("matrix", "linear")
_KEY = ["process", "sequence"]
_A, _B, _C = (pl.col(name) for name in "abc")
_FORM = pl.col("form")
_PAIRS = pl.col("pairs")


def counted_operators(
    operators: pl.DataFrame, nodes: pl.DataFrame, graphed: Sequence[int]
) -> pl.DataFrame:
    """Return one operator of each nest, and its FLOPs.

    ``aten::linear`` is made of ``aten::addmm``, ``aten::conv2d`` of ``aten::convolution`` and that
    of ``aten::cudnn_convolution``: of those inside each other the outermost one counts of which
    FLOPs are known, and where they are known of none, the outermost one.

    Parameters
    ----------
    operators
        As `recorded_operators` returns them.
    nodes
        As `backward_nodes` returns them.
    graphed
        As `backward_graphs` returns them.

    Returns
    -------
    Columns of `operators`, and ``flops``, ``gradients``: null, or of a backward convolution by how
    many it is to be multiplied, which kernels tell where `mask` does not; and ``recomputed``,
    whether a backward pass repeats a forward operator, null where that is not known.
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
    """Add ``node``: of what runs backward, the number of the forward operator it belongs to."""
    last = nodes.select("thread", node_end="end", node="sequence", begun="start")
    return (
        operators.sort("start")
        .join_asof(last, left_on="start", right_on="begun", by="thread", check_sortedness=False)
        .with_columns(node=pl.when(pl.col("end") <= pl.col("node_end")).then("node"))
        .drop("node_end", "begun")
    )


def _nested(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``is_outer``, and ``nest``: a number for what lies in the same outermost operator."""
    outer = _outer()
    ordered = rows.sort("thread", "start", "end", descending=[False, False, True])
    return ordered.with_columns(is_outer=outer).with_columns(nest=pl.col("is_outer").cum_sum())


def _with_recomputed(rows: pl.DataFrame, graphed: Sequence[int]) -> pl.DataFrame:
    """Add ``recomputed``, by what activation checkpointing leaves in a backward pass.

    Gradients are computed without recording a graph, so only operators that run forward again have
    a number there; the same operator of the same sizes ran forward. Where the backward pass records
    a graph, as a gradient penalty does, or PyTorch is so old that it numbers every operator, its
    own multiplications have numbers too, and may look the same: there all are numbered.
    """
    alike = ["process", "operator", "sizes"]
    forward = rows.filter(pl.col("node").is_null()).select(alike).unique().drop_nulls("sizes")
    numbered = pl.col("sequence").is_not_null().any().over("nest")
    is_inside = pl.col("node").is_not_null()
    again = is_inside & pl.col("numbered") & ~_FORM.str.ends_with("_backward")
    all_numbered = (pl.col("numbered") | ~is_inside).all().over("process")
    is_graphed = pl.col("process").is_in(list(graphed)) | pl.col("all_numbered")
    ran = pl.col("ran").fill_null(value=False)
    told = (
        pl.when(~again).then(pl.lit(value=False))
        .when(is_graphed & ~ran).then(pl.lit(value=False))
        .when(~is_graphed & ran).then(pl.lit(value=True))
    )  # fmt: skip
    return (
        rows.with_columns(numbered=numbered)
        .join(forward.with_columns(ran=pl.lit(value=True)), on=alike, how="left",
              maintain_order="left")
        .with_columns(all_numbered=all_numbered)
        .with_columns(recomputed=told).drop("ran", "numbered", "all_numbered")
    )  # fmt: skip


def _outermost(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(_outer())


def _outer() -> pl.Expr:
    """Tell which ranges begin after all those before them have ended, on their thread."""
    ended = pl.col("end").cum_max().shift(1).over("thread")
    return (pl.col("start") >= ended).fill_null(value=True)


def _known_positions() -> pl.Expr:
    """Return a forward convolution's output positions, where stride and padding are recorded."""
    told = formulas.output_positions(
        _A, _B, pl.col("stride"), pl.col("padding"),
        pl.coalesce("dilation", pl.lit([1], pl.List(pl.Int64))),
    )  # fmt: skip
    turned = formulas.positions(_A, _B)
    return pl.when(pl.col("transposed").fill_null(value=False)).then(turned).otherwise(told)


def _flops(positions: pl.Expr, forms: Container[str]) -> pl.Expr:
    """Return the FLOPs of each operator by its own sizes; of gradients those of one.

    Formulas are long, so only those of the forms that there are go into the expression.
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
    """Let the gradient that comes back tell the positions where stride and padding are unknown.

    It has the size of what the convolution returned. The number that autograd gave to both says
    which backward pass is that of which convolution.
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
    told = rows.join(of_nest.select("nest", "known", "weight"), on="nest", how="left",
                     maintain_order="left")  # fmt: skip
    same = (_FORM == "convolution") & (pl.col("weight") == _B)
    return told.with_columns(
        flops=pl.coalesce("flops", pl.when(same).then("known"))
    ).drop("known", "weight")  # fmt: skip


def _with_backward_matrices(rows: pl.DataFrame) -> pl.DataFrame:
    """Give multiplications of unknown size the FLOPs of the one that they are the backward of.

    Of C = A B with (m, k) by (k, n) the gradients are C' B^T and A^T C': each 2 m k n too.
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
    told = rows.join(back, on=["process", "node"], how="left", maintain_order="left")
    return told.with_columns(
        flops=pl.coalesce("flops", pl.when(is_matrix).then("known"))
    ).drop("known")  # fmt: skip


def _gradients() -> pl.Expr:
    """Return how many gradients are wanted, of input and weight, of what multiplies for each."""
    first_two = pl.col("mask").list.head(2)
    wanted = first_two.list.eval(pl.element().cast(pl.Int64)).list.sum()
    is_told = (first_two.list.len() == 2) & (first_two.list.drop_nulls().list.len() == 2)  # noqa: PLR2004
    return pl.when(_FORM.is_in(formulas.GRADIENTS) & is_told).then(wanted).cast(pl.Int64)
