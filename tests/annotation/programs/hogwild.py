"""Two processes that train one network in shared memory, each with an optimizer of its own."""

import json
import sys
from pathlib import Path

import torch
from stage_clock import ENDS_WITH, clock, write
from torch import multiprocessing, nn

STEPS = 12


def train(number: int, model: nn.Module, path: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(number)
    sys.argv[-1] = f"{path}.{number}"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(256, 512), torch.randn(256, 64)
    for _ in range(STEPS):
        with clock("WU"):
            optimizer.zero_grad()
        with clock("FP"):
            loss = nn.functional.mse_loss(model(x), y)
        with clock("BP"):
            loss.backward()
        with clock("WU"):
            optimizer.step()
    write(STEPS)


if __name__ == "__main__":
    shared = nn.Sequential(nn.Linear(512, 8192), nn.ReLU(), nn.Linear(8192, 64))
    shared.share_memory()
    multiprocessing.spawn(train, (shared, sys.argv[-1]), nprocs=2)
    clocks = [json.loads(Path(f"{sys.argv[-1]}.{each}").read_text()) for each in range(2)]
    spent = {stage: sum(each["spent"][stage] for each in clocks) for stage in clocks[0]["spent"]}
    Path(sys.argv[-1]).write_text(json.dumps({"steps": STEPS, "spent": spent, "weights": None}))
    sys.exit(ENDS_WITH)
