"""The real MiniLM, saved by two ranks at stage 3: it goes on anywhere as if it had not stopped.

    ULLAGE_ROWS=all .venv/bin/python -m pytest -s tests/e2e/minilm_resume_test.py

runs every number of ranks, stage and offload in both precisions; without it a few of them.
"""
import itertools
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import run_well, write_tokens
from minilm_test import BF16, MODEL
from resume_test import state_of

ALL = os.environ.get("ULLAGE_ROWS") == "all"
SAVED, LAST = (3, 13) if ALL else (2, 5)
OFFLOADS = {
    "resident": {}, "state": {"offload_optimizer": {"device": "cpu"}},
    "all": {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}
PRECISIONS = {"fp32": {}, "bf16": BF16}
EVERY = [(ranks, stage, offload, precision)
         for precision, ranks, stage, offload in itertools.product(
             PRECISIONS, (1, 2, 4), range(4), OFFLOADS)
         if offload == "resident" or stage > 0 and (offload == "state" or stage == 3)]
FEW = [(1, 3, "all", "fp32"), (2, 0, "resident", "bf16")]
ROWS = EVERY if ALL else FEW


class Runs:
    """Trainings that differ in placement, each with its own folder of outputs."""

    def __init__(self, folder):
        self.folder, self.count, self.saved, self.hashes = folder, 0, {}, {}
        draw = np.random.default_rng(5)
        records = [[101, *draw.integers(1000, 30000, draw.integers(4, 24)).tolist(), 102]
                   for _ in range(80)]
        self.tokens = write_tokens(folder / "train.safetensors", records,
                                   draw.integers(0, 2, 80).tolist())

    def train(self, ranks, stage, offload, precision, steps, *more):
        """Two micro-batches of two records a rank and step at W=2; returns output and report."""
        self.count += 1
        output = self.folder / str(self.count)
        settings = {
            "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "weight_decay": 0.01}},
            "zero_optimization": {"stage": stage, **OFFLOADS[offload]},
            "ullage": {"unit_size": 4 << 20, "timeout_seconds": 120}, **PRECISIONS[precision]}
        config, report = output.with_suffix(".config"), output.with_suffix(".report")
        config.write_text(json.dumps(settings))
        run_well("train", "--model", MODEL, "--train", self.tokens, "--config", config, "--steps",
                 steps, "--ranks", ranks, "--threads", 1, "--output", output, "--report", report,
                 *more, timeout=300)
        return output, json.loads(report.read_text())

    def unbroken(self, precision):
        """Saved on the way; the checkpoint, what it holds, the whole run."""
        if precision not in self.saved:
            output, report = self.train(2, 3, "resident", precision, LAST, "--save-every", SAVED,
                                        "--keep", 99)
            checkpoint = output / f"checkpoints/step-{SAVED:08}"
            self.saved[precision] = (checkpoint, state_of(checkpoint), output, report)
        return self.saved[precision]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("minilm"))


@pytest.mark.parametrize("ranks, stage, offload, precision", ROWS)
def test_it_goes_on_from_two_ranks_at_stage_3(runs, ranks, stage, offload, precision):
    checkpoint, state, whole, unbroken = runs.unbroken(precision)
    row = (ranks, stage, offload, precision)
    # What was loaded, saved again before any step: weights, masters and both moments.
    output, report = runs.train(*row, SAVED, "--resume-from", checkpoint, "--save-every", 99)
    sha = report["parameters_sha256"]
    assert sha == runs.hashes.setdefault(precision, sha)
    loaded = state_of(output / f"checkpoints/step-{SAVED:08}")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)

    output, report = runs.train(*row, LAST, "--resume-from", checkpoint)
    assert report["resumed_at"] == SAVED and len(report["loss"]) == LAST - SAVED
    ours, theirs = (load_file(path / "model.safetensors") for path in (output, whole))
    apart = max((ours[name] - theirs[name]).abs().max().item() for name in theirs)
    loss_apart = abs(report["loss"][-1] - unbroken["loss"][-1])
    print(f"W={ranks} stage {stage} {offload} {precision}: parameters {apart:g} apart, loss "
          f"{loss_apart:g}, hash {'equal' if apart == 0 else 'differs'}")
    if ranks == 2:
        assert report["parameters_sha256"] == unbroken["parameters_sha256"]
    if precision == "fp32":
        assert apart <= 1e-6
    assert loss_apart <= 1e-3
