"""Bytes of managed tensors for Python code that reads or writes memory without an operator.

Operators come by the bytes by themselves. Who takes a raw pointer gets a lease: the bytes stay where
the pointer says until the enclosing autograd.Function, or else the next forward, backward or step of
an engine, and what was written through it is kept.
"""

import atexit
import contextlib
import threading
import weakref

import torch

from ullage import _C

_entries = {}  # address of the StorageImpl -> _Entry


class _Entry:
    """A managed storage. `alias` is a view of all of it that keeps the address from being reused."""

    __slots__ = ("_engine", "alias", "name")

    def __init__(self, engine, name, parameter):
        self._engine = weakref.ref(engine)
        self.name = name
        self.alias = parameter.detach()

    def engine(self):
        engine = self._engine()
        return engine if engine is not None and not engine.has_ended else None


def register(engine):
    """From now on the bytes of the engine's parameters are reached through it."""
    addresses = []
    for name, parameter in engine._parameters_by_name.items():
        if not _C.is_managed(parameter):
            continue
        address = parameter.untyped_storage()._cdata
        addresses.append(address)
        _entries[address] = _Entry(engine, name, parameter)
    weakref.finalize(engine, _forget, addresses)


def _forget(addresses):
    for address in addresses:
        _entries.pop(address, None)


def any_managed():
    return bool(_entries)


def entry_of(tensor):
    """The entry of a managed tensor, or of a view of one; None for all others."""
    if not _entries or not _C.is_managed(tensor):
        return None
    return _entries.get(tensor.untyped_storage()._cdata)


def entry_of_storage(storage):
    """The same for an UntypedStorage."""
    entry = _entries.get(storage._cdata) if _entries else None
    return entry if entry is not None and entry.engine() is not None else None


def managed_in(module):
    """The names that managed parameters of a module have in it."""
    if not _entries:
        return []
    return [name for name, parameter in module.named_parameters() if _C.is_managed(parameter)]


@contextlib.contextmanager
def held(entries):
    """The bytes of some entries are present inside. `entries`: a list of (entry, writes). What is
    written is kept when the block ends without an error; every rank must then write."""
    holds = []
    try:
        for entry, writes in entries:
            holds.append(_C.Hold(entry.alias, writes))
        yield
        while holds:
            holds.pop().end()
    finally:
        while holds:
            holds.pop()


class _Lease:
    def __init__(self, entry):
        self._engine = entry.engine()  # lives as long as the lease does
        self._entry = entry
        self._hold = _C.Hold(entry.alias, True)
        # Keeping a write is collective, and perhaps this rank alone has looked.
        self._before = _digest(entry.alias) if self._engine.world_size > 1 else None

    def end(self):
        hold, self._hold = self._hold, None
        if self._before is not None and torch.equal(self._before, _digest(self._entry.alias)):
            del hold
        else:
            hold.end()
        self._engine = None


class _Scopes(threading.local):
    def __init__(self):
        self.stack = []


_scopes = _Scopes()
_until_boundary = {}  # address -> _Lease
_lock = threading.Lock()


def lease(entry):
    """The bytes stay at their address until the scope or, outside of any, the boundary ends."""
    address = entry.alias.untyped_storage()._cdata
    if any(address in scope for scope in _scopes.stack):
        return
    if _scopes.stack:
        _scopes.stack[-1][address] = _Lease(entry)
        return
    with _lock:
        if address not in _until_boundary:
            _until_boundary[address] = _Lease(entry)


@contextlib.contextmanager
def lease_scope():
    """Leases taken inside, on this thread, end with it."""
    leases = {}
    _scopes.stack.append(leases)
    try:
        yield
    finally:
        _scopes.stack.pop()
        _end(leases)


def end_leases():
    """The boundary: what was leased outside of any scope is given back, and writes are kept."""
    if _until_boundary:
        with _lock:
            _end(_until_boundary)


def _end(leases):
    while leases:
        leases.popitem()[1].end()


atexit.register(end_leases)

_CHUNK = 1 << 20


def _digest(alias):
    """64 bits that differ when any one byte does, and all but surely when several do."""
    data = alias.view(-1).view(torch.uint8)
    words = data[: data.numel() // 8 * 8].view(torch.int64)
    odd = torch.arange(1, 2 * min(_CHUNK, max(words.numel(), 8)), 2, device=alias.device)
    total = torch.zeros((), dtype=torch.int64, device=alias.device)
    for part in [*words.split(_CHUNK), data[words.numel() * 8 :]]:
        total = total * 6364136223846793005 + (part * odd[: part.numel()]).sum()
    return total
