"""Train a mixture of experts whose gates have a loss of their own, without keeping the graph for it.

    python examples/moe_two_phase.py --scheme two-phase
    python examples/moe_two_phase.py --scheme retain-graph                         the baseline, to compare
    torchrun --nproc-per-node=2 examples/moe_two_phase.py --parallel ddp
    torchrun --nproc-per-node=2 examples/moe_two_phase.py --parallel fsdp2

The gating loss asks each gate to avoid experts whose inputs the main loss pulls at most ("surprise"), and to use all
of them.
"""

import argparse
import os
from contextlib import ExitStack

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, MixtralConfig

from vramcast.runtime import (
    AuxCollector,
    JointStep,
    MemoryMonitor,
    OnePassStep,
    RetainGraphStep,
    Routing,
    SurpriseTracker,
    TwoPhaseStep,
    held_between_phases,
)

STEPS = {"two-phase": TwoPhaseStep, "retain-graph": RetainGraphStep, "joint": JointStep}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheme", choices=(*STEPS, "one-pass"), default="two-phase")
    parser.add_argument("--parallel", choices=("none", "ddp", "fsdp2"), default="none")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    return parser.parse_args()


def build(args: argparse.Namespace) -> torch.nn.Module:
    config = MixtralConfig(
        vocab_size=512, hidden_size=args.hidden, intermediate_size=2 * args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=4, num_key_value_heads=4, head_dim=args.hidden // 4, num_local_experts=args.experts,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).train()


def parallelised(model: torch.nn.Module, how: str, device: str) -> torch.nn.Module:
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(
            model.to(device), find_unused_parameters=True
        )
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = dist.init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model.to(device)


def layer_loss(routing: Routing) -> torch.Tensor:
    scores = routing.scores
    balance = scores.mean(dim=0).pow(2).sum() * scores.shape[-1]
    if routing.surprise is None:
        return 1e-2 * balance
    return 1e-2 * balance + (scores * routing.surprise).sum(dim=-1).mean()


def gating_loss(routings: list[Routing]) -> torch.Tensor:
    return sum(layer_loss(routing) for routing in routings)


def text(args: argparse.Namespace, step: int, rank: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    start = torch.randint(3, 512, (args.batch, 1), generator=generator)
    stride = torch.randint(1, 4, (args.batch, 1), generator=generator)
    return ((start + stride * torch.arange(args.sequence)) % 509 + 3).to(device)


def make_step(args: argparse.Namespace, model: torch.nn.Module, stack: ExitStack):
    tracker = None if args.scheme == "joint" else stack.enter_context(SurpriseTracker(model))
    keep = "inputs" if args.scheme == "two-phase" else "graph"
    collector = stack.enter_context(AuxCollector(model, keep=keep))
    gates = {id(p) for p in collector.gate_parameters()}
    rest = torch.optim.AdamW([p for p in model.parameters() if id(p) not in gates], lr=2e-3)
    gate = torch.optim.AdamW(collector.gate_parameters(), lr=2e-3)
    if args.scheme == "one-pass":
        collector.close()
        return stack.enter_context(
            OnePassStep(model, optimizers=[rest, gate], layer_loss=layer_loss, tracker=tracker)
        )
    return STEPS[args.scheme](
        main_optimizer=rest,
        gate_optimizer=gate,
        gating_loss=gating_loss,
        collector=collector,
        tracker=tracker,
    )


def predicted_bytes(args: argparse.Namespace) -> int:
    ledger = held_between_phases(
        num_layers=args.layers, tokens=args.batch * args.sequence, hidden=args.hidden, experts=args.experts, top_k=2,
        dtype_bytes=4, tracked=True,
    )  # fmt: skip
    return ledger.peak("cuda:0").allocated_bytes


def main() -> None:
    args = arguments()
    cuda = torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if cuda else "cpu"
    rank = 0
    if args.parallel != "none":
        dist.init_process_group("nccl" if cuda else "gloo")
        rank = dist.get_rank()
    model = parallelised(build(args), args.parallel, device)
    with ExitStack() as stack, MemoryMonitor(*([device] if cuda else [])) as monitor:
        step = make_step(args, model, stack)
        for number in range(args.steps):
            ids = text(args, number, rank, device)
            losses = step(lambda ids=ids: model(input_ids=ids, labels=ids).loss)
            monitor.end_step()
            if rank == 0 and number % 5 == 4:
                print(
                    f"step {number}: main {losses.main.item():.3f} gating {losses.gating.item():.4f} {monitor.metrics}"
                )
        if args.scheme == "two-phase":
            step.main_phase(lambda: model(input_ids=ids, labels=ids).loss)
            print(
                f"held between the phases: {step.collector.held_bytes()} bytes, predicted {predicted_bytes(args)}"
            )
    if args.parallel != "none":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
