"""Two hosts of two ranks, started by torchrun: as good as four ranks of one host."""
import json
import os
import pathlib
import subprocess
import sys
import time

from conftest import ULLAGE, write_config

SCRIPT = pathlib.Path(__file__).with_name("two_hosts.sh")


def run_on_two_hosts(shop, folder, *words, timeout=120, **variables):
    return subprocess.run([SCRIPT, sys.executable, ULLAGE, folder, *map(str, words)],
                          capture_output=True, text=True, timeout=timeout,
                          env=os.environ | variables)


def logs(folder):
    return "".join((folder / f"host{host}.log").read_text() for host in (0, 1))


def test_two_hosts_train_as_four_ranks_of_one(shop, tmp_path):
    for stage in (1, 3):
        _, expected = shop.train("--ranks", 4, "--steps", 3, stage=stage)
        config, report = write_config(shop.new("config.json"), stage), shop.new("report.json")
        done = run_on_two_hosts(shop, tmp_path, *shop.words(
            config, shop.new("out"), "--report", report, "--threads", 1, "--steps", 3))
        assert done.returncode == 0, done.stderr + logs(tmp_path)
        assert json.loads(report.read_text())["parameters_sha256"] == expected["parameters_sha256"]


def test_every_rank_ends_when_the_link_is_cut(shop, tmp_path):
    config = write_config(shop.new("config.json"), steps_per_print=1,
                          ullage={"unit_size": "16KiB", "timeout_seconds": 5})
    began = time.monotonic()
    done = run_on_two_hosts(shop, tmp_path, *shop.words(
        config, shop.new("out"), "--threads", 1, "--steps", 100000), CUT="1")
    assert done.returncode != 0
    assert time.monotonic() - began < 100
    told = logs(tmp_path)
    assert told.count("ullage: error:") >= 2, told
