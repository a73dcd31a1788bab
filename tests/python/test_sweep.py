"""Every attribute of Tensor and of storages, on a parameter whose bytes are not here.

Each gives what it gives for an ordinary tensor, then and after the bytes are gone again, or raises
with the parameter's name. Batches run in forked children, so that a crash says where.
"""

import os
import pickle
import warnings

import pytest
import torch

import ullage

NAME = "first.weight"
# Addresses, counters and the like: other for every tensor.
IDENTITY = {
    "data_ptr", "_data_ptr", "_cdata", "__hash__", "__dict__", "_version", "__weakref__", "__class__",
    "__init_subclass__", "__subclasshook__", "__dir__", "__sizeof__", "__new__", "__init__",
    "__getattribute__", "__setattr__", "__delattr__", "_backward_hooks", "_base", "_weak_ref",
    "__reduce__", "grad", "_grad", "names", "backward", "__getstate__", "_make_wrapper_subclass",
    "_python_dispatch", "register_hook", "register_post_accumulate_grad_hook", "_use_count", "_shared_incref",
    "_post_accumulate_grad_hooks", "_is_view", "_new_shared", "_new_using_fd_cpu", "_fix_weakref", "_typed_storage",
    "resizable", "__reduce_ex__", "new", "new_empty", "new_empty_strided",
}  # fmt: skip
# End the process for ordinary storages, too, when the arguments are wrong.
RAW = {"__delitem__", "_set_cdata", "_set_from_file", "_write_file"}


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 6, bias=False)
        self.rest = torch.nn.ModuleList(torch.nn.Linear(6, 6, bias=False) for _ in range(4))


@pytest.fixture(scope="module")
def engine():
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 1}
    settings = {
        "train_batch_size": 1,
        "zero_optimization": {**zero, "offload_param": {"device": "cpu"}},
        "ullage": {"unit_size": 1},
    }
    engine, *_ = ullage.initialize(model=Layers(), config=settings)
    yield engine
    engine.destroy()


def evict(model):
    """The ring holds two units; these take it."""
    ullage.access.end_leases()
    for layer in model.rest:
        layer.weight.detach().sum()


def test_the_bytes_are_gone_before_each_attribute(engine):
    engine.module.first.weight.sum()
    evict(engine.module)
    with pytest.raises(RuntimeError, match=NAME):
        ullage.patches.originals[torch.Tensor, "numpy"](engine.module.first.weight.detach())


def arguments(other):
    return [
        (), (0,), (1,), (other,), (0, 1), (other, other), (torch.float64,), ((6, 6),), (0, other),
        (other.long().clamp(0, 5), ), (other > 0,), (0, torch.tensor([1])), (lambda x: x + 1,),
        (other, lambda x, y: x + y), (other > 0, 1.5), (0, torch.tensor([1]), 2.0), (other > 0, other),
        (0, torch.tensor([1]), other[:1]), ((6, 6), (6, 1)), ("cpu",), (0, 0, 1), (None,), (2,), ({},),
        (other, other, other), (6, 1), ((1, 0),), ([0, 1],), ("sum",), (0.5,), (torch.uint8,),
    ]  # fmt: skip


def storage_arguments(other):
    return [(), (0,), (0, 1), (other,), (torch.uint8,), ("cpu",), (1.0,), ({},)]


def call(subject, name, args):
    torch.manual_seed(3)
    value = getattr(subject, name)
    if callable(value):
        value = value(*args)
        if name == "__iter__" or hasattr(value, "__next__"):
            value = list(value)
    return value


def equal(a, b):
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.is_sparse or a.layout != torch.strided:
            return a.layout == b.layout and torch.equal(a.to_dense(), b.to_dense())
        if a.is_quantized:
            return torch.equal(a.int_repr(), b.int_repr())
        return a.numel() == 0 or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    if isinstance(a, (torch.UntypedStorage, torch.TypedStorage)):
        return equal(list(a), list(b))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(equal, a, b))
    if type(a).__name__ == "ndarray":
        return (a == b).all()
    if type(a).__name__ == "PyCapsule":
        return equal(torch.from_dlpack(a), torch.from_dlpack(b))
    if callable(a) or type(a).__repr__ is object.__repr__:
        return type(a) is type(b)
    return a == b or a != a


def check(model, kind, name, is_present):
    """What is wrong, or None."""
    weight, start = model.first.weight, model.start
    other = torch.rand(6, 6) + 0.5
    subject = {
        "tensor": lambda tensor: tensor,
        "storage": lambda tensor: tensor.untyped_storage(),
        "typed": lambda tensor: tensor._typed_storage(),
    }[kind]
    for args in arguments(other) if kind == "tensor" else storage_arguments(subject(other)):
        plain = torch.nn.Parameter(start.clone())
        try:
            expected = call(subject(plain), name, args)
            break
        except BaseException:
            plain = None
    evict(model)
    if is_present:
        weight.sum()
    try:
        got = call(subject(weight), name, () if plain is None else args)
        evict(model)
        if plain is None:
            return "works only here"
        if name not in IDENTITY and not equal(expected, got):
            return f"gives {str(got)[:60]} where {str(expected)[:60]} is right {args}"
        if not equal(plain.detach(), weight.detach()):
            return "leaves other values"
    except BaseException as error:
        if plain is not None and NAME not in str(error):
            return f"raises {type(error).__name__}: {error} {args}"
    finally:
        weight.data = model.kept
        weight.requires_grad_().copy_(start)
        evict(model)
    return None


def in_child(model, kind, names):
    """The complaints about each of the names, in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        warnings.simplefilter("ignore")
        os.close(read)
        with os.fdopen(write, "wb", buffering=0) as out, torch.no_grad():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for name in names:
                for is_present in (False, True):
                    out.write(pickle.dumps(("begins", name)))
                    wrong = check(model, kind, name, is_present)
                    if wrong:
                        out.write(pickle.dumps((wrong, name)))
            out.write(pickle.dumps(("done", None)))
        os._exit(0)
    os.close(write)
    complaints, last = [], None
    with os.fdopen(read, "rb") as lines:
        while True:
            try:
                wrong, name = pickle.load(lines)
            except EOFError:
                break
            if wrong == "done":
                last = None
            elif wrong == "begins":
                last = name
            else:
                complaints.append((name, wrong))
    os.waitpid(child, 0)
    if last is not None:
        complaints.append((last, "ends the process"))
    return complaints


KINDS = {"tensor": torch.Tensor, "storage": torch.UntypedStorage, "typed": torch.TypedStorage}


@pytest.mark.parametrize("kind", KINDS)
def test_every_attribute_gives_the_true_values_or_names_the_parameter(engine, kind):
    model = engine.module
    model.kept = model.first.weight.detach()
    model.start = model.kept.clone()
    names = sorted(set(dir(KINDS[kind])) - RAW)
    assert len(names) > 60
    complaints = []
    while names:
        found = in_child(model, kind, names)
        complaints += found
        crashed = [name for name, wrong in found if wrong == "ends the process"]
        names = names[names.index(crashed[0]) + 1 :] if crashed else []
    assert complaints == []
