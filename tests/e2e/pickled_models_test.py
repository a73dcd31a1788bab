"""Model folders whose weights are in files of torch.save: pytorch_model.bin, DeepSpeed."""
import json
import shutil

import torch
import transformers
from safetensors.torch import load_file

from causal_test import save_language_model
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


def save_deepspeed(folder, state):
    """As DeepSpeed saves at stage 2 on two ranks with one group: half of the flat vector each."""
    step = folder / "global_step7"
    step.mkdir()
    (folder / "latest").write_text("global_step7")
    shapes = {name: tensor.shape for name, tensor in state.items()}
    torch.save({"module": {n: t.bfloat16() for n, t in state.items()}, "buffer_names": [],
                "param_shapes": [shapes], "global_steps": 7}, step / "mp_rank_00_model_states.pt")
    flat = torch.cat([tensor.flatten() for tensor in state.values()])
    half = (len(flat) + 3) // 4 * 2
    for rank, part in enumerate((flat[:half], flat[half:])):
        torch.save({"optimizer_state_dict": {
            "zero_stage": 2, "partition_count": [2], "base_optimizer_state": {"state": {}},
            "single_partition_of_fp32_groups": [part.clone()]}},
            step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def hash_after_a_step(shop, model):
    """The hash of the parameters and what was printed."""
    report = shop.new("report.json")
    done = run_well("train", "--model", model, "--train", shop.train_file, "--steps", 1,
                    "--config", write_config(shop.new("config.json")), "--threads", 1,
                    "--output", shop.new("out"), "--report", report)
    return json.loads(report.read_text())["parameters_sha256"], done.stdout


def test_weights_of_every_form_are_those_of_safetensors(shop):
    expected, _ = hash_after_a_step(shop, shop.model)
    for save in (save_whole, save_before_zip, save_shards, save_deepspeed):
        found, printed = hash_after_a_step(shop, pickled(shop, save))
        assert found == expected, save.__name__
        told = "which DeepSpeed wrote at stage 2 on 2 ranks after 7 steps" in printed
        assert told == (save is save_deepspeed)


def test_tied_weights_may_stand_under_both_names(shop):
    model = save_language_model(shop.new("tied"), "Qwen2", tie_word_embeddings=True)
    state = transformers.AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert "lm_head.weight" in state
    (model / "model.safetensors").unlink()
    save_whole(model, state)
    exported = shop.new("export")
    run_well("export", "--model", model, "--output", exported, "--dtype", "fp32")
    weights = load_file(exported / "model.safetensors")
    assert "lm_head.weight" not in weights
    assert all(torch.equal(weights[name], state[name]) for name in weights)


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
