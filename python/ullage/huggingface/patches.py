"""What has to be other in transformers and accelerate, for the versions that are tested."""

import functools
import importlib
import importlib.metadata
import os
import sys

from ullage import _C
from ullage.engine import Engine
from ullage.huggingface import config as configs
from ullage.huggingface import pretrained

# First and last tested version of each; those between are accepted.
TESTED = {"transformers": ((5, 17), (5, 24)), "accelerate": ((1, 10), (1, 15))}


def check_versions():
    """Raises UnsupportedError for a version outside of TESTED, or one that is missing."""
    for package, (first, last) in TESTED.items():
        span = f"{_text(first)} to {_text(last)}"
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise _C.UnsupportedError(
                f"{package} is not installed\nhint: pip install '{package}=={_text(last)}.*'"
            ) from None
        number = tuple(int(part) for part in version.split(".")[:2])
        if not first <= number <= last:
            raise _C.UnsupportedError(
                f"{package} {version}: the door for transformers is tested with {span}\n"
                f"hint: pip install '{package}=={_text(last)}.*'"
            )


def _text(version):
    return ".".join(map(str, version))


def install():
    """Imports both libraries and changes them. The stand-in for deepspeed is there already."""
    _renew_what_was_decided_at_import()
    import accelerate.accelerator
    import accelerate.state
    import accelerate.utils.deepspeed as accelerate_side
    import transformers.integrations.deepspeed as transformers_side
    from transformers import core_model_loading, modeling_utils

    # Weights are an ordinary model's until the engine takes them over, and whole for every operator
    # afterwards: loading, resizing and generating need no ways of their own. So transformers, which
    # asks this record whether they do, gets none.
    transformers_side.set_hf_deepspeed_config = pretrained.remember

    # At stage 3 from_pretrained leaves in the files what a rank will not keep (pretrained.py).
    _wrap(modeling_utils, "safe_open", pretrained.open_file)
    _wrap(
        modeling_utils.PreTrainedModel,
        "_load_pretrained_model",
        pretrained.load_model,
        staticmethod,
    )
    _wrap(core_model_loading, "spawn_materialize", pretrained.materialize)
    _wrap(core_model_loading, "set_param_for_module", pretrained.set_parameter)

    _wrap(accelerate_side.HfDeepSpeedConfig, "__init__", _complete_config)
    _wrap(
        transformers_side.HfTrainerDeepSpeedConfig, "trainer_config_process", _complete_for_trainer
    )

    # Training begins with accelerate destroying the engine of an evaluation or training before.
    _wrap(transformers_side, "deepspeed_init", _unwrap_for_a_new_engine)
    if "transformers.trainer" in sys.modules:
        sys.modules["transformers.trainer"].deepspeed_init = transformers_side.deepspeed_init

    # accelerate swaps the user's optimizer for an Adam where state is offloaded, whatever it was.
    accelerate.accelerator.map_pytorch_optim_to_deepspeed = _keep
    accelerate_side.map_pytorch_optim_to_deepspeed = _keep

    # Without a GPU accelerate names no backend beside deepspeed, and each rank would believe to be
    # alone.
    _wrap(accelerate.state.PartialState, "_prepare_backend", _gloo_without_a_gpu)


def _wrap(owner, name, around, kind=lambda function: function):
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return around(original, *args, **kwargs)

    setattr(owner, name, kind(wrapped))


def _complete_config(original, self, config_file_or_dict):
    original(self, configs.load(config_file_or_dict))
    configs.complete(self.config)
    self.set_stage_and_offload()


def _complete_for_trainer(original, self, *args, **kwargs):
    configs.complete_for_trainer(self.config)
    return original(self, *args, **kwargs)


def _unwrap_for_a_new_engine(original, trainer, *args, **kwargs):
    if isinstance(trainer.model_wrapped, Engine):
        trainer.model_wrapped = trainer.model
    return original(trainer, *args, **kwargs)


def _keep(optimizer):
    return optimizer


def _gloo_without_a_gpu(original, self, *args, **kwargs):
    backend, kind = original(self, *args, **kwargs)
    asks = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    if backend is None and asks and int(os.environ.get("LOCAL_RANK", -1)) != -1:
        backend = "gloo"
    return backend, kind


# Modules that look for deepspeed when they are imported, and what they then hold.
_DECIDED = {
    "accelerate.utils": (
        "DeepSpeedEngineWrapper",
        "DeepSpeedOptimizerWrapper",
        "DeepSpeedSchedulerWrapper",
        "DummyOptim",
        "DummyScheduler",
        "HfDeepSpeedConfig",
        "get_active_deepspeed_plugin",
        "map_pytorch_optim_to_deepspeed",
    ),
    "accelerate.accelerator": (
        "DeepSpeedEngineWrapper",
        "DeepSpeedOptimizerWrapper",
        "DeepSpeedSchedulerWrapper",
        "DummyOptim",
        "DummyScheduler",
        "map_pytorch_optim_to_deepspeed",
    ),
    "transformers.trainer": ("DeepSpeedSchedulerWrapper",),
}


def _renew_what_was_decided_at_import():
    """Modules imported before the stand-in was there get the names that they would have taken."""
    if "accelerate" in sys.modules:
        source = importlib.import_module("accelerate.utils.deepspeed")
        for module, names in _DECIDED.items():
            if module in sys.modules:
                for name in names:
                    setattr(sys.modules[module], name, getattr(source, name))
    decided = sys.modules.get("transformers.integrations.deepspeed")
    if decided is not None:
        importlib.reload(decided)
        shown = sys.modules["transformers.integrations"]
        for name in ("HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig"):
            vars(shown).pop(name, None)
