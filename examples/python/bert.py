"""Fine-tunes a BERT classifier in plain PyTorch; the engine is the one changed line.

    python examples/python/bert.py --model demo/model --reviews demo/reviews.tsv
    torchrun --nproc-per-node 2 examples/python/bert.py --model demo/model --reviews demo/reviews.tsv

scripts/quickstart.sh makes demo/. Two minutes on two cores: 100 steps of 16 reviews, then the accuracy
on reviews that were held out.
"""

import argparse
import csv
import os
import random

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import ullage

CONFIG = {
    "train_batch_size": 16,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_max_lr": 1e-4,
            "warmup_num_steps": 10,
            "warmup_type": "linear",
            "total_num_steps": 100,
        },
    },
    "zero_optimization": {"stage": 3},
}


def read_reviews(path):
    """(label, text) of each line "id<TAB>label<TAB>text"."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(int(row[1]), row[2]) for row in rows if len(row) == 3 and row[1].isdigit()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--reviews", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--output", default="out")
    options = parser.parse_args()

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    reviews = read_reviews(options.reviews)
    random.Random(0).shuffle(reviews)  # the file has the good ones first
    held_out, reviews = reviews[: options.held_out], reviews[options.held_out :]

    def collate(records):
        labels, texts = zip(*records)
        batch = tokenizer(list(texts), padding=True, truncation=True, max_length=64, return_tensors="pt")
        return {**batch, "labels": torch.tensor(labels)}

    engine, _, loader, _ = ullage.initialize(
        model=model, config=CONFIG, training_data=reviews, collate_fn=collate
    )

    is_first = int(os.environ.get("RANK", "0")) == 0
    while engine.global_steps < options.steps:
        for batch in loader:
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            if is_first and engine.global_steps % 10 == 0:
                print(f"step {engine.global_steps}: loss {loss.item():.4f}, lr {engine.get_lr()[0]:.2e}")
            if engine.global_steps == options.steps:
                break

    engine.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(held_out), 50):
            batch = collate(held_out[start : start + 50])
            right += (engine(**batch).logits.argmax(-1).cpu() == batch["labels"]).sum().item()
    if is_first:
        print(f"accuracy on {len(held_out)} held-out reviews: {right / len(held_out):.3f}")
    engine.save_checkpoint(options.output)
    engine.save_16bit_model(options.output)


if __name__ == "__main__":
    main()
