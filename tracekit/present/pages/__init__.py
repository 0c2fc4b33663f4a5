"""HTML pages that open from disk: a common shell with theme, tables and security policy."""

from tracekit.present.pages._answer_page import answer_page, answer_table, frame_table, view_page
from tracekit.present.pages._figure import figure_block, figure_page
from tracekit.present.pages._fragments import fragment, joined
from tracekit.present.pages._shell import PageSection, page_of

__all__ = [
    "PageSection",
    "answer_page",
    "answer_table",
    "figure_block",
    "figure_page",
    "fragment",
    "frame_table",
    "joined",
    "page_of",
    "view_page",
]
