"""`ullage plan`: does a job fit a device, what brings its peak, and what could be changed."""

import json

from conftest import ROOT, run, run_well, write_config


def plan(shop, *words, stage=0, **settings):
    config = write_config(shop.new("config.json"), stage, **settings)
    return json.loads(run_well("plan", "--model", shop.model / "config.json", "--config", config,
                               "--seq", 16, "--json", *words).stdout)


def lever(told, part):
    return next(lever for lever in told["levers"] if part in lever["change"])


def test_a_job_that_fits_says_how_much_is_left_and_where_its_peak_is(shop):
    told = plan(shop, "--device", "a100-40g")
    assert told["device"]["fits"] and told["device"]["name"] == "a100-40g"
    assert told["prediction"]["device"] <= told["device"]["bytes"]
    phases = {phase["phase"]: phase for phase in told["prediction"]["phases"]}
    assert phases["backward"]["by_tag"]["activations"] > 0
    assert sum(phases["backward"]["by_tag"].values()) == phases["backward"]["bytes"]
    assert max(phase["bytes"] for phase in phases.values()) == told["prediction"]["peak"]
    assert told["prediction"]["allocated"] >= told["prediction"]["peak"]
    named = [held for held in told["prediction"]["largest"] if held["parameter"]]
    assert any("encoder.layer" in held["parameter"] for held in named)


def test_every_change_is_told_with_what_it_gains(shop):
    told = plan(shop, "--device", "a100-40g")
    before = told["prediction"]
    assert lever(told, '{"stage": 2}')["prediction"]["device"] == before["device"]
    smaller = lever(told, "train_micro_batch_size_per_gpu")["prediction"]
    assert smaller["peak"] < before["peak"]
    on_host = lever(told, "offload_optimizer")["prediction"]
    assert on_host["peak"] < before["peak"] and on_host["host"] > before["host"]
    divided = plan(shop, "--device", "a100-40g", "--ranks", 4)
    after = lever(divided, '{"stage": 3}')["prediction"]
    assert after["peak"] < divided["prediction"]["peak"]


def test_a_job_that_does_not_fit_says_by_how_much(shop):
    fits = plan(shop, "--device", "a100-40g")["prediction"]
    config = write_config(shop.new("config.json"), 0)
    words = ("plan", "--model", shop.model / "config.json", "--config", config, "--seq", 16)
    told = run_well(*words, "--device", f"{fits['device'] - 1024}").stdout
    assert "does not fit" in told and "over by 1.00 KiB" in told
    assert "what could be changed" in told
    told = run_well(*words, "--device", f"{fits['device'] + 1024}").stdout
    assert "1.00 KiB to spare" in told
    assert "torch's allocator" in told and "not measured there" in told
    assert "not measured there" not in run_well(*words, "--device", "h200").stdout


def test_where_no_single_change_fits_the_fastest_combination_is_told(tmp_path):
    model = ROOT / "benchmarks/engine/models/bert-base.json"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 64,
                                  "optimizer": {"type": "AdamW"}}))

    def last(device):
        told = json.loads(run_well("plan", "--model", model, "--config", config, "--seq", 512,
                                   "--device", device, "--json").stdout)
        assert not told["device"]["fits"]
        fits = [lever for lever in told["levers"] if "prediction" in lever and
                lever["prediction"]["device"] <= told["device"]["bytes"]]
        assert fits == told["levers"][-1:]
        assert fits[0]["cost"] == "the fastest that fits"
        return fits[0]

    roomy, tight = last("2900MiB"), last("2300MiB")
    for found in (roomy, tight):
        assert '"train_micro_batch_size_per_gpu"' in found["change"]
    assert "device_memory" not in roomy["change"] and "device_memory" in tight["change"]
    assert roomy["prediction"]["seconds"]["step"] < tight["prediction"]["seconds"]["step"]


def test_with_a_budget_and_nothing_else_the_fastest_that_fits_is_chosen(tmp_path):
    model = ROOT / "benchmarks/engine/models/bert-base.json"

    def told(**settings):
        config = tmp_path / "config.json"
        config.write_text(json.dumps({"train_batch_size": 64, "optimizer": {"type": "AdamW"},
                                      **settings}))
        words = ("plan", "--model", model, "--config", config, "--seq", 512, "--device", "h200")
        return json.loads(run_well(*words, "--json").stdout)

    unbounded = told()
    assert unbounded["chosen"] == [] and unbounded["micro_batch"] == 64
    within = 4 << 30
    chosen = told(ullage={"device_memory": within})
    assert within < unbounded["prediction"]["device"]
    assert chosen["prediction"]["device"] <= within and chosen["micro_batch"] < 64
    assert "as the fastest of" in chosen["chosen"][0] and "4.00 GiB" in chosen["chosen"][0]
    assert "faster with more memory" in chosen["chosen"][1]
    # What is given is kept.
    given = told(train_micro_batch_size_per_gpu=4,
                 ullage={"device_memory": within, "recompute": "block"})
    assert given["chosen"] == [] and given["micro_batch"] == 4


def test_a_file_says_which_lengths_to_plan_for_and_how_many_records_fit(shop):
    config = write_config(shop.new("config.json"), 0, train_batch_size=4)
    words = ("plan", "--model", shop.model / "config.json", "--config", config)
    told = json.loads(run_well(*words, "--train", shop.train_file, "--json").stdout)
    lengths = told["lengths"]
    assert lengths["median"] <= lengths["most"] <= lengths["longest"] == told["sequence"]
    assert 0 < lengths["padding"] < 1
    one = json.loads(run_well(*words, "--seq", lengths["longest"], "--micro-batch", 3, "--device",
                              "a100-40g", "--json").stdout)["prediction"]["device"]
    fits = json.loads(run_well(*words, "--train", shop.train_file, "--device", one, "--json").stdout)
    most = {entry["tokens"]: entry["records"] for entry in fits["largest_micro_batch"]}
    assert most[lengths["longest"]] >= 3  # and more, where torch's segments have room
    assert most[lengths["median"]] >= most[lengths["longest"]]
    assert "tokens fit into a forward on" in run_well(*words, "--train", shop.train_file, "--device",
                                                      one).stdout


def test_an_unknown_device_lists_the_known(shop):
    config = write_config(shop.new("config.json"), 0)
    done = run("plan", "--model", shop.model / "config.json", "--config", config, "--device",
               "a100-41g")
    assert done.returncode != 0
    assert "a100-41g" in done.stderr and "a100-40g" in done.stderr
