"""Torch's own losses, as Liger-Kernel's benchmarks measure them beside its kernels (provider "huggingface").

benchmark/scripts/benchmark_cross_entropy.py and benchmark_fused_linear_cross_entropy.py: forward and backward ten
times; gradients stay from the first time on. In 2024 the second one made the head twice, once for each provider.
"""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--tokens", type=int, required=True)
parser.add_argument("--vocabulary", type=int, required=True)
parser.add_argument(
    "--hidden", type=int, help="from hidden states through a bf16 head; without it from fp32 logits"
)
args = parser.parse_args()


class HeadAndLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(args.hidden, args.vocabulary, bias=False, dtype=torch.bfloat16)
        self.ce_loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, y):
        logits = self.lin(x)
        return self.ce_loss(logits, y)


if args.hidden is None:
    inputs = torch.randn(args.tokens, args.vocabulary, requires_grad=True, device="cuda")
    target = torch.randint(args.vocabulary, (args.tokens, 1), device="cuda").squeeze(1)
    loss_of = torch.nn.CrossEntropyLoss()
else:
    inputs = torch.randn(
        args.tokens, args.hidden, requires_grad=True, dtype=torch.bfloat16, device="cuda"
    )
    target = torch.randint(
        args.vocabulary, (args.tokens, 1), dtype=torch.long, device="cuda"
    ).squeeze(1)
    loss_of, other = HeadAndLoss().to("cuda"), HeadAndLoss().to("cuda")
for _ in range(10):
    loss = loss_of(inputs, target)
    loss.backward()
    del loss
