# ruff: noqa: E501 (pasted messages keep their lines)
"""Texts of the same kinds, in about the same proportion, as the sample files; none of them is a sample or in a test.

From public threads and files, taken where they differ from each other in wording or in how they were pasted, and every
number read off by eye before the reader had seen any. `also` are printed numbers that have no field of their own.
"""

from __future__ import annotations

from typing import Any

from held_back_wordings import Statement, Wording

HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
OLD_HINT = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation "
    "for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)


def failed(kind: str, place: str, **numbers: Any) -> Statement:
    return _statement(True, kind, place, numbers)


def logged(kind: str, place: str, **numbers: Any) -> Statement:
    return _statement(False, kind, place, numbers)


def _statement(fails: bool, kind: str, place: str, numbers: dict[str, Any]) -> Statement:
    others, also = numbers.pop("others", ()), numbers.pop("also", ())
    figures = {f"{name}_bytes": text for name, text in numbers.items()}
    return Statement(fails=fails, kind=kind, place=place, figures=figures, others=others, also=also)


CUDA: tuple[Wording, ...] = (
    Wording(
        source="pytorch/pytorch#31252: warnings with a progress bar behind each",
        text="WARNING:root:CUDA out of memory. Tried to allocate 1.72 GiB (GPU 0; 10.76 GiB total capacity; 4.01 GiB already allocated; 356.00 MiB free; 5.54 GiB cached)                      | 1/2538 [00:00<?, ?batch/s]\n"
        "WARNING:root:CUDA out of memory. Tried to allocate 1.68 GiB (GPU 0; 10.76 GiB total capacity; 5.65 GiB already allocated; 356.00 MiB free; 3.90 GiB cached)              | 2/2538 [00:01<53:05,  1.26s/batch]\n",
        says=(
            failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="1.72 GiB", capacity="10.76 GiB", allocated="4.01 GiB", free="356 MiB", unallocated="5.54 GiB"),
            failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="1.68 GiB", capacity="10.76 GiB", allocated="5.65 GiB", free="356 MiB", unallocated="3.90 GiB"),
        ),
    ),
    Wording(
        source="singhsourabh/Resume-NER#4: the closing bracket missing",
        text="RuntimeError: CUDA out of memory. Tried to allocate 92.00 MiB (GPU 0; 1.96 GiB total capacity; 1.46 GiB already allocated; 16.38 MiB free; 1.51 GiB reserved in total by PyTorch\n",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="92 MiB", capacity="1.96 GiB", allocated="1.46 GiB", free="16.38 MiB", reserved="1.51 GiB"),),
    ),
    Wording(
        source="JiaweiLian/AP-PA#3: quoted in a Chinese thread",
        text="在复现的训练过程中多次遇到类似报错，如：\n> RuntimeError: CUDA out of memory. Tried to allocate 2.81 GiB (GPU 0; 23.69 GiB total capacity; 16.12 GiB already allocated; 374.94 MiB free; 19.00 GiB reserved in total by PyTorch)" + OLD_HINT,
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="2.81 GiB", capacity="23.69 GiB", allocated="16.12 GiB", free="374.94 MiB", reserved="19 GiB"),),
    ),
    Wording(
        source="NVIDIA/Megatron-LM#525: between quotation marks",
        text='"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB (GPU 0; 31.74 GiB total capacity; 28.82 GiB already allocated; 577.12 MiB free; 29.97 GiB reserved in total by PyTorch)' + OLD_HINT + '"',
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="786 MiB", capacity="31.74 GiB", allocated="28.82 GiB", free="577.12 MiB", reserved="29.97 GiB"),),
    ),
    Wording(
        source="nianticlabs/monodepth2#236: a debugger's exception, the frames behind it",
        text='Exception has occurred: RuntimeError\nCUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 2.81 GiB already allocated; 25.38 MiB free; 3.06 GiB reserved in total by PyTorch)\n  File "/media/cvlab/cvlab1/hamza/ETRI/codes/monodepth2/layers.py", line 248, in forward\n    SSIM_d = (mu_x ** 2 + mu_y ** 2 + self.C1) * (sigma_x + sigma_y + self.C2)',
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="20 MiB", capacity="7.93 GiB", allocated="2.81 GiB", free="25.38 MiB", reserved="3.06 GiB"),),
    ),
    Wording(
        source="FoundationVision/GenerateU#10: torch 2.1 in a container",
        text='File "/opt/conda/lib/python3.10/site-packages/torch/nn/modules/linear.py", line 114, in forward\n    return F.linear(input, self.weight, self.bias)\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 MiB is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF',
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="496 MiB", capacity="14.75 GiB", free="235.06 MiB", allocated="14.06 GiB", unallocated="330.42 MiB", others=((20398, "14.52 GiB"),)),),
    ),
    Wording(
        source="RLinf/RLinf#255: this process between two others",
        text="    return self._apply(lambda t: t.cuda(device))\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 264.00 MiB is free. Process 2086283 has 419.48 MiB memory in use. Including non-PyTorch memory, this process has 8.04 GiB memory in use. Process 2797307 has 14.85 GiB memory in use. Of the allocated memory 7.63 GiB is allocated by PyTorch, and 40.11 MiB is reserved by PyTorch but unallocated." + HINT + "\nExiting main process due to a failure upon worker execution.",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="86 MiB", capacity="23.64 GiB", free="264 MiB", process="8.04 GiB", allocated="7.63 GiB", unallocated="40.11 MiB", others=((2086283, "419.48 MiB"), (2797307, "14.85 GiB"))),),
    ),
    Wording(
        source="wbfwonderful/Vad-R1#11: torchrun's lines behind the message",
        text="[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.06 GiB. GPU 2 has a total capacity of 79.25 GiB of which 6.96 GiB is free. Including non-PyTorch memory, this process has 72.28 GiB memory in use. Of the allocated memory 56.70 GiB is allocated by PyTorch, and 14.15 GiB is reserved by PyTorch but unallocated." + HINT + "\nW0330 21:37:33.868000 155011 site-packages/torch/distributed/elastic/multiprocessing/api.py:897] Sending process 155026 closing signal SIGTERM\nE0330 21:37:34.807000 155011 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 155027) of binary: /mnt/fast/nobackup/users/mw01832/miniconda3/envs/vodeo-r1/bin/python3.11",
        says=(failed("torch_cuda_oom_v2", "cuda:2", requested="14.06 GiB", capacity="79.25 GiB", free="6.96 GiB", process="72.28 GiB", allocated="56.70 GiB", unallocated="14.15 GiB"),),
    ),
    Wording(
        source="sgl-project/sglang#15927: only the last sentences, in four lines, private pools",
        text="Including non-PyTorch memory, this process has 139.32 GiB memory in use.\nOf the allocated memory 135.53 GiB is allocated by PyTorch,\nwith 572.00 MiB allocated in private pools (e.g., CUDA Graphs),\nand 265.53 MiB is reserved by PyTorch but unallocated.\n",
        says=(failed("", "", process="139.32 GiB", allocated="135.53 GiB", unallocated="265.53 MiB", also=("572 MiB",)),),
    ),
    Wording(
        source="pytorch/FBGEMM#5605: the documentation's new address",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 122.07 GiB. GPU 0 has a total capacity of 255.98 GiB of which 50.64 GiB is free. Of the allocated memory 123.74 GiB is allocated by PyTorch, and 8.94 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="122.07 GiB", capacity="255.98 GiB", free="50.64 GiB", allocated="123.74 GiB", unallocated="8.94 MiB"),),
    ),
    Wording(
        source="AIFSH/ComfyUI-ChatTTS#9: cudaMallocAsync, the next log line behind it",
        text="torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 6.89 GiB\nRequested               : 320.00 MiB\nDevice limit            : 23.69 GiB\nFree (according to CUDA): 2.94 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n2024-06-22 15:13:25,079- root:124- INFO- Prompt executed in 57.84 seconds",
        says=(failed("torch_cudamallocasync_oom", "cuda:0", requested="320 MiB", capacity="23.69 GiB", free="2.94 MiB", allocated="6.89 GiB"),),
    ),
    Wording(
        source="yangjianxin1/GPT2-chitchat#19: nvidia-smi without its first lines, then the CUDA error",
        text="Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|===============================+======================+======================|\n|   0  Tesla V100-SXM2...  On   | 00000000:00:08.0 Off |                    0 |\n| N/A   54C    P0   246W / 300W |  15514MiB / 16130MiB |    100%      Default |\n+-------------------------------+----------------------+----------------------+\n|   1  Tesla V100-SXM2...  On   | 00000000:00:09.0 Off |                    0 |\n| N/A   38C    P0    39W / 300W |      0MiB / 16130MiB |      0%      Default |\n+-------------------------------+----------------------+----------------------+\n\ngpu 0 是tf 在跑的代码，\n我运行就出错\nRuntimeError: CUDA error: out of memory",
        says=(
            logged("nvidia_smi_text", "cuda:0", used="15514 MiB", capacity="16130 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="0 MiB", capacity="16130 MiB"),
            failed("cuda_runtime_oom", "cuda"),
        ),
    ),
)  # fmt: skip

BACKENDS: tuple[Wording, ...] = (
    Wording(
        source="pytorch/pytorch#138002: HIP behind ComfyUI's mark",
        text="Closest bucket size: 672x384\n!!! Exception during processing !!! HIP out of memory. Tried to allocate 6.64 GiB. GPU 0 has a total capacity of 19.92 GiB of which 6.22 GiB is free. Of the allocated memory 5.34 GiB is allocated by PyTorch, and 7.10 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\nTraceback (most recent call last):",
        says=(failed("torch_hip_oom", "cuda:0", requested="6.64 GiB", capacity="19.92 GiB", free="6.22 GiB", allocated="5.34 GiB", unallocated="7.10 GiB"),),
    ),
    Wording(
        source="ROCm/TheRock#4598: more free than there is, as an APU prints it",
        text="    im = torch.zeros([1, 1, 32769, 65536], device=device, dtype=dtype)\ntorch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.49 GiB of which 84.98 GiB is free. Of the allocated memory 1.67 GiB is allocated by PyTorch, and 8.08 GiB is reserved by PyTorch but unallocated." + HINT,
        says=(failed("torch_hip_oom", "cuda:0", requested="16 GiB", capacity="15.49 GiB", free="84.98 GiB", allocated="1.67 GiB", unallocated="8.08 GiB"),),
    ),
    Wording(
        source="public file 70914816296 (notes on training a UNet on an Arc card): XPU, a sentence per line",
        text="torch.OutOfMemoryError: XPU out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has a total capacity of 11.93 GiB of which 5.62 MiB is free.\nOf the allocated memory 10.43 GiB is allocated by PyTorch,\nand 94.57 MiB is reserved by PyTorch but unallocated.\n",
        says=(failed("torch_xpu_oom", "xpu:0", requested="20 MiB", capacity="11.93 GiB", free="5.62 MiB", allocated="10.43 GiB", unallocated="94.57 MiB"),),
    ),
    Wording(
        source="Comfy-Org/ComfyUI#7372: MPS, others in MB",
        text="MPS backend out of memory (MPS allocated: 17.68 GB, other allocations: 3.95 MB, max allowed: 18.13 GB). Tried to allocate 1024.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        says=(failed("torch_mps_oom", "mps", requested="1024 MiB", allocated="17.68 GiB", allowed="18.13 GiB", also=("3.95 MiB",)),),
    ),
    Wording(
        source="sgl-project/sglang#29838: NPU, no blank before the hint",
        text="torch.OutOfMemoryError: NPU out of memory. Tried to allocate 72.00 MiB (NPU 0; 61.27 GiB total capacity; 56.05 GiB already allocated; 56.05 GiB current active; 5.04 MiB free; 58.39 GiB reserved in total by PyTorch).If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        says=(failed("torch_npu_oom", "npu:0", requested="72 MiB", capacity="61.27 GiB", allocated="56.05 GiB", free="5.04 MiB", reserved="58.39 GiB", also=("56.05 GiB",)),),
    ),
)  # fmt: skip

HOST_AND_MASKED: tuple[Wording, ...] = (
    Wording(
        source="NVIDIA/nccl#1485",
        text="node2:24881:25568 [2] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n\nnode2:24881:25568 [2] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 10485760 bytes\nnode2:24881:25568 [2] NCCL INFO transport/p2p.cc:204 -> 1\nnode2:24881:25568 [2] NCCL INFO proxy.cc:1377 -> 1\n\nnode2:24881:25568 [2] proxy.cc:1519 NCCL WARN [Proxy Service 2] Failed to execute operation Setup from rank 2, retcode 1",
        says=(failed("masked_oom", "cuda", requested="10485760 B"),),
    ),
    Wording(
        source="karpathy/llama2.c#279: cuBLAS without a handle",
        text="    return F.linear(input, self.weight, self.bias)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nRuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)``",
        says=(failed("masked_oom", "cuda"),),
    ),
    Wording(
        source="ultralytics/ultralytics#1238: no space, then bus errors",
        text="    fd, size = storage._share_fd_cpu_()\nRuntimeError: unable to write to file </torch_722_783672312_1>: No space left on device (28)\nERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        says=(failed("host_shm", "shm"), failed("host_shm", "shm")),
    ),
    Wording(
        source="easydiffusion/easydiffusion#289: the CPU allocator on Windows, built by conda",
        text="RuntimeError: [enforce fail at C:\\cb\\pytorch_1000000000000\\work\\c10\\core\\impl\\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried to allocate 151781376 bytes.",
        says=(failed("host_alloc_fail", "host", requested="151781376 B"),),
    ),
    Wording(
        source="coqui-ai/STT#2238: slurm in the middle of the training's own lines (KiB above KiB)",
        text="Epoch 0 |   Training | Elapsed Time: 0:00:15 | Steps: 93 | Loss: 24.580695\nslurmstepd: error: Job 7518 exceeded memory limit (626359956 > 512000000), being killed\nslurmstepd: error: Exceeded job memory limit\nslurmstepd: error: *** JOB 7518 ON xantipa CANCELLED AT 2022-06-10T17:11:35 ***",
        says=(failed("host_oom_kill", "host", used="626359956 KiB", allowed="512000000 KiB"),),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#3232: killed, with the command line",
        text="[2023-04-14 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266\n[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python3', '-u', 'main.py', '--local_rank=0', '--data_path', 'Dahoas/rm-static', '--model_name_or_path', 'facebook/opt-125m', '--per_device_train_batch_size', '2', '--zero_stage', '2', '--deepspeed'] exits with return code = -9",
        says=(failed("host_oom_kill", "host"),),
    ),
)  # fmt: skip

OTHER_FRAMEWORKS: tuple[Wording, ...] = (
    Wording(
        source="SergiioB/intel-arc-pro-b70-inference-cookbook#4: vLLM, broken inside a word, cut",
        text="(EngineCore pid=316)     raise ValueError(\n(EngineCore pid=316) ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cach\ne is needed, which is larger than the available KV cache memory (4.25 GiB). Based on the avai",
        says=(failed("vllm_startup", "", requested="4.26 GiB", also=("4.25 GiB",)),),
    ),
    Wording(
        source="vllm-project/vllm#12126: vLLM's own accounting",
        text="INFO 01-16 09:40:00 worker.py:238] the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.29GiB\nINFO 01-16 09:40:00 worker.py:238] model weights take 19.86GiB; non_torch_memory takes 0.16GiB; PyTorch activation peak memory takes 36.63GiB; the rest of the memory reserved for KV Cache is 14.65GiB.\nINFO 01-16 09:40:00 executor_base.py:95] # CUDA blocks: 6001, # CPU blocks: 1638",
        says=(logged("", "cuda", capacity="79.22 GiB", allowed="71.29 GiB", also=("19.86 GiB", "0.16 GiB", "36.63 GiB", "14.65 GiB")),),
    ),
    Wording(
        source="elixir-nx/xla#32: the BFC allocator's statistics, then XLA's failure",
        text="[info] Sum Total of in-use chunks: 3.96GiB\n[info] total_region_allocated_bytes_: 4928097280 memory_limit_: 4928097484 available bytes: 204 curr_region_allocation_bytes_: 9856195072\n[info] Stats: \nLimit:                      4928097484\nInUse:                      4248542720\nMaxInUse:                   4248542720\nNumAllocs:                        1040\nMaxAllocSize:                151781376\nReserved:                            0\nPeakReserved:                        0\nLargestFreeBlock:                    0\n\n[warning] ****************************************************************************************************\n[error] Execution of replica 0 failed: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 58982400 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:   56.25MiB\n              constant allocation:         0B\n        maybe_live_out allocation:   56.25MiB\n     preallocated temp allocation:         0B\n                 total allocation:  112.50MiB\n              total fragmentation:         0B (0.00%)\n",
        says=(
            logged("", "", allowed="4928097484 B", allocated="4248542720 B", peak_allocated="4248542720 B"),
            failed("jax_gpu_oom", "cuda", requested="58982400 B", also=("56.25 MiB", "112.50 MiB")),
        ),
    ),
    Wording(
        source="LargeWorldModel/LWM#60: TPU, the sentence broken",
        text="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.95G of 15.48G hbm.\n Exceeded hbm capacity by 6.47G.\n\nTotal hbm usage >= 22.47G:\n    reserved        530.00M\n    program          21.95G\n    arguments            0B\n",
        says=(failed("jax_tpu_oom", "", requested="21.95 GiB", capacity="15.48 GiB", also=("6.47 GiB", "22.47 GiB", "530 MiB")),),
    ),
    Wording(
        source="tensorflow/tensorflow#136: a tensor of six dimensions",
        text="ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[128,3,8,128,8,128] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n         [[node GPU0/D_loss/G/G_synthesis/cond/cond_1/Upscale2D_2/Tile (defined at D:\\jiateng\\project\\stylegan\\stylegan\\training\\networks_stylegan.py:66) ]]\nHint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions for current allocation info.",
        says=(failed("tf_oom", "cuda:0", requested="1610612736 B"),),
    ),
    Wording(
        source="Blaizzy/mlx-vlm#261: MLX, glued to a progress bar (MLX divides by 10^9)",
        text="  1%|▊                                                                                    | 10/1000 [00:32<53:42,  3.25s/it, Loss=3.4376, LR=1.00e-04, Tokens/sec=302]Iter 20: Train loss 3.142, Learning Rate 1.000e-04, It/sec 0.283, Tokens/sec 302.828, Trained Tokens 20518, Peak mem 22.427 GB",
        says=(logged("mlx_log", "mps", allocated="22.427 GB"),),
    ),
)  # fmt: skip

LOGS_AND_TABLES: tuple[Wording, ...] = (
    Wording(
        source="pytorch/pytorch#38884: memory_summary in bytes and KB, cut",
        text="|===========================================================================|\n|                  PyTorch CUDA memory summary, device ID 0                 |\n|---------------------------------------------------------------------------|\n|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |\n|===========================================================================|\n|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n|---------------------------------------------------------------------------|\n| Allocated memory      |    1024 B  |  133632 B  |  273920 B  |  272896 B  |\n|       from large pool |       0 B  |       0 B  |       0 B  |       0 B  |\n|       from small pool |    1024 B  |  133632 B  |  273920 B  |  272896 B  |\n|---------------------------------------------------------------------------|\n| Active memory         |    1024 B  |  133632 B  |  273920 B  |  272896 B  |\n|       from large pool |       0 B  |       0 B  |       0 B  |       0 B  |\n|       from small pool |    1024 B  |  133632 B  |  273920 B  |  272896 B  |\n|---------------------------------------------------------------------------|\n| GPU reserved memory   |    2048 KB |    2048 KB |    2048 KB |       0 B  |\n|       from large pool |       0 KB |       0 K",
        says=(logged("torch_memory_summary", "cuda:0", allocated="1024 B", peak_allocated="133632 B", reserved="2 MiB", peak_reserved="2 MiB"),),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#522: see_memory_usage of 2022",
        text="[2022-02-21 23:35:27,338] [INFO] [utils.py:827:see_memory_usage] MA 4.96 GB         Max_MA 5.09 GB         CA 6.39 GB         Max_CA 6 GB\n[2022-02-21 23:35:27,338] [INFO] [utils.py:832:see_memory_usage] CPU Virtual Memory:  used = 50.5 GB, percent = 40.2%\n[2022-02-21 23:35:29,950] [INFO] [utils.py:822:see_memory_usage] before optimizer 1\n[2022-02-21 23:35:29,951] [INFO] [utils.py:827:see_memory_usage] MA 4.89 GB         Max_MA 5.55 GB         CA 6.39 GB         Max_CA 6 GB\n",
        says=(
            logged("deepspeed_see_memory_usage", "cuda", allocated="4.96 GiB", peak_allocated="5.09 GiB", reserved="6.39 GiB", peak_reserved="6 GiB"),
            logged("deepspeed_see_memory_usage", "host", used="50.5 GiB"),
            logged("deepspeed_see_memory_usage", "cuda", allocated="4.89 GiB", peak_allocated="5.55 GiB", reserved="6.39 GiB", peak_reserved="6 GiB"),
        ),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#1536: the ZeRO-2 estimate, options as dicts",
        text="Estimated memory needed for params, optim states and gradients for a:\nHW: Setup with 1 node, 8 GPUs per node.\nSW: Model with 2851M total params.\n  per CPU  |  per GPU |   Options\n  127.48GB |   5.31GB | {'offload_optimizer': {'device': 'cpu'}}\n  127.48GB |  15.93GB | {'offload_optimizer': {'device': 'none'}}\n",
        says=(logged("deepspeed_estimator", "cuda", also=("127.48 GiB", "5.31 GiB", "15.93 GiB")),),
    ),
    Wording(
        source="public file 12297098718 (a model card for SQuAD): Trainer metrics as JSON, in bytes",
        text='{\n    "epoch": 3.0,\n    "init_mem_cpu_alloc_delta": 991453184,\n    "init_mem_cpu_peaked_delta": 0,\n    "init_mem_gpu_alloc_delta": 1109893120,\n    "init_mem_gpu_peaked_delta": 0,\n    "train_mem_cpu_alloc_delta": 14753792,\n    "train_mem_cpu_peaked_delta": 0,\n    "train_mem_gpu_alloc_delta": 3330195456,\n    "train_mem_gpu_peaked_delta": 8287144960,\n    "train_runtime": 11376.3034,\n    "train_samples": 89597,\n    "train_samples_per_second": 1.477\n}\n',
        says=(logged("hf_trainer_metrics", "cuda", also=("1109893120 B", "3330195456 B", "8287144960 B")),),
    ),
    Wording(
        source="public file 19144444268 (training on 4090 cards): Megatron, two ranks on one line",
        text="Theoretical memory footprints: weight and optimizer=20029.52 MB\n[Rank 4] (after 1 iterations) memory (MB) | allocated: 18598.7529296875 | max allocated: 20931.01220703125 | reserved: 21534.0 | max reserved: 21534.0[Rank 0] (after 1 iterations) memory (MB) | allocated: 20034.7529296875 | max allocated: 30227.64599609375 | reserved: 31086.0 | max reserved: 31086.0\n\n[Rank 6] (after 1 iterations) memory (MB) | allocated: 20115.05078125 | max allocated: 20115.08251953125 | reserved: 20258.0 | max reserved: 20258.0\n",
        says=(
            logged("megatron_log", "cuda", also=("20029.52 MiB",)),
            logged("megatron_log", "cuda", allocated="18598.7529296875 MiB", peak_allocated="20931.01220703125 MiB", reserved="21534 MiB", peak_reserved="21534 MiB"),
            logged("megatron_log", "cuda", allocated="20034.7529296875 MiB", peak_allocated="30227.64599609375 MiB", reserved="31086 MiB", peak_reserved="31086 MiB"),
            logged("megatron_log", "cuda", allocated="20115.05078125 MiB", peak_allocated="20115.08251953125 MiB", reserved="20258 MiB", peak_reserved="20258 MiB"),
        ),
    ),
    Wording(
        source="pytorch/torchtitan#2389: with grad_norm, and retries",
        text="[titan] 2026-02-24 19:40:56,246 - root - INFO - step:  4  loss:  7.86874  grad_norm: 24.3750  memory: 176.47GiB(98.94%)  tps: 8,629  tflops: 270.19  mfu: 12.01%\n[titan] 2026-02-24 19:40:57,825 - root - WARNING - 6 CUDA memory allocation retries.\n[titan] 2026-02-24 19:40:57,825 - root - INFO - step:  5  loss:  6.75186  grad_norm: 34.0000  memory: 169.13GiB(94.83%)  tps: 10,378  tflops: 324.98  mfu: 14.44%\n",
        says=(logged("torchtitan_log", "cuda", reserved="176.47 GiB"), logged("torchtitan_log", "cuda", reserved="169.13 GiB")),
    ),
    Wording(
        source="public file 62064646516 (an axolotl tutorial): axolotl's metrics, an entry per line",
        text=" 78%|███████████████████████████████████████████▋  | 156/200 [06:52<01:48,  2.46s/it]\n\n{'loss': 0.0001, \n 'grad_norm': 0.0014, \n 'learning_rate': 2.60e-05, \n 'memory/max_mem_active(gib)': 14.56, \n 'memory/max_mem_allocated(gib)': 14.56, \n 'memory/device_mem_reserved(gib)': 14.6, \n 'epoch': 52.0}\n",
        says=(logged("axolotl_log", "cuda", allocated="14.56 GiB", reserved="14.6 GiB", also=("14.56 GiB",)),),
    ),
    Wording(
        source="meta-pytorch/torchtune#2406: torchtune's step line (GiB)",
        text="Step 1 | loss:2.4555773735046387 lr:2e-05 tokens_per_second_per_gpu:46.73149108886719 peak_memory_active:47.32469987869263 peak_memory_alloc:52.001708984375 peak_memory_reserved:52.001708984375 ",
        says=(logged("torchtune_log", "", allocated="52.001708984375 GiB", reserved="52.001708984375 GiB", also=("47.32469987869263 GiB",)),),
    ),
    Wording(
        source="RLinf/RLinf#255: nvidia-smi of driver 550",
        text="Wed Nov 12 03:22:39 2025       \n+-----------------------------------------------------------------------------------------+\n| NVIDIA-SMI 550.163.01             Driver Version: 550.163.01     CUDA Version: 12.4     |\n|-----------------------------------------+------------------------+----------------------+\n| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n|                                         |                        |               MIG M. |\n|=========================================+========================+======================|\n|   0  NVIDIA GeForce RTX 4090        Off |   00000000:4E:00.0 Off |                  Off |\n| 30%   29C    P8             22W /  450W |     507MiB /  24564MiB |      0%      Default |\n|                                         |                        |                  N/A |\n+-----------------------------------------+------------------------+----------------------+\n|   1  NVIDIA GeForce RTX 4090        Off |   00000000:4F:00.0 Off |                  Off |\n| 30%   29C    P8             21W /  450W |     459MiB /  24564MiB |      0%      Default |\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", used="507 MiB", capacity="24564 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="459 MiB", capacity="24564 MiB"),
        ),
    ),
    Wording(
        source="public file 61518583953 (a demonstration of llm-d): nvidia-smi's processes as CSV",
        text="$ nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv\npid, process_name, used_gpu_memory [MiB]\n3858903, VLLM::EngineCore, 6265 MiB\n3880364, VLLM::EngineCore, 5530 MiB\n",
        says=(logged("nvidia_smi_csv", "", others=((3858903, "6265 MiB"), (3880364, "5530 MiB"))),),
    ),
)  # fmt: skip

SAME_KINDS: tuple[Wording, ...] = (
    *CUDA,
    *BACKENDS,
    *HOST_AND_MASKED,
    *OTHER_FRAMEWORKS,
    *LOGS_AND_TABLES,
)

# Collected after the changes that the first score led to, and read by eye before they were tried on it.
LATER_SAME_KINDS: tuple[Wording, ...] = (
    Wording(
        source="erikguo/yolov3#4",
        text="How can I fix this ? (training mode)\n \nRuntimeError: CUDA out of memory. Tried to allocate 338.00 MiB (GPU 0; 3.95 GiB total capacity; 1.62 GiB already allocated; 23.00 MiB free; 9.10 MiB cached)",
        says=(failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="338 MiB", capacity="3.95 GiB", allocated="1.62 GiB", free="23 MiB", unallocated="9.10 MiB"),),
    ),
    Wording(
        source="pytorch/pytorch#37250: an interactive session",
        text='>>> tensor = torch.zeros([batch_size] + list(data_shape)).cuda(device=0)\nTraceback (most recent call last):\n  File "<stdin>", line 1, in <module>\nRuntimeError: CUDA out of memory. Tried to allocate 5.74 GiB (GPU 0; 5.50 GiB total capacity; 588.00 MiB already allocated; 4.13 GiB free; 588.00 MiB reserved in total by PyTorch)' + OLD_HINT + "\n>>>\n>>> torch.set_default_tensor_type(torch.FloatTensor)",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="5.74 GiB", capacity="5.50 GiB", allocated="588 MiB", free="4.13 GiB", reserved="588 MiB"),),
    ),
    Wording(
        source="Tianhao-Qi/Mask2DiT#4: no exception's name, in a container",
        text="CUDA out of memory. Tried to allocate 35.60 GiB. GPU 0 has a total capacity of 79.33 GiB of which 26.16 GiB is free. Process 76883 has 53.16 GiB memory in use. Of the allocated memory 11.97 GiB is allocated by PyTorch, and 40.69 GiB is reserved by PyTorch but unallocated." + HINT,
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="35.60 GiB", capacity="79.33 GiB", free="26.16 GiB", allocated="11.97 GiB", unallocated="40.69 GiB", others=((76883, "53.16 GiB"),)),),
    ),
    Wording(
        source="gensyn-ai/rl-swarm#341: MPS, two failures, the launcher's words between",
        text="RuntimeError: MPS backend out of memory (MPS allocated: 15.05 GB, other allocations: 11.91 GB, max allowed: 27.20 GB). Tried to allocate 1.16 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n>> An error was detected while running rl-swarm. See /users/mengqf-202506/gensy/rl-swarm/logs for full logs.\n>> Shutting down trainer...\nzsh: terminated  ./run_rl_swarm.sh\n\nRuntimeError: MPS backend out of memory (MPS allocated: 13.36 GB, other allocations: 13.77 GB, max allowed: 27.20 GB). Tried to allocate 583.07 MB on private pool.",
        says=(
            failed("torch_mps_oom", "mps", requested="1.16 GiB", allocated="15.05 GiB", allowed="27.20 GiB", also=("11.91 GiB",)),
            failed("torch_mps_oom", "mps", requested="583.07 MiB", allocated="13.36 GiB", allowed="27.20 GiB", also=("13.77 GiB",)),
        ),
    ),
    Wording(
        source="vllm-project/vllm-ascend#19: NPU, quoted twice",
        text="> > RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB (NPU 0; 60.97 GiB total capacity; 10.24 GiB already allocated; 10.24 GiB current active; 19.52 MiB free; 10.65 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n> ",
        says=(failed("torch_npu_oom", "npu:0", requested="22 MiB", capacity="60.97 GiB", allocated="10.24 GiB", free="19.52 MiB", reserved="10.65 GiB"),),
    ),
    Wording(
        source="heronsystems/adeptRL#13: slurm without the word error",
        text="slurmstepd: Job 1171978 exceeded memory limit (18202456 > 16384000), being killed\nslurmstepd: *** JOB 1171978 ON cuda-24-0 CANCELLED AT 2018-10-16T13:24:27 ***\n",
        says=(failed("host_oom_kill", "host", used="18202456 KiB", allowed="16384000 KiB"),),
    ),
    Wording(
        source="openclimatefix-archives/nowcasting_dataset#158",
        text="    metadata = storage._share_filename_()\nRuntimeError: unable to open shared memory object </torch_4094450_3914785142> in read-write mode",
        says=(failed("host_shm", "shm"),),
    ),
    Wording(
        source="pytorch/xla#1735: TPU at run time, with the capacity's account",
        text="RuntimeError: Resource exhausted: From /job:tpu_worker/replica:0/task:0:\nAttempting to reserve 3.95G at the bottom of memory. That was not possible. There are 1.92G free, 0B reserved, and 1.92G reservable.; \nHBM capacity 8.00G:\n       Top-of-Memory reserved:  529.00M (     554,696,704 bytes)\n          Currently allocated:    6.08G (   6,532,939,776 bytes)\n          Program requirement:    3.95G (   4,237,689,856 bytes)\n                               ------------\n      Available after request:   -2.55G (  -2,735,391,744 bytes)\n; attempting reservation for program memory\n",
        says=(failed("jax_tpu_oom", "", requested="3.95 GiB", free="1.92 GiB", capacity="8 GiB", allocated="6532939776 B"),),
    ),
    Wording(
        source="jax-ml/jax#13428: peak buffers",
        text="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:    6.00MiB\n              constant allocation:         0B\n        maybe_live_out allocation:    6.00MiB\n     preallocated temp allocation:         0B\n                 total allocation:   12.00MiB\n              total fragmentation:         0B (0.00%)\nPeak buffers:\n        Buffer 1:\n                Size: 6.00MiB\n                XLA Label: concatenate\n                Shape: f32[4096,128,3]\n                ==========================\n\n        Buffer 2:\n                Size: 384.0KiB\n                Entry Parameter Subshape: f32[256,128,3]\n                ==========================\n",
        says=(failed("jax_gpu_oom", "cuda", requested="6291456 B", also=("6 MiB", "12 MiB", "384.0 KiB")),),
    ),
    Wording(
        source="vllm-project/vllm#10511: vLLM's account, a line each",
        text="INFO 12-13 19:54:18 worker.py:243] Memory profiling results:\nINFO 12-13 19:54:18 worker.py:243] duration     0.75 seconds\nINFO 12-13 19:54:18 worker.py:243] total_gpu_memory     79.22GiB\nINFO 12-13 19:54:18 worker.py:243] gpu_memory_utilization       0.90\nINFO 12-13 19:54:18 worker.py:243] the current vLLM instance can use    71.29GiB\nINFO 12-13 19:54:18 worker.py:243] model weights take   14.96GiB\nINFO 12-13 19:54:18 worker.py:243] non_torch_memory     1.79GiB\nINFO 12-13 19:54:18 worker.py:243] PyTorch activation peak memory       1.26GiB\nINFO 12-13 19:54:18 worker.py:243] available_kv_cache_memory    53.29GiB\n",
        says=(logged("vllm_startup", "cuda", capacity="79.22 GiB", allowed="71.29 GiB", also=("14.96 GiB", "1.79 GiB", "1.26 GiB", "53.29 GiB")),),
    ),
    Wording(
        source="public file 26097340198 (a model card for SAMSum): Trainer metrics as a table, in bytes",
        text="| key | value |\n| --- | ----- |\n| epoch | 3.0 |\n| init_mem_gpu_alloc_delta | 1222242816 |\n| init_mem_gpu_peaked_delta | 0 |\n| train_mem_cpu_alloc_delta | 6971403 |\n| train_mem_cpu_peaked_delta | 640733 |\n| train_mem_gpu_alloc_delta | 4910897664 |\n| train_mem_gpu_peaked_delta | 23331969536 |\n| train_runtime | 155.2034 |\n",
        says=(logged("hf_trainer_metrics", "cuda", also=("1222242816 B", "4910897664 B", "23331969536 B")),),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#3606: an offload that begins with nothing on the card",
        text="[2023-05-24 10:02:10,934] [INFO] [utils.py:829:see_memory_usage] DeepSpeedZeRoOffload initialize [begin]\n[2023-05-24 10:02:10,935] [INFO] [utils.py:834:see_memory_usage] MA 0.0 GB         Max_MA 0.0 GB         CA 0.73 GB         Max_CA 1 GB \n[2023-05-24 10:02:10,935] [INFO] [utils.py:839:see_memory_usage] CPU Virtual Memory:  used = 23.44 GB, percent = 24.8%\n",
        says=(
            logged("deepspeed_see_memory_usage", "cuda", allocated="0 GiB", peak_allocated="0 GiB", reserved="0.73 GiB", peak_reserved="1 GiB"),
            logged("deepspeed_see_memory_usage", "host", used="23.44 GiB"),
        ),
    ),
    Wording(
        source="public file 25097858135 (a Megatron run on four cards): the theory, then a rank per line",
        text="Number of parameters in embedding layers in billions: 0.05\nTotal number of parameters in billions: 0.35\nNumber of parameters in most loaded shard in billions: 0.0885\nTheoretical memory footprints: weight and optimizer=1519.18 MB\n[Rank 2] (after 20 iterations) memory (MB) | allocated: 1761.685546875 | max allocated: 2589.13525390625 | reserved: 2608.0 | max reserved: 2608.0\n",
        says=(
            logged("megatron_log", "cuda", also=("1519.18 MiB",)),
            logged("megatron_log", "cuda", allocated="1761.685546875 MiB", peak_allocated="2589.13525390625 MiB", reserved="2608 MiB", peak_reserved="2608 MiB"),
        ),
    ),
    Wording(
        source="karfly/learnable-triangulation-pytorch#80: nvidia-smi of driver 418",
        text="+-----------------------------------------------------------------------------+\n| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |\n|-------------------------------+----------------------+----------------------+\n| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|===============================+======================+======================|\n|   0  GeForce RTX 208...  Off  | 00000000:4B:00.0 Off |                  N/A |\n| 29%   34C    P2    64W / 250W |   8559MiB / 10989MiB |      0%      Default |\n+-------------------------------+----------------------+----------------------+\n|   1  GeForce RTX 208...  Off  | 00000000:4C:00.0 Off |                  N/A |\n| 32%   49C    P2   111W / 250W |   7384MiB / 10989MiB |    100%      Default |\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", used="8559 MiB", capacity="10989 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="7384 MiB", capacity="10989 MiB"),
        ),
    ),
    Wording(
        source="public file 57070576593 (notes on a node with eight cards): processes as CSV, by the card's UUID",
        text="gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-a44622e3-2296-6285-0a86-84d0f6c67900, 1328667, /usr/local/bin/python3.10, 130004 MiB\nGPU-4f31bb83-f8dc-d0af-029e-bc4356e6afeb, 1328668, /usr/local/bin/python3.10, 130044 MiB\nGPU-4e9e74b7-4977-f04d-3af3-ccfe5f570e90, 1425258, python3, 105842 MiB\n",
        says=(logged("nvidia_smi_csv", "", others=((1328667, "130004 MiB"), (1328668, "130044 MiB"), (1425258, "105842 MiB"))),),
    ),
)  # fmt: skip
