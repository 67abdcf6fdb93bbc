"""A plain language-model training loop, as xMem ran it: random weights, fp32, four iterations at full length."""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.optimization import Adafactor

parser = argparse.ArgumentParser()
parser.add_argument("config", type=Path, help="a config.json")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--optimizer", required=True)
args = parser.parse_args()

settings = json.loads(args.config.read_text())
config = AutoConfig.for_model(**{name: value for name, value in settings.items() if name != "torch_dtype"})
kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
device = torch.device("cuda:0")
model = kind.from_config(config)
model.to(device)
model.train()
if args.optimizer == "Adafactor":
    optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
else:
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.001)
for _ in range(4):
    ids = torch.randint(5, config.vocab_size, (args.batch, args.length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    optimizer.zero_grad()
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
