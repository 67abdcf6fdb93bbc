"""BERT-large for classification on dummy data, as the performance page of transformers' docs trains it.

docs/source/en/perf_train_gpu_one.mdx (0016acf7): 512 random sequences of 512 tokens, one epoch; NVML's device total is
read at the end. The epoch is cut to a few optimizer steps (`--max-steps`): every one is the same. Random weights
instead of the downloaded ones. Torch was 1.10: see `torch_1_10`.
"""

import argparse

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch_1_10 import hold_as_then
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    logging,
)
from transformers.trainer_pt_utils import get_parameter_names

parser = argparse.ArgumentParser()
parser.add_argument("task", choices=("load", "train"))
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--fp16", action="store_true")
parser.add_argument(
    "--optimizer", choices=("adamw_hf", "adafactor", "adam8bit"), default="adamw_hf"
)
parser.add_argument("--max-steps", type=int, default=4)
args = parser.parse_args()

torch.ones((1, 1)).to("cuda")
config = BertConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    vocab_size=30522,
)
model = BertForSequenceClassification(config).to("cuda")
if args.task == "load":
    raise SystemExit
hold_as_then(model)
logging.set_verbosity_error()

length, size = 512, 512
data = Dataset.from_dict(
    {
        "input_ids": np.random.randint(100, 30000, (size, length)),
        "labels": np.random.randint(0, 1, (size)),
    }
)
data.set_format("pt")
training_args = TrainingArguments(
    output_dir="tmp",
    evaluation_strategy="steps",
    num_train_epochs=1,
    max_steps=args.max_steps,
    log_level="error",
    report_to="none",
    per_device_train_batch_size=args.batch,
    gradient_accumulation_steps=args.accumulate,
    gradient_checkpointing=args.checkpointing,
    fp16=args.fp16,
    optim="adamw_hf" if args.optimizer == "adam8bit" else args.optimizer,
)
optimizer = None
if args.optimizer == "adam8bit":
    import bitsandbytes as bnb

    decay = [name for name in get_parameter_names(model, [nn.LayerNorm]) if "bias" not in name]
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if n in decay],
            "weight_decay": training_args.weight_decay,
        },
        {"params": [p for n, p in model.named_parameters() if n not in decay], "weight_decay": 0.0},
    ]
    optimizer = bnb.optim.Adam8bit(
        groups,
        betas=(training_args.adam_beta1, training_args.adam_beta2),
        eps=training_args.adam_epsilon,
        lr=training_args.learning_rate,
    )
trainer = Trainer(model=model, args=training_args, train_dataset=data, optimizers=(optimizer, None))
trainer.train()
