"""transformers' Trainer with bf16, on an image classifier of ten labels."""

import torch
from common import BATCH, MODEL, ROWS, STEPS
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments

model = AutoModelForImageClassification.from_pretrained(
    MODEL, num_labels=10, ignore_mismatched_sizes=True
)
size = getattr(model.config, "image_size", 224)
image = {"pixel_values": torch.zeros(3, size, size), "labels": 1}
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        bf16=True,
        report_to="none",
    ),
    train_dataset=[image] * ROWS,
)
trainer.train()
