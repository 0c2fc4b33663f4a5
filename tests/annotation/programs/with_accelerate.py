"""Hugging Face's accelerate, which wraps model, optimizer and loader."""

import torch
from accelerate import Accelerator
from stage_clock import clock, write
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 10))
data = TensorDataset(torch.randn(1280, 512), torch.randint(0, 10, (1280,)))
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters()), DataLoader(data, 64)
)
steps = 0
for x, y in loader:
    with accelerator.accumulate(model):
        with clock("FP"):
            loss = nn.functional.cross_entropy(model(x), y)
        with clock("BP"):
            accelerator.backward(loss)
        with clock("WU"):
            optimizer.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
write(steps, model)
