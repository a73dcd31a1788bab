"""The engine of Ullage as Python sees it. Programs use the package `ullage` around it."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Optional

import torch

version: str
torch_version: str

class Error(RuntimeError): ...
class ConfigError(Error, ValueError): ...
class UnsupportedError(Error, NotImplementedError): ...
class IoError(Error): ...
class CommError(Error): ...
class OutOfMemoryError(Error): ...
class StateError(Error): ...

class Precision(Enum):
    fp32 = ...
    bf16 = ...
    fp16 = ...

class OptimizerType(Enum):
    adam = ...
    sgd = ...

class BatchSizes:
    train_batch: int
    micro_batch: int
    accumulation_steps: int

class OptimizerSettings:
    type: OptimizerType
    lr: float
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    bias_correction: bool
    adam_w_mode: bool
    momentum: float
    dampening: float
    nesterov: bool

class EffectiveSetting:
    key: str
    value: str
    source: str

class Settings:
    @staticmethod
    def from_text(json: str, origin: str) -> Settings: ...
    @staticmethod
    def from_file(path: str) -> Settings: ...
    def resolve_batch_sizes(self, world_size: int) -> BatchSizes: ...
    def effective(self) -> list[EffectiveSetting]: ...
    has_scheduler: bool
    stage: int
    timeout_seconds: int
    no_effect: list[str]
    given: list[str]
    precision: Precision
    gradient_clipping: float
    steps_per_print: int
    dataloader_drop_last: bool
    train_batch_size: Optional[int]
    train_micro_batch_size_per_gpu: Optional[int]
    gradient_accumulation_steps: Optional[int]
    optimizer: OptimizerSettings

class Ranks:
    @staticmethod
    def from_environment(timeout_seconds: int) -> Ranks: ...
    @staticmethod
    def imagined(rank: int, world_size: int) -> Ranks: ...
    rank: int
    world_size: int
    def broadcast(self, tensor: torch.Tensor, root: int) -> None: ...
    def abort(self, reason: str) -> None: ...

class ParameterList:
    def __init__(self) -> None: ...
    def add(self, name: str, tensor: torch.Tensor) -> None: ...
    def add_buffer(self, name: str, tensor: torch.Tensor) -> None: ...
    def add_buffer_name(self, name: str) -> None: ...

class NamedGroup:
    def __init__(
        self, name: str, parameters: Sequence[str], lr: float, weight_decay: float
    ) -> None: ...
    name: str
    parameters: list[str]
    lr: float
    weight_decay: float

class StepResult:
    applied: bool
    grad_norm: float
    clip_coef: float
    lr: float
    loss_scale: float
    overflowed: str

class CheckpointInfo:
    path: str
    applied_steps: int
    skipped_steps: int
    world_size: int
    client_state: str

class EngineStatistics:
    gathers: int
    gathered_bytes: int
    gathered_ahead: int
    gather_overflows: int
    allocations: int
    save_wait_ms: float

class Gathered:
    def end(self) -> None: ...

class Engine:
    def __init__(
        self,
        parameters: ParameterList,
        settings: Settings,
        ranks: Ranks,
        seed: int = 0,
        weights: Optional[Callable[[str, list[int], int, int], torch.Tensor]] = None,
        no_decay: Sequence[str] = ...,
        groups: Sequence[NamedGroup] = ...,
        cuda: bool = False,
        dry_run: bool = False,
    ) -> None: ...
    def forward(self, forward: Callable[[], Any]) -> Any: ...
    def backward(
        self, loss: Optional[torch.Tensor], retain_graph: bool = False
    ) -> torch.Tensor: ...
    def scale(self, loss: torch.Tensor) -> torch.Tensor: ...
    def step(self) -> StepResult: ...
    def clear_gradients(self) -> None: ...
    def is_accumulation_boundary(self) -> bool: ...
    def gather(self, names: Sequence[str], write: bool) -> Gathered: ...
    def parameters_sha256(self) -> str: ...
    def read_whole(self, parameter: str, part: str) -> torch.Tensor: ...
    def write_whole(self, parameter: str, part: str, values: torch.Tensor) -> None: ...
    def save_checkpoint(
        self,
        folder: str,
        client_state: str = "",
        keep: int = 0,
        background: bool = False,
        buffer_bytes: int = 0,
    ) -> str: ...
    def finish_saving(self) -> None: ...
    def load_checkpoint(self, path: str, weights_only: bool = False) -> CheckpointInfo: ...
    def groups(self) -> list[NamedGroup]: ...
    def set_group(self, group: int, lr: Optional[float], weight_decay: float) -> None: ...
    def set_accumulation_steps(self, steps: int) -> None: ...
    batch_sizes: BatchSizes
    settings: Settings
    applied_steps: int
    skipped_steps: int
    lr: float
    loss_scale: float
    statistics: EngineStatistics
    def memory(self) -> dict[str, Any]: ...
    def planned_bytes(self) -> dict[str, int]: ...
    def plan_text(self) -> str: ...
    def plan_json(self) -> str: ...
    def start_lines(self) -> list[str]: ...

def predict(
    parameters: Callable[[], ParameterList],
    settings: Settings,
    ranks: Ranks,
    cuda: bool,
    device: str,
    run: Callable[[Engine], None],
) -> dict[str, Any]: ...
def device_bytes(device: str) -> int: ...

class MemoryWatch:
    def __init__(self, cuda: bool) -> None: ...
    def name(self, tensor: torch.Tensor, name: str) -> None: ...
    def stop(self) -> dict[str, Any]: ...

class Hold:
    def __init__(self, tensor: torch.Tensor, write: bool) -> None: ...
    def end(self) -> None: ...

def is_managed(tensor: torch.Tensor) -> bool: ...
def is_intercepted(tensor: torch.Tensor) -> bool: ...
