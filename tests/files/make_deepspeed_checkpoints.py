"""Writes the archive of tiny checkpoints that the tests read, with DeepSpeed itself, on CPU.

    python make_deepspeed_checkpoints.py tests/files/deepspeed_checkpoints.tar.gz

needs deepspeed (0.19.8 was used) beside torch. For each case its ranks train three steps and save
as engine.save_checkpoint does. <case>/expected.safetensors has the master values and moments that
the engines hold, asked through DeepSpeed's public functions (param/NAME, exp_avg/NAME,
exp_avg_sq/NAME). Some cases are also converted to the universal form by DeepSpeed's converter.
"""
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

CASES = {
    "stage0": {"stage": 0},
    "stage0_one_group": {"stage": 0, "one_group": True},
    "stage0_bf16_unfrozen": {"stage": 0, "bf16": True, "one_group": True, "unfrozen": True},
    "stage1": {"stage": 1},
    "stage1_elastic": {"stage": 1, "zero": {"elastic_checkpoint": True}},
    "stage1_bf16": {"stage": 1, "bf16": True},
    "stage1_bf16_fp32_accumulation": {"stage": 1, "bf16": True, "accumulate": "fp32"},
    "stage2": {"stage": 2},
    "stage2_three_ranks": {"stage": 2, "ranks": 3},
    "stage2_bf16": {"stage": 2, "bf16": True},
    "stage2_round_robin": {"stage": 2, "zero": {"round_robin_gradients": True}},
    "stage3": {"stage": 3, "zero": {"sub_group_size": 10}},
    "stage3_three_ranks": {"stage": 3, "ranks": 3},
    "stage3_bf16": {"stage": 3, "bf16": True},
}
UNIVERSAL = ("stage1", "stage3")


def build_model():
    import torch

    class Net(torch.nn.Module):
        """Odd sizes, a tied pair, a frozen matrix, a buffer, one element alone, and one group apart."""

        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(7, 5)
            self.first = torch.nn.Linear(5, 3)
            self.frozen = torch.nn.Linear(3, 5, bias=False)
            self.norm = torch.nn.LayerNorm(5)
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.head = torch.nn.Linear(5, 7, bias=False)
            self.head.weight = self.embedding.weight
            self.frozen.weight.requires_grad_(False)
            self.register_buffer("table", torch.arange(4.0))

        def forward(self, ids):
            hidden = self.frozen(torch.tanh(self.first(self.embedding(ids))))
            return self.head(self.norm(hidden)) * self.scale

    torch.manual_seed(3)
    return Net()


def settings_of(case):
    settings = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": case["stage"], **case.get("zero", {})},
        "zero_allow_untested_optimizer": True}
    if case.get("bf16"):
        settings["bf16"] = {"enabled": True}
    if case.get("fp16"):
        settings["fp16"] = {"enabled": True, "initial_scale_power": 4}
    if "accumulate" in case:
        settings["data_types"] = {"grad_accum_dtype": case["accumulate"]}
    return settings


def train(output, name):
    """One rank of one case."""
    import deepspeed
    import torch
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    from safetensors.torch import save_file

    case = CASES[name]
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # saves compiling an extension
    deepspeed.init_distributed(dist_backend="gloo")
    model = build_model()
    if case.get("unfrozen"):
        model.frozen.weight.requires_grad_(True)
    names = dict(model.named_parameters())
    trained = {n: p for n, p in names.items() if p.requires_grad}
    decayed = [p for p in trained.values() if p.dim() > 1]
    others = [p for p in trained.values() if p.dim() <= 1]
    groups = list(names.values()) if case.get("one_group") else [
        {"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings_of(case))
    ids = torch.tensor([[[1, 2, 3], [4, 5, 6]], [[0, 2, 4], [6, 1, 3]], [[3, 3, 0], [5, 1, 2]]]
                       [engine.global_rank])
    for _ in range(3):
        logits = engine(ids)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(str(output / name))

    if case["stage"] in (1, 2):
        # It links the moments after the first group's first step, when the second has none yet.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    expected = {"param/frozen.weight": build_model().frozen.weight.to(
        torch.bfloat16 if case.get("bf16") else torch.float32)}
    for key, parameter in trained.items():
        if case["stage"] > 0:
            expected["param/" + key] = safe_get_full_fp32_param(parameter)
            for state in ("exp_avg", "exp_avg_sq"):
                expected[f"{state}/{key}"] = safe_get_full_optimizer_state(parameter, state)
            continue
        master = parameter
        if case.get("bf16"):  # where the wrapper holds the master value of the same parameter
            place = [p is parameter for p in engine.optimizer.fp16_groups[0]].index(True)
            master = engine.optimizer.fp32_groups[0][place]
        expected["param/" + key] = master
        inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
        for state in ("exp_avg", "exp_avg_sq"):
            expected[f"{state}/{key}"] = inner.state[master][state]
    if engine.global_rank == 0:
        save_file({k: v.detach().float().clone().contiguous() for k, v in expected.items()},
                  output / name / "expected.safetensors")


def make(output, name, port):
    """Starts the ranks of a case, then the converter."""
    ranks = CASES[name].get("ranks", 2)
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [subprocess.Popen([sys.executable, __file__, output, name],
                                env=environment | group | {"RANK": str(r), "LOCAL_RANK": str(r)})
               for r in range(ranks)]
    if any([rank.wait() for rank in started]):
        sys.exit(f"{name}: a rank failed")
    if name in UNIVERSAL:
        subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal",
                        "--input_folder", output / name / "global_step3", "--output_folder",
                        output / name / "universal", "--num_extract_workers", "1",
                        "--num_merge_workers", "1", "--inject_missing_state"],
                       env=environment, check=True)
        (output / name / "latest_universal").unlink()
    for script in (output / name).glob("*.py"):
        script.unlink()
    if name == "stage2_round_robin":
        # DeepSpeed's functions look at the wrong places here; the training is that of stage2.
        (output / name / "expected.safetensors").unlink()


def nameless(entry):
    """An archive without names and times of the machine that made it."""
    entry.uname = entry.gname = ""
    entry.uid = entry.gid = entry.mtime = 0
    return entry


def main():
    if len(sys.argv) == 3:
        train(pathlib.Path(sys.argv[1]), sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder)
        for number, name in enumerate(CASES):
            make(output, name, 29600 + number)
        with tarfile.open(sys.argv[1], "w:gz") as archive:
            for name in CASES:
                archive.add(output / name, name, filter=nameless)


if __name__ == "__main__":
    main()
