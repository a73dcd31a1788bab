"""A forward under torch.autocast that keeps no copies of weights.

Autocast casts each weight, keeps the copy in a cache until it ends, and autograd keeps it until the
backward pass. Here a copy lives as long as the operator that it is for: backward makes it again.
"""

import contextlib

import torch

from ullage import _C


@contextlib.contextmanager
def owned(device_type):
    """For a forward; does nothing where autocast is off."""
    if not torch.is_autocast_enabled(device_type):
        yield
        return
    was_cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.autograd.graph.saved_tensors_hooks(_pack, _unpack):
            yield
    finally:
        torch.set_autocast_cache_enabled(was_cached)


class _Cast:
    """A copy of a parameter that is made again: in `dtype`, and transposed or not."""

    def __init__(self, parameter, dtype, is_transposed):
        self._parameter = parameter
        self._version = parameter._version
        self._dtype = dtype
        self._is_transposed = is_transposed

    def make(self):
        _check(self._parameter, self._version)
        tensor = self._parameter.detach().to(self._dtype)
        return tensor.t() if self._is_transposed else tensor


def _pack(tensor):
    node, is_transposed = tensor.grad_fn, False
    if node is not None and node.name() == "TBackward0":
        node, is_transposed = node.next_functions[0][0], True
    if node is not None and node.name() == "ToCopyBackward0":
        parameter = getattr(node.next_functions[0][0], "variable", None)
        if parameter is not None and _C.is_managed(parameter):
            return _Cast(parameter, tensor.dtype, is_transposed)
    return tensor, tensor._version


def _unpack(packed):
    if isinstance(packed, _Cast):
        return packed.make()
    tensor, version = packed
    _check(tensor, version)
    return tensor


def _check(tensor, version):
    # torch looks itself only where there are no hooks.
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(tensor.shape)} is at version {tensor._version}, "
            f"expected version {version}"
        )
