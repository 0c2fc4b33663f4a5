"""What networks are trained on, and how devices share it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from workloads._data import (  # noqa: E402
    Data,
    Share,
    Synthetic,
    check_images,
    find_network,
    sample,
)
from workloads._errors import DataError, OptionError  # noqa: E402
from workloads._stored import Shards, Stored, write_shard  # noqa: E402
from workloads.methods._method import Part  # noqa: E402
from workloads.networks import NETWORKS, Image  # noqa: E402

LENET = NETWORKS["lenet"]


def _numbered(count: int, first: int = 0) -> Part:
    """Images that are black but for their number in a corner, which is half their label's."""
    images = np.zeros((count, 1, 28, 28), np.uint8)
    images[:, 0, 0, 0] = np.arange(first, first + count)
    labels = torch.arange(first, first + count) % 10
    return Part(torch.from_numpy(images), labels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven samples in three files, one of each kind."""
    write_shard(tmp_path / "a.npz", _numbered(3))
    torch.save(dict(zip(("images", "labels"), _numbered(2, 3), strict=True)), tmp_path / "b.pt")
    write_shard(tmp_path / "c.npz", _numbered(2, 5))
    return tmp_path


def _numbers(parts: list[Part]) -> list[int]:
    """Return the numbers that images carry, in order."""
    corners = torch.cat([part.inputs[:, 0, 0, 0] for part in parts])
    return (corners * 64 + 127.5).round().int().tolist()


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("kind", ["synthetic", "stored"])
def test_devices_see_together_what_one_device_sees(kind: str, parts: int, folder: Path) -> None:
    def opened(parts: int, own: range) -> Data:
        share = Share(4, parts, own)
        if kind == "synthetic":
            return Synthetic(LENET, share, seed=3)
        return Stored(Shards(folder, LENET), share, seed=3)

    def joined(parts_of: Callable[[Data], list[Part]], count: int) -> Part:
        found = [
            part for own in range(count) for part in parts_of(opened(count, range(own, own + 1)))
        ]
        return Part(torch.cat([p.inputs for p in found]), torch.cat([p.labels for p in found]))

    for step in range(5):
        shared = joined(lambda data, step=step: data.step(step), parts)
        alone = joined(lambda data, step=step: data.step(step), 1)
        assert torch.equal(shared.inputs, alone.inputs)
        assert torch.equal(shared.labels, alone.labels)
    shared, alone = (joined(lambda data: data.evaluation(), count) for count in (parts, 1))
    assert torch.equal(shared.inputs, alone.inputs)


@pytest.mark.parametrize(("side", "fits"), [(64, True), (16, False)])
def test_stored_images_say_how_large_they_are(tmp_path: Path, side: int, fits: bool) -> None:
    images = torch.zeros(2, 3, side, side, dtype=torch.uint8)
    write_shard(tmp_path / "a.npz", Part(images, torch.tensor([1, 2])))
    network = Shards(tmp_path, NETWORKS["alexnet"]).network
    assert network.input == Image(3, side, side)
    if fits:
        check_images(network, 2)
    else:
        with pytest.raises(OptionError, match="alexnet cannot be trained on 2 images of 16 x 16"):
            check_images(network, 2)


def test_made_up_batches_depend_on_the_seed_and_differ() -> None:
    share = Share(8, 1, range(1))
    first, again, other = (Synthetic(LENET, share, seed) for seed in (0, 0, 1))
    batches = [first.step(step)[0].inputs for step in range(4)] + [first.evaluation()[0].inputs]
    assert len({float(batch.sum()) for batch in batches}) == 5
    assert torch.equal(first.step(1)[0].inputs, again.step(5)[0].inputs)
    assert not torch.equal(first.step(1)[0].inputs, other.step(1)[0].inputs)


@pytest.mark.parametrize("name", ["lenet", "resnet-110", "transformer"])
def test_made_up_samples_are_what_the_network_takes(name: str) -> None:
    network = NETWORKS[name]
    part = sample(network, 64, torch.Generator().manual_seed(0))
    if isinstance(network.input, Image):
        assert part.inputs.shape[1:] == (
            network.input.channels, network.input.height, network.input.width
        )  # fmt: skip
        assert part.inputs.dtype == torch.float32
    else:
        assert part.inputs.shape == (64, network.input.length)
        assert 0 <= int(part.inputs.min()) <= int(part.inputs.max()) < network.input.vocabulary
    assert set(part.labels.tolist()) <= set(range(network.classes))
    assert len(set(part.labels.tolist())) > 5


def test_images_of_another_size() -> None:
    part = sample(find_network("lenet", 12), 2, torch.Generator())
    assert part.inputs.shape == (2, 1, 12, 12)
    with pytest.raises(OptionError, match="takes no images"):
        find_network("transformer", 12)
    with pytest.raises(OptionError, match="networks are lenet"):
        find_network("vgg")


def test_each_epoch_has_each_sample_once_in_an_order_of_its_own(folder: Path) -> None:
    data = Stored(Shards(folder, LENET), Share(2, 1, range(1)), seed=1)
    seen = [number for step in range(7) for number in _numbers(data.step(step))]
    epochs = seen[:7], seen[7:]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 2
    assert epochs[0] != epochs[1]
    files = [[0 if n < 3 else 1 if n < 5 else 2 for n in epoch] for epoch in epochs]
    assert all(sum(a != b for a, b in pairwise(file)) == 2 for file in files)


def test_labels_stay_with_their_images(folder: Path) -> None:
    (part,) = Stored(Shards(folder, LENET), Share(7, 1, range(1)), seed=5).step(0)
    assert part.labels.tolist() == _numbers([part])
    assert part.labels.dtype == torch.int64


def test_made_up_images_come_back_from_disk_about_as_they_were(tmp_path: Path) -> None:
    made = sample(LENET, 5, torch.Generator().manual_seed(0))
    write_shard(tmp_path / "s.npz", made)
    found = Shards(tmp_path / "s.npz", LENET).take(np.arange(5))
    inside = made.inputs.abs() < 1.9
    assert torch.equal(found.labels, made.labels)
    assert float((found.inputs - made.inputs)[inside].abs().max()) < 1 / 60


def test_tokens_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    network = NETWORKS["transformer"]
    made = sample(network, 3, torch.Generator().manual_seed(0))
    write_shard(tmp_path / "s.npz", made)
    found = Shards(tmp_path, network).take(np.array([2, 0]))
    assert torch.equal(found.inputs, made.inputs[[2, 0]])


def _grey(path: Path) -> None:
    np.savez(path, images=np.zeros((2, 28, 28), np.float32), labels=np.zeros(2, np.int64))


def test_images_of_one_channel_need_not_say_so(tmp_path: Path) -> None:
    _grey(tmp_path / "grey.npz")
    assert Shards(tmp_path, LENET).take(np.array([1])).inputs.shape == (1, 1, 28, 28)


def _wrong(path: Path, **arrays: object) -> None:
    np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: None, "is no .npz or .pt file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 broken"), "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: _wrong(path, images=np.zeros((2, 1, 8, 8))), "has no array 'labels'"),
        (lambda path: _wrong(path, labels=[1, 2]), "has no array 'images'"),
        (lambda path: _wrong(path, images=np.zeros((0, 1, 8, 8)), labels=[]), "no samples"),
        (
            lambda path: _wrong(path, images=np.zeros((3, 1, 8, 8)), labels=[1, 2]),
            "has 3 images and labels",
        ),
        (
            lambda path: _wrong(path, images=np.zeros((2, 3, 8, 8)), labels=[1, 2]),
            "lenet takes N, 1, height, width",
        ),
        (
            lambda path: _wrong(path, images=np.zeros((2, 1, 8, 8)), labels=[1, 10]),
            "labels that are not from 0 to 9",
        ),
        (
            lambda path: _wrong(path, images=np.zeros((2, 1, 8, 8)), labels=[-1, 1]),
            "labels that are not from 0 to 9",
        ),
    ],
)
def test_a_file_that_is_no_data_set_is_an_error_that_names_it(
    write: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.npz"
    write(path)
    with pytest.raises(DataError, match=says) as caught:
        Shards(path, LENET)
    assert str(path) in str(caught.value)


def test_tokens_beyond_the_vocabulary_are_an_error(tmp_path: Path) -> None:
    _wrong(tmp_path / "t.npz", images=np.full((2, 128), 4096), labels=[0, 1])
    with pytest.raises(DataError, match="tokens that are not from 0 to 4095"):
        Shards(tmp_path, NETWORKS["transformer"])


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([print]), labels=np.array([0]))
    with pytest.raises(DataError, match="cannot be read"):
        Shards(tmp_path, LENET)
    torch.save({"images": print, "labels": torch.zeros(1)}, tmp_path / "b.pt")
    with pytest.raises(DataError, match="cannot be read"):
        Shards(tmp_path / "b.pt", LENET)
