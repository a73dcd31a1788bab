"""What an engine would hold, before there is one: no weights are read and no device is needed."""

import json

import torch

from ullage import _C
from ullage.config import read_config
from ullage.prediction import predict, usual_loss


class Plan:
    """Bytes of one rank. `bytes`: {tag: bytes}; `total`: their sum; str(plan): the table.

    `prediction`: what a step holds where operators run (see `Prediction`), or None where no batch
    was given.
    """

    def __init__(self, core, world_size, rank, prediction):
        self.world_size = world_size
        self.rank = rank
        self.bytes = core.planned_bytes()
        self.total = sum(self.bytes.values())
        self._text = core.plan_text()
        self._json = core.plan_json()
        self.prediction = prediction

    def to_dict(self):
        """The plan as data: every unit with its members, places and sizes."""
        return json.loads(self._json)

    def __str__(self):
        return self._text if self.prediction is None else f"{self._text}{self.prediction}\n"


def plan(
    model, config, world_size=1, rank=0, device=None, example_batch=None, loss=usual_loss
):
    """The plan for a module under a config, on `rank` of `world_size` ranks.

    The module may lie on the Meta device (`with torch.device("meta")`); it is not changed. `device`:
    "cpu", "cuda" (default where there is one), or a device by name ("a100-40g", ...; a wrong name
    lists them). With `example_batch`, the arguments of a forward as a dict or a tuple, one step is
    run on Meta and its peak predicted, activations and temporaries included; `loss(model, batch)`
    makes the loss when it is not `model(**batch).loss`. Raises ConfigError and UnsupportedError as
    `initialize` does, and UnsupportedError with the line where the model needs values.
    """
    settings = read_config(config)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cuda", "cpu"):
        _C.device_bytes(device)  # raises when it is not known
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
        cuda=device != "cpu",
        dry_run=True,
    )
    prediction = None
    if example_batch is not None:
        ranks = _C.Ranks.imagined(rank, world_size)
        prediction = predict(model, settings, ranks, device, example_batch, loss)
    return Plan(core, world_size, rank, prediction)
