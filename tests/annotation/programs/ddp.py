"""DistributedDataParallel, in a world of one."""

from torch.nn.parallel import DistributedDataParallel
from world_of_one import train

train(DistributedDataParallel)
