"""A training in a world of one, whose network is distributed in one way or another."""

import tempfile
from collections.abc import Callable

import torch
from stage_clock import clock, write
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(distribute: Callable[[nn.Sequential], nn.Module]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meet"
        distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    model = distribute(
        nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10))
    )
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(3840, 256), torch.randint(0, 10, (3840,)))
    loader = DataLoader(data, 192, sampler=DistributedSampler(data))
    steps = 0
    for x, y in loader:
        with clock("FP"):
            loss = nn.functional.cross_entropy(model(x), y)
        with clock("BP"):
            loss.backward()
        with clock("WU"):
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
    try:
        write(steps, model)
    finally:
        distributed.destroy_process_group()
