"""Gradients and weights copied between devices of one process, like MXNet's store ``device``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import nn

from workloads._devices import choose_devices
from workloads._options import Options, Root
from workloads.methods._buckets import Bucket, bucket_bytes, fill_buckets
from workloads.methods._copies import Copy, fetch, send
from workloads.methods._method import Launch, Setup
from workloads.methods._replicas import Replicas


class Exchange(NamedTuple):
    """Buckets with the same parameters on each device.

    `root` is on the device that updates them; `others` are on the other devices.
    """

    root: Bucket
    others: Sequence[Bucket]


class PeerToPeer(Replicas):
    """Gradients are copied to a root device, averaged and applied there; weights are copied back.

    Between two devices everything travels in one copy each way. Copies between different devices
    overlap. With ``overlap`` gradients travel in buckets of at least ``bucket_mb``, each of which
    is sent as soon as the backward pass has computed it.

    Parameters
    ----------
    setup
        Everything that the method is made from. With ``root`` spread each parameter has its own
        root.
    devices
        One device per replica. On the CPU all are the same.
    """

    launch = Launch.ALONE

    def __init__(self, setup: Setup, devices: Sequence[torch.device]) -> None:
        super().__init__(setup, devices, parts=len(devices))
        replicas = [list(module.parameters()) for module in self._modules]
        sizes = [parameter.nbytes for parameter in replicas[0]]
        spread = setup.options.root is Root.SPREAD
        roots = spread_roots(sizes, len(devices)) if spread else [0] * len(sizes)
        self._optimizer = self._passes.optimizer(
            replicas[root][number] for number, root in enumerate(roots)
        )
        enough = bucket_bytes(setup.options) if setup.options.overlap else math.inf
        self._exchanges = [
            exchange for root in sorted(set(roots))
            for exchange in _exchanges(
                [[one[n] for n, its in enumerate(roots) if its == root] for one in replicas],
                root, enough,
            )
        ]  # fmt: skip
        self._on_their_way: dict[Bucket, Copy] = {}
        if setup.options.overlap:
            for root_bucket, others in self._exchanges:
                for bucket in others:
                    bucket.when_full(partial(self._set_out, bucket, root_bucket.vector.device))

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error if devices are missing."""
        choose_devices(options.device, local)

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Build the network on each device."""
        return cls(setup, choose_devices(setup.options.device, setup.options.gpus))

    def _update(self) -> None:
        with self._notes.range("gradient exchange"):
            self._gather()
        with self._notes.range("optimizer"):
            self._passes.update(self._optimizer)
        with self._notes.range("weight exchange"):
            self._scatter()

    def _set_out(self, bucket: Bucket, root: torch.device) -> None:
        self._on_their_way[bucket] = fetch(bucket.take_gradients(), root)

    def _gather(self) -> None:
        """Average the gradients of each parameter at its root."""
        for root, others in self._exchanges:
            for bucket in others:
                if bucket not in self._on_their_way:
                    self._set_out(bucket, root.vector.device)
        for root, others in self._exchanges:
            mean = root.take_gradients()
            for bucket in others:
                mean += self._on_their_way.pop(bucket).arrive()
                self.exchanged.gather += bucket.nbytes
            mean /= len(others) + 1
            root.give_gradients()

    def _scatter(self) -> None:
        """Copy each parameter from its root to the other devices."""
        begun = [
            (bucket, send(weights, bucket.vector))
            for root, others in self._exchanges
            for weights in ([root.take_weights()] if others else [])
            for bucket in others
        ]
        for bucket, copy in begun:
            self.exchanged.scatter += copy.arrive().nbytes
            bucket.give_weights()


def _exchanges(
    replicas: Sequence[Sequence[nn.Parameter]], root: int, enough: float
) -> list[Exchange]:
    """Divide the parameters that a root device updates into buckets, one set per bucket."""
    filled = zip(*(fill_buckets(parameters, enough) for parameters in replicas), strict=True)
    return [Exchange(buckets[root], [*buckets[:root], *buckets[root + 1 :]]) for buckets in filled]


def spread_roots(sizes: Sequence[int], devices: int) -> list[int]:
    """Return the root device of each parameter.

    The largest parameters are assigned first, each to the device with the fewest bytes so far.

    Parameters
    ----------
    sizes
        Bytes of each parameter.
    devices
        Number of devices.
    """
    loads = [0] * devices
    roots = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        roots[index] = loads.index(min(loads))
        loads[roots[index]] += sizes[index]
    return roots
