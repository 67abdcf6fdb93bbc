"""A job's adapters, put on a real model by PEFT itself: one of its configuration classes for each kind.

In come a model on the host and a Job, out comes what `get_peft_model` makes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from vramcast.errors import UnsupportedError
from vramcast.job import PROMPTS, Job, is_regular
from vramcast.patches import Patches
from vramcast.setup import resolve
from vramcast.setup.records import Adapter

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MANY_STEPS = (
    1000  # AdaLoRA wants to know how long it has; its ranks do not change in the first steps
)

Settings = dict[str, Any]


def adapted_model(model: Any, job: Job) -> Any:
    import peft

    adapter = resolve(job).adapter
    assert adapter.kind is not None
    name, own = PEFT_CONFIGS[adapter.kind]
    settings = {**_shared(adapter, model, job), **own(adapter, model)}
    patches = Patches()
    # BOFT would compile a kernel of its own, which does not build with today's torch; without it, it calls torch's ops.
    patches.set(import_module("peft.tuners.boft.layer"), "get_fbd_cuda", lambda: None)
    try:
        adapted = peft.get_peft_model(model, getattr(peft, name)(**settings))
    except (TypeError, ValueError, NotImplementedError) as error:
        line = " ".join(str(error).split())[:200]
        raise UnsupportedError(f"adapter {adapter.kind}: PEFT refuses it ({line})") from error
    finally:
        patches.restore()
    if job.checkpointing != "none":
        adapted.enable_input_require_grads()
    _store_as(adapted, adapter)
    return adapted


def _store_as(adapted: Any, adapter: Adapter) -> None:
    """PEFT raises adapters to fp32, other libraries make them in the job's dtype; copies of modules keep their own."""
    if adapter.dtype not in DTYPES or adapter.kind == "ln-tuning":
        return
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and ".modules_to_save." not in name:
            parameter.data = parameter.data.to(DTYPES[adapter.dtype])


def _shared(adapter: Adapter, model: Any, job: Job) -> Settings:
    """What most of PEFT's classes call by the same names."""
    if adapter.kind in PROMPTS:
        return {"num_virtual_tokens": adapter.virtual_tokens, "task_type": _task(model, job)}
    targets: Any = list(adapter.targets)
    if is_regular(adapter.targets) or adapter.targets == ("all-linear",):
        targets = adapter.targets[0]
    shared: Settings = {"target_modules": targets}
    if adapter.saved:
        shared["modules_to_save"] = list(adapter.saved)
    if adapter.layers:
        shared["layers_to_transform"] = list(adapter.layers)
    return shared


def _task(model: Any, job: Job) -> str:
    """Prompts are put before the embeddings by a class of PEFT for each task."""
    kind = type(model).__name__
    if model.config.is_encoder_decoder:
        return "SEQ_2_SEQ_LM"
    endings = {
        "ForSequenceClassification": "SEQ_CLS",
        "ForTokenClassification": "TOKEN_CLS",
        "ForQuestionAnswering": "QUESTION_ANS",
        "ForCausalLM": "CAUSAL_LM",
        "LMHeadModel": "CAUSAL_LM",
    }
    for ending, task in endings.items():
        if kind.endswith(ending):
            return task
    raise UnsupportedError(f"adapter {job.adapter}: PEFT has no prompts for {kind}")


def _of_lora(adapter: Adapter, model: Any) -> Settings:
    return {"r": adapter.rank, "lora_dropout": adapter.dropout}


def _of_adalora(adapter: Adapter, model: Any) -> Settings:
    return {"init_r": adapter.rank, "lora_dropout": adapter.dropout, "total_step": MANY_STEPS}


def _of_rank(adapter: Adapter, model: Any) -> Settings:
    return {"r": adapter.rank}


def _of_oft(adapter: Adapter, model: Any) -> Settings:
    return {"oft_block_size": adapter.block, "r": 0}


def _of_boft(adapter: Adapter, model: Any) -> Settings:
    return {"boft_block_size": adapter.block}


def _of_prefix(adapter: Adapter, model: Any) -> Settings:
    if adapter.prompt_hidden is None:
        return {}
    return {"prefix_projection": True, "encoder_hidden_size": adapter.prompt_hidden}


def _of_p_tuning(adapter: Adapter, model: Any) -> Settings:
    return {"encoder_hidden_size": adapter.prompt_hidden}


def _nothing(adapter: Adapter, model: Any) -> Settings:
    return {}


# kind → the class's name in PEFT, and what it alone wants to know
PEFT_CONFIGS: dict[str, tuple[str, Callable[[Adapter, Any], Settings]]] = {
    "lora": ("LoraConfig", _of_lora),
    "adalora": ("AdaLoraConfig", _of_adalora),
    "vera": ("VeraConfig", _of_rank),
    "loha": ("LoHaConfig", _of_rank),
    "lokr": ("LoKrConfig", _of_rank),
    "oft": ("OFTConfig", _of_oft),
    "boft": ("BOFTConfig", _of_boft),
    "ia3": ("IA3Config", _nothing),
    "ln-tuning": ("LNTuningConfig", _nothing),
    "prompt": ("PromptTuningConfig", _nothing),
    "prefix": ("PrefixTuningConfig", _of_prefix),
    "p-tuning": ("PromptEncoderConfig", _of_p_tuning),
}
