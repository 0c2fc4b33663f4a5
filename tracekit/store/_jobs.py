"""Jobs (reading a trace file, or summing up a part of a run), and digests of trace files."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from tracekit.errors import InputError, StoreError
from tracekit.store._report import ReportOptions, make_report
from tracekit.support.progress import Progress

RETRIES = 2
"""How often a job is repeated whose process was lost."""

Tell = Callable[[int, str, int, int], None]
"""Called with the progress of a job: its number, its step, the amount done and the total."""
_SAME_PATHS = "put the store where all workers reach it, with --store"


@dataclass(frozen=True)
class Outcome:
    """Result of a job (a unit of work that any process can do), or the error that it raised.

    For a job that reads a trace file, ``folder`` is the name of the folder with the tables.
    """

    number: int
    folder: str = ""
    made: Any = None
    error: InputError | None = None


class Job(ABC):
    """A piece of work, such as reading a trace file, that any process can do, on any machine."""

    number: int
    """Index of the job among those started together."""
    name: str
    """Name of the thing it works on."""
    size = 0
    """Size of the thing it works on; the largest job is started first."""

    def anywhere(self) -> Self:
        """Return the job with absolute paths, independent of the working directory."""
        return self

    def with_share(self, workers: int) -> Self:  # noqa: ARG002 - most need no share
        """Return the job with its memory limit divided by `workers`, the number of jobs at once."""
        return self

    def after(self, before: Job | None) -> Self:  # noqa: ARG002 - most learn nothing
        """Return the job, changed to reuse what this process cached for the previous job."""
        return self

    def unseen(self) -> InputError | None:
        """Return an error if this machine cannot do the job, as a file is missing; else None."""
        return None

    @abstractmethod
    def attempt(self, progress: Progress) -> Outcome:
        """Do the job, and return its outcome."""


@dataclass(frozen=True)
class ReportJob(Job):
    """Job that reads one trace file and writes its tables (a "report" of the run)."""

    number: int
    """Index of the file in the run."""
    path: Path
    """File to read."""
    folder: Path
    """Folder for the tables. Each attempt creates a separate folder inside, so that an attempt that
    is still running, though given up as lost, cannot disturb the next one."""
    options: ReportOptions
    """Options for making the tables."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """Path of the trace file."""
        return str(self.path)

    @property
    def size(self) -> int:  # type: ignore[override]
        """Size of the file, bytes."""
        return file_size(self.path)

    def anywhere(self) -> Self:
        """Return the job with absolute paths."""
        return replace(self, path=self.path.absolute(), folder=self.folder.absolute())

    def with_share(self, workers: int) -> Self:
        """Return the job with its memory limit divided by `workers`, the number of jobs at once."""
        return replace(
            self, options=replace(self.options, memory=self.options.memory // max(workers, 1))
        )

    def after(self, before: Job | None) -> Self:
        """Return the job with the rules object of the job `before`, if both have equal rules.

        This reuses the meanings of names that the rules have cached.
        """
        if not isinstance(before, ReportJob) or before.options.rules != self.options.rules:
            return self
        return replace(self, options=replace(self.options, rules=before.options.rules))

    def unseen(self) -> InputError | None:
        """Return an error if this machine cannot read the file; None if it can."""
        if self.path.exists():
            return None
        return InputError(
            f"{self.path} cannot be seen by the worker on {platform.node()}",
            "put the reports where all workers reach them by the same path",
        )

    def attempt(self, progress: Progress) -> Outcome:
        """Read the file and write its tables; return the outcome."""
        if not self.folder.is_dir():
            raise StoreError(f"the folder {self.folder} cannot be seen by a worker", _SAME_PATHS)
        folder = self.folder / f"{self.number}-{secrets.token_hex(4)}"
        try:
            made = make_report(self.path, folder, self.options, progress)
        except InputError as error:
            return Outcome(self.number, error=error)
        return Outcome(self.number, folder.name, made)


@dataclass(frozen=True)
class PartJob(Job):
    """Job that computes results of one part of a stored run (some of its trace files)."""

    number: int
    """Index of the part."""
    name: str
    """Name of the part."""
    work: Callable[[], Any]
    """Function that computes the results."""

    def attempt(self, progress: Progress) -> Outcome:  # noqa: ARG002 - a part takes seconds
        """Compute the results of the part; return the outcome."""
        try:
            return Outcome(self.number, made=self.work())
        except FileNotFoundError as error:
            raise StoreError(
                f"the worker on {platform.node()} cannot read {self.name}: {error}",
                _SAME_PATHS,
            ) from error


Outcomes = Generator[Outcome, None, None]


class Executor(Protocol):
    """Interface of an executor, which runs jobs in any order and process."""

    def prepare(self, jobs: int) -> None:
        """Prepare for about `jobs` jobs, such as by starting processes."""

    def run(self, jobs: list[Job], tell: Tell) -> Outcomes:
        """Yield the outcome of each job; `tell` is called with the progress of jobs meanwhile.

        A caller that stops early has to close the iterator.

        Raises
        ------
        TracekitError
            If something other than a job fails, such as the cluster.
        """


def lost(job: Job, how: str) -> Outcome:
    """Return the outcome (an error) of a job whose process died too often.

    `how` is the message's verb phrase for what happened to the job, such as "was lost".
    """
    error = InputError(
        f"{job.name} was given up, the process that read it {how} {RETRIES + 1} times",
        "it may lack memory: let fewer run at once, or give a smaller --memory; or it is damaged",
    )
    return Outcome(job.number, error=error)


NOT_YET = ""
"""Placeholder for the digest of a trace that is still being computed."""
_CHUNK = 4 << 20


def file_digest(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a trace's content, in hexadecimal.

    For a folder it is the digest of names, sizes and contents of its table files.

    Parameters
    ----------
    path
        The file or folder; it is only read.
    progress
        Called after each chunk with the number of bytes read so far; None for no calls.

    Raises
    ------
    InputError
        If a file cannot be read.
    """
    digest = hashlib.sha256()
    is_folder = path.is_dir()
    done = 0
    for file in _content(path):
        if is_folder:
            digest.update(b"%s\0%d\0" % (os.fsencode(file.name), file_size(file)))
        for size in _fed(file, digest):
            done += size
            if progress is not None:
                progress(done)
    return digest.hexdigest()


def file_state(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Return inode, size and modification time of a trace's files, to notice a change.

    Empty if the files are gone.
    """
    try:
        found = [file.stat() for file in _content(path)]
    except (InputError, OSError):
        return ()
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def file_size(path: Path) -> int:
    """Return the size of a trace, bytes; 0 if it cannot be read."""
    try:
        return sum(file.stat().st_size for file in _content(path) if file.is_file())
    except (InputError, OSError):
        return 0


def _content(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    from tracekit.sources import content_files  # noqa: PLC0415 - not every command reads traces

    return content_files(path)


def _fed(path: Path, digest: hashlib._Hash) -> Iterator[int]:
    """Feed a file's content to a digest in chunks; yield after each the bytes fed so far."""
    buffer = memoryview(bytearray(_CHUNK))
    try:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
                yield size
    except OSError as error:
        raise InputError(f"{path} cannot be read", error.strerror) from error


def run_digest(digests: Sequence[str]) -> str:
    """Return the digest of a run from the digests of its files; their order does not matter."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
