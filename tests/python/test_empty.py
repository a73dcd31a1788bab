"""Models without memory, whose values are read by range."""

import json

import pytest
import torch
from safetensors.torch import save_file

import ullage
from models import batches, bert, config


def test_a_model_built_empty_trains_as_one_that_was_loaded(tmp_path):
    loaded = bert(seed=3)
    save_file({n: p.detach() for n, p in loaded.named_parameters()}, tmp_path / "model.safetensors")
    hashes = set()
    for is_empty in (False, True):
        model = loaded
        if is_empty:
            with ullage.empty_init(tmp_path):
                model = bert()
            assert all(parameter.is_meta for parameter in model.parameters())
            assert not any(buffer.is_meta for buffer in model.buffers())
        engine, *_ = ullage.initialize(model=model, config=config(3), seed=1)
        engine.backward(engine(**batches(1, 4)[0]).loss)
        engine.step()
        hashes.add(engine.parameters_sha256())
    assert len(hashes) == 1


def test_parameters_without_values_are_named(tmp_path):
    with ullage.empty_init():
        model = torch.nn.Linear(2, 3)
    with pytest.raises(
        ullage.ConfigError, match="'weight' is on the Meta device and has no values"
    ):
        ullage.initialize(model=model, config=config(3))


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({"weight": torch.zeros(3, 2)}, "has no tensor 'bias'"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}, r"\[3, 2\].*it has \[2, 3\]"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "model.safetensors")
    with ullage.empty_init(tmp_path / "model.safetensors"):
        model = torch.nn.Linear(2, 3)
    with pytest.raises(ullage.ConfigError, match=message):
        ullage.initialize(model=model, config=config(3))


@pytest.mark.parametrize(
    "header, message",
    [
        (b"\xff" * 8, "a header of"),
        (None, "'w' has the bytes 0 to 400"),
        (b"", "a header of 0 bytes"),
    ],
)
def test_a_damaged_file_is_an_io_error(tmp_path, header, message):
    if header is None:
        text = json.dumps(
            {"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}
        ).encode()
        header = len(text).to_bytes(8, "little") + text + b"\0" * 20
    (tmp_path / "model.safetensors").write_bytes(header)
    with pytest.raises(ullage.IoError, match=message):
        with ullage.empty_init(tmp_path):
            torch.nn.Linear(2, 3)
