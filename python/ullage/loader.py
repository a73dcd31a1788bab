"""The loader that `initialize` makes of `training_data`."""

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from ullage import _C


class EngineLoader:
    """Micro-batches of this rank. Each pass over it shuffles anew; `len` counts micro-batches."""

    def __init__(self, dataset, batch_size, rank, world_size, collate_fn, drop_last, seed, pin_memory):
        self._sampler = None
        if isinstance(dataset, IterableDataset):
            if world_size > 1:
                raise _C.UnsupportedError(
                    "training_data is an IterableDataset, which cannot be dealt out to ranks\n"
                    "hint: pass a dataset with __len__ and __getitem__, or a loader of your own"
                )
        else:
            if len(dataset) == 0:
                raise _C.ConfigError("training_data is empty\nhint: pass a dataset with records")
            if drop_last and len(dataset) < batch_size * world_size:
                raise _C.ConfigError(
                    f"training_data has {len(dataset)} records, one micro-batch on all ranks takes "
                    f"{batch_size * world_size}\nhint: use a smaller micro-batch or "
                    "dataloader_drop_last false"
                )
            self._sampler = DistributedSampler(
                dataset, world_size, rank, shuffle=True, seed=seed, drop_last=drop_last
            )
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self._sampler,
            collate_fn=collate_fn,
            drop_last=drop_last,
            pin_memory=pin_memory,
        )
        self._epoch = 0

    def __iter__(self):
        if self._sampler is not None:
            self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        return iter(self._loader)

    def __len__(self):
        return len(self._loader)

    @property
    def dataset(self):
        return self._loader.dataset

    @property
    def batch_size(self):
        return self._loader.batch_size


def to_device(value, device):
    """The same structure with its tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device, non_blocking=True)
    if isinstance(value, dict):
        moved = {key: to_device(item, device) for key, item in value.items()}
        return moved if type(value) is dict else _like(value, moved)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(item, device) for item in value)
    return value


def _like(value, moved):
    try:
        return type(value)(moved)
    except TypeError:
        return moved
