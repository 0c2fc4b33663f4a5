"""Ways of training on several devices (methods), each a module that is imported on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from workloads._errors import OptionError

if TYPE_CHECKING:
    from workloads.methods._method import Method

METHODS = {
    "none": "workloads.methods.none:Single",
    "p2p": "workloads.methods.p2p:PeerToPeer",
    "nccl": "workloads.methods.process_group:Nccl",
    "gloo": "workloads.methods.process_group:Gloo",
    "mpi": "workloads.methods.mpi:Mpi",
    "ps": "workloads.methods.ps:ParameterServer",
    "pipeline": "workloads.methods.pipeline:Pipeline",
}
"""Class of each method: name -> place of the class."""


def find_method(name: str) -> type[Method]:
    """Return the class of a method.

    Parameters
    ----------
    name
        A name in `METHODS`, or the place of a class of your own: ``package.module:Class``.

    Raises
    ------
    OptionError
        If the method does not exist.
    """
    module, colon, attribute = METHODS.get(name, name).partition(":")
    if not colon:
        raise OptionError(f"there is no method {name!r}", f"methods are {', '.join(METHODS)}")
    try:
        found: type[Method] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"the method {name!r} cannot be loaded ({error})") from error
    return found
