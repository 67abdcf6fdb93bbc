"""What each rank stores, against rules worked out by hand and figures that others measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deepspeed_estimators import zero2_needs, zero3_needs

from vramcast.engine.estimate import estimate
from vramcast.engine.parallel.host import pinned_bytes
from vramcast.errors import InputError
from vramcast.forecast import Forecast
from vramcast.job import job_from
from vramcast.ledger import NEXT_FORWARD, NEXT_STEP, PINNED, SAVE, Category
from vramcast.units import GiB

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 130,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96  # q, o, k, v, and the MLP
NORMS = 5 * 64
WHOLE = 2 * 130 * 64 + 2 * LAYER + NORMS


def forecast(tmp_path: Path, config: dict[str, object] = TINY, **values: object) -> Forecast:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    flags = {name.replace("_", "-"): value for name, value in values.items()}
    return estimate(
        job_from({"framework": "plain", "model": str(path), "batch": 1, "seq": 16, **flags})
    )


def held(result: Forecast, category: Category, phase: str = NEXT_STEP) -> int:
    entries = result.ledger.alive(phase, "cuda:0")
    return sum(entry.nbytes for entry in entries if entry.category == category)


def test_one_gpu_is_the_job_without_the_keys(tmp_path: Path) -> None:
    assert forecast(tmp_path, gpus=1).ledger == forecast(tmp_path).ledger


def test_a_strategy_on_one_gpu_is_priced_and_not_ignored(tmp_path: Path) -> None:
    result = forecast(
        tmp_path, gpus=1, offload="optimizer", precision="bf16-master", framework="deepspeed"
    )
    assert held(result, Category.OPTIMIZER) == held(result, Category.MASTER) == 0
    assert held(result, Category.WEIGHTS) == 2 * WHOLE
    with pytest.raises(InputError, match="does not divide the 1 GPUs"):
        forecast(tmp_path, tp=2)


def test_offloaded_activations_are_block_inputs_on_every_rank(tmp_path: Path) -> None:
    result = forecast(
        tmp_path, gpus=4, strategy="fsdp2", offload="activations", precision="bf16-true"
    )
    lines = [entry for entry in result.ledger.entries if "offloaded" in entry.component]
    assert (
        sum(entry.nbytes for entry in lines) == 4 * 2 * 16 * 64 * 2
    )  # ranks, blocks, tokens, width, bytes


def test_fsdp2_rounds_rows_up_for_every_parameter(tmp_path: Path) -> None:
    """130 rows over 4 ranks are 33 each, 64 are 16, 32 are 8, 96 are 24."""
    share = 2 * 33 * 64 + 2 * (2 * 16 * 64 + 2 * 8 * 64 + 2 * 24 * 64 + 16 * 96) + 5 * 16
    result = forecast(tmp_path, gpus=4, strategy="fsdp2")
    assert held(result, Category.WEIGHTS) == 4 * share
    assert held(result, Category.OPTIMIZER) == 8 * share
    assert held(result, Category.GRADIENTS) == 4 * share


def test_fsdp1_pads_flat_units(tmp_path: Path) -> None:
    """One vector per block and one for the rest, each padded to a multiple of 3."""
    block, root = LAYER + 2 * 64, 2 * 130 * 64 + 64
    share = 2 * -(-block // 3) + -(-root // 3)
    assert held(forecast(tmp_path, gpus=3, strategy="fsdp1"), Category.WEIGHTS) == 4 * share


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients"),
    [("zero1", 2 * WHOLE, 2 * WHOLE), ("zero2", 2 * WHOLE, 2 * -(-WHOLE // 4))],
)
def test_zero_shards_stage_by_stage(
    tmp_path: Path, strategy: str, weights: int, gradients: int
) -> None:
    result = forecast(
        tmp_path, gpus=4, strategy=strategy, precision="bf16-master", framework="deepspeed"
    )
    share = -(-WHOLE // 4)
    assert held(result, Category.WEIGHTS) == weights
    assert held(result, Category.GRADIENTS) == gradients
    assert held(result, Category.OPTIMIZER) == 8 * share
    assert held(result, Category.MASTER) == 4 * share


@pytest.mark.parametrize(("strategy", "gradients"), [("zero1", 2 * WHOLE), ("zero2", 0)])
def test_zero1_keeps_whole_gradients_between_micro_batches_with_the_optimizer_on_the_host(
    tmp_path: Path, strategy: str, gradients: int
) -> None:
    """Stage 2 reduces gradients as they come and sends its share to the host; stage 1 reduces with the last one."""
    result = forecast(tmp_path, gpus=4, strategy=strategy, precision="bf16-master", framework="deepspeed",
                      offload="optimizer", accumulate=4)  # fmt: skip
    assert held(result, Category.GRADIENTS, NEXT_FORWARD) == gradients


def test_zero3_keeps_small_parameters_whole_beside_their_shares(tmp_path: Path) -> None:
    """All parameters of the tiny model have fewer than 100,000 elements."""
    names = (
        [130 * 64] * 2
        + [64 * 64, 64 * 32, 64 * 32, 64 * 64, 64 * 96, 64 * 96, 64 * 96, 64, 64] * 2
        + [64]
    )
    share = sum(-(-numel // 4) for numel in names)
    result = forecast(
        tmp_path, gpus=4, strategy="zero3", precision="bf16-master", framework="deepspeed"
    )
    assert held(result, Category.WEIGHTS) == 2 * share + 2 * WHOLE
    assert held(result, Category.OPTIMIZER) == 8 * share


def test_ddp_holds_gradients_twice_unless_they_are_views(tmp_path: Path) -> None:
    buckets = held(forecast(tmp_path, gpus=2, strategy="ddp"), Category.COMMUNICATION)
    assert buckets == 4 * WHOLE
    assert (
        held(forecast(tmp_path, gpus=2, strategy="ddp", bucket_view=True), Category.COMMUNICATION)
        == 0
    )


def test_tensor_parallel_ranks_together_hold_the_model_once_and_the_norms_each(
    tmp_path: Path,
) -> None:
    result = forecast(tmp_path, gpus=2, tp=2)
    assert 2 * held(result, Category.WEIGHTS) == 4 * (WHOLE + NORMS)


def test_stages_together_hold_the_model_once(tmp_path: Path) -> None:
    first = held(forecast(tmp_path, gpus=2, pp=2), Category.WEIGHTS)
    assert first in (4 * (130 * 64 + LAYER + 2 * 64), 4 * (130 * 64 + LAYER + 3 * 64))
    tied = forecast(tmp_path, {**TINY, "tie_word_embeddings": True}, gpus=2, pp=2)
    assert held(tied, Category.WEIGHTS) == first  # the last stage needs a copy of the embedding


def test_a_padded_vocabulary_is_what_megatron_stores(tmp_path: Path) -> None:
    result = forecast(tmp_path, gpus=2, tp=2, framework="megatron", precision="megatron-bf16")
    split = 2 * 256 // 2 * 64 + 2 * LAYER // 2  # 130 rows become 256
    assert held(result, Category.WEIGHTS) == 2 * (split + NORMS)


def test_an_offloaded_optimizer_moves_to_the_host_in_powers_of_two(tmp_path: Path) -> None:
    result = forecast(
        tmp_path, gpus=4, gpus_per_node=2, strategy="zero2", precision="bf16-master", framework="deepspeed",
        offload="optimizer",
    )  # fmt: skip
    assert held(result, Category.OPTIMIZER) == held(result, Category.MASTER) == 0
    share = -(-WHOLE // 4)
    pinned = [entry.nbytes for entry in result.ledger.entries if entry.place == PINNED]
    assert 2 * pinned_bytes(4 * share) in pinned  # `.grad` of the flat fp32 partition
    assert [pinned_bytes(size) for size in (0, 5, 8)] == [0, 8, 8]


def test_published_sharding_of_the_optimizer_to_the_byte(tmp_path: Path) -> None:
    """Wedsonlin/assignment2-systems results: fp32 model of 3,406,809,600 parameters on two ranks, bf16 autocast:
    parameters 12.691 GiB, gradients 12.691, optimizer states 25.383 unsharded and 12.691 sharded."""
    config = {
        **TINY, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "vocab_size": 10000,
    }  # fmt: skip
    sharded = forecast(tmp_path, config, gpus=2, strategy="zero1", seq=512, batch=2)
    plain = forecast(tmp_path, config, gpus=2, strategy="ddp", seq=512, batch=2)
    assert sharded.model is not None
    assert sharded.model.params_total == 3_406_809_600
    for result, states in ((sharded, 12.691), (plain, 25.383)):
        assert round(held(result, Category.WEIGHTS) / GiB, 3) == 12.691
        assert round(held(result, Category.GRADIENTS) / GiB, 3) == 12.691
        assert round(held(result, Category.OPTIMIZER) / GiB, 3) == states
    assert (
        held(sharded, Category.OPTIMIZER) * 2
        == held(plain, Category.OPTIMIZER)
        == 8 * 3_406_809_600
    )


@pytest.mark.parametrize(
    ("offload_params", "offload_optimizer", "zero_init", "host", "gpu"),
    [
        (True, True, True, 1.52, 0.06), (True, True, False, 1.52, 0.06), (False, True, True, 1.35, 0.17),
        (False, True, False, 1.35, 0.17), (False, False, True, 0.09, 1.08), (False, False, False, 0.34, 1.08),
    ],
)  # fmt: skip
def test_deepspeeds_estimator_as_it_prints(
    offload_params: bool, offload_optimizer: bool, zero_init: bool, host: float, gpu: float
) -> None:
    """estimate_zero3_model_states_mem_needs_all_live on t5-small, one node of one GPU (blog.csdn.net 132278598)."""
    needs = zero3_needs(
        60_506_624, largest_layer=32_128 * 512, gpus_per_node=1, offload_optimizer=offload_optimizer,
        offload_params=offload_params, zero_init=zero_init,
    )  # fmt: skip
    assert (round(needs.host_bytes / GiB, 2), round(needs.gpu_bytes / GiB, 2)) == (host, gpu)


def test_zero2_estimator_is_that_of_the_code_and_not_of_the_older_documentation() -> None:
    """2P + 18P/N since DeepSpeed pull request 5099."""
    needs = zero2_needs(10**9, gpus_per_node=8, nodes=2, offload_optimizer=False)
    assert needs.gpu_bytes == 2 * 10**9 + 18 * 10**9 // 16
    assert zero2_needs(10**9, gpus_per_node=8, offload_optimizer=True).host_bytes == 48 * 10**9


def test_states_agree_with_deepspeeds_estimator_where_it_is_right(tmp_path: Path) -> None:
    """18 bytes per parameter over all ranks; ours holds 16-bit gradients beside their fp32 copy in the step."""
    config = {
        **TINY,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "vocab_size": 32000,
    }
    result = forecast(
        tmp_path, config, gpus=8, strategy="zero3", precision="bf16-master", framework="deepspeed"
    )
    assert result.model is not None
    params = result.model.params_total
    lines = result.ledger.alive(NEXT_STEP, "cuda:0")
    states = sum(
        entry.nbytes
        for entry in lines
        if entry.category
        in (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER, Category.MASTER)
        or "fp32" in entry.component
    )
    whole = 5 * 1024 * 2  # norms, kept whole in bf16
    theirs = zero3_needs(
        params, largest_layer=0, gpus_per_node=8, offload_optimizer=False
    ).gpu_bytes
    assert states - whole - 2 * params // 8 == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize(
    ("strategy", "each"), [("zero1", 2 + 2 + 12 / 8), ("zero2", 2 + 14 / 8), ("zero3", 16 / 8)]
)
def test_a_bare_count_of_parameters_is_sharded_too(strategy: str, each: float) -> None:
    """The ZeRO paper's rows (arXiv 1910.02054): 16 bytes per parameter, of which stages divide 12, 14 and all."""
    values = {
        "params": "8B",
        "gpus": 8,
        "strategy": strategy,
        "precision": "bf16-master",
        "framework": "deepspeed",
    }
    result = estimate(job_from(values))
    kinds = (Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER, Category.MASTER)
    assert sum(held(result, kind) for kind in kinds) == each * 8_000_000_000


def test_torchtitan_cuts_few_experts_along_their_second_axis(tmp_path: Path) -> None:
    config = {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    whole = held(forecast(tmp_path, config, gpus=2), Category.WEIGHTS)
    share = held(
        forecast(tmp_path, config, gpus=8, strategy="fsdp2", framework="torchtitan"),
        Category.WEIGHTS,
    )
    assert share < whole / 7


def test_fully_shard_alone_gives_few_experts_to_few_ranks(tmp_path: Path) -> None:
    """Four experts over eight ranks: the first rank holds a whole one."""
    config = {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    whole = held(forecast(tmp_path, config, gpus=2), Category.WEIGHTS)
    share = held(forecast(tmp_path, config, gpus=8, strategy="fsdp2"), Category.WEIGHTS)
    assert whole / 7 < share < whole / 4


def test_saving_a_full_state_dict_needs_the_whole_model_on_the_host(tmp_path: Path) -> None:
    result = forecast(tmp_path, gpus=8, strategy="fsdp2", framework="hf")
    whole = [entry for entry in result.ledger.entries if "whole state dict" in entry.component]
    assert [entry.nbytes for entry in whole] == [4 * WHOLE]
    assert whole[0].phases == (SAVE,)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_experts_are_divided_over_the_ranks_once(tp: int) -> None:
    job = job_from(
        {
            "model": "mixtral-8x7b",
            "gpus": 8,
            "strategy": "fsdp2",
            "tp": tp,
            "precision": "bf16-true",
        }
    )
    weights = sum(
        e.nbytes
        for e in estimate(job).ledger.entries
        if str(e.category) == "weights" and e.place == "cuda:0"
    )
    assert weights == pytest.approx(2 * 46_702_792_704 / 8, rel=0.01)
