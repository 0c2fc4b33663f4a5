"""Tasks of those who work on tracekit: `nox -l` lists them, `nox -s quick` runs one.

They use the environment that nox itself is in, which has the extra `dev`: nothing is installed
but by `newest`, in an environment of its own.
"""

from __future__ import annotations

import pathlib
import re
import sys
import tomllib

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["check", "quick"]


@nox.session
def check(session: nox.Session) -> None:
    """Format, lint and types, as they must be before a change lands."""
    _run(session, "ruff", "format", "--check", ".")
    _run(session, "ruff", "check", ".")
    _run(session, "mypy")


@nox.session
def quick(session: nox.Session) -> None:
    """Run the tests of the inner loop."""
    _run(session, "pytest", "-q", "--effort=quick", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests that CI runs."""
    _run(session, "pytest", "--durations=10", *session.posargs)


@nox.session
def night(session: nox.Session) -> None:
    """Run what takes too long for CI, and ten times as many random examples."""
    _run(session, "pytest", "-m", "nightly or not nightly", "--effort=thorough", *session.posargs)


@nox.session(venv_backend="venv")
def newest(session: nox.Session) -> None:
    """Run the tests of the inner loop with the newest of what tracekit needs, beyond its bounds.

    For a job at night: it says which bounds of pyproject.toml can be raised, and what would break.
    """
    session.install("-e", ".[dev]")
    session.install("--upgrade", *map(_name, _dependencies()))
    session.run("python", "-m", "pytest", "-q", "--effort=quick", *session.posargs)


def _dependencies() -> list[str]:
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text("utf-8"))["project"]
    needed: list[str] = project["dependencies"]
    return needed


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


@nox.session
def pages(session: nox.Session) -> None:
    """Write the pages and the picture that repeat the code."""
    session.run(sys.executable, "docs/generate.py")


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation as a site, in ``build/site``."""
    _run(session, "mkdocs", "build", "-q")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build a wheel, with its loops compiled; see ``dist``."""
    compiled = ("--config-settings", "loops=yes")
    _run(session, "pip", "wheel", "--no-deps", *compiled, "--wheel-dir", "dist", ".")


@nox.session
def release(session: nox.Session) -> None:
    """Build the wheel of a release for Linux on x86-64, which needs no LLVM; see ``dist``."""
    session.run(sys.executable, ".ci/release.py", "dist", *session.posargs)


@nox.session
def bill(session: nox.Session) -> None:
    """Write what a release is made of, as ``build/tracekit.cdx.json``."""
    path = pathlib.Path("build/tracekit.cdx.json")
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        session.run(sys.executable, ".ci/bill_of_materials.py", stdout=file)


@nox.session
def audit(session: nox.Session) -> None:
    """Ask about known weaknesses of what tracekit needs, over the network."""
    session.run(".ci/audit", external=True)


@nox.session
def mutants(session: nox.Session) -> None:
    """Change one thing in the code at a time, and count what no test notices."""
    script, folder = "benchmarks/mutants.py", "build/mutants"
    session.run(sys.executable, script, "cover", folder)
    session.run(sys.executable, script, "try", folder, *session.posargs)


def _run(session: nox.Session, module: str, *arguments: str) -> None:
    session.run(sys.executable, "-m", module, *arguments)
