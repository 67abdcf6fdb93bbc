"""A vision transformer of timm tuned on images of 224 x 224, as torchao's benchmark of its optimizers does.

benchmarks/benchmark_low_bit_adam.py: images are cropped to 224, AMP or everything in bf16, no scheduler, gradients let
go of after the step. Random weights and images instead of the downloaded ones.
"""

import argparse
from functools import partial

import bitsandbytes as bnb
import timm
import torch
import torch.nn.functional as F
from torchao.prototype import low_bit_optim

OPTIMIZERS = {
    "AdamW": partial(torch.optim.AdamW, fused=True),
    "AdamW8bitBnb": bnb.optim.AdamW8bit,
    "AdamW8bitAo": low_bit_optim.AdamW8bit,
    "AdamWFp8Ao": low_bit_optim.AdamWFp8,
}
parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--batch_size", type=int, required=True)
parser.add_argument("--amp", choices=("bf16", "none"), default="none")
parser.add_argument("--full_bf16", action="store_true")
parser.add_argument("--checkpoint_activations", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--optim", choices=OPTIMIZERS, default="AdamW")
parser.add_argument("--optim_cpu_offload", choices=("ao",))
args = parser.parse_args()

model = timm.create_model(args.model, num_classes=45, img_size=224)
if args.checkpoint_activations:
    model.set_grad_checkpointing()
if args.full_bf16:
    model.bfloat16()
model.cuda()
if args.compile:
    model.compile(fullgraph=True)
make = OPTIMIZERS[args.optim]
if args.optim_cpu_offload == "ao":
    make = partial(low_bit_optim.CPUOffloadOptimizer, optimizer_class=make)
optimizer = make(model.parameters(), lr=1e-4, weight_decay=0)
scaler = torch.amp.GradScaler("cuda", enabled=False)
model.train()
for _ in range(4):
    images, labels = (
        torch.randn(args.batch_size, 3, 224, 224),
        torch.randint(0, 45, (args.batch_size,)),
    )
    if args.full_bf16:
        images = images.bfloat16()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.amp == "bf16"):
        loss = F.cross_entropy(model(images.cuda()), labels.cuda())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
