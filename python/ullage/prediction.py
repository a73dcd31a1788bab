"""What a step of any module would hold: the engine and the module's own forward, on Meta."""

import copy
import os
import traceback

import torch

from ullage import _C
from ullage.meta import counted_kernels

_GIB = 1 << 30


class Prediction:
    """Bytes where operators run, on one rank, at the worst moment of a step.

    `phases`: for "load", "forward", "backward" and "step" the most that is held, by tag, the operator
    whose request made it so and the parameter used last before it; `largest`: what operators hold at
    the highest of these, grouped by operator and parameter. `peak`: bytes as asked for. On CUDA
    `allocated` and `reserved` are what torch's allocator would tell, and `device` adds what lies
    outside it. `fits`: whether that is within the device named; None for "cpu" and "cuda".
    """

    def __init__(self, told, device, capacity):
        self.phases = told["phases"]
        self.largest = told["largest"]
        self.peak = told["peak"]
        self.allocated = told["allocated"]
        self.reserved = told["reserved"]
        self.outside = told["outside"]
        self.device = told["device"]
        self.host = told["host"]
        self.disk = told["disk"]
        self.fits = None if capacity is None else self.device <= capacity
        self._name = device
        self._capacity = capacity

    def __str__(self):
        lines = []
        for phase in self.phases:
            tags = ", ".join(f"{tag} {text_of_bytes(count)}" for tag, count in phase["by_tag"].items())
            lines.append(f"{phase['phase']:<9}{text_of_bytes(phase['bytes']):>11}: {tags}")
        worst = max(self.phases, key=lambda phase: phase["bytes"])
        at = worst["operation"] or "the engine"
        if worst["parameter"]:
            at += f" after {worst['parameter']}"
        lines.append(f"most in {worst['phase']}, at {at}")
        if self._capacity is not None:
            room = self._capacity - self.device
            lines.append(
                f"fits on {self._name}: {text_of_bytes(room)} to spare"
                if self.fits
                else f"does not fit on {self._name}: over by {text_of_bytes(-room)}"
            )
        return "\n".join(lines)


def predict(model, settings, ranks, device, batch, loss):
    """The Prediction of one step of `model`, which is not changed; `batch` a mapping or a sequence of
    arguments, with tensors on any device."""
    cuda = device != "cpu"
    name = "h200" if device in ("cpu", "cuda") else device
    capacity = None if device in ("cpu", "cuda") else _C.device_bytes(name)
    made = {}

    def parameters():
        made["model"] = on_meta(model)
        listed = _C.ParameterList()
        for parameter_name, parameter in made["model"].named_parameters(remove_duplicate=False):
            listed.add(parameter_name, parameter)
        for buffer_name, _ in made["model"].named_buffers():
            listed.add_buffer_name(buffer_name)
        return listed

    def run(core):
        for _ in range(core.batch_sizes.accumulation_steps):
            inputs = _to_meta(batch)
            core.backward(core.forward(lambda: loss(made["model"], inputs)))
        core.step()

    try:
        with counted_kernels():
            told = _C.predict(parameters, settings, ranks, cuda, name, run)
        return Prediction(told, device, capacity)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, _C.Error):
            raise
        raise _C.UnsupportedError(
            f"the model cannot run without values: {_where(error)}: {str(error).splitlines()[0]}\n"
            "hint: plan without example_batch, which tells what the engine holds; or make that line "
            "independent of values"
        ) from error


def usual_loss(model, inputs):
    """`loss` of what the model returns, or the sum of its first tensor."""
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is not None:
        return loss
    if isinstance(output, (tuple, list)):
        output = output[0]
    return output.float().sum()


def on_meta(model):
    """A copy of the module whose parameters and buffers have no memory."""
    known = {}
    for parameter in model.parameters():
        empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        known[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        known[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype, device="meta")
    return copy.deepcopy(model, known)


def _to_meta(value):
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, dict) or hasattr(value, "items"):
        return {key: _to_meta(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_to_meta(part) for part in value)
    return value


def _where(error):
    """The innermost line that is neither torch's nor ours."""
    ours = tuple(os.path.dirname(path) + os.sep for path in (__file__, torch.__file__))
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith(ours):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return "?"


def text_of_bytes(count):
    """For people: "1.50 GiB"."""
    return f"{count / _GIB:.2f} GiB" if count >= _GIB / 10 else f"{count / (1 << 20):.2f} MiB"
