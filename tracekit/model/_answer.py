"""Result of an analysis, called an answer: a table, its meta, title and warnings.

The options that choose and order its rows (`where`, `sort`, `top`) are parsed here too.

Units of columns follow from their names everywhere (``_ns``, ``_bytes``, ``_gb_s``, ``_percent``).
Other traits of columns are declared here once; code that shows a table looks them up by name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self

import polars as pl

from tracekit.errors import UsageError
from tracekit.model._readable_names import readable_names
from tracekit.model._vocabulary import KINDS, STAGES
from tracekit.support.quantities import parse_count, parse_duration, parse_size
from tracekit.support.spelling import choose_among

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from tracekit.support.schemas import Column

_WARNINGS = "warnings"
_TYPES = {"String": pl.String, "Float64": pl.Float64}
"""Types that columns are cast to as declared; integers keep the width by which they are joined."""


def _with_texts(frame: pl.DataFrame) -> pl.DataFrame:
    named = [name for name, kind in frame.schema.items() if kind in (pl.Categorical, pl.Enum)]
    return frame.cast(dict.fromkeys(named, pl.String)) if named else frame


class Renderer(Protocol):
    """Interface of the code that displays answers as HTML and figures."""

    def html(self, answer: Answer) -> str:
        """Return the answer as HTML for a notebook."""

    def draw(self, answer: Answer, drawing: str) -> go.Figure:
        """Draw one of the answer's figures; `drawing` is its name, a value of `Answer.figures`."""


Headline = Callable[[pl.DataFrame, Mapping[str, Any]], str | None]
"""Function of a table's rows and meta that returns the line above the table, or None."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Result of an analysis: a table, with its meta, title and warnings.

    Parameters
    ----------
    rows
        The table.
    meta
        Facts about the table, by name: its coverage, the totals that shares refer to, values that
        are unknown.
    title
        Line above the table on a terminal or a page.
    tables
        Further tables: name -> table.
    listed
        Names of those of `tables` that JSON and pages list below the rows.
    readable
        A version of `rows` for display on a terminal or a page; None to display `rows` themselves.
    empty
        Text displayed if there are no rows.
    is_whole
        Whether `rows` is complete: no row was left out by `choosing`.
    every
        All displayed rows before `choosing`, which short names of kernels tell apart; None if these
        are the rows now.
    parts
        Results of several analyses, displayed one after the other: name -> answer.
    as_records
        Whether each row is displayed as a block of lines, and not as a line of a table.
    command
        The command that gives this answer, as a user types it.
    run
        Name of the run that the answer is about, or None.
    figures
        Figures that can be drawn: command-line option -> name that `renderer` knows the figure by.
    source
        Data that the figures need beyond the rows.
    renderer
        Displays the answer; None until it is displayed for the first time.
    headline
        Function of `rows` and `meta` that returns the sentence printed first, or None for no
        sentence. It is called only if `rows` is complete (`is_whole`).
    lacking
        Function that names the recording options that would provide a figure's missing data, or
        returns None if these are unknown.
    """

    rows: pl.DataFrame
    meta: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    listed: Sequence[str] = ()
    readable: pl.DataFrame | None = None
    empty: str = "no rows"
    is_whole: bool = True
    every: pl.DataFrame | None = field(default=None, repr=False, compare=False)
    parts: Mapping[str, Answer] = field(default_factory=dict)
    as_records: bool = False
    command: str = ""
    run: str | None = None
    figures: Mapping[str, str] = field(default_factory=dict)
    source: Any = field(default=None, repr=False)
    renderer: Renderer | None = field(default=None, repr=False, compare=False)
    headline: Headline | None = field(default=None, repr=False, compare=False)
    lacking: Callable[[], str | None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Texts are String, whichever table they come from: `.str` works on all, and frames join.
        object.__setattr__(self, "rows", _with_texts(self.rows))
        tables = {name: _with_texts(table) for name, table in self.tables.items()}
        object.__setattr__(self, "tables", tables)

    @property
    def readable_rows(self) -> pl.DataFrame:
        """The rows as displayed on a terminal or a page."""
        return self.rows if self.readable is None else self.readable

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that qualify the rows, one sentence each."""
        return tuple(self.meta.get(_WARNINGS, ()))

    def saying(self, **more: Any) -> Self:
        """Return a copy of the answer with the entries `more` added to its `meta`."""
        return replace(self, meta={**self.meta, **more})

    def warning(self, texts: Sequence[str]) -> Self:
        """Return a copy with the warnings `texts` put after those that the answer already has."""
        return self.saying(warnings=[*self.warnings, *texts]) if texts else self

    def choosing(
        self, where: str | Sequence[str] = (), sort: str | None = None, top: int | None = None
    ) -> Self:
        """Return a copy with only the rows that meet conditions, sorted; its title describes both.

        Parameters
        ----------
        where
            Conditions, each of which a row must meet, such as ``mean>1ms`` or
            ``device=0 and stream=7 or device=1``.
        sort
            Column to order by, ascending; with `-` before its name descending. None keeps the
            order.
        top
            Number of rows to keep from the top; None keeps all.

        Raises
        ------
        UsageError
            If a condition cannot be read, a column does not exist, or `top` is below 1.
        """
        conditions = [where] if isinstance(where, str) else [*where]
        if not conditions and sort is None and top is None:
            return self
        kept = _places(self._with_shown(), conditions, sort, top)
        leaves_out = bool(conditions) or top is not None
        notes = [
            *([f"{kept.len():,} of {self.rows.height:,} rows"] if leaves_out else []),
            *([f"by {sort}"] if sort is not None else []),
        ]
        return replace(
            self,
            rows=self.rows[kept],
            readable=None if self.readable is None else self.readable[kept],
            is_whole=not leaves_out,
            every=self.readable_rows if self.every is None else self.every,
            title=" · ".join(filter(None, [self.title, *notes])),
            empty=f"no row meets {', '.join(conditions)}" if conditions else self.empty,
        )

    def _with_shown(self) -> pl.DataFrame:
        """Return the rows with further columns: the numbers that the displayed table has instead.

        For each numeric column that `readable` has too, its values there (such as means over GPUs)
        are added under a prefixed name.
        """
        if self.readable is None:
            return self.rows
        shown, numbers = self.readable, pl.selectors.numeric()
        own = set(self.rows.select(numbers).columns)
        both = [name for name in shown.select(numbers).columns if name in own]
        return self.rows.with_columns(shown[name].alias(_SHOWN + name) for name in both)

    def typed(self, columns: Sequence[Column]) -> Self:
        """Return a copy of the answer with its columns cast to the types of `columns`."""
        made = [
            pl.col(each.name).cast(_TYPES[each.type])
            for each in columns
            if each.name in self.rows.columns and each.type in _TYPES
        ]
        return replace(self, rows=self.rows.with_columns(made))

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a frame of pandas.

        Raises
        ------
        UsageError
            If pandas or pyarrow is not installed.
        """
        try:
            import_module("pandas")
            return self.rows.to_pandas()
        except ModuleNotFoundError as error:
            raise UsageError(
                f"a frame of pandas takes {error.name or 'pandas and pyarrow'}",
                "pip install 'tracekit[pandas]'",
            ) from error

    def figure(self, name: str = "figure") -> go.Figure:
        """Draw a figure of the answer.

        Parameters
        ----------
        name
            Name of the figure, a key of the answer's field `figures`.

        Raises
        ------
        UsageError
            If there is no such figure of this answer.
        """
        title = self.title.rpartition(" · ")[2] or "this"
        if not self.figures or self.renderer is None:
            raise UsageError(f"no figure shows {title}", "leave it out")
        if name not in self.figures:
            raise UsageError(
                f"no figure {name!r} of {title}", f"there is {', '.join(self.figures)}"
            )
        return self.renderer.draw(self, self.figures[name])

    def _repr_html_(self) -> str | None:
        return None if self.renderer is None else self.renderer.html(self)


_CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|!=|!~|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_AND, _OR = (re.compile(rf"\s+{word}\s+(?=\w+\s*[<>=!~])") for word in ("and", "or"))
"""What joins two conditions: a word before the name and the sign of another one."""
_UNITS = ("_ns", "_bytes", "_gb_s", "_percent")
_TRUTH = {"yes": "true", "no": "false"}
_ORDERED = frozenset({"<", ">", "<=", ">="})


_POSSIBLE: Mapping[str, Sequence[str]] = {"stage": STAGES, "kind": KINDS}
"""Columns of texts with a fixed set of values: name -> values."""
_PLACE, _SHOWN = "\x00place", "\x00shown "
"""Names of columns that no user types: place of a row, and before a name what a table shows."""


def _places(
    rows: pl.DataFrame, where: Sequence[str], sort: str | None, top: int | None
) -> pl.Series:
    """Return the positions of the rows that meet the conditions, sorted and cut to `top`.

    Raises
    ------
    UsageError
        If a condition cannot be read, a column does not exist, or `top` is below 1.
    """
    if top is not None and top < 1:
        raise UsageError(f"{top} rows cannot be listed", "give 1 or more")
    rows = rows.with_row_index(_PLACE)
    for text in where:
        either = (
            pl.all_horizontal(_condition(each, rows) for each in _AND.split(part))
            for part in _OR.split(text)
        )
        rows = rows.filter(pl.any_horizontal(either))
    if sort is not None:
        rows = _sorted(rows, sort)
    return (rows if top is None else rows.head(top))[_PLACE]


def _sorted(rows: pl.DataFrame, sort: str) -> pl.DataFrame:
    name = _column(sort.removeprefix("-"), rows)
    descending = rows[name].dtype.is_numeric() != sort.startswith("-")
    by = _shown(name, sort.removeprefix("-"), rows)
    return rows.sort(by, descending=descending, nulls_last=True, maintain_order=True)


def _column(name: str, rows: pl.DataFrame) -> str:
    """Return the column for a name that a user typed, with or without its unit such as ``_ns``."""
    known = [column for column in rows.columns if not column.startswith((_PLACE, _SHOWN))]
    for unit in ("", *_UNITS):
        if name + unit in known:
            return name + unit
    raise UsageError(f"unknown column {name!r}", choose_among(name, known))


def _shown(name: str, typed: str, rows: pl.DataFrame) -> str:
    """Return the column that a condition or a sort order compares, for a name that a user typed.

    `name` is the column of sums over GPUs (``window_ns``), `typed` what the user wrote. A printed
    table may show means in a column without the unit (``window``): if the user wrote that, the
    column of means is returned.
    """
    return _SHOWN + name if name != typed and _SHOWN + name in rows.columns else name


def _condition(text: str, rows: pl.DataFrame) -> pl.Expr:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(
            f"cannot read the condition {text!r}",
            "write it as stage=BP, mean>1ms, share>=5% or name~gemm",
        )
    name, sign = _column(found[1], rows), found[2]
    dtype = rows[name].dtype
    if dtype.is_nested():
        raise UsageError(
            f"{name} has lists, to which no condition applies", "choose another column"
        )
    column = pl.col(_shown(name, found[1], rows))
    value: float | str = found[3]
    if "~" in sign:
        column = column.cast(pl.String)
        _check_pattern(found[3])
    elif dtype.is_numeric():
        value = _number(name, found[3])
        if name == f"{found[1]}_ns" and found[3].rstrip("0123456789.") == "" and value:
            raise UsageError(f"{text!r} names no unit", f"write it as {text}ms, or {text}ns")
    elif sign in _ORDERED:
        raise UsageError(f"{name} has texts, which {sign} does not order", "use =, != or ~")
    else:
        column = column.cast(pl.String)
        value = _TRUTH.get(found[3], found[3]) if dtype == pl.Boolean else found[3]
        if name in _POSSIBLE and value not in {*_POSSIBLE[name], *rows[name]}:
            raise UsageError(
                f"{name} {found[3]!r} is unknown", choose_among(found[3], _POSSIBLE[name])
            )
    names = [column]
    if not traits(name).kernel_beside.isdisjoint(rows.columns):
        names.append(pl.lit(with_readable_names(rows)[name]))  # as tables show them
    of_all = pl.all_horizontal if sign.startswith("!") else pl.any_horizontal
    return of_all(_COMPARED[sign](each, value) for each in names)


def _check_pattern(pattern: str) -> None:
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError as error:
        raise UsageError(
            f"cannot read the pattern {pattern!r}", "write a regular expression"
        ) from error


_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
    "<=": operator.le, ">=": operator.ge,
    "~": lambda column, pattern: column.str.contains(pattern),
    "!~": lambda column, pattern: ~column.str.contains(pattern),
}  # fmt: skip


def _number(column: str, text: str) -> float:
    """Parse a number that a user typed for a column, by default in the column's unit."""
    try:
        return float(text)
    except ValueError:
        pass
    if text.endswith("%"):
        share = _plain_number(text.removesuffix("%"), text)
        return share if column.endswith("_percent") else share / 100
    if column.endswith("_ns"):
        return parse_duration(text)
    if column.endswith("bytes"):
        return parse_size(text)
    return parse_count(text)


def _plain_number(text: str, value: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"cannot read the number {value!r}", "write it as 5%, 1.5ms, 4MiB or 60M"
        ) from None


@dataclass(frozen=True)
class Traits:
    """How tables display a column: heading, wrapping, rounding, and when to leave it out."""

    label: str | None = None
    """Heading displayed in place of the column's name."""
    spare: int | None = None
    """Order in which columns are left out of a table that is too wide: the lowest number first.
    Columns with None follow, from the right."""
    needs: frozenset[str] = frozenset()
    """Columns with about the same information: `spare` applies only if the table has one of
    them."""
    essential: bool = False
    """Whether it is left out last, even after other columns with None in `spare`, as the table is
    useless without it."""
    prose: bool = False
    """Whether it contains sentences, which are wrapped and not cut."""
    wraps: bool = False
    """Whether its texts, shorter than sentences, are wrapped rather than cut."""
    names: bool = False
    """Whether its integers are identifiers (such as ranks), shown without thousands separators."""
    kernel_beside: frozenset[str] = frozenset()
    """If a table has one of these columns (this column may be among them), the texts of this column
    are kernel names."""
    exact: bool = False
    """Whether its sizes in bytes are shown unrounded, each cell in its own unit."""


_SPARE = (
    "method_source", "p_value", "a_outside_steps_ns", "b_outside_steps_ns", "a_count", "b_count",
    "mode",
    "baseline_runs", "baseline_gpus", "throughput_ratio", "style", "launching", "self_busy_ns",
    "ratio", "p5_ns", "p95_ns", "median_ns", "min_ns", "max_ns", "mean_ns", "overlap_ns", "idle_ns",
    "busy_ns", "files", "id", "duration_p5_ns", "duration_p95_ns", "duration_max_ns",
    "straggler_rank", "bytes_source", "basis", "library", "unsized", "link", "nvlinks", "steps",
    "baseline_steps", "time_low_ns", "time_high_ns", "baseline_low_ns", "baseline_high_ns",
    "speedup_low", "speedup_high", "low_percent", "high_percent", "interval_of", "gradient_bytes",
    "star_root_bytes", "ring_gpu_bytes", "observed_evidence", "points", "smallest", "largest",
    "dependencies", "segments", "slack_p50_ns",
    "chance_share", "late_ns", "last", "outside_steps_ns", "flops", "recomputed_flops", "unknown",
    "bound_ns", "tensor_core_unknown_ns", "headroom_ns", "flops_per_byte", "achieved_flops_s",
    "achieved_gb_s", "tensor_core_ns", "algorithm_bandwidth_gb_s", "ranks", "bytes", "kernel_ns",
)  # fmt: skip
_NEEDS = {
    "busy_ns": {"exposed_ns", "total_ns"},
    "idle_ns": {"busy_ns", "window_ns"},
    "bytes": {"kernel_ns"},
}
_ESSENTIAL = (
    "verdict", "delta_ns", "step_ns", "time_ns", "speedup", "efficiency", "overhead_percent",
    "count", "images_per_s", "bus_bandwidth_gb_s", "utilisation", "share", "exposed_ns", "busy_ns",
    "duration_p50_ns", "speedup_from", "speedup_to", "from_percent", "to_percent", "step_low_ns",
    "step_high_ns", "expected_bytes", "observed_bytes", "crossing",
    "bubble_share", "data_stall_ns", "data_stall_share",
    "caused_ns", "excess_in", "bytes", "least_bytes", "most_bytes", "evidence", "only_in",
    "least_utilisation", "most_utilisation", "least_gpu_bytes", "most_gpu_bytes",
    "step_flops", "mfu", "hfu", "bound", "bound_share", "step_headroom_ns",
)  # fmt: skip
_NAMES = (
    "call", "context", "correlation", "depth", "device", "id", "iteration", "node", "numa", "op",
    "parent", "pid", "process", "range", "rank", "report", "result", "stream", "thread", "tid",
)  # fmt: skip
_PLAIN = Traits()

TRAITS: Mapping[str, Traits] = {
    **{name: Traits(names=True) for name in _NAMES},
    **{name: Traits(essential=True) for name in _ESSENTIAL},
    **{
        name: Traits(
            spare=place,
            needs=frozenset(_NEEDS.get(name, ())),
            essential=name in _ESSENTIAL,
            wraps=name == "basis",
            names=name.rpartition("_")[2] in _NAMES,
        )
        for place, name in enumerate(_SPARE)
    },
    "name": Traits(kernel_beside=frozenset({"kind", "segments", "on_path"})),
    "kernel": Traits(kernel_beside=frozenset({"kernel"})),
    "before": Traits(kernel_beside=frozenset({"after"})),
    "after": Traits(kernel_beside=frozenset({"before"})),
    "found": Traits(prose=True),
    "record_with": Traits(prose=True),
    "fault": Traits(prose=True),
    "todo": Traits(prose=True),
    "warnings": Traits(prose=True),
    "change": Traits(essential=True),
    "size_bytes": Traits(exact=True),
    "feature": Traits(wraps=True),
    "nvlinks": Traits(label="NVLinks", spare=_SPARE.index("nvlinks")),
    "pipeline_stage": Traits(label="stage", names=True),
    "launched": Traits(label="launches known"),
    "coverage": Traits(label="coverage (stages known)"),
}
"""Traits of columns: name -> traits; other columns have the defaults."""


def traits(column: str) -> Traits:
    """Return the display traits of a column.

    Columns such as ``src_device`` or ``straggler_rank`` contain identifiers, and have the traits of
    the column ``rank``.
    """
    if column in TRAITS:
        return TRAITS[column]
    return TRAITS["rank"] if column.rpartition("_")[2] in _NAMES else _PLAIN


def with_readable_names(frame: pl.DataFrame, every: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return a table with kernel names in their short forms, unique among those of `every`."""
    columns = [c for c in frame.columns if not traits(c).kernel_beside.isdisjoint(frame.columns)]
    if not columns:
        return frame
    known = frame if every is None else every
    texts = [known[column].cast(pl.String) for column in columns]
    short = readable_names(name for text in texts for name in text.unique().drop_nulls().sort())
    return frame.with_columns(pl.col(columns).cast(pl.String).replace(short))
