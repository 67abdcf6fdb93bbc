"""transformers' Trainer with bf16, on PEFT's LoRA over a sequence classifier of two labels."""

from common import BATCH, MODEL, STEPS, token_rows, tokenizer
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2)
if model.config.pad_token_id is None:
    model.config.pad_token_id = 0
model = get_peft_model(model, LoraConfig(r=16, task_type="SEQ_CLS"))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        bf16=True,
        report_to="none",
    ),
    train_dataset=token_rows(label=1),
    processing_class=tokenizer(),
)
trainer.train()
