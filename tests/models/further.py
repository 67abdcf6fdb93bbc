"""Public configs (as on huggingface.co) of further families that the catalog does not ship."""

from __future__ import annotations

from typing import Any

FURTHER: dict[str, dict[str, Any]] = {
    "olmo-1b": {
        "model_type": "olmo", "architectures": ["OlmoForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
        "num_attention_heads": 16, "num_hidden_layers": 16, "tie_word_embeddings": True, "vocab_size": 50304,
    },
    "olmo-7b-0424": {
        "model_type": "olmo", "architectures": ["OlmoForCausalLM"], "clip_qkv": 8.0, "hidden_size": 4096,
        "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 50304,
    },
    "olmo-3-7b": {
        "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "num_attention_heads": 32, "num_hidden_layers": 32, "sliding_window": 4096, "vocab_size": 100278,
    },
    "glm-4-9b-0414": {
        "model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "attention_bias": True, "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 13696, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 2, "pad_token_id": 151329, "partial_rotary_factor": 0.5, "vocab_size": 151552,
    },
    "granite-3.0-2b": {
        "model_type": "granite", "architectures": ["GraniteForCausalLM"], "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "hidden_size": 2048, "intermediate_size": 8192, "logits_scaling": 8.0,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "residual_multiplier": 0.22,
        "tie_word_embeddings": True, "vocab_size": 49155,
    },
    "smollm3-3b": {
        "model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "hidden_size": 2048,
        "intermediate_size": 11008, "no_rope_layer_interval": 4, "num_attention_heads": 16, "num_hidden_layers": 36,
        "num_key_value_heads": 4, "pad_token_id": 128004, "vocab_size": 128256,
    },
    "command-r-plus": {
        "model_type": "cohere", "architectures": ["CohereForCausalLM"], "hidden_size": 12288,
        "intermediate_size": 33792, "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "use_qk_norm": True, "vocab_size": 256000,
    },
    "command-r7b": {
        "model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "sliding_window": 4096, "vocab_size": 256000,
    },
    "ministral": {
        "model_type": "ministral", "architectures": ["MinistralForCausalLM"], "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12288, "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "vocab_size": 131072,
    },
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "hidden_size": 2048,
        "intermediate_size": 5632, "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
        "shared_expert_intermediate_size": 5632, "vocab_size": 151936,
    },
    "olmoe-1b-7b": {
        "model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 1024,
        "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "vocab_size": 50304,
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1,
        "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512, "moe_intermediate_size": 1408,
        "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "deit-base": {
        "model_type": "deit", "architectures": ["DeiTForImageClassification"], "hidden_size": 768, "image_size": 224,
        "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "num_labels": 1000,
        "patch_size": 16,
    },
    "dinov2-base": {
        "model_type": "dinov2", "architectures": ["Dinov2ForImageClassification"], "hidden_size": 768,
        "image_size": 518, "num_attention_heads": 12, "num_hidden_layers": 12, "num_labels": 1000, "patch_size": 14,
    },
    "dinov2-giant": {
        "model_type": "dinov2", "architectures": ["Dinov2Model"], "hidden_size": 1536, "image_size": 518,
        "num_attention_heads": 24, "num_hidden_layers": 40, "patch_size": 14, "use_swiglu_ffn": True,
    },
    "clip-vit-base-patch32-text": {
        "model_type": "clip_text_model", "architectures": ["CLIPTextModelWithProjection"], "projection_dim": 512,
    },
    "siglip-base-patch16-224": {
        "model_type": "siglip", "architectures": ["SiglipModel"], "text_config": {"model_type": "siglip_text_model"},
        "vision_config": {"model_type": "siglip_vision_model"},
    },
    "resnet-18": {
        "model_type": "resnet", "architectures": ["ResNetForImageClassification"], "depths": [2, 2, 2, 2],
        "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic", "num_labels": 1000,
    },
    "resnet-50": {
        "model_type": "resnet", "architectures": ["ResNetForImageClassification"], "depths": [3, 4, 6, 3],
        "hidden_sizes": [256, 512, 1024, 2048], "layer_type": "bottleneck", "num_labels": 1000,
    },
    "convnext-tiny": {
        "model_type": "convnext", "architectures": ["ConvNextForImageClassification"], "depths": [3, 3, 9, 3],
        "hidden_sizes": [96, 192, 384, 768], "num_labels": 1000,
    },
}  # fmt: skip
