"""Networks to train, in plain PyTorch."""

from workloads.networks._catalogue import NETWORKS, build
from workloads.networks._layers import blocks
from workloads.networks._network import Image, Network, Tokens

__all__ = ["NETWORKS", "Image", "Network", "Tokens", "blocks", "build"]
