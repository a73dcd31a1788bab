"""The lines that a run says of itself, on standard error where the program has no logging of its own."""

import logging

log = logging.getLogger("ullage")

# By the key that asks for it: what the Python package leaves to the program.
_WITHOUT_EFFECT = {
    "activation_checkpointing": "a module of your own decides itself what it recomputes: "
    "model.gradient_checkpointing_enable() or torch.utils.checkpoint",
    "ullage.recompute": "a module of your own decides itself what it recomputes: "
    "model.gradient_checkpointing_enable() or torch.utils.checkpoint",
    "wall_clock_breakdown": "only `ullage train` prints it; torch.profiler sees the engine's scopes",
    "memory_breakdown": "only `ullage train` prints it; ullage.memory_report() has the numbers",
}


class _Lines(logging.StreamHandler):
    def emit(self, record):
        if not logging.root.handlers:  # else they have it
            super().emit(record)


def install():
    """Once: what the engine decided is seen without a line of logging in the program."""
    handler = _Lines()
    handler.setFormatter(logging.Formatter("ullage: %(message)s"))
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)


def say_start(settings, start_lines):
    """On one rank, when an engine is made."""
    for line in (*start_lines, *settings.no_effect):
        log.info(line)
    for key, why in _WITHOUT_EFFECT.items():
        if any(given == key or given.startswith(key + ".") for given in settings.given):
            log.warning("%s: no effect here, because %s", key, why)


def say_integers(parameters):
    """Which parameters no engine can divide, and what they hold."""
    held = sum(p.numel() * p.element_size() for p in parameters.values())
    log.info(
        "%d parameters of integers ('%s'%s) stay whole on every rank: %.1f MiB",
        len(parameters),
        next(iter(parameters)),
        ", ..." if len(parameters) > 1 else "",
        held / 2**20,
    )


def say_step(engine):
    """A line every steps_per_print steps, where the config has the key."""
    if engine._lines_every is None or engine.global_steps % engine._lines_every:
        return
    log.info(
        "step %d: lr %s, gradient norm %.4g, skipped %d",
        engine.global_steps,
        ", ".join(f"{lr:.4g}" for lr in engine.get_lr()),
        engine.get_global_grad_norm(),
        engine.skipped_steps,
    )
