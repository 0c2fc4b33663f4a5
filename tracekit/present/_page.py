"""An answer as a page: one HTML file that opens from disk and asks the network for nothing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tracekit.present._figures import FONT, INK, MUTED, figure_html
from tracekit.present._notebook import html
from tracekit.present._text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.model import Answer

_STYLE = f"""
body {{ margin: 2em auto; max-width: 62em; padding: 0 1em; background: white; color: {INK};
  font: 15px/1.5 {FONT} }}
h1 {{ font-size: 1.6em }} h2 {{ font-size: 1.2em; margin: 2.5em 0 0.5em }}
nav {{ color: {MUTED} }} table {{ font-size: 0.85em; margin: 1em 0 }}
caption {{ text-align: left }} .wide {{ overflow-x: auto }} small {{ color: {MUTED} }}
details {{ margin: 1em 0 }} summary {{ cursor: pointer }}
"""


def page(answer: Answer) -> str:
    """Return an answer as a page: its parts in order, each with its sentence, figures and table.

    Every text is escaped. Figures are drawn by code in the page itself.
    """
    title = escape(printable(answer.title or f"tracekit {answer.command}"))
    parts = answer.parts or {"answer": answer}
    sections: list[str] = []
    for number, (name, part) in enumerate(parts.items(), 1):
        is_first = not any("<script" in each for each in sections)
        sections.append(_section(number, name, part, answer, with_code=is_first))
    below = f"<p>{escape(printable(str(answer.meta['of_runs'])))}</p>" if answer.parts else ""
    contents = _contents(answer) if answer.parts else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"{below}{contents}{''.join(sections)}\n</body>\n</html>\n"
    )


def _contents(answer: Answer) -> str:
    rows = [
        f'<li><a href="#{escape(name)}">{_question(part)}</a></li>'
        for name, part in answer.parts.items()
    ]
    return f"<nav><ol>{''.join(rows)}</ol></nav>"


def _question(part: Answer) -> str:
    return escape(printable(str(part.meta.get("question") or part.title)))


def _section(number: int, name: str, part: Answer, whole: Answer, *, with_code: bool) -> str:
    asked = f'<h2 id="{escape(name)}">{number}. {_question(part)}</h2>' if whole.parts else ""
    told = part.meta.get("headline")
    sentence = f"<p>{escape(printable(str(told)))}</p>" if told else ""
    drawn = "".join(_figures(name, part, with_code=with_code))
    meta = {key: value for key, value in part.meta.items() if key not in ("question", "headline")}
    table = html(part.for_people, meta, part.title if whole.parts else "")
    return f'\n<section>{asked}{sentence}{drawn}<div class="wide">{table}</div></section>'


def _figures(name: str, part: Answer, *, with_code: bool) -> Iterator[str]:
    for place, figure in enumerate(part.figures if part.rows.height else ()):
        yield figure_html(
            part.figure(figure), f"{name}-{figure}", with_code=with_code and not place
        )
