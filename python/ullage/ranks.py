"""The ranks of this process's run: one group, shared by all engines."""

from ullage import _C

_ranks = None


def connect(timeout_seconds):
    """Meets the other ranks as torchrun, mpirun or srun describe them; alone without a launcher."""
    global _ranks
    if _ranks is None:
        _ranks = _C.Ranks.from_environment(timeout_seconds)
    return _ranks


def init_distributed(dist_backend=None, timeout=None, **_):
    """Starts torch.distributed for scripts that use it themselves; the engine does not need it.

    Nothing happens where it is started already or where there is one rank without a launcher.
    """
    import datetime
    import os

    import torch

    dist = torch.distributed
    if dist.is_initialized() or "RANK" not in os.environ:
        return
    backend = dist_backend or ("nccl" if torch.cuda.is_available() else "gloo")
    dist.init_process_group(backend, timeout=timeout or datetime.timedelta(minutes=30))
