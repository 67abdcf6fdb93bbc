"""FSDP1's formulas beside one traced rank: flat vectors, one gathered in forward, two in backward."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from vramcast.engine.estimate import estimate
from vramcast.job import Job, Precision
from vramcast.ledger import Ledger
from vramcast.virtual import virtual_gpu

ALLOWED = 0.02  # of the allocated peak
CARD, BATCH, SEQ = "h100-80gb", 2, 512
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
    "tie_word_embeddings": False,
}  # fmt: skip


def trained(folder: Path, world_size: int, *, checkpointing: bool) -> Ledger:
    """Two steps of rank 0."""
    with virtual_gpu(CARD, count=world_size, rank=0) as gpu:
        dist.init_process_group("nccl")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        bare = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder), dtype=torch.bfloat16
        )
        if checkpointing:
            bare.gradient_checkpointing_enable()
        bare.train()
        policy = ModuleWrapPolicy({LlamaDecoderLayer})
        model = FullyShardedDataParallel(bare, auto_wrap_policy=policy, device_id=device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            ids = torch.randint(0, 1000, (BATCH, SEQ)).to(device)
            outputs = model(input_ids=ids, labels=ids)
            outputs.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return gpu.ledger()


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "checkpointing"), [(2, False), (8, False), (8, True)])
def test_fsdp1_is_predicted_as_it_is_traced(
    tmp_path: Path, world_size: int, checkpointing: bool
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL), encoding="utf-8")
    job = Job(
        framework="plain", model=str(path), gpus=world_size, strategy="fsdp1", batch=BATCH, seq=SEQ, gpu=CARD,
        checkpointing="full" if checkpointing else "none", precision=Precision.BF16_TRUE,
    )  # fmt: skip
    predicted = estimate(job).ledger.peak("cuda:0").allocated_bytes
    ledger = trained(tmp_path, world_size, checkpointing=checkpointing)
    place = ledger.devices()[0]
    traced = max(ledger.moment(phase, place).allocated_bytes for phase in ledger.phases(place))
    assert abs(predicted / traced - 1) <= ALLOWED, f"predicted {predicted:,}, traced {traced:,}"
