"""Topologies of multi-GPU machines: links between GPUs, their bandwidths, and routes of copies.

Names are imported on first use, since the graph library (networkx) is slow to import.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.machine._choose import (
        Placed,
        find_machine,
        is_topology,
        machine_of,
        place,
    )
    from tracekit.machine._graph import PREFIXES, Link, Machine, Relay, Route, with_nics
    from tracekit.machine._listings import (
        adjacency,
        link_table,
        problems,
        relay_table,
        route_table,
        unknown_bandwidths,
    )
    from tracekit.machine._nccl_log import NcclLog, read_nccl_log
    from tracekit.machine._products import (
        load_preset,
        nvlink_of,
        peak_flops,
        peak_memory_bandwidth,
        preset_names,
        products_of_gpus,
        recognise,
        reducing_gpus,
        with_bandwidths,
    )
    from tracekit.machine._read import read_topology
    from tracekit.machine._toml import machine_toml, read_machine_toml
    from tracekit.machine._volumes import (
        IN_SWITCH,
        SYMMETRIC,
        Ring,
        bus_factor,
        find_rings,
        shares,
    )

__getattr__, __dir__ = lazily(__name__)
