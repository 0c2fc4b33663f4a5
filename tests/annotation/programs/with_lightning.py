"""Lightning, whose optimizers run the passes as a closure."""

import lightning
import torch
from stage_clock import clock, write
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
        )

    def training_step(self, batch, _):
        with clock("FP"):
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("right", (self.net(x).argmax(1) == y).float().mean())

    def on_validation_start(self):
        self.evaluation = clock("ME")
        self.evaluation.__enter__()

    def on_validation_end(self):
        self.evaluation.__exit__()

    def backward(self, loss, *args, **kwargs):
        with clock("BP"):
            super().backward(loss, *args, **kwargs)

    def optimizer_step(self, *args, **kwargs):
        with clock("WU"):
            super().optimizer_step(*args, **kwargs)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def _data(rows: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(rows, 512), torch.randint(0, 10, (rows,))), 64)


trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
model = Model()
trainer.fit(model, _data(640), _data(256))
write(trainer.global_step, model)
