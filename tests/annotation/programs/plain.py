"""A plain PyTorch training loop."""

import torch
from stage_clock import clock, write
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)


class Images(Dataset):
    def __init__(self, images: int) -> None:
        self._images = images

    def __len__(self) -> int:
        return self._images

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        image = torch.full((1, 3, 128, 128), number / self._images)
        return nn.functional.interpolate(image, 32, mode="bicubic")[0], number % 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(32 * 14 * 14, 512)
        self.last = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.head(self.features(x).flatten(1)))


model = Net()
optimizer = torch.optim.Adam(model.parameters())
loader, tests = DataLoader(Images(640), 32, shuffle=True), DataLoader(Images(160), 32)
steps = 0
for _epoch in range(2):
    with clock("IO"):
        batches = iter(loader)
    while True:
        try:
            with clock("IO"):
                x, y = next(batches)
        except StopIteration:
            break
        with clock("WU"):
            optimizer.zero_grad()
        with clock("FP"):
            loss = nn.functional.cross_entropy(model(x), y)
        with clock("BP"):
            loss.backward()
        with clock("WU"):
            optimizer.step()
        steps += 1
    with clock("ME"):
        model.eval()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in tests)
        model.train()
write(steps, model)
