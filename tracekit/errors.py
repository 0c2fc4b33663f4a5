"""Every error that tracekit raises on purpose.

TracekitError
├── UsageError             the request makes no sense (a wrong option, a wrong query)
│   ├── RuleError          a rules file, or a pattern in it, is wrong
│   ├── UnknownRunError    no run of that name or id
│   └── NameTakenError     a run of that name exists
├── InputError             a file cannot be read as a trace
│   ├── NotATraceError     it is something else
│   ├── UnsupportedTraceError  it is a trace of a kind that is not read yet
│   ├── DamagedTraceError  it is a trace, but cut short or corrupt
│   ├── MissingDataError   it is a trace, but lacks what was asked for
│   └── UndecidedError     it is a trace with too little data to decide the answer
├── StoreError             the store or its catalogue cannot be used
└── RecordingError         a program cannot be recorded
    └── ProgramError       it was recorded, and ended with an error

Each message states what is wrong, where, and what to do. The command line prints it as one message
and exits with 2, with 3 where it is undecided, or with the code of a recorded program that ended
with an error; no traceback is shown for any of them.
"""

from __future__ import annotations


class TracekitError(Exception):
    """Base of all errors of tracekit.

    Parameters
    ----------
    what
        What is wrong and where, as a clause without a full stop.
    hint
        What the user can do about it.
    """

    exit_code = 2

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what if hint is None else f"{what}: {hint}")
        self.what = what
        self.hint = hint


class UsageError(TracekitError):
    """Error: the user's request makes no sense, such as a wrong option or query."""


class RuleError(UsageError):
    """Error: a rules file, or a pattern in it, is wrong."""


class UnknownRunError(UsageError):
    """Error: no run of that name or id is in the store."""


class NameTakenError(UsageError):
    """Error: a run of that name is in the store already."""


class InputError(TracekitError):
    """Error: a file cannot be read as a trace."""


class NotATraceError(InputError):
    """Error: the file is not a trace."""


class UnsupportedTraceError(InputError):
    """Error: the file is a trace of a kind that tracekit does not read yet."""


class DamagedTraceError(InputError):
    """Error: the file is a trace, but it is cut short or corrupt."""


class MissingDataError(InputError):
    """Error: the trace lacks the data asked for."""


class UndecidedError(InputError):
    """Error: the trace has too little data to decide the answer."""

    exit_code = 3


class StoreError(TracekitError):
    """Error: the store of runs, or its catalogue, cannot be used."""


class RecordingError(TracekitError):
    """Error: a program cannot be recorded."""


class ProgramError(RecordingError):
    """Error: a program was recorded, and ended with an error itself.

    Parameters
    ----------
    what, hint
        What is wrong, and what the user can do about it, as for `TracekitError`.
    code
        The program's exit code, which becomes that of the command line.
    """

    def __init__(self, what: str, hint: str | None, code: int) -> None:
        super().__init__(what, hint)
        self.exit_code = code
