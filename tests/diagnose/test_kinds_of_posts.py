# ruff: noqa: E501 (what programs print keeps its lines)
"""Kinds of posts, each in words of our own around what a program prints: the mechanism must be known, not the post.

Each kind stands here twice or more, in different words, and beside it the text that looks alike and is something else.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.readers.log import read_text
from vramcast.report.diagnose_answer import answer as answer_sentences

BARE = "torch.OutOfMemoryError: CUDA out of memory."
WORKER = "RuntimeError: DataLoader worker (pid 4242) is killed by signal: {}."
ASSERTION = "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1239: indexSelectLargeIndex: block: [12,0,0], thread: [33,0,0] Assertion `srcIndex < srcSelectDimSize` failed."


def answer(text: str) -> Diagnosis:
    return diagnose(read_text(text))


def causes(text: str) -> list[str]:
    return [item.name for item in answer(text).hypotheses]


def steps(text: str) -> set[str]:
    return {item.step for item in answer(text).advice}


FIRST = (
    # Go says how a child ended
    (
        'level=ERROR source=server.go msg="llama runner terminated" error="signal: killed"',
        "host_memory",
    ),
    ("docker build: process did not complete successfully: signal: killed", "host_memory"),
    # a worker's signal in the words of the C library
    (WORKER.format("Terminated"), "not_memory"),
    (WORKER.format("Hangup"), "not_memory"),
    (WORKER.format("Aborted"), "crashed"),
    (WORKER.format("Floating point exception"), "crashed"),
    (WORKER.format("Killed"), "host_workers"),
    # told in words
    ("Every time I start it on the large graph I keep getting killed", "host_memory"),
    ("It reads the data set for a minute and then killed", "host_memory"),
    ("After the second epoch the terminal prints 'killed', nothing else", "host_memory"),
    ("Reading the annotations takes long, and finally my kernel dies", "host_memory"),
    ("**Killed**", "host_memory"),
    ("the container was short of RAM and is killed", "host_memory"),
    ("loss goes down for a while, oom in the end, memory keeps growing", "memory_grows"),
    # growth
    (
        f"RAM usage is monotonically increasing over the epochs\n{WORKER.format('Killed')}",
        "host_growth",
    ),
    ("内存占用越来越高，最后进程被杀\nKilled", "host_growth"),
    (f"The memory of the GPU was increasing with every step.\n{BARE}", "memory_grows"),
    # images and videos
    (f"Got an OOM, unloading all loaded models.\n{BARE}", "input_too_large"),
    (f"Wan 2.2, 121 frames at 1280x720, VAE decoding at the end\n{BARE}", "input_too_large"),
    (f"generating a picture of 1536x1536\n{BARE}", "input_too_large"),
    (f"sdxl with --lowvram\n{BARE}", "input_too_large"),
    # one input of an inference
    (
        f"The demo fails even on a single image: inference on a card of 24 GB\n{BARE}",
        "evaluation_keeps_graph",
    ),
    # the batch decides
    (f"A batch size of 16 works, 24 does not\n{BARE}", "activations"),
    (f"Lowering the batch to 2 helps, I want more\n{BARE} batch_size=4 runs", "activations"),
    (f"micro_batch_size=1 works\n{BARE}", "activations"),
    # beside a trainer the engine's share is one thing, the trainer's own step another
    (f"GRPO with vllm colocate, fails in loss.backward()\n{BARE}", "activations"),
    (
        f"verl, rollout.name=vllm: ray::WorkerDict.actor_rollout_update_actor()\n{BARE}",
        "activations",
    ),
    (f"GRPO, vllm wakes up: self.llm.wake_up()\n{BARE}", "vllm_share"),
    # irregular
    (f"OOM happens randomly, once a day or so\n{BARE}", "long_sample"),
    (f"A small subset trains, the whole dataset runs out of memory\n{BARE}", "long_sample"),
    # what every step needs is there from the first one on
    (
        f'It crashed after 27k iterations.\n  File "train.py", line 75, in do_train\n    losses.backward()\n{BARE}',
        "memory_grows",
    ),
    # said not to be a training
    (f"I infer (not train) a protein of 525 residues\n{BARE}", "input_too_large"),
    # boxes and anchors under other names
    (
        f'  File "retina.py", line 249, in assign_targets_to_anchors\n    matched = self.proposal_matcher(\n  File "ops.py", line 157, in box_iou_union_3d\n    inter = overlap * depth\n{BARE}',
        "many_boxes",
    ),
    # a full first card beside empty others
    (f"GPU 0 is full while the other GPUs have 10 GB left\n{BARE}", "all_ranks_on_one_card"),
    # the second run
    (f"The first run of the cell is fine, the second time it fails\n{BARE}", "memory_grows"),
    # ggml without the runtime's line
    ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "loading_the_model"),
    ("llama_kv_cache_init: failed to allocate buffer for kv cache", "kv_cache"),
    (
        "llama_new_context_with_model: n_ctx      = 131072\nggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 51539607584\nllama_kv_cache_init: failed to allocate buffer for kv cache",
        "kv_cache",
    ),
    # Paddle before 1.6
    (
        "Cannot malloc 49.0002 MB GPU memory. Please shrink FLAGS_fraction_of_gpu_memory_to_use",
        "activations",
    ),
    # a layer is being made
    (
        f'Traceback (most recent call last):\n  File "infer.py", line 20, in build\n    model = Net(args)\n  File "/v/lib/python3.10/site-packages/torch/nn/modules/linear.py", line 96, in __init__\n    self.weight = Parameter(torch.empty((out_features, in_features), **factory_kwargs))\n{BARE}',
        "loading_the_model",
    ),
    # an assert in a kernel
    (f"{ASSERTION}\nRuntimeError: CUDA error: device-side assert triggered", "illegal_access"),
)


@pytest.mark.parametrize(("text", "cause"), FIRST)
def test_the_kind_is_known(text: str, cause: str) -> None:
    assert causes(text)[:1] == [cause]


LIBRARIES = (
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
)
PREFIXES = ("", "[rank1]: ", "2026-01-05 10:11:12,345 ERROR train.py: ")


@given(
    st.sampled_from(LIBRARIES),
    st.sampled_from(PREFIXES),
    st.integers(1, 40),
    st.booleans(),
)
def test_after_an_assert_no_library_says_anything_about_memory(
    library: str, prefix: str, threads: int, is_assert_first: bool
) -> None:
    asserts = [f"{prefix}{ASSERTION.replace('[33', f'[{index}')}" for index in range(threads)]
    lines = [*asserts, prefix + library] if is_assert_first else [prefix + library, *asserts]
    diagnosis = answer("\n".join(lines))
    assert [item.name for item in diagnosis.hypotheses] == ["illegal_access"]
    assert {item.step for item in diagnosis.advice} == {"find_the_access"}
    assert {item.rule for item in diagnosis.findings} == {"illegal_access"}
    assert answer_sentences(diagnosis, "en")[0] == "An error that is not about capacity."


@pytest.mark.parametrize("library", LIBRARIES)
def test_without_an_assert_a_full_card_is_likely(library: str) -> None:
    assert causes(library)[0] == "card_full_elsewhere"


@pytest.mark.parametrize(
    "text",
    [
        "We move the models in and out of RAM between the stages to save VRAM.",
        "try:\n    step()\nexcept torch.cuda.OutOfMemoryError:\n    skip()",
        "vm.panic_on_oom = 0, oom_score_adj=0, src/oom.py, --oom-kill-disable",
        "oom=0 in the log of every epoch",
        "java.lang.OutOfMemoryError is what the tracker said last year",
    ],
)
def test_words_that_only_look_alike_are_no_failure_of_a_card(text: str) -> None:
    assert not [item for item in answer(text).reading.observations if item.kind == "gpu_told"]


def test_a_failure_that_is_told_is_no_message_that_was_cut() -> None:
    rules = {item.rule for item in answer("My training runs out of GPU memory").findings}
    assert "gpu_told" in rules
    assert "truncated" not in rules
    assert "truncated" in {item.rule for item in answer(BARE).findings}


def test_a_sentence_that_generates_an_error_is_no_generation() -> None:
    text = f"With more it will generate the following error:\n{BARE}"
    assert "generation_cache" not in causes(text)
    assert "generation_cache" in causes(f"    out = model.generate(**inputs)\n{BARE}")


OOM = "CUDA out of memory. Tried to allocate {request} GiB. GPU 0 has a total capacity of 39.39 GiB of which 0.03 GiB is free. Process 7529 has {process} GiB memory in use."


@given(
    st.floats(0.0, 0.13),
    st.sampled_from(("", " Of the allocated memory", " Of the allocated memory 37.21 GiB is allo")),
)
def test_the_only_process_of_a_cut_message_is_not_told_to_stop(outside: float, cut: str) -> None:
    """Up to 0.13 GiB of a card that one process holds are its driver's: huggingface/text-generation-inference#1374."""
    text = OOM.format(request="0.04", process=f"{39.36 - outside:.2f}") + cut
    assert "free_the_card" not in steps(text)


def test_numbers_are_read_where_a_message_is_cut_inside_a_word() -> None:
    text = (
        OOM.format(request="0.04", process="39.23") + " Of the allocated memory 37.21 GiB is allo"
    )
    (seen,) = answer(text).reading.observations
    assert seen.allocated_bytes == round(37.21 * 2**30)
    text = (
        OOM.format(request="0.04", process="39.23")
        + " Of the allocated memory 36.21 GiB is allocated by PyTorch, and 2.51 GiB is reserv"
    )
    (seen,) = answer(text).reading.observations
    assert seen.unallocated_bytes == round(2.51 * 2**30)


V1 = "RuntimeError: CUDA out of memory. Tried to allocate {} GiB (GPU 0; 23.69 GiB total capacity; {} GiB already allocated; 0.30 GiB free; {} GiB reserved in total by PyTorch)"
ATTENTION = '  File "model.py", line 9, in forward\n    attn_weights = torch.matmul(query, key.transpose(2, 3))\n'


def test_a_cache_that_barely_suffices_comes_after_what_the_failing_line_says() -> None:
    head = f"Traceback (most recent call last):\n{ATTENTION}"
    assert causes(head + V1.format("2.00", "18.00", "20.60"))[:2] == [
        "attention_scores",
        "fragmentation",
    ]
    assert causes(head + V1.format("2.00", "12.00", "22.00"))[0] == "fragmentation"


def test_a_loss_that_is_counted_as_a_number_keeps_no_graph() -> None:
    told = f"It fails after 30-40 epochs. {{}}\n{BARE}"
    assert causes(told.format("total += loss"))[0] == "memory_grows"
    assert causes(told.format("total += loss.item()"))[0] == "long_sample"


def test_a_second_run_of_images_is_told_to_release_the_first() -> None:
    text = f"ComfyUI: the first generation is fine, the second time it fails\n{BARE}"
    assert "release_between_runs" in steps(text)
    assert "stop_keeping_graphs" not in steps(text)
