"""Attribution: finds each op's launching call, NVTX ranges, iteration and stage."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.attribution._attribute import attribute, attribute_recording
    from tracekit.attribution._findings import stored_findings
    from tracekit.attribution._rules import Rules

__getattr__, __dir__ = lazily(__name__)
