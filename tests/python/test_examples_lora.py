"""examples/python/lora.py as a user runs it: peft's adapters over a frozen base."""

import importlib.util
import os
import pathlib
import re

import pytest
import torch

peft = pytest.importorskip("peft")

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python" / "lora.py"
STEPS = 20


def numbers(output):
    trainable, all_of_them = map(int, re.search(r"trainable (\d+) of (\d+)", output).groups())
    weights, moments = map(int, re.search(r"weights (\d+), moments (\d+)", output).groups())
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
    return trainable, all_of_them, weights, moments, losses, output.splitlines()[-1]


def test_state_is_that_of_the_adapters_and_the_base_is_divided(ranks):
    results = {stage: numbers(ranks(2, SCRIPT, "--stage", stage, "--steps", STEPS)) for stage in (0, 3)}
    for stage, (trainable, all_of_them, weights, moments, losses, _) in results.items():
        assert all_of_them > 5 * trainable
        assert losses[-1] < losses[0] - 0.5
        shares = 1 if stage == 0 else 2
        assert moments == pytest.approx(8 * trainable / shares, rel=0.05)
        assert weights == pytest.approx(2 * all_of_them / shares, rel=0.2)  # small ones stay whole
    assert results[0][-1] == results[3][-1]


def test_the_saved_adapter_is_peft_s_and_holds_what_was_trained(ranks, tmp_path):
    ranks(1, SCRIPT, "--stage", 2, "--steps", STEPS, "--output", tmp_path / "one")
    spec = importlib.util.spec_from_file_location("lora_example", SCRIPT)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    base = example.decoder().bfloat16()
    tokens = next(example.batches(SCRIPT.read_bytes(), 1, 0))
    with torch.no_grad():
        untrained = base(input_ids=tokens, labels=tokens).loss.item()
        adapted = peft.PeftModel.from_pretrained(base, os.fspath(tmp_path / "one"))
        trained = adapted(input_ids=tokens, labels=tokens).loss.item()
    assert trained < untrained - 0.1
