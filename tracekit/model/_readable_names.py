"""Kernel names without versions, to match kernels of two runs, and short ones for readers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain

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
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_VERSION = re.compile(r"v\d+(?:_\d+)*|(?:CUB|THRUST)_\w+_NS|_GLOBAL__N_\w*|__\d+")
_LAYERS = frozenset({"detail", "ops", "impl", "internal", "binary_internal", "infer", "train"})
_FAMILIES = "maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell"
_ARCHITECTURE = re.compile(
    rf"(?:^|(?<=_))(?:{_FAMILIES})_|(?:^|(?<=_))sm_?\d\d\d?[a-z]?_|(?:^|_)sm_?\d\d\d?[a-z]?$"
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
"""Number of names and words whose short form is cached: kernels of one library share most words,
and pictures of one run show the same kernels."""


def normalised_name(name: str) -> str:
    """Return a kernel's name without parts that change with a version or GPU.

    These parts are dropped: parameters, template arguments (except for the operation that a generic
    kernel runs, such as ``add`` of ``elementwise_kernel<AddFunctor<float>>``), unnamed and
    versioned namespaces, the GPU's architecture (``sm80_``, ``ampere_``), suffixes of libraries
    (``_execute_kernel__5x_cudnn``) and hashes. An NCCL kernel becomes the name of its collective.
    Two kernels with the same normalised name run the same operation; they may differ in data type
    or vector width.
    """
    name = name[:_LONGEST]
    collective = _NCCL.search(name) if "nccl" in name.lower() else None
    if collective:
        return f"nccl {_COLLECTIVES[collective[1].lower()]}"
    outside, inside = split_brackets(_UNNAMED.sub("", name))
    base = _base(outside)
    if _GENERIC.fullmatch(base.rpartition("::")[2]) and (operations := _operations(inside)):
        return f"{base}[{' '.join(operations)}]"
    return base or name


def split_brackets(name: str) -> tuple[str, str]:
    """Return a C++ function's name outside of all brackets, and the text of its template arguments.

    Its parameters are dropped.
    """
    outside: list[str] = []
    inside: list[str] = []
    depth, in_arguments = 0, False
    for part in _BRACKETS.split(_OPERATOR.sub("operator", name)):
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
    """Return a function's qualified name without its return type.

    `outside` is its signature without everything in brackets.
    """
    path = outside.rsplit(maxsplit=1)[-1] if outside.strip() else outside
    segments = path.split("::")
    kept = [
        segment
        for segment in segments[:-1]
        if segment and segment not in _LAYERS and not _VERSION.fullmatch(segment)
    ]
    return "::".join([*kept, _plain(segments[-1])])


def _plain(word: str) -> str:
    """Return a word of a kernel name without suffixes for the GPU architecture or the library."""
    word = _SPECIALISED.sub("", _ARCHITECTURE.sub("", word))
    shorter = _HASH.sub("", _LIBRARY.sub("", word))
    return shorter or word


def _operations(arguments: str) -> list[str]:
    """Return the operations that the template arguments of a kernel name, each once, in order."""
    found = dict.fromkeys(map(_known_operation, _IDENTIFIER.findall(arguments)))
    return [operation for operation in found if operation]


@lru_cache(_REMEMBERED)
def _known_operation(word: str) -> str:
    """Return the operation that a word of a kernel's template arguments names; empty if none."""
    if not _OPERATION.fullmatch(word) or _WRAPPERS.fullmatch(word):
        return ""
    return _GAP.sub("_", _NOISE.sub("", _plain(word).lower())).strip("_")


# -- short names for readers, unique in a table

_LARGEST_FAMILY = 256
"""Largest number of similar names that are distinguished by words; more are numbered."""
_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_SIGNATURE = re.compile(r"[<(]|::|^void ")
_SAYS_LITTLE = re.compile(r"\d+|at|c10|native|detail|cuda|unnamed|anonymous|lambda|instance|T\d*")
_ARITY = frozenset({"binary", "bunary", "aunary", "unary"})
_PARAMETERS = re.compile(r"\(.*", re.DOTALL)
_DIRECTION = re.compile(r"(fprop|dgrad|wgrad)")
_TILE = re.compile(r"Cta_tile<[^,<>]+" + r",\s*(?:\(int\))?(\d+)" * 3 + r"|tilesize(\d+x\d+x\d+)")
_TENSILE = re.compile(r"Cijk_A([il]+)k_B([jl]+)k_([A-Z0-9]+)_.*?_MT(\d+x\d+x\d+)_")
_FORMAT = re.compile(r"hmma_(?:(\w+?)_)?traits|_(bf16|tf32|f16|f32|i8|e4m3)[a-z]+\d+_")
_HELPER = re.compile(r"kernel_helper_(stage_\d+)|(split_k)")


def readable_names(names: Iterable[str]) -> dict[str, str]:
    """Return short forms of kernel names, no two of them equal.

    A C++ signature loses return type, namespaces and parameters; a generic kernel is named by the
    operation that it runs, with the kernel behind it: ``add (vectorized_elementwise)``; a
    convolution as ``gemm fprop f16 128x128x32``; a product of Tensile (AMD) as ``gemm tn BBS
    64x32x256``, ``t`` for each transposed matrix. Equal names get their distinguishing words
    appended in ``<>``. A name without a signature, such as ``ampere_sgemm_128x64_tn``, stays as it
    is.

    Parameters
    ----------
    names
        Kernel names as recorded.

    Returns
    -------
    dict
        The short form of each.
    """
    families: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        families.setdefault(_short(name), []).append(name)
    short_names = {
        name: text for short, family in families.items() for name, text in _unique(short, family)
    }
    return _numbered(short_names)


@lru_cache(_REMEMBERED)
def _short(name: str) -> str:
    looked_at = name[:_LONGEST]
    if (direction := _DIRECTION.search(looked_at)) and (tile := _TILE.search(looked_at)):
        return " ".join(["gemm", direction[1], *_of_product(looked_at, tile)])
    if tensile := _TENSILE.match(looked_at):
        sides = ("t" if tensile[1] == "li" else "n") + ("t" if tensile[2] == "jl" else "n")
        return f"gemm {sides} {tensile[3]} {tensile[4]}"
    if not _SIGNATURE.search(looked_at):
        return name
    if "nccl" in looked_at.lower():
        return _PARAMETERS.sub("", looked_at.removeprefix("void ")) or name
    path, _, operations = normalised_name(looked_at).rstrip("]").partition("[")
    kernel = path.rpartition("::")[2]
    if not operations or operations.startswith("cutlass"):
        return operations or kernel or name
    return f"{_without_arity(operations)} ({kernel.removesuffix('_kernel')})"


def _without_arity(words: str) -> str:
    """Return the operation of a generic kernel, without its number of operands."""
    known = words.split()
    telling = [word for word in known if word not in _ARITY] or known
    return " ".join(word.removesuffix("ops") or word for word in telling)


def _of_product(name: str, tile: re.Match[str]) -> list[str]:
    """Return what a matrix product's kernel name tells: number format, tile size, helper kernel."""
    name = name.replace("hmma_fp32", "hmma_f16")  # FP32 is what it adds up in
    number, part = _FORMAT.search(name), _HELPER.search(name)
    return [
        *([number[1] or number[2]] if number and (number[1] or number[2]) else []),
        tile[4] or "x".join(tile.groups()[:3]),
        *([part[1] or part[2]] if part else []),
    ]


def _unique(short: str, family: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield kernel names that share the short form `short`, each with a form that is unique."""
    if len(family) == 1 or len(family) > _LARGEST_FAMILY:
        return ((name, short) for name in family)
    words = {name: _words(name) for name in family}
    frequency = Counter(chain.from_iterable(words.values()))
    return ((name, short + _difference(name, words, frequency)) for name in family)


def _words(name: str) -> dict[tuple[str, int], None]:
    """Return the words of a name in order, each paired with how often it occurred before."""
    seen: dict[str, int] = {}
    found: dict[tuple[str, int], None] = {}
    parts = name.replace("_", " ") if _TENSILE.match(name) else name
    for word in _WORD.findall(parts[:_LONGEST]):
        before = seen.get(word, 0)
        found[word, before] = None
        seen[word] = before + 1
    return found


def _difference(
    name: str,
    words: Mapping[str, Mapping[tuple[str, int], None]],
    frequency: Mapping[tuple[str, int], int],
) -> str:
    """Return words, as few as possible, that set `name` apart from others with its short form.

    `words` has the words of all names with this form, `frequency` the number of names with each.
    Among equally rare words, types are preferred to numbers and namespaces, and earlier words to
    later ones.
    """
    candidates = [word for word in words[name] if frequency[word] < len(words)]
    alike = [other for other in words if other != name]
    # So many of those alike have a word, which at first are all others.
    having = {word: frequency[word] - 1 for word in candidates}
    chosen = []
    while alike and candidates:
        fewest = min(having.values())
        if fewest == len(alike):
            break
        among = [word for word in candidates if having[word] == fewest]
        best = next((word for word in among if not _SAYS_LITTLE.fullmatch(word[0])), among[0])
        chosen.append(best)
        if fewest == 0:
            break
        alike = [other for other in alike if best in words[other]]
        having = {word: sum(word in words[other] for other in alike) for word in candidates}
    texts = dict.fromkeys(word for word, _ in sorted(chosen, key=candidates.index))
    return f" <{', '.join(texts)}>" if texts else ""


def _numbered(texts: Mapping[str, str]) -> dict[str, str]:
    """Make the texts unique: append an ordinal to repeated texts."""
    taken: set[str] = set()
    numbers: dict[str, int] = {}
    result = {}
    for name, text in texts.items():
        unique, number = text, numbers.get(text, 1)
        while unique in taken:
            number += 1
            unique = f"{text} #{number}"
        numbers[text] = number
        taken.add(unique)
        result[name] = unique
    return result
