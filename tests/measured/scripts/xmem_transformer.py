"""A plain language-model training loop, as xMem ran it: random weights, fp32, four iterations at full length.

Its results name where gradients were cleared (`zero_grad_mode`: 0 start, 1 before backward, 2 behind the step);
nothing means the start. Its optimizers are looked up in torch.optim first, which has an Adafactor of its own since
torch 2.5. Where it sets up a card of its own machine, it keeps torch from giving cuBLAS workspaces; its notebooks do
not (`--notebook`).
"""

import argparse
import json
import os
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

parser = argparse.ArgumentParser()
parser.add_argument("config", type=Path, help="a config.json")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--optimizer", required=True)
parser.add_argument("--clear", choices=("start", "backward", "step"), default="start")
parser.add_argument("--notebook", action="store_true")
args = parser.parse_args()

if not args.notebook:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":0:0"
settings = json.loads(args.config.read_text())
config = AutoConfig.for_model(
    **{name: value for name, value in settings.items() if name != "torch_dtype"}
)
kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
device = torch.device("cuda:0")
model = kind.from_config(config)
model.train()
optimizer = getattr(torch.optim, args.optimizer)(params=model.parameters(), lr=0.001)
model.to(device)
for _ in range(4):
    ids = torch.randint(5, config.vocab_size, (args.batch, args.length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if args.clear == "start":
        optimizer.zero_grad()
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    outputs = model(**batch)
    if args.clear == "backward":
        optimizer.zero_grad()
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    if args.clear == "step":
        optimizer.zero_grad()
