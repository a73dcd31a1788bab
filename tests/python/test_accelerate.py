"""accelerate's own loop on this engine: prepare, accumulate, backward."""

import importlib
import importlib.metadata
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

import ullage
from models import bert, records

ullage.enable_for_transformers()

from accelerate import Accelerator, DeepSpeedPlugin  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import DummyOptim, DummyScheduler  # noqa: E402


def forget():
    """What accelerate keeps for the process, Trainer's included."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_MIXED_PRECISION"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def a_state_of_its_own():
    forget()
    yield
    forget()


def accelerator(config, **more):
    return Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), gradient_accumulation_steps=2, **more
    )


def train(of, make, kind=torch.optim.AdamW):
    """Two epochs of a loop as accelerate's guide has it; returns (losses, model)."""
    model = bert(dropout=0)
    optimizer, scheduler = make(model, kind)
    loader = DataLoader(records(16), batch_size=4)
    model, optimizer, loader, scheduler = of.prepare(model, optimizer, loader, scheduler)
    losses = []
    for _ in range(2):
        for batch in loader:
            with of.accumulate(model):
                loss = model(**batch).loss
                of.backward(loss)
                if of.sync_gradients:
                    of.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses, model, optimizer


def own(model, kind):
    optimizer = kind(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


@pytest.fixture(scope="module")
def plain():
    forget()
    return train(Accelerator(gradient_accumulation_steps=2), own)[0]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_loop_gives_the_losses_of_the_loop_without(plain, stage):
    of = accelerator({"zero_optimization": {"stage": stage}})
    losses, engine, optimizer = train(of, own)
    assert isinstance(engine, ullage.Engine) and engine.global_steps == 4
    assert losses == pytest.approx(plain, rel=1e-4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 / 5)
    assert of.unwrap_model(engine) is engine.module


def test_an_optimizer_and_schedule_of_the_config_take_their_places(plain):
    config = {
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
                "total_num_steps": "auto",
            },
        },
        "zero_optimization": {"stage": 3},
    }

    def make(model, _):
        optimizer = DummyOptim(model.parameters(), lr=1e-2, weight_decay=0.5)
        return optimizer, DummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=2)

    losses, engine, optimizer = train(accelerator(config), make)
    assert losses[0] == pytest.approx(plain[0], rel=1e-5)
    assert engine.config["optimizer"]["params"]["weight_decay"] == 0.5
    assert engine.config["scheduler"]["params"]["total_num_steps"] == 10


def test_state_is_saved_and_loaded(tmp_path):
    of = accelerator({"zero_optimization": {"stage": 3}})
    _, engine, _ = train(of, own)
    of.save_state(str(tmp_path / "state"))
    saved = engine.parameters_sha256()
    with ullage.gathered(engine.module.classifier.bias, modify_rank=0), torch.no_grad():
        engine.module.classifier.bias.fill_(3)
    assert engine.parameters_sha256() != saved
    of.load_state(str(tmp_path / "state"))
    assert engine.parameters_sha256() == saved
    state = of.get_state_dict(engine)
    assert torch.equal(state["classifier.bias"], engine.module.classifier.bias)
    of.save_model(engine, str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_an_optimizer_that_cannot_run_on_slices_is_refused_by_name():
    config = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    with pytest.raises(ullage.UnsupportedError, match="Adagrad cannot run on sliced state"):
        train(accelerator(config), own, torch.optim.Adagrad)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_accelerates_precision_is_the_engines(precision):
    _, engine, _ = train(
        accelerator({"zero_optimization": {"stage": 3}}, mixed_precision=precision), own
    )
    assert engine._settings.precision.name == precision
    assert engine.module.classifier.weight.dtype == engine.get_data_types()[0] != torch.float32


def test_a_plugin_without_a_file_is_a_config(plain):
    of = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=1), gradient_accumulation_steps=2)
    losses, engine, _ = train(of, own)
    assert losses == pytest.approx(plain, rel=1e-4) and engine.zero_optimization_stage() == 1


def test_the_stand_in_answers_for_deepspeed():
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    assert deepspeed.DeepSpeedEngine is ullage.Engine
    assert importlib.metadata.version("deepspeed") == deepspeed.__version__
    assert safe_get_full_fp32_param is ullage.full_parameter
    with pytest.raises(AttributeError, match="deepspeed.zero.TiledLinear is not offered"):
        deepspeed.zero.TiledLinear
    with pytest.raises(ModuleNotFoundError, match="deepspeed.pipe is not offered"):
        importlib.import_module("deepspeed.pipe")


def run_python(text, folder):
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_an_installed_deepspeed_is_stood_in_for_or_refused_where_it_is_imported(tmp_path):
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("__version__ = '0.19.6'\n")
    (tmp_path / "deepspeed-0.19.6.dist-info").mkdir()
    (tmp_path / "deepspeed-0.19.6.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.6\n"
    )
    late = "import ullage.huggingface.standin as s, deepspeed\ns.install()"
    assert "deepspeed 0.19.6 is imported already" in run_python(late, tmp_path).stderr
    early = (
        "import logging, ullage.huggingface.standin as s; logging.basicConfig(); s.install()\n"
        "import deepspeed; print(deepspeed.DeepSpeedEngine.__module__)"
    )
    done = run_python(early, tmp_path)
    assert done.stdout == "ullage.engine\n"
    assert "deepspeed 0.19.6 is installed; in this process ullage stands in for it" in done.stderr


@pytest.mark.parametrize("version", ["5.16.4", "5.25.0"])
def test_an_untested_version_is_refused_with_both_numbers(monkeypatch, version):
    from ullage.huggingface import patches

    real = importlib.metadata.version
    monkeypatch.setattr(
        patches.importlib.metadata,
        "version",
        lambda name: version if name == "transformers" else real(name),
    )
    with pytest.raises(ullage.UnsupportedError, match=f"transformers {version}.*5.17 to 5.24"):
        patches.check_versions()
