"""Accelerate with its FSDP2 plugin: accumulation, clipping, gathered losses, a saved state and a whole state dict."""

import os
import tempfile

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["GPT2Block"],
    reshard_after_forward=True, state_dict_type="SHARDED_STATE_DICT",
)  # fmt: skip
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin, gradient_accumulation_steps=2)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=2000))
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(
    [torch.randint(0, 2000, (64,)) for _ in range(1024)], batch_size=4, shuffle=True
)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for number, ids in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(accelerator.gather(loss.detach().repeat(4)).mean().item())
    if number == 3:
        break
accelerator.wait_for_everyone()
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(os.path.join(folder, "state"))
accelerator.get_state_dict(model)
accelerator.end_training()
