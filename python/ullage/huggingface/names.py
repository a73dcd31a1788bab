"""What stands behind each name of the stand-in for deepspeed."""

import contextlib
import logging

import torch

import ullage
from ullage.huggingface.config import translate
from ullage.huggingface.standin import VERSION

log = logging.getLogger("ullage")


def initialize(
    args=None,
    model=None,
    optimizer=None,
    model_parameters=None,
    lr_scheduler=None,
    config=None,
    config_params=None,
    **rest,
):
    """ullage.initialize for the config that accelerate has made of the user's.

    Without an optimizer in the call or in the config the engine is for evaluation: it keeps weights
    alone, and the parameters do not require a gradient until it is destroyed.
    """
    _init_comm()
    config = translate(config if config is not None else config_params)
    frozen = []
    if optimizer is None and model_parameters is None and "optimizer" not in config:
        frozen = [p for p in model.parameters() if p.requires_grad]
        config.pop("scheduler", None)
        for parameter in frozen:
            parameter.requires_grad_(False)
    try:
        engine, *others = ullage.initialize(
            args=args,
            model=model,
            optimizer=optimizer,
            model_parameters=model_parameters,
            lr_scheduler=lr_scheduler,
            config=config,
            **rest,
        )
    except BaseException:
        for parameter in frozen:
            parameter.requires_grad_(True)
        raise
    engine._leaves_model_whole(frozen)
    return engine, *others


@contextlib.contextmanager
def GatheredParameters(params, modifier_rank=None, fwd_module=None, enabled=True):
    """ullage.gathered under deepspeed's name."""
    del fwd_module
    with ullage.gathered(params, modify_rank=modifier_rank, enabled=enabled):
        yield


@contextlib.contextmanager
def Init(*_, **__):
    """A model built inside is built as ever: initialize takes it over, whatever made it."""
    yield


def register_external_parameter(module, parameter):
    """Does nothing: every operator finds the parameters it uses."""


def set_z3_leaf_modules(model, leaf_module_classes):
    """Does nothing: ranks may use different experts at any stage."""
    del model
    return list(leaf_module_classes)


def clone_tensors_for_torch_save(item, device=torch.device("cpu")):
    """The same structure with copies of its tensors on `device`, released parameters included."""
    if isinstance(item, torch.Tensor):
        return item.detach().to(device, copy=True)
    if isinstance(item, (list, tuple)):
        return type(item)(clone_tensors_for_torch_save(value, device) for value in item)
    if isinstance(item, dict):
        return type(item)(
            (key, clone_tensors_for_torch_save(value, device)) for key, value in item.items()
        )
    return item


class _Accelerator:
    """The device of this process, by deepspeed's names."""

    def device_name(self, index=None):
        if not torch.cuda.is_available():
            return "cpu"
        return "cuda" if index is None else f"cuda:{index}"

    def current_device_name(self):
        return self.device_name(torch.cuda.current_device() if torch.cuda.is_available() else None)


_accelerator = _Accelerator()


def get_accelerator():
    return _accelerator


def _get_comm(name):
    """torch.distributed is what deepspeed.comm has the functions of."""
    return getattr(torch.distributed, name)


def _init_comm(dist_backend=None, auto_mpi_discovery=True, timeout=None, **rest):
    """Starts torch.distributed, which the two libraries use beside the engine."""
    del auto_mpi_discovery
    for name in rest:
        log.info("deepspeed.comm.init_distributed: %s has no effect", name)
    ullage.init_distributed(dist_backend, timeout)
    if torch.distributed.is_initialized():
        return
    # Without a launcher there is one rank, and Trainer gathers losses over a group all the same.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(
        backend, store=torch.distributed.HashStore(), rank=0, world_size=1
    )


_comm = {
    "__getattr__": _get_comm,
    "init_distributed": _init_comm,
    "is_initialized": torch.distributed.is_initialized,
}
_utils = {
    "logger": logging.getLogger("ullage"),
    "is_initialized": torch.distributed.is_initialized,
    "safe_get_full_fp32_param": ullage.full_parameter,
    "safe_get_full_grad": ullage.full_gradient,
    "safe_get_full_optimizer_state": ullage.full_optimizer_state,
    "set_z3_leaf_modules": set_z3_leaf_modules,
}
_zero = {
    "GatheredParameters": GatheredParameters,
    "Init": Init,
    "register_external_parameter": register_external_parameter,
}

# By full name: what a module of the stand-in holds beside its submodules.
MODULES = {
    "deepspeed": {
        "__version__": VERSION,
        "DeepSpeedEngine": ullage.Engine,
        "init_distributed": _init_comm,
        "initialize": initialize,
    },
    "deepspeed.accelerator": {"get_accelerator": get_accelerator},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"clone_tensors_for_torch_save": clone_tensors_for_torch_save},
    "deepspeed.comm": _comm,
    "deepspeed.runtime": {},
    "deepspeed.runtime.lr_schedules": {
        "VALID_LR_SCHEDULES": [
            "LRRangeTest",
            "OneCycle",
            "WarmupLR",
            "WarmupDecayLR",
            "WarmupCosineLR",
        ]
    },
    "deepspeed.utils": _utils,
    "deepspeed.zero": _zero,
}
