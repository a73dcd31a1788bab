"""examples/python/sins.py as a user runs it, for a few steps."""

import pathlib
import re
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python" / "sins.py"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "20", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    return losses, done.stdout.splitlines()[-1], done.stderr


def test_the_loop_full_of_sins_trains_to_the_same_bits_at_stages_0_and_3():
    losses, digest, warnings = run("--stage", "3")
    assert len(losses) == 2 and losses[1] < losses[0] < 4.5
    assert warnings.count("moves or casts a module of the engine") == 2
    assert "self.layers.to(device)" in warnings
    assert run("--stage", "0")[:2] == (losses, digest)
