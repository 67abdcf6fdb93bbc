"""Seed → jobs. A job depends on the seed and its number only: the first twenty of forty are those of twenty.

Weights favour what people run; combinations that a library refuses (TRL without a causal model) are not drawn.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from vramcast.accuracy.gaps.families import FAMILIES, Config

GPU = "a100-80gb"
MOST_TOKENS = 8192  # of a batch
MOST_SCORES = 3 << 28  # batch × heads × seq²: eager attention must leave the card some room
CAUSAL = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class GapJob:
    """One job in the words of `vramcast estimate`, and the config of its model."""

    seed: int
    number: int
    family: str
    config: Config
    framework: str
    batch: int
    seq: int | None
    target_seq: int | None
    accumulate: int
    attention: str
    precision: str
    optimizer: str
    checkpointing: str
    lora_rank: int | None
    lora_targets: tuple[str, ...]
    lora_dropout: float
    zero_grad: str | None
    use_cache: bool = True
    attention_mask: bool = True

    def words(self) -> dict[str, Any]:
        """Flags of `vramcast estimate`, without the model; only what is not the default."""
        said: dict[str, Any] = {
            "gpu": GPU,
            "framework": self.framework,
            "precision": self.precision,
            "checkpointing": self.checkpointing,
            "batch": self.batch,
        }
        masked = self.config["architectures"][0].endswith("ForMaskedLM")
        optional = {
            "task": "pretrain" if masked else None,
            "seq": self.seq,
            "target-seq": self.target_seq,
            "lora-rank": self.lora_rank,
            "zero-grad": self.zero_grad,
        }
        said.update({name: value for name, value in optional.items() if value is not None})
        if self.config.get("architectures") == ["BertForMaskedLM"]:
            said["task"] = "pretrain"  # else such a checkpoint is taken for a classifier
        defaults = {
            "accumulate": (self.accumulate, 1),
            "attention": (self.attention, "sdpa"),
            "optimizer": (self.optimizer, "adamw"),
            "lora-targets": (",".join(self.lora_targets) if self.lora_rank else "", ""),
            "lora-dropout": (self.lora_dropout, 0.0),
            "use-cache": (self.use_cache, True),
            "attention-mask": (self.attention_mask, True),
        }
        said.update({name: value for name, (value, plain) in defaults.items() if value != plain})
        return said

    @property
    def vocabulary(self) -> int:
        return int(self.config.get("vocab_size", 0))

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the tensors that a batch brings."""
        lengths = [length for length in (self.seq, self.target_seq) if length is not None]
        size = self.config.get("image_size")
        images = [] if size is None else [(self.batch, 3, size, size)]
        return ((self.batch,), *((self.batch, length) for length in lengths), *images)

    def as_json(self) -> dict[str, Any]:
        """What a loop is given."""
        return {**asdict(self), "gpu": GPU, "lora_targets": list(self.lora_targets)}


def draw(seed: int, count: int) -> list[GapJob]:
    return [draw_job(seed, number) for number in range(count)]


def draw_job(seed: int, number: int) -> GapJob:
    rng = random.Random(f"{seed}:{number}")
    family = _weighted(rng, {name: each.weight for name, each in FAMILIES.items()})
    config = FAMILIES[family].make(rng)
    causal = config["architectures"][0].endswith(CAUSAL)
    framework = _weighted(rng, {"plain": 3, "hf": 5, "accelerate": 3, "trl": 5 if causal else 0})
    batch, seq = _lengths(rng, config)
    lora = causal and rng.random() < 0.45
    by_hand = framework in ("plain", "accelerate")
    return GapJob(
        seed=seed,
        number=number,
        family=family,
        config=config,
        framework=framework,
        batch=batch,
        seq=seq,
        target_seq=seq // rng.choice((2, 4)) if family == "t5" and seq else None,
        accumulate=_weighted(rng, {1: 6, 2: 2, 4: 2}),
        attention=_weighted(rng, {"sdpa": 8, "eager": 2}),
        precision=_weighted(rng, {"fp32": 2, "bf16-mixed": 6, "bf16-autocast": 5, "bf16-true": 3, "fp16-mixed": 3}),
        optimizer=_weighted(rng, {"adamw": 14, "sgd": 2, "adafactor": 2, "sgd-momentum": 2 if by_hand else 0}),
        checkpointing=_weighted(rng, {"none": 5, "full": 4}),
        lora_rank=rng.choice((8, 16, 64)) if lora else None,
        lora_targets=("all-linear",),
        lora_dropout=rng.choice((0.0, 0.05)) if lora else 0.0,
        zero_grad=_weighted(rng, {None: 3, "after-forward": 1, "in-place": 1}) if framework == "plain" else None,
        use_cache=_weighted(rng, {True: 4, False: 1}) if causal and by_hand else True,
        attention_mask=_weighted(rng, {True: 4, False: 1}) if causal and by_hand else True,
    )  # fmt: skip


def _lengths(rng: random.Random, config: Config) -> tuple[int, int | None]:
    """Batch and tokens per sample, of which the card holds a few steps whatever else is drawn."""
    batch = rng.choice((1, 2, 3, 4, 6, 8))
    if "image_size" in config:
        return 8 * batch, None
    seq = rng.choice((128, 200, 256, 384, 512, 777, 1024, 1536, 2048))
    heads = config.get("num_attention_heads") or config.get("n_head") or config["num_heads"]
    while batch * seq > MOST_TOKENS or batch * heads * seq * seq > MOST_SCORES:
        if batch == 1:
            return batch, seq // 2
        batch //= 2
    return batch, seq


def _weighted(rng: random.Random, weights: dict[Any, int]) -> Any:
    return rng.choices(list(weights), list(weights.values()))[0]
