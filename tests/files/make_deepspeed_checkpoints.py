"""Writes tiny checkpoints with DeepSpeed itself, on CPU, and beside each what is in it.

    python make_deepspeed_checkpoints.py OUTPUT

needs deepspeed (0.19.8 was used) beside torch. For each case it starts two ranks, trains three
steps, and saves OUTPUT/<case>/ as engine.save_checkpoint does, plus OUTPUT/<case>/expected.safetensors
with the master values and moments that the engine holds, asked through DeepSpeed's public functions
(param/NAME, exp_avg/NAME, exp_avg_sq/NAME). Cases of stage 1 and 3 are also converted to the
universal form.
"""
import os
import pathlib
import subprocess
import sys

CASES = {
    "stage0": {"stage": 0},
    "stage1": {"stage": 1},
    "stage2": {"stage": 2},
    "stage2_round_robin": {"stage": 2, "zero": {"round_robin_gradients": True}},
    "stage3": {"stage": 3, "zero": {"sub_group_size": 40}},
    "stage0_bf16": {"stage": 0, "bf16": True},
    "stage1_bf16": {"stage": 1, "bf16": True},
    "stage1_bf16_fp32_accumulation": {"stage": 1, "bf16": True, "accumulate": "fp32"},
    "stage2_bf16": {"stage": 2, "bf16": True},
    "stage3_bf16": {"stage": 3, "bf16": True},
    "stage2_fp16": {"stage": 2, "fp16": True},
}
UNIVERSAL = ("stage1", "stage3")
WORLD_SIZE = 2


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
    names = dict(model.named_parameters())
    trained = {n: p for n, p in names.items() if p.requires_grad}
    decayed = [p for n, p in trained.items() if p.dim() > 1]
    others = [p for n, p in trained.items() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}], lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings_of(case))
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]]) if engine.global_rank == 0 else \
        torch.tensor([[0, 2, 4], [6, 1, 3]])
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
    expected = {}
    for key, parameter in trained.items():
        if case["stage"] > 0:
            expected["param/" + key] = safe_get_full_fp32_param(parameter)
            for state in ("exp_avg", "exp_avg_sq"):
                expected[f"{state}/{key}"] = safe_get_full_optimizer_state(parameter, state)
    if case["stage"] == 0:
        for key, parameter in trained.items():
            expected["param/" + key] = parameter
            if not case.get("bf16"):
                for state in ("exp_avg", "exp_avg_sq"):
                    expected[f"{state}/{key}"] = engine.optimizer.state[parameter][state]
    if engine.global_rank == 0:
        save_file({k: v.detach().float().clone().contiguous() for k, v in expected.items()},
                  output / name / "expected.safetensors")


def main():
    output = pathlib.Path(sys.argv[1]).resolve()
    if len(sys.argv) == 3:
        train(output, sys.argv[2])
        return
    only = os.environ.get("CASES", "").split() or CASES
    for number, name in enumerate(only):
        environment = os.environ | {
            "DS_ACCELERATOR": "cpu", "WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(29600 + number), "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([sys.executable, __file__, output, name],
                                  env=environment | {"RANK": str(r), "LOCAL_RANK": str(r)})
                 for r in range(WORLD_SIZE)]
        if any([rank.wait() for rank in ranks]):
            sys.exit(f"{name}: a rank failed")


if __name__ == "__main__":
    main()
