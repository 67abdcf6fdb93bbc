"""Companion models and the phases between steps: by hand, against real generation, and the same in sweeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from live import Live

from vramcast.engine.estimate import estimate
from vramcast.engine.lines.companions import ADAPTERS_OFF
from vramcast.engine.prices.sweep import sweep
from vramcast.errors import InputError, UnsupportedError
from vramcast.job import Job, job_from
from vramcast.ledger import Category, Ledger
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import F32, Regime

QWEN = 596_049_920  # parameters of Qwen3-0.6B, whose head is its embedding
LAYERS, KV_HEADS, WIDTH, VOCAB = 28, 8, 128, 151_936


def job(**values: Any) -> Job:
    words = {"model": "qwen3-0.6b", "batch": 2, "seq": 512, "framework": "trl", "loss": "full"}
    return job_from({**words, **values})


def lines(ledger: Ledger, phase: str, place: str = "cuda:0") -> dict[str, int]:
    return ledger.grouped(lambda entry: entry.component, phase=phase, place=place)


# ---- companions


@pytest.mark.parametrize(
    ("place", "where"), [("same", "cuda:0"), ("cpu", "host"), ("cuda:1", "cuda:1")]
)
@pytest.mark.parametrize("companion", ["reference", "reward", "teacher"])
def test_a_frozen_companion_is_its_weights_and_a_passing_forward(
    companion: str, place: str, where: str
) -> None:
    dtype = "reference-dtype" if companion == "reference" else "companion-dtype"
    ledger = estimate(job(**{companion: place, dtype: "bf16"})).ledger
    name = f"{companion} model, bf16" if companion != "teacher" else "teacher, bf16"
    assert lines(ledger, "step", where)[name] == 2 * QWEN
    if where != "cuda:0" or companion == "teacher":
        passing = next(c for c in lines(ledger, "loss", where) if "forward (no graph)" in c)
        assert passing not in lines(ledger, "backward", where)


@pytest.mark.parametrize("companion", ["reference", "reward"])
def test_a_pass_behind_the_loss_has_what_the_loss_needed(companion: str) -> None:
    """Its own peak is no more than what the policy's loss lets go of, so only the weights come on top."""
    values = {
        companion: "same",
        "reference-dtype" if companion == "reference" else "companion-dtype": "bf16",
    }
    plain, beside = (
        estimate(one).ledger.moment("loss", "cuda:0") for one in (job(), job(**values))
    )
    assert beside.allocated_bytes - plain.allocated_bytes == pytest.approx(2 * QWEN, rel=0.001)


def test_a_reference_without_adapters_has_no_weights() -> None:
    """Its forward runs behind the loss and needs less than the loss let go of."""
    alone = estimate(job(**{"lora-rank": 16}))
    beside = estimate(job(reference="adapter", **{"lora-rank": 16}))
    assert beside.ledger.peak("cuda:0") == alone.ledger.peak("cuda:0")
    assert ADAPTERS_OFF in beside.assumptions
    with pytest.raises(InputError, match="lora-rank"):
        estimate(job(reference="adapter"))


@pytest.mark.parametrize(("reference", "is_stored"), [("adapter", False), ("same", True)])
def test_on_many_gpus_too(reference: str, is_stored: bool) -> None:
    words = {"lora-rank": 16, "gpus": 2, "strategy": "fsdp2", "gpu": "rtx4090"}
    found = lines(estimate(job(reference=reference, **words)).ledger, "step")
    assert any(name.startswith("reference model,") for name in found) == is_stored


def test_precomputed_log_probabilities_need_no_reference() -> None:
    plain, precomputed = estimate(job()).ledger, estimate(job(reference="precomputed")).ledger
    assert plain.peak("cuda:0") == precomputed.peak("cuda:0")


def test_the_reference_has_its_own_dtype() -> None:
    found = lines(estimate(job(reference="same", **{"reference-dtype": "bf16"})).ledger, "load")
    assert found["reference model, bf16"] == 2 * QWEN


def test_a_teacher_leaves_its_logits_and_their_softmax() -> None:
    found = lines(estimate(job(teacher="cpu", precision="bf16-true")).ledger, "backward")
    assert found["teacher's logits"] == 2 * 512 * VOCAB * 2
    assert found["teacher's probabilities"] == 2 * 512 * VOCAB * 4


def test_a_teacher_has_nothing_to_compare_with_where_logits_never_exist() -> None:
    with pytest.raises(InputError, match="which loss fused never makes"):
        estimate(job(teacher="same", loss="fused"))


def test_a_larger_teacher_is_read_from_its_own_config() -> None:
    ledger = estimate(
        job(teacher="cuda:1", **{"teacher-model": "qwen3-1.7b", "companion-dtype": "bf16"})
    ).ledger
    assert lines(ledger, "load", "cuda:1")["teacher, bf16"] > 2 * 1.5e9


def test_a_critic_is_trained_like_the_policy() -> None:
    ledger = estimate(job(critic="cuda:1", precision="fp32")).ledger
    found = lines(ledger, "next step", "cuda:1")
    assert found["critic: weights"] == found["critic: gradients"] == 4 * QWEN
    assert found["critic: optimizer states"] == 8 * QWEN
    assert lines(ledger, "loss", "cuda:1")["critic: kept for backward"] > 10**9


def test_a_reward_model_scores_in_the_rollout_if_there_is_one() -> None:
    ledger = estimate(job(reward="same", **{"rollout-tokens": 256})).ledger
    assert "reward model's forward (no graph)" in lines(ledger, "rollout")
    assert "reward model's forward (no graph)" not in lines(ledger, "loss")


# ---- rollout


def test_a_rollout_holds_the_cache_of_prompt_and_answer() -> None:
    ledger = estimate(
        job(precision="bf16-true", **{"rollout-tokens": 256, "rollout-batch": 16})
    ).ledger
    cache = lines(ledger, "rollout")["keys and values while generating"]
    assert cache == 2 * LAYERS * 16 * 512 * KV_HEADS * WIDTH * 2
    states = ledger.grouped(lambda entry: str(entry.category), phase="rollout", place="cuda:0")
    assert states[str(Category.OPTIMIZER)] == 4 * QWEN  # it happens between steps
    assert str(Category.GRADIENTS) not in states


SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 300,
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.slow
def test_a_real_generation_ends_with_that_cache() -> None:
    config = transformers.AutoConfig.for_model(**SMALL)
    model = transformers.LlamaForCausalLM._from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    ids = torch.randint(1, 300, (3, 40))
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, min_new_tokens=24, do_sample=False,
        return_dict_in_generate=True, pad_token_id=0,
    )  # fmt: skip
    layers = made.past_key_values.layers
    real = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    program = record(
        Config(SMALL), Regime(weights=F32, grad=False, kv_cache="copy"), Sizes(batch=3, seq=63)
    )
    ours = sum(
        int(op.output.nbytes) for placed in program.sections for op in placed.section.ops
        if op.output.is_cache and op.output.owner is None
    )  # fmt: skip
    assert ours == real  # the last token's keys are never made


# ---- evaluation, saving, resuming


def test_evaluation_keeps_no_graph_but_what_the_trainer_gathers() -> None:
    plain = estimate(job(evaluate=True, framework="hf", precision="bf16-mixed")).ledger
    kept = estimate(
        job(evaluate=True, framework="hf", precision="bf16-mixed", **{"eval-kept": 10})
    ).ledger
    assert lines(kept, "eval")["logits kept until evaluation ends"] == 10 * 2 * 512 * VOCAB * 4
    assert lines(plain, "eval")["evaluation's forward (no graph)"] < 4 * 2 * 512 * VOCAB * 4
    assert kept.peak("cuda:0").phase == "eval"


def test_a_real_evaluation_needs_what_is_billed() -> None:
    from vramcast.engine.lines.setting import peak_of
    from vramcast.models.record.loss import add_loss

    config = transformers.AutoConfig.for_model(**{**SMALL, "vocab_size": 3000})
    config.use_cache = False
    model = transformers.LlamaForCausalLM._from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    ids = torch.randint(0, 3000, (4, 128))
    live = Live(ids, *model.parameters(), *model.buffers())
    with live, torch.no_grad():
        model(input_ids=ids, labels=ids)
    regime = Regime(weights=F32, grad=False, training=False, attention="flash", cuda=False)
    program = record(Config({**SMALL, "vocab_size": 3000}), regime, Sizes(batch=4, seq=128))
    add_loss(program, transformers=(5, 0))
    assert int(peak_of(program)) == pytest.approx(live.peak, rel=0.03)


def test_lightning_evaluates_with_the_last_gradients() -> None:
    for framework, expected in (("lightning", 4 * QWEN), ("hf", 0)):
        ledger = estimate(job(evaluate=True, framework=framework, precision="fp32")).ledger
        held = ledger.grouped(lambda entry: str(entry.category), phase="eval", place="cuda:0")
        assert held.get(str(Category.GRADIENTS), 0) == expected


@pytest.mark.parametrize(
    ("resume", "torch_version", "on_gpu", "on_host"),
    [
        ("cpu", "2.13", 12, 12),
        ("same", "2.13", 16, 0),
        ("same", "2.0", 24, 0),
        ("cpu", "2.0", 12, 20),
    ],
)
def test_resuming_loads_a_second_set(
    resume: str, torch_version: str, on_gpu: int, on_host: int
) -> None:
    """Bytes per parameter of fp32 AdamW: model 4, states 8, checkpoint 12; before 2.1 states were copied again."""
    ledger = estimate(
        job(resume=resume, precision="fp32", **{"torch-version": torch_version})
    ).ledger
    big = {
        name: n
        for name, n in lines(ledger, "resume").items()
        if n > 10**9 and "unallocated" not in name
    }
    assert sum(big.values()) == on_gpu * QWEN
    loaded = (
        entry
        for entry in ledger.entries
        if entry.place == "host" and "as loaded" in entry.component
    )
    assert sum(entry.nbytes for entry in loaded) == on_host * QWEN


def test_saving_moves_a_shard_to_the_host() -> None:
    ledger = estimate(job(framework="hf", precision="fp32")).ledger
    assert lines(ledger, "save", "host")["weights being written"] == 4 * QWEN
    old = estimate(
        job_from({"model": "llama-2-7b", "framework": "hf", "transformers-version": "4.50"})
    ).ledger
    assert lines(old, "save", "host")["weights being written"] == 5 * 10**9


# ---- the same everywhere


@pytest.mark.parametrize(
    "values",
    [
        {"reference": "same"},
        {"reference": "same", "optimizer-impl": "fused", "framework": "lightning"},
        {"reward": "same", "rollout-tokens": 256, "rollout-batch": 64},
        {"critic": "same"},
        {"teacher": "same", "precision": "bf16-true"},
        {"evaluate": True, "eval-kept": 40, "framework": "hf"},
        {"evaluate": True, "eval-batch": 64, "framework": "hf"},
        {"resume": "same", "torch-version": "2.0", "seq": 64},
    ],
    ids=lambda values: " ".join(values),
)
def test_sweeps_price_it_as_bills_do(values: dict[str, Any]) -> None:
    asked = job(**values)
    entries = (
        entry for entry in estimate(asked).ledger.entries if entry.category != Category.SLACK
    )
    expected = Ledger(entries=tuple(entries)).peak("cuda:0").allocated_bytes
    assert asked.seq is not None
    assert sweep(asked, (2,), (asked.seq,)).allocated_bytes[0, 0] == expected


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"critic": "cpu"}, "trained on a GPU"),
        ({"rollout-tokens": 512}, "no prompt"),
        ({"rollout-batch": 4}, "needs rollout-tokens"),
        ({"eval-kept": 4}, "need evaluate"),
        ({"teacher": "same", "teacher-model": "bert-base-uncased"}, "cannot be compared"),
        ({"model": "bert-base-uncased", "rollout-tokens": 16}, "no key/value cache"),
    ],
)
def test_refusals_say_why(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        estimate(job(**values))


@pytest.mark.parametrize("key", ["reference", "reward", "critic", "teacher"])
def test_a_count_of_parameters_has_no_companions(key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        estimate(job_from({"params": "7e9", key: "same"}))
