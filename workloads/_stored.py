"""Samples on disk: files with ``images`` and ``labels`` in NumPy's or PyTorch's format."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workloads._data import Share
from workloads._errors import DataError
from workloads.methods._method import Part
from workloads.networks import Image, Network, Tokens

_ENDINGS = (".npz", ".pt")
_WRITE_SOME = "`python -m workloads.data OUT` writes some that can be read"
_MIDDLE, _SPREAD = 127.5, 64.0
_GREY = 3

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Shards:
    """Files with samples, numbered across all files.

    Parameters
    ----------
    path
        A ``.npz`` or ``.pt`` file, or a folder of these. ``images`` has the shape N, channels,
        height, width (without channels if there is one), of bytes or floats; for a network of
        tokens N, length, of integers. ``labels`` has the shape N, of integers.
    network
        Network that the samples are for.

    Raises
    ------
    DataError
        If there are no samples, or they do not fit the network.
    """

    def __init__(self, path: Path, network: Network) -> None:
        self._files = _find(path)
        self._network = network
        self._read = lru_cache(maxsize=2)(self._checked)
        counts = [len(_array(file, "labels")) for file in self._files]
        self.starts: Numbers = np.cumsum([0, *counts])
        self.count = int(self.starts[-1])
        if not self.count:
            raise DataError(f"{path} holds no samples", _WRITE_SOME)
        self._first = self._read(0)

    @property
    def network(self) -> Network:
        """The network, configured for images of the size of the first one."""
        image = self._network.input
        if not isinstance(image, Image):
            return self._network
        height, width = self._first.inputs.shape[2:]
        return replace(self._network, input=replace(image, height=height, width=width))

    def take(self, samples: Numbers) -> Part:
        """Return the samples with the numbers `samples`, counted across all files."""
        owners = np.searchsorted(self.starts, samples, side="right") - 1
        inputs, labels, places = [], [], []
        for shard in np.unique(owners):
            at = np.flatnonzero(owners == shard)
            rows = torch.from_numpy(samples[at] - self.starts[shard])
            found = self._read(int(shard))
            inputs.append(found.inputs[rows])
            labels.append(found.labels[rows])
            places.append(at)
        back = torch.from_numpy(np.argsort(np.concatenate(places)))
        return Part(self._numbers(torch.cat(inputs)[back]), torch.cat(labels)[back])

    def _numbers(self, inputs: Tensor) -> Tensor:
        """Return inputs in the network's number format; bytes become floats around 0."""
        if isinstance(self._network.input, Tokens):
            return inputs.long()
        if inputs.dtype == torch.uint8:
            return (inputs.float() - _MIDDLE) / _SPREAD
        return inputs.float()

    def _checked(self, shard: int) -> Part:
        file = self._files[shard]
        inputs, labels = (_array(file, name) for name in ("images", "labels"))
        if isinstance(self._network.input, Image) and inputs.ndim == _GREY:
            inputs = inputs[:, None]
        fault = _fault(inputs, labels, self._network)
        if fault is not None:
            raise DataError(f"{file} {fault}", _WRITE_SOME)
        return Part(inputs, labels.long())


class Stored:
    """Batches of samples on disk, shuffled anew in each epoch.

    The network is evaluated on the first batch, which is also used for training.
    """

    def __init__(self, shards: Shards, share: Share, seed: int) -> None:
        self._shards = shards
        self._share = share
        self._seed = seed
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def step(self, number: int) -> Sequence[Part]:
        """Return this process' parts of the global batch for step `number`."""
        first = number * self._share.batch
        return [
            self._part(np.arange(first + part.start, first + part.stop))
            for part in self._share.slices
        ]

    def evaluation(self) -> Sequence[Part]:
        """Return this process' parts of the batch for evaluation."""
        return self.step(0)

    def _part(self, places: Numbers) -> Part:
        """Return the samples at positions `places` of all epochs one after the other."""
        epochs, within = np.divmod(places, self._shards.count)
        chosen = [self._order(int(epoch))[within[epochs == epoch]] for epoch in np.unique(epochs)]
        return self._share.keep(self._shards.take(np.concatenate(chosen)))

    def _shuffled(self, epoch: int) -> Numbers:
        """Return the shuffled order of an epoch's samples: file by file, to read each file once."""
        random = np.random.default_rng([self._seed, epoch])
        starts = self._shards.starts
        orders = [
            starts[shard] + random.permutation(int(starts[shard + 1] - starts[shard]))
            for shard in random.permutation(len(starts) - 1)
        ]
        return np.concatenate(orders)


def write_shard(file: Path, part: Part) -> None:
    """Write samples to a ``.npz`` file; images are stored as bytes."""
    inputs = part.inputs.numpy()
    if part.inputs.is_floating_point():
        inputs = np.clip(inputs * _SPREAD + _MIDDLE, 0, 255).astype(np.uint8)
    np.savez(file, images=inputs, labels=part.labels.numpy())


def _find(path: Path) -> list[Path]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file for file in files if file.suffix in _ENDINGS and file.is_file()]
    if not found:
        raise DataError(f"{path} is no .npz or .pt file, nor a folder of such", _WRITE_SOME)
    return found


def _array(file: Path, name: str) -> Tensor:
    try:
        if file.suffix == ".pt":
            stored = torch.load(file, map_location="cpu", weights_only=True)
            return torch.as_tensor(stored[name])
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return torch.from_numpy(arrays[name])
    except (KeyError, TypeError) as error:
        raise DataError(f"{file} has no array {name!r}", _WRITE_SOME) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise DataError(f"{file} cannot be read ({error})", _WRITE_SOME) from error


def _fault(inputs: Tensor, labels: Tensor, network: Network) -> str | None:
    """Return what is wrong with the samples of a file, as a predicate; None if nothing is."""
    shape = tuple(inputs.shape)
    if labels.shape != shape[:1]:
        return f"has {len(inputs)} images and labels of the shape {tuple(labels.shape)}"
    if isinstance(network.input, Image):
        wanted = f"N, {network.input.channels}, height, width"
        fits = len(shape) == _GREY + 1 and shape[1] == network.input.channels
        highest = None
    else:
        wanted = f"N, {network.input.length}"
        fits = len(shape) == 2 and shape[1] <= network.input.length  # noqa: PLR2004
        highest = network.input.vocabulary
    if not fits:
        return f"has inputs of the shape {shape}, and {network.name} takes {wanted}"
    if highest is not None and not _within(inputs, highest):
        return f"has tokens that are not from 0 to {highest - 1}"
    if not _within(labels, network.classes):
        return f"has labels that are not from 0 to {network.classes - 1}"
    return None


def _within(numbers: Tensor, count: int) -> bool:
    if not numbers.numel():
        return True
    return bool(numbers.min() >= 0) and bool(numbers.max() < count)
