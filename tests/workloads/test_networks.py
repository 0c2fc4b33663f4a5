"""The networks that are trained: their parameters, their shapes, their blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rank_helpers import built

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from workloads.networks import NETWORKS, Image, Network, Tokens, blocks, build  # noqa: E402

SMALL = {
    "lenet": 28,
    "alexnet": 64,
    "googlenet": 32,
    "inception-v3": 75,
    "resnet-50": 32,
    "resnet-110": 16,
    "mobilenet": 32,
}
"""Sides of images that are quick to compute."""
QUICK = [name for name in NETWORKS if name != "resnet-110-imagenet"]
"""All but the largest, which is made of the same parts as ResNet-50."""


def _inputs(network: Network, batch: int = 2) -> torch.Tensor:
    if isinstance(network.input, Tokens):
        return torch.randint(network.input.vocabulary, (batch, network.input.length))
    side = SMALL[network.name]
    return torch.rand(batch, network.input.channels, side, side)


def _dense(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def _conv(inputs: int, outputs: int, *kernel: int) -> int:
    """Weights of a convolution without bias, of a square kernel or of height and width."""
    return inputs * outputs * kernel[0] * kernel[-1]


def _normed(inputs: int, outputs: int, *kernel: int) -> int:
    """Those, and of the batch normalisation after it: a factor and an offset per channel."""
    return _conv(inputs, outputs, *kernel) + 2 * outputs


def _lenet() -> int:
    convs = _dense(1 * 25, 6) + _dense(6 * 25, 16)
    return convs + _dense(400, 120) + _dense(120, 84) + _dense(84, 10)


def _alexnet() -> int:
    convs = [(3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)]
    dense = _dense(9216, 4096) + _dense(4096, 4096) + _dense(4096, 1000)
    return sum(_dense(ins * side**2, outs) for ins, outs, side in convs) + dense


GOOGLENET = [  # inputs; 1x1; 3x3 reduced, 3x3; second 3x3 reduced, second 3x3; pool's projection
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
]


def _googlenet_trunk() -> int:
    modules = sum(
        _normed(n, single, 1) + _normed(n, few, 1) + _normed(few, middle, 3)
        + _normed(n, fewer, 1) + _normed(fewer, wide, 3) + _normed(n, pooled, 1)
        for n, single, few, middle, fewer, wide, pooled in GOOGLENET
    )  # fmt: skip
    stem = _normed(3, 64, 7) + _normed(64, 64, 1) + _normed(64, 192, 3)
    return stem + modules + _dense(1024, 1000)


def _googlenet() -> int:
    auxiliary = [
        _normed(inputs, 128, 1) + _dense(2048, 1024) + _dense(1024, 1000) for inputs in (512, 528)
    ]
    return _googlenet_trunk() + sum(auxiliary)


def _inception_trunk() -> int:
    stem = [(3, 32, 3), (32, 32, 3), (32, 64, 3), (64, 80, 1), (80, 192, 3)]
    total = sum(_normed(*layer) for layer in stem)
    for n, pooled in [(192, 32), (256, 64), (288, 64)]:  # 35 x 35
        total += _normed(n, 64, 1) + _normed(n, 48, 1) + _normed(48, 64, 5) + _normed(n, pooled, 1)
        total += _normed(n, 64, 1) + _normed(64, 96, 3) + _normed(96, 96, 3)
    total += _normed(288, 384, 3) + _normed(288, 64, 1) + _normed(64, 96, 3) + _normed(96, 96, 3)
    for c in (128, 160, 160, 192):  # 17 x 17
        total += 2 * _normed(768, 192, 1) + 2 * _normed(768, c, 1)
        total += 4 * _normed(c, c, 7, 1) + 2 * _normed(c, 192, 7, 1)
    total += 2 * _normed(768, 192, 1) + _normed(192, 320, 3)
    total += 2 * _normed(192, 192, 7, 1) + _normed(192, 192, 3)
    for n in (1280, 2048):  # 8 x 8
        total += _normed(n, 320, 1) + _normed(n, 384, 1) + _normed(n, 448, 1) + _normed(n, 192, 1)
        total += _normed(448, 384, 3) + 4 * _normed(384, 384, 3, 1)
    return total + _dense(2048, 1000)


def _inception() -> int:
    return _inception_trunk() + _normed(768, 128, 1) + _normed(128, 768, 5) + _dense(768, 1000)


def _resnet_50(*counts: int) -> int:
    total, inputs = _normed(3, 64, 7), 64
    for width, count in zip((64, 128, 256, 512), counts or (3, 4, 6, 3), strict=True):
        total += _normed(inputs, 4 * width, 1)  # the shortcut of the first
        for _ in range(count):
            total += _normed(inputs, width, 1) + _normed(width, width, 3)
            total += _normed(width, 4 * width, 1)
            inputs = 4 * width
    return total + _dense(2048, 1000)


def _resnet_110() -> int:
    firsts = _normed(3, 16, 3) + _normed(16, 32, 3) + _normed(32, 64, 3)
    others = 36 * _normed(16, 16, 3) + 35 * _normed(32, 32, 3) + 35 * _normed(64, 64, 3)
    return firsts + others + _dense(64, 10)


def _mobilenet() -> int:
    rows = [(16, 1, 1), (24, 6, 2), (32, 6, 3), (64, 6, 4), (96, 6, 3), (160, 6, 3), (320, 6, 1)]
    total, inputs = _normed(3, 32, 3), 32
    for outputs, expansion, count in rows:
        for _ in range(count):
            wide = expansion * inputs
            total += _normed(inputs, wide, 1) if expansion > 1 else 0
            total += _normed(1, wide, 3) + _normed(wide, outputs, 1)
            inputs = outputs
    return total + _normed(320, 1280, 1) + _dense(1280, 1000)


def _transformer() -> int:
    width = 256
    norm = 2 * width
    attention = _dense(width, 3 * width) + _dense(width, width)
    block = norm + attention + norm + _dense(width, 4 * width) + _dense(4 * width, width)
    return (4096 + 128) * width + 4 * block + norm + _dense(width, 10)


@pytest.mark.parametrize(
    ("name", "parameters", "count"),
    [
        ("lenet", 61_706, _lenet),
        ("alexnet", 61_100_840, _alexnet),
        ("googlenet", 13_004_888, _googlenet),
        ("inception-v3", 27_161_264, _inception),
        ("resnet-50", 25_557_032, _resnet_50),
        ("resnet-110", 1_727_962, _resnet_110),
        ("mobilenet", 3_504_872, _mobilenet),
        ("transformer", 4_243_466, _transformer),
    ],
)
def test_parameters(name: str, parameters: int, count: Callable[[], int]) -> None:
    network = built(name)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == parameters
    assert NETWORKS[name].parameters == parameters == count()


def test_the_resnet_of_the_study_has_55_million_parameters_in_110_layers() -> None:
    network = NETWORKS["resnet-110-imagenet"]
    with torch.device("meta"):
        module = network.build()
    assert sum(p.numel() for p in module.parameters()) == network.parameters == 54_591_528
    assert _resnet_50(3, 4, 24, 5) == network.parameters
    layers = sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in module.modules())
    assert layers == 110 + 4  # four in shortcuts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "count"),
    [
        ("googlenet", 6_624_904, _googlenet_trunk),
        ("inception-v3", 23_834_568, _inception_trunk),
    ],
)
def test_parameters_without_auxiliary_classifiers(
    name: str, parameters: int, count: Callable[[], int]
) -> None:
    network = NETWORKS[name].without_auxiliary()
    with torch.device("meta"):
        module = network.build()
    assert sum(p.numel() for p in module.parameters()) == parameters == count()
    assert network.parameters == parameters


@pytest.mark.parametrize(
    ("name", "layers"),
    [("lenet", 5), ("alexnet", 8), ("resnet-50", 50 + 4), ("resnet-110", 110), ("mobilenet", 53)],
)
def test_layers_that_compute(name: str, layers: int) -> None:
    """Layers with weights are as many as the name says; ResNet-50 has four more in shortcuts."""
    kinds = nn.Conv2d | nn.Linear
    assert sum(isinstance(layer, kinds) for layer in built(name).modules()) == layers


@pytest.mark.parametrize("name", QUICK)
def test_logits_and_gradients(name: str) -> None:
    network, module = NETWORKS[name], built(name)
    found = module(_inputs(network))
    logits = found if isinstance(found, tuple) else (found,)
    assert [tuple(one.shape) for one in logits] == [(2, network.classes)] * (
        1 + len(network.auxiliary)
    )
    sum(one.square().sum() for one in logits).backward()
    without = [one for one, weight in module.named_parameters() if weight.grad is None]
    module.zero_grad()
    assert without == []


@pytest.mark.parametrize("name", QUICK)
def test_blocks_compute_what_the_network_does(name: str) -> None:
    network, module = NETWORKS[name], built(name).eval()
    inputs = _inputs(network)
    chained = inputs
    for _, block in blocks(module):
        chained = block(chained)
    assert torch.equal(chained, module(inputs))
    module.train()
    assert all(module.get_submodule(name) is block for name, block in blocks(module))


def test_other_numbers_of_classes() -> None:
    assert build("lenet", 7)(torch.rand(2, 1, 28, 28)).shape == (2, 7)


def test_blocks_are_the_smallest_that_follow_each_other() -> None:
    named = [name for name, _ in blocks(built("resnet-110"))]
    pairs = [f"layer{layer}.block{block}" for layer in (1, 2, 3) for block in range(1, 19)]
    stem = ["conv1.conv", "conv1.norm", "conv1.activation"]
    assert named == [*stem, *pairs, "pool3", "flatten", "fc"]


def test_auxiliary_classifiers_are_fed_by_their_blocks() -> None:
    module = build("googlenet", 7)
    fed = []
    for name in ("inception4a", "inception4d"):
        module.get_submodule(name).register_forward_hook(lambda *call: fed.append(call[2]))
        module.auxiliary[name].register_forward_pre_hook(lambda *call: fed.append(call[1][0]))
    module(_inputs(NETWORKS["googlenet"]))
    assert [fed[0] is fed[1], fed[2] is fed[3], fed[0] is fed[2]] == [True, True, False]


@pytest.mark.parametrize("name", ["lenet", "resnet-110", "transformer"])
def test_the_seed_gives_the_weights(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build(name).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def _deviation(module: nn.Module, name: str) -> float:
    return module.get_parameter(f"{name}.weight").std().item()


@pytest.mark.slow
def test_initial_weights() -> None:
    alexnet, resnet, inception = map(built, ("alexnet", "resnet-50", "inception-v3"))
    assert _deviation(alexnet, "fc7") == pytest.approx(0.01, rel=0.01)
    ones = [name for name, one in alexnet.named_parameters() if one.dim() == 1 and one.min() == 1]
    assert ones == ["conv2.bias", "conv4.bias", "conv5.bias", "fc6.bias", "fc7.bias"]
    assert _deviation(resnet, "layer4.block2.body.conv2.conv") == pytest.approx(
        (2 / (512 * 9)) ** 0.5, rel=0.01
    )
    # Cutting a normal distribution at two standard deviations leaves 0.8796 of its own.
    assert _deviation(inception, "mixed7c.single.conv") == pytest.approx(0.08796, rel=0.01)
    assert _deviation(inception, "auxiliary.mixed6e.fc") == pytest.approx(0.0008796, rel=0.01)
    assert _deviation(build("lenet"), "fc1") == pytest.approx(1 / 400**0.5, rel=0.02)


def test_a_network_of_many_blocks_begins_where_it_knows_nothing() -> None:
    """Its loss is then log 10 = 2.3; 54 blocks that add to each other made it 19."""
    torch.manual_seed(0)
    network = NETWORKS["resnet-110"]
    with torch.no_grad():
        logits = built("resnet-110")(torch.randn(16, 3, 32, 32))
    loss = nn.functional.cross_entropy(logits, torch.arange(16) % network.classes)
    assert loss.item() == pytest.approx(2.3, abs=0.5)


def test_positions_matter_to_the_transformer() -> None:
    module = build("transformer").eval()
    tokens = torch.arange(8).unsqueeze(0)
    assert not torch.allclose(module(tokens), module(tokens.flip(1)), atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name in SMALL])
def test_inputs_are_as_published(name: str) -> None:
    side = {"lenet": 28, "resnet-110": 32, "inception-v3": 299}.get(name, 224)
    channels = 1 if name == "lenet" else 3
    assert NETWORKS[name].input == Image(channels, side, side)
