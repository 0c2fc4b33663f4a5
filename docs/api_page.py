"""The reference of Python: what a run can be asked, and what each answer holds."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from tracekit import Run
from tracekit.cli import app
from tracekit.cli._command import WRITTEN
from tracekit.runs import DECLARED
from tracekit.runs._question import RunQuestion
from tracekit.support.questions import Declaration, option_of, type_text
from tracekit.support.schemas import Json

_REGISTERED = app  # each command says what it writes as it is registered
_HEAD = """# Python

`tracekit.open(path_or_name)` returns a run. A method such as `run.breakdown(...)` returns the rows
of its table as a polars frame. `run.breakdown.answer(...)` takes the same arguments and returns an
answer with `rows`, `meta`, `warnings`, `figure()`, `to_json()` and `to_pandas()`. `where`, `sort`
and `top` choose rows as on the [command line](commands.md). `help(run.breakdown)` prints what this
page says about a method.

Questions about several runs are functions of `tracekit`: pass the runs, or select them by labels
(`where=`). Questions about other files are functions that take the paths of the files.

Columns marked *in some* exist only with certain options. **A null means unknown**, unless the
column gives it another meaning; it never means zero. `Int64` stands for integers of any size. A
column without a unit is a plain number. `docs/generate.py` writes this page.
"""


def api_page() -> str:
    """Return the page."""
    questions = {name for name, each in vars(Run).items() if isinstance(each, RunQuestion)}
    asked = [line for told in DECLARED.values() for line in _declared(told)]
    others = [line for name in sorted(questions - DECLARED.keys()) for line in _other(name)]
    declared = {told.writes.command for told in DECLARED.values()}
    rest = [written for name, written in WRITTEN.items() if name not in declared and written.rows]
    written = [line for each in rest for line in (f"\n### {each.command}\n", *_columns(each))]
    return "\n".join(
        [_HEAD, *asked, *others, "\n## Columns of the other answers\n",
         "By the `command` of an answer. Types are those of JSON: texts may be an Enum in a frame.",
         *written, ""]
    )  # fmt: skip


def _declared(told: Declaration) -> Iterator[str]:
    is_function = told.is_of_runs or told.is_of_files
    yield f"\n## {'tracekit' if is_function else 'run'}.{told.name}\n"
    yield _text(told.meaning)
    if told.is_of_runs and hasattr(Run, told.name):
        yield f"\n`run.{told.name}()` asks the same of one run."
    yield "\n| parameter | type | meaning |\n| --- | --- | --- |"
    for each in told.signature_of("", of_one=False).parameters.values():
        option = option_of(told.signature.parameters[each.name])
        unit = f" In {option.unit}." if option.unit in {"bytes", "ns", "FLOP/s"} else ""
        yield f"| `{each.name}` | `{_text(type_text(each))}` | {_text(option.meaning)}{unit} |"
    yield ""
    yield from _columns(told.writes)


def _other(name: str) -> Iterator[str]:
    question = inspect.getattr_static(Run, name)
    yield f"\n## run.{name}\n"
    yield "```text"
    yield (inspect.getdoc(question) or "").strip()
    yield "```"


def _columns(written: Json) -> Iterator[str]:
    yield "| column | type | unit | null | in | meaning |\n| --- | --- | --- | --- | --- | --- |"
    for each in written.columns:
        null, always = "yes" if each.is_nullable else "", "all" if each.is_always else "some"
        kind = each.type or "records"
        meaning = _text(each.meaning or "")
        yield f"| `{each.name}` | {kind} | {each.unit or ''} | {null} | {always} | {meaning} |"


def _text(text: str) -> str:
    # Bars and angle brackets are no columns and no HTML.
    return text.replace("|", "\\|").replace("<", "&lt;")
