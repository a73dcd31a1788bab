"""`ullage.initialize`, with the arguments of `deepspeed.initialize`."""

import logging

import torch

from ullage import _C
from ullage import optimizer as optimizers
from ullage import ranks as rank_group
from ullage.config import read_config
from ullage.engine import Engine, engine_of
from ullage.scheduler import ConfigScheduler

log = logging.getLogger("ullage")


def initialize(
    args=None,
    model=None,
    optimizer=None,
    model_parameters=None,
    training_data=None,
    lr_scheduler=None,
    distributed_port=None,
    mpu=None,
    dist_init_required=None,
    collate_fn=None,
    config=None,
    mesh_param=None,
    config_params=None,
    seed=None,
):
    """Takes a model's parameters over and returns (engine, optimizer, loader, scheduler).

    model: any torch.nn.Module. optimizer: a torch.optim AdamW, Adam or SGD, or a callable that makes
    one of the parameters; without it, the config's. model_parameters: what is to be trained, as
    parameters or group dicts (default: all that require a gradient). training_data: a dataset, of
    which a loader of micro-batches is made. lr_scheduler: an object on the optimizer, or a callable
    that makes one of it; without it, the config's. config: a dict or a path; `args.deepspeed_config`
    works too. seed: of the forwards' random numbers (default: torch.initial_seed()).
    distributed_port and dist_init_required change nothing: ranks meet as their launcher says.

    Raises ConfigError (a ValueError), UnsupportedError, CommError, OutOfMemoryError.
    """
    del distributed_port, dist_init_required
    if model is None or not isinstance(model, torch.nn.Module):
        raise _C.ConfigError(
            f"model is {type(model).__name__}\nhint: pass the torch.nn.Module that is to be trained"
        )
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise _C.UnsupportedError(
                f"{name}: model parallelism is not offered\nhint: leave it out; all ranks are data "
                "parallel"
            )
    settings = read_config(_choose_config(args, config, config_params))
    ranks = rank_group.connect(settings.timeout_seconds)

    _end_former_engine(model, ranks)

    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(_parameters(model, model_parameters))
    if optimizer is not None:
        _refuse_two(settings, "optimizer")
        optimizers.take_settings(optimizer, settings)
    elif model_parameters is not None:
        optimizer = optimizers.make_optimizer(settings, _parameters(model, model_parameters))
    if lr_scheduler is not None:
        _refuse_two(settings, "scheduler")

    seed = torch.initial_seed() % 2**63 if seed is None else seed
    engine = Engine(model, settings, ranks, optimizer, seed)
    if lr_scheduler is not None and engine.optimizer is None:
        raise _C.ConfigError(
            "an lr_scheduler was passed, and no parameter requires a gradient\nhint: call "
            "requires_grad_() on what is to be trained"
        )
    if lr_scheduler is not None and not hasattr(lr_scheduler, "step"):
        lr_scheduler = lr_scheduler(engine.optimizer)
    if lr_scheduler is not None:
        engine._user_scheduler = lr_scheduler
    elif settings.has_scheduler:
        lr_scheduler = ConfigScheduler(engine)
    engine.lr_scheduler = lr_scheduler

    loader = None
    if training_data is not None:
        loader = engine.deepspeed_io(training_data, collate_fn=collate_fn)
        engine.training_dataloader = loader
    return engine, engine.optimizer, loader, lr_scheduler


def _end_former_engine(model, ranks):
    """A cell that is run again: two engines would take each other's gradients."""
    former = {id(e): e for e in map(engine_of, model.parameters()) if e is not None}
    for engine in former.values():
        if ranks.world_size > 1:
            raise _C.ConfigError(
                "the model has an engine already, and its slices would be lost\nhint: save what is "
                "needed, call engine.destroy() and make the model anew"
            )
        log.warning("the model had an engine, which ends; its weights stay, its optimizer state does not")
        if not engine._gives_model_back:
            engine._leaves_model_whole([])
        engine.destroy()


def _choose_config(args, config, config_params):
    given = [c for c in (config, config_params, getattr(args, "deepspeed_config", None)) if c is not None]
    if len(given) != 1:
        raise _C.ConfigError(
            f"{len(given)} configs were given\nhint: pass exactly one of config, config_params and "
            "args.deepspeed_config"
        )
    return given[0]


def _refuse_two(settings, section):
    if any(key == section or key.startswith(section + ".") for key in settings.given):
        raise _C.ConfigError(
            f"an {section} object was passed, and the config has a section '{section}'\n"
            "hint: remove one of them"
        )


def _parameters(model, model_parameters):
    if model_parameters is not None:
        parameters = list(model_parameters)
    else:
        parameters = list(model.parameters())
    trainable = [
        p for p in parameters if isinstance(p, dict) or (isinstance(p, torch.Tensor) and p.requires_grad)
    ]
    if not trainable:
        raise _C.ConfigError(
            "no parameter requires a gradient\nhint: call requires_grad_() on what is to be trained"
        )
    return trainable
