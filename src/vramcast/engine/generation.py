"""Text generation with Hugging Face's generate(): nothing is trained, and a cache of keys and values grows.

    load      the weights
    prefill   one pass over the prompt, which fills the cache; logits of the last position
    decode    one pass per new token; every layer's keys and values are joined with those of the new token

Joining makes the longer tensor while the old one is still there, so that decoding needs one tensor of the cache more
than the cache itself. Example: Qwen3-8B, batch 1, 3,072 prompt tokens and 1,025 new ones: the last pass reads 4,096
tokens; keys and values of 36 layers × 8 heads × 128 take 36 · 2 · 4,096 · 8 · 128 · 2 B = 576 MiB, the joined tensor 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine.bill import Bill, Remarks, allocator_slack, count_layers, summarize_model
from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.companions import during, line
from vramcast.engine.lines.host import host_side
from vramcast.engine.lines.model_buffers import buffers
from vramcast.engine.lines.overheads import context_entries, workspace_entries, workspaces
from vramcast.engine.lines.setting import KEPT, OtherLines, Setting, backbone, peak_of
from vramcast.engine.lines.states import States, unique, weight_entries
from vramcast.engine.no_effect import needless_without_training
from vramcast.engine.recording.library_versions import (
    GROUPED_HEADS_FROM,
    LAST_LOGITS_FROM,
    WINDOWED_CACHE_FROM,
)
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.recording.regime import regime_of
from vramcast.engine.recording.sequence_limits import learned_positions
from vramcast.engine.replay.card import replayed_on_card
from vramcast.engine.replay.run import Script
from vramcast.engine.seq2seq_generation import Decoding, decoding_lines, is_encoder_decoder
from vramcast.engine.serving.quantisation import rule_of_format
from vramcast.engine.stream.events import Event
from vramcast.engine.stream.timeline import Stamped, step_events
from vramcast.errors import InputError, UndescribedModelError, UnsupportedError
from vramcast.forecast import Forecast
from vramcast.job import TRAINED_OVER, Job, Precision
from vramcast.ledger import DECODE, FORWARD, HOST, LOAD, PREFILL, Category, Entry
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.models.read.source import ModelSource
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.sliding_windows import sliding_layers, window_of
from vramcast.models.record.tape import F32, Param, Regime, Value
from vramcast.setup import Setup, resolve
from vramcast.setup.defaults import stored_dtype

PHASES_OF_GENERATION = (LOAD, PREFILL, DECODE)
RESIDUAL_TOKENS, GROUP = 128, 64  # of a quantised cache
MASK_BYTES = 1 + 2  # bool, and in the model's dtype for the kernel
PROMPT = 512  # tokens, where none are given
NEW_TOKENS = 512
INDEX_BYTES = 8  # token ids and the padding mask are int64
REPLAYED_PASSES = 256  # of longer decoding every so many-th pass is replayed
STORED = {
    "float32": Precision.FP32,
    "bfloat16": Precision.BF16_TRUE,
    "float16": Precision.FP16_TRUE,
}
# Options that a job without training cannot mean, and their values where nothing is said.
OF_TRAINING = {
    "gpus": 1,
    "tp": 1,
    "pp": 1,
    "lora_rank": None,
    "checkpointing": None,
    "optimizer": None,
    "accumulate": 1,
    "rollout_tokens": None,
    "evaluate": False,
    "edit": (),
    "reward": "none",
    "critic": "none",
    "teacher": "none",
    "mean_seq": None,
    "lengths": None,
    "longest_seq": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLayer:
    """A layer's part of past_key_values."""

    values: tuple[Value, ...]  # keys and values of one token per sample
    window: int | None  # tokens that a sliding layer keeps

    def tokens(self, tokens: int) -> int:
        return tokens if self.window is None else min(tokens, self.window)

    def sizes(self, tokens: int) -> list[int]:
        """Bytes of each tensor with so many tokens behind it."""
        return [int(value.nbytes) * self.tokens(tokens) for value in self.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What is generated, with what."""

    job: Job
    setup: Setup
    config: Config
    gpu: Gpu | None
    prompt: int
    new: int

    @property
    def rows(self) -> int:
        return self.setup.data.batch * self.job.beams

    @property
    def is_static(self) -> bool:
        return self.job.kv_cache == "static"

    @property
    def is_quantised(self) -> bool:
        return self.job.kv_cache == "quantized"

    @property
    def prompt_of_a_pass(self) -> int:
        """Tokens of the prompt that one pass reads."""
        return min(self.job.prefill_chunk or self.prompt, self.prompt)

    @property
    def has_mask(self) -> bool:
        """Prompts of a batch differ in length and are padded; a static cache masks what it has not filled."""
        return self.setup.data.batch > 1 or self.is_static

    @property
    def last(self) -> int:
        """Tokens in the cache at the end: the last new one is never read."""
        return self.prompt + self.new - 1

    def record(self, tokens: int) -> Program:
        """A pass over so many tokens without graph, which leaves its keys and values alive."""
        sizes = Sizes.named(self.rows, tokens, tokens, 1, None)
        return record(self.config, self.regime(), sizes)

    def regime(self) -> Regime:
        """Nobody asks for a loss, so the head makes logits, whatever the framework trains with."""
        setup = replace(self.setup, kernels=replace(self.setup.kernels, loss="full"))
        return replace(
            regime_of(setup, self.config, self.gpu),
            grad=False,
            training=False,
            kv_cache="copy",
            mask=self.has_mask,
            trainable=lambda name: False,
        )


def script_of_generation(job: Job) -> tuple[Program, Script, States]:
    """The pass over the prompt, what the allocator is asked for, and the weights, for a timeline."""
    _check(job)
    assert job.model is not None
    source = read_model(job.model)
    if source.config is None:
        raise UnsupportedError(f"{source.name}: only its parameters are known")
    run = resolve_generation(job, source.config)
    whole = run.record(1)
    states = States(params=unique(whole.params()), setup=run.setup)
    prefill = backbone(run.record(run.prompt))
    return prefill, _script(run, whole, prefill, _cached_layers(run, whole), states), states


def estimate_generation(job: Job) -> Forecast:
    """The memory of generating, phase by phase."""
    _check(job)
    assert job.model is not None
    source = read_model(job.model)
    if source.config is None:
        raise UnsupportedError(
            f"{source.name}: only its parameters are known; give a config.json to generate"
        )
    run = resolve_generation(job, source.config)
    whole = run.record(1)
    if is_encoder_decoder(whole):
        return _estimate_seq2seq(run, source, whole)
    layers = _cached_layers(run, whole)
    if not layers:
        raise InputError(f"{job.model} has no key/value cache to generate with: it is no decoder")
    _check_length(run, whole)
    states = States(params=unique(_as_stored(run, whole)), setup=run.setup)
    prefill = backbone(run.record(run.prompt_of_a_pass))
    kept = _buffers(run, whole, states)
    lines = [
        *_cache_lines(run, layers),
        *_working_lines(run, whole, prefill, layers),
        *kept.lines,
    ]
    script = _script(run, whole, prefill, layers, states)
    script = replace(script, weights=(*script.weights, *kept.resident))
    replayed = replayed_on_card(script, run.gpu, run.setup)
    entries = [
        *weight_entries(states, DEVICE),
        *(entry for one in lines for entry in one.entries()),
        *workspace_entries(run.setup.versions, run.gpu, DEVICE, handles=1),
        *context_entries(run.setup.versions, run.gpu, DEVICE),
        *host_entries(run, states),
        *(replace(entry, phases=PHASES_OF_GENERATION) for entry in allocator_slack(replayed)),
    ]
    bill = Bill(
        job=job,
        gpu=run.gpu,
        model=summarize_model(source.name, states, run.config.model_type, count_layers(whole)),
        entries=entries,
        phases=PHASES_OF_GENERATION,
        remarks=_remarks(run, source),
    )
    return bill.forecast()


def _estimate_seq2seq(run: Generation, source: ModelSource, whole: Program) -> Forecast:
    """Of an encoder-decoder."""
    if run.job.kv_cache != "dynamic" or run.job.prefill_chunk is not None:
        raise UnsupportedError(
            f"{source.name} is an encoder-decoder: only its dynamic cache is described, without prefill-chunk"
        )
    states = States(params=unique(_as_stored(run, whole)), setup=run.setup)
    sizes = Sizes.named(run.setup.data.batch, run.prompt, 1, 1, None)
    decoding = Decoding(
        program=record(run.config, run.regime(), sizes),
        encoder=record(run.config, run.regime(), sizes),
        rows=run.rows,
        beams=run.job.beams,
        prompt=run.prompt,
        new=run.new,
    )
    lines = decoding_lines(decoding)
    script = Script(
        weights=tuple(param.nbytes for param in states.params),
        first=[
            *step_events(decoding.encoder, KEPT),
            *(_event(1, *one) for one in decoding.blocks()),
        ],
        later=[],
        states=(),
        step_temporaries=(),
        small=(run.rows * (run.prompt + run.new) * INDEX_BYTES,) * 2,
        workspaces=workspaces(run.setup.versions, run.gpu)[:1],
        zero_grad_first=True,
    )
    slack = allocator_slack(replayed_on_card(script, run.gpu, run.setup))
    entries = [
        *weight_entries(states, DEVICE),
        *(entry for one in lines for entry in one.entries()),
        *workspace_entries(run.setup.versions, run.gpu, DEVICE, handles=1),
        *context_entries(run.setup.versions, run.gpu, DEVICE),
        *host_entries(run, states),
        *(replace(entry, phases=PHASES_OF_GENERATION) for entry in slack),
    ]
    bill = Bill(
        job=run.job,
        gpu=run.gpu,
        model=summarize_model(source.name, states, run.config.model_type, count_layers(whole)),
        entries=entries,
        phases=PHASES_OF_GENERATION,
        remarks=_remarks(run, source),
    )
    return bill.forecast()


def host_entries(run: Generation, states: States) -> Iterator[Entry]:
    """Interpreter, libraries, and weights on their way to the card; no data loader."""
    sizes = Sizes.named(run.rows, run.prompt, run.prompt, 1, None)
    for entry in host_side(run.setup, run.config, states, sizes):
        if entry.category != Category.DATA:
            yield replace(entry, phases=PHASES_OF_GENERATION) if FORWARD in entry.phases else entry


def _remarks(run: Generation, source: ModelSource) -> Remarks:
    needless = needless_without_training(run.job)
    return Remarks(
        assumptions=assumptions_of(run), warnings=(*source.notes, *source.warnings, *needless)
    )


def _check_length(run: Generation, whole: Program) -> None:
    """A table of learned positions has no row for a token behind its end: the look-up would fail."""
    most = learned_positions(whole, run.config)
    if most is not None and run.prompt > most:
        raise InputError(
            f"prompt {run.prompt} is longer than the {most:,} learned positions of this model"
        )
    if most is not None and run.last > most:
        raise InputError(
            f"prompt {run.prompt} and {run.new} new tokens are more than the {most:,} learned positions of this model"
        )


def _check(job: Job) -> None:
    if job.model is None:
        raise InputError("task generate needs a model")
    meant = [name for name, default in OF_TRAINING.items() if getattr(job, name) != default]
    if meant:
        names = ", ".join(name.replace("_", "-") for name in meant)
        raise UnsupportedError(
            f"task generate trains nothing, on one GPU with Hugging Face's generate(): leave out {names}"
        )
    if job.seq is not None:
        raise InputError("task generate has no seq: say prompt and new-tokens")


def resolve_generation(job: Job, config: Config) -> Generation:
    """The weights are in the dtype of the checkpoint, as `from_pretrained(dtype="auto")` loads them."""
    prompt, new = job.prompt or PROMPT, job.new_tokens or NEW_TOKENS
    precision = job.precision or STORED.get(stored_dtype(config), Precision.BF16_TRUE)
    setup = resolve(
        replace(
            job,
            task=None,
            precision=precision,
            tuning="full",
            seq=prompt,
            checkpointing="none",
            quantize=job.quantize if job.quantize in TRAINED_OVER else "none",
        )
    )
    gpu = find_gpu(job.gpu) if job.gpu else None
    return Generation(job=job, setup=setup, config=config, gpu=gpu, prompt=prompt, new=new)


def _buffers(run: Generation, program: Program, states: States) -> OtherLines:
    """Causal masks and rotary tables of older versions."""
    setting = Setting(
        setup=run.setup,
        config=run.config,
        gpu=run.gpu,
        sizes=Sizes.named(run.rows, 1, 1, 1, None),
        program=program,
        states=states,
        device=DEVICE,
    )
    return buffers(setting)


def _as_stored(run: Generation, program: Program) -> Iterator[Param]:
    """Weights as transformers' quantizers hold a checkpoint in fewer bits; what its kernels unpack is not counted."""
    rule = rule_of_format(run.job.quantize, run.config)
    for param in program.params():
        if rule is None or len(param.shape) < 2 or not rule.applies(param.name, param.kind):
            yield param
            continue
        nbytes = rule.format.bytes_of(int(param.numel))
        yield param.stored(param.dtype, param.shape, nbytes)


def _cached_layers(run: Generation, program: Program) -> list[CachedLayer]:
    """The tensors of each layer, for a pass over one token."""
    blocks = [placed for placed in program.sections if placed.section.is_block]
    slides = sliding_layers(run.config, len(blocks))
    knows_windows = run.setup.versions.transformers >= WINDOWED_CACHE_FROM
    window = window_of(run.config) if knows_windows and not run.is_static else None
    found = []
    for slide, placed in zip(slides, blocks, strict=True):
        values = [
            op.output for op in placed.section.ops if op.output.is_cache and op.output.owner is None
        ]
        if values:
            found.append(CachedLayer(values=tuple(values), window=window if slide else None))
    if not found and program.cached():
        raise UndescribedModelError(
            f"{run.config.model_type} keeps its cache outside its layers: not modelled"
        )
    return found


def _total(layers: Sequence[CachedLayer], tokens: int) -> int:
    return sum(sum(layer.sizes(tokens)) for layer in layers)


def _cache_lines(run: Generation, layers: Sequence[CachedLayer]) -> Iterator[Amounts]:
    """A sliding layer keeps a view of the whole prompt until the first new token is joined to its window."""
    unbounded = [replace(layer, window=None) for layer in layers]
    first, last = _total(unbounded, run.prompt), _total(layers, run.last)
    source = "transformers cache_utils.py DynamicCache: every layer, prompt and answer"
    if run.is_static:
        first = last = _total(unbounded, run.prompt + run.new)
        source = (
            "transformers cache_utils.py StaticCache: every layer, for prompt and answer at once"
        )
    each = f"{run.prompt + run.new - 1:,} tokens × {_total(unbounded, 1):,} B"
    if run.job.kv_cache == "offloaded":
        yield during(line("keys and values", HOST, each, source, Category.CACHE), (PREFILL,), first)
        yield during(line("keys and values", HOST, each, source, Category.CACHE), (DECODE,), last)
        two = 2 * max(sum(layer.sizes(run.last)) for layer in layers)
        text = "the current layer's and the next one's; the others are on the host"
        cache = line("keys and values", DEVICE, text, "OffloadedCache", Category.CACHE)
        yield during(cache, (PREFILL, DECODE), two)
        return
    if run.is_quantised:
        first, last = (_packed(unbounded, tokens) for tokens in (run.prompt, run.last))
        source = "transformers cache_utils.py QuantizedCache: 4 bit, groups of 64, the newest 128 tokens as they are"
    cache = line("keys and values", DEVICE, each, source, Category.CACHE)
    during(cache, (PREFILL,), first)
    yield during(cache, (DECODE,), last)


def _packed(layers: Sequence[CachedLayer], tokens: int) -> int:
    """4-bit values with two 16-bit numbers per group, and the residual that is not packed yet."""
    whole = _total(layers, tokens)
    newest = _total(layers, min(tokens, RESIDUAL_TOKENS))
    return round((whole - newest) * (4 / 16 + 2 / GROUP)) + newest


def _working_lines(
    run: Generation, whole: Program, prefill: Program, layers: Sequence[CachedLayer]
) -> Iterator[Amounts]:
    logits = _logits_bytes(run, whole, 1)
    unbounded = [replace(layer, window=None) for layer in layers]
    body = (
        _embedding_bytes(prefill) + int(peak_of(prefill)) - _total(unbounded, run.prompt_of_a_pass)
    )
    if run.prompt_of_a_pass < run.prompt:
        body += 0 if run.is_static else max(max(layer.sizes(run.prompt)) for layer in unbounded)
        body = max(
            body, _embedding_bytes(prefill) + _chunk_attention_bytes(run, prefill, unbounded)
        )
    if run.is_quantised:  # a layer's keys and values are given back whole
        body += max(sum(layer.sizes(run.prompt_of_a_pass)) for layer in unbounded)
    hidden = int(prefill.sections[-1].section.outputs[0].nbytes)
    is_last_alone = run.setup.versions.transformers >= LAST_LOGITS_FROM
    positions = 1 if is_last_alone else run.prompt_of_a_pass
    head = hidden + _logits_bytes(run, whole, positions)
    passes = line(
        "a pass's tensors, one layer at a time",
        DEVICE,
        "prefill: the largest layer, or logits; decode: a layer's cache being joined, or logits",
        "the model's passes, as recorded",
        Category.TEMPORARY,
    )
    during(passes, (PREFILL,), max(body, head))
    yield during(
        passes, (DECODE,), max(_joined_bytes(run, layers) + _attention_bytes(run, layers), logits)
    )
    ids = line(
        "token ids and mask",
        DEVICE,
        f"2 × {run.rows} × tokens × {INDEX_BYTES} B",
        "generation/utils.py: input_ids and attention_mask grow with every token",
        Category.INPUT,
    )
    during(ids, (PREFILL,), 2 * run.rows * run.prompt * INDEX_BYTES)
    yield during(ids, (DECODE,), 2 * run.rows * (run.last + 1) * INDEX_BYTES)


def _embedding_bytes(prefill: Program) -> int:
    """modeling_*.py forward: the variable `inputs_embeds` lives until the model returns."""
    return int(prefill.sections[0].section.outputs[0].nbytes)


def _logits_bytes(run: Generation, whole: Program, positions: int) -> int:
    """generation/utils.py _sample: `outputs.logits[:, -1, :].to(copy=True, dtype=torch.float32)`; beams add a
    log-softmax and its sum with the beams' scores. Before 4.45 the model made logits of all positions, in fp32 too."""
    vocabulary = int(whole.output.shape[-1])
    model = run.rows * positions * vocabulary * whole.output.dtype.nbytes
    if positions > 1:
        return model + run.rows * positions * vocabulary * F32.nbytes
    copies = 1 if run.job.beams == 1 else 3
    return model + copies * run.rows * vocabulary * F32.nbytes


def _joined_bytes(run: Generation, layers: Sequence[CachedLayer]) -> int:
    """The tensor that torch.cat makes while the shorter one is there."""
    if run.is_static:
        return 0
    if run.is_quantised:  # unpacked, and joined with the residual
        return 2 * max(sum(layer.sizes(run.last)) for layer in layers)
    return max(max(layer.sizes(run.last)) for layer in layers)


def _attention_bytes(run: Generation, layers: Sequence[CachedLayer]) -> int:
    """Keys and values repeated to all heads, where the kernel does not take grouped ones."""
    heads = int(run.config.dim("num_attention_heads", "n", default=1))
    grouped = int(run.config.dim("num_key_value_heads", "n", default=heads))
    in_kernel = run.setup.versions.transformers >= GROUPED_HEADS_FROM and not run.has_mask
    is_eager = run.setup.kernels.attention == "eager"
    flash = run.setup.kernels.attention == "flash"
    if flash or heads == grouped or (in_kernel and not is_eager):
        return 0
    tokens = run.prompt + run.new if run.is_static else run.last
    return max(sum(layer.sizes(tokens)) for layer in layers) * heads // grouped


def _chunk_attention_bytes(run: Generation, prefill: Program, layers: Sequence[CachedLayer]) -> int:
    """A later chunk attends to all tokens before it: that needs a mask, with which kernels take no grouped heads, so
    that keys and values are repeated to all of them. Beside it the residual, the layer's input, queries and output."""
    heads = int(run.config.dim("num_attention_heads", "n", default=1))
    grouped = int(run.config.dim("num_key_value_heads", "n", default=heads))
    if run.setup.kernels.attention == "flash":
        return 0
    repeated = 0
    if heads != grouped:
        repeated = max(sum(layer.sizes(run.prompt)) for layer in layers) * heads // grouped
    around = 4 * _embedding_bytes(prefill)
    scores_mask = run.rows * run.prompt_of_a_pass * run.prompt * MASK_BYTES
    return around + repeated + scores_mask


def _script(
    run: Generation,
    whole: Program,
    prefill: Program,
    layers: Sequence[CachedLayer],
    states: States,
) -> Script:
    return Script(
        weights=tuple(param.nbytes for param in states.params),
        first=[*_prefill_events(run, prefill), *_decode_events(run, whole, layers)],
        later=[],
        states=(),
        step_temporaries=(),
        small=(run.rows * (run.last + 1) * INDEX_BYTES,) * 2,
        workspaces=workspaces(run.setup.versions, run.gpu)[:1],
        zero_grad_first=True,
    )


def _prefill_events(run: Generation, prefill: Program) -> Iterator[Stamped]:
    """The pass over the prompt. With a dynamic cache its keys and values stay; they are numbered in their order."""
    yield _event(1, "inputs_embeds", _embedding_bytes(prefill))
    number = 0
    renamed: dict[object, tuple[str, int]] = {}
    for item in step_events(prefill, KEPT):
        if item.event.kind != "kv cache":
            yield item
        elif item.event.sign > 0 and not run.is_static:
            renamed[item.key] = ("cache", number)
            number += 1
            yield item._replace(key=renamed[item.key])
    yield _event(-1, "inputs_embeds", 0)


def _decode_events(
    run: Generation, whole: Program, layers: Sequence[CachedLayer]
) -> Iterator[Stamped]:
    """Every layer's tensors are joined with a token: the longer one is made, then the shorter one freed."""
    logits = _logits_bytes(run, whole, 1)
    if run.is_static:
        sizes = [size for layer in layers for size in layer.sizes(run.prompt + run.new)]
        yield from (_event(1, ("cache", number), size) for number, size in enumerate(sizes))
    held: dict[int, Stamped] = {}
    stride = math.ceil(run.new / REPLAYED_PASSES)
    for tokens in range(run.prompt + 1, run.last + 1, stride):
        number = 0
        for layer in () if run.is_static else layers:
            for size in layer.sizes(tokens):
                longer = _event(1, ("cache", number, tokens), size)
                yield longer
                yield _event(-1, held[number].key if number in held else ("cache", number), 0)
                held[number] = longer
                number += 1
        yield _event(1, "logits", logits)
        yield _event(-1, "logits", logits)


def _event(sign: int, key: object, nbytes: int) -> Stamped:
    return Stamped(FORWARD, 0, Event(sign, key, nbytes, "kv cache", "keys and values"), key)


def assumptions_of(run: Generation) -> tuple[str, ...]:
    job, versions = run.job, run.setup.versions
    said = {"prompt": job.prompt, "new-tokens": job.new_tokens}
    used = {"prompt": run.prompt, "new-tokens": run.new}
    texts = [f"{name} {used[name]} (not given)" for name, value in said.items() if value is None]
    if job.precision is None:
        texts.append(f"weights as the checkpoint stores them: {run.setup.precision.weights.name}")
    if job.batch > 1:
        texts.append("prompts of a batch are padded, so that attention is given a mask")
    texts.append(f"{job.kv_cache} cache of transformers' generate(), one token at a time")
    torch, transformers = (
        ".".join(map(str, version)) for version in (versions.torch, versions.transformers)
    )
    return (*texts, f"torch {torch}, transformers {transformers}")
