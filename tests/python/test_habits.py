"""What people's training loops do, and are told to remove."""

import copy
import gc
import logging

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import ullage

WIDTH = 16


class Net(nn.Module):
    """`habit(net, x)` is called before each forward."""

    def __init__(self, habit=None, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        if tied:
            self.head.weight = self.layers[0].weight
        self.habit = habit

    def forward(self, x):
        if self.habit is not None:
            x = self.habit(self, x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x).square().mean()


def settings(stage=3, **more):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    if stage == 3:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": zero,
        "ullage": {"unit_size": 1},
        **more,
    }


def inputs(count=3):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, WIDTH, generator=generator) for _ in range(count)]


def start(model, stage=3, **more):
    engine, *_ = ullage.initialize(model=model, config=settings(stage, **more), seed=3)
    return engine


def train(engine, data):
    for x in data:
        engine.backward(engine(x))
        engine.step()
    return engine.parameters_sha256()


def plain_gradients(model, *losses):
    plain = copy.deepcopy(model)
    for loss in losses:
        loss(plain).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in plain.named_parameters()
    }


def assert_gradients(model, expected):
    for name, parameter in model.named_parameters():
        assert torch.equal(ullage.full_gradient(parameter), expected[name]), name


def arithmetic(net, x):
    return x + net.layers[1].weight[0] * 0.5 - net.layers[2].weight.data.mean()


kept = []


def keeps(net, x):
    kept.append(net.layers[0].weight)
    kept.append(net.layers[1].weight.t())
    return x * kept[-1].norm() + kept[0].sum()


def norms(net, x):
    return x * torch.stack([torch.norm(p) for p in net.parameters()]).norm()


def values(net, x):
    weight = net.layers[0].weight
    array = torch.from_numpy(weight.detach().numpy().copy()).mean()
    return x * array + weight.tolist()[0][0] + weight[0, 0].item()


def clones(net, x):
    other = copy.deepcopy(net.layers[0])
    return other(x).detach()


@pytest.mark.parametrize("habit", [arithmetic, keeps, norms, values, clones])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_forward_may_use_weights_in_any_way(habit, stage):
    kept.clear()
    model, x = Net(habit), inputs(1)[0]
    expected = plain_gradients(model, lambda plain: plain(x))
    kept.clear()
    engine = start(model, stage)
    engine.backward(engine(x))
    assert_gradients(model, expected)
    engine.step()


def test_moves_and_casts_after_initialize_change_nothing_and_are_said_once(caplog):
    def moves(net, x):
        net.to("cpu", torch.float64)
        net.layers[1].half().float()
        net.layers[0].weight.data = net.layers[0].weight.data.to("cpu")
        return x

    caplog.set_level(logging.WARNING, "ullage")
    expected = train(start(Net()), inputs())
    engine = start(Net(moves))
    storages = [p.untyped_storage()._cdata for p in engine.module.parameters()]
    assert train(engine, inputs()) == expected
    assert [p.untyped_storage()._cdata for p in engine.module.parameters()] == storages
    assert all(p.dtype == torch.float32 for p in engine.module.parameters())
    lines = [r.getMessage() for r in caplog.records if "moves or casts" in r.getMessage()]
    assert len(lines) == 2 and all("test_habits.py" in line for line in lines)
    assert "net.to(" in lines[0] and "take the line out" in lines[0]


def test_a_model_moved_before_initialize_leaves_no_second_copy():
    model = Net().to("cpu", torch.float64).float()
    storages = [StorageWeakRef(p.untyped_storage()) for p in model.parameters()]
    assert not any(storage.expired() for storage in storages)
    engine = start(model)
    gc.collect()
    assert all(storage.expired() for storage in storages)
    engine.destroy()


@pytest.mark.parametrize("stage", [0, 3])
def test_up_to_three_backwards_add_up(stage):
    model = Net()
    data = inputs(3)
    expected = plain_gradients(model, *(lambda plain, x=x: plain(x) for x in data))
    engine = start(model, stage)
    for x in data:
        engine.backward(engine(x))
    assert_gradients(model, expected)
    engine.step()
    assert torch.equal(ullage.full_optimizer_state(model.unused.weight, "exp_avg"), torch.zeros(WIDTH, WIDTH))  # fmt: skip


def test_tied_weights_have_one_gradient_and_one_state():
    model, x = Net(tied=True), inputs(1)[0]
    expected = plain_gradients(model, lambda plain: plain(x))
    engine = start(model)
    engine.backward(engine(x))
    assert_gradients(model, expected)
    engine.step()
    assert model.head.weight is model.layers[0].weight
    assert engine.parameters_sha256() == train(start(Net(tied=True), 0), [x])


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, WIDTH) * 0.1)
        self.up = nn.Parameter(torch.zeros(WIDTH, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


def test_lora_keeps_optimizer_state_of_what_is_trained_only():
    hashes = set()
    for stage in (0, 3):
        model = Net()
        for index, layer in enumerate(model.layers):
            model.layers[index] = LoRA(layer)
        model.unused, model.head = nn.Identity(), model.head.requires_grad_(False)
        before = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        engine = start(model, stage)
        hashes.add(train(engine, inputs()))
        assert engine._core.memory()["now"]["moments"] == trained * 2 * 4
        for name, value in before.items():
            assert torch.equal(model.get_parameter(name), value)
    assert len(hashes) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_autocast_around_the_forward_gives_the_values_of_autocast(precision):
    model, x = Net(), inputs(1)[0]
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    plain = copy.deepcopy(model)
    if precision == "bf16":
        plain.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = plain(x)
    loss.backward()
    engine = start(model, bf16={"enabled": precision == "bf16"})
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with Casts() as casts, torch.autocast("cpu", torch.bfloat16):
        own = engine(x)
        assert casts.live() == 0
    assert (len(casts.made) > 0) == (precision == "fp32")
    engine.backward(scaler.scale(own))
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            gradient = ullage.full_gradient(model.get_parameter(name))
            assert torch.equal(gradient, parameter.grad.float()), name
    engine.step()
    assert torch.equal(own, loss)


class Casts(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the copies of weights that casts make."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and result.shape == (WIDTH, WIDTH):
            self.made.append(StorageWeakRef(result.untyped_storage()))
        return result

    def live(self):
        return sum(not storage.expired() for storage in self.made)


def test_under_autocast_a_graph_from_before_a_write_is_an_error():
    engine = start(Net())
    with torch.autocast("cpu", torch.bfloat16):
        loss = engine(inputs(1)[0])
    with torch.no_grad():
        engine.module.layers[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.backward(loss)


def replace_data(net):
    net.layers[0].weight.data = torch.full((WIDTH, WIDTH), 0.1)


def replace_parameter(net):
    net.layers[0].weight = nn.Parameter(torch.full((WIDTH, WIDTH), 0.1))


def assign_state(net):
    state = {name: value.clone() for name, value in net.state_dict().items()}
    state["layers.0.weight"].fill_(0.1)
    net.load_state_dict(state, assign=True)


def swap(net):
    other = nn.Linear(WIDTH, WIDTH)
    other.weight.data.fill_(0.1)
    other.bias.data.copy_(net.layers[0].bias)
    net.layers[0] = other


@pytest.mark.parametrize("how", [replace_data, replace_parameter, assign_state, swap])
@pytest.mark.parametrize("stage", [0, 3])
def test_replaced_parameters_are_taken_over(how, stage):
    data = inputs()
    reference = start(Net(), stage)
    train(reference, data[:1])
    with torch.no_grad():
        reference.module.layers[0].weight.fill_(0.1)
    model = Net()
    engine = start(model, stage)
    train(engine, data[:1])
    how(model)
    assert train(engine, data[1:]) == train(reference, data[1:])
    assert engine._names[id(model.layers[0].weight)] == "layers.0.weight"


def resize(net):
    net.head = nn.Linear(WIDTH, WIDTH + 1, bias=False)


def add(net):
    net.adapter = nn.Linear(WIDTH, 2)


@pytest.mark.parametrize(
    "how, message",
    [
        (resize, r"'head.weight' was replaced by one of shape \[17, 16\], where \[16, 16\]"),
        (add, "'adapter.weight' of shape .* was added to the model after initialize"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_by_name(how, message):
    model = Net()
    engine = start(model)
    how(model)
    with pytest.raises(ullage.StateError, match=message):
        engine(inputs(1)[0])


def test_a_parameter_replaced_after_the_forward_is_refused_by_name():
    model = Net()
    engine = start(model)
    loss = engine(inputs(1)[0])
    replace_parameter(model)
    with pytest.raises(ullage.StateError, match="'layers.0.weight' was replaced between"):
        engine.backward(loss)
