"""The plan of a module is what an engine then holds."""

import pytest
import torch

import ullage
from models import batches, bert, config


@pytest.mark.parametrize("stage", [0, 1, 2, 3, "streamed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_plan_is_what_the_engine_holds(stage, precision):
    more = {"bf16": {"enabled": True}} if precision == "bf16" else {}
    settings = config(stage, accumulation=2, **more)
    before = bert().state_dict()
    model = bert()
    planned = ullage.plan(model, settings, device="cpu")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    engine, *_ = ullage.initialize(model=model, config=settings)
    for batch in batches(2, 4):
        engine.backward(engine(**batch).loss)
        engine.step()
    # What loading took beside it is gone.
    peak = {tag: count for tag, count in engine._core.memory()["peak"].items() if tag != "data"}
    assert peak == {tag: count for tag, count in planned.bytes.items() if tag != "data"}


def test_ranks_divide_what_the_stage_says():
    with torch.device("meta"):
        model = bert()
    alone = ullage.plan(model, config(3), device="cpu")
    shared = ullage.plan(model, config(3), world_size=4, device="cpu")
    assert shared.bytes["moments"] < 0.26 * alone.bytes["moments"] + 4096
    assert len(shared.to_dict()["units"]) == len(alone.to_dict()["units"])
    assert "moments" in str(shared)


def test_memory_is_reported_for_each_engine():
    engine, *_ = ullage.initialize(model=bert(), config=config(3))
    reports = ullage.memory_report()
    assert engine._core.memory()["now"] in [report["now"] for report in reports]
