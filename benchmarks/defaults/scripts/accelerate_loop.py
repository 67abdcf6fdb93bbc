"""A loop with accelerate and mixed precision: DDP where torchrun starts several ranks, or FSDP2."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from common import BATCH, MODEL, STEPS, token_rows
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, default_data_collator

plugin = None
if sys.argv[5] == "fsdp2":
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
model = AutoModelForCausalLM.from_pretrained(MODEL)
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
