"""Where the bytes of any PyTorch loop went."""

import torch

from ullage import _C
from ullage.prediction import text_of_bytes

_PHASES = {"forward": "forward", "backward": "backward", "step": "without gradients"}


class Report:
    """What operators held between entering and leaving `ullage.explain()`.

    `phases`: {"forward" | "backward" | "without gradients": bytes at most}; `largest`: what was held at
    the highest peak, largest first, grouped by operator and parameter; `peak`: bytes at most;
    `before`: on CUDA, bytes that torch's allocator had given out already. Empty until the end.
    """

    def __init__(self):
        self.phases = {}
        self.largest = []
        self.peak = 0
        self.before = 0

    def __str__(self):
        lines = [f"operators held at most {text_of_bytes(self.peak)}"]
        if self.before:
            lines[0] += f", beside {text_of_bytes(self.before)} that were there before"
        lines += [f"{text_of_bytes(count):>12}  in {phase}" for phase, count in self.phases.items()]
        lines.append("largest then:")
        for held in self.largest[:8]:
            at = held["operation"] or "?"
            if held["parameter"]:
                at += f" after {held['parameter']}"
            lines.append(f"{text_of_bytes(held['bytes']):>12}  {held['count']} {held['use']} of {at}")
        return "\n".join(lines)


class explain:  # noqa: N801 (used like a function)
    """`with ullage.explain(model) as report:` around a few steps; then `print(report)`.

    `model` (or several) gives parameters their names. Follows this thread and the backward passes that it
    starts, on CUDA where the model is there or, without a model, where CUDA is in use. Costs time, so
    take it out again. torch.profiler cannot record memory meanwhile.
    """

    def __init__(self, *models):
        self._models = models
        self._watch = None
        self._report = Report()

    def __enter__(self):
        tensors = [tensor for model in self._models for tensor in model.parameters()]
        cuda = tensors[0].is_cuda if tensors else torch.cuda.is_initialized()
        if cuda:
            self._report.before = torch.cuda.memory_allocated()
        self._watch = _C.MemoryWatch(cuda)
        for model in self._models:
            for name, parameter in model.named_parameters():
                self._watch.name(parameter, name)
        return self._report

    def __exit__(self, *_):
        told = self._watch.stop()
        self._report.phases = {_PHASES[phase["phase"]]: phase["bytes"] for phase in told["phases"]}
        self._report.largest = told["largest"]
        self._report.peak = told["peak"]
