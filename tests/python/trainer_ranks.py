"""Trains and generates under Trainer on as many ranks as there are; rank 0 prints what came out."""

import json
import os
import pathlib
import sys

import torch
from transformers import LlamaForCausalLM, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config
from transformers import T5ForConditionalGeneration

import ullage
from trainer_support import llama, losses, trainer, zero

ullage.enable_for_transformers()
folder = pathlib.Path(sys.argv[1])
results = {"sha256": [], "losses": []}

for stage in (0, 1, 2, 3):
    run = trainer(folder / "train", zero(stage), gradient_accumulation_steps=1)
    run.train()
    rank = run.args.process_index
    results["world_size"] = run.args.world_size
    results["losses"].append(losses(run))
    results["sha256"].append(run.deepspeed.parameters_sha256())
    results["eval"] = run.evaluate()["eval_loss"]

run = trainer(folder / "resume", zero(3), save_strategy="steps", save_steps=2)
run.train()
rest = trainer(folder / "resume", zero(3), save_strategy="no")
rest.train(resume_from_checkpoint=str(folder / "resume" / "checkpoint-2"))
results["resumed"] = run.deepspeed.parameters_sha256() == rest.deepspeed.parameters_sha256()
rest.save_model(folder / "model")

# Ranks generate without each other: each stops when it is done, and one generates alone.
model = llama()
run = trainer(folder / "generate", zero(3), model=model, max_steps=1)
run.train_dataset = [{"input_ids": torch.arange(8) + 2, "labels": torch.arange(8) + 2}] * 8
run.train()
prompt = torch.full((1, 3), 5 + rank)
generated = [model.generate(prompt, max_new_tokens=4 + 9 * rank, min_new_tokens=4, do_sample=False)]
if rank == 0:
    generated.append(model.generate(prompt, max_new_tokens=16, do_sample=False))
run.save_model(folder / "decoder")
run.accelerator.wait_for_everyone()
alone = LlamaForCausalLM.from_pretrained(folder / "decoder")
expected = alone.generate(prompt, max_new_tokens=4 + 9 * rank, min_new_tokens=4, do_sample=False)
same = torch.tensor(int(torch.equal(generated[0], expected)))
torch.distributed.all_reduce(same, torch.distributed.ReduceOp.MIN)
results["generated"] = bool(same)

# predict_with_generate in the middle of training.
torch.manual_seed(0)
seq2seq = T5ForConditionalGeneration(
    T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
)
data = [
    {"input_ids": torch.arange(4) + 2 + i, "labels": torch.arange(4 + i % 3) + 2 + i}
    for i in range(8)
]
seen = []
run = Seq2SeqTrainer(
    model=seq2seq,
    args=Seq2SeqTrainingArguments(
        output_dir=str(folder / "seq2seq"),
        deepspeed=zero(3),
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        predict_with_generate=True,
        generation_max_length=12,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=data,
    eval_dataset=data,
    compute_metrics=lambda found: {"count": len(found.predictions)},
)
run.train()
results["predicted"] = [e["eval_count"] for e in run.state.log_history if "eval_count" in e]
if rank == 0:
    print(json.dumps(results), flush=True)
# What is tested is done. A rank was once seen to abort while the interpreter ended on a loaded machine
# ("terminate called without an active exception"), which says nothing of the above.
os._exit(0)
