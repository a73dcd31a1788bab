"""Speed of saving and loading beside dd and torch.save on the same disk, taking turns.

    python benchmarks/checkpoint/run.py PROGRAM FOLDER [--mb 768] [--rounds 7]

PROGRAM is checkpoint_benchmark; FOLDER is made and removed. Every round does each thing once, in an
order that changes; medians are printed, and those of the ratios within a round. Files are evicted
from the page cache before they are read.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import time

import torch

SIDE = 2048


def timed(body):
    start = time.perf_counter()
    body()
    return 1000 * (time.perf_counter() - start)


def evict(paths):
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Bench:
    def __init__(self, program, folder, mb):
        self.folder, self.ours = folder, folder / "ours"
        self.child = subprocess.Popen([program, self.ours, str(mb)], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        assert self.child.stdout.readline() == "ready\n"
        parts = mb * (1 << 20) // (4 * SIDE * SIDE)
        self.state = {str(i): torch.randn(SIDE, SIDE) for i in range(parts)}
        self.mb = parts * 4 * SIDE * SIDE >> 20

    def ask(self, word):
        self.child.stdin.write(word + "\n")
        self.child.stdin.flush()
        return float(self.child.stdout.readline())

    def dd_write(self):
        return timed(lambda: subprocess.run(
            ["dd", "if=/dev/zero", f"of={self.folder / 'dd'}", "bs=1M", f"count={self.mb}",
             "conv=fdatasync"], check=True, stderr=subprocess.DEVNULL))

    def torch_save(self):
        def save():
            with open(self.folder / "torch.pt", "wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())
        return timed(save)

    def save(self):
        return self.ask("save")

    def files(self):
        return list(self.ours.glob("step-*/rank-*"))

    def plain_read(self):
        evict(self.files())
        return timed(lambda: [subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"],
                                             check=True, stderr=subprocess.DEVNULL)
                              for path in self.files()])

    def load(self):
        evict(self.files())
        return self.ask("load")

    def plain_read_cached(self):
        return timed(lambda: [subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"],
                                             check=True, stderr=subprocess.DEVNULL)
                              for path in self.files()])

    def load_cached(self):
        return self.ask("load")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mb", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    try:
        bench = Bench(arguments.program.resolve(), arguments.folder.resolve(), arguments.mb)
        tasks = [bench.save, bench.dd_write, bench.torch_save, bench.load, bench.plain_read,
                 bench.load_cached, bench.plain_read_cached]
        times = {task.__name__: [] for task in tasks}
        bench.save()  # first, so that there is something to read; everything is rewritten later
        bench.dd_write()
        bench.torch_save()
        for number in range(arguments.rounds):
            order = tasks if number % 2 == 0 else tasks[::-1]
            for task in order:
                os.sync()
                times[task.__name__].append(task())
        print(f"{bench.mb} MB, {arguments.rounds} rounds; median ms, MB/s")
        for name, values in times.items():
            median = statistics.median(values)
            print(f"{name:18} {median:9.0f} {1000 * bench.mb / median:9.0f}   "
                  f"({min(values):.0f} to {max(values):.0f})")
        for ours, theirs in (("save", "dd_write"), ("save", "torch_save"), ("load", "plain_read"),
                             ("load_cached", "plain_read_cached")):
            ratio = statistics.median(t / o for o, t in zip(times[ours], times[theirs]))
            print(f"speed of {ours} to that of {theirs}: {ratio:.2f}")
        bench.child.communicate("quit\n")
    finally:
        shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
