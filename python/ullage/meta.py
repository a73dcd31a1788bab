"""Meta kernels for predictions: those of torch in C++, which allocate what kernels of devices do.

torch's Python side registers its own over nearly all of them: decompositions, whose parts allocate
more. While a prediction runs they are taken out where torch has a kernel in C++, and put back after it.
This reaches into names of torch 2.11; tests/python/test_prediction.py would tell of a change.
"""

import contextlib

import torch
from torch import _meta_registrations as registrations
from torch._decomp import global_decomposition_table

_LIBRARY = "_meta_lib_dont_use_me_use_register_meta"
# As torch._meta_registrations leaves out, because they would not work.
_NEVER = {
    "aten::empty_strided",
    "aten::clone",
    "aten::_to_copy",
    "aten::copy_",
    "aten::constant_pad_nd",
    "aten::rot90",
    "aten::as_strided_scatter",
}
_OTHERS = ("mkldnn::", "mkl::", "onednn::", "quantized::")  # libraries that stay as they are


def _kernels():
    """Every operator that torch's Python side gives a Meta kernel, with that kernel."""
    chosen = {}
    for kind in ("meta", "post_autograd", "pre_autograd"):
        for operator, kernel in global_decomposition_table[kind].items():
            chosen.setdefault(operator, kernel)
    for operator, kernel in chosen.items():
        if isinstance(operator, torch._ops.HigherOrderOperator) or operator.is_view:
            continue
        name = operator.name()
        if name in _NEVER or any(part in name for part in _OTHERS):
            continue
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            yield operator, kernel


def _register(wanted):
    library = torch.library.Library("aten", "IMPL", "Meta")
    for operator, kernel in _kernels():
        if wanted(operator.name()):
            library.impl(operator, kernel)
    return library


@contextlib.contextmanager
def counted_kernels():
    """Nothing else may use Meta meanwhile: no torch.compile, no fake tensors."""
    getattr(registrations, _LIBRARY)._destroy()
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = None
    try:
        missing = _register(lambda name: not known(name, "Meta"))
        yield
    finally:
        if missing is not None:
            missing._destroy()
        setattr(registrations, _LIBRARY, _register(lambda name: True))
