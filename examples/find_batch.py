"""The batch that fits, predicted from the job and confirmed by one real step; then training starts with it.

python examples/find_batch.py                                                    on the first GPU
vramcast trace examples/find_batch.py --gpu rtx3060 -- --sequence 1024           without one
"""

import argparse
from dataclasses import replace

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from vramcast import Job, estimate
from vramcast.runtime import find_batch_size


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(
            "this example needs a GPU, or a virtual one: vramcast trace examples/find_batch.py --gpu rtx3060"
        )
    device = torch.device("cuda:0")
    model = GPT2LMHeadModel(GPT2Config()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: int) -> None:
        ids = torch.randint(0, 50257, (batch, args.sequence), device=device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    job = Job(
        model="gpt2", seq=args.sequence, precision="fp32", optimizer="adamw", framework="plain"
    )
    usable = torch.cuda.get_device_properties(device).total_memory - (
        1 << 30
    )  # room for the context and the cache
    choice = find_batch_size(
        step,
        job,
        predict=lambda batch: peak_bytes(replace(job, batch=batch)),
        budget_bytes=usable,
        max_batch=256,
    )
    for probe in choice.probes:
        print(probe)
    print(f"training with batch {choice.batch}")
    for _ in range(args.steps):
        step(choice.batch)


def peak_bytes(job: Job) -> int:
    ledger = estimate(job).ledger
    return max(ledger.peak(device).reserved_bytes for device in ledger.devices())


if __name__ == "__main__":
    main()
