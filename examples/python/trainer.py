#!/usr/bin/env python3
"""Fine-tunes the quick start's model on its movie reviews with Hugging Face's Trainer.

The two lines about ullage are all that is not an ordinary Trainer script. After quickstart.sh:

  python examples/python/trainer.py --model demo/model --reviews demo/reviews.tsv --output out
  torchrun --nproc-per-node 2 examples/python/trainer.py --model demo/model ...
"""

import argparse
import csv

import ullage

ullage.enable_for_transformers()

from transformers import (  # noqa: E402
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
            "warmup_type": "linear",
        },
    },
    "zero_optimization": {"stage": 3},
}


def read_reviews(path, tokenizer):
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    encoded = tokenizer([row["text"] for row in rows], truncation=True, max_length=48)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": int(row["label"])}
        for row, ids, mask in zip(rows, encoded["input_ids"], encoded["attention_mask"])
    ]


def accuracy(found):
    return {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a Hugging Face model directory")
    parser.add_argument("--reviews", required=True, help="a TSV with the columns text and label")
    parser.add_argument("--output", required=True, help="where the trained model goes")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eval-count", type=int, default=300, help="reviews that are held out")
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    reviews = read_reviews(options.reviews, tokenizer)
    # Before the model: at stage 3 its weights then go from the file straight into the slices.
    arguments = TrainingArguments(
        output_dir=options.output,
        deepspeed=DS_CONFIG,
        max_steps=options.steps,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        learning_rate=2e-4,
        warmup_steps=max(1, options.steps // 10),
        logging_steps=10,
        save_strategy="no",
        report_to=[],
    )
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=reviews[options.eval_count :],
        eval_dataset=reviews[: options.eval_count],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"accuracy on {options.eval_count} held-out reviews: {metrics['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
