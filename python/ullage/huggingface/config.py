"""Between the dict that accelerate keeps of a ds_config.json and the strict reader."""

import json
import logging
import math
import os

from ullage import _C

log = logging.getLogger("ullage")


def load(config):
    """The dict of a config that is given as dict, path, JSON text or base64; what is no path stays.

    accelerate reads the file by itself, without seeing that a key stands twice. Raises ConfigError.
    """
    if not isinstance(config, (str, os.PathLike)) or not os.path.isfile(config):
        return config
    path = os.fspath(config)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path))
    except json.JSONDecodeError as error:
        raise _C.ConfigError(f"{path}: {error}\nhint: correct the JSON there") from None


def _once(pairs, path):
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise _C.ConfigError(f"{path}: the key '{key}' stands twice\nhint: remove one of them")
    return dict(pairs)


def complete(config):
    """Adds to a config what accelerate insists on or would fill with a value of its own choice.

    A budget alone is a config, too: without a section zero_optimization the stage is 0.
    """
    zero = config.setdefault("zero_optimization", {})
    if isinstance(zero, dict):
        zero.setdefault("stage", 0)
    if not {"train_batch_size", "train_micro_batch_size_per_gpu"} & set(config):
        config["train_micro_batch_size_per_gpu"] = "auto"
    config.setdefault("gradient_accumulation_steps", "auto")
    # Else accelerate adds a section with auto_cast, which is not offered.
    config.setdefault("fp16", {"enabled": "auto"})
    config.setdefault("bf16", {"enabled": "auto"})


def complete_for_trainer(config):
    """Leaves to TrainingArguments what the file does not say: batch sizes and clipping."""
    config.setdefault("train_micro_batch_size_per_gpu", "auto")
    config.setdefault("gradient_clipping", "auto")


def translate(config):
    """The config for the strict reader: what the libraries add in their own way is said in ours.

    steps_per_print infinity is how accelerate turns progress lines off. A warm-up of 0 steps is
    what older versions make of "auto" without one; the shortest that the schedules have is 1.
    """
    config = dict(config)
    every = config.get("steps_per_print")
    if isinstance(every, float) and math.isinf(every):
        config["steps_per_print"] = None
    scheduler = config.get("scheduler")
    parameters = scheduler.get("params") if isinstance(scheduler, dict) else None
    if isinstance(parameters, dict) and parameters.get("warmup_num_steps") == 0:
        log.info("scheduler.params.warmup_num_steps 0 is taken as 1")
        config["scheduler"] = {**scheduler, "params": {**parameters, "warmup_num_steps": 1}}
    return config
