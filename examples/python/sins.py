#!/usr/bin/env python3
"""A training loop full of what people are told to remove before a model may be sharded.

Runs as it is: `python sins.py`, or `torchrun --nproc-per-node 2 sins.py`. The one changed line is
`ullage.initialize`. Moves and casts that stand behind it change nothing, and a warning names each.
"""

import argparse

import torch
from torch import nn

import ullage

VOCABULARY, WIDTH, LENGTH = 64, 64, 24


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        # The weights themselves, not the module that has them.
        return x + torch.nn.functional.gelu(x @ self.up.weight.t() + self.up.bias) @ self.down.weight.t()


class Sinner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.rarely_used = nn.Linear(WIDTH, WIDTH)
        self.kept = []
        self.calls = 0

    def forward(self, tokens):
        device = tokens.device
        self.layers.to(device)  # moved in every forward
        self.calls += 1
        x = self.embedding.weight.to(device)[tokens] + self.position[: tokens.shape[1]]
        length = tokens.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf"), device=device), diagonal=1)
        for index in range(len(self.layers)):
            layer = self.layers[index].to(device)
            x = layer(x, mask) + self.layers[index].down.bias
            self.kept.append(self.layers[index].up.weight)  # a list that keeps tensors
        if self.calls % 3 == 0:
            x = x + self.rarely_used(x)  # not all parameters get a gradient in each step
        size = torch.stack([torch.norm(p) for p in self.parameters()]).norm()
        sharpness = self.layers[0].up.weight.detach().cpu().numpy().std()
        logits = x @ self.head.weight.t() * (1 + 0.0 * float(sharpness))
        one_hot = torch.nn.functional.one_hot(tokens[:, 1:], VOCABULARY).float()
        loss = -(logits[:, :-1].log_softmax(-1) * one_hot).sum(-1).mean()
        return loss + 1e-6 * size


def batches(steps, rank):
    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        start = torch.randint(0, VOCABULARY, (4, 1), generator=generator)
        yield (start + 3 * torch.arange(LENGTH)) % VOCABULARY


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--stage", type=int, default=3, choices=[0, 1, 2, 3])
    arguments = parser.parse_args()
    torch.manual_seed(0)
    zero = {"stage": arguments.stage}
    if arguments.stage == 3:
        zero.update(offload_param={"device": "cpu"}, stage3_param_persistence_threshold=0)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
        "zero_optimization": zero,
        "ullage": {"unit_size": "64KiB"},
    }
    model = Sinner().to("cuda" if torch.cuda.is_available() else "cpu")
    engine, *_ = ullage.initialize(model=model, config=config, seed=1)
    for step, tokens in enumerate(batches(arguments.steps, engine.global_rank)):
        loss = engine(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        engine.step()
        with torch.no_grad():  # a hand-made decay behind the optimizer's back
            model.position.data *= 0.999
        if engine.global_rank == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    digest = engine.parameters_sha256()
    if engine.global_rank == 0:
        print(f"parameters {digest}")


if __name__ == "__main__":
    main()
