"""`ullage train`, `evaluate` and `export` from files to files, compared with transformers."""
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from conftest import ROOT, ULLAGE, make_records, run_well, write_config

BF16 = {"bf16": {"enabled": True}}
REPORT_KEYS = {"loss", "grad_norm", "lr", "eval_accuracy", "tokens_per_s", "padding_share",
               "skipped_steps", "peak_bytes", "rss_peak_bytes", "parameters_sha256"}
TAGS = {"weights", "master", "moments", "gradients", "slots", "buckets", "padding", "data",
        "saves"}


def loss_and_accuracy(folder, records, labels):
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    assert model.dtype == torch.float32
    loss, right = 0.0, 0
    with torch.no_grad():
        for record, label in zip(records, labels):
            logits = model(input_ids=torch.tensor([record])).logits
            loss += torch.nn.functional.cross_entropy(logits, torch.tensor([label])).item()
            right += int(logits.argmax(1).item() == label)
    return loss / len(records), right / len(records)


@pytest.fixture(scope="module")
def trained(shop):
    """40 steps on two ranks at stage 3, evaluated every 10."""
    return shop.train("--ranks", 2, "--steps", 40, "--eval", shop.eval_file, "--eval-every", 10)


def test_the_report_has_every_number_of_every_step_and_rank(trained):
    _, report = trained
    assert REPORT_KEYS <= report.keys()
    for key in ("loss", "grad_norm", "lr", "step_ms"):
        assert len(report[key]) == 40
    assert set(report["peak_bytes"]) == TAGS
    assert all(len(ranks) == 2 for ranks in report["peak_bytes"].values())
    assert len(report["rss_peak_bytes"]) == 2 and min(report["rss_peak_bytes"]) > 10 << 20
    assert len(report["parameters_sha256"]) == 64
    assert report["skipped_steps"] == 0 and report["tokens_per_s"] > 0
    assert 0 < report["padding_share"] < 0.5
    assert (report["world_size"], report["stage"], report["steps"]) == (2, 3, 40)


def test_the_model_learns(trained):
    _, report = trained
    assert np.mean(report["loss"][-5:]) < 0.5 * np.mean(report["loss"][:5])
    assert report["eval_accuracy"] > 0.9


def test_metrics_have_a_line_for_each_step_and_evaluation(trained):
    output, report = trained
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if "loss" in line] == report["loss"]
    assert [line["step"] for line in lines if "eval_loss" in line] == [10, 20, 30, 40]
    assert lines[-1]["eval_accuracy"] == report["eval_accuracy"]


def test_transformers_and_evaluate_agree_about_the_trained_model(trained, shop):
    output, report = trained
    told = json.loads(run_well("evaluate", "--model", output, "--eval", shop.eval_file, "--batch",
                               8, "--json").stdout)
    loss, accuracy = loss_and_accuracy(output, *make_records(67, 2))
    assert told["records"] == 67
    assert told["loss"] == pytest.approx(loss, abs=1e-5)
    assert told["accuracy"] == pytest.approx(accuracy) == pytest.approx(report["eval_accuracy"])
    assert report["eval_loss"] == pytest.approx(loss, abs=1e-5)
    divided = json.loads(run_well("evaluate", "--model", output, "--eval", shop.eval_file,
                                  "--batch", 8, "--ranks", 2, "--json").stdout)
    assert divided["accuracy"] == told["accuracy"]
    assert divided["loss"] == pytest.approx(told["loss"], abs=1e-6)


def test_the_best_model_is_kept_beside_the_last(trained):
    output, _ = trained
    evaluations = [line for line in map(json.loads, (output / "metrics.jsonl").open())
                   if "eval_loss" in line]
    best = max(evaluations, key=lambda line: line["eval_accuracy"])  # the first of equal ones
    loss, accuracy = loss_and_accuracy(output / "best", *make_records(67, 2))
    assert accuracy == pytest.approx(best["eval_accuracy"])
    assert loss == pytest.approx(best["eval_loss"], abs=1e-5)


def test_export_writes_the_same_weights_in_another_type(trained, shop):
    output, _ = trained
    copy = shop.new("export")
    run_well("export", "--model", output, "--output", copy, "--dtype", "bf16")
    first, second = load_file(output / "model.safetensors"), load_file(copy / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name].bfloat16(), second[name]) for name in first)
    config = json.loads((copy / "config.json").read_text())
    assert config["dtype"] == "bfloat16"


def test_an_output_can_be_trained_further_and_written_over(trained, shop):
    output, _ = trained
    again = shop.new("again")
    shutil.copytree(output, again)
    config = write_config(shop.new("config.json"))
    run_well("train", "--model", output, "--train", shop.train_file, "--config", config,
             "--output", again, "--steps", 1)
    assert len((again / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (again / "best").exists()


def test_a_bare_encoder_gets_a_new_head_and_says_so(shop):
    model = transformers.BertForSequenceClassification.from_pretrained(shop.model)
    bare = shop.new("bare")
    model.bert.save_pretrained(bare)
    config = write_config(shop.new("config.json"))
    done = run_well("train", "--model", bare, "--train", shop.train_file, "--config", config,
                    "--output", shop.new("out"), "--steps", 1, "--seed", 7)
    assert "new weights for classifier.weight, classifier.bias" in done.stdout
    assert "from seed 7" in done.stdout


# On one rank nothing is sliced, so that stages differ less there.
@pytest.mark.parametrize("precision, alone", [({}, (0, 1, 2, 3)), (BF16, (0, 3))],
                         ids=["fp32", "bf16"])
def test_no_stage_changes_a_bit_and_the_plan_tells_every_byte(shop, precision, alone):
    hashes = set()
    for stage in (0, 1, 2, 3):
        for ranks in (2, 1) if stage in alone else (2,):
            _, report = shop.train("--ranks", ranks, "--steps", 3, stage=stage,
                                   gradient_accumulation_steps=2 // ranks, **precision)
            hashes.add(report["parameters_sha256"])
            config = write_config(shop.new("config.json"), stage,
                                  gradient_accumulation_steps=2 // ranks, **precision)
            rank = stage % ranks  # one and the other
            plan = json.loads(run_well("plan", "--model", shop.model / "config.json", "--config",
                                       config, "--ranks", ranks, "--rank", rank, "--seq", 16,
                                       "--json").stdout)
            for tag in TAGS - {"data"}:
                assert plan["peak_bytes"][tag] == report["peak_bytes"][tag][rank], (
                    stage, ranks, rank, tag)
    # One rank with two accumulation steps is among them: dropout is on, the numbers are the same.
    assert len(hashes) == 1


def test_evaluations_in_between_change_nothing(shop, trained):
    _, with_evaluations = trained
    _, without = shop.train("--ranks", 1, "--steps", 40, gradient_accumulation_steps=2)
    assert without["parameters_sha256"] == with_evaluations["parameters_sha256"]
    assert without["loss"] == with_evaluations["loss"]


def test_torchrun_starts_the_same_training(shop):
    _, expected = shop.train("--ranks", 2, "--steps", 3)
    config, report = write_config(shop.new("config.json")), shop.new("report.json")
    words = shop.words(config, shop.new("out"), "--report", report, "--threads", 1, "--steps", 3)
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                    "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                    "localhost:0", "--no-python", ULLAGE, *map(str, words)],
                   check=True, timeout=120, cwd=ROOT)
    assert json.loads(report.read_text())["parameters_sha256"] == expected["parameters_sha256"]


def test_plan_needs_no_weights_and_names_the_bytes(shop):
    config = write_config(shop.new("config.json"), train_batch_size=None)
    done = run_well("plan", "--model", shop.model / "config.json", "--config", config, "--ranks", 4,
                    "--micro-batch", 2)
    assert "ZeRO stage 3 on 4 ranks" in done.stdout
    assert "rank 3" in done.stdout and "moments" in done.stdout


def test_a_budget_moves_state_to_the_host_and_changes_no_bit(shop):
    _, expected = shop.train("--ranks", 1, "--steps", 3, stage=0)
    words = ("plan", "--model", shop.model / "config.json", "--seq", 16)

    def budget_of(size):
        return {"unit_size": "16KiB", "timeout_seconds": 30, "device_memory": size}

    def config_with(size):
        return write_config(shop.new("config.json"), 0, ullage=budget_of(size))

    plan = json.loads(run_well(*words, "--config", config_with("1TiB"), "--json").stdout)["plan"]
    assert plan["device_budget"] == 1 << 40
    whole = sum(plan["bytes_per_rank"][0].values())
    told = run_well(*words, "--config", config_with(whole + 4096), "--operator-bytes", "4KiB").stdout
    assert "all weights and optimizer state fit on the device" in told
    told = run_well(*words, "--config", config_with(whole + 4095), "--operator-bytes", "4KiB").stdout
    assert "on the host, because the device has no room for it" in told
    assert "on the host " in told and "of budget " in told
    _, report = shop.train("--ranks", 1, "--steps", 3, stage=0,
                           ullage=budget_of(whole * 6 // 10))
    assert report["parameters_sha256"] == expected["parameters_sha256"]
