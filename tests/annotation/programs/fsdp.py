"""FSDP, each layer of which is gathered before its passes, in a world of one."""

from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from world_of_one import train


def _sharded(model: nn.Sequential) -> nn.Module:
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return model


train(_sharded)
