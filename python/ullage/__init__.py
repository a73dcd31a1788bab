"""Trains PyTorch models in the memory that people have.

    import ullage
    engine, optimizer, loader, scheduler = ullage.initialize(model=model, config="ds_config.json")
    for batch in loader:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()

The model stays as it is: no wrapper, no hooks. What a ds_config.json says holds here, read strictly.
"""

import torch

from ullage._build import TORCH_VERSION, VERSION

__version__ = VERSION

if torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"ullage {VERSION} was built against torch {TORCH_VERSION}, and this is torch "
        f"{torch.__version__}\nhint: pip install torch=={TORCH_VERSION}, or build ullage again"
    )

from ullage._C import (  # noqa: E402
    CommError,
    ConfigError,
    Error,
    IoError,
    OutOfMemoryError,
    StateError,
    UnsupportedError,
)
from ullage import gradients, lines, patches  # noqa: E402
from ullage.empty import empty_init  # noqa: E402
from ullage.engine import Engine  # noqa: E402
from ullage.explain import explain  # noqa: E402
from ullage.huggingface import enable_for_transformers  # noqa: E402
from ullage.ranks import init_distributed  # noqa: E402
from ullage.initialize import initialize  # noqa: E402
from ullage.plan import Plan, plan  # noqa: E402
from ullage.prediction import Prediction  # noqa: E402
from ullage.whole import (  # noqa: E402
    full_gradient,
    full_optimizer_state,
    full_parameter,
    gathered,
    memory_report,
)

gradients.install()
lines.install()
patches.install()

__all__ = [
    "CommError",
    "ConfigError",
    "Engine",
    "Error",
    "IoError",
    "OutOfMemoryError",
    "Plan",
    "Prediction",
    "StateError",
    "UnsupportedError",
    "empty_init",
    "explain",
    "enable_for_transformers",
    "full_gradient",
    "full_optimizer_state",
    "full_parameter",
    "gathered",
    "init_distributed",
    "initialize",
    "memory_report",
    "plan",
]
