"""Options that commands share, and what they mean."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracekit.cli._output import Format, Target
from tracekit.cli._progress import progress_bar
from tracekit.errors import TracekitError, UsageError
from tracekit.support.memory import allowed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    import tracekit

LATEST = "@latest"
_TIMES = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_FLOPS = {"": 1, **{letter: 1000**power for power, letter in enumerate("kmgtp", 1)}}
_SIZES = {"": 1, "b": 1} | {
    f"{letter}{kind}": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for kind, base in (("b", 1000), ("ib", 1024))
}


def parse_labels(pairs: "Sequence[str]") -> dict[str, str]:
    """Return labels written as `key=value`.

    Raises
    ------
    UsageError
        If one is not, or a key is there twice.
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


def parse_size(text: str) -> int:
    """Return the bytes that a size means, such as ``4GiB``, ``500MB`` or ``1000000``.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    unit = _SIZES.get(found[2]) if found else None
    size = int(Decimal(found[1]) * unit) if found and unit else 0
    if not size:
        raise UsageError(f"{text!r} is not a size of memory", "write it as 4GiB, 500MB or bytes")
    return size


def parse_flops(text: str) -> int:
    """Return the FLOP/s that a rate means, such as ``312TFLOPS`` or ``1.5e12``.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)([kmgtp]?)(flop/?s)?",
                         text.lower().replace(" ", ""))  # fmt: skip
    rate = int(Decimal(found[1]) * _FLOPS[found[2]]) if found else 0
    if not rate:
        raise UsageError(f"{text!r} is no rate of computing", "write it as 312TFLOPS")
    return rate


def parse_duration(text: str) -> int:
    """Return the ns that a time with its unit means, such as ``+1.5ms`` or ``-300us``.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = re.fullmatch(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text.lower())
    unit = _TIMES.get(found[2]) if found else None
    if found is None or unit is None:
        raise UsageError(f"{text!r} is not a time", "write it as +1.5ms, -300us, 20ns or 1s")
    return int(Decimal(found[1]) * unit)


def parse_count(text: str) -> int:
    """Return the number that a text means, such as ``60M``, ``1.3B`` or ``60000``.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmbgt]?)\s*", text.lower())
    count = int(Decimal(found[1]) * _COUNTS[found[2]]) if found else 0
    if not count:
        raise UsageError(f"{text!r} is not a number", "write it as 60M, 1.3B or 60000")
    return count


def parse_images(text: str) -> int:
    """Return the number of images that a text means: 256K are 262,144, as data sets are cut.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = re.fullmatch(r"\s*([0-9]+)\s*([km]?)\s*", text.lower())
    count = int(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[found[2]] if found else 0
    if not count:
        raise UsageError(f"{text!r} is no number of images", "write it as 256K, 1M or 50000")
    return count


def parse_sizes(pairs: "Sequence[str]") -> dict[str, int]:
    """Return the bytes of collectives written as `all_reduce=25MB`.

    Raises
    ------
    UsageError
        If one is not, a collective is unknown, or is there twice.
    """
    from tracekit.model import COLLECTIVES

    sizes: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = pair.partition("=")
        if not equals or name not in COLLECTIVES:
            known = ", ".join(COLLECTIVES)
            raise UsageError(
                f"{pair!r} is not the size of a collective",
                f"write --bytes all_reduce=25MB; collectives are {known}",
            )
        if name in sizes:
            raise UsageError(f"the size of {name} is given twice", "give each collective once")
        sizes[name] = parse_size(size)
    return sizes


def write_text(text: str, path: Path | None) -> None:
    """Write a text to a file, or to standard output."""
    if path is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        Target.of(Format.TABLE, path).write_text(text)


def by_option(keys: "Sequence[str]") -> Any:
    """Return the option `--by` of a command whose rows can be grouped by some keys."""

    def complete(incomplete: str) -> Iterator[str]:
        return complete_keys(keys, incomplete)

    return typer.Option(
        "--by",
        metavar="KEYS",
        help=f"What to group by: {', '.join(keys)}, or several joined by commas.",
        autocompletion=complete,
    )


def complete_keys(keys: "Sequence[str]", incomplete: str) -> Iterator[str]:
    """Propose keys that continue a list such as `stage,dev`."""
    before, comma, last = incomplete.rpartition(",")
    for key in keys:
        if key.startswith(last) and key not in before.split(","):
            yield f"{before}{comma}{key}"


def split_keys(by: "Sequence[str]") -> list[str]:
    """Return keys that were given joined by commas, in several options, or both."""
    return [key.strip() for part in by for key in part.split(",")]


def parse_skip(text: str) -> int | Literal["auto"]:
    """Return how many iterations ``--skip`` leaves out, or ``auto``."""
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise UsageError(f"{text!r} is no number of iterations", "give --skip 3, or --skip auto")
    return int(text)


def parse_percent(text: str) -> float:
    """Return the percentage that a text means, such as ``5%`` or ``2.5``.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%?\s*", text)
    if found is None:
        raise UsageError(f"{text!r} is not a percentage", "write it as 5% or 2.5")
    return float(found[1])


def rows_frame(rows: "Sequence[Mapping[str, Any]]") -> "pl.DataFrame":
    """Return rows as a frame; its lists are lists of texts even where all of them are empty."""
    import polars as pl

    lists = {key for row in rows for key, value in row.items() if isinstance(value, list)}
    types = dict.fromkeys(lists, pl.List(pl.String))
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides=types)


def open_run(
    reference: str,
    store: Path | None,
    rules: Path | None = None,
    iteration: str | None = None,
    verdict: str | None = None,
) -> "tracekit.Run":
    """Return the run that a user means by a name, the start of an id, `@latest` or a file."""
    import tracekit

    with progress_bar(reference) as progress:
        return tracekit.open(
            reference,
            store=store,
            rules=rules,
            iteration=iteration,
            verdict=verdict,
            progress=progress,
            memory=allowed(),
        )


def complete_run(incomplete: str) -> Iterator[str]:
    """Propose the names of runs, and files, that begin with what is typed."""
    from tracekit.store import Store

    try:
        names = [LATEST, *(run.name for run in Store.discover(None).runs())]
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
        help="What may be used, such as 8GiB: what takes more is refused. Default: what is free.",
    ),
]

StepsOption = Annotated[
    str | None,
    typer.Option(
        "--iterations",
        metavar="FIRST:LAST",
        help="The steps to look at, both included, such as 10:20. Default: all of the run.",
    ),
]


BetweenOption = Annotated[
    str | None,
    typer.Option(
        "--between",
        metavar="TIME:TIME",
        help="The time to look at, from the start of the recording, such as 12.3s:12.9s. Default: "
        "all of the run.",
    ),
]


def steps_of(text: str | None) -> tuple[int, int] | None:
    """Return the first and the last step that `--iterations` names."""
    from tracekit.engine import parse_iterations

    return None if text is None else parse_iterations(text)


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        envvar="TRACEKIT_STORE",
        help="Folder of the store. The default is the nearest .tracekit upward from here.",
    ),
]
RulesOption = Annotated[
    Path | None,
    typer.Option(
        "--rules",
        metavar="FILE",
        help="TOML file with rules that say which names mean which stage.",
    ),
]
IterationOption = Annotated[
    str | None,
    typer.Option(
        "--iteration", metavar="REGEX", help="Pattern of the names of ranges that are iterations."
    ),
]
VerdictOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="VERDICT",
        help="What the processes do: training, inference or other. Default: what is found.",
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label; may be given several times."),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name of a run, start of its id, @latest, or a trace file.",
        autocompletion=complete_run,
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="FILE",
        help="The machine: output of `nvidia-smi topo -m` or `rocm-smi --showtopo`, NCCL's XML, an "
        "nvprof database, TOML, or a preset (`tracekit topology list`). Default: told by the GPUs' "
        "names.",
    ),
]
NcclLogOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--nccl-log",
        metavar="FILE",
        help="A log of the run with NCCL_DEBUG=INFO; may be given several times.",
    ),
]
BytesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bytes",
        metavar="COLLECTIVE=SIZE",
        help="Size of a collective that was not recorded, such as all_reduce=25MB.",
    ),
]
SkipOption = Annotated[
    int, typer.Option("--skip", min=0, help="Leave out so many iterations at the beginning.")
]
AutoSkipOption = Annotated[
    str,
    typer.Option(
        "--skip",
        metavar="N|auto",
        help="Leave out so many iterations at the beginning; auto: those that are cold, in each "
        "run.",
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        help="Names of runs, starts of their ids, or trace files. Default: all with the labels.",
        autocompletion=complete_run,
    ),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="KEY=VALUE", help="Runs with this label; may be given several times."
    ),
]
