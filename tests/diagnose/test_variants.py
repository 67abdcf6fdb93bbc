# ruff: noqa: E501 (pasted messages keep their lines)
"""Messages as people really paste them: wordings, wrappings and prefixes beyond the sample files.

Each case names the public thread or source file the wording comes from. Expected figures were read off the text by
eye; a case lists every number the text says about memory.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from vramcast.diagnose.readers.log import read_text

SCALE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 10**9}


def size(text: str) -> int:
    number, unit = text.split()
    return round(Decimal(number) * SCALE[unit])


V2_TAIL = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)

CASES: list[tuple[str, str, list[dict[str, Any]]]] = [
    (
        "OPIXray-author/OPIXray#5",
        '" CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 2.00 GiB total capacity; 788.51 MiB already '
        'allocated; 145.93 MiB free; 1.02 GiB reserved in total by PyTorch)"',
        [{"kind": "torch_cuda_oom_v1", "requested_bytes": "264 MiB", "capacity_bytes": "2 GiB", "free_bytes": "145.93 MiB",
          "allocated_bytes": "788.51 MiB", "reserved_bytes": "1.02 GiB"}],
    ),
    (
        "Self_Explaining_Structures_Improve_NLP_Models#6, the first words missing",
        "Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; 2.88 MiB free; "
        "1.25 GiB reserved in total by PyTorch)",
        [{"requested_bytes": "20 MiB", "capacity_bytes": "1.96 GiB", "allocated_bytes": "1.24 GiB", "free_bytes": "2.88 MiB",
          "reserved_bytes": "1.25 GiB", "place": "cuda:0"}],
    ),
    (
        "Morizeyao/GPT2-Chinese#215, only the bracket, inside a Chinese sentence",
        "(GPU 0; 15.75 GiB total capacity; 79.11 MiB already allocated; 3.62 MiB free; 86.00 MiB reserved in total by "
        "PyTorch)\n我的问题更诡异，说有16G，才用了79M",
        [{"requested_bytes": None, "capacity_bytes": "15.75 GiB", "allocated_bytes": "79.11 MiB", "free_bytes": "3.62 MiB",
          "reserved_bytes": "86 MiB"}],
    ),
    (
        "RenYurui/StructureFlow#35",
        "RuntimeError: CUDA out of memory. Tried to allocate 8.13 GiB (GPU 0; 10.76 GiB total capacity; 643.57 MiB already "
        "allocated; 8.20 GiB free; 32.43 MiB cached)",
        [{"kind": "torch_cuda_oom_legacy_cached", "requested_bytes": "8.13 GiB", "capacity_bytes": "10.76 GiB",
          "allocated_bytes": "643.57 MiB", "free_bytes": "8.20 GiB", "unallocated_bytes": "32.43 MiB"}],
    ),
    (
        "intel/intel-extension-for-pytorch#846: XPU, new wording without free",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 15.11 GiB. Of "
        "the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. Please "
        "use `empty_cache` to release all unoccupied cached memory.",
        [{"kind": "torch_xpu_oom", "place": "xpu:0", "requested_bytes": "8 GiB", "capacity_bytes": "15.11 GiB",
          "free_bytes": None, "allocated_bytes": "0 B", "unallocated_bytes": "0 B", "process_bytes": None}],
    ),
    (
        "intel/torch-xpu-ops#3011",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 GiB of "
        "which 5.65 GiB is free. Of the allocated memory 195.50 KiB is allocated by PyTorch, and 1.81 MiB is reserved by "
        "PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.",
        [{"requested_bytes": "4.66 GiB", "capacity_bytes": "5.65 GiB", "free_bytes": "5.65 GiB",
          "allocated_bytes": "195.50 KiB", "unallocated_bytes": "1.81 MiB"}],
    ),
    (
        "Comfy-Org/ComfyUI#7440: MPS in GiB",
        "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB). Tried to "
        "allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
        "allocations (may cause system failure).",
        [{"kind": "torch_mps_oom", "requested_bytes": "292.50 MiB", "allocated_bytes": "9.57 GiB",
          "allowed_bytes": "27.20 GiB", "capacity_bytes": "27.20 GiB"}],
    ),
    (
        "pinokiocomputer/pinokio#941: bytes, shared pool, GB meaning GiB",
        "MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max allowed: 18.13 GB). Tried to "
        "allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        [{"requested_bytes": "256 B", "allocated_bytes": "16 GiB", "allowed_bytes": "18.13 GiB"}],
    ),
    (
        "torch 2.1 with two neighbours, order of the clauses reversed (c10 CUDACachingAllocator.cpp: order follows NVML)",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 172.00 MiB. GPU 3 has a total capacty of "
        "44.35 GiB of which 17.62 MiB is free. Including non-PyTorch memory, this process has 22.10 GiB memory in use. "
        "Process 11 has 20.00 GiB memory in use. Process 4194304 has 2.21 GiB memory in use. Of the allocated memory "
        "21.50 GiB is allocated by PyTorch, and 105.84 MiB is reserved by PyTorch but unallocated." + V2_TAIL,
        [{"kind": "torch_cuda_oom_v2", "place": "cuda:3", "requested_bytes": "172 MiB", "capacity_bytes": "44.35 GiB",
          "free_bytes": "17.62 MiB", "process_bytes": "22.10 GiB", "allocated_bytes": "21.50 GiB",
          "unallocated_bytes": "105.84 MiB", "others": [(11, "20 GiB"), (4194304, "2.21 GiB")]}],
    ),
    (
        "container: only a foreign pid is printed",
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 3 has a total capacity of "
        "79.15 GiB of which 1.04 GiB is free. Process 2764413 has 78.10 GiB memory in use. Of the allocated memory 74.89 GiB "
        "is allocated by PyTorch, with 72.00 MiB allocated in private pools (e.g., CUDA Graphs), and 1.52 GiB is reserved by "
        "PyTorch but unallocated." + V2_TAIL,
        [{"requested_bytes": "2.32 GiB", "capacity_bytes": "79.15 GiB", "free_bytes": "1.04 GiB", "process_bytes": None,
          "allocated_bytes": "74.89 GiB", "unallocated_bytes": "1.52 GiB", "others": [(2764413, "78.10 GiB")], "rank": 3}],
    ),
    (
        "pasted from an 80-column terminal: lines broken inside words and numbers",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 h\n"
        "as a total capacity of 31.47 GiB of which 12.73 GiB is free. Including non-PyTo\n"
        "rch memory, this process has 18.73 GiB memory in use. Of the allocated memory 9.\n"
        "08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unalloca\n"
        "ted. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_",
        [{"requested_bytes": "22.78 GiB", "capacity_bytes": "31.47 GiB", "free_bytes": "12.73 GiB",
          "process_bytes": "18.73 GiB", "allocated_bytes": "9.08 GiB", "unallocated_bytes": "9.35 GiB"}],
    ),
    (
        "every line carries a rank prefix, and the first words are themselves wrapped",
        "[rank0]: torch.OutOfMemoryError: CUDA out of\n[rank0]: memory. Tried to allocate 1.16 GiB. GPU 0 has a total\n"
        "[rank0]: capacity of 23.64 GiB of which 533.06 MiB is free. Including non-PyTorch\n[rank0]: memory, this process "
        "has 23.11 GiB memory in use. Of the allocated memory\n[rank0]: 21.59 GiB is allocated by PyTorch, and 1.07 GiB is "
        "reserved by PyTorch but\n[rank0]: unallocated.",
        [{"requested_bytes": "1.16 GiB", "capacity_bytes": "23.64 GiB", "free_bytes": "533.06 MiB",
          "process_bytes": "23.11 GiB", "allocated_bytes": "21.59 GiB", "unallocated_bytes": "1.07 GiB", "rank": 0}],
    ),
    (
        "rich traceback box and markdown emphasis",
        "│ OutOfMemoryError: CUDA out of memory. Tried to allocate **96.00 MiB** (GPU 0; │\n"
        "│ 14.75 GiB total capacity; 13.46 GiB already allocated; 64.81 MiB free;        │\n"
        "│ 13.65 GiB reserved in total by PyTorch) If reserved memory is >> allocated    │",
        [{"kind": "torch_cuda_oom_v1", "requested_bytes": "96 MiB", "capacity_bytes": "14.75 GiB",
          "allocated_bytes": "13.46 GiB", "free_bytes": "64.81 MiB", "reserved_bytes": "13.65 GiB"}],
    ),
    (
        "a cap set by set_per_process_memory_fraction (c10: `allowed_info`)",
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 40.27 GiB is free. "
        "Including non-PyTorch memory, this process has 38.87 GiB memory in use. 38.00 GiB allowed; Of the allocated memory "
        "37.42 GiB is allocated by PyTorch, and 590.62 MiB is reserved by PyTorch but unallocated." + V2_TAIL,
        [{"allowed_bytes": "38 GiB", "requested_bytes": "20 MiB", "process_bytes": "38.87 GiB", "free_bytes": "40.27 GiB",
          "capacity_bytes": "79.15 GiB", "allocated_bytes": "37.42 GiB", "unallocated_bytes": "590.62 MiB"}],
    ),
    (
        "the cap printed as 2^64 bytes is no cap",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 MiB. GPU 0 has a total capacty of 8.00 GiB "
        "of which 0 bytes is free. 17179869184.00 GiB allowed; Of the allocated memory 7.20 GiB is allocated by PyTorch, and "
        "57.05 MiB is reserved by PyTorch but unallocated.",
        [{"allowed_bytes": None, "requested_bytes": "14 MiB", "capacity_bytes": "8 GiB", "free_bytes": "0 B",
          "allocated_bytes": "7.20 GiB", "unallocated_bytes": "57.05 MiB"}],
    ),
    (
        "two messages in one file, and one of them twice",
        "RuntimeError: CUDA out of memory. Tried to allocate 32.00 MiB (GPU 0; 7.79 GiB total capacity; 6.64 GiB already "
        "allocated; 21.00 MiB free; 150.86 MiB cached)\nepoch 2\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 1; 44.99 GiB total capacity; 6.15 GiB already "
        "allocated; 37.32 GiB free; 6.15 GiB reserved in total by PyTorch)\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 1; 44.99 GiB total capacity; 6.15 GiB already "
        "allocated; 37.32 GiB free; 6.15 GiB reserved in total by PyTorch)\n",
        [{"requested_bytes": "32 MiB", "unallocated_bytes": "150.86 MiB", "count": 1},
         {"requested_bytes": "128 MiB", "place": "cuda:1", "free_bytes": "37.32 GiB", "count": 2}],
    ),
    (
        "cut in the middle of v2 (c10d error files keep the first 200 characters)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 1 has a total capacity of 47.41 GiB of "
        "which 611.25 MiB is free. Including non-PyTorch memory, this pro\nTraceback (most recent call last):\n  12.00 GiB free",
        [{"requested_bytes": "786 MiB", "capacity_bytes": "47.41 GiB", "free_bytes": "611.25 MiB", "process_bytes": None,
          "allocated_bytes": None}],
    ),
    (
        "Windows CPU allocator: ristea/sspcab#11",
        r"RuntimeError: [enforce fail at C:\actions-runner\_work\pytorch\pytorch\builder\windows\pytorch\c10\core\impl"
        r"\alloc_cpu.cpp:72] data. DefaultCPUAllocator: not enough memory: you tried to allocate 274877906944 bytes.",
        [{"kind": "host_alloc_fail", "place": "host", "requested_bytes": "274877906944 B"}],
    ),
    (
        "old torch: thuml/Xlearn#6",
        "RuntimeError: $ Torch: not enough memory: you tried to allocate 0GB. Buy new RAM! at /pytorch/torch/lib/TH/THGeneral.c:270",
        [{"kind": "host_alloc_fail", "requested_bytes": None}],
    ),
    (
        "numpy.core._exceptions (numpy source)",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 1.86 GiB for an array with shape (500000, 500) and data "
        "type float64",
        [{"kind": "host_alloc_fail", "requested_bytes": "1.86 GiB"}],
    ),
    (
        "chrisknewman/tusas#149: slurm",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: nid001277: tasks 1-3: Out Of Memory",
        [{"kind": "host_oom_kill", "place": "host"}, {"kind": "host_oom_kill"}],
    ),
    (
        "lanl/PyBNF#118: older slurm",
        "slurmstepd: error: Detected 2 oom-kill event(s) in step 3756240.batch cgroup.",
        [{"kind": "host_oom_kill"}],
    ),
    (
        "kubectl describe pod",
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137",
        [{"kind": "host_oom_kill", "count": 1}, {"kind": "host_oom_kill", "count": 1}],
    ),
    (
        "torchrun",
        "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 0 (pid: 2471) of binary",
        [{"kind": "host_oom_kill"}],
    ),
    (
        "Linux kernel, whole machine",
        "[12345.678] Out of memory: Killed process 4711 (python3) total-vm:98304000kB, anon-rss:61440000kB, file-rss:1024kB, "
        "shmem-rss:2048kB, UID:1000 pgtables:1kB oom_score_adj:0",
        [{"kind": "host_oom_kill", "process_bytes": f"{(61440000 + 1024 + 2048) * 1024} B"}],
    ),
    (
        "NCCL shared memory, newer words (nccl/src/misc/shmutils.cc)",
        "node1:77:90 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-8RMaY2 to 33030532 bytes",
        [{"kind": "host_shm", "place": "shm", "requested_bytes": "33030532 B"}],
    ),
    (
        "DataLoader worker (torch/utils/data/dataloader.py)",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        [{"kind": "host_shm", "requested_bytes": None}],
    ),
    (
        "axolotl-ai-cloud/axolotl#354: first form, megabytes of the whole device",
        "[2023-08-09 08:13:36,085] [INFO] [axolotl.scripts.train:254] [PID:741158] GPU memory baseline: 322 MB.\n"
        "[2023-08-09 08:14:41,233] [INFO] [axolotl.callbacks.on_step_end:95] [PID:741158] GPU memory while training: 21573 MB.",
        [{"kind": "axolotl_log", "used_bytes": "322 MiB"}, {"used_bytes": "21573 MiB"}],
    ),
    (
        "axolotl without a cache part",
        "[2023-09-08 21:47:18,500] [INFO] [axolotl.load_tokenizer] GPU memory usage baseline: 0.000GB (+0.674GB misc)",
        [{"kind": "axolotl_log", "allocated_bytes": "0 B", "figures": {"misc": "0.674 GiB"}}],
    ),
    (
        "OEvortex/unsloth#6 and the notebooks' last cell",
        "GPU = NVIDIA H100 80GB HBM3. Max memory = 79.189 GB.\n7.783 GB of memory reserved.\n"
        "Peak reserved memory = 14.605 GB.\nPeak reserved memory for training = 6.822 GB.\n"
        "Peak reserved memory % of max memory = 18.443 %.\nPeak reserved memory for training % of max memory = 8.615 %.",
        [{"kind": "unsloth_log", "capacity_bytes": "79.189 GiB", "reserved_bytes": "7.783 GiB",
          "peak_reserved_bytes": "14.605 GiB", "figures": {"reserved for training": "6.822 GiB"}}],
    ),
    (
        "unslothai/unsloth#1289: MLX",
        "Iter 1: Train loss 3.202, Learning Rate 0.000e+00, It/sec 0.471, Tokens/sec 90.428, Trained Tokens 192, Peak mem 5.404 GB",
        [{"kind": "mlx_log", "allocated_bytes": "5.404 GB"}],
    ),
    (
        "NVIDIA/Megatron-LM megatron/training/utils.py, another layout of numbers",
        "[Rank 7] (after 2 iterations) memory (MB) | allocated: 27218.27392578125 | max allocated: 53817.36083984375 | reserved: "
        "61364.0 | max reserved: 61364.0",
        [{"kind": "megatron_log", "rank": 7, "allocated_bytes": "27218.27392578125 MiB",
          "peak_allocated_bytes": "53817.36083984375 MiB", "reserved_bytes": "61364 MiB", "peak_reserved_bytes": "61364 MiB"}],
    ),
    (
        "Megatron theoretical, upstream words",
        " > Number of parameters in most loaded shard in billions: 1.7335\n"
        "Theoretical memory footprints: weight and optimizer=24802.03 MB, activation=19328.01 MB, total=44130.04 MB",
        [{"kind": "megatron_log", "figures": {"weight and optimizer": "24802.03 MiB", "activation": "19328.01 MiB",
                                              "total": "44130.04 MiB"}}],
    ),
    (
        "MiaAI-Lab GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47: vLLM",
        "ValueError: Free memory on device cuda:1 (101.93/121.69 GiB) on startup is less than desired GPU memory utilization "
        "(0.87, 105.87 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        [{"kind": "vllm_startup", "place": "cuda:1", "free_bytes": "101.93 GiB", "capacity_bytes": "121.69 GiB",
          "requested_bytes": "105.87 GiB"}],
    ),
    (
        "vllm/v1/core/kv_cache_utils.py",
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (12.53 GiB). Based on the available memory, the estimated maximum "
        "model length is 102656.",
        [{"kind": "vllm_startup", "requested_bytes": "16 GiB", "figures": {"kv cache available": "12.53 GiB"}}],
    ),
    (
        "snowflakedb/ArcticTraining#345: nvidia-smi on unified memory",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "|=========================================+========================+======================|\n"
        "|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |\n"
        "| N/A   36C    P8              3W /  N/A  | Not Supported          |      0%      Default |\n",
        [{"kind": "nvidia_smi_text", "place": "cuda:0", "used_bytes": None, "capacity_bytes": None}],
    ),
    (
        "unslothai/unsloth#10283: [N/A] in CSV",
        "memory.free [MiB], memory.total [MiB], memory.used [MiB]\n[N/A], [N/A], [N/A]",
        [{"kind": "nvidia_smi_csv", "free_bytes": None, "capacity_bytes": None, "used_bytes": None}],
    ),
    (
        "nvidia-smi 535+, two cards, processes with GI and CI columns",
        "+---------------------------------------------------------------------------------------+\n"
        "| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |\n"
        "|=========================================+======================+======================|\n"
        "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |                    0 |\n"
        "| N/A   34C    P0              71W / 400W |  78123MiB / 81920MiB |      0%      Default |\n"
        "|                                         |                      |             Disabled |\n"
        "+-----------------------------------------+----------------------+----------------------+\n"
        "|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:0F:00.0 Off |                    0 |\n"
        "| N/A   30C    P0              60W / 400W |      7MiB / 81920MiB |      0%      Default |\n"
        "|                                         |                      |             Disabled |\n"
        "+-----------------------------------------+----------------------+----------------------+\n"
        "\n"
        "+---------------------------------------------------------------------------------------+\n"
        "| Processes:                                                                            |\n"
        "|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |\n"
        "|        ID   ID                                                             Usage      |\n"
        "|=======================================================================================|\n"
        "|    0   N/A  N/A     12345      C   /opt/conda/bin/python                     78100MiB |\n"
        "+---------------------------------------------------------------------------------------+\n",
        [{"kind": "nvidia_smi_text", "place": "cuda:0", "used_bytes": "78123 MiB", "capacity_bytes": "81920 MiB",
          "others": [(12345, "78100 MiB")]},
         {"place": "cuda:1", "used_bytes": "7 MiB", "capacity_bytes": "81920 MiB"}],
    ),
    (
        "torch.cuda.memory_summary() of torch 2 (torch/cuda/memory.py)",
        "|                  PyTorch CUDA memory summary, device ID 1                 |\n"
        "|---------------------------------------------------------------------------|\n"
        "|            CUDA OOMs: 1            |        cudaMalloc retries: 3         |\n"
        "|===========================================================================|\n"
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
        "| Allocated memory      |  22118 MiB |  22119 MiB |    117 GiB |     95 GiB |\n"
        "| Active memory         |  22118 MiB |  22119 MiB |    117 GiB |     95 GiB |\n"
        "| Requested memory      |  22101 MiB |  22102 MiB |    116 GiB |     95 GiB |\n"
        "| GPU reserved memory   |  22748 MiB |  22748 MiB |  24000 MiB |   1252 MiB |\n"
        "| Non-releasable memory |  82432 KiB |    629 MiB |  31000 MiB |  30900 MiB |\n"
        "| Oversize allocations  |       0    |       0    |       0    |       0    |\n",
        [{"kind": "torch_memory_summary", "place": "cuda:1", "allocated_bytes": "22118 MiB",
          "peak_allocated_bytes": "22119 MiB", "reserved_bytes": "22748 MiB", "peak_reserved_bytes": "22748 MiB"}],
    ),
    (
        "torch.cuda.list_gpu_processes() (torch/cuda/memory.py)",
        "GPU:0\nprocess    3109520 uses    12487.000 MB GPU memory\nprocess     990127 uses      871.500 MB GPU memory",
        [{"kind": "torch_gpu_processes", "place": "cuda:0", "others": [(3109520, "12487 MiB"), (990127, "871.5 MiB")]}],
    ),
    (
        "JAX, newer words: human-readable size",
        "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8.50GiB.",
        [{"kind": "jax_gpu_oom", "requested_bytes": "8.5 GiB"}],
    ),
    (
        "JAX on TPU at run time",
        "RESOURCE_EXHAUSTED: Attempting to reserve 12.40G at the bottom of memory. That was not possible. There are 5.60G free, "
        "0B reserved, and 5.60G reservable.",
        [{"requested_bytes": "12.40 GiB", "free_bytes": "5.60 GiB"}],
    ),
    (
        "TensorFlow BFC, a real failure",
        "2021-03-01 10:00:00.0: W tensorflow/core/common_runtime/bfc_allocator.cc:433] Allocator (GPU_0_bfc) ran out of memory "
        "trying to allocate 392.00MiB (rounded to 411041792)requested by op model/dense/MatMul",
        [{"kind": "tf_bfc", "moment": "failure", "requested_bytes": "392 MiB"}],
    ),
    (
        "CUDA runtime through PyTorch",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        [{"kind": "cuda_runtime_oom", "requested_bytes": None}],
    ),
    (
        "NCCL, newer: returnn#1626 and nccl/src/include/alloc.h",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 10485760 bytes",
        [{"kind": "masked_oom", "requested_bytes": "10485760 B"}],
    ),
    (
        "cuDNN",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        [{"kind": "masked_oom"}],
    ),
    (
        "gpustat README, with users and a pid",
        "[1] GeForce GTX TITAN X | 77'C,  96 % | 11848 / 12287 MB | user1:python/1234(11838M) gdm(10M)",
        [{"kind": "gpustat", "place": "cuda:1", "used_bytes": "11848 MiB", "capacity_bytes": "12287 MiB",
          "others": [(1234, "11838 MiB"), (None, "10 MiB")]}],
    ),
    (
        "torchtitan with colours and a tqdm bar before it on the same line",
        "  1%|          | 10/1000 [00:10<10:00]\r\x1b[32m[titan] step: 10\x1b[0m  memory: \x1b[36m39.06GiB(41.12%)\x1b[0m",
        [{"kind": "torchtitan_log", "reserved_bytes": "39.06 GiB"}],
    ),
    (
        "DeepSpeed ThroughputTimer, whole line",
        "[2023-08-16 10:14:08,115] [INFO] [timer.py:199:stop] epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=4.5, "
        "CurrSamplesPerSec=4.6, MemAllocated=17.94GB, MaxMemAllocated=54.06GB",
        [{"kind": "deepspeed_log", "allocated_bytes": "17.94 GiB", "peak_allocated_bytes": "54.06 GiB"}],
    ),
    (
        "HF Trainer metrics, the whole set",
        "***** train metrics *****\n  before_init_mem_cpu = 1000MB\n  before_init_mem_gpu = 312MB\n"
        "  init_mem_gpu_alloc_delta = 1000MB\n  init_mem_gpu_peaked_delta = 0MB\n  train_mem_gpu_alloc_delta = 2000MB\n"
        "  train_mem_gpu_peaked_delta = 3000MB\n",
        [{"kind": "hf_trainer_metrics", "allocated_bytes": "6312 MiB", "figures": {"init_mem_gpu_alloc_delta": "1000 MiB"}}],
    ),
    (
        "torchtune, later form",
        "Memory stats after model init:\n\tGPU peak memory allocation: 15.01 GiB\n\tGPU peak memory reserved: 15.23 GiB\n"
        "\tGPU peak memory active: 15.01 GiB",
        [{"kind": "torchtune_log", "allocated_bytes": "15.01 GiB", "reserved_bytes": "15.23 GiB"}],
    ),
    (
        "a user's own print of torch's counters",
        "torch.cuda.memory_allocated: 1.500000GiB\ntorch.cuda.max_memory_reserved: 3.25 GiB",
        [{"kind": "torch_counters", "allocated_bytes": "1.5 GiB", "peak_reserved_bytes": "3.25 GiB"}],
    ),
    (
        "axolotl-ai-cloud/axolotl#1813: wrapped by a terminal, and the device number missing (torch 2.3)",
        "[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU  has a to\n"
        "tal capacity of 23.67 GiB of which 1.59 GiB is free. Including non-PyTorch memory, this process has\n"
        " 22.06 GiB memory in use. Of the allocated memory 19.75 GiB is allocated by PyTorch, and 1.78 GiB i\n"
        "s reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTO",
        [{"kind": "torch_cuda_oom_v2", "place": "cuda", "requested_bytes": "2 GiB", "capacity_bytes": "23.67 GiB",
          "free_bytes": "1.59 GiB", "process_bytes": "22.06 GiB", "allocated_bytes": "19.75 GiB", "unallocated_bytes": "1.78 GiB"}],
    ),
    (
        "huggingface/text-generation-inference#563: cudaMallocAsync inside a Rust panic, line ends escaped",
        "thread 'main' panicked at 'Unable to warmup model: Generation(\"Allocation on device 0 would exceed allowed memory. "
        "(out of memory)\\nCurrently allocated     : 16.08 GiB\\nRequested               : 4.83 GiB\\nDevice limit            : "
        "22.20 GiB\\nFree (according to CUDA): 11.12 MiB\\nPyTorch limit (set by user-supplied memory fraction)\\n"
        "                        : 22.20 GiB\")', router/src/main.rs:216:18",
        [{"kind": "torch_cudamallocasync_oom", "allocated_bytes": "16.08 GiB", "requested_bytes": "4.83 GiB",
          "capacity_bytes": "22.20 GiB", "free_bytes": "11.12 MiB", "allowed_bytes": "22.20 GiB"}],
    ),
    (
        "karpathy/nanoGPT#236: the brackets lost, broken into lines",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB \nGPU 0; 8.00 GiB total capacity; 7.20 GiB "
        "already allocated; 0 bytes free; 7.30 GiB reserved in total by PyTorch\nIf reserved memory is >> allocated memory",
        [{"kind": "torch_cuda_oom_v1", "place": "cuda:0", "requested_bytes": "20 MiB", "capacity_bytes": "8 GiB",
          "allocated_bytes": "7.20 GiB", "free_bytes": "0 B", "reserved_bytes": "7.30 GiB"}],
    ),
    (
        "linkedin/Liger-Kernel#47: this process has 2^64 bytes (WSL)",
        "E       torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of "
        "8.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of "
        "the allocated memory 13.67 GiB is allocated by PyTorch, and 9.62 MiB is reserved by PyTorch but unallocated.",
        [{"process_bytes": None, "requested_bytes": "1.95 GiB", "capacity_bytes": "8 GiB", "free_bytes": "0 B",
          "allocated_bytes": "13.67 GiB", "unallocated_bytes": "9.62 MiB"}],
    ),
    (
        "huggingface/trl#5207: four processes, none called this one",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 76.00 MiB. GPU 0 has a total capacity of 14.74 GiB of "
        "which 42.19 MiB is free. Process 21219 has 284.00 MiB memory in use. Process 21222 has 3.40 GiB memory in use. Process "
        "21213 has 258.00 MiB memory in use. Process 21216 has 10.77 GiB memory in use. Of the allocated memory 10.59 GiB is "
        "allocated by PyTorch, and 42.18 MiB is reserved by PyTorch but unallocated." + V2_TAIL,
        [{"requested_bytes": "76 MiB", "free_bytes": "42.19 MiB", "process_bytes": None, "allocated_bytes": "10.59 GiB",
          "others": [(21219, "284 MiB"), (21222, "3.40 GiB"), (21213, "258 MiB"), (21216, "10.77 GiB")]}],
    ),
    (
        "meta-llama/llama-cookbook#142: MemoryTrace, whole GiB printed as GB",
        "Max CUDA memory allocated was 31 GB\nMax CUDA memory reserved was 39 GB\nPeak active CUDA memory was 31 GB\n"
        "CUDA Malloc retries : 0\nCPU Total Peak Memory consumed during the train (max): 153 GB",
        [{"kind": "llama_recipes_log", "allocated_bytes": "31 GiB", "reserved_bytes": "39 GiB"},
         {"kind": "peft_tracemalloc", "place": "host", "process_bytes": "153 GiB"}],
    ),
    (
        "pytorch/pytorch#104143: llama-recipes, per step",
        "reserved memory is 16.5977 and allocated memory is 3.4781",
        [{"kind": "llama_recipes_log", "reserved_bytes": "16.5977 GiB", "allocated_bytes": "3.4781 GiB"}],
    ),
    (
        "meta-llama/llama-cookbook#45: an absurd size",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        [{"kind": "torch_cuda_oom_truncated", "requested_bytes": None}],
    ),
    (
        "huggingface/transformers#47029: AWS Neuron",
        "RuntimeError: NRT allocation failed for size 233658313344 (OOM)",
        [{"kind": "neuron_oom", "requested_bytes": "233658313344 B"}],
    ),
    (
        "bitsandbytes-foundation/bitsandbytes#758: under a rich box, wrapped after `already`",
        "╰──────────────────────────────────────────────────────────────────────────────────────────────────╯\n"
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB (GPU 0; 8.00 GiB total capacity; 12.19 GiB already\n"
        "allocated; 0 bytes free; 12.68 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting",
        [{"requested_bytes": "1024 MiB", "capacity_bytes": "8 GiB", "allocated_bytes": "12.19 GiB", "free_bytes": "0 B",
          "reserved_bytes": "12.68 GiB"}],
    ),
    (
        "vLLM lab notes in a public repository: the sentence wrapped in front and behind",
        "ValueError: To serve at least one request with the model's max seq len (700160),\n"
        "(6.11 GiB KV cache is needed, which is larger than the available KV cache memory\n"
        "(5.17 GiB). Based on the available memory, the estimated maximum model length is 566784.",
        [{"kind": "vllm_startup", "moment": "failure", "requested_bytes": "6.11 GiB", "figures": {"kv cache available": "5.17 GiB"}}],
    ),
    (
        "vLLM 0.8: GB printed for GiB",
        "ValueError: To serve at least one request with the models's max seq len (32768), (2.00 GB KV cache is needed, which is "
        "larger than the available KV cache memory (0.78 GB). Try increasing `gpu_memory_utilization`",
        [{"requested_bytes": "2 GiB", "figures": {"kv cache available": "0.78 GiB"}}],
    ),
    (
        "vLLM: older words, tokens instead of bytes",
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache "
        "(26064). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        [{"kind": "vllm_startup", "moment": "failure", "figures": {"max seq len": "32768 B", "tokens in kv cache": "26064 B"}}],
    ),
    (
        "slurm without cgroups: KiB above KiB",
        "slurmstepd: error: Job 4242 exceeded memory limit (67113580 > 67108864), being killed",
        [{"kind": "host_oom_kill", "used_bytes": f"{67113580 * 1024} B", "allowed_bytes": "64 GiB"}],
    ),
    (
        "seff",
        "State: OUT_OF_MEMORY (exit code 0)\nMemory Utilized: 62.34 GB\nMemory Efficiency: 97.41% of 64.00 GB",
        [{"kind": "host_oom_kill"}, {"kind": "slurm_seff", "used_bytes": "62.34 GiB", "allowed_bytes": "64 GiB"}],
    ),
    (
        "JAX with peak buffers (xla buffer_assignment.cc)",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 30064771072 bytes.\n"
        "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:   10.00GiB\n"
        "                 total allocation:   38.00GiB\nPeak buffers:\n\tBuffer 1:\n\t\tSize: 14.00GiB\n"
        "\t\tOperator: op_name=\"x\"\n\t\tShape: f32[8,4096]\n\t\t==========================\n\tBuffer 2:\n\t\tSize: 512.00MiB\n",
        [{"kind": "jax_gpu_oom", "requested_bytes": "30064771072 B",
          "figures": {"total allocation": "38 GiB", "buffer 1": "14 GiB", "buffer 2": "512 MiB"}}],
    ),
    (
        "an Ascend note in Chinese: NPU message broken over three lines",
        "    RuntimeError: NPU out of memory. Tried to allocate 31.67 GiB\n      (NPU 0; 32.00 GiB total capacity; 6.30 GiB already "
        "allocated;\n       24.39 GiB free; 6.55 GiB reserved in total by PyTorch)\n31.67 GiB = 2000 × 361",
        [{"kind": "torch_npu_oom", "place": "npu:0", "requested_bytes": "31.67 GiB", "capacity_bytes": "32 GiB",
          "allocated_bytes": "6.30 GiB", "free_bytes": "24.39 GiB", "reserved_bytes": "6.55 GiB"}],
    ),
    (
        "ComfyUI: cudaMallocAsync cut to its first words",
        "torch.OutOfMemoryError: Allocation on device \nThis error means you ran out of memory on your GPU.",
        [{"kind": "torch_cudamallocasync_oom", "requested_bytes": None}],
    ),
    (
        "TensorFlow on CUDA (stream_executor), the exact size in brackets",
        "E tensorflow/stream_executor/cuda/cuda_driver.cc:936] failed to allocate 2.20G (2362232064 bytes) from device: "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        [{"kind": "cuda_runtime_oom", "requested_bytes": "2362232064 B"}],
    ),
    (
        "sacct, the state cut to ten letters",
        "4242.batch        batch  OUT_OF_ME+    0:125",
        [{"kind": "host_oom_kill"}],
    ),
    (
        "NumPy as it really prints a round size (numpy 2, made here)",
        "MemoryError: Unable to allocate 728. TiB for an array with shape (10000000, 10000000) and data type float64",
        [{"kind": "host_alloc_fail", "requested_bytes": f"{728 * 2**40} B"}],
    ),
    (
        "the Hugging Face guide to training on one GPU: what NVML reports",
        "Time: 57.82\nSamples/second: 8.86\nGPU memory occupied: 14949 MB.",
        [{"kind": "hf_gpu_utilization", "used_bytes": "14949 MiB"}],
    ),
    (
        "torch.cuda.memory_stats() as a dict",
        "OrderedDict([('active.all.allocated', 9), ('active_bytes.all.current', 3145728), ('allocated_bytes.all.current', 2097152), "
        "('allocated_bytes.all.peak', 4194304), ('reserved_bytes.all.current', 20971520), ('reserved_bytes.all.peak', 41943040)])",
        [{"kind": "torch_memory_stats", "allocated_bytes": "2 MiB", "peak_allocated_bytes": "4 MiB", "reserved_bytes": "20 MiB",
          "peak_reserved_bytes": "40 MiB", "figures": {"active": "3 MiB"}}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "text", "expected"), CASES, ids=[case[0][:48] for case in CASES]
)
def test_every_number_of_a_pasted_message_is_read(
    source: str, text: str, expected: list[dict[str, Any]]
) -> None:
    observations = read_text(text).observations
    assert len(observations) == len(expected), observations
    for observation, wanted in zip(observations, expected, strict=True):
        for name, value in wanted.items():
            if name == "others":
                found = [(other.pid, other.nbytes) for other in observation.other_processes or ()]
                assert found == [(pid, size(nbytes)) for pid, nbytes in value]
            elif name == "figures":
                for label, figure in value.items():
                    assert observation.figure(label) == size(figure), label
            elif name.endswith("_bytes"):
                assert getattr(observation, name) == (None if value is None else size(value)), name
            else:
                assert str(getattr(observation, name)) == str(value), name
