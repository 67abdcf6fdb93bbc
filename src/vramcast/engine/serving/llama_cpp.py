"""llama.cpp: buffers for weights, cache and computing, allocated in full before the first token.

    model     layers on the card, in the types of the GGUF file; the output layer counts as one, the embedding stays
              in CPU memory
    cache     n_ctx padded to 256 cells, a row of keys and one of values for each layer
    compute   the largest graph of n_ubatch tokens: logits of all of them, or scores of attention without flash

Read in src/llama-context.cpp, llama-kv-cache*.cpp, llama-model.cpp and common/ up to b10068.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vramcast.engine.lines.overheads import context_entries
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.serving.cache import (
    LATENT,
    SLIDING,
    STATE,
    CachedLayer,
    cache_shape,
)
from vramcast.engine.serving.formats import GGML, ggml_bytes, llama_cpp_cache_types
from vramcast.engine.serving.gguf_types import Mixture, category_of
from vramcast.engine.serving.outcome import PHASES_OF_SERVING, Outcome, line, version_text
from vramcast.engine.serving.request import Request, free_at_start
from vramcast.errors import InputError
from vramcast.forecast import Served
from vramcast.ledger import HOST, SERVE, Category, Entry
from vramcast.units import MiB, round_up

CELL_MULTIPLE = 256
COUNTED_ROW = (
    256  # values in a row of a model of which only the count is known: every type can store them
)
UBATCH = 512
FLOAT, HALF = 4, 2
WINDOWS_FROM = 5432  # separate caches for sliding layers (May 2025)
LATENT_FROM = (
    5137  # DeepSeek's latents are cached (#12801); before, the keys and values made of them
)
FLASH_FROM = 6325  # flash attention and all layers on the card by default
FITS_BY_ITSELF_FROM = 7407  # --fit shrinks what was not said
FEW_OUTPUTS_FROM = 9460  # the server reserves logits for its slots alone
LEAST_CONTEXT, OLD_CONTEXT = 4096, 4096
FIT_TARGET = 1024 * MiB  # stays free of each card
COPIES = 4  # GGML_SCHED_MAX_COPIES: inputs of pipelined devices
LAYER = re.compile(r"(^|\.)(layers|h|blocks|layer|blk)\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor of the file: where it belongs, and its bytes."""

    name: str
    layer: int | None
    category: str
    is_expert: bool
    nbytes: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The buffers of one device, and what stays in CPU memory."""

    layers: tuple[int, ...]
    model: int
    cache: int
    state: int
    compute: int
    compute_high: int
    host_model: int
    host_cache: int

    @property
    def total(self) -> int:
        return self.model + self.cache + self.state + self.compute


def serve_llama_cpp(request: Request) -> Outcome:
    if request.tp > 1 or request.pp > 1:
        raise InputError(
            "llama.cpp divides layers over its devices: give gpus instead of tp and pp"
        )
    tensors = tuple(_tensors(request))
    context = sum(e.nbytes for e in context_entries(request.setup.versions, request.gpu, DEVICE))
    free = free_at_start(request, context)
    length = _context_length(request, tensors, free)
    layouts = _layouts(request, tensors, length)
    layout = max(layouts, key=lambda one: one.total)
    refusal = _refusal(layouts, free)
    longest = _longest(request, tensors, free)
    return Outcome(
        entries=_entries(request, layouts, layout, length),
        served=_served(request, layouts, layout, length, free, refusal, longest),
        assumptions=_assumptions(request, length),
        notes=_notes(request, tensors, length, free, refusal),
    )


# ---- tensors


def _tensors(request: Request) -> Iterator[Tensor]:
    if request.gguf is not None:
        for one in request.gguf.tensors:
            yield _tensor(one.name, ggml_bytes(one.kind, one.numel), one.kind, "")
        return
    yield from _quantised(request)


def _tensor(name: str, nbytes: int, kind: str, role: str) -> Tensor:
    match = LAYER.search(name)
    return Tensor(
        name=name,
        layer=int(match[3]) if match else None,
        category=category_of(name, role),
        is_expert="exps" in name or ("expert" in name and "shared" not in name),
        nbytes=nbytes,
        kind=kind,
    )


def _quantised(request: Request) -> Iterator[Tensor]:
    """As llama.cpp's quantize would write the model; without a type in the dtype of the checkpoint."""
    kind = request.job.gguf
    if kind is None:
        kind = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}[request.dtype]
    params = request.source.table()
    heads = int(request.text.dim("num_attention_heads", "n", "n_head", default=1))
    grouped = int(request.text.dim("num_key_value_heads", "k", default=heads))
    experts = request.text.data.get("num_experts") or request.text.data.get("num_local_experts")
    mixture = Mixture(
        file_type=kind,
        layers=request.layers,
        grouped=heads // max(grouped, 1),
        experts=int(experts or request.text.data.get("n_routed_experts") or 1),
        is_tied=all(
            category_of(param.name, param.kind) != "output" or param.tied_to for param in params
        ),
        is_70b=request.layers == 80 and request.hidden == 8192,
    )
    for param in params:
        if param.tied_to is not None or _is_vision(param.name):
            continue
        match = LAYER.search(param.name)
        layer = int(match[3]) if match else None
        shape = tuple(map(int, param.shape))
        if request.source.has_count_alone:  # one line for all of them: as rows of a linear layer
            shape = (-(-shape[0] // COUNTED_ROW), COUNTED_ROW)
        if param.kind == "experts" and len(shape) == 3:
            shape = (*shape[:2], request.hidden if "gate" in param.name else shape[1])
        found = mixture.type_of(param.name, shape, layer, param.kind)
        yield _tensor(param.name, ggml_bytes(found, int(param.numel)), found, param.kind)


def _is_vision(name: str) -> bool:
    """The vision tower is a file of its own (mmproj)."""
    return bool(re.search(r"vision|visual|multi_modal_projector|audio_tower", name))


# ---- buffers


def _context_length(request: Request, tensors: tuple[Tensor, ...], free: int) -> int:
    if request.job.max_model_len is not None:
        return request.job.max_model_len
    if request.version[0] < FITS_BY_ITSELF_FROM:
        return min(OLD_CONTEXT, request.longest)
    fits = _longest(request, tensors, free - FIT_TARGET)
    return max(min(request.longest, fits), min(LEAST_CONTEXT, request.longest))


def _longest(request: Request, tensors: tuple[Tensor, ...], free: int) -> int:
    """The longest context that fits on the devices."""
    low, high = 0, -(-request.longest // CELL_MULTIPLE)
    while low < high:
        middle = (low + high + 1) // 2
        layouts = _layouts(request, tensors, middle * CELL_MULTIPLE)
        if max(one.total for one in layouts) <= free:
            low = middle
        else:
            high = middle - 1
    return min(low * CELL_MULTIPLE, request.longest)


def _layouts(request: Request, tensors: tuple[Tensor, ...], length: int) -> list[Layout]:
    devices = request.job.gpus
    placed = _layers_of_devices(request, devices)
    shape = cache_shape(request.text).layers
    on_host = request.layers + 1 - sum(len(layers) for layers in placed)
    found = []
    for number, layers in enumerate(placed):
        model, host_model = _model_bytes(request, tensors, layers, is_first=number == 0)
        cache = sum(_cache_bytes(request, shape[one], length) for one in layers if one < len(shape))
        states = sum(_state_bytes(request, shape[one]) for one in layers if one < len(shape))
        low, high = _compute_bytes(
            request, length, has_output=request.layers in layers, devices=devices
        )
        found.append(
            Layout(
                layers=layers,
                model=model,
                cache=cache,
                state=states,
                compute=low,
                compute_high=high,
                host_model=host_model,
                host_cache=0,
            )
        )
    begin = min((one for layers in placed for one in layers), default=request.layers + 1)
    waiting = [one for one in range(begin) if one < len(shape)] if on_host else []
    host_cache = sum(_cache_bytes(request, shape[one], length) for one in waiting)
    found[0] = replace(found[0], host_cache=host_cache)
    return found


def _layers_of_devices(request: Request, devices: int) -> list[tuple[int, ...]]:
    """src/llama-model.cpp: the last n-gpu-layers, the output among them, in equal parts."""
    everything = request.layers + 1
    asked = request.job.gpu_layers
    if asked is None:
        asked = everything
    active = min(asked, everything)
    begin = everything - active
    parts: list[list[int]] = [[] for _ in range(devices)]
    for layer in range(begin, everything):
        parts[min((layer - begin) * devices // max(active, 1), devices - 1)].append(layer)
    return [tuple(part) for part in parts]


def _model_bytes(
    request: Request, tensors: tuple[Tensor, ...], layers: tuple[int, ...], *, is_first: bool
) -> tuple[int, int]:
    """Bytes on a device; and, counted with the first, those that stay in CPU memory."""
    here, experts_on_host = set(layers), request.job.cpu_moe_layers or 0
    asked = request.job.gpu_layers
    begin = request.layers + 1 - (request.layers + 1 if asked is None else asked)
    has_output = any(one.category == "output" for one in tensors)
    on_card = on_host = 0
    for one in tensors:
        if one.category == "embedding":
            on_host += one.nbytes
            if not has_output and request.layers in here:
                on_card += one.nbytes
            continue
        layer = request.layers if one.layer is None else one.layer
        if one.is_expert and one.layer is not None and one.layer < experts_on_host:
            on_host += one.nbytes
        elif layer in here:
            on_card += one.nbytes
        elif layer < begin:
            on_host += one.nbytes
    return on_card, on_host if is_first else 0


def _cells(request: Request, layer: CachedLayer, length: int) -> int:
    whole = round_up(length, CELL_MULTIPLE)
    if layer.kind != SLIDING or layer.window is None or request.version[0] < WINDOWS_FROM:
        return whole
    slots = request.job.max_num_seqs or 1
    return round_up(min(whole, layer.window * slots + _ubatch(request, length)), CELL_MULTIPLE)


def _cache_bytes(request: Request, layer: CachedLayer, length: int) -> int:
    """Keys and values of one layer, all cells."""
    if layer.kind == STATE:
        return 0
    keys, values = llama_cpp_cache_types(request.job.kv_cache_dtype)
    cells = _cells(request, layer, length)
    if layer.kind == LATENT and request.version[0] < LATENT_FROM:
        key_width, value_width = _unpacked_widths(request)
        return cells * (_row(keys, key_width) + _row(values, value_width))
    key_row = _row(keys, layer.heads * layer.key_width)
    if layer.kind == LATENT:
        return cells * key_row
    return cells * (key_row + _row(values, layer.heads * layer.value_width))


def _unpacked_widths(request: Request) -> tuple[int, int]:
    """Keys and values of all heads, which attention with latents makes of a token."""
    config = request.text
    heads = int(config.dim("num_attention_heads", "n"))
    key = int(config.dim("qk_nope_head_dim", "p")) + int(config.dim("qk_rope_head_dim", "r"))
    return heads * key, heads * int(config.dim("v_head_dim", "v"))


def _row(kind: str, width: int) -> int:
    block, nbytes = GGML[kind]
    return -(-width // block) * nbytes


def _state_bytes(request: Request, layer: CachedLayer) -> int:
    """R and S of every sequence, in fp32."""
    slots = request.job.max_num_seqs or 1
    return (layer.conv_numel + layer.state_numel) * FLOAT * slots if layer.kind == STATE else 0


def _ubatch(request: Request, length: int) -> int:
    return min(request.job.max_num_batched_tokens or UBATCH, length)


def _has_flash(request: Request) -> bool:
    said = request.job.attention
    return said == "flash" or (said == "sdpa" and request.version[0] >= FLASH_FROM)


def _compute_bytes(
    request: Request, length: int, *, has_output: bool, devices: int
) -> tuple[int, int]:
    """The largest moment of the graph, and its upper estimate. The output layer: logits of all tokens with one or two
    of the hidden states that lead to them (printed buffers agree with one or the other to the digit)."""
    rows, hidden = _ubatch(request, length), request.hidden
    cells = round_up(length, CELL_MULTIPLE)
    one = rows * hidden * FLOAT
    outputs = rows
    if request.version[0] >= FEW_OUTPUTS_FROM:
        outputs = min(rows, request.job.max_num_seqs or 4)
    logits = outputs * request.vocabulary * FLOAT if has_output else 0
    flash = _has_flash(request)
    mask = rows * cells * (HALF if flash else FLOAT)
    inner = _inner(request)
    layer = rows * (2 * inner + 3 * hidden) * FLOAT + mask
    if not flash:
        heads = int(request.text.dim("num_attention_heads", "n", "n_head", default=1))
        layer = max(layer, rows * cells * heads * FLOAT + mask + 3 * one)
    low = max(logits + one, layer)
    high = max(logits + 2 * one, layer)
    if devices > 1:
        pipelined = COPIES * (mask + one)
        return low + pipelined, high + pipelined
    return low, high


def _inner(request: Request) -> int:
    data = request.text.data
    dense = int(request.text.dim("intermediate_size", "i", default=4 * request.hidden))
    experts = data.get("num_experts") or data.get("num_local_experts")
    if not (experts or data.get("n_routed_experts")):
        return dense
    chosen = int(request.text.dim("num_experts_per_tok", "e", "experts_per_token", default=8))
    width = int(request.text.dim("moe_intermediate_size", "i", default=dense))
    return chosen * max(width, request.hidden // 2)


# ---- the answer


def _refusal(layouts: list[Layout], free: int) -> str:
    for number, layout in enumerate(layouts):
        parts = (
            ("failed to allocate CUDA{} buffer of size {}: model", layout.model),
            ("failed to allocate CUDA{} buffer for kv cache ({})", layout.cache + layout.state),
            ("failed to allocate compute buffers on CUDA{} ({})", layout.compute),
        )
        left = free
        for text, nbytes in parts:
            if nbytes > left:
                return f"cudaMalloc failed: out of memory: {text.format(number, nbytes)}"
            left -= nbytes
    return ""


def _served(
    request: Request,
    layouts: list[Layout],
    layout: Layout,
    length: int,
    free: int,
    refusal: str,
    longest: int,
) -> Served:
    cells = round_up(length, CELL_MULTIPLE)
    cache = layout.cache + layout.state
    shape = cache_shape(request.text).layers
    per_token = sum(_cache_bytes(request, one, CELL_MULTIPLE) for one in shape) // CELL_MULTIPLE
    return Served(
        engine="llama.cpp",
        version=version_text(request),
        starts=not refusal,
        refusal=refusal,
        budget_bytes=free,
        needed_bytes=layout.total,
        kv_bytes=cache,
        kv_range_bytes=(max(cache, 1), max(cache, 1)),
        kv_tokens=cells,
        kv_tokens_range=(cells, cells),
        kv_token_bytes=per_token,
        max_model_len=length,
        concurrency=cells / length,
        longest=longest,
        weights_bytes=layout.model,
        lines=tuple(_lines(request, layouts)),
    )


def _lines(request: Request, layouts: list[Layout]) -> Iterator[str]:
    def mib(nbytes: int) -> str:
        return f"{nbytes / MiB:8.2f} MiB"

    everything = request.layers + 1
    on_card = sum(len(layout.layers) for layout in layouts)
    yield f"load_tensors: offloaded {on_card}/{everything} layers to GPU"
    yield f"load_tensors:   CPU_Mapped model buffer size = {mib(sum(one.host_model for one in layouts))}"
    for number, layout in enumerate(layouts):
        yield f"load_tensors:        CUDA{number} model buffer size = {mib(layout.model)}"
    for number, layout in enumerate(layouts):
        yield f"llama_kv_cache:      CUDA{number} KV buffer size = {mib(layout.cache)}"
        if layout.state:
            yield f"llama_memory_recurrent: CUDA{number} RS buffer size = {mib(layout.state)}"
    if layouts[0].host_cache:
        yield f"llama_kv_cache:        CPU KV buffer size = {mib(layouts[0].host_cache)}"
    for number, layout in enumerate(layouts):
        yield f"llama_context:      CUDA{number} compute buffer size = {mib(layout.compute)}"


def _entries(
    request: Request, layouts: list[Layout], layout: Layout, length: int
) -> tuple[Entry, ...]:
    shape = cache_shape(request.text)
    keys, values = llama_cpp_cache_types(request.job.kv_cache_dtype)
    how = "the tensors of the file" if request.gguf else "llama-quant.cpp, tensor by tensor"
    rows = _ubatch(request, length)
    return (
        line(
            Category.WEIGHTS,
            "model buffer",
            layout.model,
            formula=f"{len(layout.layers)} of {request.layers + 1} layers",
            source=how,
        ),
        line(
            Category.CACHE,
            "keys and values",
            layout.cache,
            phases=(SERVE,),
            formula=f"{round_up(length, CELL_MULTIPLE):,} cells × {shape.describe()}, {keys} and {values}",
            source="src/llama-kv-cache.cpp",
        ),
        line(
            Category.CACHE,
            "states of running requests",
            layout.state,
            phases=(SERVE,),
            source="src/llama-memory-recurrent.cpp: fp32",
        ),
        line(
            Category.TEMPORARY,
            "compute buffer",
            layout.compute,
            phases=(SERVE,),
            formula=f"graph of {rows:,} tokens × {request.vocabulary:,} words",
            source="src/llama-context.cpp sched_reserve",
            range_bytes=(layout.compute, layout.compute_high),
        ),
        line(
            Category.WEIGHTS,
            "in CPU memory",
            sum(one.host_model for one in layouts),
            phases=PHASES_OF_SERVING,
            place=HOST,
            formula="embedding, layers and experts that are not on the card",
            source=how,
        ),
        line(
            Category.CACHE,
            "keys and values",
            layouts[0].host_cache,
            phases=(SERVE,),
            place=HOST,
            source="src/llama-kv-cache.cpp: where the layer is",
        ),
        *context_entries(request.setup.versions, request.gpu, DEVICE),
    )


def _assumptions(request: Request, length: int) -> tuple[str, ...]:
    keys, values = llama_cpp_cache_types(request.job.kv_cache_dtype)
    kind = "as the file says" if request.gguf else request.job.gguf or request.dtype
    texts = [f"llama.cpp {version_text(request)}, weights {kind}, cache in {keys} and {values}"]
    if request.job.max_model_len is None:
        texts.append(f"ctx-size {length:,} (not given)")
    if request.job.max_num_batched_tokens is None:
        texts.append(f"ubatch-size {_ubatch(request, length):,} (not given)")
    texts.append(f"flash attention {'on' if _has_flash(request) else 'off'}")
    return tuple(texts)


def _notes(
    request: Request, tensors: tuple[Tensor, ...], length: int, free: int, refusal: str
) -> tuple[str, ...]:
    """How many layers fit, where all do not."""
    if not refusal:
        return ()
    everything = request.layers + 1
    low, high = 0, everything
    while low < high:
        middle = (low + high + 1) // 2
        smaller = replace(request, job=replace(request.job, gpu_layers=middle))
        if max(one.total for one in _layouts(smaller, tensors, length)) <= free:
            low = middle
        else:
            high = middle - 1
    return (
        f"of {everything} layers {low} fit on the card at {length:,} tokens: --gpu-layers {low}",
    )
