"""Options, arguments and parsers shared by the modules of commands."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

import tracekit
from tracekit import engine, model
from tracekit import store as stores
from tracekit.cli._output import Format, Target
from tracekit.cli._progress import progress_bar
from tracekit.errors import TracekitError, UsageError
from tracekit.support.files import StrPath
from tracekit.support.memory import allowed
from tracekit.support.quantities import UNITS, parse_duration, parse_percent, parse_size
from tracekit.support.questions import MANY, Option, References, choices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

LATEST = "@latest"


def parse_labels(pairs: "Sequence[str]") -> dict[str, str]:
    """Return labels written as `key=value`: key -> value.

    Raises
    ------
    UsageError
        If a label is written differently, or a key occurs twice.
    """
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"label {pair!r} is not of the form key=value", "write --label gpus=4")
        if key in labels:
            raise UsageError(f"label {key!r} is given twice", "give each label once")
        labels[key] = value
    return labels


def parse_sizes(pairs: "Sequence[str]") -> dict[str, int]:
    """Return the bytes of collectives written as `all_reduce=25MB`: name -> bytes.

    Raises
    ------
    UsageError
        If a text is written differently, or a collective is unknown or occurs twice.
    """
    sizes: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = pair.partition("=")
        if not equals or name not in model.COLLECTIVES:
            known = ", ".join(model.COLLECTIVES)
            raise UsageError(
                f"{pair!r} is not the size of a collective",
                f"write --bytes all_reduce=25MB; collectives are {known}",
            )
        if name in sizes:
            raise UsageError(f"the size of {name} is given twice", "give each collective once")
        sizes[name] = parse_size(size)
    return sizes


def parse_peaks(texts: "Sequence[str]") -> dict[str, list[str]]:
    """Return peak rates to model, written as `ethernet=10Gb/s,100Gb/s`: resource -> texts.

    Raises
    ------
    UsageError
        If a text is written differently, or a resource occurs twice.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        resource, equals, values = text.partition("=")
        if not equals or not values:
            raise UsageError(
                f"cannot read the sweep {text!r}", "write --sweep ethernet=10Gb/s,100Gb/s"
            )
        if resource in found:
            raise UsageError(f"{resource} is swept twice", "give its values in one --sweep")
        found[resource] = [value.strip() for value in values.split(",")]
    return found


def write_text(text: str, path: Path | None) -> None:
    """Write a text to a file, or to standard output."""
    if path is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        Target.of(Format.TABLE, path).write_text(text)


def declared_options(parameters: "Iterable[inspect.Parameter]") -> dict[str, Option]:
    """Return the declared options among parameters: name -> option."""
    return {
        each.name: option
        for each in parameters
        for option in get_args(each.annotation)[1:]
        if isinstance(option, Option)
    }


def typed_parameter(parameter: inspect.Parameter, option: Option) -> inspect.Parameter:
    """Return a parameter with a declared option as typer takes it: with type, default and help."""
    default = parameter.default
    if option.unit == "keys" and default is not None:
        default = [default]
    if option.unit == "percent or none":
        default = f"{default:g}%"
    return parameter.replace(
        annotation=typer_option(parameter.name, parameter.annotation),
        default=None if default == () else default,
    )


def typer_option(name: str, declared: Any) -> Any:
    """Return a declared option as an option of typer, with its name and help."""
    kind, *rest = get_args(declared)
    option = next(each for each in rest if isinstance(each, Option))
    return Annotated[option.typed or _typed(kind, option), _typer_option(name, option)]


def _typed(kind: Any, option: Option) -> Any:
    """Return the type that typer sees of an option: text if it is a quantity with a unit."""
    if option.unit is not None and option.unit != "runs":
        return str | None
    if texts := choices(kind):
        known = StrEnum("Choice", {text.upper(): text for text in texts})  # type: ignore[misc]
        return known | None if type(None) in get_args(kind) else known
    return kind


def _typer_option(name: str, option: Option) -> Any:
    def complete(incomplete: str) -> Iterator[str]:
        if takes_runs:
            return complete_run(incomplete)
        return complete_keys(option.keys, incomplete)

    takes_runs = option.unit in {"run", "run or ns", "runs"}
    return typer.Option(
        option.flag or f"--{name.replace('_', '-')}",
        metavar=option.metavar,
        min=option.least,
        help=option.meaning,
        rich_help_panel=option.panel,
        autocompletion=complete if option.keys or takes_runs else None,
        envvar=option.envvar,
    )


def read_option(option: Option, value: Any) -> Any:
    """Convert the typed value of an option to the value for Python."""
    if value is None:
        return () if "list" in str(option.typed) and option.unit is None else None
    if isinstance(value, StrEnum):
        return value.value
    return value if option.unit is None else _READ[option.unit](value)


def complete_keys(keys: "Sequence[str]", incomplete: str) -> Iterator[str]:
    """Propose keys that continue a list such as `stage,dev`."""
    before, comma, last = incomplete.rpartition(",")
    for key in keys:
        if key.startswith(last) and key not in before.split(","):
            yield f"{before}{comma}{key}"


def split_keys(by: "Sequence[str]") -> list[str]:
    """Return the keys given by repeated options, or in lists joined by commas."""
    return [key.strip() for part in by for key in part.split(",")]


def parse_skip(text: str) -> int | Literal["auto"]:
    """Return the number of iterations in ``--skip``, or ``auto``."""
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise UsageError(
            f"cannot read the number of iterations {text!r}", "give --skip 3, or --skip auto"
        )
    return int(text)


def _percent_or_none(text: str) -> float | None:
    return None if text == "none" else parse_percent(text)


def _run_or_time(text: str) -> str | int:
    try:
        return parse_duration(text)
    except UsageError:
        return text


def rows_frame(rows: "Sequence[Mapping[str, Any]]") -> "pl.DataFrame":
    """Return rows as a frame; columns of lists are lists of texts, even if all are empty."""
    import polars as pl

    lists = {key for row in rows for key, value in row.items() if isinstance(value, list)}
    types = dict.fromkeys(lists, pl.List(pl.String))
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides=types)


def open_run(
    reference: str,
    store: StrPath | None,
    rules: Path | None = None,
    iteration: str | None = None,
    verdict: str | None = None,
    step: str | None = None,
    **workers: Any,
) -> "tracekit.Run":
    """Return the run for a reference: a name, the start of an id, `@latest`, or a file."""
    opening = {
        "rules": rules, "iteration": iteration, "verdict": verdict, "step": step, **workers
    }  # fmt: skip
    with opened_run(reference, store, **opening) as run:
        return run


@contextmanager
def opened_run(
    reference: str,
    store: StrPath | None,
    *,
    processes: int | None = None,
    on_missing: Literal["stop", "skip"] | None = None,
    **opening: Any,
) -> Iterator["tracekit.Run"]:
    """Yield a run opened with `tracekit.open`, which shows progress on stderr while it is used."""
    with progress_bar(reference) as progress:
        yield tracekit.open(
            reference, store=store, progress=progress, memory=allowed(), processes=processes or 1,
            on_missing=on_missing or "stop", **opening,
        )  # fmt: skip


def complete_run(incomplete: str) -> Iterator[str]:
    """Propose names of runs, and of files, that begin with `incomplete`."""
    try:
        names = [LATEST, *(run.name for run in stores.Store.discover(None).runs())]
    except TracekitError:
        names = [LATEST]
    yield from (name for name in names if name.startswith(incomplete))
    yield from (str(path) for path in _paths(incomplete))


def _paths(incomplete: str) -> list[Path]:
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if str(path).startswith(incomplete))


MemoryOption = Annotated[
    int | None,
    typer.Option(
        "--memory",
        parser=parse_size,
        metavar="SIZE",
        help="Memory that may be used, such as 8GiB; what needs more is refused. Default: all that "
        "is free.",
    ),
]


def steps_of(text: str | None) -> tuple[int, int] | None:
    """Return first and last step by the text of ``--iterations``; None without that option."""
    return None if text is None else engine.parse_iterations(text)


RulesOption = Annotated[
    Path | None,
    Option("TOML file with rules that map names to stages.", "FILE"),
]
IterationOption = Annotated[
    str | None,
    Option("Pattern of the names of ranges that are iterations.", "REGEX"),
]
PartProcessesOption = Annotated[
    int | None,
    Option(
        "Number of processes that add up the reports of a run. Default: this one alone.",
        "N",
        least=1,
        panel=MANY,
    ),
]
OnMissingOption = Annotated[
    Literal["stop", "skip"] | None,
    Option(
        "Stop where files of a report are lacking or damaged, or skip it and show which share of "
        "the reports is used. Default: stop.",
        panel=MANY,
    ),
]
OnlyRanksOption = Annotated[
    str | None,
    Option("Look at the reports of these ranks alone, such as 0-3,8.", "RANKS", panel=MANY),
]
VerdictOption = Annotated[
    str | None,
    Option(
        "Verdict on the processes: training, inference or other. Default: by the trace.",
        "VERDICT",
        flag="--as",
    ),
]
StepOption = Annotated[
    str | None,
    Option(
        "What a step is where the order of launches shows steps: update, input or period."
        " Default: what is found.",
        "READING",
    ),
]
Label = Annotated[
    Mapping[str, str] | None,
    Option(
        "A label; may be given several times.", "KEY=VALUE", unit="labels", typed=list[str] | None
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of a run, start of its id, @latest, or a trace file.",
        autocompletion=complete_run,
    ),
]
ManyRunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        help="Names of runs, starts of their ids, @latest, or trace files.",
        autocompletion=complete_run,
    ),
]


def runs_argument(declared: Any) -> Any:
    """Return a declared argument for runs as typer takes it."""
    meaning = get_args(declared)[1].meaning
    argument = typer.Argument(metavar="RUN...", help=meaning, autocompletion=complete_run)
    return Annotated[list[str] | None, argument]


def files_argument(declared: Any) -> Any:
    """Return a declared argument for files as typer takes it."""
    option = get_args(declared)[1]
    return Annotated[option.typed, typer.Argument(metavar=option.metavar, help=option.meaning)]


RunsArgument = runs_argument(References)

_READ: dict[str, Callable[[Any], Any]] = {
    **UNITS, "keys": split_keys, "labels": parse_labels, "peaks": parse_peaks,
    "percent or none": _percent_or_none, "run": str,
    "runs": list, "run or ns": _run_or_time, "sizes": parse_sizes, "skip": parse_skip,
    "steps": steps_of,
}  # fmt: skip
"""Functions that parse an option given as text: unit -> function."""
