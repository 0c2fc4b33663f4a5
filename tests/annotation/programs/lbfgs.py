"""An optimizer that runs passes within its steps."""

import torch
from stage_clock import clock, write
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256))
x, y = torch.randn(2048, 256), torch.randn(2048, 256)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6, history_size=10)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    with clock("FP"):
        loss = nn.functional.mse_loss(model(x), y)
    with clock("BP"):
        loss.backward()
    return loss


for _ in range(4):
    with clock("WU"):
        optimizer.step(closure)
write(4, model)
