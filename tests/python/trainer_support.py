"""What the tests of Trainer share: arguments, data, and what a run gave."""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from models import bert, records

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
    "fp16": {"enabled": "auto"},
    "bf16": {"enabled": "auto"},
}


def zero(stage, **more):
    """A section that leaves to Trainer what it knows; every parameter is sliced."""
    return {
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": 0,
            **more,
        }
    }


def arguments(folder, deepspeed, **more):
    if deepspeed is None:
        # An Accelerator with a plugin leaves this behind, and the next one would take stage 2.
        os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    settings = dict(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    settings.update(more)
    return TrainingArguments(output_dir=str(folder), deepspeed=deepspeed, **settings)


def trainer(folder, deepspeed, model=None, **more):
    return Trainer(
        model=bert(dropout=0) if model is None else model,
        args=arguments(folder, deepspeed, **more),
        train_dataset=records(32),
        eval_dataset=records(8, seed=3),
    )


def losses(of):
    return [entry["loss"] for entry in of.state.log_history if "loss" in entry]


def llama(seed=0):
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
