"""Bad input: exit code, a message that names what is wrong, and nothing touched."""
import json
import re

import pytest
from safetensors.torch import load_file, save_file

from conftest import make_records, run, save_model, write_config, write_tokens


def changed_model(shop, change):
    folder = save_model(shop.new("model"))
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def missing_weight(shop):
    name = "bert.encoder.layer.1.output.dense.weight"
    return {"--model": changed_model(shop, lambda weights: weights.pop(name))}


def extra_weight(shop):
    return {"--model": changed_model(
        shop, lambda weights: weights.update({"surplus.weight": weights["classifier.bias"].clone()}))}


def wrong_shape(shop):
    def widen(weights):
        weights["classifier.weight"] = weights["classifier.weight"].repeat(2, 1)
    return {"--model": changed_model(shop, widen)}


def label_out_of_range(shop):
    records, labels = make_records(40, 3)
    labels[17] = 2
    file = write_tokens(shop.new("train.safetensors"), records, labels, num_labels=3)
    return {"--train": file, "--num-labels": 2}


def token_out_of_range(shop):
    records, labels = make_records(40, 3)
    records[23][1] = 100
    return {"--train": write_tokens(shop.new("train.safetensors"), records, labels)}


def too_long(shop):
    records, labels = make_records(40, 3)
    records[5] = [1] * 33
    return {"--train": write_tokens(shop.new("train.safetensors"), records, labels)}


def no_records(shop):
    return {"--train": write_tokens(shop.new("train.safetensors"), [], [])}


def batch_larger_than_data(shop):
    return {"--config": write_config(shop.new("config.json"), train_batch_size=256)}


def truncated_data(shop):
    file = shop.new("train.safetensors")
    file.write_bytes(shop.train_file.read_bytes()[:-10])
    return {"--train": file}


def malformed_config(shop):
    file = shop.new("config.json")
    file.write_text('{"train_batch_size": 16,, }')
    return {"--config": file}


def misspelt_key(shop):
    return {"--config": write_config(shop.new("config.json"), gradient_clipp1ng=1.0)}


def indivisible_batch(shop):
    return {"--config": write_config(shop.new("config.json"), train_batch_size=33,
                                     train_micro_batch_size_per_gpu=17)}


def somebody_elses_folder(shop):
    folder = shop.new("out")
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    return {"--output": folder}


def folder_of_the_model(shop):
    return {"--output": shop.model}


def bad_pattern(shop):
    return {"--allow-missing": "["}


def no_such_file(shop):
    return {"--train": shop.folder / "nowhere.safetensors"}


def report_in_no_folder(shop):
    return {"--report": shop.folder / "nowhere" / "report.json"}


MISTAKES = [
    (missing_weight, ["missing: bert.encoder.layer.1.output.dense.weight", "--allow-missing"]),
    (extra_weight, ["not in the model: surplus.weight"]),
    (wrong_shape, ["classifier.weight", "[2, 32]", "[4, 32]", "--allow-missing classifier"]),
    (label_out_of_range, ["record 17 has label 2, the model has 2 labels"]),
    (token_out_of_range, ["record 23: token 1 is 100", "100 entries"]),
    (too_long, ["record 5 has 33 tokens", "at most 32", "--max-length 32"]),
    (no_records, ["records"]),
    (batch_larger_than_data, ["256", "200"]),
    (truncated_data, ["train.safetensors"]),
    (malformed_config, ["config.json"]),
    (misspelt_key, ["gradient_clipp1ng", "did you mean gradient_clipping"]),
    (indivisible_batch, ["33", "17"]),
    (somebody_elses_folder, ["not of an earlier run"]),
    (folder_of_the_model, ["is the folder of the model"]),
    (bad_pattern, ["--allow-missing '['"]),
    (no_such_file, ["nowhere.safetensors", "No such file"]),
    (report_in_no_folder, ["--report", "no such folder"]),
]
# Met by two ranks at once: before they know of each other, and in each part of the set-up.
ON_TWO_RANKS = {missing_weight, label_out_of_range, malformed_config, somebody_elses_folder}


@pytest.mark.parametrize("ranks, change, parts", [
    pytest.param(ranks, change, parts, id=f"{change.__name__}-{ranks}")
    for change, parts in MISTAKES for ranks in ((1, 2) if change in ON_TWO_RANKS else (1,))])
def test_a_mistake_is_told_once_and_touches_nothing(shop, ranks, change, parts):
    options = {"--model": shop.model, "--train": shop.train_file,
               "--config": write_config(shop.new("config.json")), "--output": shop.new("out"),
               "--steps": 1, "--ranks": ranks} | change(shop)
    existed = options["--output"].exists()
    before = sorted(options["--output"].iterdir()) if existed else None
    done = run("train", *[word for pair in options.items() for word in pair])
    assert done.returncode == 1, done.stderr
    for part in parts:
        assert part in done.stderr
    assert done.stderr.count("ullage: error: ") == 1
    assert "hint: " in done.stderr
    assert options["--output"].exists() == existed
    if existed:
        assert sorted(options["--output"].iterdir()) == before


def test_another_number_of_classes_starts_a_new_head_when_allowed(shop):
    file = write_tokens(shop.new("train.safetensors"), make_records(40, 3)[0], [0, 1, 2, 3] * 10,
                        num_labels=4)
    words = ["train", "--model", shop.model, "--train", file, "--config",
             write_config(shop.new("config.json")), "--steps", 1]
    refused = run(*words, "--output", shop.new("out"))
    assert refused.returncode == 1 and "[4, 32]" in refused.stderr
    output = shop.new("out")
    allowed = run(*words, "--output", output, "--allow-missing", "^classifier")
    assert allowed.returncode == 0, allowed.stderr
    assert "new weights for classifier.weight, classifier.bias" in allowed.stdout
    assert len(json.loads((output / "config.json").read_text())["id2label"]) == 4


@pytest.mark.parametrize("words, part", [
    ([], "subcommand"),
    (["train"], "--model"),
    (["train", "--steps", "-1"], "--steps"),
    (["evaluate", "--modell", "x"], "--model"),
    (["export", "--model", "m", "--output", "o", "--dtype", "int8"], "--dtype"),
])
def test_wrong_arguments_end_with_exit_code_2(words, part):
    done = run(*words)
    assert done.returncode == 2
    assert part in done.stderr


@pytest.mark.parametrize("command", ["plan", "train", "evaluate", "export"])
def test_help_lists_every_option_with_its_default(command):
    done = run(command, "--help")
    assert done.returncode == 0
    # One line for each option, whose text may stand on the next one.
    options = re.sub(r"Excludes: --\S+\s*\n", "", done.stdout)
    for line in options.splitlines():
        if line.lstrip().startswith("--") and "REQUIRED" not in line and "--json" not in line:
            assert "(" in line, line
    assert "--model" in done.stdout
