"""Gradients accumulated over four batches, of which the next is fetched between the passes."""

import torch
from stage_clock import clock, write
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
PARTS, STEPS = 4, 10


class Images(Dataset):
    def __len__(self) -> int:
        return 64 * (PARTS * STEPS + 1)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        image = torch.full((1, 1, 64, 64), number / len(self))
        return nn.functional.interpolate(image, 28, mode="bicubic")[0], number % 10


model = nn.Sequential(nn.Flatten(), nn.Linear(784, 4096), nn.GELU(), nn.Linear(4096, 10))
optimizer = torch.optim.AdamW(model.parameters())
with clock("IO"):
    batches = iter(DataLoader(Images(), 64))
    batch = next(batches)
for number in range(PARTS * STEPS):
    x, y = batch
    with clock("FP"):
        out = model(x)
    with clock("IO"):
        batch = next(batches)
    with clock("FP"):
        loss = nn.functional.cross_entropy(out, y) / PARTS
    with clock("BP"):
        loss.backward()
    if number % PARTS == PARTS - 1:
        with clock("WU"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
write(STEPS, model)
