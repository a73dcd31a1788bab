"""Runs against the package in the build folder: PYTHONPATH=build/ci/python (scripts/test.sh)."""

import os
import socket
import subprocess
import sys

import pytest


def run_ranks(world_size, script, *arguments, timeout=120, environment=None):
    """Runs a Python file as so many ranks, as a launcher would; returns rank 0's output."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world_size):
        env = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            OMP_NUM_THREADS="1",
            **(environment or {}),
        )
        processes.append(
            subprocess.Popen(
                [sys.executable, str(script), *map(str, arguments)],
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=timeout))
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs):
        assert process.returncode == 0, errors
    return outputs[0][0]


@pytest.fixture
def ranks():
    return run_ranks
