"""Resident memory of real processes against the engine's own numbers.

    ULLAGE_MODEL_MB=1024 .venv/bin/python -m pytest -s tests/e2e/memory_test.py

does it with a model of that size.
"""
import json
import os
import pathlib
import subprocess
import time

import pytest
import torch
import transformers

from conftest import ULLAGE, run_well, save_model, write_tokens

MB = 1 << 20
MODEL_MB = int(os.environ.get("ULLAGE_MODEL_MB", "128"))
SPARE = 64 * MB
SAVE_BUFFER = 16 * MB


class Big:
    """A model of which no process may hold all, and runs of one step on four ranks at stage 3."""

    def __init__(self, folder):
        self.folder, self.model = folder, folder / "model"
        torch.manual_seed(0)
        layers = max(1, round((MODEL_MB * MB - 26e6) / 28.4e6))
        config = transformers.BertConfig(
            vocab_size=8000, hidden_size=768, num_hidden_layers=layers, num_attention_heads=12,
            intermediate_size=3072, max_position_embeddings=64, num_labels=2)
        model = transformers.BertForSequenceClassification(config)
        self.weight_bytes = 4 * sum(p.numel() for p in model.parameters())
        self.largest = 4 * max(p.numel() for p in model.parameters())
        model.save_pretrained(self.model)
        self.tokens = write_tokens(folder / "train.safetensors", [[1, 2, 3, 4]] * 8, [0, 1] * 4)
        self.config = folder / "config.json"
        self.config.write_text(json.dumps({
            "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}))

    def train(self, name, *more):
        """The folder it wrote to and its report."""
        output, report = self.folder / name, self.folder / f"{name}.json"
        run_well("train", "--model", self.model, "--train", self.tokens, "--config", self.config,
                 "--steps", 1, "--ranks", 4, "--threads", 1, "--output", output, "--report",
                 report, *more, timeout=600)
        return output, json.loads(report.read_text())


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    return Big(tmp_path_factory.mktemp("big"))


@pytest.fixture(scope="module")
def plain(big):
    return big.train("plain")[1]


@pytest.fixture(scope="module")
def saved(big):
    return big.train("saved", "--save-every", 1, "--save-buffer", str(SAVE_BUFFER))


def owned_bytes(report, rank):
    return sum(per_rank[rank] for per_rank in report["peak_bytes"].values())


def test_loading_at_stage_3_costs_what_a_rank_owns(big, plain):
    """No rank ever holds the model while it loads."""
    assert big.weight_bytes > 0.9 * MODEL_MB * MB
    for rank in range(4):
        owned = owned_bytes(plain, rank)
        raised = plain["load_rss_raised_bytes"][rank]
        print(f"load of a model, rank {rank}: {raised / MB:.1f} MB, owned {owned / MB:.1f} MB")
        assert raised <= owned + big.largest + 8 * MB
        assert raised < 0.75 * big.weight_bytes, "a rank held most of the model"


def test_saving_costs_its_buffer_and_a_little(big, plain, saved):
    _, report = saved
    for rank in range(4):
        raised = report["rss_peak_bytes"][rank] - plain["rss_peak_bytes"][rank]
        buffer = report["peak_bytes"]["saves"][rank]
        print(f"save, rank {rank}: {raised / MB:.1f} MB, of them buffer {buffer / MB:.1f} MB")
        assert buffer == SAVE_BUFFER
        assert raised <= SPARE


def test_resuming_costs_what_a_rank_owns(big, saved):
    output, _ = saved
    _, report = big.train("resumed", "--resume-from", output / "checkpoints")
    for rank in range(4):
        owned = owned_bytes(report, rank)
        raised = report["load_rss_raised_bytes"][rank]
        print(f"resume, rank {rank}: {raised / MB:.1f} MB, owned {owned / MB:.1f} MB")
        assert raised <= owned + SPARE


def peak_of(*words):
    """Peak resident bytes of one command, as last seen; rusage would count its parent's, too."""
    process = subprocess.Popen([ULLAGE, *map(str, words)], stdout=subprocess.DEVNULL)
    name = f"Name:\t{pathlib.Path(ULLAGE).name[:15]}\n"  # not its parent's, before exec
    peak = 0
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        if status.startswith(name):
            peaks = [line for line in status.splitlines() if line.startswith("VmHWM")]
            peak = max([peak, *(1024 * int(line.split()[1]) for line in peaks)])
        time.sleep(0.002)
    assert process.returncode == 0
    assert peak > 0
    return peak


def test_exporting_costs_no_more_than_the_largest_tensor(big, saved):
    output, _ = saved
    small = save_model(big.folder / "small")
    least = peak_of("export", "--model", small, "--output", big.folder / "small-export")
    for name, words in (("checkpoint", ["--checkpoint", output / "checkpoints"]), ("model", [])):
        peak = peak_of("export", "--model", big.model, "--output", big.folder / f"export-{name}",
                       "--dtype", "bf16", *words)
        print(f"export of a {name}: {(peak - least) / MB:.1f} MB more than of a tiny model")
        assert peak - least <= big.largest + SPARE
