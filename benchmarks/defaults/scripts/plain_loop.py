"""A loop by hand under autocast."""

import torch
from common import BATCH, MODEL, STEPS, token_rows
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, default_data_collator

model = AutoModelForCausalLM.from_pretrained(MODEL).to("cuda")
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
data = DataLoader(
    token_rows().map(lambda row: {"labels": row["input_ids"]}),
    batch_size=BATCH,
    collate_fn=default_data_collator,
)
for step, batch in enumerate(data):
    batch = {name: value.to("cuda") for name, value in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = model(**batch)
    outputs.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == STEPS:
        break
