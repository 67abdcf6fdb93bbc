"""transformers' Seq2SeqTrainer with bf16, on an encoder-decoder: targets as long as sources."""

from common import BATCH, MODEL, SEQ, STEPS, token_rows, tokenizer
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

model = AutoModelForSeq2SeqLM.from_pretrained(MODEL)
trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        bf16=True,
        report_to="none",
    ),
    train_dataset=token_rows(labels=[7] * SEQ),
    data_collator=DataCollatorForSeq2Seq(tokenizer(), model=model),
)
trainer.train()
