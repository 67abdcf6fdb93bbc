"""Small real models, and text with something to learn."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALL_MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3")


def known_families() -> tuple[str, ...]:
    """Those of them that the installed transformers has: gpt-oss came with 4.55."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return tuple(family for family in ALL_MOE if family in CONFIG_MAPPING_NAMES)


def moe_blocks(model: Any) -> list[Any]:
    """The mixture block of every layer: Mixtral's had a name of its own before transformers 5."""
    return [getattr(layer, "block_sparse_moe", None) or layer.mlp for layer in model.model.layers]


def moe_model(family: str, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4 if family == "deepseek_v3" else 2,
        "head_dim": 8, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "shared_expert_intermediate_size": 24, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1,
        "q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    }  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **{**sizes, **changes})
    ).train()


def language_model(family: str = "llama", **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    if family == "gpt2":
        sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 4, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2,
                 "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**sizes, **changes}))


def counting_text(batch: int, length: int, *, vocab: int = 64, seed: int = 0) -> Tensor:
    """Sequences that count upwards by a step of their own: predictable after two tokens."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(3, vocab, (batch, 1), generator=generator)
    step = torch.randint(1, 4, (batch, 1), generator=generator)
    return (start + step * torch.arange(length)) % (vocab - 3) + 3


class DynamicGate(nn.Module):
    """Each expert is chosen for itself, so the number of experts differs from token to token."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden) * 0.3)
        self.threshold = nn.Parameter(torch.zeros(experts))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = x @ self.weight.T
        scores = torch.relu(torch.sigmoid(logits) - torch.sigmoid(self.threshold))
        return {
            "logits": logits,
            "weights": scores / scores.sum(dim=-1, keepdim=True).clamp(min=1e-6),
        }


class DynamicBlock(nn.Module):
    """A mixture block of nobody's library; a tracker may watch the inputs it gathers."""

    def __init__(self, hidden: int, experts: int, name: str) -> None:
        super().__init__()
        self.name = name
        self.tracker: Any = None
        self.norm = nn.LayerNorm(hidden)
        self.gate = DynamicGate(hidden, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.SiLU(), nn.Linear(2 * hidden, hidden))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = self.norm(x).reshape(-1, x.shape[-1])
        weights = self.gate(flat)["weights"]
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            (tokens,) = torch.where(weights[:, index] > 0)
            gathered = flat[tokens]
            if self.tracker is not None:
                self.tracker.watch(
                    f"{self.name}.gate", gathered, tokens=tokens, experts=index, shape=weights.shape
                )
            out = out.index_add(0, tokens, expert(gathered) * weights[tokens, index, None])
        return x + out.reshape(x.shape)


class DynamicMoe(nn.Module):
    """Embedding, dynamic mixture blocks, head: small enough to spawn."""

    def __init__(
        self, vocab: int = 64, hidden: int = 32, experts: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(
            DynamicBlock(hidden, experts, f"layers.{index}") for index in range(layers)
        )
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
