"""Padding: the longest batch sets the peak, masks cost bytes, frozen prefixes keep nothing; against real steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from live import Live

from vramcast.engine.estimate import estimate
from vramcast.engine.prices.sweep import sweep
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode
from vramcast.errors import InputError
from vramcast.job import job_from
from vramcast.ledger import Category
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import F32, Regime

BATCH, SEQ = 3, 130
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 2000,
    "tie_word_embeddings": False,
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 256, "d_ff": 512, "d_kv": 32,
    "num_heads": 8, "num_layers": 3, "num_decoder_layers": 3, "vocab_size": 2000, "dropout_rate": 0.0,
    "feed_forward_proj": "relu", "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip


def job(**values: Any) -> Any:
    return job_from({"model": "phi-3-mini", "batch": 4, "precision": "bf16-mixed", **values})


def activations(**values: Any) -> int:
    ledger = estimate(job(**values)).ledger
    return ledger.grouped(lambda entry: str(entry.category), phase="loss", place="cuda:0")[
        str(Category.ACTIVATIONS)
    ]


def test_the_longest_batch_sets_the_peak_and_the_average_is_told() -> None:
    forecast = estimate(job(seq=256, **{"longest-seq": 1024}))
    assert activations(seq=256, **{"longest-seq": 1024}) == activations(
        seq=1024, **{"longest-seq": 1024}
    )
    (note,) = forecast.notes
    assert "padded to 1024" in note
    assert "75% are padding" in note


def test_an_average_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(InputError, match="average"):
        estimate(job(seq=2048, **{"longest-seq": 1024}))


def test_a_padding_mask_is_kept_by_every_layer() -> None:
    """An additive mask in 16 bit per layer, b × 1 × s × s, which flash kernels would not take."""
    masked = activations(seq=1024, **{"longest-seq": 1024})
    plain = activations(seq=1024, attention="efficient")
    assert masked - plain == 32 * 4 * 1024 * 1024 * 2


def test_grids_hold_padded_lengths_and_refuse_two_of_them() -> None:
    with pytest.raises(InputError, match="padded lengths already"):
        sweep(job(**{"longest-seq": 1024}), (1, 2), (256,))


# ---- real steps


def real(
    data: dict[str, Any], frozen: tuple[str, ...] = (), padded: bool = False
) -> dict[str, int]:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**data)
    config.use_cache = False
    model_class = getattr(transformers, data["architectures"][0])
    model = model_class._from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    ids = torch.randint(1, 2000, (BATCH, SEQ))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 90:] = 0
    live = Live(ids, mask, *model.parameters(), *model.buffers())
    with live:
        outputs = model(input_ids=ids, attention_mask=mask, labels=ids)
        forward = live.peak
        live.restart()
        outputs.loss.backward()
        return {"forward": forward, "backward": live.peak}


def program(data: dict[str, Any], frozen: tuple[str, ...] = (), padded: bool = False) -> Program:
    regime = Regime(
        weights=F32, attention="eager", cuda=False, mask=padded,
        trainable=lambda name: not name.startswith(frozen) if frozen else True,
    )  # fmt: skip
    recorded = record(Config(data), regime, Sizes(batch=BATCH, seq=SEQ, target_seq=SEQ))
    add_loss(recorded, transformers=(5, 0))
    return recorded


def ours(recorded: Program) -> dict[str, int]:
    peaks = peak_by_phase(recorded, Mode(recompute=lambda placed: "none", keep_logits=True))
    return {
        "forward": max(int(peaks["forward"]), int(peaks["loss"])),
        "backward": int(peaks["backward"]),
    }


@pytest.mark.parametrize(
    ("data", "frozen"),
    [
        (LLAMA, ()),
        (LLAMA, ("model.embed_tokens", "model.layers.0.", "model.layers.1.")),
        (LLAMA, ("model.layers.2.",)),
        (T5, ()),
        (T5, ("shared", "encoder")),
    ],
    ids=["llama", "frozen prefix", "frozen in the middle", "t5", "t5 with a frozen encoder"],
)
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_peaks_of_real_steps(data: dict[str, Any], frozen: tuple[str, ...], padded: bool) -> None:
    measured, predicted = real(data, frozen, padded), ours(program(data, frozen, padded))
    assert predicted["forward"] == pytest.approx(measured["forward"], rel=0.03)
    assert predicted["backward"] == pytest.approx(measured["backward"], rel=0.02)


def test_a_frozen_prefix_keeps_nothing_and_a_frozen_middle_does() -> None:
    prefix = program(LLAMA, ("model.embed_tokens", "model.layers.0."))
    assert [placed.section.outputs[0].requires_grad for placed in prefix.sections[:3]] == [
        False,
        False,
        True,
    ]
    middle = program(LLAMA, ("model.layers.2.",))
    assert all(placed.section.outputs[0].requires_grad for placed in middle.sections)
