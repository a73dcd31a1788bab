"""What of torch's Python side reads memory without an operator, made to ask the engine first.

Installed once, at `import ullage`. Where no managed tensor is concerned each patch calls what stood
there. tests/python/test_patches.py says which version of torch's code they were written against.
"""

import copy
import functools
import importlib.abc
import importlib.util
import sys
import threading

import torch

from ullage import _C, access, rebinding

# (owner, name) -> what stood there.
originals = {}
_INTERCEPTION_KEY = torch._C._parse_dispatch_key("DeferredInit")


def install():
    """Once."""
    if originals:
        return
    _patch_copies_of_tensors()
    _patch_pointers()
    _patch_storages()
    _patch_saving()
    _patch_sharing()
    _patch_jit()
    _patch_functions()
    _replace(torch.nn.Module, "_apply", rebinding.apply)
    _when_imported("torch._inductor.output_code", _patch_compiled_graphs)


def _replace(owner, name, make):
    """Puts make(original) in the original's place; both are called in the same way."""
    is_static = isinstance(owner.__dict__.get(name), (classmethod, staticmethod))
    original = getattr(owner, name)
    originals[owner, name] = original
    function = original.__func__ if is_static and hasattr(original, "__func__") else original
    patched = functools.wraps(function)(make(function))
    setattr(owner, name, classmethod(patched) if is_static else patched)


def _refuse(what, entry, remedy):
    raise _C.UnsupportedError(f"{what} of parameter '{entry.name}'\nhint: {remedy}")


# ---- tensors


def _patch_copies_of_tensors():
    tensor = torch.Tensor

    def reads_a_clone(original):
        def read(self, *args, **kwargs):
            if access.entry_of(self) is not None:
                self = _clone(self)
            return original(self, *args, **kwargs)

        return read

    def numpy(original):
        def read(self, *args, **kwargs):
            if access.entry_of(self) is None:
                return original(self, *args, **kwargs)
            array = original(_clone(self), *args, **kwargs)
            # What is written to a copy would be lost without a word.
            array.flags.writeable = False
            return array

        return read

    def device(original):
        def read(self):
            is_managed = access.entry_of(self) is not None
            return original(torch.empty(0, device=self.device) if is_managed else self)

        return read

    def legacy_constructor(original):
        # They look at the highest dispatch key of the tensor.
        def construct(self, *args, **kwargs):
            if _C.is_intercepted(self):
                self = torch.empty(0, dtype=self.dtype, device=self.device)
            return original(self, *args, **kwargs)

        return construct

    _replace(tensor, "numpy", numpy)
    for name in ("tolist", "__dlpack__", "_lazy_clone"):
        _replace(tensor, name, reads_a_clone)
    _replace(tensor, "__dlpack_device__", device)
    _replace(torch, "to_dlpack", reads_a_clone)
    torch.utils.dlpack.to_dlpack = torch.to_dlpack
    # Hands out pointers without passing by here; consumers then use __dlpack__.
    originals[tensor, "__dlpack_c_exchange_api__"] = tensor.__dlpack_c_exchange_api__
    del tensor.__dlpack_c_exchange_api__
    for name in ("new", "new_tensor"):
        _replace(tensor, name, legacy_constructor)

    def deepcopy(original):
        def duplicate(self, memo):
            if type(self) is not tensor or not self.is_leaf or access.entry_of(self) is None:
                return original(self, memo)
            if id(self) not in memo:
                memo[id(self)] = _clone_by_storage(self, memo)
            return memo[id(self)]

        return duplicate

    def reduce_ex(original):
        def reduce(self, protocol):
            if type(self) is tensor and access.entry_of(self) is not None:
                clones = {} if _saving.clones is None else _saving.clones
                self = _clone_by_storage(self, clones)
            return original(self, protocol)

        return reduce

    _replace(tensor, "__deepcopy__", deepcopy)
    _replace(tensor, "__reduce_ex__", reduce_ex)

    def shallow(self):
        if type(self) is tensor and access.entry_of(self) is not None:
            return self.detach().requires_grad_(self.requires_grad)
        return copy._reconstruct(self, None, *self.__reduce_ex__(4))

    # A pickled tensor is a copy, a copied one is not.
    tensor.__copy__ = shallow


def _clone(tensor):
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _clone_by_storage(tensor, memo):
    """A copy of a tensor over the copy of its storage, of which `memo` holds one."""
    address = ("ullage", tensor.untyped_storage()._cdata, tensor.dtype)
    if address not in memo:
        numel = tensor.untyped_storage().nbytes() // tensor.element_size()
        memo[address] = tensor.detach().as_strided((numel,), (1,), 0).clone()
    view = memo[address].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return view.requires_grad_(tensor.requires_grad)


class _Saving(threading.local):
    clones = None


_saving = _Saving()


def _patch_saving():
    def save(original):
        def save(*args, **kwargs):
            if _saving.clones is not None:
                return original(*args, **kwargs)
            _saving.clones = {}
            try:
                with access.lease_scope():
                    return original(*args, **kwargs)
            finally:
                _saving.clones = None

        return save

    _replace(torch.serialization, "save", save)
    originals[torch, "save"] = torch.save
    torch.save = torch.serialization.save


# ---- pointers


def _patch_pointers():
    def data_ptr(original):
        def pointer(self):
            entry = access.entry_of(self)
            if entry is not None:
                access.lease(entry)
            return original(self)

        return pointer

    def set_(original):
        def set_(self, source=None, *args, **kwargs):
            entry = None
            if isinstance(source, torch.Tensor):
                entry = access.entry_of(source)
            elif isinstance(source, torch.UntypedStorage):
                entry = access.entry_of_storage(source)
            elif isinstance(source, torch.TypedStorage):
                entry = access.entry_of_storage(source._untyped_storage)
            # Operators on a tensor without the key would not pass by the engine, and writes be lost.
            if entry is not None and not _C.is_intercepted(self) and not _inside.depth:
                _refuse("set_ on the storage", entry, "use a view: parameter.view(...), .detach()")
            return original(self, *(() if source is None else (source,)), *args, **kwargs)

        return set_

    def loop(original):
        def run(self, *args, **kwargs):
            entries = [(entry, writes) for entry, writes in _entries_of(self, args) if entry]
            if not entries:
                return original(self, *args, **kwargs)
            with access.held(entries):
                return original(self, *args, **kwargs)

        return run

    _replace(torch.Tensor, "data_ptr", data_ptr)
    _replace(torch.Tensor, "set_", set_)
    for name in ("apply_", "map_", "map2_"):
        _replace(torch.Tensor, name, loop)


def _entries_of(written, read):
    yield access.entry_of(written), True
    for tensor in read:
        if isinstance(tensor, torch.Tensor):
            yield access.entry_of(tensor), False


# ---- storages


class _Inside(threading.local):
    """How many methods of storages are running, which hold the bytes and may use set_."""

    depth = 0


_inside = _Inside()


def _patch_storages():
    storage = torch.UntypedStorage

    def holds(writes):
        def make(original):
            def run(self, *args, **kwargs):
                entries = []
                for index, one in enumerate((self, *args)):
                    if isinstance(one, torch.TypedStorage):
                        one = one._untyped_storage
                    if isinstance(one, storage) and (entry := access.entry_of_storage(one)):
                        entries.append((entry, writes and index == 0))
                if not entries:
                    return original(self, *args, **kwargs)
                _inside.depth += 1
                try:
                    with access.held(entries):
                        return original(self, *args, **kwargs)
                finally:
                    _inside.depth -= 1

            return run

        return make

    def leases(original):
        def pointer(self):
            entry = access.entry_of_storage(self)
            if entry is not None:
                access.lease(entry)
            return original(self)

        return pointer

    def says_no(original):
        def answer(self, *args, **kwargs):
            return False if access.entry_of_storage(self) else original(self, *args, **kwargs)

        return answer

    def refuses(what, remedy):
        def make(original):
            def run(self, *args, **kwargs):
                if entry := access.entry_of_storage(self):
                    _refuse(what, entry, remedy)
                return original(self, *args, **kwargs)

            return run

        return make

    def empty(original):
        # The storages of an engine have no allocator that it could use.
        def new(self):
            return storage(device=self.device) if access.entry_of_storage(self) else original(self)

        return new

    _replace(storage, "new", empty)
    reads = ["__getitem__", "_to", "_write_file", "clone", "pin_memory", "to", "tolist"]
    for name in [*reads, "__repr__", "type", "cuda"]:
        _replace(storage, name, holds(writes=False))
    for name in ("__setitem__", "_byteswap", "_set_from_file", "copy_", "fill_"):
        _replace(storage, name, holds(writes=True))
    for name, writes in (("_getitem", False), ("_setitem", True), ("_to", False)):
        _replace(torch.TypedStorage, name, holds(writes))
    _replace(storage, "data_ptr", leases)
    for name in ("is_shared", "is_pinned"):
        _replace(storage, name, says_no)
    keep = "the engine owns it; clone() the parameter and work with the clone"
    for name in ("resize_", "_set_cdata"):
        _replace(storage, name, refuses("resizing or replacing the storage", keep))
    share = "other processes get a copy: send parameter.detach().clone()"
    for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_"):
        _replace(storage, name, refuses("sharing the memory", share))


# ---- other processes


def _patch_sharing():
    from torch.multiprocessing import reductions

    def reduce_tensor(original):
        def reduce(tensor):
            if access.entry_of(tensor) is not None and tensor.is_leaf:
                clone = tensor.detach().clone()
                if isinstance(tensor, torch.nn.Parameter):
                    tensor = torch.nn.Parameter(clone, tensor.requires_grad)
                else:
                    tensor = clone.requires_grad_(tensor.requires_grad)
            return original(tensor)

        return reduce

    _replace(reductions, "reduce_tensor", reduce_tensor)
    reductions.init_reductions()


# ---- graphs


def _patch_jit():
    def refuses(what):
        def make(original):
            def run(first, *args, **kwargs):
                if isinstance(first, torch.nn.Module) and (names := access.managed_in(first)):
                    raise _C.UnsupportedError(
                        f"{what} of a module with the managed parameter '{names[0]}'\nhint: do it "
                        "before initialize, or with copy.deepcopy(module), which is an ordinary one"
                    )
                return original(first, *args, **kwargs)

            return run

        return make

    for name in ("trace", "trace_module", "script", "save"):
        _replace(torch.jit, name, refuses(f"torch.jit.{name}"))
    _replace(torch.jit.ScriptModule, "save", refuses("torch.jit.save"))


def _patch_functions():
    function = torch.autograd.function

    def scoped(original):
        def apply(self, *args, **kwargs):
            with access.lease_scope():
                return original(self, *args, **kwargs)

        return apply

    _replace(function.Function, "apply", scoped)
    _replace(function.BackwardCFunction, "apply", scoped)

    def without_the_key(original):
        # Higher-order operators know no fallback of ours; their inner operators come by it.
        def compute(args, kwargs, non_fallthrough_keys):
            return original(args, kwargs, non_fallthrough_keys.remove(_INTERCEPTION_KEY))

        return compute

    _replace(torch._ops, "_compute_keyset", without_the_key)


def _patch_compiled_graphs(module):
    def call(original):
        def run(self, inputs):
            written = self.mutated_input_idxs
            entries = []
            for index, tensor in enumerate(inputs):
                if isinstance(tensor, torch.Tensor) and (entry := access.entry_of(tensor)):
                    entries.append((entry, index in written))
            if not entries:
                return original(self, inputs)
            with access.lease_scope(), access.held(entries):
                return original(self, inputs)

        return run

    _replace(module.CompiledFxGraph, "__call__", call)


def _when_imported(name, action):
    """Runs action(module) now, or when the module is first imported."""
    if name in sys.modules:
        action(sys.modules[name])
        return

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, wanted, path, target=None):
            if wanted != name:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                action(module)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
