"""A tiny BERT and token files for tests that run the built `ullage` as a user types it."""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
ULLAGE = os.environ.get("ULLAGE_UNDER_TEST", str(ROOT / ".venv/bin/ullage"))
VOCABULARY = 100
POSITIONS = 32
os.environ["HF_HUB_OFFLINE"] = "1"


def run(*words, timeout=60, **variables):
    """Runs a command and returns it ended, with its output as text."""
    return subprocess.run([ULLAGE, *map(str, words)], capture_output=True, text=True,
                          timeout=timeout, env=os.environ | variables)


def run_well(*words, **variables):
    done = run(*words, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def write_tokens(path, records, labels, num_labels=2):
    """A token file as ullage-prepare writes it."""
    offsets = np.cumsum([0] + [len(record) for record in records]).astype(np.int64)
    tokens = np.concatenate([np.asarray(record, np.int32) for record in records]
                            or [np.zeros(0, np.int32)])
    save_file({"input_ids": tokens, "offsets": offsets, "labels": np.asarray(labels, np.int64)},
              str(path),
              {"format": "ullage-tokens", "version": "1", "tokenizer": "tiny",
               "tokenizer_sha256": "0" * 64, "pad_token_id": "0",
               "num_labels": str(num_labels), "label_names": "[]"})
    return path


def make_records(count, seed):
    """Texts of 4 to 20 tokens whose label is told by one of them."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    records = []
    for label in labels:
        body = draw.integers(20, VOCABULARY, draw.integers(2, 19))
        records.append([1, *body.tolist(), 10 + int(label)])
    return records, labels.tolist()


def save_model(folder, labels=2, **changes):
    """A random model, whose hidden state is wide enough for weights to be told apart."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=POSITIONS, num_labels=labels, **changes)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def write_config(path, stage=3, **changes):
    """Settings that put every parameter of the tiny model into units of a few KB."""
    settings = {
        "train_batch_size": 16, "steps_per_print": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 40},
        "ullage": {"unit_size": "16KiB", "timeout_seconds": 30}}
    settings.update(changes)
    path.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return path


class Workshop:
    """A model directory and two token files; runs trainings into folders beside them."""

    def __init__(self, folder):
        self.folder = folder
        self.model = save_model(folder / "model")
        self.train_file = write_tokens(folder / "train.safetensors", *make_records(200, 1))
        self.eval_file = write_tokens(folder / "eval.safetensors", *make_records(67, 2))
        self.runs = 0

    def new(self, name):
        self.runs += 1
        return self.folder / f"{self.runs}-{name}"

    def words(self, config, output, *more):
        return ["train", "--model", self.model, "--train", self.train_file, "--config", config,
                "--output", output, *more]

    def train(self, *more, stage=3, **changes):
        """Trains with one thread a rank; returns the output folder and the report."""
        config = write_config(self.new("config.json"), stage, **changes)
        output, report = self.new("out"), self.new("report.json")
        run_well(*self.words(config, output, "--report", report, "--threads", 1, *more))
        return output, json.loads(report.read_text())


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("shop"))
