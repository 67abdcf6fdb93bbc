"""generate() of encoder-decoders: one pass of the encoder, then the decoder token by token.

    load      the weights
    prefill   the encoder reads the prompt; its output stays until the end
    decode    keys and values of the encoder's output are made once for every layer; those of the answer grow

Example: T5-base, 4 prompts of 512 tokens: 12 layers × 2 × 4 × 512 × 768 × 4 B = 144 MiB of the encoder's keys and
values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.companions import during, line
from vramcast.engine.lines.setting import peak_of
from vramcast.engine.recording.record import DEVICE
from vramcast.ledger import DECODE, PREFILL, Category
from vramcast.models.record.program import Program
from vramcast.models.record.tape import F32, Value

INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """An encoder-decoder's generation: its program with the prompt in the encoder and one token in the decoder."""

    program: Program
    encoder: Program  # the same once more, to be cut where the decoder begins
    rows: int  # of the decoder: samples × beams
    beams: int
    prompt: int
    new: int

    @property
    def first_decoder(self) -> int:
        """The first section after the encoder."""
        names = [placed.name for placed in self.program.sections]
        return next((at for at, name in enumerate(names) if "decoder" in name), len(names))

    def caches(self) -> Iterator[tuple[list[Value], list[Value]]]:
        """For every decoder layer its own keys and values, of one token, and those of the encoder's output."""
        for placed in self.program.sections[self.first_decoder :]:
            found = [
                op.output
                for op in placed.section.ops
                if op.output.is_cache and op.output.owner is None
            ]
            if found:
                yield found[:2], found[2:]

    def blocks(self) -> Iterator[tuple[object, int]]:
        """The caches of decoding, as the allocator is asked for them."""
        for number, (own, cross) in enumerate(self.caches()):
            for at, value in enumerate(cross):
                yield ("cross", number, at), int(value.nbytes) * self.beams
            for at, value in enumerate(own):
                yield ("own", number, at), int(value.nbytes) * self.new


def is_encoder_decoder(program: Program) -> bool:
    """Does a decoder follow an encoder?"""
    names = [placed.name for placed in program.sections]
    return any("encoder" in name for name in names) and any("decoder" in name for name in names)


def decoding_lines(run: Decoding) -> list[Amounts]:
    """Cache, the encoder's output, and what a pass needs."""
    encoder = run.encoder
    del encoder.sections[run.first_decoder :]
    reading = int(peak_of(encoder))
    output = int(encoder.sections[-1].section.outputs[0].nbytes)
    layers = list(run.caches())
    own = [sum(int(value.nbytes) for value in values) for values, _ in layers]
    cross = sum(int(value.nbytes) for _, values in layers for value in values)
    vocabulary = int(run.program.output.shape[-1])
    logits = run.rows * vocabulary * (run.program.output.dtype.nbytes + F32.nbytes)
    joined = max(int(values[0].nbytes) for values, _ in layers) * run.new
    # The first step projects the encoder's output and copies the result into the cache.
    projected = max(sum(int(value.nbytes) for value in values) for _, values in layers) * run.beams
    cache = line(
        "keys and values",
        DEVICE,
        f"of {run.prompt:,} encoded tokens, and of {run.new:,} answered",
        "transformers cache_utils.py EncoderDecoderCache",
        Category.CACHE,
    )
    during(cache, (DECODE,), sum(own) * run.new + cross * run.beams)
    held = line(
        "the encoder's output",
        DEVICE,
        f"{run.rows:,} × {run.prompt:,} tokens",
        "generation/utils.py: encoder_outputs stay until the end",
        Category.TEMPORARY,
    )
    during(held, (DECODE,), output * run.beams)
    working = line(
        "a pass's tensors, one layer at a time",
        DEVICE,
        "prefill: the encoder's largest layer; decode: logits, or a layer's cache being joined",
        "the model's passes, as recorded",
        Category.TEMPORARY,
    )
    during(working, (PREFILL,), reading)
    during(working, (DECODE,), max(joined, logits, projected))
    ids = line(
        "token ids and mask", DEVICE, "int64", "input_ids and attention_mask", Category.INPUT
    )
    during(ids, (PREFILL, DECODE), 2 * run.rows * (run.prompt + run.new) * INDEX_BYTES)
    return [cache, held, working, ids]
