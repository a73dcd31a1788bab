"""Checkpoints, exported weights, and the position in the data."""

import pytest
import torch

import ullage
from models import STAGES, batches, bert, config, train
from ullage.loader import EngineLoader


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_loader_goes_on_where_it_was(world_size):
    data = list(range(23))

    def loaders(world_size, batch_size=2):
        return [
            EngineLoader(data, batch_size, rank, world_size, list, False, 5, False) for rank in range(world_size)
        ]

    first = loaders(2)[0]
    first_epoch, second_epoch = list(first), list(first)  # of rank 0
    assert first_epoch != second_epoch
    before = loaders(2)
    for loader in before:
        list(loader)
    had = [record for loader in before for _, batch in zip(range(4), iter(loader)) for record in batch]
    state = before[0].state_dict()
    assert state == {"epoch": 1, "records": 16} and len(had) == 16
    after = loaders(world_size)
    rest = []
    for loader in after:
        loader.load_state_dict(state)
        rest += [record for batch in loader for record in batch]
    # Records that are dealt out twice, so that all ranks have as many, are the first of the epoch.
    assert set(had + rest) == set(data) and len(set(had) & set(rest)) <= 1
    assert len(list(after[0])) == len(after[0])  # the next epoch is whole
    if world_size == 2:
        assert rest[: len(rest) // 2] == [record for batch in second_epoch[4:] for record in batch]


def test_a_loader_that_cannot_go_on_says_why():
    loader = EngineLoader(list(range(8)), 3, 0, 1, None, False, 5, False)
    with pytest.raises(ullage.ConfigError, match="at record 4, and one micro-batch on all ranks takes 3"):
        loader.load_state_dict({"epoch": 0, "records": 4})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_checkpoints_go_on_at_any_stage(tmp_path, precision):
    more = {"bf16": {"enabled": True}} if precision == "bf16" else {}
    first, rest = batches(5, 4)[:2], batches(5, 4)[2:]
    engine, *_ = ullage.initialize(model=bert(), config=config("streamed", **more), seed=7)
    train(engine, first)
    state = {"epoch": 3, "best": torch.ones(2)}
    engine.save_checkpoint(tmp_path, tag="good", client_state=state)
    train(engine, rest)
    for stage in STAGES:
        other, *_ = ullage.initialize(model=bert(seed=1), config=config(stage, **more), seed=8)
        path, loaded = other.load_checkpoint(tmp_path, tag="good")
        assert path.endswith("good") and loaded["epoch"] == 3 and torch.equal(loaded["best"], state["best"])
        assert other.global_steps == 2
        train(other, rest)
        assert other.parameters_sha256() == engine.parameters_sha256()
    weights, *_ = ullage.initialize(model=bert(seed=1), config=config(2, **more))
    weights.load_checkpoint(tmp_path, load_module_only=True)
    assert weights.global_steps == 0


def test_saves_in_the_background_keep_as_many_as_asked_for(tmp_path):
    engine, *_ = ullage.initialize(model=bert(), config=config("streamed"), seed=7)
    digests = []
    for number, batch in enumerate(batches(1, 4) * 4):
        train(engine, [batch])
        digests.append(engine.parameters_sha256())
        engine.save_checkpoint(tmp_path, tag=f"at{number}", keep=2, background=True)
    engine.finish_saving()
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink())
    assert len(kept) == 2
    assert (tmp_path / "at3").resolve().name == kept[-1]
    assert not (tmp_path / "at0").is_symlink()
    for tag, digest in (("at2", digests[2]), ("at3", digests[3])):
        other, *_ = ullage.initialize(model=bert(), config=config(0))
        other.load_checkpoint(tmp_path, tag=tag)
        assert other.parameters_sha256() == digest
    with pytest.raises(ullage.ConfigError, match="the tag 'a/b' is no name"):
        engine.save_checkpoint(tmp_path, tag="a/b")


def test_a_folder_without_a_checkpoint_is_said(tmp_path, caplog):
    engine, *_ = ullage.initialize(model=bert(), config=config())
    assert engine.load_checkpoint(tmp_path) == (None, None)
    assert "holds no checkpoint" in caplog.text


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_the_model_is_saved_for_others(tmp_path, name):
    model = bert(dropout=0)
    engine, *_ = ullage.initialize(model=model, config=config("streamed"))
    train(engine, batches(2, 4))
    engine.save_16bit_model(tmp_path, name)
    if name.endswith("safetensors"):
        from safetensors.torch import load_file

        state = load_file(tmp_path / name)
    else:
        state = torch.load(tmp_path / name, weights_only=True)
    other = bert(seed=3, dropout=0)
    other.load_state_dict(state)
    batch = batches(1, 4, seed=9)[0]
    assert torch.equal(other.eval()(**batch).logits, engine.eval()(**batch).logits)
