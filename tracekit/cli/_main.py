"""Entry point of the command line; an interrupt at any time prints one line and exits with 130.

Other modules are imported inside it, since an interrupt before it would print a traceback.
"""

import io
import signal
import sys
import threading
from contextlib import ExitStack, redirect_stderr, redirect_stdout

from tracekit.cli._interrupted import INTERRUPTED, has_descriptor, is_an_interrupt


def main() -> None:
    """Run the command line and exit with its code."""
    ends_here = has_descriptor() and threading.current_thread() is threading.main_thread()
    with _streams():
        try:
            from tracekit.cli._app import run

            run()
        except BaseException as error:
            if not is_an_interrupt(error):
                raise
            sys.stderr.write("tracekit: interrupted\n")
            sys.exit(INTERRUPTED)
        finally:
            if ends_here:  # what is done is done: only Python is still to end
                signal.signal(signal.SIGINT, signal.SIG_IGN)


def _streams() -> ExitStack:
    """Replace missing or closed standard streams by streams that discard their text."""
    replaced = ExitStack()
    for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
        if stream is None or stream.closed:
            replaced.enter_context(redirect(io.StringIO()))
    return replaced
