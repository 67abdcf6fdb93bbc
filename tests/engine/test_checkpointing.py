"""Checkpointing of every kind against real steps of a small model on the CPU, and the bill of large ones by hand."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers
from live import Live
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from vramcast.engine.estimate import estimate
from vramcast.engine.prices.sweep import sweep
from vramcast.engine.program import record_job
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.stream.checkpointing import (
    changes_of,
    offloaded,
    power_of_two,
    recompute_rule,
)
from vramcast.engine.stream.fold import peak_by_phase
from vramcast.engine.stream.timeline import Mode, step_events
from vramcast.errors import InputError
from vramcast.job import Job, job_from
from vramcast.ledger import Category, Ledger
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.models.record.loss import add_loss
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import BF16, F32, Regime
from vramcast.setup import resolve

BATCH, SEQ = 3, 130
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 6, "vocab_size": 3000,
    "tie_word_embeddings": False,
}  # fmt: skip
PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def to_host(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What transformers' offload does, with bytes outside of torch as the host."""

    def pack(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, bytes]:
        return (
            tensor.shape,
            tensor.dtype,
            tensor.detach().contiguous().view(torch.uint8).numpy().tobytes(),
        )

    def unpack(packed: tuple[torch.Size, torch.dtype, bytes]) -> torch.Tensor:
        shape, dtype, data = packed
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).clone()

    with saved_tensors_hooks(pack, unpack):
        return checkpoint(function, *args, **kwargs)


def enable(model: Any, how: str) -> None:
    if how == "selective":
        kwargs: dict[str, Any] = {
            "use_reentrant": False, "context_fn": lambda: create_selective_checkpoint_contexts(keep_products),
        }  # fmt: skip
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    elif how == "every-2":
        model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=2)
    else:
        model.gradient_checkpointing_enable({"use_reentrant": how == "reentrant"})
    if how == "offload":
        for layer in model.model.layers:
            layer._gradient_checkpointing_func = lambda function, *args: to_host(
                function, *args, use_reentrant=False
            )


def real(how: str, precision: str) -> dict[str, int]:
    config = transformers.AutoConfig.for_model(**LLAMA)
    config.use_cache = False
    model = transformers.LlamaForCausalLM._from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    ).train()
    enable(model, how)
    ids = torch.randint(0, 3000, (BATCH, SEQ))
    live = Live(ids, *model.parameters(), *model.buffers())
    with live:
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else nullcontext():
            outputs = model(input_ids=ids, labels=ids)
        forward, held = live.peak, live.now
        live.restart()
        outputs.loss.backward()
        return {"forward": forward, "held": held, "backward": live.peak}


def ours(how: str, precision: str) -> dict[str, int]:
    regime = Regime(
        weights=F32,
        autocast=BF16 if precision == "bf16-mixed" else None,
        attention="flash",
        cuda=False,
    )
    program = record(Config(LLAMA), regime, Sizes(batch=BATCH, seq=SEQ))
    add_loss(program, transformers=(5, 0))
    name = "full" if how == "reentrant" else how
    job = Job(
        framework="plain", model="x", checkpointing=name, reentrant=how == "reentrant" or None
    )
    mode = Mode(
        recompute=recompute_rule(resolve(job).checkpointing),
        keep_logits=True,
        changes=changes_of(resolve(job)),
    )
    peaks = peak_by_phase(program, mode)
    return {
        "forward": max(int(peaks["forward"]), int(peaks["loss"])),
        "backward": int(peaks["backward"]),
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("how", ["full", "reentrant", "every-2", "selective", "offload"])
def test_peaks_of_a_real_step(how: str, precision: str) -> None:
    torch.manual_seed(0)
    measured, predicted = real(how, precision), ours(how, precision)
    errors = {phase: predicted[phase] / measured[phase] - 1 for phase in predicted}
    assert all(abs(error) <= 0.02 for error in errors.values()), f"{errors} of {measured}"


def phi(**values: Any) -> Job:
    return job_from(
        {
            "framework": "plain",
            "model": "phi-3-mini",
            "batch": 2,
            "seq": 256,
            "precision": "bf16-mixed",
            **values,
        }
    )


def held(job: Job, category: Category, phase: str, place: str = "cuda:0") -> int:
    return (
        estimate(job)
        .ledger.grouped(lambda entry: str(entry.category), phase=phase, place=place)
        .get(str(category), 0)
    )


def test_autocast_holds_a_copy_of_every_weight_through_a_checkpointed_forward() -> None:
    linear = 3_722_379_264  # every linear weight of Phi-3-mini, the head included
    assert held(phi(checkpointing="full"), Category.COPIES, "forward") == 2 * linear
    block = 113_246_208  # one block's, while it is recomputed
    assert held(phi(checkpointing="full"), Category.COPIES, "backward") <= 2 * (block + 98_500_608)


def test_checkpointing_keeps_the_inputs_of_the_blocks_and_one_block() -> None:
    inputs = 32 * 2 * 256 * 3072 * 4
    kept = held(phi(checkpointing="full"), Category.ACTIVATIONS, "loss")
    assert inputs <= kept <= inputs + 40_000_000


def test_offloaded_inputs_lie_in_pinned_blocks_of_a_power_of_two() -> None:
    job = phi(checkpointing="offload", batch=3)
    ledger = estimate(job).ledger
    one = 3 * 256 * 3072 * 4
    assert one != power_of_two(one) == 16 * 2**20
    assert ledger.peak("pinned").process_bytes == 32 * 16 * 2**20
    saved = held(phi(checkpointing="full", batch=3), Category.ACTIVATIONS, "loss") - held(
        job, Category.ACTIVATIONS, "loss"
    )
    assert saved == 32 * one


def test_copies_under_way_stay_on_the_gpu() -> None:
    program = record(
        Config(LLAMA), Regime(attention="flash", cuda=False), Sizes(batch=BATCH, seq=SEQ)
    )
    rule = recompute_rule(
        resolve(Job(framework="plain", model="x", checkpointing="offload")).checkpointing
    )
    none, two = (
        peak_by_phase(program, Mode(recompute=rule, changes=(offloaded(stash),)))["forward"]
        for stash in (0, 2)
    )
    assert two - none == 2 * BATCH * SEQ * 256 * 4


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"checkpointing": "full", "transformers-version": "4.57"}, True),
        ({"checkpointing": "full", "transformers-version": "5.0"}, False),
        ({"checkpointing": "full", "transformers-version": "4.57", "reentrant": False}, False),
        ({"checkpointing": "full", "reentrant": True}, True),
        (
            {"checkpointing": "full", "framework": "torchtune", "transformers-version": "4.57"},
            False,
        ),
        ({"checkpointing": "none", "transformers-version": "4.57"}, False),
    ],
)
def test_who_reenters(values: dict[str, Any], expected: bool) -> None:
    assert resolve(phi(**values)).checkpointing.is_reentrant is expected


@pytest.mark.parametrize("how", ["every-0", "every-", "every-x", "some", "every-999999"])
def test_an_unknown_way_is_refused(how: str) -> None:
    with pytest.raises(InputError, match="every-N"):
        estimate(phi(checkpointing=how))


def test_selective_checkpointing_cannot_reenter() -> None:
    with pytest.raises(InputError, match="reentr"):
        estimate(phi(checkpointing="selective", reentrant=True))


@pytest.mark.parametrize("how", ["none", "full", "every-2", "selective", "offload"])
def test_sweeps_price_it_as_bills_do(how: str) -> None:
    job = job_from({"model": "qwen3-0.6b", "batch": 2, "seq": 512, "checkpointing": how})
    lines = (
        entry for entry in estimate(job).ledger.entries if str(entry.category) != "allocator slack"
    )
    peak = Ledger(entries=tuple(lines)).peak("cuda:0")
    assert sweep(job, (2,), (512,)).allocated_bytes[0, 0] == peak.allocated_bytes


@pytest.mark.parametrize("how", ["offload", "reentrant"])
@pytest.mark.parametrize(
    "name", ["gpt2", "t5-small", "whisper-tiny", "qwen2-vl-2b", "llava-1.5-7b", "gpt-oss-20b"]
)
def test_every_birth_has_one_death(name: str, how: str) -> None:
    """Also where a layer's result is not used (LLaVA), and where layers of two stacks share values."""
    job = job_from(
        {"model": name, "batch": 2, "seq": 64, "checkpointing": "full" if how == "reentrant" else how,
         "reentrant": how == "reentrant" or None, "framework": "trl"}
    )  # fmt: skip
    config = read_model(name).config
    assert config is not None
    program = record_job(resolve(job), config, None, sizes_of(resolve(job).data, config))
    alive = set()
    for item in step_events(
        program,
        Mode(
            recompute=recompute_rule(resolve(job).checkpointing), changes=changes_of(resolve(job))
        ),
    ):
        if item.event.sign > 0:
            assert item.key not in alive, f"{item.event.label} is born twice"
            alive.add(item.key)
        else:
            assert item.key in alive, f"{item.event.label} dies unborn"
            alive.remove(item.key)
