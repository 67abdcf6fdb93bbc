"""FSDP2 or DDP over all ranks of a torchrun job: torchrun --nproc-per-node 8 examples/train_fsdp.py [--ddp]."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
)
model = LlamaForCausalLM(config).to(device)
if args.ddp:
    model = DistributedDataParallel(model, device_ids=[local_rank])
else:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    ids = torch.randint(0, 32000, (2, 1024), device=device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(
            f"step {step} of {dist.get_world_size()} ranks: peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
        )
dist.destroy_process_group()
