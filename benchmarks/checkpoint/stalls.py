"""How long training stands still for saves that are as frequent as the disk allows.

    python benchmarks/checkpoint/stalls.py ULLAGE MODEL TOKENS FOLDER [--steps 40] [--batch 32]

ULLAGE is the program, MODEL and TOKENS as for `ullage train`; FOLDER is made and removed. A first
run without saves tells the time of a step, a second one that of a save; then `--save-every` is the
fewest steps in which a save is done, and runs with and without saves take turns.
"""
import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ullage", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("tokens", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True)
    config = folder / "config.json"
    config.write_text(json.dumps({
        "train_micro_batch_size_per_gpu": arguments.batch, "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}))

    def train(steps, *more):
        report = folder / "report.json"
        shutil.rmtree(folder / "out", ignore_errors=True)
        subprocess.run([arguments.ullage, "train", "--model", arguments.model, "--train",
                        arguments.tokens, "--config", config, "--steps", str(steps), "--ranks",
                        "1", "--threads", "2", "--output", folder / "out", "--report", report,
                        *more], check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text())

    try:
        step_ms = statistics.median(train(8)["step_ms"])
        save_ms = train(8, "--save-every", "8")["last_save_ms"]
        every = math.ceil(1.2 * save_ms / step_ms) + 1
        print(f"a step takes {step_ms:.0f} ms, a save {save_ms:.0f} ms: one every {every} steps")
        steps = max(2, arguments.steps // every) * every
        shares, slower = [], []
        for _ in range(arguments.rounds):
            plain = train(steps)
            saving = train(steps, "--save-every", str(every))
            whole = sum(saving["step_ms"]) + saving["save_ms"]
            shares.append(saving["save_ms"] / whole)
            slower.append(statistics.median(saving["step_ms"]) /
                          statistics.median(plain["step_ms"]))
            print(f"{saving['saves']} saves in {steps} steps: stood still for "
                  f"{saving['save_ms']:.0f} of {whole:.0f} ms, {100 * shares[-1]:.2f} %; median "
                  f"step {slower[-1]:.3f} of that without saves")
        print(f"medians: {100 * statistics.median(shares):.2f} %, {statistics.median(slower):.3f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
