"""Time of a step through the Python door against plain PyTorch's, on the CPU, interleaved.

    PYTHONPATH=build/ci/python python benchmarks/python/step_overhead.py [--rounds 40]

A BERT of 12 small layers: most of its time is the calling of operators, which is what managing
parameters adds to. Prints a line for each stage: medians, and their ratio. "streamed" is stage 3 with
everything at home on the host, which alone gathers weights where there is one rank.
"""

import argparse
import statistics
import time

import torch
from transformers import BertConfig, BertForSequenceClassification

import ullage


def model(hidden):
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=1000,
            hidden_size=hidden,
            num_hidden_layers=12,
            num_attention_heads=max(2, hidden // 64),
            intermediate_size=4 * hidden,
        )
    )


def plain_step(hidden):
    own = model(hidden)
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-4, fused=True)

    def step(batch):
        loss = own(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def engine_step(hidden, stage):
    host = {"device": "cpu"}
    streamed = {"offload_param": host, "offload_optimizer": host} if stage == "streamed" else {}
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 3 if streamed else stage,
            "stage3_param_persistence_threshold": 0,
            **streamed,
        },
    }
    engine, *_ = ullage.initialize(model=model(hidden), config=settings)

    def step(batch):
        engine.backward(engine(**batch).loss)
        engine.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    batch = {
        "input_ids": torch.randint(0, 1000, (8, options.length)),
        "labels": torch.randint(0, 2, (8,)),
    }
    steps = {"plain": plain_step(options.hidden)}
    for stage in (0, 2, 3, "streamed"):
        steps[f"stage {stage}"] = engine_step(options.hidden, stage)
    times = {name: [] for name in steps}
    for round_ in range(options.rounds + 3):
        for name, step in steps.items():
            start = time.perf_counter()
            step(batch)
            if round_ >= 3:
                times[name].append(time.perf_counter() - start)
    plain = statistics.median(times["plain"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:14} {1e3 * median:8.2f} ms  {median / plain:.3f} of plain")


if __name__ == "__main__":
    main()
