"""Hugging Face's Trainer, which accumulates gradients over two batches."""

import sys

import torch
from stage_clock import clock, write
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.set_num_threads(1)
torch.manual_seed(0)


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int):
        random = torch.Generator().manual_seed(row)
        words = torch.randint(0, 1000, (64,), generator=random)
        return {"input_ids": words, "labels": torch.tensor(row % 2)}


def _timed(stage, function):
    def run(*args, **kwargs):
        with clock(stage):
            return function(*args, **kwargs)

    return run


class Mine(Trainer):
    def compute_loss(self, model, *args, **kwargs):
        with clock("FP" if model.training else "ME"):
            return super().compute_loss(model, *args, **kwargs)

    def create_optimizer(self, *args, **kwargs):
        made = super().create_optimizer(*args, **kwargs)
        self.model.zero_grad = _timed("WU", self.model.zero_grad)
        made.step = _timed("WU", made.step)
        return made


config = BertConfig(
    vocab_size=1000, hidden_size=384, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=1536, max_position_embeddings=64,
)  # fmt: skip
arguments = TrainingArguments(
    output_dir=sys.argv[-1] + ".out", num_train_epochs=2, per_device_train_batch_size=8,
    gradient_accumulation_steps=2, eval_strategy="epoch", save_strategy="no", report_to=[],
    disable_tqdm=True, use_cpu=True,
)  # fmt: skip
trainer = Mine(
    BertForSequenceClassification(config), arguments, train_dataset=Rows(160), eval_dataset=Rows(64)
)
torch.nn.utils.clip_grad_norm_ = _timed("WU", torch.nn.utils.clip_grad_norm_)
trainer.accelerator.backward = _timed("BP", trainer.accelerator.backward)
trainer.train()
write(trainer.state.global_step, trainer.model)
