"""FSDP, each layer of which is gathered before its passes, in a world of one."""

import tempfile

import torch
from stage_clock import clock, write
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    meeting = f"file://{folder}/meet"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10))
mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
for layer in (*model, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(1280, 256), torch.randint(0, 10, (1280,)))
loader = DataLoader(data, 64)
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
write(steps)
distributed.destroy_process_group()
