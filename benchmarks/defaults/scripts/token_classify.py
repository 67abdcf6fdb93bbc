"""transformers' Trainer with bf16, on a classifier of every token, as for named entities."""

from common import BATCH, MODEL, SEQ, STEPS, token_rows, tokenizer
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
)

model = AutoModelForTokenClassification.from_pretrained(MODEL, num_labels=9)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        bf16=True,
        report_to="none",
    ),
    train_dataset=token_rows(labels=[1] * SEQ),
    data_collator=DataCollatorForTokenClassification(tokenizer()),
)
trainer.train()
