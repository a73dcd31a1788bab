"""Whole tensors of what the engines hold in slices."""

import contextlib

import torch

from ullage import _C, access
from ullage.engine import engine_of, engines


@contextlib.contextmanager
def gathered(params, modify_rank=None, enabled=True):
    """Holds all bytes of parameters present, so that code may read them without an operator.

    `params`: a parameter, an iterable of them, or a module. Without `modify_rank` what operators
    write inside is kept, as everywhere. With it, what the parameters are on that rank at the end is
    what they are on all ranks; every rank enters.
    """
    if not enabled:
        yield
        return
    if isinstance(params, torch.nn.Module):
        params = params.parameters()
    elif isinstance(params, torch.Tensor):
        params = [params]
    by_engine = {}
    for parameter in params:
        engine = engine_of(parameter)
        if engine is not None:
            by_engine.setdefault(id(engine), (engine, []))[1].append(parameter)
    held = []
    try:
        for engine, members in by_engine.values():
            names = list(dict.fromkeys(engine._name_of(p) for p in members))
            held.append(engine._core.gather(names, False))
        yield
        if modify_rank is not None:
            for engine, members in by_engine.values():
                for parameter in members:
                    _share(engine, parameter, modify_rank)
    finally:
        for one in reversed(held):
            one.end()


def _share(engine, parameter, root):
    if engine._ranks.world_size == 1:
        return
    values = parameter.detach().to("cpu", torch.float32, copy=True).contiguous()
    engine._ranks.broadcast(values, root)
    with torch.no_grad():
        parameter.copy_(values)


def full_parameter(parameter, value=None):
    """Collective: the fp32 value of a parameter, whole and on the CPU; with `value`, sets it."""
    return _whole(parameter, "value", value)


def full_gradient(parameter, value=None):
    """Collective, between backward and step: the mean gradient over micro-steps and ranks, in fp32,
    unscaled and before clipping; with `value`, replaces it."""
    return _whole(parameter, "gradient", value)


def full_optimizer_state(parameter, key, value=None):
    """Collective: "exp_avg", "exp_avg_sq" or "momentum_buffer" of a parameter, in fp32; with
    `value`, sets it."""
    return _whole(parameter, key, value)


def _whole(parameter, part, value):
    engine = engine_of(parameter)
    if engine is None:
        raise _C.ConfigError(
            f"a tensor of shape {list(parameter.shape)} belongs to no engine\nhint: pass a parameter "
            "of the model that `initialize` got"
        )
    name = engine._name_of(parameter)
    access.end_leases()
    if value is None:
        return engine._core.read_whole(name, part)
    engine._core.write_whole(name, part, value)
    return None


def memory_report():
    """Bytes of this rank by tag, now and at the peak: a list with a dict for each engine."""
    return [engine._core.memory() for engine in engines()]
