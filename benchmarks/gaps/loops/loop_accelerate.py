"""Accelerate's loop, as the examples of transformers write it (run_clm_no_trainer.py)."""

import torch
from accelerate import Accelerator
from parts import AUTOCAST, STEPS, Samples, read_job, torch_optimizer, training_model

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}

job = read_job()
accelerator = Accelerator(
    mixed_precision=NAMES.get(AUTOCAST.get(job["precision"]), "no"),
    gradient_accumulation_steps=job["accumulate"],
)
model = training_model(job)
optimizer = torch_optimizer(job, model)
loader = torch.utils.data.DataLoader(Samples(job), batch_size=job["batch"])
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

model.train()
steps = 0
for batch in loader:
    with accelerator.accumulate(model):
        outputs = model(**batch)
        loss = outputs.loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    steps += accelerator.sync_gradients
    if steps == STEPS:
        break
