"""Pages in a browser: opened as a reader opens them, and heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

READY = """() => document.querySelectorAll(
    '[data-gantt]:not([data-ready]), [data-figure]:not([data-ready])').length === 0"""
WIDE = "document.documentElement.scrollWidth - window.innerWidth"


def opened(browser: Any, path: Path, heard: list[str], width: int, theme: str = "light") -> Any:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
    page.on("request", lambda asked: heard.append(asked.url))
    page.goto(path.as_uri())
    page.wait_for_function(READY)
    heard.remove(path.as_uri())
    return page


def rows(page: Any, key: str) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        f"table[data-key={key}] tbody tr",
        "rows => rows.filter(r => r.offsetParent).map(r => r.cells[0].textContent)",
    )
    return found


def complaints(page: Any) -> list[tuple[str, list[Any]]]:
    """Return what axe finds: the names of rules, and the first places."""
    from axe_playwright_python.sync_playwright import Axe

    # The page's own policy keeps the checker's script out, unless it is set in a world of its own.
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found]
