"""Seconds and memory of a traced training step, beside torch's own MemTracker on the same work.

    python benchmarks/bench_trace.py            all cases, each in a fresh process, as a table
    python benchmarks/bench_trace.py --quick    without the tracker and the 70B model

Time counts from after the imports to the end of the second step, building the model included. It is processor time of
one thread, so that a busy machine does not show in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

LLAMA_1B = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_70B = {
    "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "Llama-1B, 2 × 2048": {"model": LLAMA_1B, "batch": 2, "tool": "virtual"},
    "Llama-1B, 2 × 2048, MemTracker": {"model": LLAMA_1B, "batch": 2, "tool": "memtracker"},
    "Llama-1B, 32 × 2048": {"model": LLAMA_1B, "batch": 32, "tool": "virtual"},
    "Llama-1B, half the layers": {
        "model": {**LLAMA_1B, "num_hidden_layers": 8},
        "batch": 2,
        "tool": "virtual",
    },
    "Llama-1B, twice the layers": {
        "model": {**LLAMA_1B, "num_hidden_layers": 32},
        "batch": 2,
        "tool": "virtual",
    },
    "Llama-1B, twice the width": {
        "model": {**LLAMA_1B, "hidden_size": 4096, "intermediate_size": 16384, "head_dim": 128},
        "batch": 2,
        "tool": "virtual",
    },
    "Llama-70B, 1 × 2048": {"model": LLAMA_70B, "batch": 1, "tool": "virtual"},
}
SLOW = ("Llama-1B, 2 × 2048, MemTracker", "Llama-70B, 1 × 2048")


def two_steps(
    model: Any, device: str, batch: int, after_step: Callable[[], object] = lambda: None
) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        ids = torch.randint(0, 1000, (batch, 2048), device=device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()


def virtual(sizes: dict[str, Any], batch: int) -> float:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from vramcast.virtual import virtual_gpu

    started = time.process_time()
    with virtual_gpu("4000GiB"):
        two_steps(LlamaForCausalLM(LlamaConfig(**sizes)).to(torch.bfloat16).cuda(), "cuda", batch)
    return time.process_time() - started


def memtracker(sizes: dict[str, Any], batch: int) -> float:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import LlamaConfig, LlamaForCausalLM

    started = time.process_time()
    torch.set_default_dtype(torch.bfloat16)  # `.to(bfloat16)` fails on fake parameters
    with FakeTensorMode():
        model = LlamaForCausalLM(LlamaConfig(**sizes))
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            two_steps(model, "cpu", batch, tracker.reset_mod_stats)
    return time.process_time() - started


def measure(case: dict[str, Any]) -> dict[str, float]:
    seconds = {"virtual": virtual, "memtracker": memtracker}[case["tool"]](
        case["model"], case["batch"]
    )
    return {
        "seconds": seconds,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_fresh_process(name: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--case", name], capture_output=True, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", choices=CASES)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(CASES[args.case])))
        return
    print(f"{'case':<34} {'seconds':>8} {'RSS MiB':>8}")
    for name in CASES:
        if not (args.quick and name in SLOW):
            row = in_fresh_process(name)
            print(f"{name:<34} {row['seconds']:>8.2f} {row['rss_mib']:>8.0f}", flush=True)


if __name__ == "__main__":
    main()
