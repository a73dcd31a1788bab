"""The one changed line: initialize, and the methods that a loop calls."""

import copy

import pytest
import torch

import ullage
from models import STAGES, batches, bert, config, records, train


def test_all_stages_train_to_the_same_bits():
    results = set()
    for stage in STAGES:
        engine, *_ = ullage.initialize(model=bert(), config=config(stage, accumulation=2), seed=7)
        losses = train(engine, batches(1, 4) * 6)
        assert losses[-1] < losses[0]
        assert engine.global_steps == 3 and engine.micro_steps == 6
        results.add((tuple(losses), engine.parameters_sha256()))
    assert len(results) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_are_those_of_the_unmanaged_model(stage):
    model, batch = bert(dropout=0), batches(1, 4)[0]
    plain = copy.deepcopy(model)
    plain(**batch).loss.backward()
    engine, *_ = ullage.initialize(model=model, config=config(stage))
    engine.backward(engine(**batch).loss)
    for name, parameter in plain.named_parameters():
        own = ullage.full_gradient(model.get_parameter(name))
        assert torch.equal(own, parameter.grad), name


@pytest.mark.parametrize("stage", STAGES)
def test_three_spellings_of_backward_give_one_result(stage):
    results = set()
    for spelling in ("engine", "plain", "scaled"):
        engine, *_ = ullage.initialize(model=bert(), config=config(stage, accumulation=2), seed=7)
        for batch in batches(4, 4):
            loss = engine(**batch).loss
            if spelling == "engine":
                assert torch.equal(engine.backward(loss), loss.detach() / 2)
            elif spelling == "plain":
                loss.backward()
            else:
                engine.scale(loss).backward()
            engine.step()
        results.add(engine.parameters_sha256())
    assert len(results) == 1


def test_a_plain_backward_of_fp16_says_that_the_loss_scale_is_missing():
    engine, *_ = ullage.initialize(model=bert(), config=config("streamed", fp16={"enabled": True}))
    batch = batches(1, 4)[0]
    with pytest.raises(RuntimeError, match="without the loss scale 65536"):
        engine(**batch).loss.backward()
    engine.zero_grad()
    engine.scale(engine(**batch).loss).backward()
    engine.step()
    assert engine.global_steps == 1


@pytest.mark.parametrize("stage", STAGES)
def test_grad_is_the_mean_gradient_and_what_is_written_to_it_counts(stage):
    norms = {}
    for clips_by_hand in (False, True):
        model = bert(dropout=0)
        settings = config(stage, accumulation=2, gradient_clipping=0 if clips_by_hand else 0.05)
        engine, *_ = ullage.initialize(model=model, config=settings)
        assert model.classifier.weight.grad is None
        for batch in batches(2, 4):
            engine.backward(engine(**batch).loss)
            if clips_by_hand and engine.is_gradient_accumulation_boundary():
                before = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            engine.step()
        assert model.classifier.weight.grad is None
        norms[clips_by_hand] = engine.get_global_grad_norm()
    assert norms[False] == pytest.approx(before.item(), rel=1e-5)
    assert norms[True] == pytest.approx(0.05, rel=1e-4)


def test_writes_to_gradients_survive_a_second_backward():
    model = bert(dropout=0)
    engine, *_ = ullage.initialize(model=model, config=config("streamed", accumulation=2))
    first, second = batches(2, 4)
    engine.backward(engine(**first).loss)
    model.classifier.bias.grad.zero_()
    engine.step()
    engine.backward(engine(**second).loss)
    both = ullage.full_gradient(model.classifier.bias)
    engine.zero_grad()
    engine.backward(engine(**second).loss)
    assert torch.equal(both, ullage.full_gradient(model.classifier.bias))


def test_zero_grad_drops_what_was_summed():
    engine, *_ = ullage.initialize(model=bert(), config=config("streamed"), seed=7)
    first, second = batches(2, 4)
    engine.backward(engine(**first).loss)
    engine.optimizer.zero_grad()
    assert engine.module.classifier.weight.grad is None
    train(engine, [second])
    other, *_ = ullage.initialize(model=bert(), config=config("streamed"), seed=7)
    train(other, [second])
    assert engine.parameters_sha256() == other.parameters_sha256()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_users_optimizer_and_scheduler_hold(kind):
    model = bert(dropout=0)
    plain = copy.deepcopy(model)

    def groups(of):
        decay = [p for n, p in of.named_parameters() if "bias" not in n]
        rest = [p for n, p in of.named_parameters() if "bias" in n]
        return [
            {"params": decay, "weight_decay": 0.1},
            {"params": rest, "weight_decay": 0.0, "lr": 5e-3},
        ]

    def halve(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    reference = kind(groups(plain), lr=1e-2)
    reference_scheduler = halve(reference)
    settings = config("streamed", gradient_clipping=0)
    del settings["optimizer"]
    own = kind(groups(model), lr=1e-2)
    engine, optimizer, _, scheduler = ullage.initialize(
        model=model, config=settings, optimizer=own, lr_scheduler=halve(own)
    )
    assert optimizer is own and isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
    for batch in batches(3, 4):
        plain(**batch).loss.backward()
        reference.step()
        reference_scheduler.step()
        reference.zero_grad()
        train(engine, [batch])
    assert engine.get_lr() == [group["lr"] for group in reference.param_groups]
    for name, parameter in plain.named_parameters():
        ours = ullage.full_parameter(model.get_parameter(name))
        torch.testing.assert_close(ours, parameter.detach(), rtol=2e-4, atol=2e-5)


def test_an_optimizer_that_cannot_run_on_slices_is_refused_by_name():
    model = bert()
    settings = config(3)
    del settings["optimizer"]
    with pytest.raises(ullage.UnsupportedError, match="LBFGS cannot run on sliced state"):
        ullage.initialize(model=model, config=settings, optimizer=torch.optim.LBFGS(model.parameters()))


def test_the_configs_scheduler_is_shown_and_a_users_rate_holds_for_a_step():
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear"}}
    engine, optimizer, _, shown = ullage.initialize(
        model=bert(), config=config(1, scheduler=scheduler)
    )
    rates = []
    for index, batch in enumerate(batches(5, 4)):
        rates.append(shown.get_last_lr()[0])
        if index == 3:
            optimizer.param_groups[0]["lr"] = 0.5
        train(engine, [batch])
        if index == 3:
            assert engine._last.lr == 0.5
    assert rates == pytest.approx([0, 0, 1e-3, 2e-3, 3e-3])


def test_the_loader_deals_out_micro_batches():
    engine, _, loader, _ = ullage.initialize(
        model=bert(), config=config(2, micro=4), training_data=records(10)
    )
    sizes = [len(batch["labels"]) for batch in loader]
    assert sizes == [4, 4, 2] and len(loader) == 3
    first = torch.cat([b["input_ids"] for b in loader])
    again = torch.cat([b["input_ids"] for b in loader])
    assert not torch.equal(first, again)
    assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, again.tolist()))


def test_a_batch_size_can_be_changed_between_steps():
    engine, *_ = ullage.initialize(model=bert(), config=config(3, micro=4))
    assert engine.get_batch_info() == (4, 4, 1)
    engine.set_train_batch_size(12)
    assert engine.get_batch_info() == (12, 4, 3)
    train(engine, batches(3, 4))
    assert engine.global_steps == 1 and engine.global_samples == 12
    with pytest.raises(ValueError, match="13 is no multiple"):
        engine.set_train_batch_size(13)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"zero_stage": 3}, "did you mean zero_optimization.stage"),
        ({"gradient_clipp1ng": 1}, "did you mean gradient_clipping"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, "auto"),
        ({"train_batch_size": 33, "gradient_accumulation_steps": 2}, "33"),
    ],
)
def test_a_wrong_config_is_a_value_error_that_names_the_key(wrong, message):
    with pytest.raises(ValueError, match=message):
        ullage.initialize(model=bert(), config={**config(), **wrong})


def test_what_is_passed_twice_or_not_at_all_is_refused():
    with pytest.raises(ullage.ConfigError, match="0 configs were given"):
        ullage.initialize(model=bert())
    model = bert()
    with pytest.raises(ullage.ConfigError, match="the config has a section 'optimizer'"):
        ullage.initialize(
            model=model, config=config(), optimizer=torch.optim.AdamW(model.parameters())
        )
    with pytest.raises(ullage.ConfigError, match="model is NoneType"):
        ullage.initialize(config=config())


def test_gathered_parameters_can_be_written_by_one_rank():
    model = bert()
    engine, *_ = ullage.initialize(model=model, config=config("streamed"))
    weight = model.classifier.weight
    with ullage.gathered(weight, modify_rank=0), torch.no_grad():
        weight.fill_(0.25)
    assert torch.equal(ullage.full_parameter(weight), torch.full_like(weight, 0.25))


def test_whole_state_is_read_and_set():
    model = bert()
    engine, *_ = ullage.initialize(model=model, config=config("streamed"))
    train(engine, batches(1, 4))
    weight = model.classifier.weight
    assert ullage.full_optimizer_state(weight, "exp_avg").abs().sum() > 0
    ullage.full_optimizer_state(weight, "exp_avg", torch.ones_like(weight))
    assert torch.equal(ullage.full_optimizer_state(weight, "exp_avg"), torch.ones(weight.shape))
    ullage.full_parameter(weight, torch.full_like(weight, 0.1))
    assert torch.equal(weight, torch.full_like(weight, 0.1))
    with pytest.raises(ullage.ConfigError, match="keeps no 'exp_max'"):
        ullage.full_optimizer_state(weight, "exp_max")
    with pytest.raises(ullage.ConfigError, match="belongs to no engine"):
        ullage.full_parameter(torch.ones(2))


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_that_gets_a_second_engine_trains_with_that_alone(stage, caplog):
    model = bert(dropout=0)
    first, *_ = ullage.initialize(model=model, config=config(stage))
    train(first, batches(1, 4))
    before = first.parameters_sha256()
    second, *_ = ullage.initialize(model=model, config=config("streamed"))
    assert "the model had an engine, which ends" in caplog.text
    assert second.parameters_sha256() == before
    train(second, batches(1, 4))
    assert second.parameters_sha256() != before
    with pytest.raises(ullage.StateError, match="has ended"):
        first.step()


def test_a_failed_step_can_be_mended_on_one_rank():
    model = bert(dropout=0)
    with pytest.raises(ullage.ConfigError):
        ullage.initialize(model=model, config={**config(3), "gradient_clipping": -1})
    engine, *_ = ullage.initialize(model=model, config=config("streamed"))
    batch = batches(1, 4)[0]

    def fail(_):
        raise RuntimeError("no memory left")

    hook = model.bert.pooler.dense.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="no memory left"):
        engine.backward(engine(**batch).loss)
    hook.remove()
    with pytest.raises(ullage.StateError, match="gradients since the last step are incomplete"):
        engine.backward(engine(**batch).loss)
    engine.zero_grad()
    train(engine, [batch])
    other, *_ = ullage.initialize(model=bert(dropout=0), config=config("streamed"))
    train(other, [batch])
    assert engine.parameters_sha256() == other.parameters_sha256()


def test_the_settings_that_hold_can_be_read():
    engine, *_ = ullage.initialize(model=bert(), config=config(2, gradient_clipping=0.5))
    assert engine.config["zero_optimization"]["stage"] == 2
    assert engine.config["gradient_clipping"] == 0.5
    assert engine.sources["gradient_clipping"] == "file"
    assert engine.sources["steps_per_print"] == "default"


def test_what_a_config_asks_for_is_said_or_done(caplog):
    settings = config(2, steps_per_print=2, activation_checkpointing={"cpu_checkpointing": False})
    engine, *_ = ullage.initialize(model=bert(), config={**settings, "memory_breakdown": True})
    assert "activation_checkpointing: no effect here" in caplog.text
    assert "memory_breakdown: no effect here" in caplog.text
    assert "wall_clock_breakdown" not in caplog.text
    train(engine, batches(4, 4))
    lines = [line for line in caplog.messages if line.startswith("step ")]
    assert [line.split(":")[0] for line in lines] == ["step 2", "step 4"]


class Quantised(torch.nn.Module):
    """A frozen layer in 8 bits under an adapter, as quantising libraries make them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        weight = torch.randn(8, 8)
        self.scale = weight.abs().max() / 127
        self.weight = torch.nn.Parameter((weight / self.scale).round().to(torch.int8), requires_grad=False)
        self.down = torch.nn.Linear(8, 2, bias=False)
        self.up = torch.nn.Linear(2, 8, bias=False)

    def forward(self, x):
        frozen = x @ (self.weight.to(x.dtype) * self.scale).t()
        return (frozen + self.up(self.down(x)) - x).square().mean()


def test_a_base_of_integers_stays_whole_under_an_adapter(tmp_path, caplog):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    digests = set()
    for stage in STAGES:
        caplog.clear()
        model = Quantised()
        before = model.weight.clone()
        with caplog.at_level("INFO", "ullage"):
            engine, *_ = ullage.initialize(model=model, config=config(stage))
        assert "1 parameters of integers ('weight') stay whole on every rank" in caplog.text
        losses = []
        for _ in range(3):
            losses.append(engine.backward(engine(x)).item())
            engine.step()
        assert losses[2] < losses[0]
        assert torch.equal(model.weight, before) and model.weight.grad is None
        assert torch.equal(model.state_dict()["weight"], before)
        digests.add(engine.parameters_sha256())
    assert len(digests) == 1
    engine.save_checkpoint(tmp_path)
    model.weight.data.zero_()
    engine.load_checkpoint(tmp_path)
    assert torch.equal(model.weight, before)


def test_moving_state_during_a_run_is_refused_with_the_remedy():
    engine, *_ = ullage.initialize(model=bert(), config=config(0))
    for method in (engine.offload_states, engine.reload_states):
        with pytest.raises(ullage.UnsupportedError, match="zero_optimization.offload_optimizer"):
            method()
