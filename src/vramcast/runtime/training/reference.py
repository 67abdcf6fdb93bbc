"""A frozen reference model that the training job cannot move, save or optimise by accident.

In: a model and where to place it. Out: log-probabilities on the caller's device. The reference is held outside the
module registry: as an attribute of any nn.Module or LightningModule it is in no state_dict, in no optimizer and
untouched by .to(). On the CPU it costs host memory and time, precomputed it costs neither; the loss is the same. Does
not know the loss.

Example: DPO of a model with 7e9 parameters in bfloat16. A reference on the same GPU takes 14 GB of it; on the CPU it
takes 14 GB of host memory; precomputed, 100,000 samples take two numbers each, some megabytes on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vramcast.errors import InputError
from vramcast.ledger import (
    BACKWARD,
    FORWARD,
    HOST,
    LOAD,
    LOSS,
    STEP,
    Category,
    Entry,
    Ledger,
    Origin,
)
from vramcast.runtime.ranks import raise_on_all_ranks, world_size
from vramcast.runtime.training.placement import (
    copy_to,
    module_bytes,
    move,
    normalise_device,
    require_available,
)
from vramcast.runtime.training.preference import IGNORED, SequenceLogprobs, sequence_logprobs
from vramcast.runtime.training.reference_cache import ReferenceCache, batch_keys, batch_labels

Batch = Mapping[str, Any]


class ReferenceModel:
    """Takes over a model of its own, or a cache of its log-probabilities (placement="precomputed").

    reference = ReferenceModel.copy_of(policy, placement="cpu", dtype=torch.bfloat16)
    loss = npo_loss(policy_logprobs.total, reference.logprobs(batch).total, beta=0.1)
    """

    def __init__(
        self,
        model: nn.Module | ReferenceCache,
        placement: str | int = "same",
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        if (placement == "precomputed") != isinstance(model, ReferenceCache):
            raise InputError(
                f"placement {placement!r} does not go with a {type(model).__name__}: 'precomputed' takes the cache "
                "that precompute_reference returns, every other placement takes a model."
            )
        self.placement = str(placement)
        self._source: nn.Module | ReferenceCache = model
        if not isinstance(model, ReferenceCache):
            self._source = _place(model, _device_of(placement), dtype)

    @classmethod
    def copy_of(
        cls, policy: nn.Module, placement: str | int = "cpu", *, dtype: torch.dtype | None = None
    ) -> ReferenceModel:
        """A reference equal to the policy as it is now. Copied tensor by tensor straight to its place."""
        whole = policy.module if isinstance(policy, DistributedDataParallel) else policy
        sharded = [name for name, parameter in whole.named_parameters() if _is_shard(parameter)]
        if sharded:
            raise InputError(
                f"{len(sharded)} parameters of the policy are shards ({sharded[0]}), so a copy would be in pieces. "
                "Make the reference before fully_shard or the ZeRO-3 engine, or precompute it there."
            )
        reference = cls(copy_to(whole, _device_of(placement), dtype=dtype), "same")
        reference.placement = str(placement)
        return reference

    def __deepcopy__(self, memo: dict[int, Any]) -> ReferenceModel:
        return self  # frozen, so a copy of the training module may share it

    @property
    def device(self) -> torch.device | None:
        """Where the weights are; None when only their results exist."""
        return None if isinstance(self._source, ReferenceCache) else self._source_device()

    def logprobs(self, batch: Batch) -> SequenceLogprobs:
        """Per-sequence sums for a batch with input_ids and labels, on the batch's device."""
        if isinstance(self._source, ReferenceCache):
            return self._source.lookup(batch)
        labels = batch_labels(batch).to(self._source_device())
        with torch.no_grad():
            return sequence_logprobs(self._logits(batch), labels).to(batch["input_ids"].device)

    def logits(self, batch: Batch) -> Tensor:
        """All logits, for a KL term, on the batch's device. Not available from a cache."""
        if isinstance(self._source, ReferenceCache):
            raise InputError(
                "a precomputed reference knows sums per sample, not logits. Place it on 'cpu' or a device."
            )
        with torch.no_grad():
            return self._logits(batch).to(batch["input_ids"].device)

    def ledger(self, training_device: str = "cuda:0") -> Ledger:
        """The reference's weights, at the place where they really are."""
        if isinstance(self._source, ReferenceCache):
            return Ledger(entries=())
        entry = Entry(
            category=Category.COMPANION,
            component="reference model",
            place=self._place_name(training_device),
            phases=(LOAD, FORWARD, LOSS, BACKWARD, STEP),
            nbytes=module_bytes(self._source),
            origin=Origin.MEASURED,
            source="its own tensors",
        )
        return Ledger(entries=(entry,))

    def _place_name(self, training_device: str) -> str:
        device = self._source_device()
        if device.type != "cpu":
            return str(normalise_device(device))
        return training_device if self.placement == "same" else HOST

    def _source_device(self) -> torch.device:
        assert isinstance(self._source, nn.Module)
        return next(self._source.parameters()).device

    def _logits(self, batch: Batch) -> Tensor:
        assert isinstance(self._source, nn.Module)
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        output = self._source(**move(inputs, self._source_device()))
        return output if isinstance(output, Tensor) else output.logits


def precompute_reference(
    reference: ReferenceModel,
    batches: Iterable[Batch],
    path: str | Path,
    *,
    tokenizer: Any = None,
    on_batch: Callable[[int], None] | None = None,
) -> ReferenceCache:
    """Log-probabilities of every sample on disk. Run again after an interruption, it computes only what is missing.

    With a process group every rank passes its own batches and waits for the others; the returned cache sees all of
    them. If a rank fails (its disk is full, say), the others finish their batches and then every rank raises.
    """
    if not isinstance(reference._source, nn.Module):
        raise InputError("the reference is already precomputed; pass one that holds a model.")
    identity: dict[str, str] = {}
    failure: Exception | None = None
    try:
        with ReferenceCache(path, model=reference._source, tokenizer=tokenizer) as cache:
            identity = cache.identity
            _add_missing(cache, reference, batches, on_batch)
    except Exception as error:
        failure = error
    raise_on_all_ranks(failure)
    return ReferenceCache(path, model=identity["model"], tokenizer=identity["tokenizer"])


def _add_missing(
    cache: ReferenceCache,
    reference: ReferenceModel,
    batches: Iterable[Batch],
    on_batch: Callable[[int], None] | None,
) -> None:
    rank = torch.distributed.get_rank() if world_size() > 1 else 0
    writer = cache.writer(rank)
    for index, batch in enumerate(batches):
        keys = batch_keys(batch)
        missing = cache.missing(keys)
        if missing:
            values = reference.logprobs(_rows(batch, missing, len(keys)))
            writer.add([keys[position] for position in missing], values)
        if on_batch is not None:
            on_batch(index)


def trl_columns(
    reference: ReferenceModel,
    rows: Iterable[Mapping[str, Any]],
    *,
    batch_size: int = 8,
    max_length: int | None = None,
) -> dict[str, list[float]]:
    """The two columns that TRL's DPO collator reads instead of running a reference.

    Rows are TRL's tokenised ones (prompt_ids, chosen_ids, rejected_ids); `max_length` keeps the start, as TRL does.
    """
    listed = list(rows)
    columns: dict[str, list[float]] = {}
    for side in ("chosen", "rejected"):
        column = columns[f"ref_{side}_logps"] = []
        for start in range(0, len(listed), batch_size):
            part = listed[start : start + batch_size]
            batch = _completions(part, f"{side}_ids", max_length)
            column += reference.logprobs(batch).total.tolist()
    return columns


def _completions(
    rows: list[Mapping[str, Any]], side: str, max_length: int | None
) -> dict[str, Tensor]:
    """Prompt and completion padded to the right; only the completion is labelled."""
    ids = [torch.tensor([*row["prompt_ids"], *row[side]][:max_length]) for row in rows]
    labels = [row_ids.clone() for row_ids in ids]
    for row, row_labels in zip(rows, labels, strict=True):
        row_labels[: len(row["prompt_ids"])] = IGNORED
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(ids, batch_first=True),
        "attention_mask": pad([torch.ones_like(row_ids) for row_ids in ids], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=IGNORED),
    }


def _is_shard(parameter: nn.Parameter) -> bool:
    """FSDP2's parameters say how they are placed; ZeRO-3's are empty outside of the forward."""
    return hasattr(parameter, "placements") or parameter.numel() == 0


def _device_of(placement: str | int) -> torch.device | None:
    if placement in ("same", "precomputed"):
        return None
    device = normalise_device(placement)
    require_available(device)
    return device


def _place(model: nn.Module, device: torch.device | None, dtype: torch.dtype | None) -> nn.Module:
    return model.requires_grad_(False).eval().to(device=device, dtype=dtype)


def _rows(batch: Batch, rows: list[int], size: int) -> dict[str, Any]:
    """The given samples of a batch; values that are not one per sample stay."""
    return {
        name: value[rows] if isinstance(value, Tensor) and value.shape[:1] == (size,) else value
        for name, value in batch.items()
    }
