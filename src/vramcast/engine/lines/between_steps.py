"""What happens between training steps: generating rollouts, evaluating, saving, and resuming from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from vramcast.engine.lines.companions import during, line
from vramcast.engine.lines.optimizers import state_bytes
from vramcast.engine.lines.setting import OtherLines, Setting, once, passing, peak_of, without_graph
from vramcast.engine.recording.regime import kv_cache
from vramcast.errors import InputError
from vramcast.ledger import EVAL, HOST, RESUME, ROLLOUT, SAVE, Category
from vramcast.models.record.dims import Dim, Number, maximum, minimum, product_text
from vramcast.models.record.loss import add_loss
from vramcast.models.record.tape import F32, Value
from vramcast.setup.records import NO_CHECKPOINTING

DEEPCOPY_BEFORE = (
    2,
    1,
)  # torch: Optimizer.load_state_dict copied the whole state dict (pytorch#106082)
SHARD_BYTES = {
    True: 50 * 10**9,
    False: 5 * 10**9,
}  # max_shard_size from transformers 5 on, and before
TO_FP32 = (
    "hf",
    "trl",
    "accelerate",
)  # accelerate converts autocast outputs to fp32 (convert_outputs_to_fp32)


def between(setting: Setting) -> OtherLines:
    setup = setting.setup
    found = _saving(setting)
    if setup.phases.rollout_tokens is not None:
        found += once(setting, _rollout, setup.phases.rollout_tokens, setup.phases.rollout_batch)
    elif setup.phases.rollout_batch is not None:
        raise InputError("rollout-batch needs rollout-tokens")
    if setup.phases.evaluate:
        found += once(setting, evaluation_lines, setup.phases.eval_batch, setup.phases.eval_kept)
    elif setup.phases.eval_batch is not None or setup.phases.eval_kept:
        raise InputError("eval-batch and eval-kept need evaluate")
    if setup.phases.resume != "none":
        found += _resuming(setting)
    return found


# ---- rollout


def _rollout(setting: Setting) -> OtherLines:
    """Prefill over the prompt, then token by token with a growing cache. transformers' generate() computes logits of
    the last token only."""
    setup, sizes, new = setting.setup, setting.sizes, setting.setup.phases.rollout_tokens
    assert new is not None
    if isinstance(sizes.seq, int) and sizes.seq <= new:
        raise InputError(
            f"rollout-tokens {new} leaves no prompt: seq is {int(sizes.seq)}, prompt and answer together"
        )
    batch = (
        sizes.batch
        if setup.phases.rollout_batch is None
        else Dim(setup.phases.rollout_batch, "b_rollout")
    )
    sizes = replace(sizes, batch=batch)
    whole = without_graph(setting, setting.config, sizes=sizes, kv_cache="copy")
    cached = whole.cached()
    if not cached:
        raise InputError(
            f"{setup.model} has no key/value cache to generate with: rollout-tokens is for decoders"
        )
    prompt = replace(sizes, seq=sizes.seq - new)
    prefill = peak_of(
        without_graph(setting, setting.config, sizes=prompt, kv_cache="copy", head=False)
    )
    total: Number = sum((value.nbytes for value in cached), 0)
    largest: Number = 0
    for value in {id(value): value for value in cached}.values():
        largest = maximum(largest, value.nbytes)
    logits = batch * whole.output.shape[-1] * (whole.output.dtype.nbytes + F32.nbytes)
    cache = line(
        "keys and values while generating",
        setting.device,
        _cache_text(cached),
        "transformers DynamicCache: every layer, prompt and answer",
        Category.CACHE,
    )
    working = line(
        "generating: prefill, or one layer's cache being joined",
        setting.device,
        "what the prefill needs beyond the cache, or torch.cat's copy and the last token's logits",
        "cache_utils.py: torch.cat makes the longer tensor beside the old one",
        Category.TEMPORARY,
    )
    during(cache, (ROLLOUT,), total)
    during(working, (ROLLOUT,), maximum(prefill - total, largest + logits))
    return OtherLines(lines=(cache, working), blocks=(cache, working))


def _cache_text(cached: list[Value]) -> str:
    value = cached[0]
    return f"{len(cached)} × {product_text(value.shape, value.dtype.nbytes)}"


# ---- evaluation


def evaluation_lines(setting: Setting) -> OtherLines:
    setup = setting.setup
    batch = (
        setting.sizes.batch
        if setup.phases.eval_batch is None
        else Dim(setup.phases.eval_batch * setup.data.rows, "b_eval")
    )
    keeping = replace(setup, checkpointing=NO_CHECKPOINTING)  # it is off in eval()
    cache = kv_cache(keeping, setting.config)
    program = without_graph(
        setting, setting.config, sizes=replace(setting.sizes, batch=batch), kv_cache=cache
    )
    add_loss(program, transformers=setup.versions.transformers)
    forward = line(
        "evaluation's forward (no graph)",
        setting.device,
        "one layer's tensors, logits and loss",
        "torch.no_grad",
        Category.TEMPORARY,
    )
    during(forward, (EVAL,), peak_of(program))
    found = OtherLines(lines=(forward,), passes=(passing(EVAL, setting.device, program),))
    if not setup.phases.eval_kept:
        return found
    out = program.output
    item = (
        F32.nbytes
        if program.regime.autocast and setup.versions.framework in TO_FP32
        else out.dtype.nbytes
    )
    kept = line(
        "logits kept until evaluation ends",
        setting.device,
        f"{setup.phases.eval_kept} batches × {product_text(out.shape, item)}",
        "Trainer.evaluation_loop gathers predictions on the device without eval_accumulation_steps",
        Category.LOGITS,
    )
    during(kept, (EVAL,), setup.phases.eval_kept * (out.nbytes // out.dtype.nbytes) * item)
    return found + OtherLines(lines=(kept,), blocks=(kept,))


# ---- checkpoint files


def _saving(setting: Setting) -> OtherLines:
    """On one GPU nothing is gathered. The host holds a copy of what is being written."""
    setup = setting.setup
    stored = [param.nbytes for param in setting.states.params]
    if setup.versions.framework in ("hf", "trl", "accelerate"):
        shard = SHARD_BYTES[setup.versions.transformers >= (5, 0)]
        nbytes, why = minimum(sum(stored), shard), f"one shard, at most {shard // 10**9} GB"
        source = "safetensors save_file moves every tensor of a shard to the host before it writes"
    else:
        nbytes, why = max(stored), "the largest tensor"
        source = "torch.save moves one storage after the other to the host"
    copy = line("weights being written", HOST, why, source, Category.TEMPORARY)
    return OtherLines(lines=(during(copy, (SAVE,), nbytes),))


def _resuming(setting: Setting) -> OtherLines:
    """The checkpoint as loaded by torch.load, in addition to the model and the states it is copied into."""
    setup, states = setting.setup, setting.states
    place = HOST if setup.phases.resume == "cpu" else setting.device
    item = states.recipe.states.nbytes if states.recipe.states else None
    own = states.trained.total(lambda param: state_bytes(param, setup, item))
    weights = states.params.nbytes
    moments = line(
        "states as resumed",
        setting.device,
        "the optimizer's own",
        "Optimizer.load_state_dict",
        Category.OPTIMIZER,
    )
    loaded = line(
        "checkpoint's weights, as loaded",
        place,
        "a second set beside the model's",
        "torch.load, map_location",
        Category.TEMPORARY,
    )
    twice = setup.versions.torch < DEEPCOPY_BEFORE
    held = own * (
        (place == HOST) + twice
    )  # on the device the optimizer uses the loaded tensors without a copy
    extra = line(
        "checkpoint's optimizer states, as loaded",
        place,
        "deep-copied once more before torch 2.1"
        if twice
        else "taken over without a copy where the place agrees",
        "torch/optim/optimizer.py load_state_dict; pytorch#106082",
        Category.TEMPORARY,
    )
    during(moments, (RESUME,), own)
    during(loaded, (RESUME,), weights)
    during(extra, (RESUME,), held)
    return OtherLines(lines=(moments, loaded, extra), blocks=(moments, loaded, extra))
