"""Time of a step of BERT-base through the Python door against plain PyTorch's, on one GPU.

    PYTHONPATH=build/ci/python python benchmarks/python/gpu_steps.py [--batch 16] [--seq 128]

Hugging Face's model, untouched: plain PyTorch runs it in fp32 under bf16 autocast with a fused
AdamW, the engine in bf16 with exact fp32 masters. Prints medians in ms and their ratios, and after
each the most that torch gave out on the device.
"""

import argparse
import gc
import statistics
import time

import torch
from transformers import BertConfig, BertForSequenceClassification

import ullage


def model():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(num_labels=2)).train()


def plain_step():
    own = model().cuda()
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-5, fused=True)

    def step(batch):
        with torch.autocast("cuda", torch.bfloat16):
            loss = own(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def engine_step(stage):
    host = {"device": "cpu"}
    streamed = {"offload_param": host, "offload_optimizer": host} if stage == "streamed" else {}
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": {"stage": 3 if streamed else stage, **streamed},
    }
    engine, *_ = ullage.initialize(model=model(), config=settings)

    def step(batch):
        engine.backward(engine(**batch).loss)
        engine.step()

    return step


def measure(make, batch, steps):
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = make()
    times = []
    for number in range(steps + 5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(batch)
        torch.cuda.synchronize()
        if number >= 5:
            times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times), torch.cuda.max_memory_allocated() / 2**30


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    ids = torch.randint(1000, 30000, (args.batch, args.seq), device="cuda")
    labels = torch.randint(0, 2, (args.batch,), device="cuda")
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    plain = 0.0
    for name in ("plain", 0, 1, 2, 3, "streamed", "plain"):
        make = plain_step if name == "plain" else (lambda stage=name: engine_step(stage))
        ms, gib = measure(make, batch, args.steps)
        plain = ms if name == "plain" else plain
        print(f"{name}: {ms:.1f} ms, {ms / plain:.2f} of plain, at most {gib:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
