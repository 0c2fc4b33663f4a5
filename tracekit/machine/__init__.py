"""Machines: links between their GPUs, bandwidths and routes.

Names are loaded when they are first used: a machine is a graph, which takes time to load.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.machine._check import problems, unknown_bandwidths
    from tracekit.machine._choose import Placed, find_machine, is_topology, machine_of
    from tracekit.machine._fabric import with_nics
    from tracekit.machine._graph import PREFIXES, Link, Machine, Relay, Route
    from tracekit.machine._listings import adjacency, link_table, relay_table, route_table
    from tracekit.machine._nccl_log import NcclLog, read_nccl_log
    from tracekit.machine._placing import Placing, place
    from tracekit.machine._presets import load_preset, preset_names, recognise
    from tracekit.machine._products import (
        Product,
        nvlink_of,
        peak_flops,
        peak_memory_bandwidth,
        reducing_gpus,
        with_bandwidths,
    )
    from tracekit.machine._read import read_topology
    from tracekit.machine._rings import Ring, find_rings
    from tracekit.machine._toml import machine_toml, read_machine_toml
    from tracekit.machine._volumes import (
        IN_SWITCH,
        SYMMETRIC,
        Edge,
        Tree,
        bus_factor,
        shares,
    )

__getattr__, __dir__ = lazily(__name__)
