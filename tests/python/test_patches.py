"""Python code that takes a parameter's bytes: copies, files, pointers, other processes, graphs."""

import copy
import ctypes
import hashlib
import inspect
import io
import multiprocessing
import pickle

import numpy
import pytest
import safetensors.torch
import torch
from torch import nn

import ullage
from ullage import patches

# Of the source of what stood there in torch 2.11.0; None for what is written in C. Where a line
# differs, read what has changed and see whether the patch still does what it says.
PINS = {
    "BackwardCFunction.apply": "b51befb9",
    "CompiledFxGraph.__call__": "b4334922",
    "Function.apply": "0fb1db0b",
    "Module._apply": "e50d01ca",
    "ScriptModule.save": "ab1a9e61",
    "Tensor.__deepcopy__": "81910c7e",
    "Tensor.__dlpack__": "c67cfc5a",
    "Tensor.__dlpack_c_exchange_api__": None,
    "Tensor.__dlpack_device__": "f8e6198f",
    "Tensor.__reduce_ex__": "74dfa3ad",
    "Tensor._lazy_clone": None,
    "Tensor.apply_": None,
    "Tensor.data_ptr": None,
    "Tensor.map2_": None,
    "Tensor.map_": None,
    "Tensor.new": None,
    "Tensor.new_tensor": None,
    "Tensor.numpy": None,
    "Tensor.set_": None,
    "Tensor.tolist": None,
    "TypedStorage._getitem": "ee0108b0",
    "TypedStorage._setitem": "2d49abb6",
    "TypedStorage._to": "cb9a035c",
    "UntypedStorage.__getitem__": "b95067fb",
    "UntypedStorage.__repr__": "8221a7e8",
    "UntypedStorage.__setitem__": None,
    "UntypedStorage._byteswap": None,
    "UntypedStorage._set_cdata": None,
    "UntypedStorage._set_from_file": None,
    "UntypedStorage._share_cuda_": None,
    "UntypedStorage._share_fd_cpu_": "cee3b766",
    "UntypedStorage._share_filename_cpu_": "cb405f85",
    "UntypedStorage._to": "a27aa277",
    "UntypedStorage._write_file": None,
    "UntypedStorage.clone": "b42f0ef4",
    "UntypedStorage.copy_": None,
    "UntypedStorage.cuda": "24874ec2",
    "UntypedStorage.data_ptr": None,
    "UntypedStorage.fill_": None,
    "UntypedStorage.is_pinned": "87fc152d",
    "UntypedStorage.is_shared": None,
    "UntypedStorage.new": None,
    "UntypedStorage.pin_memory": "9483b561",
    "UntypedStorage.resize_": None,
    "UntypedStorage.share_memory_": "f4f99662",
    "UntypedStorage.to": "7008e0d1",
    "UntypedStorage.tolist": "98c0a5f3",
    "UntypedStorage.type": "ae88a6fb",
    "torch.save": "c473f903",
    "torch.to_dlpack": None,
    "torch._ops._compute_keyset": "b916fc94",
    "torch.jit.save": "a426aade",
    "torch.jit.script": "02ac1bad",
    "torch.jit.trace": "3c436475",
    "torch.jit.trace_module": "15c98937",
    "torch.multiprocessing.reductions.reduce_tensor": "a38acd44",
    "torch.serialization.save": "c473f903",
}


def settings(**more):
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 1}
    return {
        "train_batch_size": 1,
        "zero_optimization": {**zero, "offload_param": {"device": "cpu"}},
        "ullage": {"unit_size": 1},
        **more,
    }


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6, bias=False)
        self.rest = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(4))
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.first.weight

    def forward(self, x):
        for layer in [self.first, *self.rest, self.tied]:
            x = torch.tanh(layer(x))
        return x.sum()


@pytest.fixture
def model():
    engine, *_ = ullage.initialize(model=Layers(), config=settings())
    engine.module.engine = [engine]
    yield engine.module
    engine.destroy()


def evict(model):
    for layer in model.rest:
        layer.weight.detach().sum()


def original_values():
    return {name: value.clone() for name, value in Layers().state_dict().items()}


def source_hash(original):
    try:
        source = inspect.getsource(inspect.unwrap(original))
    except (TypeError, OSError):
        return None
    return hashlib.sha256(source.encode()).hexdigest()[:8]


def test_each_patch_stands_in_the_place_of_what_it_was_written_for():
    import torch._inductor.output_code  # noqa: F401

    found = {f"{o.__name__}.{n}": source_hash(f) for (o, n), f in patches.originals.items()}
    assert found == PINS


def test_importing_ullage_imports_no_compiler():
    import subprocess
    import sys

    script = "import sys, ullage; print([m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor'))])"  # fmt: skip
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


def check_state(state):
    for name, value in original_values().items():
        assert torch.equal(state[name], value), name


def test_copies_and_files_hold_the_true_values_and_keep_ties(model, tmp_path):
    evict(model)
    check_state(copy.deepcopy(model.state_dict()))
    evict(model)
    check_state(pickle.loads(pickle.dumps(model.state_dict())))
    evict(model)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    check_state(loaded)
    assert loaded["first.weight"].data_ptr() == loaded["tied.weight"].data_ptr()
    evict(model)
    state = model.state_dict()
    del state["tied.weight"]
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    check_state({**saved, "tied.weight": saved["first.weight"]})
    evict(model)
    safetensors.torch.save_model(model, str(tmp_path / "model2.safetensors"))
    other = Layers()
    nn.init.zeros_(other.first.weight)
    safetensors.torch.load_model(other, str(tmp_path / "model2.safetensors"))
    check_state(other.state_dict())


def test_a_deep_copy_of_the_model_is_an_ordinary_one(model):
    engine, model.engine = model.engine, None
    other = copy.deepcopy(model)
    assert other.tied.weight is other.first.weight and not ullage._C.is_managed(other.first.weight)
    other.first.weight.data.zero_()
    check_state(model.state_dict())
    shallow = copy.copy(model.first.weight.detach())
    shallow.fill_(2.0)
    evict(model)
    assert model.first.weight.unique().tolist() == [2.0]
    del engine


def test_what_reads_memory_gets_a_copy(model):
    expected = original_values()["first.weight"]
    weight = model.first.weight.detach()
    evict(model)
    array = weight.numpy()
    from_dlpack, capsule = torch.from_dlpack(weight), torch.utils.dlpack.to_dlpack(weight)
    seen = [array, numpy.asarray(weight), from_dlpack.numpy(), torch.from_dlpack(capsule).numpy()]
    texts = [repr(weight), str(weight.tolist()), str(weight[0, 0].item())]
    evict(model)
    assert all((one == expected.numpy()).all() for one in seen)
    assert texts == [repr(expected), str(expected.tolist()), str(expected[0, 0].item())]
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1.0


def raw(address, numel=36):
    return torch.frombuffer((ctypes.c_float * numel).from_address(address), dtype=torch.float32)


def test_a_pointer_holds_until_the_boundary_and_what_is_written_is_kept(model):
    (engine,) = model.engine
    weight = model.first.weight
    evict(model)
    pointer = weight.data_ptr()
    assert weight.untyped_storage().data_ptr() == pointer
    evict(model)
    memory = raw(pointer)
    assert torch.equal(memory, original_values()["first.weight"].view(-1))
    memory.fill_(0.5)
    engine(torch.ones(1, 6))
    evict(model)
    with pytest.raises(RuntimeError, match="'first.weight' are not here"):
        patches.originals[torch.Tensor, "data_ptr"](weight)
    assert weight.unique().tolist() == [0.5]


@pytest.mark.parametrize("numel", [1, 3, 8, 36, 1003])
def test_a_lease_notices_any_byte_that_is_written(numel):
    weight = torch.arange(numel, dtype=torch.bfloat16)
    before = ullage.access._digest(weight)
    data = weight.view(torch.uint8)
    for index in range(data.numel()):
        data[index] += 1
        assert not torch.equal(before, ullage.access._digest(weight))
        data[index] -= 1
    assert torch.equal(before, ullage.access._digest(weight))


class Kernel(torch.autograd.Function):
    """Works on pointers, as kernels of other compilers do."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ raw(weight.data_ptr()).view(6, 6).t().clone()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ raw(weight.data_ptr()).view(6, 6).clone(), gradient.t() @ x


def test_a_lease_in_a_function_ends_with_it(model):
    (engine,) = model.engine
    plain, x = Layers(), torch.ones(1, 6, requires_grad=True)
    (x @ plain.first.weight.t()).sum().backward()
    own = torch.ones(1, 6, requires_grad=True)
    evict(model)
    loss = Kernel.apply(own, model.first.weight).sum()
    evict(model)
    with pytest.raises(RuntimeError, match="'first.weight' are not here"):
        patches.originals[torch.Tensor, "data_ptr"](model.first.weight)
    engine.backward(loss)
    assert torch.equal(own.grad, x.grad)
    assert torch.equal(ullage.full_gradient(model.first.weight), plain.first.weight.grad)
    engine.step()


@pytest.mark.parametrize(
    "access, message",
    [
        (lambda w: w.share_memory_(), "sharing the memory"),
        (lambda w: w.untyped_storage().resize_(0), "resizing or replacing the storage"),
        (lambda w: w.resize_(100), "would resize parameter"),
        (lambda w: torch.empty(0).set_(w.untyped_storage()), "set_ on the storage"),
        (lambda w: torch.empty(0).set_(w), "set_ on the storage"),
    ],
)
def test_what_would_lose_the_engine_is_refused_by_name(model, access, message):
    with pytest.raises((ullage.UnsupportedError, RuntimeError), match=message) as raised:
        access(model.first.weight.detach())
    assert "'first.weight'" in str(raised.value) and "\nhint: " in str(raised.value)
    check_state(model.state_dict())


def test_scripts_of_managed_modules_are_refused_by_name(model):
    x = torch.ones(1, 6)
    for refused in (
        lambda: torch.jit.trace(model.first, x),
        lambda: torch.jit.script(model.first),
        lambda: torch.jit.save(torch.jit.trace(lambda y: y, x), io.BytesIO()) or torch.jit.save(model, ""),
    ):
        with pytest.raises(ullage.UnsupportedError, match="managed parameter '"):
            refused()


def receive(connection):
    value = connection.recv()
    connection.send(value.sum().item())


def test_other_processes_get_the_values(model):
    evict(model)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=receive, args=(theirs,))
    process.start()
    ours.send(model.first.weight)
    assert ours.recv() == original_values()["first.weight"].sum().item()
    process.join()


def test_compiled_graphs_find_their_inputs_and_what_they_write_is_kept(model):
    import torch._inductor.debug
    from torch._inductor.output_code import CompiledFxGraph

    read = patches.originals[torch.Tensor, "data_ptr"]

    def kernel(inputs):
        written, other = inputs
        raw(read(written)).fill_(3.0)
        total = raw(read(other)).sum().item()
        inputs.clear()
        return total

    graph = CompiledFxGraph.__new__(CompiledFxGraph)
    graph.current_callable, graph.mutated_input_idxs = kernel, {0}
    evict(model)
    total = graph([model.first.weight.detach(), model.rest[0].weight.detach()])
    evict(model)
    assert total == pytest.approx(original_values()["rest.0.weight"].sum().item())
    assert model.first.weight.unique().tolist() == [3.0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_has_the_same_gradients(model, backend):
    (engine,) = model.engine
    plain, x = Layers(), torch.ones(1, 6)
    plain(x).backward()
    compiled = torch.compile(model, backend=backend)
    engine.backward(engine._core.forward(lambda: compiled(x)))
    for name, parameter in plain.named_parameters():
        assert torch.equal(ullage.full_gradient(model.get_parameter(name)), parameter.grad), name


def test_patched_functions_still_compile_without_a_break():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def function(x):
        return Double.apply(x) + x.new_tensor([1.0])

    x = torch.ones(3, requires_grad=True)
    result = torch.compile(function, backend="eager", fullgraph=True)(x)
    result.sum().backward()
    assert result.tolist() == [3.0] * 3 and x.grad.tolist() == [2.0] * 3


def test_higher_order_operators_run_on_managed_weights(model):
    def double(w):
        return w * 2

    def half(w):
        return w / 2

    weight = model.first.weight.detach()
    evict(model)
    result = torch.cond(torch.tensor(True), double, half, (weight,))
    assert torch.equal(result, original_values()["first.weight"] * 2)
