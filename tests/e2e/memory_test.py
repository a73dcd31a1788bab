"""Resident memory of real processes against the engine's own numbers."""
import json

import numpy as np
import torch
import transformers

from conftest import run_well, write_tokens

MB = 1 << 20


def test_loading_at_stage_3_costs_what_a_rank_owns(tmp_path):
    """Four ranks, 200 MB of weights: no rank ever holds the model while it loads."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=8000, hidden_size=768, num_hidden_layers=6, num_attention_heads=12,
        intermediate_size=3072, max_position_embeddings=64, num_labels=2)
    model = transformers.BertForSequenceClassification(config)
    weight_bytes = 4 * sum(p.numel() for p in model.parameters())
    assert weight_bytes > 190e6
    largest = 4 * max(p.numel() for p in model.parameters())
    model.save_pretrained(tmp_path / "model")
    tokens = write_tokens(tmp_path / "train.safetensors", [[1, 2, 3, 4]] * 8, [0, 1] * 4)
    (tmp_path / "config.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}))
    done = run_well("train", "--model", tmp_path / "model", "--train", tokens, "--config",
                    tmp_path / "config.json", "--steps", 1, "--ranks", 4, "--threads", 1,
                    "--output", tmp_path / "out", "--report", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    for rank in range(4):
        owned = sum(per_rank[rank] for tag, per_rank in report["peak_bytes"].items())
        raised = report["load_rss_raised_bytes"][rank]
        assert raised <= owned + largest + 8 * MB, (rank, raised / MB, owned / MB, done.stdout)
        assert raised < 0.75 * weight_bytes, "a rank held most of the model"
