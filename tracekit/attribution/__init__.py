"""Attribution: launches, open ranges, iterations and stages of ops."""

from tracekit.attribution._attribute import attribute, attribute_recording
from tracekit.attribution._findings import stored_findings
from tracekit.attribution._names import base_name
from tracekit.attribution._rules import Rules

__all__ = ["Rules", "attribute", "attribute_recording", "base_name", "stored_findings"]
