"""`parameter.grad` between backward and step.

The engine sums gradients in slices; a parameter has none of its own. Who asks for one gets the mean
over micro-steps and ranks, whole, and what is written into it (clipping, say) counts in the step.
"""

import logging

import torch

from ullage import _C

log = logging.getLogger("ullage")

_plain = torch.Tensor.grad


class GradientView:
    """The gradients of one engine that were handed out since the last backward."""

    def __init__(self, engine):
        self._engine = engine
        self._handed_out = {}  # name -> (gradient, its version then)
        self._warned = False

    def get(self, parameter):
        """Collective. None when there was no backward pass since the last step."""
        name = self._engine._name_of(parameter)
        if name in self._handed_out:
            return self._handed_out[name][0]
        try:
            mean = self._engine._core.read_whole(name, "gradient")
        except _C.StateError:
            return None
        if not self._warned:
            self._warned = True
            log.warning(
                "parameter.grad is read: each gradient asked for is put together whole on every rank "
                "and kept until the step (engine.get_global_grad_norm has the norm, "
                "gradient_clipping clips)"
            )
        gradient = mean.to(parameter.device, parameter.dtype)
        self._handed_out[name] = (gradient, gradient._version)
        return gradient

    def set(self, parameter, value):
        """Collective. None drops this parameter's gradient."""
        name = self._engine._name_of(parameter)
        if value is None:
            if self._handed_out.pop(name, None) is None and self.get(parameter) is None:
                return
            value = torch.zeros_like(parameter)
        self._handed_out[name] = (value, -1)

    def write_back(self):
        """Collective: what was changed counts."""
        for name, (gradient, version) in self._handed_out.items():
            if gradient._version != version:
                self._engine._core.write_whole(name, "gradient", gradient)
        self._handed_out.clear()

    def forget(self):
        self._handed_out.clear()


def install():
    """Makes `Parameter.grad` ask the engine where the tensor is a parameter of one."""
    from ullage.engine import engine_of

    def get(tensor):
        engine = engine_of(tensor)
        if engine is None or not tensor.requires_grad:
            return _plain.__get__(tensor)
        return engine._gradients.get(tensor)

    def put(tensor, value):
        engine = engine_of(tensor)
        if engine is None or not tensor.requires_grad:
            return _plain.__set__(tensor, value)
        return engine._gradients.set(tensor, value)

    def drop(tensor):
        put(tensor, None)

    # On Parameter alone: torch.compile looks at what stands in Tensor itself.
    torch.nn.Parameter.grad = property(get, put, drop, _plain.__doc__)
