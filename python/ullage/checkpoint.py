"""Saving and loading, with the methods' names and arguments that people know."""

import base64
import io
import json
import logging
import os

import torch

from ullage import _C

log = logging.getLogger("ullage")


def save_checkpoint(
    engine, save_dir, tag, client_state, save_latest, exclude_frozen_parameters, keep=0, background=False
):
    """Collective: writes all that training goes on with to `save_dir`, each rank its slices.

    `tag` names the checkpoint beside its own name, step-N (default: global_stepN). client_state: a dict
    of numbers, strings, lists, dicts and tensors, which load_checkpoint returns. keep: above 0, how many
    complete checkpoints stay in the folder. background: return at once and write while training goes on;
    a step that comes to state which is not written yet waits for it. The tag appears when the checkpoint
    is complete and the next save, finish_saving or destroy has come. Returns True. Raises IoError.
    """
    finish_saving(engine)
    if not save_dir:
        raise _C.ConfigError("save_checkpoint without a folder\nhint: pass one")
    if not save_latest:
        raise _C.UnsupportedError("save_checkpoint with save_latest=False\nhint: leave it out")
    if exclude_frozen_parameters:
        log.info(
            "exclude_frozen_parameters: frozen parameters are written all the same, so that the checkpoint "
            "is complete by itself"
        )
    if tag is None:
        tag = f"global_step{engine.global_steps}"
    state = {
        "client_state": _encode(client_state or {}),
        "global_samples": engine.global_samples,
        "micro_steps": engine.micro_steps,
    }
    if engine._user_scheduler is not None and hasattr(engine._user_scheduler, "state_dict"):
        state["lr_scheduler"] = _encode(engine._user_scheduler.state_dict())
    if engine.optimizer is not None:
        # What a scheduler has written for the next step is not the engine's yet.
        state["groups"] = [[g["lr"], g["weight_decay"]] for g in engine.optimizer.param_groups]
    _check_tag(str(tag))
    path = engine._core.save_checkpoint(
        os.fspath(save_dir), json.dumps(state), keep=keep, background=background
    )
    if background:
        engine._awaited_link = (save_dir, str(tag), path)
    else:
        _link(engine, save_dir, str(tag), path)
    return True


def finish_saving(engine):
    """Collective: a save in the background is complete and has its tag. Raises what went wrong with it."""
    link, engine._awaited_link = engine._awaited_link, None
    if link is not None:
        engine._core.finish_saving()
        _link(engine, *link)


def load_checkpoint(
    engine,
    load_dir,
    tag,
    load_module_strict,
    load_optimizer_states,
    load_lr_scheduler_states,
    load_module_only,
    custom_load_fn,
):
    """Collective: goes on from a checkpoint that any number of ranks has written at any stage.

    Returns (path, client_state), or (None, None) with a warning when `load_dir` holds none.
    Raises IoError for damage, ConfigError when it does not fit the model or the optimizer.
    """
    if custom_load_fn is not None:
        raise _C.UnsupportedError("load_checkpoint with custom_load_fn\nhint: leave it out")
    if not load_module_strict:
        log.info("load_module_strict=False: a parameter that the checkpoint lacks is an error all the same")
    finish_saving(engine)
    path = os.fspath(load_dir) if tag is None else os.path.join(load_dir, str(tag))
    if not os.path.isdir(path) or not os.listdir(path):
        log.warning("load_checkpoint: %s holds no checkpoint", path)
        return None, None
    weights_only = load_module_only or not load_optimizer_states
    info = engine._core.load_checkpoint(path, weights_only)
    state = json.loads(info.client_state) if info.client_state else {}
    if not weights_only:
        engine.global_samples = state.get("global_samples", 0)
        engine.micro_steps = state.get("micro_steps", 0)
        scheduler = engine._user_scheduler
        if load_lr_scheduler_states and scheduler is not None and "lr_scheduler" in state:
            scheduler.load_state_dict(_decode(state["lr_scheduler"]))
            for group, lr in zip(engine.optimizer.param_groups, scheduler.get_last_lr()):
                group["lr"] = lr
        elif scheduler is None:
            engine._publish_groups()
            if not engine._settings.has_scheduler and engine.optimizer is not None:
                _take_groups(engine.optimizer, state.get("groups", []))
    return info.path, _decode(state["client_state"]) if "client_state" in state else {}


def _take_groups(optimizer, saved):
    for group, (lr, weight_decay) in zip(optimizer.param_groups, saved):
        group["lr"], group["weight_decay"] = lr, weight_decay


def whole_state(engine, exclude_frozen_parameters=False):
    """Collective: the model's state dict in the weights' dtype on the CPU, buffers included; None but
    on rank 0. Parameters with several names are one tensor."""
    weights = {}
    is_first = engine._ranks.rank == 0
    for name, parameter in engine._parameters_by_name.items():
        if exclude_frozen_parameters and not parameter.requires_grad:
            continue
        whole = engine._core.read_whole(name, "value")
        if is_first:
            weights[name] = whole.to(parameter.dtype)
    if not is_first:
        return None
    state = {}
    for name, tensor in engine.module.state_dict(keep_vars=True).items():
        first = engine._names.get(id(tensor))
        if first is None:
            state[name] = tensor.detach().cpu()
        elif first in weights:
            state[name] = weights[first]
    return state


def save_16bit_model(engine, save_dir, save_filename, exclude_frozen_parameters):
    """Collective: rank 0 writes the model's state dict in the weights' dtype, buffers included, as a
    torch file or, where the name ends in .safetensors, as that. Returns True. Raises IoError."""
    state = whole_state(engine, exclude_frozen_parameters)
    if state is None:
        return True
    try:
        os.makedirs(save_dir, exist_ok=True)
        path = os.path.join(save_dir, save_filename)
        _write(state, path)
    except OSError as error:
        raise _C.IoError(f"{save_dir}: {error}\nhint: free the disk or choose another folder") from error
    return True


def _write(state, path):
    partial = path + ".partial"
    if path.endswith(".safetensors"):
        from safetensors.torch import save_file

        aliases = {}
        kept = {}
        for name, tensor in state.items():
            first = aliases.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
            if first == name:
                kept[name] = tensor.contiguous()
        save_file(kept, partial, metadata={"format": "pt"})
    else:
        torch.save(state, partial)
    os.replace(partial, path)


def _check_tag(tag):
    if os.sep in tag or tag in ("", ".", "..", "latest"):
        raise _C.ConfigError(f"the tag '{tag}' is no name\nhint: use letters, digits, '-' and '_'")


def _link(engine, save_dir, tag, path):
    name = os.path.basename(path)
    if tag == name:
        return
    if engine._ranks.rank != 0:
        return
    link = os.path.join(save_dir, tag)
    partial = link + ".partial"
    try:
        if os.path.lexists(partial):
            os.unlink(partial)
        os.symlink(name, partial)
        os.replace(partial, link)
        for entry in os.scandir(save_dir):  # tags of checkpoints that `keep` has removed
            if entry.is_symlink() and os.readlink(entry).startswith("step-") and not entry.is_dir():
                os.unlink(entry)
    except OSError as error:
        raise _C.IoError(f"{link}: {error}\nhint: the checkpoint itself is complete: {path}") from error


def _encode(value):
    try:
        text = json.dumps(value)
        if json.loads(text) == value:
            return {"json": value}
    except (TypeError, ValueError):
        pass
    buffer = io.BytesIO()
    torch.save(value, buffer)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    try:
        _decode({"torch": encoded})
    except Exception as error:
        raise _C.ConfigError(
            f"client_state cannot be loaded again without running code: {error}\nhint: keep numbers, "
            "strings, lists, dicts and tensors in it"
        ) from None
    return {"torch": encoded}


def _decode(encoded):
    if "json" in encoded:
        return encoded["json"]
    return torch.load(io.BytesIO(base64.b64decode(encoded["torch"])), weights_only=True)
