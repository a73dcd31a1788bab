"""Trains on as many ranks as there are, at every stage, and prints a line of what came out of each."""

import json

import torch

import ullage
from models import batches, bert, config

for stage, spelling in ((0, "engine"), (1, "plain"), (2, "engine"), (3, "engine"), (3, "plain")):
    model = bert(dropout=0)
    engine, *_ = ullage.initialize(model=model, config=config(stage, micro=2), seed=7)
    for index, batch in enumerate(batches(3, 4)):
        part = {key: value[2 * engine.global_rank :][:2] for key, value in batch.items()}
        loss = engine(**part).loss
        loss.backward() if spelling == "plain" else engine.backward(loss)
        if index == 2:
            gradient = model.classifier.weight.grad.sum().item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        engine.step()
    with ullage.gathered(model.classifier.bias, modify_rank=1), torch.no_grad():
        model.classifier.bias.fill_(engine.global_rank)
    result = {
        "sha256": engine.parameters_sha256(),
        "gradient": gradient,
        "norm": engine.get_global_grad_norm(),
        "bias": ullage.full_parameter(model.classifier.bias).tolist(),
    }
    print(json.dumps(result))
    engine.destroy()
