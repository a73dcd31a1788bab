"""`ullage doctor`: this machine, and settings that somebody brings."""

import json

from conftest import run, run_well, write_config


def test_it_tells_the_machine_and_reads_settings(shop):
    config = write_config(shop.new("config.json"))
    findings = json.loads(run_well("doctor", "--config", config, "--json").stdout)
    assert {finding["level"] for finding in findings} <= {"ok", "note"}
    assert any("cores" in finding["text"] for finding in findings)
    assert "can be read" in run_well("doctor", "--config", config).stdout


def test_what_is_wrong_in_settings_is_a_problem_with_its_remedy(shop):
    config = write_config(shop.new("config.json"), gradient_clipp1ng=1.0)
    done = run("doctor", "--config", config)
    assert done.returncode == 1
    assert "PROBLEM" in done.stdout and "gradient_clipping" in done.stdout
