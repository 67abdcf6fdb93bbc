"""What every loop needs: the model as its user would load it, adapters, and batches of one length.

The only argument of a loop is a JSON file: the job's words, and the folder with the model's config.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

STEPS = 2
SAMPLES = 64
LOADED = {"fp32": "float32", "bf16-mixed": "float32", "fp16-mixed": "float32"}
AUTOCAST = {
    "bf16-mixed": torch.bfloat16,
    "bf16-autocast": torch.bfloat16,
    "fp16-mixed": torch.float16,
}
TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
}


def read_job() -> dict[str, Any]:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return job


def load_model(job: dict[str, Any]) -> Any:
    kind = getattr(transformers, job["config"]["architectures"][0])
    options: dict[str, Any] = {
        "torch_dtype": getattr(torch, LOADED.get(job["precision"], "bfloat16"))
    }
    if job["attention"] == "eager":  # sdpa is left to the library, which knows who supports it
        options["attn_implementation"] = "eager"
    model = kind.from_pretrained(job["folder"], **options)
    if not job["use_cache"]:
        model.config.use_cache = False
    return model


def lora_config(job: dict[str, Any]) -> Any:
    from peft import LoraConfig

    name = job["config"]["architectures"][0]
    targets = job["lora_targets"]
    return LoraConfig(
        r=job["lora_rank"],
        lora_alpha=2 * job["lora_rank"],
        lora_dropout=job["lora_dropout"],
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type=next((task for end, task in TASKS.items() if name.endswith(end)), None),
    )


def training_model(job: dict[str, Any]) -> Any:
    """For loops that do it by hand: checkpointing before adapters, so that PEFT sees it."""
    model = load_model(job)
    if job["checkpointing"] == "full":
        model.gradient_checkpointing_enable()
    if job["lora_rank"] is not None:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(job))
    return model


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """As many as two steps can want, all of the same length."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job

    def __len__(self) -> int:
        return SAMPLES * int(self.job["batch"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= len(self):
            raise IndexError(index)
        config, job = self.job["config"], self.job
        if "image_size" in config:
            size = config["image_size"]
            return {"pixel_values": torch.zeros(3, size, size), "labels": torch.tensor(1)}
        ids = torch.full((job["seq"],), 5)
        sample = {"input_ids": ids}
        if job["attention_mask"]:
            sample["attention_mask"] = torch.ones_like(ids)
        if config["architectures"][0].endswith("ForSequenceClassification"):
            return {**sample, "labels": torch.tensor(1)}
        if job["target_seq"] is not None:
            return {**sample, "labels": torch.full((job["target_seq"],), 5)}
        return {**sample, "labels": ids.clone()}


def torch_optimizer(job: dict[str, Any], model: Any) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kinds = {
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "adafactor": torch.optim.Adafactor,
        "rmsprop": torch.optim.RMSprop,
    }
    if job["optimizer"] == "sgd-momentum":
        return torch.optim.SGD(trained, lr=1e-5, momentum=0.9)
    return kinds[job["optimizer"]](trained, lr=1e-5)


def trainer_arguments(job: dict[str, Any]) -> dict[str, Any]:
    """What both Trainer and TRL are told; what a job does not say is left to them."""
    precision = job["precision"]
    arguments = {
        "output_dir": str(Path(job["folder"]) / "out"),
        "per_device_train_batch_size": job["batch"],
        "gradient_accumulation_steps": job["accumulate"],
        "gradient_checkpointing": job["checkpointing"] == "full",
        "bf16": precision in ("bf16-mixed", "bf16-autocast"),
        "fp16": precision == "fp16-mixed",
        "max_steps": STEPS,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if job["optimizer"] != "adamw":
        arguments["optim"] = {"adamw-8bit": "adamw_bnb_8bit"}.get(
            job["optimizer"], job["optimizer"]
        )
    return arguments
