"""What every rank of the distributed tests runs: started by torchrun, one JSON line from rank 0.

Each mechanism runs under DDP and FSDP2 on gloo and is compared with one process that sees the whole batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from small_models import DynamicMoe, counting_text, next_token_loss
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from vramcast.errors import InputError
from vramcast.runtime import (
    AuxCollector,
    FunctionalEdit,
    GraphCut,
    MemoryMonitor,
    Mend,
    OnePassStep,
    ReferenceModel,
    SurpriseTracker,
    TwoPhaseStep,
    find_batch_size,
    label_positions,
    npo_loss,
    precompute_reference,
    sequence_logprobs,
)

ROUTERS = ["layers.*.gate"]


def whole_batch(world: int) -> torch.Tensor:
    return counting_text(2 * world, 16)


def wrapped(model: nn.Module, how: str) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model


def gating_loss(routings):
    return sum((r.logits.logsumexp(-1).pow(2)).mean() for r in routings)


def two_phase(how: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """All gradients after both phases, whole on every rank."""
    torch.manual_seed(0)
    plain = DynamicMoe()
    model = wrapped(plain, how)
    with AuxCollector(model, ROUTERS) as aux, SurpriseTracker(model, ROUTERS) as tracker:
        for layer in plain.layers:
            layer.tracker = tracker
        gates = {id(p) for p in aux.gate_parameters()}
        step = TwoPhaseStep(
            main_optimizer=torch.optim.SGD([p for p in model.parameters() if id(p) not in gates], lr=0.1),
            gate_optimizer=torch.optim.SGD(aux.gate_parameters(), lr=0.1),
            gating_loss=gating_loss, collector=aux, tracker=tracker,
        )  # fmt: skip
        step.main_phase(lambda: next_token_loss(model(ids), ids))
        step.gate_phase()
        found = {name: p.grad for name, p in plain.named_parameters()}
        found = {
            name: g.full_tensor() if hasattr(g, "full_tensor") else g.clone()
            for name, g in found.items()
        }
        step.main_optimizer.step()
        step.gate_optimizer.step()
        step(
            lambda: next_token_loss(model(ids), ids)
        )  # a whole step more, optimizer between the phases
    return found


def one_pass(how: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    plain = DynamicMoe()
    model = wrapped(plain, how)
    with OnePassStep(
        model, optimizers=[], layer_loss=lambda r: gating_loss([r]), routers=ROUTERS
    ) as step:
        step.backward(lambda: next_token_loss(model(ids), ids))
    found = {name: p.grad for name, p in plain.named_parameters()}
    return {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in found.items()}


def in_bfloat16(ids: torch.Tensor) -> str:
    """FSDP2's mixed precision: the gates are replayed in the dtype their forward had."""
    torch.manual_seed(0)
    model, mesh = DynamicMoe(), init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    with AuxCollector(model, ROUTERS) as aux:
        gates = {id(p) for p in aux.gate_parameters()}
        step = TwoPhaseStep(
            main_optimizer=torch.optim.SGD([p for p in model.parameters() if id(p) not in gates], lr=0.1),
            gate_optimizer=torch.optim.SGD(aux.gate_parameters(), lr=0.1), gating_loss=gating_loss, collector=aux,
        )  # fmt: skip
        step(lambda: next_token_loss(model(ids).float(), ids))
        step.main_phase(lambda: next_token_loss(model(ids).float(), ids))
        return str(aux.calls[0].routing.logits.dtype)


class Policy(nn.Module):
    """A policy that answers as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = DynamicMoe()
        self.layers = self.inner.layers

    def forward(self, input_ids, attention_mask=None):
        return self.inner(input_ids)


def reference_loss(how: str, ids: torch.Tensor, path: Path) -> torch.Tensor:
    """NPO against a precomputed reference; every rank computed its own share of the cache."""
    torch.manual_seed(0)
    policy = Policy()
    batch = {"input_ids": ids, "labels": ids}
    cache = precompute_reference(ReferenceModel.copy_of(policy, "cpu"), [batch], path)
    reference = ReferenceModel(cache, "precomputed")
    model = wrapped(policy, how)
    if how == "ddp":
        assert torch.equal(
            ReferenceModel.copy_of(model).logprobs(batch).total, reference.logprobs(batch).total
        )
    if how == "fsdp2":
        with pytest.raises(InputError, match="shards"):
            ReferenceModel.copy_of(model)
    loss = npo_loss(
        sequence_logprobs(model(ids), ids).total, reference.logprobs(batch).total, beta=0.1
    )
    loss.backward()
    assert not any("reference" in name for name in model.state_dict())
    average = loss.detach().clone()
    if dist.is_initialized() and how != "one":
        dist.all_reduce(average)
        average /= dist.get_world_size()
        assert len(cache) == 2 * dist.get_world_size()
    return average


def edit_gradients(how: str, ids: torch.Tensor) -> torch.Tensor:
    """A hypernetwork trained data-parallel on edits of a frozen model; its gradients averaged by hand under the cut."""
    torch.manual_seed(0)
    base = DynamicMoe().eval()

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.embed, self.head = base.layers, base.embed, base.head

        def forward(self, input_ids):
            return base.forward.__func__(self, input_ids)

    edit = FunctionalEdit(Named(), ["layers.1.experts.0.0.weight", "layers.1.experts.1.0.weight"])
    mend = Mend(edit, rank=4, initial_rate=1e-2).eval()
    if how == "ddp":
        mend = DistributedDataParallel(mend)
    if how == "fsdp2":
        mend = fully_shard(mend, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    for index, row in enumerate(ids):
        batch = {"input_ids": row[None]}
        mask, labels = label_positions(row[None])
        prefix = edit.prefix(batch)

        def loss_of(logits, mask=mask, labels=labels):
            return nn.functional.cross_entropy(logits[mask], labels)

        sync = mend.no_sync() if how == "ddp" and index < len(ids) - 1 else torch.enable_grad()
        with sync, GraphCut(edit.edited(mend(edit.factors(prefix, loss_of)))) as cut:
            (loss_of(edit(prefix, cut.leaves)) / len(ids)).backward()
            cut.replay()
    gradients = [p.grad.full_tensor() if how == "fsdp2" else p.grad for p in mend.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients])


@dataclass(frozen=True)
class Job:
    batch: int


def agreed_batch(rank: int) -> list[int]:
    """Ranks with different predictions and a rank that runs out agree on one batch."""

    def step(batch: int) -> None:
        if rank == 0 and batch > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")

    choice = find_batch_size(
        step, Job(1), predict=lambda b: b * (rank + 1), budget_bytes=16, device="cpu"
    )
    return [choice.batch, choice.job.batch]


class Fixed:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def peak(self, device):
        if self.nbytes == 0:
            raise RuntimeError("this rank's counter is broken")
        return self.nbytes, 2 * self.nbytes

    def reset(self, device):
        pass


def monitored(rank: int, path: Path) -> dict[str, float]:
    """The largest rank is reported, rank 0 writes, and a rank whose monitor broke does not stop the others."""
    written = []
    counters = Fixed(0 if rank == 1 else 100 * (rank + 1))
    monitor = MemoryMonitor(
        "cpu:1", counters=counters, writers=[lambda step, m: written.append(step)]
    )
    with monitor:
        for _ in range(3):
            monitor.end_step()
    assert written == ([1, 2, 3] if rank == 0 else [])
    return monitor.metrics


def worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    return max(
        ((found[n] - e).norm() / e.norm().clamp(min=1e-12)).item() for n, e in expected.items()
    )


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ids = whole_batch(world)
    mine = ids.chunk(world)[rank]
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    path = Path(folder[0])
    report: dict[str, object] = {"world": world}
    for how in ("ddp", "fsdp2"):
        report[f"moe {how}"] = worst(two_phase(how, mine), expected_two_phase(ids, world))
        alone = [one_pass("one", part) for part in ids.chunk(world)]
        mean = {name: torch.stack([part[name] for part in alone]).mean(dim=0) for name in alone[0]}
        report[f"one pass {how}"] = worst(one_pass(how, mine), mean)
        report[f"reference {how}"] = float(reference_loss(how, mine, path / how))
    joint = torch.stack([edit_gradients("one", part) for part in ids.chunk(world)]).mean(dim=0)
    for how in ("ddp", "fsdp2"):
        report[f"edit {how}"] = float((edit_gradients(how, mine) - joint).norm() / joint.norm())
    report["dtype"] = in_bfloat16(mine)
    report["batch"] = agreed_batch(rank)
    report["metrics"] = monitored(rank, path)
    if rank == 0:
        json.dump(report, sys.stdout)
        sys.stdout.write("\n")
    dist.destroy_process_group()


def expected_two_phase(ids: torch.Tensor, world: int) -> dict[str, torch.Tensor]:
    """One process per share without any wrapper, averaged: what data parallelism promises."""
    alone = dist.new_subgroups(group_size=1)[0]
    parts = []
    for part in ids.chunk(world):
        torch.manual_seed(0)
        model = DynamicMoe()
        with AuxCollector(model, ROUTERS) as aux:
            gates = {id(p) for p in aux.gate_parameters()}
            step = TwoPhaseStep(
                main_optimizer=torch.optim.SGD([p for p in model.parameters() if id(p) not in gates], lr=0.1),
                gate_optimizer=torch.optim.SGD(aux.gate_parameters(), lr=0.1),
                gating_loss=gating_loss, collector=aux, group=alone,
            )  # fmt: skip
            step.main_phase(lambda model=model, part=part: next_token_loss(model(part), part))
            step.gate_phase()
        parts.append({name: p.grad for name, p in model.named_parameters()})
    return {name: torch.stack([part[name] for part in parts]).mean(dim=0) for name in parts[0]}


if __name__ == "__main__":
    main()
