"""TRL's trainers with their defaults, given a model's name: sft, dpo, kto, orpo, reward, grpo."""

import sys

import trl
from common import ADAPTERS, BATCH, MODEL, SEQ, STEPS, four_bit, text_rows, tokenizer, words
from peft import LoraConfig

task = sys.argv[5]
common = {
    "output_dir": "out",
    "per_device_train_batch_size": BATCH,
    "max_steps": STEPS,
    "report_to": "none",
}
if ADAPTERS == "qlora":
    common["model_init_kwargs"] = {"quantization_config": four_bit()}
kind = "SEQ_CLS" if task == "reward" else "CAUSAL_LM"
targets = {"target_modules": "all-linear"} if ADAPTERS == "qlora" else {}
peft_config = None if ADAPTERS == "none" else LoraConfig(r=16, task_type=kind, **targets)
half = SEQ // 2
long = words(SEQ + 8)
pair = {"prompt": words(half), "chosen": " " + long, "rejected": " " + long}

if task == "sft":
    args = trl.SFTConfig(max_length=SEQ, **common)
    trainer = trl.SFTTrainer(
        model=MODEL,
        args=args,
        train_dataset=text_rows(text=long),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )
elif task == "dpo":
    args = trl.DPOConfig(max_length=SEQ, **common)
    trainer = trl.DPOTrainer(
        model=MODEL,
        args=args,
        train_dataset=text_rows(**pair),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )
elif task == "kto":
    rows = [
        {"prompt": words(half), "completion": " " + long, "label": n % 2 == 0} for n in range(24)
    ]
    from datasets import Dataset

    args = trl.KTOConfig(max_length=SEQ, **common)
    trainer = trl.KTOTrainer(
        model=MODEL,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )
elif task == "orpo":
    from transformers import AutoModelForCausalLM
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    args = ORPOConfig(max_length=SEQ, **common)
    trainer = ORPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL),
        args=args,
        train_dataset=text_rows(**pair),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )
elif task == "reward":
    # Longer pairs are left out; an end-of-sequence token is added.
    fitting = {"chosen": words(SEQ - 1), "rejected": words(SEQ - 1)}
    args = trl.RewardConfig(max_length=SEQ, **common)
    trainer = trl.RewardTrainer(
        model=MODEL,
        args=args,
        train_dataset=text_rows(**fitting),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )
elif task == "grpo":
    args = trl.GRPOConfig(max_completion_length=half, **common)
    trainer = trl.GRPOTrainer(
        model=MODEL,
        reward_funcs=lambda completions, **kwargs: [float(n) for n in range(len(completions))],
        args=args,
        train_dataset=text_rows(prompt=words(SEQ - half)),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )
trainer.train()
