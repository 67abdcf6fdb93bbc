"""Which type llama.cpp's quantize gives each tensor of a model, for a file type such as Q4_K_M.

A file type is a mixture: some tensors keep more bits than its name says. The rules are those of src/llama-quant.cpp
(llama_tensor_get_type_impl), without an importance matrix; norms, biases and routers stay in fp32.

Example: Q4_K_M holds attn_v and ffn_down of half the layers and the output in Q6_K, everything else in Q4_K.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramcast.engine.serving.formats import GGML
from vramcast.errors import InputError

# llama.cpp's file types, as `--gguf` names them.
GGUF_TYPES = (
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q5_k_s",
    "q5_1",
    "q5_0",
    "q4_k_m",
    "q4_k_s",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "iq4_xs",
    "mxfp4_moe",
    "q3_k_l",
    "q3_k_m",
    "q3_k_s",
    "iq3_m",
    "iq3_s",
    "iq3_xs",
    "iq3_xxs",
    "q2_k",
    "q2_k_s",
    "iq2_m",
    "iq2_s",
    "iq2_xs",
    "iq2_xxs",
    "iq1_m",
    "iq1_s",
    "tq2_0",
    "tq1_0",
)
# File type → the type of tensors that no rule picks out.
BASE = {
    "q2_k": "q2_k",
    "q2_k_s": "q2_k",
    "q3_k_s": "q3_k",
    "q3_k_m": "q3_k",
    "q3_k_l": "q3_k",
    "q4_k_s": "q4_k",
    "q4_k_m": "q4_k",
    "q5_k_s": "q5_k",
    "q5_k_m": "q5_k",
    "q6_k": "q6_k",
    "iq3_m": "iq3_s",
    "iq3_xs": "iq3_s",
    "iq2_m": "iq2_s",
    "iq2_s": "iq2_xs",
    "mxfp4_moe": "mxfp4",
}
UNCHANGED = ("f32", "f16", "bf16")
LOW_BITS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m")
LOWEST = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs")
IQ2_SM = ("iq2_s", "iq2_m")
# Types with blocks of 256 fall back to these where rows do not divide (tensor_type_fallback).
FALLBACK = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
CATEGORIES = (
    ("output", r"(^|\.)(lm_head|output|embed_out)\.weight$|output_layer"),
    ("embedding", r"embed_tokens|token_embd|wte|word_embeddings|embed_in"),
    ("qkv", r"qkv|query_key_value|c_attn|W_pack|attn_qkv"),
    ("attn_v", r"v_proj|attn_v|kv_b_proj|attn_kv_b"),
    ("attn_k", r"k_proj|attn_k(?!v)"),
    ("attn_q", r"q_proj|attn_q"),
    (
        "attn_out",
        r"o_proj|attn_output|out_proj|attn\.c_proj|self_attention\.dense|attention\.dense",
    ),
    ("ffn_down", r"down_proj|ffn_down|w2\b|fc2|mlp\.c_proj|4h_to_h|mlp\.fc_out"),
    ("ffn_gate", r"gate_proj|ffn_gate|w1\b|gate_up_proj"),
    ("ffn_up", r"up_proj|ffn_up|w3\b|fc1|c_fc|h_to_4h"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A file type with what its rules ask of the model."""

    file_type: str
    layers: int
    grouped: int  # query heads per key-value head
    experts: int
    is_tied: bool
    is_70b: bool = False

    def type_of(self, name: str, shape: tuple[int, ...], layer: int | None, kind: str) -> str:
        """The type of one tensor."""
        if len(shape) < 2 or kind in ("norm", "bias", "router", "table") or "router" in name:
            return "f32"
        if self.file_type in UNCHANGED:
            return self.file_type
        base = BASE.get(self.file_type, self.file_type)
        if base not in GGML:
            raise InputError(f"gguf {self.file_type}: no such type")
        found = self._chosen(
            category_of(name, kind),
            base,
            layer or 0,
            is_expert=kind == "experts" or "expert" in name,
        )
        block = GGML[found][0]
        row = shape[-1]
        return FALLBACK.get(found, "q8_0") if row % block else found

    def _chosen(self, category: str, base: str, layer: int, *, is_expert: bool) -> str:
        kind = self.file_type
        if category == "output" or (category == "embedding" and self.is_tied):
            return self._output(base)
        if kind == "mxfp4_moe":
            return "mxfp4" if is_expert else "q8_0"
        if category == "embedding":
            return self._embedding(base)
        if kind in LOW_BITS:
            return self._low(category, base, layer)
        rule = {
            "attn_v": self._attn_v,
            "attn_out": self._attn_out,
            "ffn_down": self._ffn_down,
            "qkv": self._qkv,
        }.get(category)
        if rule is not None:
            return rule(base, layer)
        if self.experts == 8 and category == "attn_k":
            return "q8_0"
        if category in ("attn_k", "attn_q") and kind in ("iq3_xs", "iq3_xxs"):
            return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}[kind]
        middle = self.layers // 8 <= layer < 7 * self.layers // 8
        if category in ("ffn_gate", "ffn_up") and kind == "iq3_xs" and middle:
            return "iq3_xxs"
        return base

    def _output(self, base: str) -> str:
        kind = self.file_type
        if kind == "mxfp4_moe":
            return "q8_0"
        if kind in LOW_BITS or kind == "iq3_xxs":
            return "q5_k"
        return base if base == "q8_0" else "q6_k"

    def _embedding(self, base: str) -> str:
        kind = self.file_type
        if kind in LOWEST:
            return "q2_k"
        if kind in (*IQ2_SM, "iq3_xxs"):
            return "iq3_s"
        return "q4_k" if kind in ("tq1_0", "tq2_0") else base

    def _low(self, category: str, base: str, layer: int) -> str:
        small = "iq3_s" if self.file_type in IQ2_SM else "q2_k"
        if category == "attn_v":
            return "q4_k" if self.grouped >= 4 or self.experts >= 4 else small
        if category == "ffn_down" and layer < self.layers // 8:
            return small
        if category == "attn_out":
            if self.experts == 8:
                return "q5_k"
            by_type = {"iq1_s": "iq2_xxs", "iq1_m": "iq2_xxs", "iq2_s": "iq3_s", "iq2_m": "iq3_s"}
            return by_type.get(self.file_type, base)
        return base

    def _attn_v(self, base: str, layer: int) -> str:
        kind, is_grouped = self.file_type, self.grouped >= 4
        by_type = {
            "q2_k": "q4_k" if is_grouped else "q3_k",
            "q2_k_s": "q4_k" if is_grouped else base,
            "iq3_xxs": "q4_k" if is_grouped else "iq3_s",
            "iq3_xs": "q4_k" if is_grouped else base,
            "iq3_s": "q4_k" if is_grouped else base,
            "iq3_m": "q4_k",
            "q3_k_m": "q5_k" if layer < 2 else "q4_k",
            "q3_k_l": "q5_k",
            "iq4_nl": "q5_k" if is_grouped else base,
            "iq4_xs": "q5_k" if is_grouped else base,
            "q4_k_m": "q6_k" if self._more_bits(layer) else base,
            "q5_k_m": "q6_k" if self._more_bits(layer) else base,
            "q4_k_s": "q5_k" if layer < 4 else base,
        }
        found = by_type.get(kind, base)
        if self.is_70b and found in ("q3_k", "q4_k"):
            found = "q5_k"
        return "q8_0" if self.experts == 8 else found

    def _attn_out(self, base: str, layer: int) -> str:
        kind = self.file_type
        if self.experts == 8:
            is_small = kind.startswith(("q2", "q3", "q4_k", "iq3", "iq4")) and kind != "q3_k_l"
            return "q5_k" if is_small else base
        by_type = {
            "q2_k": "q3_k",
            "iq3_xxs": "iq3_s",
            "q3_k_m": "q4_k",
            "q3_k_l": "q5_k",
            "iq3_m": "q4_k",
        }
        return by_type.get(kind, base)

    def _ffn_down(self, base: str, layer: int) -> str:
        early, count = layer < self.layers // 8, self.layers
        by_type = {
            "q2_k": "q3_k",
            "q2_k_s": "q4_k" if early else base,
            "iq3_xxs": "q4_k" if early else "q3_k",
            "q3_k_m": "q5_k" if layer < count // 16 else "q4_k",
            "iq3_m": "q4_k" if early else base,
            "q3_k_l": "q5_k",
            "q4_k_m": "q6_k" if self._more_bits(layer) else base,
            "q5_k_m": "q6_k" if self._more_bits(layer) else base,
            "iq4_nl": "q5_k" if early else base,
            "iq4_xs": "q5_k" if early else base,
            "q4_k_s": "q5_k" if early else base,
        }
        return by_type.get(self.file_type, base)

    def _qkv(self, base: str, layer: int) -> str:
        by_type = {
            "q3_k_m": "q4_k",
            "q3_k_l": "q4_k",
            "iq3_m": "q4_k",
            "q4_k_m": "q5_k",
            "q5_k_m": "q6_k",
        }
        return by_type.get(self.file_type, base)

    def _more_bits(self, layer: int) -> bool:
        eighth = self.layers // 8
        return layer < eighth or layer >= 7 * self.layers // 8 or (layer - eighth) % 3 == 2


def category_of(name: str, kind: str) -> str:
    if kind == "head":
        return "output"
    return next((word for word, pattern in CATEGORIES if re.search(pattern, name)), "other")
