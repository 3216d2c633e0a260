#!/usr/bin/env python3
"""A Hugging Face Trainer on a tiny model made from its configuration; each rank writes which samples it trained on."""

import json
import sys
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from elastic.integrations.hugging_face import ElasticCallback

steps, step_time_s, log = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
shared = sys.argv[-1] == "shared"
per_worker = int(sys.argv[4]) if len(sys.argv) > 4 and not shared else 2
LENGTH, GLOBAL_BATCH = 96, 12
seen: list[int] = []


class Numbers(Dataset):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.tensor([index % 50, (index + 1) % 50, index // 50])
        return {"input_ids": words, "labels": words, "index": torch.tensor(index)}


class Seeing(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        seen.extend(inputs.pop("index").tolist())
        return super().compute_loss(model, inputs, *args, **kwargs)


class Log(TrainerCallback):
    def on_step_end(self, args, state, control, model, **_):
        weight = float(sum(value.double().sum() for value in model.parameters()))
        row = {"step": state.global_step - 1, "samples": seen[:], "size": args.world_size, "loss": weight}
        with open(f"{log}.{args.process_index}", "a") as file:
            file.write(json.dumps(row) + "\n")
        seen.clear()
        time.sleep(step_time_s)


set_seed(7)
sizes = {"vocab_size": 50, "n_positions": 4, "n_embd": 8, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
callback = ElasticCallback(global_batch=GLOBAL_BATCH, shared=shared)
arguments = TrainingArguments(
    "checkpoints",
    per_device_train_batch_size=per_worker,
    max_steps=steps,
    seed=7,
    lr_scheduler_type="constant",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    remove_unused_columns=False,
    use_cpu=True,
    ddp_backend="gloo",
)
trainer = Seeing(model, arguments, train_dataset=Numbers(), callbacks=[Log(), callback])
trainer.train(resume_from_checkpoint=callback.checkpoint())
