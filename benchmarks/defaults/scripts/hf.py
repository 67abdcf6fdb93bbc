"""transformers' Trainer with bf16, on a causal language model: all weights, PEFT's LoRA, or QLoRA as in its guide."""

from common import ADAPTERS, BATCH, MODEL, STEPS, four_bit, token_rows, tokenizer
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

if ADAPTERS == "qlora":
    model = AutoModelForCausalLM.from_pretrained(MODEL, quantization_config=four_bit())
    model = prepare_model_for_kbit_training(model)
else:
    model = AutoModelForCausalLM.from_pretrained(MODEL)
if ADAPTERS != "none":
    targets = {"target_modules": "all-linear"} if ADAPTERS == "qlora" else {}
    model = get_peft_model(model, LoraConfig(r=16, task_type="CAUSAL_LM", **targets))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        bf16=True,
        report_to="none",
    ),
    train_dataset=token_rows(),
    data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False),
)
trainer.train()
