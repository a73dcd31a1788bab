"""What user code does to a model after an engine has taken its parameters over.

Moving or casting a module would copy every weight, and a parameter that is put in another's place
would not be trained. The first changes nothing and is said, the second is taken over or refused.
"""

import logging
import sys
import traceback

import torch

from ullage import _C, access

log = logging.getLogger("ullage")
_said = set()  # (file, line)


def apply(original):
    """Module._apply: .to(), .cuda(), .half() and the like leave managed parameters where they are."""

    def run(self, fn, recurse=True):
        managed = {}
        if access.any_managed():
            managed = {
                name: parameter
                for name, parameter in self._parameters.items()
                if parameter is not None and access.entry_of(parameter) is not None
            }
        if not managed:
            return original(self, fn, recurse)
        _say_once(next(iter(managed.values())))
        try:
            for name in managed:
                self._parameters[name] = None
            return original(self, fn, recurse)
        finally:
            self._parameters.update(managed)

    return run


def _say_once(parameter):
    frame = sys._getframe()
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno)
    if place in _said:
        return
    _said.add(place)
    summary = traceback.extract_stack(frame, limit=1)[0]
    log.warning(
        "%s:%d: %s moves or casts a module of the engine: its parameters stay on %s in %s, where "
        "operators find them (buffers follow)\nhint: take the line out",
        *place,
        repr(summary.line),
        parameter.device.type,
        str(parameter.dtype).removeprefix("torch."),
    )


def _is_library(module):
    return module.split(".")[0] in ("torch", "ullage")


def adopt(engine):
    """Before a forward: parameters that were put in the place of the engine's give it their values.

    Raises StateError when there is none of that name and shape.
    """
    for module, prefix, key, parameter in _strangers(engine):
        name = prefix + key
        own = engine._parameters_by_name.get(name)
        if own is None or own.shape != parameter.shape:
            raise _C.StateError(_describe(name, parameter, own))
        log.warning(
            "parameter '%s' was replaced by another object; its values are taken over and the "
            "engine's is put back",
            name,
        )
        module._parameters[key] = own
        with torch.no_grad():
            own.copy_(parameter)


def check(engine):
    """Before gradients or an update: the model's parameters are the engine's. Raises StateError."""
    for _, prefix, key, parameter in _strangers(engine):
        name = prefix + key
        raise _C.StateError(_describe(name, parameter, engine._parameters_by_name.get(name)))


def _describe(name, parameter, own):
    shape = list(parameter.shape)
    if own is None:
        return (
            f"parameter '{name}' of shape {shape} was added to the model after initialize and would "
            "not be trained\nhint: add modules (adapters, new heads) before initialize"
        )
    if own.shape != parameter.shape:
        return (
            f"parameter '{name}' was replaced by one of shape {shape}, where {list(own.shape)} is "
            "managed\nhint: resize before initialize, or save and initialize anew"
        )
    return (
        f"parameter '{name}' was replaced between forward and step, so that its gradient is lost\n"
        "hint: replace it before the forward, or copy_ new values into it"
    )


def _strangers(engine):
    """The parameters of the model that should be the engine's and are not."""
    names = engine._names
    for prefix, module in engine.module.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in names and parameter.is_floating_point():
                yield module, prefix + "." if prefix else "", key, parameter
