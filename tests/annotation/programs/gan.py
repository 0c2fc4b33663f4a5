"""Two networks with an optimizer each, and workers that load their data."""

import torch
from stage_clock import clock, write
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
BATCH = 192


def _network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, outputs)
    )


maker, judge = _network(64, 784), _network(784, 1)
of_maker = torch.optim.Adam(maker.parameters())
of_judge = torch.optim.Adam(judge.parameters())
loss_of = nn.BCEWithLogitsLoss()
yes, no = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
loader = DataLoader(TensorDataset(torch.randn(10 * BATCH, 784)), BATCH, num_workers=2)
steps = 0
for _epoch in range(2):
    with clock("IO"):
        batches = iter(loader)
    while True:
        try:
            with clock("IO"):
                (real,) = next(batches)
        except StopIteration:
            break
        noise = torch.randn(BATCH, 64)
        with clock("WU"):
            of_judge.zero_grad()
        with clock("FP"):
            made = maker(noise)
            loss = loss_of(judge(real), yes) + loss_of(judge(made.detach()), no)
        with clock("BP"):
            loss.backward()
        with clock("WU"):
            nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
            of_judge.step()
            of_maker.zero_grad()
        with clock("FP"):
            loss = loss_of(judge(made), yes)
        with clock("BP"):
            loss.backward()
        with clock("WU"):
            of_maker.step()
        steps += 1
write(steps, maker, judge)
