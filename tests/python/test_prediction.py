"""A step's memory, predicted on Meta and measured on the CPU: the same bytes for anybody's model."""

import pytest
import torch
import transformers

import ullage
from models import batches, bert, config

TOKENS = torch.arange(32).view(2, 16)
TEXT = {"input_ids": TOKENS, "labels": TOKENS}
TWO_LAYERS = {"vocab_size": 200, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **TWO_LAYERS, hidden_size=64, intermediate_size=128, num_key_value_heads=2
        )
    )


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=64, n_layer=2, n_head=4, vocab_size=200, n_positions=64, bos_token_id=1,
            eos_token_id=2,
        )
    )  # fmt: skip


def t5():
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=64, d_ff=128, num_layers=2, num_heads=4, d_kv=16, vocab_size=200,
            decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


MODELS = {
    "bert": (bert, next(iter(batches(1, 4)))),
    "bert without dropout": (lambda: bert(dropout=0.0), next(iter(batches(1, 4)))),
    "llama": (llama, TEXT),
    "gpt2": (gpt2, TEXT),
    "t5": (t5, TEXT),
}


def of_operators(phase):
    return sum(phase["by_tag"].get(use, 0) for use in ("activations", "temporaries"))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_holds_what_was_predicted(name):
    make, batch = MODELS[name]
    model = make()
    told = ullage.plan(model, config(0), device="cpu", example_batch=batch).prediction
    predicted = {phase["phase"]: of_operators(phase) for phase in told.phases}
    engine, *_ = ullage.initialize(model=model, config=config(0))
    with ullage.explain(model) as report:
        engine.backward(engine(**batch).loss)
        engine.step()
    assert report.phases["forward"] == predicted["forward"]
    assert report.phases["backward"] == predicted["backward"]
    assert any("*" in held["parameter"] for held in report.largest)  # layers alike, together


def test_a_prediction_names_what_brings_the_peak_and_changes_nothing():
    model, (_, batch) = bert(), MODELS["bert"]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan = ullage.plan(model, config(3), device="a100-40g", example_batch=batch)
    told = plan.prediction
    assert told.fits and "fits on a100-40g" in str(plan)
    assert told.reserved >= told.allocated >= told.peak
    assert told.device == told.reserved + told.outside
    worst = max(told.phases, key=lambda phase: phase["bytes"])
    assert worst["bytes"] == told.peak and worst["operation"] and worst["parameter"]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_model_that_needs_values_is_refused_by_the_line():
    class Asks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = self.map(x)
            return y * 2 if y.sum().item() > 0 else y

    with pytest.raises(ullage.UnsupportedError, match=r"y\.sum\(\)\.item\(\) > 0"):
        ullage.plan(Asks(), config(0), device="cpu", example_batch=(torch.ones(2, 4),))
    assert ullage.plan(Asks(), config(0), device="cpu").prediction is None


def test_an_unknown_device_is_refused():
    with pytest.raises(ullage.ConfigError, match="a100-40g"):
        ullage.plan(bert(), config(0), device="a100-41g")


def test_meta_and_fake_tensors_are_as_before():
    x = torch.ones(2, 3, device="meta")
    expected = torch.nn.functional.layer_norm(x, (3,)).stride()
    make, batch = MODELS["gpt2"]
    ullage.plan(make(), config(0), device="cpu", example_batch=batch)
    assert torch.nn.functional.layer_norm(x, (3,)).stride() == expected
    assert torch.linalg.svdvals(x).shape == (2,)  # has a Meta kernel in Python alone
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert torch.nn.functional.softmax(torch.ones(4, 4), -1).shape == (4, 4)


def test_explain_follows_an_unconverted_loop():
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    with ullage.explain(model) as report:
        model(torch.ones(32, 64)).sum().backward()
        optimizer.step()
    assert set(report.phases) == {"forward", "backward", "without gradients"}
    assert report.peak == max(report.phases.values())
    # Two moments of each parameter come with the first step, beside the gradients.
    parameters = sum(p.numel() for p in model.parameters()) * 4
    assert report.phases["without gradients"] >= 3 * parameters
    assert "operators held at most" in str(report)
