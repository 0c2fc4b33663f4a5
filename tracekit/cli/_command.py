"""Makes commands of functions, with their place in the help, formats, figures and output file."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from tracekit import present
from tracekit.cli._guard import Command, GuardedGroup, complain
from tracekit.cli._options import (
    MemoryOption,
    declared_options,
    read_option,
    typed_parameter,
    typer_option,
)
from tracekit.cli._output import EVERYWHERE, Format, Target
from tracekit.support.memory import NEEDS, allowing
from tracekit.support.questions import Sort, Top, Where, declared_of, option_of
from tracekit.support.schemas import Json

if TYPE_CHECKING:
    from tracekit.model import Answer


class Judged(NamedTuple):
    """An answer to write, the exit code, and whether to print nothing on a terminal (`quiet`)."""

    answer: Answer
    exit_code: int
    quiet: bool = False


class TakesSeveral(Command):
    """A command whose option ``--against`` takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line as if ``--against`` preceded each of its words."""
        return super().parse_args(ctx, list(_repeated(args, "--against")))


def _repeated(args: Sequence[str], option: str) -> Iterator[str]:
    takes = False
    for place, word in enumerate(args):
        if word.startswith("-"):
            takes = word == option
        elif takes and args[place - 1] != option:
            yield option
        yield word


Answering = Callable[..., "Answer | Judged"]

_FullNamesOption = Annotated[
    bool,
    typer.Option(
        "--full-names",
        help="Names of kernels as they were recorded; a table shortens them.",
        rich_help_panel="Output",
    ),
]
_VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Print below a table also how its numbers were found, as in pipes and files.",
        rich_help_panel="Output",
    ),
]
_OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to this file instead of standard output.",
        rich_help_panel="Output",
    ),
]
_FLAGS = {"full_names": _FullNamesOption, "verbose": _VerboseOption}
_MEMORY = "memory"
_LIMITED = {"gate", *(name.replace("-", "_") for name in NEEDS)}
"""Functions of commands whose memory is known: these have the option `--memory`."""
_ROWS = {
    name: typer_option(name, kind)
    for name, kind in (("where", Where), ("sort", Sort), ("top", Top))
}

WRITTEN: dict[str, Json] = {}
"""JSON declarations of the commands' answers: name -> declaration."""


def examples(*lines: str) -> str:
    """Format the examples `lines` for the end of a command's help."""
    return "\n".join(["Example:" if len(lines) == 1 else "Examples:", *(f"  {x}" for x in lines)])


app = typer.Typer(
    cls=GuardedGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=examples("tracekit ingest trace.sqlite", "tracekit breakdown --by stage"),
)


def command(
    *lines: str,
    writes: Sequence[Json],
    name: str | None = None,
    figures: Mapping[str, str] | None = None,
    formats: Sequence[Format] = EVERYWHERE,
    group: typer.Typer = app,
    rows: bool = True,
    takes: Callable[..., Any] | None = None,
    **settings: Any,
) -> Callable[[Answering], Answering]:
    """Make a command of a function that returns an answer.

    The function's parameters become those of the command, and its docstring the help; a parameter
    whose type is a dataclass becomes one option per field. The command also gets ``--format``,
    ``--output``, the options that choose rows (unless the function has one of that name) and one
    option per figure. It writes the answer that the function returns.

    Parameters
    ----------
    lines
        Examples, shown at the end of the help.
    writes
        JSON form of its answers, from which `docs/generate.py` makes the files in `schemas/json`.
    name
        Name of the command; by default that of the function.
    figures
        Figures of its answers: option without dashes (the name in `Answer.figures`) -> its help.
    formats
        Formats that its answers can be written in.
    group
        Group of commands that it belongs to.
    rows
        Whether it has the options `--where`, `--sort` and `--top`, which choose rows.
    takes
        Function of the library whose declared options the command has too; its own function gets
        them as ``**asked``.
    settings
        Further settings for typer.
    """

    def register(function: Answering) -> Answering:
        if takes is not None:
            function = _with_options_of(takes, function)
        written = _writing(function, figures or {}, formats, _ROWS if rows else {})
        group.command(name, epilog=examples(*lines), **{"cls": Command, **settings})(written)
        WRITTEN.update({each.command: each for each in writes})
        return function

    return register


def action(
    *lines: str, name: str | None = None, group: typer.Typer = app
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that returns nothing; options are declared as for `command`.

    Parameters
    ----------
    lines, name, group
        See `command`.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        group.command(name, epilog=examples(*lines), cls=Command)(_reading(function))
        return function

    return register


def _with_options_of(takes: Callable[..., Any], function: Answering) -> Answering:
    """Add to a command's function the options that `takes` declares, before those to open runs."""
    signature = inspect.signature(function)
    *named, _ = signature.parameters.values()
    place = next(n for n, each in enumerate(named) if each.name in {"rules", "store"})
    added = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in declared_of(takes)
        if option_of(each).flag != ""
    ]

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Answer | Judged:
        return function(*args, **options)

    run.__signature__ = signature.replace(parameters=[*named[:place], *added, *named[place:]])  # type: ignore[attr-defined]
    return run


def _writing(
    function: Answering,
    figures: Mapping[str, str],
    formats: Sequence[Format],
    rows: Mapping[str, Any],
) -> Callable[..., None]:
    """Return a function that calls `function`, draws requested figures, and writes the answer."""
    function = _reading(function)

    @functools.wraps(function)
    def run(
        *,
        output_format: Format | None = None,
        output: Path | None = None,
        full_names: bool = False,
        verbose: bool = False,
        **options: Any,
    ) -> None:
        target = Target.of(output_format, output, formats, full_names=full_names, verbose=verbose)
        which = {name: value for name in chosen if (value := options.pop(name))}
        paths = {figure: options.pop(_parameter(figure)) for figure in figures}
        wanted = {figure: path for figure, path in paths.items() if path is not None}
        for path in wanted.values():
            present.check_figure_file(path)
        with allowing(options.pop(_MEMORY) if is_limited else None):
            found = function(**options)
        answer, code, quiet = found if isinstance(found, Judged) else Judged(found, 0)
        if not (quiet and target.is_for_readers):
            target.write(answer.choosing(**which))
        _draw(answer, wanted)
        if code:
            raise typer.Exit(code)

    signature = inspect.signature(function, eval_str=False)
    is_limited = _MEMORY not in signature.parameters and function.__name__ in _LIMITED
    chosen = {name: kind for name, kind in rows.items() if name not in signature.parameters}
    written: dict[str, Any] = {
        **{_parameter(figure): _figure_option(figure, text) for figure, text in figures.items()},
        "output_format": _format_option(formats),
        "output": _OutputOption,
        **({_MEMORY: MemoryOption} if is_limited else {}),
        **chosen,
    }
    parameters = [
        *signature.parameters.values(),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in written.items()
        ),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for name, kind in _FLAGS.items()
        ),
    ]
    # typer reads the options of a command from its signature and its annotations.
    run.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _reading(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command for typer that parses texts such as `5 ms`, then calls the function."""
    signature = inspect.signature(function)
    groups = {e.name: e.annotation for e in signature.parameters.values() if _is_group(e)}
    parameters = [*itertools.chain(*map(_spread, signature.parameters.values()))]
    declared = declared_options(parameters)

    @functools.wraps(function)
    def run(**typed: Any) -> Any:
        options = {
            name: read_option(declared[name], value) if name in declared else value
            for name, value in typed.items()
        }
        return function(**_gathered(options, groups))

    shown = [typed_parameter(e, declared[e.name]) if e.name in declared else e for e in parameters]
    run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    return run


def _is_group(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _spread(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return a parameter as a list; in place of one whose type is a dataclass, one per field.

    Options without a heading in help get that of the dataclass, its ``panel``.
    """
    group = parameter.annotation
    if not _is_group(parameter):
        return [parameter]
    spread, panel = [], getattr(group, "panel", None)
    for each in dataclasses.fields(group):
        annotation: Any = each.type
        if panel:
            kind, option = get_args(each.type)
            annotation = Annotated[kind, dataclasses.replace(option, panel=option.panel or panel)]
        # Options all have a default, as those of a command do.
        spread.append(
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default,
                annotation=annotation,
            )
        )  # fmt: skip
    return spread


def _gathered(options: dict[str, Any], groups: Mapping[str, type[Any]]) -> dict[str, Any]:
    """Return option values, those that are fields of a dataclass in `groups` put into one."""
    made = {
        name: group(**{each.name: options.pop(each.name) for each in dataclasses.fields(group)})
        for name, group in groups.items()
    }
    return {**options, **made}


def _format_option(formats: Sequence[Format]) -> Any:
    option = typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help=f"{', '.join(formats)}. Default: by the ending of --output, else table.",
        rich_help_panel="Output",
    )
    return Annotated[Format | None, option]


def _parameter(figure: str) -> str:
    return "figure_" + figure.replace("-", "_")


def _figure_option(figure: str, meaning: str) -> Any:
    option = typer.Option(
        f"--{figure}",
        metavar="FILE",
        help=f"{meaning}: .html, .png, .svg or .pdf.",
        rich_help_panel="Figures",
    )
    return Annotated[Path | None, option]


def _draw(answer: Answer, wanted: Mapping[str, Path]) -> None:
    if wanted:
        with present.one_browser(wanted.values()):
            for figure, path in wanted.items():
                present.save_figure(answer.figure(figure), path)
                complain(f"wrote {path}")
