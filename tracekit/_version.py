"""The version, which git's tags gave when this was installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tracekit")
except PackageNotFoundError:  # run from its source tree
    __version__ = "0+unknown"
