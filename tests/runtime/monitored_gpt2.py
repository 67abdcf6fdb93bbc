"""GPT-2 in float32, watched by a monitor that knows its prediction: run on a virtual card by test_on_virtual_gpu.py."""

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

from vramcast import Job, estimate
from vramcast.runtime import MemoryMonitor

job = Job(
    model="gpt2", framework="plain", batch=4, seq=512, precision="fp32",
    optimizer="adamw", gpu="rtx3060", keep_outputs=False,
    transformers_version=".".join(transformers.__version__.split(".")[:2]),
)  # fmt: skip
ledger = estimate(job).ledger
model = GPT2LMHeadModel(GPT2Config()).to("cuda:0")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
with MemoryMonitor("cuda:0", ledger=ledger) as monitor:
    for _ in range(3):
        ids = torch.randint(0, 50257, (4, 512), device="cuda:0")
        with monitor.phase("forward"):
            loss = model(input_ids=ids, labels=ids).loss
        with monitor.phase("backward"):
            loss.backward()
        with monitor.phase("step"):
            optimizer.step()
            optimizer.zero_grad()
        monitor.end_step()
print(monitor.compare())
