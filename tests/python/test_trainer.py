"""An unchanged Trainer on this engine: the same losses as without, at every stage."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, Trainer

import ullage
from models import bert, records
from trainer_support import AUTO, arguments, llama, losses, trainer, zero

ullage.enable_for_transformers()

STAGES = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without the engine."""
    run = trainer(tmp_path_factory.mktemp("plain"), None)
    run.train()
    return run


def test_all_stages_train_as_without_the_engine(plain, tmp_path):
    hashes = set()
    for stage in STAGES:
        run = trainer(tmp_path, zero(stage))
        run.train()
        assert losses(run) == pytest.approx(losses(plain), rel=1e-5)
        assert run.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)
        norms = [entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry]
        assert norms == pytest.approx(
            [entry["grad_norm"] for entry in plain.state.log_history if "grad_norm" in entry],
            rel=1e-5,
        )
        hashes.add(run.deepspeed.parameters_sha256())
    assert len(hashes) == 1


def test_auto_takes_what_the_arguments_say(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({**AUTO, **zero(3)}))
    run = trainer(
        tmp_path, str(path), max_grad_norm=0.25, weight_decay=0.125, adam_beta1=0.75, warmup_steps=2
    )
    run.train()
    settings = run.deepspeed.config
    expected = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.25,
    }
    assert {key: settings[key] for key in expected} == expected
    assert settings["optimizer"]["params"]["weight_decay"] == 0.125
    assert settings["zero_optimization"]["reduce_bucket_size"] == "4096 elements"
    assert settings["zero_optimization"]["stage3_prefetch_bucket_size"] == "3686 elements"
    assert settings["scheduler"]["params"]["warmup_max_lr"] == 0.001
    assert settings["scheduler"]["params"]["total_num_steps"] == 4
    rates = [entry["learning_rate"] for entry in run.state.log_history if "loss" in entry]
    assert rates[:2] == pytest.approx([0, 0.001])


def test_an_auto_that_nothing_resolves_is_named(tmp_path):
    with pytest.raises(ValueError, match="zero_optimization.sub_group_size.*without `auto`"):
        trainer(tmp_path, zero(3, sub_group_size="auto")).train()


def test_a_wrong_key_is_named_as_ever(tmp_path):
    with pytest.raises(ullage.ConfigError, match="gradient_clipp1ng: unknown key; did you mean"):
        trainer(tmp_path, {**zero(1), "gradient_clipp1ng": 1}).train()


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text('{"zero_optimization": {"stage": 1, "stage": 2}}')
    with pytest.raises(ullage.ConfigError, match="'stage' stands twice"):
        trainer(tmp_path, str(path))


def test_a_budget_alone_is_a_config(plain, tmp_path):
    run = trainer(tmp_path, {"ullage": {"device_memory": "8GiB"}})
    run.train()
    assert losses(run) == pytest.approx(losses(plain), rel=1e-5)
    assert run.deepspeed.get_batch_info() == (4, 2, 2)


@pytest.mark.parametrize("stage", [1, 3])
def test_state_on_the_host_keeps_the_users_optimizer(tmp_path, stage):
    offload = zero(stage, offload_optimizer={"device": "cpu"})
    results = []
    for config in (zero(stage), offload):
        model = bert(dropout=0)
        run = trainer(tmp_path, config, model=model)
        run.optimizer_cls_and_kwargs = (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9})
        run.train()
        results.append((losses(run), run.deepspeed.parameters_sha256()))
    assert results[0] == results[1]


@pytest.mark.parametrize("scheduled_by", ["trainer", "config"])
def test_a_run_goes_on_from_a_checkpoint_as_if_never_stopped(tmp_path, scheduled_by):
    config = zero(3) if scheduled_by == "trainer" else {**AUTO, **zero(3)}
    more = dict(save_strategy="steps", save_steps=2, logging_steps=1)
    whole = trainer(tmp_path / "whole", config, model=bert(dropout=0.1), **more)
    whole.train()
    rest = trainer(tmp_path / "whole", config, model=bert(seed=5, dropout=0.1), **more)
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert losses(rest) == losses(whole)
    assert rest.deepspeed.parameters_sha256() == whole.deepspeed.parameters_sha256()


@pytest.mark.parametrize("stage", STAGES)
def test_the_saved_model_is_loaded_by_from_pretrained(tmp_path, stage):
    run = trainer(tmp_path, zero(stage))
    run.train()
    run.save_model(tmp_path / "model")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    batch = {"input_ids": torch.stack([r["input_ids"] for r in records(4, seed=9)])}
    assert torch.equal(loaded(**batch).logits, run.model.eval()(**batch).logits)


def test_from_pretrained_leaves_weights_in_their_files_at_stage_3(tmp_path):
    bert(dropout=0).save_pretrained(tmp_path / "model", max_shard_size="100KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    hashes = set()
    for stage in (2, 3):
        args = arguments(tmp_path, zero(stage))
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
        empty = [parameter.is_meta for parameter in model.parameters()]
        assert all(empty) if stage == 3 else not any(empty)
        run = Trainer(model=model, args=args, train_dataset=records(32))
        run.train()
        hashes.add(run.deepspeed.parameters_sha256())
    assert len(hashes) == 1


def test_a_head_that_the_files_lack_is_initialised(tmp_path):
    bert(dropout=0).bert.save_pretrained(tmp_path / "model")
    args = arguments(tmp_path, zero(3))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert model.bert.pooler.dense.weight.is_meta and not model.classifier.weight.is_meta
    assert 0 < model.classifier.weight.std() < 0.1
    run = Trainer(model=model, args=args, train_dataset=records(32))
    run.train()
    assert run.deepspeed.global_steps == 4


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    run = trainer(
        tmp_path,
        zero(3),
        learning_rate=0.1,
        eval_strategy="steps",
        save_strategy="steps",
        eval_steps=1,
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
    )
    run.train()
    seen = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
    assert min(seen) < seen[-1]
    assert run.evaluate()["eval_loss"] == min(seen)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_change_nothing(plain, tmp_path, reentrant):
    run = trainer(
        tmp_path,
        zero(3),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": reentrant},
    )
    run.train()
    assert losses(run) == pytest.approx(losses(plain), rel=1e-5)


def test_smoothed_labels_train_as_without_the_engine(tmp_path):
    results = []
    for config in (None, zero(3)):
        run = trainer(tmp_path, config, label_smoothing_factor=0.1)
        run.train()
        results.append(losses(run))
    assert results[1] == pytest.approx(results[0], rel=1e-5)


def test_a_decoder_counts_tokens_over_micro_steps_as_without_the_engine(tmp_path):
    results = []
    for config in (None, zero(3)):
        run = trainer(tmp_path, config, model=llama(), gradient_accumulation_steps=3, max_steps=3)
        run.train_dataset = texts(24)
        run.train()
        results.append(losses(run))
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    generated = run.model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
    assert generated.shape[1] <= 7 and generated[0, :3].tolist() == [5, 6, 7]


def test_a_model_may_be_evaluated_before_and_trained_twice(tmp_path):
    results = []
    for config in (None, zero(3)):
        run = trainer(tmp_path, config)
        seen = [run.evaluate()["eval_loss"]]
        run.train()
        seen += [*losses(run), run.evaluate()["eval_loss"]]
        run.train()
        # Without the engine the optimizer keeps its moments: only the first step is the same.
        results.append([*seen, losses(run)[0]])
    assert results[1] == pytest.approx(results[0], rel=1e-5)


def test_an_engine_for_evaluation_keeps_weights_alone(tmp_path):
    run = trainer(tmp_path, zero(3))
    run.evaluate()
    weights = 4 * sum(parameter.numel() for parameter in run.model.parameters())
    held = sum(run.deepspeed._core.memory()["now"].values())
    assert run.deepspeed.optimizer is None and held < 1.5 * weights


def test_16_bit_weights_are_saved_in_16_bit(tmp_path):
    run = trainer(tmp_path, zero(3), bf16=True, use_cpu=True)
    run.train()
    run.save_model(tmp_path / "model")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", dtype="auto")
    assert loaded.dtype == torch.bfloat16 and run.deepspeed.get_data_types()[0] == torch.bfloat16


def texts(count, seed=1):
    """Records of unequal lengths, padded with labels that do not count."""
    generator = torch.Generator().manual_seed(seed)
    every = []
    for index in range(count):
        length = 4 + index % 9
        ids = torch.zeros(12, dtype=torch.long)
        ids[:length] = torch.randint(2, 64, (length,), generator=generator)
        labels = torch.where(torch.arange(12) < length, ids, -100)
        every.append(
            {"input_ids": ids, "labels": labels, "attention_mask": (labels != -100).long()}
        )
    return every
