"""Trainer on two ranks."""

import json
import pathlib

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import ullage
from models import records
from trainer_support import losses, trainer, zero

SCRIPT = pathlib.Path(__file__).with_name("trainer_ranks.py")

ullage.enable_for_transformers()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    from conftest import run_ranks

    folder = tmp_path_factory.mktemp("ranks")
    output = run_ranks(2, SCRIPT, folder, timeout=400)
    return folder, json.loads(output.splitlines()[-1])


def test_two_ranks_train_to_the_bits_of_one_with_twice_the_micro_steps(two_ranks, tmp_path):
    results = two_ranks[1]
    assert results["world_size"] == 2
    assert all(losses == results["losses"][0] for losses in results["losses"])
    alone = trainer(tmp_path, zero(3), gradient_accumulation_steps=2)
    alone.train()
    assert results["sha256"] == [alone.deepspeed.parameters_sha256()] * 4
    assert results["losses"][0] == pytest.approx(losses(alone), rel=1e-5)


def test_a_checkpoint_goes_on_as_if_never_stopped(two_ranks):
    assert two_ranks[1]["resumed"]


def test_rank_0_writes_the_whole_model_once(two_ranks):
    folder = two_ranks[0] / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    batch = torch.stack([record["input_ids"] for record in records(2)])
    assert torch.isfinite(model(input_ids=batch).logits).all()
    assert sorted(path.name for path in folder.glob("*.safetensors")) == ["model.safetensors"]


def test_ranks_generate_at_lengths_of_their_own(two_ranks):
    assert two_ranks[1]["generated"]
    assert two_ranks[1]["predicted"] == [8, 8]
