"""NPO under Accelerate, on any number of processes.

    accelerate launch --num_processes 1 examples/accelerate_npo.py
    ACCELERATE_USE_CPU=true torchrun --nproc-per-node=2 examples/accelerate_npo.py        without a GPU
    accelerate launch --multi_gpu --num_processes 8 examples/accelerate_npo.py

Every process computes the reference's log-probabilities of its own share once; then the reference is gone and only the
policy trains. Metrics are the largest over all processes and go to the trackers Accelerate was given.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig

from vramcast.runtime import (
    MemoryMonitor,
    ReferenceModel,
    npo_loss,
    precompute_reference,
    sequence_logprobs,
    to_accelerate,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("npo-run"))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    accelerator = Accelerator(log_with="tensorboard", project_dir=str(args.folder))
    accelerator.init_trackers("memory")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    policy = AutoModelForCausalLM.from_config(config)
    rows = [(torch.arange(64) + 17 * index) % 509 + 3 for index in range(32)]
    loader = DataLoader([{"input_ids": row, "labels": row} for row in rows], batch_size=4)
    reference = ReferenceModel.copy_of(policy, "cpu")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    policy, optimizer, loader = accelerator.prepare(policy, optimizer, loader)

    (folder,) = broadcast_object_list([str(args.folder / "reference")])
    reference = ReferenceModel(precompute_reference(reference, loader, folder), "precomputed")
    with MemoryMonitor(
        *cuda_only(accelerator.device), writers=[to_accelerate(accelerator)]
    ) as monitor:
        for epoch in range(args.epochs):
            for batch in loader:
                total = sequence_logprobs(
                    policy(input_ids=batch["input_ids"]).logits, batch["labels"]
                ).total
                loss = npo_loss(total, reference.logprobs(batch).total, beta=0.1)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                monitor.end_step()
            accelerator.print(
                f"epoch {epoch}: loss {accelerator.reduce(loss.detach(), 'mean').item():.4f}"
            )
    accelerator.end_training()


def cuda_only(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


if __name__ == "__main__":
    main()
