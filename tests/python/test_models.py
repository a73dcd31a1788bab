"""Models as people have them: the numbers are those of the model without an engine.

One table. The first step's gradients are bit for bit those of a copy without an engine, stage 3 with
weights that come and go ends where stage 0 ends, and that is where torch's AdamW ends to 1e-5.
"""

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
import transformers as hf

import ullage

VOCABULARY = 61
STEPS = 3


def tokens(seed, length=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (2, length), generator=generator)


def floats(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def language(seed):
    return {"input_ids": tokens(seed), "labels": tokens(seed)}


def classes(seed):
    return {"input_ids": tokens(seed), "labels": torch.tensor([0, 1])}


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 8,
}


@dataclasses.dataclass(frozen=True)
class Model:
    """`config` and `kind` make a transformers model; `make` any other."""

    batch: Callable
    config: Callable | None = None
    kind: type | None = None
    make: Callable | None = None
    attention: tuple = ("eager", "sdpa")
    checkpoints: bool = True
    # torch's batch norm takes weights and statistics of one type, and an engine keeps buffers as they
    # are ("expected scalar type BFloat16 but found Float"): who trains in bf16 casts the model before.
    cast_before: bool = False

    def build(self, attention):
        torch.manual_seed(0)
        if self.make is not None:
            return self.make()
        config = self.config()
        config._attn_implementation = attention
        return self.kind(config)


class WithLoss(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y):
        out = self.inner(x)
        out = out[0] if isinstance(out, tuple) else out
        return {"loss": torch.nn.functional.mse_loss(out.float(), y.float())}


class Sequences(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = torch.nn.Transformer(
            16, 2, 1, 1, dim_feedforward=32, dropout=0.0, batch_first=True
        )

    def forward(self, x):
        return self.transformer(x, x)


class Residual(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(width)
        self.conv2 = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(width)

    def forward(self, x):
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


def resnet():
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)]
    stem = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    return WithLoss(torch.nn.Sequential(*stem, Residual(8), Residual(8), *head))


def clip():
    text = {k: v for k, v in SMALL.items() if k != "max_position_embeddings"}
    return hf.CLIPConfig(
        text_config={**text, "max_position_embeddings": 16, "projection_dim": 16},
        vision_config={**VISION, "projection_dim": 16},
        projection_dim=16,
    )


def whisper():
    return hf.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        num_mel_bins=8, max_source_positions=10, max_target_positions=16, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip


def bart():
    return hf.BartConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=40, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip


def t5():
    return hf.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip


def gpt2():
    return hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=40, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def distilbert():
    return hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=64, dropout=0.0,
        attention_dropout=0.0, seq_classif_dropout=0.0, max_position_embeddings=40,
    )  # fmt: skip


def modernbert():
    more = {"global_attn_every_n_layers": 2, "local_attention": 4, "reference_compile": False}
    special = {"cls_token_id": 1, "sep_token_id": 2}
    return hf.ModernBertConfig(**SMALL, **more, **special)


def pairs(seed):
    pixels = floats(seed, 2, 3, 16, 16)
    return {"input_ids": tokens(seed), "pixel_values": pixels, "return_loss": True}


def images(seed):
    return {"pixel_values": floats(seed, 2, 3, 16, 16), "labels": torch.tensor([0, 1])}


def speech(seed):
    return {"input_features": floats(seed, 2, 8, 20), "labels": tokens(seed)}


MODELS = {
    "Bert": Model(classes, lambda: hf.BertConfig(**SMALL, **NO_DROPOUT), hf.BertForSequenceClassification),
    "RoBERTa": Model(
        classes, lambda: hf.RobertaConfig(**SMALL, **NO_DROPOUT), hf.RobertaForSequenceClassification
    ),
    "DistilBERT": Model(classes, distilbert, hf.DistilBertForSequenceClassification),
    "ModernBERT": Model(classes, modernbert, hf.ModernBertForSequenceClassification),
    "GPT-2": Model(language, gpt2, hf.GPT2LMHeadModel),
    "Llama": Model(language, lambda: hf.LlamaConfig(**GROUPED), hf.LlamaForCausalLM),
    "Qwen3": Model(language, lambda: hf.Qwen3Config(**GROUPED), hf.Qwen3ForCausalLM),
    "Mistral": Model(
        language, lambda: hf.MistralConfig(**GROUPED, sliding_window=4), hf.MistralForCausalLM
    ),
    "Mixtral": Model(
        language,
        lambda: hf.MixtralConfig(**GROUPED, num_local_experts=3, num_experts_per_tok=2),
        hf.MixtralForCausalLM,
    ),
    "Gemma": Model(language, lambda: hf.GemmaConfig(**GROUPED), hf.GemmaForCausalLM),
    "Phi": Model(language, lambda: hf.PhiConfig(**SMALL), hf.PhiForCausalLM),
    "T5": Model(language, t5, hf.T5ForConditionalGeneration),
    "BART": Model(language, bart, hf.BartForConditionalGeneration),
    "ViT": Model(images, lambda: hf.ViTConfig(**VISION, **NO_DROPOUT), hf.ViTForImageClassification),
    "Whisper": Model(speech, whisper, hf.WhisperForConditionalGeneration),
    "CLIP": Model(pairs, clip, hf.CLIPModel),
    "nn.Transformer": Model(
        lambda seed: {"x": floats(seed, 2, 5, 16), "y": floats(seed + 9, 2, 5, 16)},
        make=lambda: WithLoss(Sequences()),
        attention=("sdpa",),
        checkpoints=False,
    ),
    "LSTM": Model(
        lambda seed: {"x": floats(seed, 2, 5, 16), "y": floats(seed + 9, 2, 5, 16)},
        make=lambda: WithLoss(torch.nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True)),
        attention=("",),
        checkpoints=False,
    ),
    "ResNet": Model(
        lambda seed: {"x": floats(seed, 2, 3, 8, 8), "y": floats(seed + 9, 2, 4)},
        make=resnet,
        attention=("",),
        cast_before=True,
        checkpoints=False,
    ),
}


def cases():
    for name, model in MODELS.items():
        kinds = [False, True] if model.checkpoints else [None]
        for index, attention in enumerate(model.attention):
            # Kinds of checkpointing and of numbers go round, so that each meets each attention.
            yield name, attention, "fp32", [None, *kinds][index % 3] if len(kinds) > 1 else None
            yield name, attention, "bf16", [*kinds[::-1], None][index % 3] if len(kinds) > 1 else None


# With a small eps a gradient that is zero but for rounding would move a weight as any other does.
ADAMW = {"lr": 1e-3, "weight_decay": 0.01, "eps": 1e-3}


def settings(stage, precision):
    more = {"bf16": {"enabled": True}} if precision == "bf16" else {}
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    if stage == 3:
        # On one rank weights come and go only when they are at home elsewhere.
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": ADAMW},
        "zero_optimization": zero,
        "ullage": {"unit_size": 4096},
        **more,
    }


def to_precision(batch, precision):
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return {
        key: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in batch.items()
    }


def loss_of(output):
    return output["loss"]


@pytest.mark.parametrize("name, attention, precision, reentrant", cases())
def test_an_engine_changes_no_bit(name, attention, precision, reentrant):
    row = MODELS[name]
    plain = row.build(attention)
    with torch.no_grad():
        for parameter in plain.parameters():  # ties of a rounding are decided in two ways
            parameter.copy_(parameter.bfloat16())
    batches = [to_precision(row.batch(seed), precision) for seed in range(STEPS)]
    if row.cast_before and precision == "bf16":
        plain.bfloat16()
    managed = [copy.deepcopy(plain) for _ in range(2)]
    if precision == "bf16":
        for parameter in plain.parameters():
            parameter.data = parameter.data.bfloat16()
    models = [plain, *managed]
    if reentrant is not None:
        for model in models:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            if reentrant:
                model.enable_input_require_grads()
    for model in models:
        model.train()
    results = set()
    for stage, model in zip((0, 3), managed):
        engine, *_ = ullage.initialize(model=model, config=settings(stage, precision), seed=1)
        for step, batch in enumerate(batches):
            engine.backward(loss_of(engine(**batch)))
            if step == 0:
                compare_gradients(plain, model, batch)
            engine.step()
        results.add(engine.parameters_sha256())
        if stage == 3:
            compare_parameters(plain, model, batches, precision)
            assert engine._core.statistics.gathers > 0
        engine.destroy()
    assert len(results) == 1


def compare_gradients(plain, model, batch):
    plain.zero_grad()
    loss_of(plain(**batch)).backward()
    managed = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        if not parameter.requires_grad:
            continue
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.equal(ullage.full_gradient(managed[name]), expected.float()), name


def compare_parameters(plain, model, batches, precision):
    """The engine's update is torch's, where weights hold all that it gives."""
    if precision == "bf16":
        return
    plain.zero_grad()
    optimizer = torch.optim.AdamW(plain.parameters(), **ADAMW)
    for batch in batches:
        optimizer.zero_grad(set_to_none=False)
        loss_of(plain(**batch)).backward()
        optimizer.step()
    managed = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        own = ullage.full_parameter(managed[name])
        torch.testing.assert_close(own, parameter.detach(), rtol=1e-5, atol=1e-5, msg=name)
