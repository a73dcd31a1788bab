"""The door for Hugging Face's Trainer and accelerate.

    import ullage
    ullage.enable_for_transformers()
    ...
    trainer = Trainer(args=TrainingArguments(deepspeed="ds_config.json", ...), ...)

Both libraries reach an engine through the package `deepspeed`. A stand-in takes that name, so that
scripts stay as they are (standin.py); the few things it cannot express are in patches.py.
"""

_enabled = False


def enable_for_transformers():
    """From now on Trainer and accelerate run what asks for DeepSpeed on this engine.

    Call it once, before TrainingArguments or Accelerator is made. transformers may be imported
    before or after; accelerate.utils has DummyOptim and DummyScheduler from then on. Raises
    UnsupportedError for versions of transformers or accelerate that are not tested, StateError when
    the real deepspeed is imported already.
    """
    global _enabled
    if _enabled:
        return
    from ullage.huggingface import patches, standin

    patches.check_versions()
    standin.install()
    patches.install()
    _enabled = True


def is_enabled():
    """Whether enable_for_transformers was called."""
    return _enabled
