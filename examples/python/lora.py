#!/usr/bin/env python3
"""A LoRA fine-tune of a small decoder with peft: the frozen base in 16 bit and sharded, optimizer state
for the adapters alone.

Runs as it is: `python lora.py`, or `torchrun --nproc-per-node 2 lora.py`. It needs transformers and
peft. The decoder has random weights and learns the bytes of a file, this one by default; put
`from_pretrained` in the place of `decoder()` for a real one.
"""

import argparse
import os
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import ullage

LENGTH = 64


def decoder():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )


def batches(text, steps, rank):
    tokens = torch.tensor(list(text))
    generator = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        starts = torch.randint(0, len(tokens) - LENGTH, (4,), generator=generator)
        yield torch.stack([tokens[start : start + LENGTH] for start in starts.tolist()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stage", type=int, default=3, choices=[0, 1, 2, 3])
    parser.add_argument("--text", default=__file__)
    parser.add_argument("--output", help="a folder for the adapter, as peft writes it")
    arguments = parser.parse_args()
    # With the head: random weights that stay as they are tell bytes badly apart.
    adapted = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    model = get_peft_model(decoder(), LoraConfig(r=8, lora_alpha=16, target_modules=adapted))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.0}},
        # All matrices of this small model are below the usual threshold: they would stay whole.
        "zero_optimization": {"stage": arguments.stage, "stage3_param_persistence_threshold": 1024},
    }
    engine, *_ = ullage.initialize(model=model, config=config, seed=1)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if engine.global_rank == 0:
        held = dict(ullage.memory_report()[0]["now"])
        print(f"trainable {trainable} of {sum(p.numel() for p in model.parameters())} parameters")
        print(f"bytes of rank 0: weights {held['weights']}, moments {held['moments']}")
    text = pathlib.Path(arguments.text).read_bytes()
    for step, tokens in enumerate(batches(text, arguments.steps, engine.global_rank)):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0 and (step == 0 or step % 10 == 9):
            print(f"step {step + 1}: loss {loss.item():.4f}")
    digest = engine.parameters_sha256()
    if engine.global_rank == 0:
        print(f"parameters {digest}")
        if arguments.output:
            os.makedirs(arguments.output, exist_ok=True)
            model.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
