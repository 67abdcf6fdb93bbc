"""The precision that several files decide together: what the trainer computes in, in which dtype the weights are
loaded, and what DeepSpeed or FSDP makes of it.

Sources: transformers/modeling_utils.py and trainer.py, accelerate/accelerator.py and utils/fsdp_utils.py (raise
what is trained to fp32), deepspeed/runtime/precision_config.py.
"""

from __future__ import annotations

from vramcast.configs.model_parts import config_of
from vramcast.configs.records import Draft, Record

ZERO = ("zero1", "zero2", "zero3")
FSDP = ("fsdp1", "fsdp2")
Source = Record | str


def decide_precision(draft: Draft) -> None:
    """Fills `precision` where no reader has said it; leaves it to the framework's profile where nothing is known."""
    if "precision" in draft.said:
        return
    compute, source = draft.facts.get("compute") or draft.facts.get("no_compute", (None, None))
    weights, weights_source = draft.facts.get("weights", (None, None))
    if draft.value("strategy") in ZERO and draft.facts.get("is_deepspeed"):
        _deepspeed(draft, compute, source)
    elif draft.value("quantize", "none") != "none":
        _quantised(draft, compute, weights, source)
    elif (
        draft.value("strategy") in FSDP and compute in ("bf16", "fp16") and not _has_adapter(draft)
    ):
        draft.say("precision", f"{compute}-mixed", source)  # accelerate raises what is trained
    elif compute in ("bf16", "fp16"):
        _autocast(draft, compute, weights, source)
    elif compute == "no" or weights is not None:
        _without_autocast(draft, weights, source or weights_source)


def _has_adapter(draft: Draft) -> bool:
    return draft.value("lora-rank") is not None


def _deepspeed(draft: Draft, compute: str | None, source: Source | None) -> None:
    told, told_source = draft.facts.get("deepspeed", (None, None))
    dtype = told or compute
    if dtype in ("bf16", "fp16"):
        draft.say("precision", f"{dtype}-master", told_source or source)
    elif dtype == "no":
        draft.say("precision", "fp32", told_source or source)


def _quantised(
    draft: Draft, compute: str | None, weights: str | None, source: Source | None
) -> None:
    """Beside quantised weights everything else is loaded in 16 bit, unless fp32 is what it is loaded in."""
    if compute in ("bf16", "fp16"):
        kind = "mixed" if weights == "fp32" else "autocast"
        draft.say("precision", f"{compute}-{kind}", source)
    elif compute == "no" and weights in ("bf16", "fp16"):
        draft.say("precision", f"{weights}-true", source)


def _autocast(draft: Draft, compute: str, weights: str | None, source: Source | None) -> None:
    weights = weights or _loaded(draft, compute)
    if weights == "fp32":
        draft.say("precision", f"{compute}-mixed", source)
    elif weights is not None:
        draft.say("precision", f"{compute}-autocast", source)


def _loaded(draft: Draft, compute: str) -> str | None:
    """In which dtype, where the files name none. None leaves it to the profile, which knows bf16 alone."""
    is_stored = draft.facts.get("loads") == "stored"
    if not is_stored and compute == "bf16":
        return None
    if not is_stored and not _loads_stored(draft):
        return "fp32"
    weights = stored_dtype(draft)
    if weights is None:
        draft.assume("the checkpoint's dtype is not known: counted in 16 bit; say --precision")
    return weights or "16-bit"


def _loads_stored(draft: Draft) -> bool:
    """transformers loads in the checkpoint's dtype since 5.0, where nobody says another."""
    from vramcast.job import Job
    from vramcast.setup.profiles import LOADED
    from vramcast.setup.versions import parse_version

    said = str(draft.value("transformers-version", Job(params=1).transformers_version))
    return LOADED.at({"transformers": parse_version(said)}) == "stored"


def _without_autocast(draft: Draft, weights: str | None, source: Source | None) -> None:
    weights = weights or stored_dtype(draft)
    if weights is None:
        return
    draft.say("precision", "fp32" if weights == "fp32" else f"{weights}-true", source)


def stored_dtype(draft: Draft) -> str | None:
    """The dtype of the model's checkpoint, where the model is known."""
    from vramcast.configs.hf_words import dtype_word
    from vramcast.models.read.config import Config
    from vramcast.setup.defaults import stored_dtype as stored

    data = config_of(draft)
    return None if data is None else dtype_word(stored(Config(dict(data))))
