"""Logits recognised from the size of one request alone.

In: an Observation of a device that ran out of memory. Out: a Finding. Batches and lengths are mostly powers of two, and
so is their product; the vocabularies below are not, nor nearly so, and hardly any other tensor has such a side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramcast.allocator.constants import SEGMENT_ROUNDING_BYTES
from vramcast.diagnose.observation import Observation
from vramcast.diagnose.rules.findings import Finding, fact
from vramcast.units import MiB

# `vocab_size` in the config.json of the models, rounded up by nanoGPT to a multiple of 64.
VOCABULARIES = {
    50257: "GPT-2",
    50304: "GPT-2, GPT-NeoX",
    128256: "Llama 3",
    151936: "Qwen2, Qwen3",
    152064: "Qwen2, Qwen2.5",
}
# Below this, rounding to whole segments makes any size look like one of these.
LEAST_BYTES = 512 * MiB
MOST_TOKENS_BITS = 20
ITEM_BYTES = (2, 4)
# A size that is printed less exactly agrees with one of them too easily.
WIDEST = 0.005
# Messages of torch before 1.4 are older than all but one of these models.
OF_OLD_TORCH = (50257, 50304)


def logits_sized(oom: Observation) -> Finding | None:
    """The first vocabulary that a power of two of tokens makes into just this request."""
    requested = oom.requested_bytes
    if requested is None or requested < LEAST_BYTES:
        return None
    low, high = oom.requested_range_bytes or (requested, requested)
    if high - low > WIDEST * requested:
        return None
    is_old = oom.kind == "torch_cuda_oom_legacy_cached"
    for vocabulary, tokens, itemsize, size in _sizes(OF_OLD_TORCH if is_old else VOCABULARIES):
        if low <= size <= high:
            return fact(
                "logits_sized",
                requested_bytes=requested,
                tokens=tokens,
                vocabulary=vocabulary,
                itemsize=itemsize,
                models=VOCABULARIES[vocabulary],
            )
    return None


def _sizes(vocabularies: Iterable[int]) -> Iterator[tuple[int, int, int, int]]:
    """Vocabulary, tokens, bytes of a number, and the segment that PyTorch asks for."""
    for vocabulary in vocabularies:
        for tokens in (1 << bits for bits in range(MOST_TOKENS_BITS)):
            for itemsize in ITEM_BYTES:
                exact = vocabulary * tokens * itemsize
                yield (
                    vocabulary,
                    tokens,
                    itemsize,
                    -(-exact // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES,
                )
