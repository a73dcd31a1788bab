#!/usr/bin/env python3
"""Writes the jobs of prediction_benchmark: shapes, batches, lengths and placements.

    python benchmarks/planner/jobs.py [--family bert,llama,mistral,qwen2,qwen3] [--budgets N]

Mistral, Qwen2 and Qwen3 were not looked at while the prediction was developed.
"""
import argparse
import json
import random

MODELS = "benchmarks/engine/models"
ON_HOST = {"device": "cpu", "pin_memory": True}
# name: (what goes into zero_optimization, what goes into ullage)
PLACEMENTS = {
    "resident": ({"stage": 0}, {}),
    "recompute": ({"stage": 1}, {"recompute": "block"}),
    "state_on_host": ({"stage": 2, "offload_optimizer": ON_HOST}, {}),
    "third_on_host": ({"stage": 1, "offload_optimizer": {**ON_HOST, "ratio": 0.3}},
                      {"recompute": "block"}),
    "all_on_host": ({"stage": 3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST},
                    {"recompute": "block"}),
}
BERT = f"{MODELS}/bert-base.json"
LLAMA = f"{MODELS}/llama-1b.json"
SMALL = {"num_hidden_layers": 6}
FAMILIES = {
    "bert": (BERT, {}),
    "llama": (LLAMA, {**SMALL, "num_key_value_heads": 8}),
    "mistral": (LLAMA, {**SMALL, "model_type": "mistral", "sliding_window": 200,
                        "num_key_value_heads": 8}),
    "qwen2": (LLAMA, {**SMALL, "model_type": "qwen2", "tie_word_embeddings": True,
                      "vocab_size": 151936}),
    "qwen3": (LLAMA, {**SMALL, "model_type": "qwen3", "head_dim": 128, "hidden_size": 1536,
                      "num_attention_heads": 12, "num_key_value_heads": 4}),
}
SHAPES = {  # batch, tokens, micro-steps
    "bert": [(16, 128, 1), (16, 512, 1), (3, 77, 2)],
    "llama": [(16, 512, 1), (4, 2048, 1), (1, 100, 4)],
    "mistral": [(8, 512, 1), (2, 1000, 2)],
    "qwen2": [(8, 512, 1), (2, 333, 1)],
    "qwen3": [(8, 512, 1), (1, 2048, 2)],
}


def job(name, family, shape, precision, **settings):
    model, changes = FAMILIES[family]
    batch, tokens, steps = shape
    return {
        "name": f"{family}_b{batch}_s{tokens}_x{steps}_{name}",
        "model": model, "changes": changes, "batch": batch, "tokens": tokens,
        "settings": {
            "gradient_accumulation_steps": steps,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
            **settings,
            **({precision: {"enabled": True}} if precision != "fp32" else {}),
        },
    }


def jobs(families):
    for family in families:
        for shape in SHAPES[family]:
            for placement, (zero, ullage) in PLACEMENTS.items():
                for precision in ("bf16", "fp32") if placement == "resident" else ("bf16",):
                    yield job(f"{placement}_{precision}", family, shape, precision,
                              zero_optimization=zero, ullage={"cuda_graphs": "off", **ullage})


def budgets(families, count):
    """Jobs with `ullage.device_memory` at random and no offload section: the plan decides."""
    draw = random.Random(1)
    for _ in range(count):
        family = draw.choice(families)
        shape = draw.choice(SHAPES[family])
        mib = int(1024 * 2 ** draw.uniform(0, 4))
        recompute = draw.choice(["block", "none"])
        yield job(f"{recompute}_{mib}MiB", family, shape, "bf16",
                  ullage={"device_memory": f"{mib}MiB", "recompute": recompute})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default=",".join(FAMILIES))
    parser.add_argument("--budgets", type=int, default=0, help="jobs with random budgets instead")
    arguments = parser.parse_args()
    families = arguments.family.split(",")
    chosen = budgets(families, arguments.budgets) if arguments.budgets else jobs(families)
    print(json.dumps(list(chosen), indent=1))


if __name__ == "__main__":
    main()
