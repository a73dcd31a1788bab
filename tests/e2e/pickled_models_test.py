"""Model folders as people had them before safetensors: weights in files of torch.save."""
import json
import shutil

import torch
import transformers

from conftest import run, run_well, write_config


def pickled(shop, save):
    """The shop's model with its weights saved by `save(folder, state dict)` instead."""
    model = transformers.BertForSequenceClassification.from_pretrained(shop.model)
    folder = shop.new("pickled")
    folder.mkdir()
    shutil.copy(shop.model / "config.json", folder)
    save(folder, model.state_dict())
    return folder


def save_whole(folder, state):
    torch.save(state, folder / "pytorch_model.bin")


def save_before_zip(folder, state):
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def save_shards(folder, state):
    """Two files, with a buffer that old models hold beside their weights."""
    state = dict(state) | {"bert.embeddings.position_ids": torch.arange(32).unsqueeze(0)}
    weight_map = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, name in enumerate(state)}
    for file in set(weight_map.values()):
        torch.save({n: t for n, t in state.items() if weight_map[n] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def hash_after_a_step(shop, model):
    report = shop.new("report.json")
    run_well("train", "--model", model, "--train", shop.train_file, "--steps", 1, "--threads", 1,
             "--config", write_config(shop.new("config.json")), "--output", shop.new("out"),
             "--report", report)
    return json.loads(report.read_text())["parameters_sha256"]


def test_weights_of_torch_save_are_those_of_safetensors(shop):
    expected = hash_after_a_step(shop, shop.model)
    for save in (save_whole, save_before_zip, save_shards):
        assert hash_after_a_step(shop, pickled(shop, save)) == expected, save.__name__


def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(shop):
    ran = shop.new("ran")

    class Attack:
        def __reduce__(self):
            return exec, (f"open({str(ran)!r}, 'w')",)

    folder = pickled(shop, lambda folder, state: save_whole(
        folder, dict(state) | {"classifier.bias": Attack()}))
    done = run("evaluate", "--model", folder, "--eval", shop.eval_file)
    assert done.returncode not in (0, 139)
    assert "classifier.bias" in done.stderr and "exec" in done.stderr
    assert not ran.exists()
