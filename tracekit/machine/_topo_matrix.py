"""Parse the matrix that `nvidia-smi topo -m` prints, and build the machine from it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import networkx as nx

from tracekit.errors import InputError
from tracekit.machine._graph import Link, Machine, number_of
from tracekit.machine._pcie import Wire, known, pcie_links, socket_links

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_GPU = re.compile(r"GPU\d{1,4}")
_NVLINKS = re.compile(r"NV([1-9]\d{0,2})")
_OTHER_DEVICE = re.compile(r"[A-Za-z][\w.:-]{0,40}\d[\w.:-]{0,40}")
_LEGEND = re.compile(r"\s*(NIC\d{1,4}):\s+(\S+)\s*")
_COLUMNS = re.compile(r"GPU NUMA ID|CPU Affinity|NUMA(?: Affinity)?")
_AFFINITY = re.compile(r"N/A|[\d,-]+")

_ONE_SWITCH = frozenset({"PIX", "PSB"})
_SWITCHES = _ONE_SWITCH | {"PXB"}
_ONE_HOST = _SWITCHES | {"PHB", "NODE"}
_SOCKETS = frozenset({"SYS", "SOC"})
_RELATIONS = _ONE_HOST | _SOCKETS
_PEER_STATES = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})  # topo -p2p

_MAX_DEVICES = 512
_MOST_BRICKS = 18
"""Largest number of NVLinks of any GPU (H100, B200)."""
_ALL_BRICKS = (6, 8, 12, 18)
"""Numbers of NVLinks of GPUs behind NVSwitches: V100; A800 and H800; A100; H100 and B200."""

_Pair = tuple[str, str]


@dataclass
class _Block:
    """A topology matrix in the output of `nvidia-smi topo -m`: its header and the rows below it."""

    devices: list[str]
    columns: list[str]
    rows: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Matrix:
    """Content of the matrices of `nvidia-smi topo -m`: links between GPUs and NICs, affinities."""

    devices: Sequence[str]
    """Node names of GPUs and NICs (`GPU0`, `NIC1`), in the order of the columns."""
    nvlinks: Mapping[_Pair, int]
    """(GPU, GPU) -> number of NVLinks; each pair is there in both orders."""
    relations: Mapping[_Pair, str]
    """(device, device) -> PCIe relation, from `PIX` to `SYS`; in both orders."""
    numa: Mapping[str, int]
    """GPU -> NUMA node; GPUs without one are absent."""
    cpus: Mapping[str, str]
    """GPU -> CPUs near to it, as a list such as `0-19,40-59`."""
    names: Mapping[str, str]
    """NIC -> its system name (`mlx5_0`)."""

    @property
    def gpus(self) -> list[str]:
        """Node names of the GPUs, without NICs."""
        return [each for each in self.devices if each.startswith("GPU")]


def parse_matrix(text: str, source: str) -> Matrix | None:
    """Parse matrices of `nvidia-smi topo -m` in a text; None if there are none.

    Other text may come before and after. Several matrices of one machine are combined: `topo -mp`
    shows PCIe relations of GPUs for which `topo -m` shows NVLinks.

    Parameters
    ----------
    text
        Output of nvidia-smi.
    source
        Name of the file in messages.

    Raises
    ------
    InputError
        If a matrix is cut short, is not symmetric, or has cells that name no known relation.
    """
    lines = _ANSI.sub("", text).splitlines()
    # The matrix of `topo -p2p` shows which GPUs can copy to each other, and nothing of links.
    blocks = [
        block for block in _blocks(lines, source)
        if not any(cell in _PEER_STATES for cells, _ in block.rows.values() for cell in cells)
    ]  # fmt: skip
    if not blocks:
        return None
    names = _node_names(blocks[0].devices)
    nvlinks: dict[_Pair, int] = {}
    relations: dict[_Pair, str] = {}
    for block in blocks:
        if block.devices != blocks[0].devices:
            raise InputError(f"{source} has matrices of different machines", "keep those of one")
        for pair, cell in _cells(block, source):
            nodes = names[pair[0]], names[pair[1]]
            found = _NVLINKS.fullmatch(cell)
            count = nvlinks.setdefault(nodes, int(found[1])) if found else None
            known = relations.setdefault(nodes, cell) if not found else cell
            if (found and count != int(found[1])) or known != cell:
                raise InputError(f"{source} has matrices that differ", "keep those of one machine")
    called = {node: name for name, node in names.items() if not name.startswith(("GPU", "NIC"))}
    legend = {found[1]: found[2] for line in lines if (found := _LEGEND.fullmatch(line))}
    called |= {names[nic]: name for nic, name in legend.items() if nic in names}
    numa, cpus = _affinities(blocks)
    return Matrix(list(names.values()), nvlinks, relations, numa, cpus, called)


def machine_of_matrix(
    matrix: Matrix, name: str, active: Mapping[str, int] | None = None
) -> Machine:
    """Return the machine that a topology matrix describes, with warnings on what it leaves open.

    NV4 between two GPUs means that four NVLinks join them, or that four lead from each to
    NVSwitches, shared by all pairs; the matrix does not distinguish the two. A switch is inferred
    if the NVLinks in a row add up to more than the GPU can have (18, or the number that `nvidia-smi
    nvlink -s` lists): seven times NV12 in a DGX A100, seven times NV18 in a DGX H100, and 15 times
    NV6 in a DGX-2, but neither three times NV4 (four A100 on one board) nor one NV12 (a pair of
    PCIe boards).

    GPUs and NICs with PIX or PSB share a PCIe switch, and those with PXB a switch further up.
    Sockets follow from NUMA nodes, else from CPU affinities, else from SYS. No matrix gives the
    bandwidth of these links.

    Parameters
    ----------
    matrix
        The parsed matrix.
    name
        Name of the machine.
    active
        GPU -> number of its active NVLinks, where known.
    """
    warnings: list[str] = []
    hosts = _hosts(matrix, warnings)
    nvlinks = _nvlinks(matrix, active or {}, warnings)
    pcie, switches = pcie_links(_wires(matrix, hosts))
    if _hides_switches(matrix, hosts):
        warnings.append(
            "NVLinks hide in it which GPUs share a PCIe switch:"
            " append the output of `nvidia-smi topo -mp`"
        )
    nodes = {device: _device(device, matrix) for device in matrix.devices}
    nodes |= {
        end: {"type": "nvswitch"}
        for link in nvlinks for end in link.ends if end.startswith("NVSwitch")
    }  # fmt: skip
    nodes |= {switch: {"type": "pcie"} for switch in switches.values()}
    numas = set(matrix.numa.values())
    cpus = sorted(set(hosts.values()))
    nodes |= {f"CPU{cpu}": known(type="host", numa=cpu if cpu in numas else None) for cpu in cpus}
    links = [*nvlinks, *pcie, *socket_links(f"CPU{cpu}" for cpu in cpus)]
    made = Machine.of(name, nodes, links, "file", warnings)
    bonds = {pair: f"NV{count}" for pair, count in matrix.nvlinks.items()}
    return replace(made, given={**matrix.relations, **bonds})


def _device(device: str, matrix: Matrix) -> dict[str, object]:
    if device.startswith("NIC"):
        return known(type="nic", name=matrix.names.get(device))
    return known(type="gpu", numa=matrix.numa.get(device))


# --- the text


def _blocks(lines: Iterable[str], source: str) -> list[_Block]:
    blocks: list[_Block] = []
    for line in lines:
        words = line.split()
        if not words:
            continue
        header = _header(words)
        if header is not None:
            if len(header.devices) > _MAX_DEVICES:
                raise InputError(f"{source} has a matrix of {len(header.devices):,} devices")
            blocks.append(header)
        elif _is_row(words):
            if not blocks:
                raise InputError(
                    f"{source} has rows of a matrix, but not the header with the names of its"
                    " columns",
                    "give the complete output of `nvidia-smi topo -m`",
                )
            _add_row(blocks[-1], line, source)
    return [block for block in blocks if block.rows or len(block.devices) > 1]


def _header(words: Sequence[str]) -> _Block | None:
    """Return a new, empty matrix if `words` are the header line of one, else None."""
    if not _GPU.fullmatch(words[0]):
        return None
    ends = (
        place for place, word in enumerate(words)
        if word == "GPU" or word.startswith(("CPU", "NUMA"))
    )  # fmt: skip
    end = next(ends, len(words))
    devices = list(words[:end])
    others = [word for word in devices if not _GPU.fullmatch(word)]
    if any(_is_relation(word) or not _OTHER_DEVICE.fullmatch(word) for word in others):
        return None
    if len(set(devices)) < len(devices):
        return None
    return _Block(devices, _COLUMNS.findall(" ".join(words[end:])))


def _is_relation(word: str) -> bool:
    return word == "X" or word in _RELATIONS or _NVLINKS.fullmatch(word) is not None


def _is_cell(word: str) -> bool:
    return _is_relation(word) or word in _PEER_STATES


def _is_row(words: Sequence[str]) -> bool:
    named = _GPU.fullmatch(words[0]) or _OTHER_DEVICE.fullmatch(words[0])
    return bool(named) and any(map(_is_cell, words[1:3]))


def _add_row(block: _Block, line: str, source: str) -> None:
    words = line.split()
    device, width = words[0], len(block.devices)
    if device not in block.devices:
        if not _GPU.fullmatch(device):
            return  # a line of other text
        raise InputError(
            f"{source} has a row {device}, but no column of that name",
            "give the complete output of `nvidia-smi topo -m`",
        )
    count = next((n for n, word in enumerate(words[1:]) if not _is_cell(word)), len(words) - 1)
    if count < width and len(words) - 1 > count and not _AFFINITY.fullmatch(words[1 + count]):
        raise InputError(
            f"{device}-{block.devices[count]} is {words[1 + count]!r:.40} in {source}, which is no"
            " relation that `nvidia-smi topo -m` prints",
            "give its output as it is",
        )
    if count != width:
        raise InputError(
            f"row {device} has {count} cells in {source}, but its header names {width} devices",
            "give the complete output of `nvidia-smi topo -m`",
        )
    row = list(words[1 : 1 + width]), _affinity_cells(line, words[1 + width :], block)
    if block.rows.setdefault(device, row) != row:
        raise InputError(f"{source} has two different rows {device}", "keep those of one machine")


def _affinity_cells(line: str, words: list[str], block: _Block) -> list[str]:
    """Return the cells of a matrix row that follow the cells for devices: CPU and NUMA affinity.

    nvidia-smi puts tabs between cells, and two before the last one, which some of its versions add
    for width alone. A cell may be empty. If tabs were lost and a row has fewer words than there are
    columns, it is unknown which cells they belong to.
    """
    count = len(block.columns)
    if "\t" not in line.strip():
        begins_with_cpus = bool(words) and re.search("[,-]", words[0]) is not None
        return words if len(words) == count or begins_with_cpus else []
    cells = [cell.strip() for cell in line.rstrip().split("\t")]
    # By words: some versions pad the cells of devices with further tabs, and tabs may be lost.
    seen = list(itertools.accumulate(len(cell.split()) for cell in cells))
    last = 1 + len(block.devices)
    rest = cells[seen.index(last) + 1 :] if last in seen else []
    while len(rest) > count and "" in rest:
        rest.pop(len(rest) - 1 - rest[::-1].index(""))
    return rest[:count]


def _cells(block: _Block, source: str) -> Iterator[tuple[_Pair, str]]:
    """Yield each pair of devices, in both orders, with its cell in the matrix.

    Raises
    ------
    InputError
        If the two cells of a pair differ.
    """
    for device in block.devices:
        if device not in block.rows and _GPU.fullmatch(device):
            raise InputError(
                f"{source} has a column {device}, but no row of that name; it may be cut short",
                "give the complete output of `nvidia-smi topo -m`",
            )
    place = {device: number for number, device in enumerate(block.devices)}
    for one, (cells, _) in block.rows.items():
        for other, cell in zip(block.devices, cells, strict=True):
            if (cell == "X") != (one == other):
                raise InputError(f"{one}-{other} is {cell} in {source}", "give its output as it is")
            if one == other:
                continue
            if _NVLINKS.fullmatch(cell) and not (_GPU.fullmatch(one) and _GPU.fullmatch(other)):
                raise InputError(
                    f"{one}-{other} is {cell} in {source}, but NVLinks join GPUs only",
                    "give the output of `nvidia-smi topo -m` as it is",
                )
            back = block.rows[other][0][place[one]] if other in block.rows else cell
            if back != cell:
                raise InputError(
                    f"{one}-{other} is {cell} but {other}-{one} is {back} in {source}",
                    "give the output of `nvidia-smi topo -m` as it is",
                )
            yield (one, other), cell
            yield (other, one), cell


def _node_names(devices: Sequence[str]) -> dict[str, str]:
    """Return the node name of each device of the matrix; those that are no GPUs are NICs."""
    nics = [device for device in devices if not _GPU.fullmatch(device)]
    numbered = all(re.fullmatch(r"NIC\d{1,4}", nic) for nic in nics)
    numbers = {nic: f"NIC{number}" for number, nic in enumerate(nics)}
    nodes = {device: numbers.get(device, device) for device in devices}
    return {device: device for device in devices} if numbered else nodes


def _affinities(blocks: Iterable[_Block]) -> tuple[dict[str, int], dict[str, str]]:
    """Return GPU -> NUMA node, and GPU -> CPUs. A GPU with several NUMA nodes counts as unknown."""
    numa: dict[str, int] = {}
    cpus: dict[str, str] = {}
    for block in blocks:
        for device, (_, rest) in block.rows.items():
            cells = dict(zip(block.columns, rest, strict=False))
            node = cells.get("NUMA Affinity", cells.get("NUMA", ""))
            if re.fullmatch(r"\d{1,4}", node):
                numa.setdefault(device, int(node))
            if re.fullmatch(r"\d{1,6}([,-][\d,-]*)?", cells.get("CPU Affinity", "")):
                cpus.setdefault(device, cells["CPU Affinity"])
    return numa, cpus


# --- sockets


def _groups(matrix: Matrix, relations: frozenset[str]) -> list[list[str]]:
    """Return sets of devices that `relations` such as `PIX` connect, also by way of others."""
    graph = nx.Graph()
    graph.add_nodes_from(matrix.devices)
    graph.add_edges_from(pair for pair, each in matrix.relations.items() if each in relations)
    place = {device: number for number, device in enumerate(matrix.devices)}
    groups = [sorted(group, key=place.__getitem__) for group in nx.connected_components(graph)]
    return sorted(groups, key=lambda group: place[group[0]])


def _hosts(matrix: Matrix, warnings: list[str]) -> dict[str, int]:
    """Return device -> number of its CPU socket, as in the node name `CPU1` of socket 1."""
    known = dict(matrix.numa) or _by_cpus(matrix)
    across = any(each in _SOCKETS for each in matrix.relations.values())
    groups = _groups(matrix, _ONE_HOST)
    if not known and across:
        warnings.append("it has no NUMA nodes: sockets follow from what is SYS in it")
    elif not known and len(groups) > 1:
        warnings.append("it lists no sockets: one CPU is assumed")
    hosts = dict(known)
    for group in groups:
        host = next((hosts[device] for device in group if device in hosts), None)
        if host is None:
            host = _free_host(group, hosts, matrix)
            if host not in hosts.values() and not any(each.startswith("GPU") for each in group):
                warnings.append(
                    f"{', '.join(group)}: SYS from every GPU, so put on a separate CPU (CPU{host})"
                )
        for device in group:
            hosts.setdefault(device, host)
    return hosts


def _free_host(group: Sequence[str], hosts: Mapping[str, int], matrix: Matrix) -> int:
    """Return the first CPU socket without a ``SYS`` relation to the devices `group`.

    If there is none, it is the number of a new socket.
    """
    far = {
        host for other, host in hosts.items()
        if any(matrix.relations.get((device, other)) in _SOCKETS for device in group)
    }  # fmt: skip
    near = sorted(set(hosts.values()) - far)
    return near[0] if near else max(hosts.values(), default=-1) + 1


def _by_cpus(matrix: Matrix) -> dict[str, int]:
    """Return GPU -> CPU socket, one per distinct CPU affinity; empty if all GPUs have the same."""
    lists = sorted(set(matrix.cpus.values()), key=lambda cpus: int(re.split("[,-]", cpus)[0]))
    if len(lists) < 2:  # noqa: PLR2004
        return {}
    numbers = {cpus: number for number, cpus in enumerate(lists)}
    return {gpu: numbers[cpus] for gpu, cpus in matrix.cpus.items()}


# --- links


def _nvlinks(matrix: Matrix, active: Mapping[str, int], warnings: list[str]) -> list[Link]:
    graph = nx.Graph()
    graph.add_nodes_from(matrix.gpus)
    graph.add_edges_from(matrix.nvlinks)
    links: list[Link] = []
    switches = 0
    for each in nx.connected_components(graph):
        group = sorted(each, key=number_of)
        pairs = [pair for pair in matrix.nvlinks if pair[0] in each]
        if not pairs:
            continue
        rows = {gpu: [matrix.nvlinks[pair] for pair in pairs if pair[0] == gpu] for gpu in group}
        if any(sum(row) > active.get(gpu, _MOST_BRICKS) for gpu, row in rows.items()):
            name = f"NVSwitch{switches}"
            switches += 1
            links += [Link((gpu, name), "nvlink", max(row)) for gpu, row in rows.items()]
            if len(pairs) < len(group) * (len(group) - 1):
                warnings.append(f"not every two GPUs are joined through {name}")
            continue
        links += [
            Link((one, other), "nvlink", matrix.nvlinks[one, other])
            for one, other in pairs
            if number_of(one) < number_of(other)
        ]
        if not active and (count := _could_be_switched(rows)):
            warnings.append(
                f"every two of {group[0]} to {group[-1]} are NV{count}, taken for direct NVLinks;"
                " if an NVSwitch joins them, append the output of `nvidia-smi nvlink -s`"
            )
    return links


def _could_be_switched(rows: Mapping[str, Sequence[int]]) -> int | None:
    """Return the NVLinks per GPU if all of them could lead to an NVSwitch, else None.

    They could for more than two GPUs, if each pair has the same number (`rows`: the numbers by
    GPU), and some GPU product has this number of NVLinks in total.
    """
    counts = {count for row in rows.values() for count in row}
    every = all(len(row) == len(rows) - 1 for row in rows.values())
    alike = next(iter(counts)) if len(counts) == 1 else None
    return alike if every and len(rows) > 2 and alike in _ALL_BRICKS else None  # noqa: PLR2004


def _by_group(groups: Iterable[Sequence[str]], name: str) -> Callable[[str], str]:
    numbers = {device: f"{name} {n}" for n, group in enumerate(groups) for device in group}
    return numbers.__getitem__


def _wires(matrix: Matrix, hosts: Mapping[str, int]) -> dict[str, Wire]:
    near = _by_group(_groups(matrix, _ONE_SWITCH), "switch")
    upper = _by_group(_groups(matrix, _SWITCHES), "switches")
    wires: dict[str, Wire] = {}
    for device in matrix.devices:
        wires[device] = Wire(near(device))
        wires.setdefault(near(device), Wire(upper(device)))
        wires.setdefault(upper(device), Wire(f"CPU{hosts[device]}"))
    return wires


def _hides_switches(matrix: Matrix, hosts: Mapping[str, int]) -> bool:
    """Test whether the PCIe relation of some pair of GPUs on one socket is unknown.

    The matrix prints NVLinks in its place; a relation between other GPUs or NICs below the same two
    PCIe switches makes it known.
    """
    groups = _groups(matrix, _SWITCHES)
    known = {
        frozenset((place, other))
        for place, group in enumerate(groups)
        for other, others in enumerate(groups)
        if any((device, each) in matrix.relations for device in group for each in others)
    }
    gpus = [(n, device) for n, group in enumerate(groups) for device in group if device[0] == "G"]
    return any(
        place != other and hosts[one] == hosts[two] and frozenset((place, other)) not in known
        for place, one in gpus
        for other, two in gpus
    )
