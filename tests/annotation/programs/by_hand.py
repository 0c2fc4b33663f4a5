"""A language model whose weights are updated by hand, as in tutorials: no optimizer is known."""

import torch
from stage_clock import clock, write
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
WORDS, STEPS = 500, 21


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 192)
        self.recurrent = nn.LSTM(192, 256)
        self.last = nn.Linear(256, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.recurrent(self.embedding(words))[0])


model = Model()
text = torch.randint(0, WORDS, (STEPS * 32 + 1, 16))
for _epoch in range(3):
    model.train()
    for step in range(STEPS):
        part = text[step * 32 : step * 32 + 33]
        model.zero_grad()
        # That a first pass is of a training is known from its backward pass on.
        with clock("FP"):
            loss = nn.functional.cross_entropy(model(part[:-1]).flatten(0, 1), part[1:].flatten())
        with clock("BP"):
            loss.backward()
        for weight in model.parameters():
            weight.data.add_(weight.grad, alpha=-0.1)
    model.eval()
    with clock("ME"), torch.no_grad():
        for step in range(4):
            part = text[step * 32 : step * 32 + 33]
            nn.functional.cross_entropy(model(part[:-1]).flatten(0, 1), part[1:].flatten())
write(3 * STEPS, model)
