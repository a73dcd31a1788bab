"""The Hugging Face loop that `ullage train` is timed against: same model, token file, batches.

    python benchmarks/engine/hf_loop.py MODEL TRAIN.safetensors --batch 32 --steps 20 --threads 1

Batches are those of ullage's loader in composition (records grouped by length within a window),
not in order; lengths, padding and real tokens per step are printed so that both can be compared.
"""
import argparse
import json
import random
import statistics
import time

import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    with safe_open(arguments.train, "pt") as file:
        ids, offsets = file.get_tensor("input_ids").long(), file.get_tensor("offsets").tolist()
        labels = file.get_tensor("labels")
    order = list(range(len(labels)))
    random.Random(0).shuffle(order)
    window = 50 * arguments.batch
    batches = []
    for start in range(0, len(order) - arguments.batch, window):
        chunk = sorted(order[start:start + window], key=lambda i: offsets[i + 1] - offsets[i])
        batches += [chunk[i:i + arguments.batch] for i in range(0, len(chunk), arguments.batch)]
    random.Random(1).shuffle(batches)

    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=2)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 30))
    times, tokens = [], []
    for step in range(arguments.steps + 3):
        rows = [ids[offsets[i]:offsets[i + 1]] for i in batches[step % len(batches)]]
        start = time.perf_counter()
        x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True)
        loss = model(input_ids=x, attention_mask=mask, labels=labels[batches[step % len(batches)]]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step >= 3:
            times.append(time.perf_counter() - start)
            tokens.append(int(mask.sum()))
    print(json.dumps({"median_ms": 1e3 * statistics.median(times),
                      "tokens_per_s": sum(tokens) / sum(times),
                      "tokens_per_step": sum(tokens) / len(tokens)}))


if __name__ == "__main__":
    main()
