"""`--resume-from` a checkpoint as DeepSpeed writes it goes on like one from a checkpoint of ours."""
import json

import pytest
import torch

from conftest import run, run_well
from resume_test import STEPS, settings_file, state_of, train

STATES = ("master", "exp_avg", "exp_avg_sq")
SAVED = 5


@pytest.fixture(scope="module")
def unbroken(shop):
    output = shop.new("out")
    return output, train(shop, output, "--steps", STEPS, "--save-every", SAVED, "--keep", 9)


def trained(checkpoint):
    """Names in the model's order, and each tensor's values and moments."""
    state = state_of(checkpoint)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    names = [tensor["name"] for tensor in manifest["tensors"] if tensor["role"] == "trained"]
    return names, {part: {name: state[f"{part}.{name}"] for name in names} for part in STATES}


def write_flat(folder, names, values):
    """Stage 2 on two ranks with one group: half of one vector each."""
    step = folder / f"global_step{SAVED}"
    step.mkdir(parents=True)
    (folder / "latest").write_text(step.name)
    torch.save({"module": {name: values["master"][name].bfloat16() for name in names},
                "buffer_names": [], "param_shapes": [{n: values["master"][n].shape for n in names}],
                "lr_scheduler": {"last_batch_iteration": SAVED - 1}, "global_steps": SAVED},
               step / "mp_rank_00_model_states.pt")
    halves = {}
    for part in STATES:
        flat = torch.cat([values[part][name].flatten() for name in names])
        half = (len(flat) + 3) // 4 * 2
        padded = torch.nn.functional.pad(flat, (0, 2 * half - len(flat)))
        halves[part] = padded.split(half)
    for rank in range(2):
        moments = {part: halves[part][rank].clone() for part in STATES[1:]}
        torch.save({"optimizer_state_dict": {
            "zero_stage": 2, "partition_count": [2], "loss_scaler": None,
            "base_optimizer_state": {"state": {0: {"step": torch.tensor(float(SAVED)), **moments}}},
            "single_partition_of_fp32_groups": [halves["master"][rank].clone()]}},
            step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def write_universal(folder, names, values):
    folder.mkdir()
    torch.save({"module": {}, "buffer_names": [], "global_steps": SAVED,
                "param_shapes": [{n: values["master"][n].shape for n in names}]},
               folder / "mp_rank_00_model_states.pt")
    for name in names:
        place = folder / "zero" / name
        place.mkdir(parents=True)
        for part, file in zip(STATES, ("fp32", "exp_avg", "exp_avg_sq")):
            torch.save({"param": values[part][name]}, place / f"{file}.pt")
        torch.save(torch.tensor(float(SAVED)), place / "step.pt")
    torch.save({"zero_stage": 2}, folder / "zero/optimizer_state.pt")


@pytest.mark.parametrize("write, ranks, stage", [(write_flat, 2, 3), (write_universal, 1, 0)])
def test_it_goes_on_bit_for_bit(shop, unbroken, write, ranks, stage):
    output, report = unbroken
    folder = shop.new("deepspeed")
    write(folder, *trained(output / f"checkpoints/step-{SAVED:08}"))
    settings = {"checkpoint": {"load_universal": write is write_universal}}
    again = shop.new("out")
    resumed = train(shop, again, "--steps", STEPS, "--resume-from", folder, "--save-every", 99,
                    ranks=ranks, stage=stage, **settings)
    assert resumed["resumed_at"] == SAVED
    assert resumed["loss"] == report["loss"][SAVED:]
    assert resumed["parameters_sha256"] == report["parameters_sha256"]
    # From here on its checkpoints are our own.
    first, second = (state_of(path / f"checkpoints/step-{STEPS:08}") for path in (output, again))
    assert all(torch.equal(first[name], second[name]) for name in first if "random" not in name)


def test_what_cannot_be_gone_on_from_is_told(shop, unbroken):
    output, _ = unbroken
    folder = shop.new("deepspeed")
    write_flat(folder, *trained(output / f"checkpoints/step-{SAVED:08}"))
    universal = settings_file(shop, checkpoint={"load_universal": True})
    done = run(*shop.words(universal, shop.new("out"), "--resume-from", folder))
    assert done.returncode == 1
    assert "load_universal is true, and" in done.stderr and "set it to false" in done.stderr
    done = run_well(*shop.words(settings_file(shop), shop.new("out"), "--threads", 1, "--ranks", 2,
                                "--resume-from", folder, "--steps", SAVED))
    assert "DeepSpeed wrote it and says nothing of the data" in done.stdout
    # A checkpoint is no model directory.
    words = shop.words(settings_file(shop), shop.new("out"))
    words[words.index("--model") + 1] = output / "checkpoints"
    done = run(*words)
    assert done.returncode == 1 and "holds a checkpoint of a training, no model" in done.stderr
