"""The learning-rate schedule of the config, as an object with the methods that people call."""


class ConfigScheduler:
    """Shows the schedule that the engine follows; it moves with every applied step by itself."""

    def __init__(self, engine):
        self._engine = engine

    @property
    def last_batch_iteration(self):
        return self._engine._core.applied_steps - 1

    def step(self, *_, **__):
        """Does nothing: the engine's step moves the schedule, and skipped steps do not."""

    def get_last_lr(self):
        return self._engine.get_lr()

    def get_lr(self):
        return self._engine.get_lr()

    def state_dict(self):
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state):
        """Does nothing: the schedule's position is that of the engine's checkpoint."""
