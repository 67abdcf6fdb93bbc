# ruff: noqa: E501 (messages keep their lines)
"""Failures in the words of many programs: what is recognised, and the cause that is named first. Written for this test."""

from __future__ import annotations

import pytest

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.readers.log import read_stream, read_text
from vramcast.report import diagnose_text
from vramcast.report.words import LANGUAGES

FULL = "GPU 0 has a total capacity of 23.57 GiB of which 90.06 MiB is free."


def answer(text: str) -> Diagnosis:
    diagnosis = diagnose(read_text(text))
    assert all(diagnose_text.render(diagnosis, lang=lang) for lang in LANGUAGES)
    return diagnosis


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        # the exception's name alone
        ("OutOfMemoryError                          Traceback (most recent call last)", "activations"),
        ("Caught OutOfMemoryError in replica 1 on device 1.", "activations"),
        ("!!! Exception during processing !!! Allocation on device ", "activations"),
        ("训练报错 CUDA out of memmory", "activations"),
        # a full card under other names
        ("RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", "card_full_elsewhere"),
        ("F0101 10:00:00.1 77 blob.cpp:12] Check failed: error == cudaSuccess (2 vs. 0)  out of memory", "activations"),
        ("ValueError: Some modules are dispatched on the CPU or the disk.", "loading_the_model"),
        ("Device(id:0) memory isn't enough and alloc failed, kernel name: conv", "activations"),
        # launchers and shells
        ("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL", "host_memory"),
        ("job ended with exit status: 137", "host_memory"),
        ("{'returncode': -9}", "host_memory"),
        ("run.sh: 行 3: 4711 已杀死 python main.py\n已杀死", "host_memory"),
        ("Your session crashed after using all available RAM.", "host_memory"),
        ("exitcode  : -7 (pid: 4242)", "shared_memory"),
        ("DataLoader worker (pid 88) is killed by signal: Killed.", "host_workers"),
        ("RuntimeError: DataLoader worker (pid(s) 7, 9) exited unexpectedly", "shared_memory"),
        # Windows and NumPy
        ("OSError: [WinError 1455] 页面文件太小，无法完成操作。", "page_file"),
        ("The paging file is too small for this operation to complete. (os error 1455)", "page_file"),
        ("Unable to allocate 9.00 GiB for an array with shape (1, 2, 3) and data type int64", "host_array"),
        ("Your notebook tried to allocate more memory than is available. It has restarted.", "host_memory"),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "host_limit"),
        ("=>> PBS: job killed: vmem 41964kb exceeded limit 40000kb", "host_limit"),
        ("Error: model requires more system memory (5.6 GiB) than is available (3.3 GiB)", "host_memory"),
        ("The kernel appears to have died. It will restart automatically.", "host_memory"),
        # other programs' own words for a full card
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,000,000 bytes (allocated so far: 2,000,000 bytes).", "activations"),
        ("ERROR: Out of GPU memory trying to allocate 1.500 GiB", "activations"),
        ("Native API returns: -39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "activations"),
        ("RuntimeError: No executable batch size found, reached zero.", "model_states"),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "no_room_for_cache"),
        ("CUDA out of memory occurred when warming up sampler with 256 dummy requests.", "server_buffers"),
        # not memory
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.", "on_chip_memory"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "illegal_access"),
        ("OSError: [Errno 28] No space left on device: '/root/.cache/x'", "disk_full"),
        ("RuntimeError: received 0 items of ancdata", "open_files"),
        ("OSError: [Errno 24] Too many open files: '/dev/null'", "open_files"),
        ("RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode", "open_files"),
        ("SignalException: Process 99 got signal: 1", "not_memory"),
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "not_memory"),
    ],
)  # fmt: skip
def test_the_first_cause_of_one_line(text: str, cause: str) -> None:
    assert answer(text).hypotheses[0].name == cause


@pytest.mark.parametrize(
    ("around", "cause"),
    [
        ("python -m vllm.entrypoints.openai.api_server --model m --gpu-memory-utilization 0.97", "vllm_share"),
        ("Exception: Capture cuda graph failed (sglang)", "server_buffers"),
        ("llama_kv_cache_init: CUDA0 KV buffer size = 900 MiB\nfailed to create context", "kv_cache"),
        ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", "loading_the_model"),
        ("upscaling photo.png with Real-ESRGAN, scale 4", "input_too_large"),
        ("[INFO] predicting target of 1402 residues, pLDDT 80", "input_too_large"),
        ('  File "models/al.py", line 3, in forward\n    pairwise_iou(boxes, anchors)', "many_boxes"),
        ('  File "scene.py", line 9, in loadCam\n    return Camera(image)', "dataset_on_gpu"),
        ('  File "run.py", line 9, in decode\n    video = vae.decode(latents)', "input_too_large"),
        ("GPU memory usage keeps growing during training", "memory_grows"),
        ("训练时显存一直上涨", "memory_grows"),
        ("it fails during the evaluation phase of the training", "evaluation_gathers"),
        ("full fine-tuning of all weights", "model_states"),
        ("还是不行，批次大小改为 1 也一样，全量训练", "model_states"),
        ('  File "x/accelerate/utils/operations.py", line 7, in _convert_to_fp32\n    return tensor.float()', "logits"),
        ('  File "x/transformers/modeling_utils.py", line 7, in _load_state_dict_into_meta_model\n    f()', "loading_the_model"),
    ],
)  # fmt: skip
def test_what_stands_around_a_message_tells_its_cause(around: str, cause: str) -> None:
    text = f"{around}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. {FULL}"
    assert answer(text).hypotheses[0].name == cause


@pytest.mark.parametrize(
    ("around", "cause"),
    [
        ("python train.py --data_device cuda", "dataset_on_gpu"),
        ("python train.py --data_device cpu", "activations"),
        ("--rlhf_type grpo --use_vllm true --vllm_mode colocate", "vllm_share"),
        ("--rlhf_type grpo --use_vllm false", "activations"),
        ("predict_results = trainer.predict(test_set) # after training", "evaluation_gathers"),
    ],
)
def test_a_switch_that_is_off_says_nothing(around: str, cause: str) -> None:
    text = f"{around}\nCUDA out of memory. Tried to allocate 512.00 MiB. {FULL}"
    assert answer(text).hypotheses[0].name == cause


def test_a_kill_while_loading_is_told_from_one_after_it() -> None:
    bar = "Loading checkpoint shards:  {percent}%|███   | {done}/4 [00:09<00:09,  4.1s/it]"
    loading = answer(bar.format(percent=25, done=1) + "Killed")
    assert loading.hypotheses[0].name == "host_load"
    after = answer(bar.format(percent=100, done=4) + "\nKilled")
    assert after.hypotheses[0].name == "host_memory"


def test_one_large_tensor_of_a_program_that_only_runs_models_is_its_input() -> None:
    text = "python demo.py --input photo.png\nCUDA out of memory. Tried to allocate 5.00 GiB (GPU 0; 24.00 GiB total capacity; 18.00 GiB already allocated; 3.20 GiB free; 18.20 GiB reserved in total by PyTorch)"
    assert answer(text).hypotheses[0].name == "input_too_large"
    assert "chunked_loss" not in {item.step for item in answer(text).advice}


def test_a_bare_message_names_the_two_halves_that_remain() -> None:
    text = f"CUDA out of memory. Tried to allocate 512.00 MiB. {FULL}"
    assert [item.name for item in answer(text).hypotheses] == ["activations", "model_states"]


def test_host_memory_that_fails_after_many_steps_has_grown() -> None:
    kill = "python: line 5:  812 Killed"
    assert answer(kill).hypotheses[0].name == "host_memory"
    assert answer(f"it runs for 3000 iterations, then\n{kill}").hypotheses[0].name == "host_growth"


def test_the_allocators_warning_has_its_numbers() -> None:
    line = (
        "[W1 12:00:00 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 3 while trying to "
        "allocate 41943040 bytes (free: 20971520, total: 25769803776)."
    )
    (seen,) = read_text(line).observations
    assert (seen.requested_bytes, seen.free_bytes, seen.capacity_bytes) == (
        41943040,
        20971520,
        25769803776,
    )
    assert seen.place == "cuda:3"


def test_a_name_is_not_counted_next_to_its_own_message() -> None:
    text = f"OutOfMemoryError      Traceback (most recent call last)\n<cell> in f\nOutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {FULL}"
    assert len(read_text(text).observations) == 1
    assert not read_text("except torch.cuda.OutOfMemoryError:\n").observations
    assert not read_text("java.lang.OutOfMemoryError: Java heap space\n").observations


def test_frames_of_the_failing_rank_only() -> None:
    text = (
        '[rank0]:   File "a.py", line 1, in save_checkpoint\n[rank1]:   File "b.py", line 2, in lm_head_loss\n'
        "[rank0]:     torch.save(x)\n[rank1]:     cross_entropy(x, y)\n"
        f"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. {FULL}\n"
    )
    assert [frame.function for frame in read_text(text).frames] == ["lm_head_loss"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_read_with_and_without_its_mark(encoding: str) -> None:
    import io

    text = f"CUDA out of memory. Tried to allocate 512.00 MiB. {FULL}\r\n"
    (seen,) = read_stream(io.BytesIO(text.encode(encoding))).observations
    assert seen.requested_bytes == 512 * 2**20


def test_a_full_disk_beside_a_full_card_is_not_the_cause() -> None:
    text = f"OSError: [Errno 28] No space left on device: 'x.log'\nCUDA out of memory. Tried to allocate 1.00 GiB. {FULL}"
    names = [item.name for item in answer(text).hypotheses]
    assert names[0] == "activations"
    assert names[-1] == "disk_full"


def test_a_process_without_a_name_has_ended() -> None:
    table = (
        "| Processes:                                                       GPU Memory |\n"
        "|    0     31794    C   Unknown Error                                 5371MiB |\n"
        "|    1      7653    C   python                                        5369MiB |\n"
    )
    diagnosis = answer(table)
    assert diagnosis.hypotheses[0].name == "another_process"
    assert "31794" in diagnose_text.render(diagnosis)
