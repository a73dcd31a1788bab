"""`ullage train --save-every` and `--resume`: killed anywhere, it goes on as if it never stopped."""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from conftest import ULLAGE, run, run_well, write_config

BF16 = {"bf16": {"enabled": True}}
# More of them for a long check: ULLAGE_KILLS=100 pytest tests/e2e/resume_test.py -k killed
KILLS = int(os.environ.get("ULLAGE_KILLS", "12"))
STEPS = 14


def settings_file(shop, stage=3, **changes):
    """Four micro-batches a step, so that up to four ranks add up the same numbers."""
    return write_config(shop.new("config.json"), stage,
                        **{"train_micro_batch_size_per_gpu": 4, **changes})


def train(shop, output, *more, stage=3, ranks=2, **changes):
    """Trains to the end and returns the report."""
    config, report = settings_file(shop, stage, **changes), shop.new("report.json")
    run_well(*shop.words(config, output, "--report", report, "--threads", 1, "--ranks", ranks, *more))
    return json.loads(report.read_text())


def complete(folder):
    return sorted(path.parent.name for path in folder.glob("step-*[0-9]/manifest.json"))


def state_of(checkpoint):
    """Every tensor of a checkpoint, put together from the slices in its files."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = [load_file(checkpoint / file["name"]) for file in manifest["files"]]
    state = {}
    for tensor in manifest["tensors"]:
        parts = {"trained": ["master", *manifest["moments"]], "frozen": ["weight"],
                 "buffer": ["buffer"]}[tensor["role"]]
        for part in parts:
            slices = [files[file][f"{part}.{tensor['name']}"].flatten()
                      for file, _, _ in tensor["slices"]]
            if slices:
                state[f"{part}.{tensor['name']}"] = torch.cat(slices).reshape(tensor["shape"])
    return state


@pytest.fixture(scope="module")
def unbroken(shop):
    """14 steps on two ranks, which are more than an epoch; saved every 5."""
    output = shop.new("out")
    return output, train(shop, output, "--steps", STEPS, "--save-every", 5, "--keep", 9)


def test_checkpoints_are_written_and_change_nothing(shop, unbroken):
    output, report = unbroken
    without = train(shop, shop.new("out"), "--steps", STEPS)
    assert report["parameters_sha256"] == without["parameters_sha256"]
    assert report["loss"] == without["loss"]
    assert complete(output / "checkpoints") == ["step-00000005", "step-00000010", "step-00000014"]
    assert (output / "checkpoints/latest").read_text() == "step-00000014\n"
    assert (report["saves"], report["failed_saves"]) == (3, 0)


def test_only_as_many_are_kept_as_asked(shop):
    output = shop.new("out")
    train(shop, output, "--steps", 6, "--save-every", 1, "--keep", 2)
    assert complete(output / "checkpoints") == ["step-00000005", "step-00000006"]


# Stage, ranks, offload: whatever the run goes on with.
@pytest.mark.parametrize("stage, ranks, zero", [
    (3, 2, {}), (1, 4, {}), (0, 1, {}),
    (3, 4, {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})])
def test_a_run_goes_on_with_other_ranks_and_stages(shop, unbroken, stage, ranks, zero):
    output, report = unbroken
    settings = {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 40, **zero}}
    resumed = train(shop, shop.new("out"), "--steps", STEPS, "--resume-from",
                    output / "checkpoints/step-00000005", ranks=ranks, stage=stage, **settings)
    assert resumed["resumed_at"] == 5 and len(resumed["loss"]) == STEPS - 5
    assert resumed["parameters_sha256"] == report["parameters_sha256"]
    assert resumed["loss"] == report["loss"][5:]


def test_other_micro_batches_see_the_same_records_in_each_step(shop, unbroken):
    output, report = unbroken
    again = shop.new("out")
    resumed = train(shop, again, "--steps", STEPS, "--resume-from",
                    output / "checkpoints/step-00000010", ranks=1,
                    train_micro_batch_size_per_gpu=16)
    tokens = [[line["tokens"] for line in map(json.loads, (path / "metrics.jsonl").open())]
              for path in (output, again)]
    assert tokens[1] == tokens[0][10:]
    assert np.allclose(resumed["loss"], report["loss"][10:], atol=0.1)  # other dropout


def test_bf16_goes_on_bit_for_bit_and_its_files_are_safetensors(shop):
    output, again = shop.new("out"), shop.new("out")
    report = train(shop, output, "--steps", 6, "--save-every", 3, **BF16)
    shutil.copytree(output, again)
    shutil.rmtree(again / "checkpoints/step-00000006")
    resumed = train(shop, again, "--steps", 6, "--save-every", 3, "--resume", **BF16)
    assert resumed["parameters_sha256"] == report["parameters_sha256"]
    assert resumed["resumed_at"] == 3
    first, second = (state_of(path / "checkpoints/step-00000006") for path in (output, again))
    assert first.keys() == second.keys() and len(first) > 100
    assert all(torch.equal(first[name], second[name]) for name in first)
    # The exported weights are the masters of the last checkpoint.
    weights = load_file(again / "model.safetensors")
    assert all(torch.equal(values, second[f"master.{name}"]) for name, values in weights.items())
    shard = again / "checkpoints/step-00000006/rank-00001-of-00002.safetensors"
    with safe_open(shard, "pt") as file:
        assert file.metadata() == {"format": "ullage-checkpoint"}
    lines = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in lines] == report["loss"]


def test_the_best_model_so_far_is_remembered(shop):
    output = shop.new("out")
    words = ("--eval", shop.eval_file, "--eval-every", 2, "--save-every", 2)
    train(shop, output, "--steps", 8, *words)
    manifest = json.loads((output / "checkpoints/step-00000008/manifest.json").read_text())
    best = json.loads(manifest["client_state"])["best_score"]
    stamp = (output / "best/model.safetensors").stat().st_mtime_ns
    report = train(shop, output, "--steps", 10, "--resume", *words)
    if report["eval_accuracy"] <= best:
        assert (output / "best/model.safetensors").stat().st_mtime_ns == stamp


def children(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:  # it has just ended
        return []
    return [int(child) for child in text.split()]


def start(words):
    return subprocess.Popen([ULLAGE, *map(str, words)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def test_killed_at_random_moments_it_ends_as_if_it_never_was(shop, unbroken):
    _, report = unbroken
    output, config = shop.new("out"), settings_file(shop)
    told, folder = shop.new("report.json"), output / "checkpoints"
    words = shop.words(config, output, "--report", told, "--threads", 1, "--ranks", 2, "--steps",
                       STEPS, "--save-every", 1, "--keep", 2, "--resume")
    draw = random.Random(20)
    reached, kills = 0, 0
    while kills < KILLS:
        done = start(words)
        # Until it saves, so that the kill comes in the middle of something more often than not.
        before, deadline = complete(folder), time.monotonic() + 60
        while done.poll() is None and complete(folder) == before and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(draw.expovariate(1 / 0.03))
        victims = children(done.pid) if done.poll() is None else []
        if len(victims) == 2 and kills % 3 != 2:
            os.kill(victims[kills % 2], signal.SIGKILL)  # one rank alone
        elif done.poll() is None:
            done.kill()  # the launcher, and the ranks with it
        done.wait(timeout=60)
        text = done.stdout.read()
        while any(pathlib.Path(f"/proc/{victim}").exists() for victim in victims):
            time.sleep(0.01)
        kills += 1
        if done.returncode == 0:  # it was done before it was killed: once more from the start
            assert json.loads(told.read_text())["parameters_sha256"] == report["parameters_sha256"]
            shutil.rmtree(folder)
            reached = 0
            continue
        assert "damaged" not in text and "not fit" not in text, text
        inspected = run("inspect", output, "--json", "--verify", timeout=300)
        if complete(folder):
            assert inspected.returncode == 0, inspected.stderr
            steps = json.loads(inspected.stdout)["applied_steps"]
            assert steps >= reached
            reached = steps
    run_well(*words)
    last = json.loads(told.read_text())
    assert last["parameters_sha256"] == report["parameters_sha256"]
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == report["loss"]


def test_a_signal_saves_before_it_ends(shop):
    output, config = shop.new("out"), settings_file(shop)
    words = shop.words(config, output, "--threads", 1, "--ranks", 2, "--steps", 4000,
                       "--save-every", 2000)
    done = start(words)
    while not (output / "metrics.jsonl").exists() or not (output / "metrics.jsonl").read_text():
        time.sleep(0.01)
    done.send_signal(signal.SIGTERM)
    assert done.wait(timeout=60) == 128 + signal.SIGTERM
    (name,) = complete(output / "checkpoints")
    steps = len((output / "metrics.jsonl").read_text().splitlines())
    assert name == f"step-{steps:08}"


def test_mistakes_are_told_before_anything_is_touched(shop, unbroken):
    output, _ = unbroken
    config = settings_file(shop)

    def refused(*more, settings=config, to=output):
        before = complete(output / "checkpoints")
        done = run(*shop.words(settings, to, "--steps", STEPS, *more))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert complete(output / "checkpoints") == before
        return done.stderr

    assert "go on from the last one with --resume" in refused()
    assert "--seed 42, now 7" in refused("--resume", "--seed", 7)
    assert "train_batch_size 16, now 8" in refused(
        "--resume", settings=settings_file(shop, train_batch_size=8))
    assert "records of lengths" in refused("--resume", "--max-length", 9)
    assert "holds no complete checkpoint" in refused("--resume-from", shop.model, to=shop.new("out"))
    sgd = settings_file(shop, optimizer={"type": "SGD", "params": {"lr": 0.1}})
    assert "optimizer: sgd" in refused("--resume", settings=sgd)


def test_resume_starts_anew_where_nothing_was_saved(shop, unbroken):
    _, report = unbroken
    output = shop.new("out")
    config, told = settings_file(shop), shop.new("report.json")
    done = run_well(*shop.words(config, output, "--report", told, "--threads", 1, "--ranks", 2,
                                "--steps", STEPS, "--resume"))
    assert "no checkpoint yet, starting anew" in done.stdout
    assert json.loads(told.read_text())["parameters_sha256"] == report["parameters_sha256"]


def test_damage_is_named_and_an_earlier_checkpoint_serves(shop, unbroken):
    output, report = unbroken
    again, config = shop.new("out"), settings_file(shop)
    shutil.copytree(output, again)
    shard = again / "checkpoints/step-00000014/rank-00000-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    words = shop.words(config, again, "--threads", 1, "--ranks", 2, "--steps", STEPS)
    done = run(*words, "--resume")
    assert done.returncode == 1
    assert f"{shard}: bytes 0 to {len(data) - 1} are damaged" in done.stderr
    assert "hint: copy the file again, or resume from an earlier checkpoint" in done.stderr
    told = shop.new("report.json")
    run_well(*words, "--report", told, "--resume-from", again / "checkpoints/step-00000010")
    assert json.loads(told.read_text())["parameters_sha256"] == report["parameters_sha256"]
    shard.unlink()  # one that is plainly incomplete is passed over
    done = run_well(*words, "--report", told, "--resume")
    assert "is missing; the checkpoint has 2 files" in done.stdout
    assert json.loads(told.read_text())["resumed_at"] == 10


def test_inspect_tells_what_is_there_and_what_is_not(shop, unbroken):
    output, _ = unbroken
    text = run_well("inspect", output, "--verify", "--norms").stdout
    assert "step-00000010: complete" in text and "verified" in text
    told = json.loads(run_well("inspect", output / "checkpoints/step-00000010", "--norms",
                               "--json").stdout)
    assert (told["applied_steps"], told["world_size"], told["stage"]) == (10, 2, 3)
    state = state_of(output / "checkpoints/step-00000010")
    tensors = {tensor["name"]: tensor for tensor in told["tensors"]}
    name = "bert.pooler.dense.weight"
    assert tensors[name]["shape"] == [32, 32] and tensors[name]["bytes"] == 3 * 4 * 32 * 32
    for part in ("master", "exp_avg", "exp_avg_sq"):
        norm = state[f"{part}.{name}"].double().norm().item()
        assert tensors[name]["norms"][part] == pytest.approx(norm, rel=1e-9)
    broken = shop.new("broken")
    shutil.copytree(output / "checkpoints", broken)
    (broken / "step-00000014/rank-00001-of-00002.safetensors").write_bytes(b"short")
    done = run("inspect", broken / "step-00000014")
    assert done.returncode == 1 and "has 5 bytes, manifest.json says" in done.stderr
    text = run_well("inspect", broken).stdout
    assert "step-00000014: not complete" in text and "step-00000005: complete" in text


def test_export_writes_a_checkpoint_as_a_model_directory(shop, unbroken):
    output, _ = unbroken
    copy = shop.new("export")
    run_well("export", "--model", shop.model, "--checkpoint", output / "checkpoints", "--output",
             copy, "--dtype", "bf16")
    first, second = load_file(output / "model.safetensors"), load_file(copy / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name].bfloat16(), second[name]) for name in first)
