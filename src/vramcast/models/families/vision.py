"""Vision transformers and image-text pairs: ViT, DeiT, CLIP, SigLIP, DINOv2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.errors import UndescribedModelError
from vramcast.models.read.config import Config, exact_division
from vramcast.models.read.tasks import num_labels
from vramcast.models.record.attention import Eager, Heads, attend
from vramcast.models.record.dims import Dim, Number
from vramcast.models.record.images import grid, patches, pixels
from vramcast.models.record.layers import gated_mlp, mlp, split_heads
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import I64, Tape, Value

# ---- towers that CLIP, SigLIP and models built on them share

VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
CLIP_TEXT = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
    "projection_dim": 512,
    "hidden_act": "quick_gelu",
}
SIGLIP_TEXT = {
    **VISION,
    "vocab_size": 32000,
    "max_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
}
CLIP_VISION = {**VISION, "patch_size": 32, "projection_dim": 512, "hidden_act": "quick_gelu"}
SIGLIP_VISION = {**VISION, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh"}


def self_attention(
    t: Tape,
    c: Config,
    y: Value,
    *,
    names: str,
    dropout: str,
    qkv_bias: bool = True,
    upcast: bool = True,
    causal: bool = False,
) -> Value:
    """Full heads with biases; `names` gives q, k, v and the output projection."""
    h, num = c.dim("hidden_size", "h"), c.dim("num_attention_heads", "a")
    heads = Heads(
        num=num,
        num_kv=num,
        width=exact_division(h, num, f"{c.where}: hidden_size by num_attention_heads"),
    )
    q, k, v = (
        split_heads(t, t.linear(name, y, h, bias=qkv_bias, label=name[0]), num)
        for name in names.split()[:3]
    )
    in_fp32 = t.regime.habits.softmax_in_fp32
    upcast = upcast if in_fp32 is None else in_fp32
    eager = Eager(upcast=upcast, recast=upcast, mask=causal)
    y = attend(t, q, k, v, heads, dropout=c.number(dropout, 0.0), eager=eager)
    return t.linear(names.split()[3], y, h, bias=True)


def encoder_layer(t: Tape, c: Config) -> Callable[[Value, Any], Value]:
    def layer(x: Value, kind: Any) -> Value:
        y = t.layer_norm("layer_norm1", x)
        with t.scope("self_attn"):
            causal = c.model_type == "clip_text_model"
            names = "q_proj k_proj v_proj out_proj"
            y = self_attention(t, c, y, names=names, dropout="attention_dropout", causal=causal)
        x = t.add(x, y, "residual stream")
        y = t.layer_norm("layer_norm2", x)
        with t.scope("mlp"):
            y = mlp(t, y, c.dim("intermediate_size", "f"), c.word("hidden_act", ""), ("fc1", "fc2"))
        return t.add(x, y, "residual stream")

    return layer


def without_result(t: Tape, layer: Callable[[Value, Any], Value]) -> Callable[[Value, Any], Value]:
    """Layers of kind `unused` run, but nothing reads what they give."""

    def either(x: Value, kind: Any) -> Value:
        if kind != "unused":
            return layer(x, kind)
        with t.no_grad():
            layer(x, kind)
        return x

    return either


def depth(c: Config) -> Dim:
    return c.dim("num_hidden_layers", "L")


def vision_tower(t: Tape, c: Config, images: Number, *, unused: int = 0) -> Value:
    """Patches, positions, layers. `c` is a CLIP or SigLIP vision config with its defaults put in; the last `unused`
    layers give nothing to the loss."""
    clip, h = c.model_type != "siglip_vision_model", c.dim("hidden_size", "h")
    patch, num = grid(c, default_side=224, default_patch=16)
    image = pixels(t, c, images, default_side=224)
    with t.section(t.path("embeddings"), image) as section:
        with t.scope("embeddings"):
            x = t.require_input_grads(patches(t, "patch_embedding", image, h, patch, bias=not clip))
            x = embedded(t, x, h, num, first=clip)
        x = t.layer_norm("pre_layrnorm", x) if clip else x
        section.outputs = (x,)
    kinds = ["layer"] * (depth(c) - unused) + ["unused"] * unused
    return t.layers("encoder.layers", kinds, without_result(t, encoder_layer(t, c)), x)


def embedded(t: Tape, x: Value, h: Dim, num: Dim, *, first: bool) -> Value:
    """Patches after an optional class token, plus a table of positions."""
    rows = num + 1 if first else num
    if first:
        token = t.param("class_embedding", (int(h),), "table")
        x = t.op(
            "copy", (token, x), (x.shape[0], rows, h), x.dtype, label="class token and patches"
        )
    table = t.embedding_weight("position_embedding", int(rows), int(h))
    return plus_positions(
        t, x, t.op("embedding", (table,), (1, rows, h), table.dtype, label="positions")
    )


def plus_positions(t: Tape, x: Value, positions: Value) -> Value:
    dtype = x.dtype if x.dtype == positions.dtype else t.regime.weights
    return t.op("add", (x, positions), x.shape, dtype, label="embeddings")


def first_row(t: Tape, x: Value) -> Value:
    """x[:, 0]: a view, so that whoever keeps it keeps all rows."""
    return t.select(x, (x.shape[0], x.shape[-1]))


def picked_row(t: Tape, x: Value) -> Value:
    """One row of each sample by its index: a copy."""
    return t.copy(x, (x.shape[0], x.shape[-1]), "row of the end token")


def text_tower(t: Tape, c: Config, sizes: Sizes) -> Value:
    h = c.dim("hidden_size", "h")
    ids = t.input("text ids", (sizes.batch, sizes.seq), I64)
    with t.section(t.path("embeddings"), ids) as section:
        with t.scope("embeddings"):
            x = t.embed(t.embedding_weight("token_embedding", c.dim("vocab_size", "V"), h), ids)
            table = t.embedding_weight(
                "position_embedding", c.dim("max_position_embeddings", "s_max"), h
            )
            x = plus_positions(
                t, x, t.op("embedding", (table,), (1, sizes.seq, h), table.dtype, label="positions")
            )
        section.outputs = (x,)
    return t.layers("encoder.layers", ["layer"] * depth(c), encoder_layer(t, c), x)


# ---- CLIP and SigLIP


def sub(c: Config, name: str, defaults: dict[str, Any], model_type: str) -> Config:
    """A nested config with the defaults of its class. Early CLIP configs repeat it under `…_dict`, which wins."""
    legacy = c.sub(f"{name}_dict").data
    own = c.sub(name)
    return Config({**defaults, **own.data, **legacy, "model_type": model_type}, own.where)


def clip_text(t: Tape, c: Config, sizes: Sizes) -> Value:
    x = text_tower(t, c, sizes)
    with t.section(t.path("final norm"), x) as section:
        x = t.layer_norm("final_layer_norm", x)
        section.outputs = (x,)
    return x


def clip_vision(t: Tape, c: Config, images: Number) -> Value:
    """The class token, normed."""
    x = vision_tower(t, c, images)
    with t.section(t.path("pooler"), x) as section:
        x = t.layer_norm("post_layernorm", first_row(t, x))
        section.outputs = (x,)
    return x


def clip(t: Tape, c: Config, sizes: Sizes) -> Program:
    """Two towers and a contrastive loss over the batch, or one tower with its class's head."""
    text, vision = (
        sub(c, "text_config", CLIP_TEXT, "clip_text_model"),
        sub(c, "vision_config", CLIP_VISION, "clip_vision_model"),
    )
    name = c.architecture or "CLIPModel"
    if name == "CLIPForImageClassification":
        return classified(t, c, vision, sizes)
    if name != "CLIPModel":
        raise UndescribedModelError(
            f"{c.where}: {name} is not described. Known: CLIPModel, CLIPForImageClassification"
        )
    with t.scope("vision_model"):
        image = clip_vision(t, vision, sizes.batch * sizes.images)
    with t.scope("text_model"):
        words = clip_text(t, text, sizes)
    width = c.dim("projection_dim", "d", default=512)
    return contrasted(t, image, words, width=width)


def contrasted(
    t: Tape, image: Value, words: Value, *, width: Dim | None, bias: bool = False
) -> Program:
    with t.section("head", image, words) as section:
        words = picked_row(t, words) if len(words.shape) == 3 else words
        if width is not None:
            image = t.linear("visual_projection", image, width, label="image embedding")
            words = t.linear("text_projection", words, width, label="text embedding")
        scale = t.param("logit_scale", (1,) if bias else (), "table")
        if bias:
            t.param("logit_bias", (1,), "bias")
        image, words = unit_length(t, image), unit_length(t, words)
        logits = t.matmul(words, image, (words.shape[0], image.shape[0]), "similarity")
        logits = t.op(
            "mul", (logits, scale), logits.shape, logits.dtype, saves=(logits,), label="logits"
        )
        section.outputs = (logits,)
    return Program(tape=t, output=logits, labels=None, loss="contrastive")


def unit_length(t: Tape, x: Value) -> Value:
    length = t.op(
        "norm", (x,), (*x.shape[:-1], 1), x.dtype, saves=(x,), saves_output=True, label="length"
    )
    return t.op("div", (x, length), x.shape, x.dtype, saves=(x, length), label="unit vector")


def classified(t: Tape, c: Config, vision: Config, sizes: Sizes) -> Program:
    """The mean of the patches, and a linear classifier. The tower's own norm is run for nothing."""
    images = sizes.batch * sizes.images
    with t.scope("vision_model"):
        x = vision_tower(t, vision, images)
        with t.section(t.path("pooler"), x) as section:
            with t.no_grad():
                t.layer_norm("post_layernorm", x)
            section.outputs = (x,)
    with t.section("head", x) as section:
        pooled = t.op("mean", (x,), (images, x.shape[-1]), x.dtype, label="mean of patches")
        logits = t.linear(
            "classifier", pooled, num_labels(c), bias=True, label="logits", kind="head"
        )
        section.outputs = (logits,)
    labels = t.input("labels", (images,), I64)
    return Program(tape=t, output=logits, labels=labels, loss="classify")


def clip_one(t: Tape, c: Config, sizes: Sizes) -> Program:
    """CLIPTextModel and CLIPVisionModel by themselves, perhaps with their projection."""
    text = c.model_type == "clip_text_model"
    c = c.with_defaults(**(CLIP_TEXT if text else CLIP_VISION))
    projected = c.architecture.endswith("WithProjection")
    with t.scope(("text_model" if text else "vision_model") if projected else ""):
        x = clip_text(t, c, sizes) if text else clip_vision(t, c, sizes.batch * sizes.images)
    if projected:
        with t.section("head", x) as section:
            x = picked_row(t, x) if text else x
            x = t.linear(
                "text_projection" if text else "visual_projection", x, c.dim("projection_dim", "d")
            )
            section.outputs = (x,)
    return Program(tape=t, output=x, labels=None, loss="none")


def siglip_text(t: Tape, c: Config, sizes: Sizes) -> Value:
    x = clip_text(t, c, sizes)
    with t.section(t.path("pooler"), x) as section:
        width = c.dim("projection_size", "d", default=int(c.dim("hidden_size", "h")))
        x = t.linear("head", first_row(t, x), width, bias=True, label="text embedding")
        section.outputs = (x,)
    return x


def siglip_vision(t: Tape, c: Config, images: Number) -> Value:
    x = vision_tower(t, c, images)
    with t.section(t.path("pooler"), x) as section:
        x = t.layer_norm("post_layernorm", x)
        with t.scope("head"):
            x = attention_pooled(t, c, x) if c.flag("vision_use_head", True) else x
        section.outputs = (x,)
    return x


def attention_pooled(t: Tape, c: Config, x: Value) -> Value:
    """nn.MultiheadAttention from one learned probe, with its weights computed in full; then an MLP."""
    n, rows, h = x.shape
    num = c.dim("num_attention_heads", "a")
    probe = t.param("probe", (1, 1, int(h)), "table")
    probe = t.op("copy", (probe,), (n, 1, h), probe.dtype, label="probe")
    with t.scope("attention"):
        w, b = (
            t.param("in_proj_weight", (3 * int(h), int(h)), "linear"),
            t.param("in_proj_bias", (3 * int(h),), "bias"),
        )
        x, probe, copy = t.autocast(x), t.autocast(probe), t.autocast(w)
        q = t.op("linear", (probe, copy, b), (n, 1, h), x.dtype, saves=(probe, copy), label="q")
        kv = t.op("linear", (x, copy, b), (n, rows, 2 * h), x.dtype, saves=(x, copy), label="k, v")
        kv = t.copy(kv, label="k, v apart")
        weights = t.softmax(
            t.matmul(t.scale(q), kv, (n, num, 1, rows), "scores"), label="attention weights"
        )
        y = t.copy(t.matmul(weights, kv, (n, 1, h), "attention output"))
        y = t.linear("out_proj", y, h, bias=True)
    z = t.layer_norm("layernorm", y)
    with t.scope("mlp"):
        z = mlp(t, z, c.dim("intermediate_size", "f"), c.word("hidden_act", ""), ("fc1", "fc2"))
    return t.view(t.add(y, z), (n, h))


def siglip(t: Tape, c: Config, sizes: Sizes) -> Program:
    text = sub(c, "text_config", SIGLIP_TEXT, "siglip_text_model")
    vision = sub(c, "vision_config", SIGLIP_VISION, "siglip_vision_model")
    name = c.architecture or "SiglipModel"
    if name == "SiglipForImageClassification":
        raise UndescribedModelError(f"{c.where}: {name} is not described. Known: SiglipModel")
    with t.scope("vision_model"):
        image = siglip_vision(t, vision, sizes.batch * sizes.images)
    with t.scope("text_model"):
        words = siglip_text(t, text, sizes)
    return contrasted(t, image, words, width=None, bias=True)


def siglip_one(t: Tape, c: Config, sizes: Sizes) -> Program:
    text = c.model_type == "siglip_text_model"
    c = c.with_defaults(**(SIGLIP_TEXT if text else SIGLIP_VISION))
    x = siglip_text(t, c, sizes) if text else siglip_vision(t, c, sizes.batch * sizes.images)
    return Program(tape=t, output=x, labels=None, loss="none")


# ---- ViT, DeiT, DINOv2

VIT = {**VISION, "image_size": 224, "patch_size": 16, "hidden_act": "gelu", "mlp_ratio": 4}


def vit(t: Tape, c: Config, sizes: Sizes) -> Program:
    """A class token (DeiT: and a distillation token) before the patches, then layers of one kind."""
    dino, deit = c.model_type == "dinov2", c.model_type == "deit"
    c = c.with_defaults(**{**VIT, **({"patch_size": 14} if dino else {})})
    images = sizes.batch * sizes.images
    whole = _is_whole_model(c)
    with t.scope("" if whole else c.model_type):
        x = vit_embeddings(t, c, images, tokens=2 if deit else 1, masked=dino)
        layer = dino_layer(t, c) if dino else vit_layer(t, c)
        x = t.layers("encoder.layer" if dino else "layers", ["layer"] * depth(c), layer, x)
        with t.section(t.path("norm"), x) as section:
            x = t.layer_norm("layernorm", x)
            section.outputs = (x,)
            if whole and not dino:
                section.outputs = (pooled(t, c, x),)
    if whole:
        return Program(tape=t, output=x, labels=None, loss="none")
    with t.section("head", x) as section:
        rows = joined_mean(t, x) if dino else first_row(t, x)
        logits = t.linear("classifier", rows, num_labels(c), bias=True, label="logits", kind="head")
        section.outputs = (logits,)
    return Program(tape=t, output=logits, labels=t.input("labels", (images,), I64), loss="classify")


def _is_whole_model(c: Config) -> bool:
    """Without a classifier? Classes that are neither with nor without one are refused."""
    name = c.architecture
    if name.endswith("Model"):
        return True
    if name and not name.endswith("ForImageClassification"):
        raise UndescribedModelError(
            f"{c.where}: {name} is not described. Known endings: Model, ForImageClassification."
        )
    return False


def pooled(t: Tape, c: Config, x: Value) -> Value:
    width = c.dim("pooler_output_size", "h", default=int(c.dim("hidden_size", "h")))
    with t.scope("pooler"):
        return t.activation(
            t.linear("dense", first_row(t, x), width, bias=True), c.word("pooler_act", "tanh")
        )


def joined_mean(t: Tape, x: Value) -> Value:
    """The class token next to the mean of the patches."""
    return t.op("copy", (x,), (x.shape[0], 2 * x.shape[-1]), x.dtype, label="class token and mean")


def vit_embeddings(t: Tape, c: Config, images: Number, *, tokens: int, masked: bool) -> Value:
    h = c.dim("hidden_size", "h")
    patch, num = grid(c, default_side=224, default_patch=16)
    image = pixels(t, c, images, default_side=224)
    with t.section(t.path("embeddings"), image) as section, t.scope("embeddings"):
        extra = [
            t.param(name, (1, 1, int(h)), "table")
            for name in ("cls_token", "distillation_token")[:tokens]
        ]
        if masked and c.flag("use_mask_token", True):
            t.param("mask_token", (1, int(h)), "table")
        with t.scope("patch_embeddings"):
            x = patches(t, "projection", image, h, patch, bias=True)
        x = t.op(
            "copy",
            (*extra, x),
            (images, num + tokens, h),
            t.regime.weights,
            label="tokens and patches",
        )
        positions = t.param("position_embeddings", (1, int(num) + tokens, int(h)), "table")
        x = plus_positions(t, x, positions)
        x = t.dropout(x, c.number("hidden_dropout_prob", 0.0))
        section.outputs = (x,)
    return x


ATTENTION = "q_proj k_proj v_proj o_proj"


def vit_layer(t: Tape, c: Config) -> Callable[[Value, Any], Value]:
    p = c.number("hidden_dropout_prob", 0.0)

    def layer(x: Value, kind: Any) -> Value:
        y = t.layer_norm("layernorm_before", x)
        with t.scope("attention"):
            bias = c.flag("qkv_bias", True)
            y = self_attention(
                t, c, y, names=ATTENTION, qkv_bias=bias, dropout="attention_probs_dropout_prob"
            )
        x = t.add(t.dropout(y, p), x, "residual stream")
        y = t.layer_norm("layernorm_after", x)
        with t.scope("mlp"):
            y = mlp(t, y, c.dim("intermediate_size", "f"), c.word("hidden_act", ""), ("fc1", "fc2"))
        return t.add(t.dropout(y, p), x, "residual stream")

    return layer


def dino_layer(t: Tape, c: Config) -> Callable[[Value, Any], Value]:
    """Each branch scaled by a learned vector; in training, perhaps dropped sample by sample."""
    h = c.dim("hidden_size", "h")
    inner = int(h * c.number("mlp_ratio", 4))

    def scaled(y: Value, name: str) -> Value:
        with t.scope(name):
            y = t.mul(y, t.param("lambda1", (int(h),), "table"), "scaled branch")
        rate = c.number("drop_path_rate", 0.0)
        if not rate or not t.regime.training:
            return y
        keep = Value((y.shape[0], 1, 1), y.dtype, label="kept samples")
        return t.op("mul", (y,), y.shape, y.dtype, saves=(keep,), label="branch of kept samples")

    def feed(y: Value) -> Value:
        if not c.flag("use_swiglu_ffn", False):
            return mlp(t, y, inner, c.word("hidden_act", ""), ("fc1", "fc2"))
        return gated_mlp(t, y, (inner * 2 // 3 + 7) // 8 * 8, "silu", bias=True)

    def layer(x: Value, kind: Any) -> Value:
        y = t.layer_norm("norm1", x)
        with t.scope("attention"):
            bias = c.flag("qkv_bias", True)
            y = self_attention(
                t,
                c,
                y,
                names=ATTENTION,
                qkv_bias=bias,
                dropout="attention_probs_dropout_prob",
                upcast=False,
            )
        x = t.add(scaled(y, "layer_scale1"), x, "residual stream")
        y = t.layer_norm("norm2", x)
        with t.scope("mlp"):
            y = feed(y)
        return t.add(scaled(y, "layer_scale2"), x, "residual stream")

    return layer


FAMILIES = {
    "clip": clip,
    "clip_text_model": clip_one,
    "clip_vision_model": clip_one,
    "siglip": siglip,
    "siglip_text_model": siglip_one,
    "siglip_vision_model": siglip_one,
    "vit": vit,
    "deit": vit,
    "dinov2": vit,
}
