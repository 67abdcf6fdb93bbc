# ruff: noqa: E501 (pasted messages keep their lines)
"""Public threads that say what was trained: the true cause, with the job, is among the first two hypotheses.

Each case: the thread and how it was resolved, the job as its owner described it, what was printed (shortened to the
failing lines), and the cause: a hypothesis by name, or a deviation of the job that was found there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.readers.log import read_text
from vramcast.job import Job, job_from

SAMPLES = Path(__file__).parent / "samples"
GPT2 = {"model": "gpt2", "seq": 1024, "precision": "fp32", "framework": "hf"}

THREADS: dict[str, tuple[dict[str, object], str, tuple[str, ...]]] = {
    # one card is not enough for AdamW's foreach lists: two cards were needed
    "modelscope/ms-swift#411": (
        {
            "model": "mistral-7b", "batch": 1, "seq": 4096, "precision": "bf16-true", "framework": "hf",
            "checkpointing": "full", "torch-version": "2.0", "transformers-version": "4.37",
        },
        '  File "/opt/conda/lib/python3.10/site-packages/torch/optim/adamw.py", line 568, in _multi_tensor_adamw\n'
        "    denom = torch._foreach_add(exp_avg_sq_sqrt, eps)\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB (GPU 0; 79.15 GiB total capacity; 76.61 GiB "
        "already allocated; 112.38 MiB free; 77.55 GiB reserved in total by PyTorch)",
        ("optimizer_foreach",),
    ),
    # a batch of 1 instead of the default 8; 384 MiB are the scores of 8 × 12 heads × 1024 × 1024 in fp32
    "huggingface/transformers#7177": (
        {**GPT2, "batch": 8, "torch-version": "1.6", "transformers-version": "3.1"},
        "RuntimeError: CUDA out of memory. Tried to allocate 384.00 MiB (GPU 0; 15.90 GiB total capacity; 14.75 GiB already "
        "allocated; 225.81 MiB free; 14.81 GiB reserved in total by PyTorch)",
        ("attention_scores", "activations"),
    ),
    # a block of 512 or a batch of 1; 786 MiB are the logits of 4 × 1024 tokens in fp32
    "huggingface/transformers#3360": (
        {**GPT2, "batch": 4, "framework": "plain", "torch-version": "1.4", "transformers-version": "2.5"},
        "RuntimeError: CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 14.73 GiB total capacity; 13.33 GiB already "
        "allocated; 575.88 MiB free; 13.38 GiB reserved in total by PyTorch)",
        ("logits",),
    ),
    # 6 GB are too few for the logits of 1024 tokens beside the rest; accumulation changed nothing
    "huggingface/transformers#1819": (
        {**GPT2, "batch": 1, "framework": "plain", "accumulate": 1024, "torch-version": "1.3", "transformers-version": "2.1"},
        '  File "run_lm_finetuning.py", line 240, in train\n    loss.backward()\n'
        '  File "/home/antonio/anaconda3/lib/python3.7/site-packages/torch/autograd/__init__.py", line 99, in backward\n'
        "    allow_unreachable=True)  # allow_unreachable flag\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 198.00 MiB (GPU 0; 5.93 GiB total capacity; 4.64 GiB already allocated; "
        "54.94 MiB free; 233.05 MiB cached)",
        ("logits", "activations"),
    ),
    # it ran after model.half(): the weights were fp32 although --bf16 was given
    "tatsu-lab/stanford_alpaca#189": (
        {
            "model": "llama2-7b", "batch": 1, "seq": 512, "precision": "bf16-true", "framework": "hf",
            "torch-version": "2.0", "transformers-version": "4.28", "accumulate": 8,
        },
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 774.00 MiB (GPU 0; 80.00 GiB total capacity; 71.96 GiB already "
        "allocated; 791.50 MiB free; 72.18 GiB reserved in total by PyTorch)",
        ("weights_fp32",),
    ),
    # the log behind a note that reckoned 62.6 GB: fp32 weights, an fp32 reference on the GPU, foreach AdamW
    "Phi-3-mini with a reference model": (
        {"model": "phi-3-mini", "batch": 2, "seq": 256, "precision": "bf16-true", "reference": "same", "gpu": "a100-80gb"},
        "torch.OutOfMemoryError: CUDA out of memory. Of the allocated memory 76.72 GiB is allocated by PyTorch, and 1.81 GiB is "
        "reserved by PyTorch but unallocated.",
        ("weights_fp32",),
    ),
    # the maintainers named _foreach_sqrt's copy; 130 MiB are one MLP matrix in bf16
    "huggingface/trl#2776": (
        {"model": "qwen2.5-7b", "batch": 1, "seq": 1024, "precision": "bf16-true", "framework": "trl", "reference": "same"},
        (SAMPLES / "14_cuda_v2.5_grpo_foreach_sqrt.txt").read_text(),
        ("optimizer_foreach",),
    ),
    # stage 3 instead of stage 2 made it fit: 3.14 GiB are an eighth of all parameters in fp32, Adam's denominator
    "hiyouga/LlamaFactory#1221": (
        {
            "model": "llama2-7b", "batch": 1, "seq": 1024, "precision": "fp16-master", "framework": "deepspeed",
            "checkpointing": "full", "gpus": 8, "strategy": "zero2", "transformers-version": "4.34", "torch-version": "2.0",
        },
        (SAMPLES / "09_cuda_v2.0_adam_denom.txt").read_text(),
        ("optimizer_temporary", "optimizer_states"),
    ),
    # a CPU optimizer made it run on 11 GB: fp32 weights, gradients and states are 11.5 of its 14.8 GiB; 26 MiB are one MLP
    # matrix of GPT-2 large, 1280 × 5120, in fp32
    "ai-forever/ru-gpts#27": (
        {
            "model": "gpt2-large", "batch": 1, "seq": 256, "precision": "fp16-mixed", "framework": "plain",
            "torch-version": "1.6", "transformers-version": "2.8",
        },
        "RuntimeError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 14.76 GiB total capacity; 13.25 GiB already allocated; "
        "21.44 MiB free; 13.84 GiB reserved in total by PyTorch)",
        ("optimizer_states", "optimizer_temporary", "optimizer_foreach"),
    ),
    # 16 bytes for each of 13 billion parameters do not fit on two cards; 606 MiB are half of a layer in fp32, a state of Adam
    "tatsu-lab/stanford_alpaca#86": (
        {
            "model": "llama2-13b", "batch": 1, "seq": 512, "precision": "fp16-mixed", "framework": "hf", "gpus": 2,
            "strategy": "fsdp1", "torch-version": "2.0", "transformers-version": "4.28", "accumulate": 8,
        },
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 606.00 MiB (GPU 1; 79.18 GiB total capacity; 77.07 GiB already "
        "allocated; 468.31 MiB free; 77.41 GiB reserved in total by PyTorch)",
        ("optimizer_states", "optimizer_temporary", "optimizer_foreach"),
    ),
}  # fmt: skip


def diagnosed(name: str) -> Diagnosis:
    values, text, _ = THREADS[name]
    job: Job = job_from(values)
    return diagnose(read_text(text), job)


def named(diagnosis: Diagnosis) -> set[str]:
    """The first two hypotheses: their names, and what they say is different about the job."""
    names: set[str] = set()
    for item in diagnosis.hypotheses[:2]:
        names.update((item.name, *(item.explanation.changes if item.explanation else ())))
    return names


@pytest.mark.slow
def test_the_true_cause_is_among_the_first_two_for_threads_with_a_job() -> None:
    found = {name: named(diagnosed(name)) for name in THREADS}
    missed = {name: names for name, names in found.items() if not names & set(THREADS[name][2])}
    assert len(THREADS) >= 10
    assert not missed
