"""Questions of published papers, answered through public names of tracekit only.

The DGX-1 study: its questions answered by recorded or simulated runs, beside the published values.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.papers._dgx1_questions import QUESTIONS, Measured, dgx1_questions
    from tracekit.papers._sensitivity import sensitivity

__getattr__, __dir__ = lazily(__name__)
