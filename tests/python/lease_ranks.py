"""Pointers on two ranks: one rank alone may read through them, and what all write is kept."""

import ctypes
import json
import sys

import safetensors.torch
import torch

import ullage


def raw(tensor):
    return torch.frombuffer((ctypes.c_float * 36).from_address(tensor.data_ptr()), dtype=torch.float32)


torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(6, 6, bias=False) for _ in range(3)))
values = model[0].weight.detach().clone()
zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
engine, *_ = ullage.initialize(model=model, config={**settings, "ullage": {"unit_size": 1}})
result = {}
if engine.global_rank == 0:
    safetensors.torch.save_file(model.state_dict(), sys.argv[1])
    result["read"] = torch.equal(raw(model[0].weight), values.view(-1))
    result["saved"] = torch.equal(safetensors.torch.load_file(sys.argv[1])["0.weight"], values)
engine(torch.ones(1, 6))
raw(model[1].weight).fill_(0.5)
engine(torch.ones(1, 6))
result["written"] = ullage.full_parameter(model[1].weight).unique().tolist()
print(json.dumps(result))
engine.destroy()
