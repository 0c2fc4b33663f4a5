"""Profiles of XLA, as JAX writes them: ``plugins/profile/TIME/HOST.xplane.pb``.

A file is one Protocol Buffers message (``XSpace``). It has a plane per GPU, whose lines are the
GPU's streams, and one for the host, whose lines are threads. It is read plane by plane; a compiled
loop reads the events from the bytes of the message, without a Protocol Buffers library.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.xplane._profile import is_xplane, read

__getattr__, __dir__ = lazily(__name__)
