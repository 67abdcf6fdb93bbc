"""Scripts as users write them with each library's defaults, and the words with which `estimate` is asked about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LAYERS = 4  # of every model: a trace takes seconds, and a layer more is the same layer again


@dataclass(frozen=True)
class Case:
    script: str
    model: str
    batch: int
    seq: int
    adapters: str = "none"
    what: str = ""  # trainer, or strategy
    gpus: int = 1

    @property
    def name(self) -> str:
        parts = (self.script, self.what, self.adapters if self.adapters != "none" else "")
        return " ".join((*filter(None, parts), self.model, f"b{self.batch} s{self.seq}"))

    def words(self) -> dict[str, Any]:
        """What a user tells `estimate`: whose loop, which task, batch and length."""
        said: dict[str, Any] = {"batch": self.batch, "seq": self.seq}
        if self.script == "image":
            return {"batch": self.batch, "framework": "hf", "labels": 10}
        if self.script == "classify":
            return {**said, "framework": "hf", "task": "classify"}
        if self.script == "classify_lora":
            return {**said, "framework": "hf", "task": "classify", "tuning": "lora"}
        if self.script == "token_classify":
            return {**said, "framework": "hf", "task": "classify-tokens", "labels": 9}
        if self.script == "trl_trainer":
            said |= {"framework": "trl", "task": self.what}
        else:
            names = {
                "hf": "hf",
                "seq2seq": "hf",
                "accelerate_loop": "accelerate",
                "accelerate_lora": "accelerate",
                "lightning_module": "lightning",
                "plain_loop": "plain",
            }
            said |= {"framework": names[self.script]}
        if self.adapters != "none":
            said["tuning"] = self.adapters
        if self.gpus > 1:
            is_said = self.what in ("ddp", "fsdp2")
            said |= {"gpus": self.gpus, "strategy": self.what if is_said else "ddp"}
        return said


QWEN, QWEN3, LLAMA = "qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b"
CASES = (
    Case("hf", QWEN, 4, 512),
    Case("hf", LLAMA, 1, 2048),
    Case("hf", "gpt2", 8, 512),
    Case("hf", "opt-125m", 4, 512),
    Case("hf", "pythia-160m", 4, 1024),
    Case("hf", "smollm2-135m", 8, 1024),
    Case("hf", QWEN, 2, 1024, "lora"),
    Case("hf", LLAMA, 4, 512, "lora"),
    Case("hf", "gpt2", 4, 512, "lora"),
    Case("hf", "mistral-7b-v0.3", 1, 1024, "lora"),
    Case("hf", LLAMA, 2, 1024, "qlora"),
    Case("hf", QWEN3, 4, 512, "qlora"),
    Case("hf", "mistral-7b-v0.3", 1, 2048, "qlora"),
    Case("classify", "bert-base-uncased", 16, 128),
    Case("classify", "bert-large-uncased", 8, 384),
    Case("classify", "roberta-base", 8, 256),
    Case("classify", QWEN, 4, 256),
    Case("classify", LLAMA, 2, 512),
    Case("trl_trainer", QWEN, 2, 1024, "none", "sft"),
    Case("trl_trainer", QWEN3, 4, 512, "none", "sft"),
    Case("trl_trainer", LLAMA, 1, 1024, "none", "sft"),
    Case("trl_trainer", "gemma-2-2b", 1, 512, "none", "sft"),
    Case("trl_trainer", QWEN, 4, 1024, "lora", "sft"),
    Case("trl_trainer", "tinyllama-1.1b", 2, 1024, "lora", "sft"),
    Case("trl_trainer", LLAMA, 4, 1024, "qlora", "sft"),
    Case("trl_trainer", QWEN3, 2, 512, "qlora", "sft"),
    Case("trl_trainer", QWEN, 2, 512, "none", "dpo"),
    Case("trl_trainer", "smollm2-135m", 4, 512, "none", "dpo"),
    Case("trl_trainer", LLAMA, 2, 512, "lora", "dpo"),
    Case("trl_trainer", QWEN3, 4, 512, "lora", "dpo"),
    Case("trl_trainer", QWEN, 4, 512, "none", "kto"),
    Case("trl_trainer", LLAMA, 4, 512, "lora", "kto"),
    Case("trl_trainer", QWEN, 4, 512, "none", "reward"),
    Case("trl_trainer", LLAMA, 4, 512, "lora", "reward"),
    Case("trl_trainer", QWEN, 2, 512, "none", "orpo"),
    Case("trl_trainer", "smollm2-135m", 4, 512, "lora", "orpo"),
    Case("trl_trainer", QWEN, 8, 256, "none", "grpo"),
    Case("trl_trainer", LLAMA, 8, 256, "lora", "grpo"),
    Case("accelerate_loop", QWEN, 2, 1024, "none", "ddp", 2),
    Case("accelerate_loop", "gpt2", 4, 512, "none", "ddp", 2),
    Case("accelerate_loop", LLAMA, 1, 1024, "none", "fsdp2", 2),
    Case("accelerate_loop", QWEN3, 2, 512, "none", "fsdp2", 2),
    Case("lightning_module", "gpt2", 4, 512),
    Case("lightning_module", QWEN, 2, 512),
    Case("lightning_module", "tinyllama-1.1b", 1, 1024),
    Case("plain_loop", "gpt2", 4, 512),
    Case("plain_loop", LLAMA, 2, 1024),
    Case("plain_loop", "smollm2-135m", 4, 1024),
    Case("plain_loop", "pythia-160m", 4, 512),
)
# Drawn after what the first ones showed had been built in, and not looked at before.
BLIND = (
    Case("hf", "qwen3-1.7b", 2, 768),
    Case("hf", "olmo-2-7b", 1, 512),
    Case("hf", "t5-small", 8, 256),
    Case("hf", "gemma-2-2b", 1, 1024, "lora"),
    Case("hf", "phi-2", 2, 512, "lora"),
    Case("hf", "qwen2.5-1.5b", 2, 1536, "qlora"),
    Case("hf", "opt-1.3b", 2, 512, "qlora"),
    Case("classify", "bert-base-uncased", 32, 64),
    Case("classify", "gpt2-medium", 4, 256),
    Case("classify", "smollm2-135m", 8, 512),
    Case("trl_trainer", "smollm2-1.7b", 2, 768, "none", "sft"),
    Case("trl_trainer", "gemma-2b", 2, 512, "lora", "sft"),
    Case("trl_trainer", "llama-3.2-3b", 1, 2048, "qlora", "sft"),
    Case("trl_trainer", "qwen2.5-1.5b", 1, 768, "none", "dpo"),
    Case("trl_trainer", "mistral-7b-v0.3", 1, 768, "lora", "dpo"),
    Case("trl_trainer", "tinyllama-1.1b", 2, 768, "lora", "kto"),
    Case("trl_trainer", "qwen3-1.7b", 2, 384, "none", "reward"),
    Case("trl_trainer", "llama-3.2-1b", 2, 384, "lora", "orpo"),
    Case("trl_trainer", "tinyllama-1.1b", 8, 192, "none", "grpo"),
    Case("accelerate_loop", "smollm2-1.7b", 1, 768, "none", "ddp", 2),
    Case("accelerate_loop", "tinyllama-1.1b", 2, 768, "none", "fsdp2", 4),
    Case("lightning_module", "opt-125m", 4, 384),
    Case("plain_loop", "gemma-2b", 1, 512),
    Case("plain_loop", "stablelm-3b-4e1t", 1, 768),
)
# Drawn a third time: other models, and TRL's trainers on two cards.
THIRD = (
    Case("hf", "olmo-2-1b", 2, 896),
    Case("hf", "bloom-560m", 4, 384),
    Case("hf", "gemma-3-1b", 2, 640, "lora"),
    Case("hf", "deepseek-coder-1.3b", 4, 640, "lora"),
    Case("hf", "granite-3.1-2b", 2, 512, "lora"),
    Case("hf", "falcon3-1b", 2, 1024, "qlora"),
    Case("classify", "distilbert-base-uncased", 16, 192),
    Case("classify", "electra-base", 8, 320),
    Case("classify", "deberta-v3-base", 8, 192),
    Case("classify", "modernbert-base", 8, 448),
    Case("classify", "albert-base-v2", 16, 128),
    Case("classify", "qwen2-1.5b", 2, 320),
    Case("trl_trainer", "qwen2-1.5b", 2, 896, "none", "sft"),
    Case("trl_trainer", "gemma-3-270m", 4, 512, "none", "sft"),
    Case("trl_trainer", "phi-1.5", 2, 640, "lora", "sft"),
    Case("trl_trainer", "qwen2.5-3b", 1, 1280, "qlora", "sft"),
    Case("trl_trainer", "qwen2-0.5b", 2, 640, "none", "sft", 2),
    Case("trl_trainer", "smollm2-360m", 4, 384, "lora", "sft", 2),
    Case("trl_trainer", "olmo-2-1b", 1, 512, "none", "dpo"),
    Case("trl_trainer", "qwen2-0.5b", 2, 384, "none", "dpo", 2),
    Case("trl_trainer", "llama-3.2-3b", 1, 640, "qlora", "dpo"),
    Case("trl_trainer", "qwen2-1.5b", 2, 512, "none", "kto"),
    Case("trl_trainer", "gpt2-large", 2, 256, "none", "reward"),
    Case("trl_trainer", "smollm2-360m", 2, 448, "none", "orpo"),
    Case("trl_trainer", "qwen3-1.7b", 8, 320, "lora", "grpo"),
    Case("trl_trainer", "smollm2-360m", 8, 256, "none", "grpo"),
    Case("trl_trainer", "qwen2-0.5b", 4, 320, "none", "grpo", 2),
    Case("trl_trainer", "olmo-2-1b", 4, 256, "lora", "grpo", 2),
    Case("accelerate_loop", "qwen2-1.5b", 1, 640, "none", "fsdp2", 4),
    Case("accelerate_loop", "phi-1.5", 2, 384, "none", "fsdp2", 2),
    Case("accelerate_loop", "olmo-2-1b", 1, 640, "none", "ddp", 2),
    Case("lightning_module", "pythia-410m", 4, 448),
    Case("lightning_module", "smollm2-360m", 2, 640),
    Case("plain_loop", "bloom-560m", 2, 384),
    Case("plain_loop", "qwen3-1.7b", 1, 768),
)
# Drawn a fourth time: classifiers of tokens and images, encoder-decoders, and models that no list had before.
FOURTH = (
    Case("hf", "gemma-2-2b", 1, 768),
    Case("hf", "phi-4-mini", 1, 640),
    Case("hf", "granite-3.3-2b", 2, 512),
    Case("hf", "starcoder2-3b", 1, 640),
    Case("hf", "stablelm-2-1.6b", 2, 512, "lora"),
    Case("hf", "falcon-7b", 1, 512, "lora"),
    Case("hf", "mistral-nemo-12b", 1, 640, "lora"),
    Case("hf", "smollm3-3b", 1, 1024, "qlora"),
    Case("hf", "phi-3-mini-4k", 2, 768, "qlora"),
    Case("hf", "granite-3.3-2b", 2, 768, "qlora"),
    Case("classify", "roberta-large", 8, 160),
    Case("classify", "xlm-roberta-base", 8, 224),
    Case("classify", "deberta-v3-small", 16, 128),
    Case("classify", "modernbert-base", 8, 256),
    Case("classify", "distilbert-base-uncased", 32, 256),
    Case("classify", "qwen3-0.6b", 4, 384),
    Case("classify_lora", "roberta-base", 16, 192, "lora"),
    Case("classify_lora", "llama-3.2-1b", 4, 320, "lora"),
    Case("token_classify", "bert-base-uncased", 16, 160),
    Case("token_classify", "roberta-base", 8, 256),
    Case("token_classify", "distilbert-base-uncased", 16, 128),
    Case("seq2seq", "t5-base", 4, 320),
    Case("seq2seq", "flan-t5-base", 4, 256),
    Case("seq2seq", "bart-base", 8, 256),
    Case("image", "vit-base-patch16-224", 32, 1),
    Case("image", "vit-large-patch16-224", 16, 1),
    Case("trl_trainer", "gemma-3-1b", 2, 512, "lora", "sft"),
    Case("trl_trainer", "smollm3-3b", 1, 640, "none", "sft"),
    Case("trl_trainer", "phi-3-mini-4k", 2, 768, "qlora", "sft"),
    Case("trl_trainer", "mistral-7b-v0.3", 2, 640, "none", "sft"),
    Case("trl_trainer", "gemma-2-2b", 1, 512, "qlora", "dpo"),
    Case("trl_trainer", "stablelm-2-1.6b", 2, 384, "lora", "dpo"),
    Case("trl_trainer", "gemma-3-270m", 2, 384, "none", "dpo"),
    Case("trl_trainer", "qwen3-1.7b", 2, 448, "qlora", "kto"),
    Case("trl_trainer", "gemma-2-2b", 2, 256, "lora", "reward"),
    Case("trl_trainer", "mistral-7b-v0.3", 1, 384, "qlora", "reward"),
    Case("trl_trainer", "falcon3-1b", 8, 320, "none", "grpo"),
    Case("trl_trainer", "gemma-2-2b", 8, 192, "lora", "grpo"),
    Case("trl_trainer", "qwen3-1.7b", 2, 320, "lora", "orpo"),
    Case("trl_trainer", "phi-1.5", 2, 320, "none", "orpo"),
    Case("accelerate_lora", "qwen3-0.6b", 2, 640, "lora"),
    Case("accelerate_lora", "mistral-7b-v0.3", 1, 512, "lora", "ddp", 2),
    Case("accelerate_loop", "gemma-2-2b", 1, 512, "none", "fsdp2", 2),
    Case("accelerate_loop", "granite-3.3-2b", 1, 512, "none", "fsdp2", 4),
    Case("accelerate_loop", "opt-350m", 4, 384, "none", "ddp", 2),
    Case("lightning_module", "qwen3-0.6b", 2, 640),
    Case("lightning_module", "bloom-560m", 2, 320),
    Case("plain_loop", "phi-1.5", 2, 448),
    Case("plain_loop", "gemma-3-270m", 2, 640),
    Case("plain_loop", "smollm3-3b", 1, 384),
)
