"""The formulas beside one traced rank: DDP and FSDP2 over 2, 8 and 64 ranks, real transformers models, two steps each.

The issue at hand is whether both say the same about the same loop, so the bar is 2 % of what is allocated and of what
is reserved at the peak.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from vramcast.engine.estimate import estimate
from vramcast.job import Job, Precision
from vramcast.ledger import Ledger
from vramcast.virtual import virtual_gpu

ALLOWED = 0.02
CARD = "h100-80gb"
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": False,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 6, "n_head": 12, "vocab_size": 50257,
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "tie_word_embeddings": False,
    },
    "opt": {
        "architectures": ["OPTForCausalLM"], "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 8,
        "num_attention_heads": 12, "vocab_size": 50272, "word_embed_proj_dim": 768,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    model: str
    strategy: str
    world_size: int
    rank: int = 0
    checkpointing: bool = False
    bucket_view: bool = False
    accumulate: int = 1
    reference: bool = False
    batch: int = 2
    seq: int = 512

    def job(self, folder: Path) -> Job:
        path = folder / "config.json"
        path.write_text(json.dumps({"model_type": self.model, **MODELS[self.model]}))
        return Job(
            model=str(path), gpus=self.world_size, strategy=self.strategy, batch=self.batch, seq=self.seq, gpu=CARD,
            checkpointing="full" if self.checkpointing else "none", bucket_view=self.bucket_view,
            accumulate=self.accumulate, precision=Precision.BF16_MIXED, framework="plain",
            reference="same" if self.reference else "none",
        )  # fmt: skip

    def trace(self) -> Ledger:
        with virtual_gpu(CARD, count=self.world_size, rank=self.rank) as gpu:
            self._train()
        return gpu.ledger()

    def _train(self) -> None:
        dist.init_process_group("nccl")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        model = self._wrapped(self._model(), device)
        reference = self._frozen(device) if self.reference else None
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            for _ in range(self.accumulate):
                ids = torch.randint(0, 1000, (self.batch, self.seq)).to(device)
                with torch.autocast("cuda", torch.bfloat16, enabled=self.strategy == "ddp"):
                    outputs = model(input_ids=ids, labels=ids)
                    if reference is not None:
                        with torch.no_grad():
                            reference(input_ids=ids)
                outputs.loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    def _frozen(self, device: torch.device) -> nn.Module:
        model = self._model().eval().requires_grad_(False)
        return model.to(device) if self.strategy == "ddp" else self._wrapped(model, device)  # type: ignore[no-any-return]

    def _model(self) -> Any:
        facts = dict(MODELS[self.model])
        kind = getattr(transformers, facts.pop("architectures")[0])
        model = kind(transformers.AutoConfig.for_model(self.model, **facts))
        if self.checkpointing:
            model.config.use_cache = False
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model.train()

    def _wrapped(self, model: Any, device: torch.device) -> nn.Module:
        if self.strategy == "ddp":
            return nn.parallel.DistributedDataParallel(
                model.to(device),
                device_ids=[device.index],
                gradient_as_bucket_view=self.bucket_view,
            )
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        base = model.base_model
        for block in base.layers if hasattr(base, "layers") else base.h:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        return model  # type: ignore[no-any-return]


def peaks(ledger: Ledger) -> dict[str, int]:
    """Of the one card that the process uses."""
    (place,) = ledger.devices()
    moments = [ledger.moment(phase, place) for phase in ledger.phases(place)]
    return {
        "allocated": max(moment.allocated_bytes for moment in moments),
        "reserved": max(moment.reserved_bytes for moment in moments),
    }


def check(case: Case, folder: Path) -> None:
    traced, formula = peaks(case.trace()), peaks(estimate(case.job(folder)).ledger)
    for metric, seen in traced.items():
        error = formula[metric] / seen - 1
        assert abs(error) <= ALLOWED, (
            f"{case}: {metric}: formula {formula[metric]}, traced {seen} ({error:+.1%})"
        )


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 8, 64])
@pytest.mark.parametrize("model", ["llama", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_formula_and_trace_agree(
    strategy: str, model: str, world_size: int, tmp_path: Path
) -> None:
    for checkpointing in (False, True):
        check(
            Case(
                model=model, strategy=strategy, world_size=world_size, checkpointing=checkpointing
            ),
            tmp_path,
        )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_they_agree_over_several_micro_batches(strategy: str, tmp_path: Path) -> None:
    check(Case(model="llama", strategy=strategy, world_size=8, accumulate=2), tmp_path)


@pytest.mark.slow
def test_they_agree_where_a_tied_table_gets_its_second_gradient_in_place(tmp_path: Path) -> None:
    """Under autocast the head's share is a cast's result, into which autograd adds the embedding's."""
    check(Case(model="opt", strategy="ddp", world_size=4, batch=3, seq=300), tmp_path)


@pytest.mark.slow
def test_they_agree_where_gradients_are_views_of_buckets(tmp_path: Path) -> None:
    check(Case(model="gpt2", strategy="ddp", world_size=8, bucket_view=True), tmp_path)


@pytest.mark.slow
def test_they_agree_on_any_rank_where_parameters_divide_evenly(tmp_path: Path) -> None:
    check(Case(model="llama", strategy="fsdp2", world_size=64, rank=37), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_they_agree_with_a_reference_beside_the_policy(strategy: str, tmp_path: Path) -> None:
    """Whole on every rank under DDP, sharded and gathered like the policy under FSDP2."""
    check(Case(model="llama", strategy=strategy, world_size=8, reference=True), tmp_path)
