"""The model types whose layers are described as Megatron runs them; `megatron` describes them."""

GPT = ("gpt2", "bert", "t5")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")
LLAMA = ("llama", "mistral", "qwen2", "qwen3", *MIXTURES)
DESCRIBED = (*GPT, *LLAMA)
