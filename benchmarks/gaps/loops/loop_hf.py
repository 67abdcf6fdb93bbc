"""transformers.Trainer with its defaults, told only what the job says."""

from parts import Samples, load_model, lora_config, read_job, trainer_arguments
from transformers import Trainer, TrainingArguments

job = read_job()
model = load_model(job)
if job["lora_rank"] is not None:
    from peft import get_peft_model

    if job["checkpointing"] == "full":
        model.enable_input_require_grads()
    model = get_peft_model(model, lora_config(job))

Trainer(
    model=model, args=TrainingArguments(**trainer_arguments(job)), train_dataset=Samples(job)
).train()
