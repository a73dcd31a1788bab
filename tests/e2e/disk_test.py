"""Optimizer state on disk: the same parameters, and a folder that is left as it was found."""
import os
import signal
import subprocess
import time

import pytest

from conftest import ULLAGE, run, write_config

BF16 = {"bf16": {"enabled": True}}


def on_disk(folder, stage, **optimizer):
    return {"stage": stage, "stage3_param_persistence_threshold": 40,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(folder), **optimizer}}


@pytest.fixture(scope="module")
def in_memory(shop):
    return shop.train("--steps", 6, stage=0, **BF16)[1]


@pytest.mark.parametrize("stage, ranks", [(1, 1), (3, 2)])
def test_the_parameters_are_those_of_state_in_memory(shop, tmp_path, stage, ranks):
    _, report = shop.train("--steps", 6, "--ranks", ranks, **BF16,
                           gradient_accumulation_steps=2 // ranks,
                           zero_optimization=on_disk(tmp_path, stage))
    _, expected = shop.train("--steps", 6, "--ranks", ranks, stage=stage, **BF16,
                             gradient_accumulation_steps=2 // ranks)
    assert report["parameters_sha256"] == expected["parameters_sha256"]
    assert report["loss"] == expected["loss"]
    for tag in ("master", "moments"):  # wherever they lie, the ledger has them
        assert report["peak_bytes"][tag] == expected["peak_bytes"][tag]
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_behind_is_deleted_by_the_next(shop, in_memory, tmp_path):
    settings = {**BF16, "zero_optimization": on_disk(tmp_path, 1)}
    words = shop.words(write_config(shop.new("config.json"), **settings), shop.new("out"),
                       "--steps", 10_000_000, "--threads", 1)
    process = subprocess.Popen([ULLAGE, *map(str, words)], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while not list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = list(tmp_path.iterdir())
    assert [path.name.startswith("ullage-rank0-pid") for path in left] == [True]
    _, report = shop.train("--steps", 6, **settings)
    assert report["parameters_sha256"] == in_memory["parameters_sha256"]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_hold_it_is_named_before_training(shop, tmp_path):
    settings = {**BF16, "zero_optimization": on_disk(tmp_path / "not-mounted", 2)}
    done = run(*shop.words(write_config(shop.new("config.json"), **settings), shop.new("out")))
    assert done.returncode == 1
    assert ("zero_optimization.offload_optimizer.nvme_path: "
            f"\"{tmp_path / 'not-mounted'}\" is not an existing folder") in done.stderr
    assert "hint: name an existing folder" in done.stderr


def test_the_plan_says_what_lies_on_disk(shop, tmp_path):
    config = write_config(shop.new("config.json"), zero_optimization=on_disk(tmp_path, 1), **BF16)
    done = run("plan", "--model", shop.model, "--config", config)
    assert done.returncode == 0, done.stderr
    assert "\non disk " in done.stdout
    assert f"of each rank in {tmp_path}" in done.stdout
    assert os.listdir(tmp_path) == []
