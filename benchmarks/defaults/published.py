"""Tables of memory that LLaMA-Factory and Unsloth publish, beside `estimate --framework …` with as few words.

python benchmarks/defaults/published.py
"""

from __future__ import annotations

from vramcast.engine import estimate
from vramcast.job import job_from

# github.com/hiyouga/LLaMA-Factory/wiki/Performance-comparison (April 2024): LLaMA-2-7B, 4 bit, rank 8 on all linear
# layers, batch 1, one A100 40GB, FlashAttention-2. Measured, in whole GB.
MEASURED = {1024: 6, 2048: 7, 4096: 9, 8192: 12, 16384: 19, 32768: 32}
WIKI = {
    "model": "llama-2-7b",
    "framework": "llama-factory",
    "tuning": "qlora",
    "attention": "flash",
    "gpu": "a100-40gb",
    "transformers-version": "4.39",
    "torch-version": "2.2",
}
# LLaMA-Factory's README of 2026-08-18, "estimated": LoRA in 16 bit, QLoRA in 8 and in 4 bit.
README = {
    "qwen2.5-7b": (16, 10, 6),
    "qwen2.5-14b": (32, 20, 12),
    "qwen2.5-32b": (64, 40, 24),
    "llama-3.1-70b": (160, 80, 48),
}
# unsloth.ai/docs/get-started/fine-tuning-for-beginners/unsloth-requirements: "absolute minimum", QLoRA and LoRA.
UNSLOTH = {
    "qwen2.5-3b": (3.5, 8),
    "mistral-7b-v0.3": (5, 19),
    "llama-3.1-8b": (6, 22),
    "qwen2.5-14b": (8.5, 33),
    "qwen2.5-32b": (26, 76),
    "llama-3.1-70b": (41, 164),
}


def process_gib(**said: object) -> float:
    peak = estimate(job_from(said), with_scaling=False).verdict().peak
    return (peak.process_bytes or 0) / 2**30


def main() -> None:
    print("LLaMA-Factory's wiki: length, published, estimated GiB")
    for seq, published in MEASURED.items():
        print(f"  {seq:6} {published:6} {process_gib(**WIKI, seq=seq):8.2f}")
    print("LLaMA-Factory's README: model, kind, published, estimated GiB at 512 tokens")
    for model, sizes in README.items():
        kinds = ({"tuning": "lora"}, {"tuning": "lora", "quantize": "int8"}, {"tuning": "qlora"})
        for kind, size in zip(kinds, sizes, strict=True):
            said = {"model": model, "framework": "llama-factory", "seq": 512, "gpu": "192GiB"}
            print(
                f"  {model:16} {' '.join(kind.values()):10} {size:6} {process_gib(**said, **kind):8.2f}"
            )
    print("Unsloth's requirements: model, kind, published, estimated GiB at 512 tokens")
    for model, pair in UNSLOTH.items():
        for tuning, size in zip(("qlora", "lora"), pair, strict=True):
            said = {"model": model, "framework": "unsloth", "tuning": tuning, "seq": 512}
            print(f"  {model:16} {tuning:10} {size:6} {process_gib(**said, gpu='192GiB'):8.2f}")


if __name__ == "__main__":
    main()
