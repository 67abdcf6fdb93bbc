"""A loop with accelerate and mixed precision over PEFT's LoRA, on one card or with DDP."""

import torch
from accelerate import Accelerator
from common import BATCH, MODEL, STEPS, token_rows
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, default_data_collator

accelerator = Accelerator(mixed_precision="bf16")
model = AutoModelForCausalLM.from_pretrained(MODEL)
model = get_peft_model(model, LoraConfig(r=16, task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
data = DataLoader(
    token_rows().map(lambda row: {"labels": row["input_ids"]}),
    batch_size=BATCH,
    collate_fn=default_data_collator,
)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
model.train()
for step, batch in enumerate(data):
    outputs = model(**batch)
    accelerator.backward(outputs.loss)
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == STEPS:
        break
