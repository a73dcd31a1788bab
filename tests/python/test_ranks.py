"""Several processes, as a launcher starts them."""

import json
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).with_name("two_ranks.py")


def test_two_ranks_agree_at_every_stage_and_spelling(ranks):
    results = [json.loads(line) for line in ranks(2, SCRIPT).splitlines()]
    assert len(results) == 5 and all(result == results[0] for result in results)
    assert results[0]["bias"] == [1.0, 1.0]
    assert results[0]["norm"] == pytest.approx(0.1, rel=1e-3)


def test_a_rank_may_read_through_pointers_alone_and_all_may_write(ranks, tmp_path):
    script = SCRIPT.with_name("lease_ranks.py")
    result = json.loads(ranks(2, script, tmp_path / "model.safetensors"))
    assert result == {"read": True, "saved": True, "written": [0.5]}
