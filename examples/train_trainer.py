"""A causal language model trained with transformers' Trainer, the way run_clm.py does it, on random tokens."""

import argparse

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--block-size", type=int, default=512)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--max-steps", type=int, default=3)
args = parser.parse_args()

config = AutoConfig.for_model("gpt2")
model = AutoModelForCausalLM.from_config(config)
print(f"{model.num_parameters():,} parameters")


class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, config.vocab_size, (args.block_size,))
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=args.batch_size,
        max_steps=args.max_steps,
        bf16=args.bf16,
        gradient_checkpointing=args.gradient_checkpointing,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=args.batch_size,
        dataloader_num_workers=2,
    ),
    train_dataset=Blocks(),
    eval_dataset=Blocks(),
    data_collator=default_data_collator,
)
result = trainer.train()
trainer.save_model()
trainer.log_metrics("train", result.metrics)
trainer.save_metrics("train", result.metrics)
trainer.save_state()
