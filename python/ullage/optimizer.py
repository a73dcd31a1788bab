"""The optimizer that users hold: a torch optimizer whose `step` is the engine's.

The object is an ordinary torch.optim one, so that schedulers of torch and others work on it. Its
parameter groups say which learning rate and weight decay the next step uses; the state is the
engine's, in slices.
"""

import torch

from ullage import _C

_ADAM = (torch.optim.Adam, torch.optim.AdamW)


def make_optimizer(settings, parameters):
    """A torch optimizer with the settings' hyper-parameters for `parameters` (or groups of them)."""
    own = settings.optimizer
    if own.type == _C.OptimizerType.adam:
        kind = torch.optim.AdamW if own.adam_w_mode else torch.optim.Adam
        return kind(
            parameters,
            lr=own.lr,
            betas=(own.beta1, own.beta2),
            eps=own.eps,
            weight_decay=own.weight_decay,
        )
    return torch.optim.SGD(
        parameters,
        lr=own.lr,
        momentum=own.momentum,
        dampening=own.dampening,
        weight_decay=own.weight_decay,
        nesterov=own.nesterov,
    )


def take_settings(optimizer, settings):
    """Makes the settings' optimizer the one that the user's torch optimizer is."""
    own = settings.optimizer
    name = type(optimizer).__name__
    groups = optimizer.param_groups
    if isinstance(optimizer, _ADAM):
        for key in ("amsgrad", "maximize"):
            _refuse(groups, key, lambda value: value, name)
        own.type = _C.OptimizerType.adam
        own.beta1, own.beta2 = map(float, _common(groups, "betas", name))
        own.eps = float(_common(groups, "eps", name))
        decoupled = isinstance(optimizer, torch.optim.AdamW)
        own.adam_w_mode = decoupled or bool(groups[0].get("decoupled_weight_decay", False))
        own.bias_correction = True
    elif isinstance(optimizer, torch.optim.SGD):
        _refuse(groups, "maximize", lambda value: value, name)
        own.type = _C.OptimizerType.sgd
        own.momentum = float(_common(groups, "momentum", name))
        own.dampening = float(_common(groups, "dampening", name))
        own.nesterov = bool(_common(groups, "nesterov", name))
    else:
        raise _C.UnsupportedError(
            f"optimizer {type(optimizer).__module__}.{name} cannot run on sliced state\n"
            "hint: pass torch.optim.AdamW, Adam or SGD, or name one in the config"
        )
    own.lr = float(groups[0]["lr"])
    own.weight_decay = float(groups[0]["weight_decay"])
    settings.optimizer = own


def _common(groups, key, name):
    values = {group[key] for group in groups}
    if len(values) > 1:
        raise _C.UnsupportedError(
            f"{name} with groups of different {key}: {sorted(values)}\n"
            f"hint: groups may differ in lr and weight_decay; give all the same {key}"
        )
    return values.pop()


def _refuse(groups, key, is_on, name):
    for group in groups:
        if is_on(group.get(key)):
            raise _C.UnsupportedError(
                f"{name} with {key}={group[key]}\nhint: leave {key} out; it is not offered"
            )


def named_groups(optimizer, names):
    """The optimizer's groups for the engine; `names` maps id(parameter) to its name."""
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        members = []
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise _C.ConfigError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} that is not the "
                    "model's\nhint: make the optimizer from the parameters of the model that is passed"
                )
            members.append(names[id(parameter)])
        groups.append(
            _C.NamedGroup(
                str(group.get("name", index)),
                members,
                float(group["lr"]),
                float(group["weight_decay"]),
            )
        )
    return groups


def adopt(optimizer, engine):
    """Puts the engine's step in the place of the optimizer's own."""

    def step(closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        optimizer._opt_called = True
        engine._apply()
        return loss

    def zero_grad(set_to_none=True):
        del set_to_none
        engine.zero_grad()

    def refuse(*_, **__):
        raise _C.StateError(
            "the optimizer's state is the engine's, in slices\nhint: engine.save_checkpoint and "
            "engine.load_checkpoint keep it; ullage.full_optimizer_state shows it"
        )

    # torch's schedulers look for this, to warn of a step that is not theirs.
    step._wrapped_by_lr_sched = True
    optimizer.step = step
    optimizer.zero_grad = zero_grad
    optimizer.state_dict = refuse
    optimizer.load_state_dict = refuse
    optimizer.add_param_group = refuse
    optimizer.overflow = False
    return optimizer
