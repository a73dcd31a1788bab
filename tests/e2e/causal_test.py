"""Language models: `ullage train`, `evaluate`, `plan` and `export`, compared with transformers."""
import copy
import json
import math

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import load_file

from conftest import VOCABULARY, Workshop, make_records, run, run_well, write_config, write_tokens

SEQUENCE = 32
PAD = 0


def make_documents(count, seed):
    """Documents of 3 to 40 tokens in which each token follows from the one before it."""
    draw = np.random.default_rng(seed)
    documents = []
    for length in draw.integers(2, 40, count):
        tokens = [int(draw.integers(10, VOCABULARY))]
        while len(tokens) < length:
            tokens.append(10 + (tokens[-1] * 7 + 3) % (VOCABULARY - 10))
        documents.append([*tokens, 2])
    return documents


def write_documents(path, documents, labels=None):
    """A causal token file as ullage-prepare writes it, or with labels one of instructions."""
    tensors = {"input_ids": np.concatenate(documents).astype(np.int32),
               "offsets": np.cumsum([0] + [len(document) for document in documents]).astype(np.int64)}
    if labels is not None:
        tensors["labels"] = np.concatenate(labels).astype(np.int32)
    save_file(tensors, str(path), {
        "format": "ullage-tokens", "version": "1", "tokenizer": "tiny", "tokenizer_sha256": "0" * 64,
        "pad_token_id": str(PAD), "task": "causal" if labels is None else "instruct"})
    return path


def save_language_model(folder, family="Llama", **changes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=2, pad_token_id=None, **changes)
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)
    return folder


def loss_of(folder, pieces, labels=None):
    """Mean loss of every piece by itself, as transformers has it, and how many labels count."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.float32
    total, count = 0.0, 0
    with torch.no_grad():
        for piece, label in zip(pieces, labels or pieces):
            logits = model.eval()(input_ids=torch.tensor([piece])).logits[0, :-1]
            targets = torch.tensor(label[1:], dtype=torch.int64)
            if len(targets) == 0:
                continue
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            count += int((targets != -100).sum())
    return total / count, count


def pieces_of(documents):
    """Documents one after the other, cut where a row of SEQUENCE tokens is full."""
    pieces, room = [], SEQUENCE
    for document in documents:
        while document:
            pieces.append(document[:room])
            document = document[room:]
            room = room - len(pieces[-1]) or SEQUENCE
    return pieces


class Library(Workshop):
    """A tiny Llama and two files of documents."""

    def __init__(self, folder):
        super().__init__(folder)
        self.classifier, self.classes_file = self.model, self.train_file
        self.model = save_language_model(folder / "llama")
        self.train_file = write_documents(folder / "documents.safetensors", make_documents(300, 1))
        self.eval_documents = make_documents(41, 2)
        self.eval_file = write_documents(folder / "held.safetensors", self.eval_documents)

    def of(self, model, train_file):
        """The same with another model and file; runs go on being numbered by themselves."""
        other = copy.copy(self)
        other.model, other.train_file, other.runs = model, train_file, self.runs + 1000
        return other

    def train(self, *more, sequence=SEQUENCE, stage=3, **changes):
        changes = {"train_batch_size": 8} | changes
        return super().train("--sequence-length", sequence, *more, stage=stage, **changes)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def trained(library):
    """40 steps on two ranks at stage 3, evaluated every 20."""
    return library.train("--ranks", 2, "--steps", 40, "--eval", library.eval_file,
                         "--eval-every", 20)


def test_the_model_learns_and_the_report_has_a_perplexity(trained):
    output, report = trained
    assert np.mean(report["loss"][-5:]) < 0.6 * np.mean(report["loss"][:5])
    assert report["loss"][0] == pytest.approx(math.log(VOCABULARY), rel=0.1)
    assert report["eval_perplexity"] == pytest.approx(math.exp(report["eval_loss"]))
    assert "eval_accuracy" not in report
    assert 0 < report["padding_share"] < 0.02  # the last row of an epoch only
    lines = [json.loads(line) for line in (output / "metrics.jsonl").open()]
    evaluations = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [20, 40]
    assert evaluations[-1]["eval_perplexity"] == report["eval_perplexity"]
    assert (output / "best" / "model.safetensors").exists()


def test_transformers_and_evaluate_agree_about_the_trained_model(trained, library):
    output, report = trained
    words = ["evaluate", "--model", output, "--eval", library.eval_file, "--batch", 3,
             "--sequence-length", SEQUENCE, "--json"]
    told = json.loads(run_well(*words).stdout)
    loss, count = loss_of(output, pieces_of(library.eval_documents))
    assert told["tokens"] == count
    assert told["loss"] == pytest.approx(loss, abs=1e-5)
    assert told["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert report["eval_loss"] == pytest.approx(loss, abs=1e-5)
    divided = json.loads(run_well(*words, "--ranks", 2).stdout)
    assert divided["loss"] == pytest.approx(told["loss"], abs=1e-6)


def test_placement_ranks_and_recompute_change_no_bit(trained, library):
    _, expected = trained
    recompute = {"ullage": {"unit_size": "16KiB", "timeout_seconds": 30, "recompute": "block"}}
    for ranks, stage, changes in [(2, 0, {}), (1, 0, {"gradient_accumulation_steps": 2}),
                                  (2, 3, recompute), (1, 3, recompute | {"gradient_accumulation_steps": 2})]:
        _, report = library.train("--ranks", ranks, "--steps", 40, stage=stage, **changes)
        assert report["parameters_sha256"] == expected["parameters_sha256"], (ranks, stage, changes)
        assert report["loss"] == expected["loss"]


def test_the_plan_tells_every_byte(library):
    _, report = library.train("--ranks", 2, "--steps", 2)
    plan = json.loads(run_well(
        "plan", "--model", library.model / "config.json", "--config",
        write_config(library.new("config.json"), train_batch_size=8), "--ranks", 2, "--rank", 1,
        "--sequence-length", SEQUENCE, "--json").stdout)
    assert plan["sequence"] == SEQUENCE
    for tag in plan["peak_bytes"].keys() - {"data"}:
        assert plan["peak_bytes"][tag] == report["peak_bytes"][tag][1], tag


def test_a_tied_model_learns_responses_only(library):
    """Examples stay whole in rows of 48 tokens, and only labels of responses count."""
    model = save_language_model(library.new("qwen"), "Qwen2", tie_word_embeddings=True)
    documents = [document for document in make_documents(150, 3) if len(document) >= 4]
    labels = [[-100] * (len(document) // 2) + document[len(document) // 2:] for document in documents]
    file = write_documents(library.new("instruct.safetensors"), documents, labels)
    output, report = library.of(model, file).train("--eval", file, "--ranks", 2, "--steps", 20,
                                                   sequence=48)
    assert report["loss"][-1] < report["loss"][0]
    assert report["padding_share"] < 0.1
    loss, count = loss_of(output, documents, labels)
    assert report["eval_loss"] == pytest.approx(loss, abs=1e-5)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").open()]
    assert lines[-1]["eval_tokens"] == count
    assert "lm_head.weight" not in load_file(output / "model.safetensors")


def test_export_writes_a_language_model_in_another_type(trained, library):
    output, _ = trained
    exported = library.new("export")
    (output / "generation_config.json").write_text("{}")
    run_well("export", "--model", output, "--output", exported, "--dtype", "bf16")
    first, second = load_file(output / "model.safetensors"), load_file(exported / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name].bfloat16(), second[name]) for name in first)
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    assert model.dtype == torch.bfloat16 and type(model).__name__ == "LlamaForCausalLM"
    assert (exported / "generation_config.json").exists()


def mistakes(library):
    too_large = make_documents(60, 4)
    too_large[17][1] = VOCABULARY
    file = write_documents(library.new("large.safetensors"), too_large)
    return [
        ({"--model": library.classifier}, ["documents.safetensors is a causal file", '"bert"']),
        ({"--train": library.classes_file}, ["is a classification file", '"llama"']),
        ({"--eval": library.classes_file}, ["is a classification file", '"llama"']),
        ({"--num-labels": 2}, ["--num-labels 2", "causal"]),
        ({"--max-length": 16}, ["--max-length 16", "--sequence-length"]),
        ({"--pad-to-multiple-of": 8}, ["--pad-to-multiple-of 8"]),
        ({"--config": write_config(library.new("config.json"), train_batch_size=512)},
         ["train_batch_size 512", "300 documents", "shorter --sequence-length"]),
        ({"--sequence-length": 65}, ["rows of 65 tokens, the model takes at most 64"]),
        ({"--train": file}, ["record 17: token 1 is 100", "100 entries"]),
        ({"--model": library.classifier, "--train": library.classes_file, "--sequence-length": 16},
         ["--sequence-length 16", "classification"]),
    ]


@pytest.mark.parametrize("number", range(10))
def test_a_file_or_option_of_another_task_is_named(library, number):
    change, parts = mistakes(library)[number]
    options = {"--model": library.model, "--train": library.train_file, "--steps": 1,
               "--config": write_config(library.new("config.json"), train_batch_size=8),
               "--output": library.new("out")} | change
    done = run("train", *[word for pair in options.items() for word in pair])
    assert done.returncode == 1, done.stdout
    for part in parts:
        assert part in done.stderr
    assert "hint: " in done.stderr
    assert not options["--output"].exists()


def test_evaluate_names_a_file_of_another_task(library):
    file = write_tokens(library.new("classes.safetensors"), *make_records(20, 3))
    done = run("evaluate", "--model", library.model, "--eval", file)
    assert done.returncode == 1
    assert "is a classification file" in done.stderr and '"llama"' in done.stderr
