"""A loop by hand, as torch's tutorials write it: outputs in a variable, gradients zeroed as the job says."""

import torch
from parts import AUTOCAST, STEPS, Samples, read_job, torch_optimizer, training_model

job = read_job()
model = training_model(job).to("cuda")
model.train()
optimizer = torch_optimizer(job, model)
autocast = AUTOCAST.get(job["precision"])
scaler = torch.amp.GradScaler("cuda", enabled=autocast == torch.float16)
batches = iter(torch.utils.data.DataLoader(Samples(job), batch_size=job["batch"]))

for _ in range(STEPS):
    for number in range(job["accumulate"]):
        batch = {name: value.to("cuda") for name, value in next(batches).items()}
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            outputs = model(**batch)
            loss = outputs.loss / job["accumulate"]
        if job["zero_grad"] == "after-forward" and number == 0:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if job["zero_grad"] != "after-forward":
        optimizer.zero_grad(set_to_none=job["zero_grad"] != "in-place")
