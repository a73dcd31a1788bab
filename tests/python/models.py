"""Small models and data that the tests share."""

import torch
from transformers import BertConfig, BertForSequenceClassification


def bert(seed=0, dropout=0.1):
    torch.manual_seed(seed)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=200,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=64,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def records(count, length=16, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(0, 200, (length,), generator=generator),
            "labels": torch.tensor(i % 2),
        }
        for i in range(count)
    ]


def batches(count, size, length=16, seed=1):
    every = records(count * size, length, seed)
    return [
        {key: torch.stack([r[key] for r in every[i * size : (i + 1) * size]]) for key in every[0]}
        for i in range(count)
    ]


def config(stage=0, micro=4, accumulation=1, **more):
    """stage: 0 to 3, or "streamed": stage 3 with everything on the host. On one rank only that gathers
    weights when operators need them; the others have room for all."""
    host = {"device": "cpu"}
    streamed = {"offload_param": host, "offload_optimizer": host} if stage == "streamed" else {}
    settings = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {
            "stage": 3 if stage == "streamed" else stage,
            "stage3_param_persistence_threshold": 0,
            **streamed,
        },
    }
    settings.update(more)
    return settings


STAGES = [0, 1, 2, 3, "streamed"]


def train(engine, data):
    losses = []
    for batch in data:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses
