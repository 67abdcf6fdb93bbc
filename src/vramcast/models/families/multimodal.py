"""Language models that see: Gemma 3, LLaVA, Qwen2-VL, Qwen2.5-VL.

`Sizes.seq` counts all tokens of the language model, those of images included. `Sizes.images` is images per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.errors import InputError, UndescribedModelError
from vramcast.models.families.dense import fp32_rope
from vramcast.models.families.gemma import gemma3_text, norm
from vramcast.models.families.llama import Frame, llama, phi3
from vramcast.models.families.vision import CLIP_VISION, SIGLIP_VISION, vision_tower
from vramcast.models.read.config import Config, exact_division
from vramcast.models.record.attention import Eager, Heads, attend
from vramcast.models.record.dims import Dim, Number, minimum
from vramcast.models.record.images import average, conv
from vramcast.models.record.layers import gated_mlp, mlp, rms_norm, split, split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import BOOL, F32, Tape, Value

# The config classes' own defaults, on which nested text configs rely.
LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
QWEN_VL = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
TEXT_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral": {**LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8},
    "qwen2": {**LLAMA, "vocab_size": 151936, "intermediate_size": 22016},
    "phi3": {**LLAMA, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192},
    "qwen2_vl_text": QWEN_VL,
    "qwen2_5_vl_text": QWEN_VL,
    "gemma3_text": {},
}
TEXT: dict[str, Callable[..., Program]] = {
    "llama": llama,
    "mistral": llama,
    "qwen2": llama,
    "phi3": phi3,
    "qwen2_vl_text": llama,
    "qwen2_5_vl_text": llama,
}


def text_config(c: Config, default_type: str) -> Config:
    """The nested text config with its class's defaults; older Qwen-VL configs keep its keys at the top."""
    nested = c.sub("text_config")
    data = dict(
        nested.data or {k: v for k, v in c.data.items() if k not in ("vision_config", "model_type")}
    )
    model_type = str(data.get("model_type") or default_type)
    if model_type not in TEXT_DEFAULTS:
        known = ", ".join(sorted(TEXT_DEFAULTS))
        raise UndescribedModelError(
            f"{nested.where}: text model {model_type!r} inside {c.model_type}. Known: {known}"
        )
    tied = c.data.get("tie_word_embeddings") or data.get("tie_word_embeddings")
    if c.model_type == "gemma3":  # whose outer word counts alone
        tied = c.data.get("tie_word_embeddings", True)
    data.update(
        model_type=model_type,
        architectures=[],
        **({} if tied is None else {"tie_word_embeddings": tied}),
    )
    return Config(data, nested.where).with_defaults(**TEXT_DEFAULTS[model_type])


def described(t: Tape, c: Config, sizes: Sizes, text: Config, see: Callable[[], Value]) -> Program:
    """The language model with what `see` gives put in place of image tokens."""
    task = c.architecture
    if task and not task.endswith("ForConditionalGeneration"):
        raise UndescribedModelError(
            f"{c.where}: {task} is not described. Known ending: ForConditionalGeneration."
        )
    if text.model_type not in TEXT:
        raise UndescribedModelError(
            f"{text.where}: text model {text.model_type!r} inside {c.model_type}. Known: {', '.join(sorted(TEXT))}"
        )
    frame = Frame(prefix="model.language_model", merged=lambda x: merged(t, x, see()))
    return TEXT[text.model_type](t, text, sizes, frame)


def merged(t: Tape, x: Value, features: Value) -> Value:
    """masked_scatter keeps its mask, spread over the width."""
    with t.section("image features into text", x, features) as section:
        features = t.cast(features, x.dtype)
        mask = Value(x.shape, BOOL, label="image mask")
        x = t.op(
            "masked_scatter",
            (x, features),
            x.shape,
            x.dtype,
            saves=(mask,),
            label="embeddings with images",
        )
        section.outputs = (x,)
    return x


# ---- Gemma 3


def gemma3(t: Tape, c: Config, sizes: Sizes) -> Program:
    text = text_config(c, "gemma3_text")
    vision = Config(
        {**SIGLIP_VISION, **c.sub("vision_config").data, "model_type": "siglip_vision_model"},
        c.where,
    )
    if c.architecture and not c.architecture.endswith("ForConditionalGeneration"):
        raise UndescribedModelError(
            f"{c.where}: {c.architecture} is not described. Known ending: ForConditionalGeneration."
        )

    if vision.flag("vision_use_head", True):
        raise UndescribedModelError(
            f"{c.where}: vision_config: vision_use_head is true or absent, and a vision tower with a head is not "
            "described. Gemma 3's own configs say false."
        )

    def see() -> Value:
        with t.scope("model.vision_tower"):
            x = vision_tower(t, vision, sizes.batch * sizes.images)
            with t.section(t.path("norm"), x) as section:
                x = t.layer_norm("post_layernorm", x)
                section.outputs = (x,)
        with t.scope("model.multi_modal_projector"):
            return gemma3_projector(t, c, vision, text, x)

    text = text.with_defaults(hidden_size=2304)
    return (
        gemma3_text(  # the tokens of an image see one another, which takes a mask (token_type_ids)
            t,
            text,
            sizes,
            prefix="model.language_model",
            merged=lambda x: merged(t, x, see()),
            always_masked=True,
        )
    )


def gemma3_projector(t: Tape, c: Config, vision: Config, text: Config, x: Value) -> Value:
    """Patches averaged down to `mm_tokens_per_image`, normed, multiplied by one matrix."""
    tokens, h = c.dim("mm_tokens_per_image", "s_img", default=256), text.dim("hidden_size", "h")
    with t.section(t.path(), x) as section:
        weight = t.param("mm_input_projection_weight", (int(x.shape[-1]), int(h)), "linear")
        x = average(t, t.copy(x, label="features by channel"), (x.shape[0], tokens, x.shape[-1]))
        x = norm(t, "mm_soft_emb_norm", x)
        x, weight = t.autocast(x), t.autocast(weight)
        y = t.op(
            "matmul",
            (x, weight),
            (*x.shape[:-1], h),
            x.dtype,
            saves=(x, weight),
            label="image features",
        )
        section.outputs = (y,)
    return y


# ---- LLaVA


def llava(t: Tape, c: Config, sizes: Sizes) -> Program:
    """A CLIP or SigLIP tower read at one of its last layers, and two linear layers to the text's width."""
    text, nested = text_config(c, "llama"), c.sub("vision_config")
    kind = nested.word("model_type", "clip_vision_model")
    defaults = {"clip_vision_model": CLIP_VISION, "siglip_vision_model": SIGLIP_VISION}.get(kind)
    if defaults is None:
        raise UndescribedModelError(
            f"{nested.where}: vision model {kind!r}. Known: clip_vision_model, siglip_vision_model."
        )
    vision = Config(
        {**(defaults if nested.data else LLAVA_VISION), **nested.data, "model_type": kind},
        nested.where,
    )

    def see() -> Value:
        with t.scope("model.vision_tower"):
            x = vision_tower(t, vision, sizes.batch * sizes.images, unused=unused_layers(c, vision))
            with t.section(t.path("norm"), x) as section:
                with t.no_grad():
                    t.layer_norm("post_layernorm", x)
                section.outputs = (x,)
        return llava_projector(t, c, text, x)

    return described(t, c, sizes, text, see)


LLAVA_VISION = {
    **CLIP_VISION,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "projection_dim": 768,
}


def unused_layers(c: Config, vision: Config) -> int:
    """Layers behind the one whose output is read."""
    index, layers = (
        c.data.get("vision_feature_layer", -2),
        int(vision.dim("num_hidden_layers", "L")),
    )
    if isinstance(index, bool) or not isinstance(index, int) or not -layers - 1 <= index <= layers:
        raise InputError(
            f"{c.where}: vision_feature_layer must be one layer of {layers}, not {index!r}"
        )
    return -1 - index if index < 0 else layers - index


def llava_projector(t: Tape, c: Config, text: Config, x: Value) -> Value:
    h, bias = text.dim("hidden_size", "h"), c.flag("multimodal_projector_bias", True)
    with (
        t.section("model.multi_modal_projector", x) as section,
        t.scope("model.multi_modal_projector"),
    ):
        if c.word("vision_feature_select_strategy", "default") == "default":
            x = t.copy(x, (x.shape[0], x.shape[1] - 1, x.shape[2]), "patches without class token")
        y = t.activation(
            t.linear("linear_1", x, h, bias=bias), c.word("projector_hidden_act", "gelu")
        )
        y = t.linear("linear_2", y, h, bias=bias, label="image features")
        section.outputs = (y,)
    return y


# ---- Qwen2-VL and Qwen2.5-VL

IMAGE_TOKENS = 256  # of a 448 × 448 picture; these models take any resolution, so a job should say

V2 = {
    "depth": 32,
    "embed_dim": 1280,
    "hidden_size": 3584,
    "hidden_act": "quick_gelu",
    "mlp_ratio": 4,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
V2_5 = {
    "depth": 32,
    "hidden_size": 3584,
    "hidden_act": "silu",
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


def qwen_vl(t: Tape, c: Config, sizes: Sizes) -> Program:
    later = c.model_type == "qwen2_5_vl"
    text = text_config(c, f"{c.model_type}_text")
    vision = Config(
        {**(V2_5 if later else V2), **c.sub("vision_config").data}, f"{c.where}: vision_config"
    )

    def see() -> Value:
        with t.scope("model.visual"):
            return qwen_tower(t, vision, sizes, later=later)

    return described(t, c, sizes, text, see)


def qwen_tower(t: Tape, c: Config, sizes: Sizes, *, later: bool) -> Value:
    """Patches through blocks, then neighbouring ones merged into tokens; `later`: Qwen2.5-VL's."""
    h = c.dim("hidden_size" if later else "embed_dim", "h_v")
    merge = int(c.dim("spatial_merge_size", "m")) ** 2
    tokens = IMAGE_TOKENS if sizes.image_tokens is None else sizes.image_tokens
    images, per_image = sizes.batch * sizes.images, tokens * merge
    x = qwen_patches(t, c, images * per_image, h)
    table = Value((x.shape[0], 1, 2 * h // c.dim("num_heads", "a_v")), F32, label="cos, sin")
    full = set(c.numbers("fullatt_block_indexes"))
    kinds = ["window" if later and i not in full else "full" for i in range(c.dim("depth", "L_v"))]
    window = _window_patches(c) if later else 0

    def block(x: Value, kind: str) -> Value:
        length = minimum(per_image, window) if kind == "window" else per_image
        y = qwen_norm(t, "norm1", x, later=later)
        with t.scope("attn"):
            y = packed_attention(t, c, y, table, length)
        x = t.add(x, y, "residual stream")
        y = qwen_norm(t, "norm2", x, later=later)
        with t.scope("mlp"):
            y = qwen_mlp(t, c, y, h, later=later)
        return t.add(x, y, "residual stream")

    x = t.layers("blocks", kinds, block, x)
    with t.section(t.path("merger"), x) as section:
        with t.scope("merger"):
            x = qwen_norm(t, "ln_q", x, later=later)
            x = t.view(x, (images * tokens, merge * h))
            out = c.dim("out_hidden_size" if later else "hidden_size", "h")
            y = t.activation(t.linear("mlp.0", x, merge * h, bias=True), "gelu")
            x = t.linear("mlp.2", y, out, bias=True, label="image features")
        section.outputs = (x,)
    return x


def qwen_norm(t: Tape, name: str, x: Value, *, later: bool) -> Value:
    """Qwen2-VL normalises with mean and variance, Qwen2.5-VL by the mean square."""
    return rms_norm(t, name, x) if later else t.layer_norm(name, x)


def qwen_patches(t: Tape, c: Config, num: Number, h: Dim) -> Value:
    """Patches come flattened from the processor: [patches, channels · frames · height · width]."""
    kernel = (
        c.dim("temporal_patch_size", "p_t"),
        c.dim("patch_size", "p"),
        c.dim("patch_size", "p"),
    )
    channels = c.dim("in_channels", "c")
    pixels = t.input("pixels", (num, channels, *kernel), F32)
    with t.section(t.path("patch_embed"), pixels) as section:
        with t.scope("patch_embed"):
            x = t.cast(pixels, t.regime.weights, "pixels")
            y = conv(t, "proj", x, h, kernel, stride=kernel, label="patches")
            x = t.view(y, (num, h))
        section.outputs = (x,)
    return x


def _window_patches(c: Config) -> int:
    window, patch = int(c.dim("window_size", "w")), int(c.dim("patch_size", "p"))
    if window < patch:
        raise InputError(f"{c.where}: window_size {window} is smaller than patch_size {patch}")
    return (window // patch) ** 2


def packed_attention(t: Tape, c: Config, y: Value, table: Value, length: Number) -> Value:
    """Patches of all images in one row, cut into pieces that attend within themselves; the pieces are joined after."""
    num, h = y.shape
    a = c.dim("num_heads", "a_v")
    heads = Heads(num=a, num_kv=a, width=exact_division(h, a, f"{c.where}: width by num_heads"))
    q, k, v = (
        split_heads(t, part, a)
        for part in split(t, t.linear("qkv", y, 3 * h, bias=True, label="qkv"), (h, h, h))
    )
    q, k = fp32_rope(t, q, table), fp32_rope(t, k, table)
    pieces = -(-num // length)
    q, k, v = (t.view(x, (pieces, length, a, heads.width)) for x in (q, k, v))
    v.is_slice = False  # one sample at a time, so a product takes the view as it is
    y = attend(t, q, k, v, heads, eager=Eager(mask=False))
    y = t.copy(t.view(y, (num, h)), label="pieces joined")
    return t.linear("proj", y, h, bias=True)


def qwen_mlp(t: Tape, c: Config, y: Value, h: Dim, *, later: bool) -> Value:
    act = c.word("hidden_act", "")
    if later:
        return gated_mlp(t, y, c.dim("intermediate_size", "f_v"), act, bias=True)
    return mlp(t, y, int(h * c.number("mlp_ratio", 4)), act, ("fc1", "fc2"))


FAMILIES = {"gemma3": gemma3, "llava": llava, "qwen2_vl": qwen_vl, "qwen2_5_vl": qwen_vl}
