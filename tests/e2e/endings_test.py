"""How a run ends when it does not come to its end: signals, and ranks that die."""
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
import transformers

from conftest import ULLAGE, write_config


def children_of(pid):
    return [int(word) for word in
            pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


class Run:
    """A training that goes on for ever, some steps old."""

    def __init__(self, shop, ranks):
        self.output, self.report = shop.new("out"), shop.new("report.json")
        words = shop.words(write_config(shop.new("config.json")), self.output, "--report",
                           self.report, "--steps", 10_000_000, "--ranks", ranks, "--threads", 1)
        self.process = subprocess.Popen([ULLAGE, *map(str, words)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        wait_for(lambda: self.steps() >= 3)

    def steps(self):
        metrics = self.output / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def end(self, seconds=30):
        self.out, self.err = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.mark.parametrize("ranks, number, code", [(2, signal.SIGINT, 130), (1, signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_and_writes_the_model(shop, ranks, number, code):
    with Run(shop, ranks) as run:
        run.process.send_signal(number)
        assert run.end() == code
        report = json.loads(run.report.read_text())
        assert report["steps"] == len(report["loss"]) == run.steps()
        assert report["interrupted_by_signal"] == number
        transformers.BertForSequenceClassification.from_pretrained(run.output)
        assert run.err == ""


def test_a_killed_rank_ends_the_others_within_seconds(shop):
    with Run(shop, 2) as run:
        victim = children_of(run.process.pid)[1]
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        assert run.end() == 128 + signal.SIGKILL
        assert time.monotonic() - start < 15
        assert "rank 1 was killed by signal 9" in run.err
        assert "ullage: error: rank 0: " in run.err
        assert not run.report.exists()


def test_ranks_die_with_the_process_that_started_them(shop):
    with Run(shop, 2) as run:
        ranks = children_of(run.process.pid)
        assert len(ranks) == 2
        run.process.kill()

        def gone(pid):
            try:
                state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return True
            return state == "Z"

        wait_for(lambda: all(map(gone, ranks)), seconds=10)
