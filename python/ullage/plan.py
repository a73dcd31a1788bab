"""What an engine would hold, before there is one: no weights are read and no device is needed."""

import json

import torch

from ullage import _C
from ullage.config import read_config


class Plan:
    """Bytes of one rank. `bytes`: {tag: bytes}; `total`: their sum; str(plan): the table."""

    def __init__(self, core, world_size, rank):
        self.world_size = world_size
        self.rank = rank
        self.bytes = core.planned_bytes()
        self.total = sum(self.bytes.values())
        self._text = core.plan_text()
        self._json = core.plan_json()

    def to_dict(self):
        """The plan as data: every unit with its members, places and sizes."""
        return json.loads(self._json)

    def __str__(self):
        return self._text


def plan(model, config, world_size=1, rank=0, device=None):
    """The plan for a module under a config, on `rank` of `world_size` ranks.

    The module may lie on the Meta device (`with torch.device("meta")`); it is not changed. `device`:
    "cuda" or "cpu" (default: cuda where there is one). Activations are not in it: they are the
    operators' own. Raises ConfigError and UnsupportedError as `initialize` does.
    """
    settings = read_config(config)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cuda", "cpu"):
        raise _C.ConfigError(f"device '{device}'\nhint: use \"cuda\" or \"cpu\"")
    parameters = _C.ParameterList()
    stand_ins = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in stand_ins:
            stand_in = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            stand_ins[id(parameter)] = stand_in.requires_grad_(parameter.requires_grad)
        parameters.add(name, stand_ins[id(parameter)])
    for name, _ in model.named_buffers():
        parameters.add_buffer_name(name)
    core = _C.Engine(
        parameters,
        settings,
        _C.Ranks.imagined(rank, world_size),
        cuda=device == "cuda",
        dry_run=True,
    )
    return Plan(core, world_size, rank)
