"""Unlearning with NPO: push a policy's probability of unwanted text below a frozen reference's.

    python examples/npo_reference.py                                       a small model, on whatever this machine has
    python examples/npo_reference.py --reference precomputed               no reference in memory at all while training
    python examples/npo_reference.py --model phi-3-mini --reference same   24 bytes per parameter: too much for 80 GB
    python examples/npo_reference.py --model phi-3-mini --reference cpu    20 bytes per parameter: 71.2 GiB

Weights are random and text is generated: nothing is downloaded, and memory does not depend on either.
"""

import argparse
import tempfile

import torch
from transformers import AutoModelForCausalLM, Phi3Config

from vramcast.runtime import (
    MemoryMonitor,
    ReferenceModel,
    npo_loss,
    precompute_reference,
    sequence_logprobs,
)

SMALL = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 4, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("small", "phi-3-mini"), default="small")
    parser.add_argument(
        "--reference", default="cpu", help="cpu, same, precomputed, or a device such as cuda:1"
    )
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument(
        "--checkpoint", action="store_true", help="recompute activations in backward"
    )
    return parser.parse_args()


def unwanted_text(
    args: argparse.Namespace, vocabulary: int, device: str
) -> list[dict[str, torch.Tensor]]:
    """Counting sequences stand for the text to forget."""
    batches = []
    for index in range(4):
        start = torch.arange(args.batch)[:, None] * 17 + index
        ids = (start + torch.arange(args.sequence)) % (vocabulary - 3) + 3
        batches.append({"input_ids": ids.to(device), "labels": ids.to(device)})
    return batches


def make_reference(
    policy: torch.nn.Module, args: argparse.Namespace, batches: list
) -> ReferenceModel:
    if args.reference != "precomputed":
        return ReferenceModel.copy_of(policy, args.reference)
    cache = precompute_reference(ReferenceModel.copy_of(policy, "cpu"), batches, tempfile.mkdtemp())
    return ReferenceModel(cache, "precomputed")


def main() -> None:
    args = arguments()
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    config = Phi3Config() if args.model == "phi-3-mini" else Phi3Config(**SMALL)
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_config(config).to(device)
    if args.checkpoint:
        policy.gradient_checkpointing_enable()
    batches = unwanted_text(args, config.vocab_size, device)
    reference = make_reference(policy, args, batches)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=args.learning_rate)
    with MemoryMonitor(*([device] if device != "cpu" else [])) as monitor:
        for step in range(args.steps):
            batch = batches[step % len(batches)]
            total = sequence_logprobs(
                policy(input_ids=batch["input_ids"]).logits, batch["labels"]
            ).total
            loss = npo_loss(total, reference.logprobs(batch).total, beta=args.beta)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            monitor.end_step()
            print(f"step {step}: loss {loss.item():.4f}  {peaks(monitor)}", flush=True)


def peaks(monitor: MemoryMonitor) -> str:
    return "  ".join(
        f"{name} {value / 2**30:.2f} GiB"
        for name, value in monitor.metrics.items()
        if name.endswith("max")
    )


if __name__ == "__main__":
    main()
