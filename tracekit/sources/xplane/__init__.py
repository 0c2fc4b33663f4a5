"""Profiles of XLA, as JAX writes them: ``plugins/profile/TIME/HOST.xplane.pb``.

A file is one message of Protocol Buffers (``XSpace``) with a plane per GPU, whose lines are its
streams, and one for the host, whose lines are threads. It is read plane by plane, and events by a
loop over the bytes of the message, without a library for such messages.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.xplane._profile import is_xplane, read

__getattr__, __dir__ = lazily(__name__)
