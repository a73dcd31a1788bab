"""Writes what transformers computes for the Llama family, as reference.py does for BERT.

usage: llama_reference.py OUTPUT_DIR

For each case a folder with config.json, model.safetensors, parameters.txt and expected.safetensors:
input_ids, labels, position_ids, document_ids (where the case packs), the logits, the summed loss
and every distinct parameter's gradient as "grad.<name>". "rotary" holds frequencies and tables.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

TINY = dict(vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, intermediate_size=80, max_position_embeddings=64,
            initializer_range=0.2, rms_norm_eps=1e-5)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)


def batch(config, records, length, documents):
    """`documents`: lengths of the documents in each row, or None."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, config.vocab_size, (records, length), generator=generator)
    labels = ids.clone()
    labels[torch.rand(ids.shape, generator=generator) < 0.3] = -100
    result = {"input_ids": ids, "labels": labels}
    if documents is not None:
        positions = torch.cat([torch.arange(n) for n in documents])
        numbers = torch.cat([torch.full((n,), i) for i, n in enumerate(documents)])
        labels[:, positions == 0] = -100
        result["position_ids"] = positions.expand(records, length).contiguous()
        result["document_ids"] = numbers.int().expand(records, length).contiguous()
    return result


def document_mask(numbers):
    """What transformers takes as a ready mask: [B, 1, S, S], true where a token sees another."""
    length = numbers.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return (causal & (numbers[:, :, None] == numbers[:, None, :]))[:, None]


def write(folder, model, config_json, expected):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_json))
    model.eval()
    extra = {}
    if "document_ids" in expected:
        extra = {"attention_mask": document_mask(expected["document_ids"]),
                 "position_ids": expected["position_ids"]}
    logits = model(input_ids=expected["input_ids"], use_cache=False, **extra).logits
    loss = torch.nn.functional.cross_entropy(
        logits.float()[:, :-1].flatten(0, 1), expected["labels"][:, 1:].flatten(),
        ignore_index=-100, reduction="sum")
    loss.backward()
    expected = {**expected, "logits": logits.detach(), "loss": loss.detach().reshape(1)}
    weights = {}
    for name, parameter in model.named_parameters():
        expected["grad." + name] = parameter.grad
        weights[name] = parameter.detach()
    for path, tensors in (("expected", expected), ("model", weights)):
        save_file({name: value.contiguous() for name, value in tensors.items()},
                  folder / f"{path}.safetensors")
    (folder / "parameters.txt").write_text("\n".join(weights) + "\n")


def tiny(folder, kind, dtype=torch.float32, records=3, length=21, documents=None, edit=None,
         **changes):
    """`edit`: changes config.json as transformers writes it into one that others wrote."""
    torch.manual_seed(0)
    config = getattr(transformers, kind + "Config")(**{**TINY, **changes})
    config.architectures = [kind + "ForCausalLM"]
    config._attn_implementation = "sdpa"
    model = getattr(transformers, kind + "ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # else biases are zero and norms one
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.original_inv_freq.float()
    config_json = config.to_dict()
    if edit is not None:
        edit(config_json)
    write(folder, model, config_json, batch(config, records, length, documents))


def as_older_file(config_json):
    """rope_theta beside rope_scaling, without layer_types and head_dim: transformers 4."""
    rope = config_json.pop("rope_parameters")
    config_json["rope_theta"] = rope.pop("rope_theta")
    config_json["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    for key in ("layer_types", "head_dim"):
        config_json.pop(key, None)


def rotary(folder):
    """Frequencies of each scaling, and tables of a bf16 model at far positions."""
    folder.mkdir(parents=True)
    tensors = {}
    scalings = {"default": dict(rope_type="default", rope_theta=10000.0),
                "linear": dict(rope_type="linear", rope_theta=10000.0, factor=4.0),
                "llama3": {**LLAMA3, "rope_theta": 500000.0,
                           "original_max_position_embeddings": 8192}}
    positions = torch.tensor([[0, 1, 257, 4097, 131071]])
    for name, parameters in scalings.items():
        config = transformers.LlamaConfig(**{**TINY, "head_dim": 128, "rope_parameters": parameters,
                                             "max_position_embeddings": 131072})
        module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        tensors[name] = module.inv_freq
        cos, sin = module(torch.zeros(1, dtype=torch.bfloat16), positions)
        tensors[name + ".cos"], tensors[name + ".sin"] = cos, sin
        (folder / f"{name}.json").write_text(json.dumps(config.to_dict()))
    save_file({name: value.contiguous() for name, value in tensors.items()},
              folder / "tables.safetensors")


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    output = pathlib.Path(sys.argv[1])
    shutil.rmtree(output, ignore_errors=True)
    gqa = dict(num_key_value_heads=2)
    tiny(output / "llama", "Llama")
    tiny(output / "llama_gqa_biases_tied", "Llama", **gqa, attention_bias=True, mlp_bias=True,
         tie_word_embeddings=True, pad_token_id=5)
    tiny(output / "llama_rope_llama3", "Llama", rope_parameters=LLAMA3, edit=as_older_file)
    tiny(output / "llama_rope_linear", "Llama",
         rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=3.0))
    tiny(output / "llama_head_dim", "Llama", head_dim=20, **gqa)
    tiny(output / "llama_packed", "Llama", documents=[5, 1, 9, 6], **gqa)
    tiny(output / "mistral_window", "Mistral", sliding_window=6, **gqa)
    tiny(output / "mistral_no_window", "Mistral", sliding_window=None, length=1)
    tiny(output / "qwen2", "Qwen2", **gqa, tie_word_embeddings=True, edit=as_older_file)
    tiny(output / "qwen2_windows", "Qwen2", use_sliding_window=True, sliding_window=4,
         max_window_layers=1, **gqa)
    tiny(output / "qwen3", "Qwen3", head_dim=16, **gqa)
    tiny(output / "qwen3_biases_packed", "Qwen3", head_dim=8, attention_bias=True,
         documents=[10, 11])
    tiny(output / "bfloat16", "Llama", dtype=torch.bfloat16, initializer_range=0.1, **gqa)
    rotary(output / "rotary")


main()
