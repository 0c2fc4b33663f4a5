"""Kernel names without parts that change with a library version or GPU."""

from __future__ import annotations

import re
from functools import lru_cache

_LONGEST = 4096
"""Characters of a name that are examined; longer names differ only in their arguments."""
_COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send_recv", "alltoall": "all_to_all",
}  # fmt: skip
_NCCL = re.compile(rf"nccl(?:dev)?kernel_?({'|'.join(_COLLECTIVES)})", re.IGNORECASE)
_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\(anonymous\)|<anonymous>)::")
_BRACKETS = re.compile(r"([<>(){}\[\]])")
_OPENING, _CLOSING = frozenset("<({["), frozenset(">)}]")
_OPERATOR = re.compile(r"operator\s*(?:<<=?|>>=?|<=>|<=|>=|->|<|>|\(\)|\[\])")
_WORD = re.compile(r"[A-Za-z_]\w*")
_VERSION = re.compile(r"v\d+(?:_\d+)*|(?:CUB|THRUST)_\w+_NS|_GLOBAL__N_\w*|__\d+")
_LAYERS = frozenset({"detail", "ops", "impl", "internal", "binary_internal", "infer", "train"})
_FAMILIES = "maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell"
_ARCHITECTURE = re.compile(
    rf"(?:^|(?<=_))(?:{_FAMILIES})_|(?:^|(?<=_))sm_?\d\d\d?[a-z]?(?:_|$)"
    r"|(?<=cutlass_)\d\d\d?_|(?<=cutlass3x_)sm\d\d\d?[a-z]?_",
    re.IGNORECASE,
)
_LIBRARY = re.compile(
    r"_{1,2}(?:\d+x_)?(?:cudnn|cublas|trt)(?:_infer|_train)?$|_v\d{1,2}$", re.IGNORECASE
)
_HASH = re.compile(r"_(?=[0-9a-f]*\d)[0-9a-f]{8,64}$")
_SPECIALISED = re.compile(r"_(?:\d{1,3}(?:d|c|de|dc|dec|e)){2,100}(?:\d{1,3})?$")
_GENERIC = re.compile(
    r"kernel2?|device_kernel|split_k_kernel|\w*(?:elementwise|reduce|multi_tensor)\w*",
    re.IGNORECASE,
)
"""Generic names: what they compute is in their template arguments."""
_WRAPPERS = re.compile(r"gpu_(?:index_)?kernel\w*|\w*func_wrapper\w*")
_OPERATION = re.compile(
    r"\w*functor\w*|\w+ops|\w+_kernel\w*|\w*(?:fprop|dgrad|wgrad)\w*|cutlass\w*_\w+", re.IGNORECASE
)
_NOISE = re.compile(r"cuda|functor|kernel|impl")
_GAP = re.compile(r"__+")
_REMEMBERED = 1 << 12
"""Number of words whose meaning is cached: kernels of one library share most words."""


def normalised_name(name: str) -> str:
    """Return a kernel's name without parts that change with a version or GPU.

    Dropped are parameters, template arguments (except for the operation that a generic kernel runs,
    such as ``add`` of ``elementwise_kernel<AddFunctor<float>>``), unnamed and versioned namespaces,
    the GPU's architecture (``sm80_``, ``ampere_``), suffixes of libraries
    (``_execute_kernel__5x_cudnn``) and hashes. An NCCL kernel becomes the name of its collective.
    Two kernels with the same normalised name run the same operation; they may differ in data type
    or vector width.
    """
    name = name[:_LONGEST]
    collective = _NCCL.search(name) if "nccl" in name.lower() else None
    if collective:
        return f"nccl {_COLLECTIVES[collective[1].lower()]}"
    outside, inside = _split(_OPERATOR.sub("operator", _UNNAMED.sub("", name)))
    base = _base(outside)
    if _GENERIC.fullmatch(base.rpartition("::")[2]) and (operations := _operations(inside)):
        return f"{base}[{' '.join(operations)}]"
    return base or name


def _split(name: str) -> tuple[str, str]:
    """Return the text outside of all brackets, and the text in the first template arguments."""
    outside: list[str] = []
    inside: list[str] = []
    depth, in_arguments = 0, False
    for part in _BRACKETS.split(name):
        if part in _OPENING:
            if depth == 0 and part == "(" and "".join(outside).strip():
                break  # its parameters
            in_arguments |= depth == 0 and part == "<"
            depth += 1
        elif part in _CLOSING:
            depth = max(0, depth - 1)
        else:
            (outside if depth == 0 else inside).append(part)
    return "".join(outside), " ".join(inside) if in_arguments else ""


def _base(outside: str) -> str:
    """Return a function's qualified name without its return type."""
    path = outside.rsplit(maxsplit=1)[-1] if outside.strip() else outside
    segments = path.split("::")
    kept = [
        segment
        for segment in segments[:-1]
        if segment and segment not in _LAYERS and not _VERSION.fullmatch(segment)
    ]
    return "::".join([*kept, _plain(segments[-1])])


def _plain(word: str) -> str:
    """Return a word without architecture and library suffix."""
    word = _SPECIALISED.sub("", _ARCHITECTURE.sub("", word))
    shorter = _HASH.sub("", _LIBRARY.sub("", word))
    return shorter or word


def _operations(arguments: str) -> list[str]:
    """Return the operations that template arguments name, each once, in order."""
    found = dict.fromkeys(map(_operation, _WORD.findall(arguments)))
    return [operation for operation in found if operation]


@lru_cache(_REMEMBERED)
def _operation(word: str) -> str:
    """Return the operation that a word of template arguments names; empty if none."""
    if not _OPERATION.fullmatch(word) or _WRAPPERS.fullmatch(word):
        return ""
    return _GAP.sub("_", _NOISE.sub("", _plain(word).lower())).strip("_")
