"""The loader that `initialize` makes of `training_data`."""

import itertools

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from ullage import _C


class _Remaining:
    """The indices of a sampler without the first `skip` of them, which nobody loads."""

    def __init__(self, sampler):
        self._sampler = sampler
        self.skip = 0

    def __iter__(self):
        return itertools.islice(iter(self._sampler), self.skip, None)

    def __len__(self):
        return len(self._sampler)


class EngineLoader:
    """Micro-batches of this rank. Each pass over it shuffles anew; `len` counts micro-batches of a pass.

    `state_dict()` says where it is, for client_state say, and after `load_state_dict` the next pass is
    the rest of that one, also on another number of ranks: no record comes twice, and none is lost.
    """

    def __init__(self, dataset, batch_size, rank, world_size, collate_fn, drop_last, seed, pin_memory):
        self._sampler = self._remaining = None
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
            self._remaining = _Remaining(self._sampler)
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self._remaining,
            collate_fn=collate_fn,
            drop_last=drop_last,
            pin_memory=pin_memory,
        )
        self._world_size = world_size
        self._epoch = -1  # of the pass that was begun last
        self._taken = 0  # micro-batches of it
        self._resumes = False

    def __iter__(self):
        if not self._resumes:
            self._epoch += 1
            self._taken = 0
        self._resumes = False
        if self._sampler is not None:
            self._sampler.set_epoch(self._epoch)
            self._remaining.skip = self._taken * self.batch_size
        epoch = self._epoch
        for batch in self._loader:
            if epoch == self._epoch:
                self._taken += 1
            yield batch

    def state_dict(self):
        """The epoch, and the records of it that all ranks have had.

        Raises UnsupportedError for an IterableDataset, which has no positions.
        """
        if self._sampler is None:
            raise _C.UnsupportedError(
                "the position in an IterableDataset is not known\nhint: keep it in the dataset"
            )
        return {"epoch": self._epoch, "records": self._taken * self.batch_size * self._world_size}

    def load_state_dict(self, state):
        """Raises ConfigError when micro-batches of this size on so many ranks do not come to that record."""
        at_once = self.batch_size * self._world_size
        taken, rest = divmod(state["records"], at_once)
        if rest:
            raise _C.ConfigError(
                f"the loader was at record {state['records']}, and one micro-batch on all ranks takes "
                f"{at_once}\nhint: go on with a micro-batch that divides {state['records']}, or begin the epoch anew"
            )
        self._epoch, self._taken = state["epoch"], taken
        self._resumes = 0 <= self._epoch and taken < len(self)

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
