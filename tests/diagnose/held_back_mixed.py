# ruff: noqa: E501 (pasted messages keep their lines)
"""Texts as found in public threads and files, one after the other, none of them in a sample or another test.

Written down with every number before the reader had seen any. `also` are printed numbers that have no field of their
own. Counts of tensors' dimensions and shares are not listed: they are not sizes.
"""

from __future__ import annotations

from held_back_same_kinds import HINT, OLD_HINT, failed, logged
from held_back_wordings import Wording

SUMMARY_HEAD = (
    "|===========================================================================|\n"
    "|                  PyTorch CUDA memory summary, device ID 0                 |\n"
    "|---------------------------------------------------------------------------|\n"
    "|            CUDA OOMs: 0            |        cudaMalloc retries: 1         |\n"
    "|===========================================================================|\n"
    "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
    "|---------------------------------------------------------------------------|\n"
)

MIXED: tuple[Wording, ...] = (
    Wording(
        source="Houlong66/lattice_lstm_with_pytorch#3: thousands of GiB",
        text="    scores = feats + self.transitions.view(1,tag_size,tag_size).expand(ins_num, tag_size, tag_size)\nRuntimeError: CUDA out of memory. Tried to allocate 2053.83 GiB (GPU 0; 31.75 GiB total capacity; 9.49 GiB already allocated; 21.27 GiB free; 12.35 MiB cached)\ndone\n",
        says=(failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="2053.83 GiB", capacity="31.75 GiB", allocated="9.49 GiB", free="21.27 GiB", unallocated="12.35 MiB"),),
    ),
    Wording(
        source="neurosim/DNN_NeuroSim_V1.3#28",
        text="remainderQ = (upper-lower)*(remainder-0)+(cellRange-1)*lower   # weight cannot map to 0, but to Gmin\nRuntimeError: CUDA out of memory. Tried to allocate 1.12 MiB (GPU 0; 22.37 GiB total capacity; 15.87 GiB already allocated; 3.56 MiB free; 787.74 MiB cached)\n",
        says=(failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="1.12 MiB", capacity="22.37 GiB", allocated="15.87 GiB", free="3.56 MiB", unallocated="787.74 MiB"),),
    ),
    Wording(
        source="ZhengkunTian/rnn-transducer#17: typed by hand",
        text="when I execute train.py as it mentioned in README.md, I met the problem in the topic[ RuntimeError: CUDA out of the memory. Tried to allocate 2.97GiB(GPU 0; 10.92GiB total capacity; 5.99GiB already allocated; 1.7GiB free; 8.63GiB resrved in total by Pytorch)]. Thougth I adjusted  the configs[e.g.: bath size and feature dim] many times , but it didn't work.\n",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="2.97 GiB", capacity="10.92 GiB", allocated="5.99 GiB", free="1.7 GiB", reserved="8.63 GiB"),),
    ),
    Wording(
        source="Confusezius/unet-lits-2d-pipeline#6: typed by hand, one number",
        text="RuntimeError: CUDA out of the memory. Tried to allocate 360.00 MiB",
        says=(failed("", "", requested="360 MiB"),),
    ),
    Wording(
        source="MichalBusta/E2E-MLT#37: in bold",
        text="Hello, I have met a problem when training the model as follow:\n\n**RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 983.69 MiB total capacity; 209.53 MiB already allocated; 69.56 MiB free; 6.47 MiB cached)**\n",
        says=(failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="128 MiB", capacity="983.69 MiB", allocated="209.53 MiB", free="69.56 MiB", unallocated="6.47 MiB"),),
    ),
    Wording(
        source="zhou13/lcnn#23: another program's words behind it",
        text='File "/home/anxing/anaconda3/envs/learning/lib/python3.8/site-packages/torch/nn/modules/conv.py", line 341, in conv2d_forward\n    return F.conv2d(input, weight, self.bias, self.stride,\nRuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 5.81 GiB total capacity; 4.66 GiB already allocated; 77.50 MiB free; 4.68 GiB reserved in total by PyTorch) TensorBoard caught SIGTERM; exiting...\n',
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="96 MiB", capacity="5.81 GiB", allocated="4.66 GiB", free="77.5 MiB", reserved="4.68 GiB"),),
    ),
    Wording(
        source="qingze-bai/VSmTrans#3: torch 2.5, the first letter lost",
        text="eturn Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 226.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 210.38 MiB is free. Including non-PyTorch memory, this process has 15.48 GiB memory in use. Of the allocated memory 14.81 GiB is allocated by PyTorch, and 336.73 MiB is reserved by PyTorch but unallocated." + HINT,
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="226 MiB", capacity="15.70 GiB", free="210.38 MiB", process="15.48 GiB", allocated="14.81 GiB", unallocated="336.73 MiB"),),
    ),
    Wording(
        source="kerrj/lerf#73: torch 2.1",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacty of 23.65 GiB of which 1.66 GiB is free. Including non-PyTorch memory, this process has 20.81 GiB memory in use. Of the allocated memory 12.09 GiB is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="3 GiB", capacity="23.65 GiB", free="1.66 GiB", process="20.81 GiB", allocated="12.09 GiB", unallocated="4.84 GiB"),),
    ),
    Wording(
        source="FireRedTeam/FireRedTTS2#17: two neighbours",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 MiB. GPU 0 has a total capacity of 11.66 GiB of which 9.81 MiB is free. Process 3893521 has 618.00 MiB memory in use. Process 1493972 has 1.28 GiB memory in use. Including non-PyTorch memory, this process has 9.74 GiB memory in use. Of the allocated memory 9.30 GiB is allocated by PyTorch, and 163.19 MiB is reserved by PyTorch but unallocated." + HINT,
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="26 MiB", capacity="11.66 GiB", free="9.81 MiB", process="9.74 GiB", allocated="9.30 GiB", unallocated="163.19 MiB", others=((3893521, "618 MiB"), (1493972, "1.28 GiB"))),),
    ),
    Wording(
        source="QwenLM/Qwen3-VL#2097",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.42 GiB. GPU 0 has a total capacity of 44.40 GiB of which 33.26 GiB is free. Including non-PyTorch memory, this process has 11.13 GiB memory in use. Of the allocated memory 10.25 GiB is allocated by PyTorch, and 394.50 MiB is reserved by PyTorch but unallocated." + HINT + "\n\naccelerate               1.13.0\ncertifi                  2026.5.20\n",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="40.42 GiB", capacity="44.40 GiB", free="33.26 GiB", process="11.13 GiB", allocated="10.25 GiB", unallocated="394.5 MiB"),),
    ),
    Wording(
        source="Tencent-Hunyuan/Hunyuan3D-2#238: between marks for code",
        text="{code}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.48 GiB of which 17.75 MiB is free. Including non-PyTorch memory, this process has 15.45 GiB memory in use. Of the allocated memory 14.85 GiB is allocated by PyTorch, and 278.23 MiB is reserved by PyTorch but unallocated." + HINT + "\n{code}\n",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="20 MiB", capacity="15.48 GiB", free="17.75 MiB", process="15.45 GiB", allocated="14.85 GiB", unallocated="278.23 MiB"),),
    ),
    Wording(
        source="bmaltais/kohya_ss#3329: all in small letters",
        text='I still get the same error: \n\n"cuda out of memory. tried to allocate 30.00 mib (gpu 0; 8.00 gib total capacity; 7.04 gib already allocated; 0 bytes free; 7.28 gib reserved in total by pytorch) if reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation. see documentation for memory management and pytorch_cuda_alloc_conf"\n',
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="30 MiB", capacity="8 GiB", allocated="7.04 GiB", free="0 B", reserved="7.28 GiB"),),
    ),
    Wording(
        source="kijai/ComfyUI-FluxTrainer#184: ComfyUI's report",
        text="## Error Details\n- **Node ID:** 4\n- **Node Type:** FluxTrainLoop\n- **Exception Type:** torch.OutOfMemoryError\n- **Exception Message:** Allocation on device \nThis error means you ran out of memory on your GPU.\n\n## Devices\n\n- **Name:** cuda:0 NVIDIA GeForce RTX 3060 : cudaMallocAsync\n  - **Type:** cuda\n  - **VRAM Total:** 12884246528\n  - **VRAM Free:** 11793334272\n  - **Torch VRAM Total:** 0\n  - **Torch VRAM Free:** 0\n",
        says=(
            failed("torch_cudamallocasync_oom", ""),
            logged("", "cuda:0", capacity="12884246528 B", free="11793334272 B"),
        ),
    ),
    Wording(
        source="songlab-cal/tape#55: wrapped inside a word",
        text="RuntimeError: CUDA out of memory. Tried to allocate 18.00 MiB (GPU 2; 7.43 GiB total capacity; 6.81 GiB already allocated; 6.94 MiB free; 6.94 GiB r\neserved in total by PyTorch)\nDuring handling of the above exception, another exception occurred:\nTraceback (most recent call last):\n",
        says=(failed("torch_cuda_oom_v1", "cuda:2", requested="18 MiB", capacity="7.43 GiB", allocated="6.81 GiB", free="6.94 MiB", reserved="6.94 GiB"),),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#2933: GPU 2",
        text="    self.output_w = nn.Parameter(torch.empty(intm_size_per_partition,\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 324.00 MiB (GPU 2; 31.75 GiB total capacity; 31.08 GiB already allocated; 216.50 MiB free; 31.08 GiB reserved in total by PyTorch)" + OLD_HINT + "\nTraceback (most recent call last):\n",
        says=(failed("torch_cuda_oom_v1", "cuda:2", requested="324 MiB", capacity="31.75 GiB", allocated="31.08 GiB", free="216.5 MiB", reserved="31.08 GiB"),),
    ),
    Wording(
        source="simplescaling/s1#106: a container on a large card",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.46 GiB. GPU 0 has a total capacity of 139.72 GiB of which 3.02 GiB is free. Process 3373672 has 136.69 GiB memory in use. Of the allocated memory 119.21 GiB is allocated by PyTorch, and 14.04 GiB is reserved by PyTorch but unallocated." + HINT + "\n[rank0]: Traceback (most recent call last):\n",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="8.46 GiB", capacity="139.72 GiB", free="3.02 GiB", allocated="119.21 GiB", unallocated="14.04 GiB", others=((3373672, "136.69 GiB"),)),),
    ),
    Wording(
        source="unslothai/unsloth#3896: a sentence per line, cut after free",
        text="error msg:\n\nOutOfMemoryError: CUDA out of memory. \nTried to allocate 1.02 GiB. GPU 0 has a total capacity of 15.89 GiB of which 137.12 MiB is free. \n\n",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="1.02 GiB", capacity="15.89 GiB", free="137.12 MiB"),),
    ),
    Wording(
        source="jhc13/taggui#188: torch 2.2, nothing of its own process",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 4.00 GiB of which 2.35 GiB is free. Of the allocated memory 825.15 MiB is allocated by PyTorch, and 24.85 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation. See documentation for Memory Management\n",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="20 MiB", capacity="4 GiB", free="2.35 GiB", allocated="825.15 MiB", unallocated="24.85 MiB"),),
    ),
    Wording(
        source="CompVis/taming-transformers#194: the message, then nvidia-smi of a Windows card",
        text="`torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.39 GiB (GPU 0; 6.00 GiB total capacity; 4.04 GiB already allocated; 478.00 MiB free; 4.15 GiB reserved in total by PyTorch)" + OLD_HINT + "\n(venv) PS C:\\projects\\imageai\\venv\\stable-diffusion> nvidia-smi\nMon Dec 19 13:05:20 2022\n`\n\n```\n+-----------------------------------------------------------------------------+\n| NVIDIA-SMI 527.41       Driver Version: 527.41       CUDA Version: 12.0     |\n|-------------------------------+----------------------+----------------------+\n| GPU  Name            TCC/WDDM | Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|                               |                      |               MIG M. |\n|===============================+======================+======================|\n|   0  NVIDIA GeForce ... WDDM  | 00000000:01:00.0  On |                  N/A |\n| N/A   53C    P8     8W /  N/A |    451MiB /  6144MiB |      6%      Default |\n",
        says=(
            failed("torch_cuda_oom_v1", "cuda:0", requested="1.39 GiB", capacity="6 GiB", allocated="4.04 GiB", free="478 MiB", reserved="4.15 GiB"),
            logged("nvidia_smi_text", "cuda:0", used="451 MiB", capacity="6144 MiB"),
        ),
    ),
    Wording(
        source="ROCm/TheRock#1054: HIP, nothing allocated yet",
        text="torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.24 GiB of which 15.09 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        says=(failed("torch_hip_oom", "cuda:0", requested="16 GiB", capacity="15.24 GiB", free="15.09 GiB", allocated="0 B", unallocated="0 B"),),
    ),
    Wording(
        source="keras-team/keras#13889: TensorFlow on ROCm",
        text="2020-03-11 17:17:25.390000: E tensorflow/stream_executor/rocm/rocm_driver.cc:600] failed to allocate 890.06M (933298432 bytes) from device: HIP_ERROR_OutOfMemory\n",
        says=(failed("", "", requested="933298432 B"),),
    ),
    Wording(
        source="ROCm/tensorflow-upstream#82: an older ROCm, by its number",
        text="2019-01-08 19:06:11.303639: E tensorflow/stream_executor/rocm/rocm_driver.cc:601] failed to allocate 7.35G (7889485824 bytes) from device: hipError_t(1002)\n2019-01-08 19:06:11.303736: E tensorflow/stream_executor/rocm/rocm_driver.cc:601] failed to allocate 6.61G (7100536832 bytes) from device: hipError_t(1002)\n2019-01-08 19:06:11.303770: E tensorflow/stream_executor/rocm/rocm_driver.cc:601] failed to allocate 5.95G (6390482944 bytes) from device: hipError_t(1002)\n",
        says=(failed("", "", requested="7889485824 B"), failed("", "", requested="7100536832 B"), failed("", "", requested="6390482944 B")),
    ),
    Wording(
        source="mattmireles/gemma-tuner-multimodal#18: MPS, wrapped",
        text="RuntimeError: MPS backend out of memory (MPS allocated: 9.48 GiB, other allocations: 480.00 KiB, max allowed: 9.47 GiB).\nTried to allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory \nallocations (may cause system failure).\n\n❌ Training failed with exit code 1\nCheck the logs for detailed error information\n",
        says=(failed("torch_mps_oom", "mps", requested="256 B", allocated="9.48 GiB", allowed="9.47 GiB", also=("480 KiB",)),),
    ),
    Wording(
        source="pharmapsychotic/clip-interrogator-ext#74: MPS, GB that are GiB",
        text="MPS backend out of memory (MPS allocated: 6.04 GB, other allocations: 1.04 GB, max allowed: 6.77 GB). Tried to allocate 459.07 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)\n",
        says=(failed("torch_mps_oom", "mps", requested="459.07 MiB", allocated="6.04 GiB", allowed="6.77 GiB", also=("1.04 GiB",)),),
    ),
    Wording(
        source="intel/torch-xpu-ops#5046: XPU of torch 2.14",
        text="torch.OutOfMemoryError: XPU out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 16.48 GiB of which 16.07 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.\n",
        says=(failed("torch_xpu_oom", "xpu:0", requested="16 GiB", capacity="16.48 GiB", free="16.07 GiB", allocated="0 B", unallocated="0 B"),),
    ),
    Wording(
        source="NVIDIA/nccl#962: the proxy's words behind it",
        text="NCCL version 2.18.1+cuda12.0\nnode:2134736:2285781 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\nnode:2134736:2285781 [0] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes\nnode:2134736:2285781 [0] proxy.cc:1518 NCCL WARN [Proxy Service 93] Failed to execute operation Setup from rank 93, retcode 1\n",
        says=(failed("masked_oom", "", requested="6291456 B"),),
    ),
    Wording(
        source="NVIDIA/TensorRT-LLM#1670: NCCL without a size",
        text="VM-0-16-ubuntu:392:494 [2] enqueue.cc:43 NCCL WARN Cuda failure 'out of memory'\n\nVM-0-16-ubuntu:392:494 [2] enqueue.cc:54 NCCL WARN Cuda failure 'invalid resource handle'\n",
        says=(failed("masked_oom", ""),),
    ),
    Wording(
        source="MIC-DKFZ/nnUNet#593: at the barrier, then the launcher",
        text='  File "/afs/crc.nd.edu/user/y/ypeng4/.local/lib/python3.7/site-packages/torch/distributed/distributed_c10d.py", line 2420, in barrier\n    work = default_pg.barrier(opts=opts)\nRuntimeError: CUDA error: out of memory\nKilling subprocess 31867\nKilling subprocess 31868\n',
        says=(failed("cuda_runtime_oom", ""),),
    ),
    Wording(
        source="microsoft/CNTK#220: cuDNN under CNTK",
        text="About to throw exception 'cuDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=PTNUWCL5099642 ; expr=finder(calgo, algoPerf)'\n",
        says=(failed("masked_oom", ""),),
    ),
    Wording(
        source="MaximeVandegar/Papers-in-100-Lines-of-Code#10: the CPU allocator on Windows",
        text='" RuntimeError: [enforce fail at C:\\b\\abs_bao0hdcrdh\\croot\\pytorch_1675190257512\\work\\c10\\core\\impl\\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried to allocate 1981808640 bytes."\n',
        says=(failed("host_alloc_fail", "host", requested="1981808640 B"),),
    ),
    Wording(
        source="wuyifan18/DeepLog#50: torch 1.8's file name",
        text="[enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 278528000 bytes. Error code 12 (Cannot allocate memory)\n",
        says=(failed("host_alloc_fail", "host", requested="278528000 B"),),
    ),
    Wording(
        source="msr-fiddle/pipedream#28: three bus errors, then the worker",
        text='Epoch 0: 6843.771 seconds\nERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nTraceback (most recent call last):\n  File "/opt/conda/lib/python3.6/site-packages/torch/utils/data/_utils/signal_handling.py", line 63, in handler\n    _error_if_any_worker_fails()\nRuntimeError: DataLoader worker (pid 325) is killed by signal: Bus error.\n',
        says=(failed("host_shm", "shm"), failed("host_shm", "shm", also=("325 B",))),
    ),
    Wording(
        source="hafs-community/HAFS#101: slurm of 2021",
        text="slurmstepd: error: Detected 1 oom-kill event(s) in step 3495064.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\nsrun: error: Orion-01-01: task 4: Out Of Memory\nsrun: Terminating job step 3495064.0\n",
        says=(failed("host_oom_kill", "host", also=("3495064 B",)), failed("host_oom_kill", "host")),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#4571: the launcher's two lines",
        text="[2023-10-26 17:54:44,801] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 2454240\n[2023-10-26 17:54:48,155] [ERROR] [launch.py:321:sigkill_handler] ['/data_new/sjy98/polyglot-ko/data-parallel/deepspeed-venv/bin/python3', '-u', 'deepspeed-trainer.py', '--local_rank=3', '--deepspeed', 'deepspeed_config_2.json'] exits with return code = -9\n",
        says=(failed("host_oom_kill", "host"),),
    ),
    Wording(
        source="unslothai/unsloth#3442: killed behind a progress bar, the card's size above",
        text='   \\\\   /|    NVIDIA RTX A5000. Num GPUs = 1. Max memory: 23.547 GB. Platform: Linux.\nO^O/ \\_/ \\    Torch: 2.8.0+cu128. CUDA: 8.6. CUDA Toolkit: 12.8. Triton: 3.4.0\nUnsloth: Tokenizing ["text"] (num_proc=196):  31%|██████████▎                 | 1859/5939 [01:01<02:39, 25.61 examples/s]Killed\n',
        says=(logged("unsloth_log", "cuda", capacity="23.547 GiB"), failed("host_oom_kill", "host")),
    ),
    Wording(
        source="vllm-project/vllm#23192: behind the engine's prefix",
        text="(EngineCore_0 pid=1810465) ERROR 09-03 11:03:37 [core.py:712]     raise ValueError(\n(EngineCore_0 pid=1810465) ERROR 09-03 11:03:37 [core.py:712] ValueError: Free memory on device (7.34/139.72 GiB) on startup is less than desired GPU memory utilization (0.9, 125.75 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n(EngineCore_0 pid=1810465) Process EngineCore_0:\n",
        says=(failed("vllm_startup", "", free="7.34 GiB", capacity="139.72 GiB", requested="125.75 GiB"),),
    ),
    Wording(
        source="vllm-project/vllm#25837: one decimal",
        text="(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU memory utilization (0.9, 3.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n",
        says=(failed("vllm_startup", "", free="3.22 GiB", capacity="4 GiB", requested="3.6 GiB"),),
    ),
    Wording(
        source="google-deepmind/alphafold#1023: JAX, one line",
        text="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.\n",
        says=(failed("jax_gpu_oom", "", requested="7406166528 B"),),
    ),
    Wording(
        source="tensorflow/tpu#385: TPU under TensorFlow",
        text="Status code: Resource exhausted [9x]\n  Compilation failure: Ran out of memory in memory space hbm. Used 8.38G of 8.00G hbm. Exceeded hbm capacity by 385.25M.\n",
        says=(failed("jax_tpu_oom", "tpu:0", requested="8.38 GiB", capacity="8 GiB", also=("385.25 MiB",)),),
    ),
    Wording(
        source="DifferentiableUniverseInitiative/flowpm#27: TPU of 2019, sizes that are not known",
        text="E1111 07:35:00.272763 140408571025152 error_handling.py:81] Closing session due to error From /job:worker/replica:0/task:0:\nCompilation failure: Ran out of memory in memory space hbm. Used 41.74G of 16.00G hbm. Exceeded hbm capacity by 25.74G.\n\nTotal hbm usage >= 41.74G:\n    reserved        528.00M\n    program          41.22G\n    arguments       unknown size\n\nOutput size unknown.\n\nProgram hbm requirement 41.22G:\n    reserved           4.0K\n    global           29.82M\n    HLO temp         41.19G (24.2% utilization, 0.7% fragmentation (293.84M))\n\n  Largest program allocations in hbm:\n\n  1. Size: 32.00G\n     Operator: op_type=\"FloorMod\" op_name=\"slicewise_79/cic_update/FloorMod\"\n     Shape: s32[8388608,8,4]{2,1,0:T(8,128)}\n     Unpadded size: 1.00G\n     Extra memory due to padding: 31.00G (32.0x expansion)\n",
        says=(failed("jax_tpu_oom", "tpu:0", requested="41.74 GiB", capacity="16 GiB", also=("25.74 GiB", "528 MiB", "41.22 GiB", "4 KiB", "29.82 MiB", "41.19 GiB", "293.84 MiB", "32 GiB", "1 GiB", "31 GiB")),),
    ),
    Wording(
        source="iperov/DeepFaceLab#683: typed by hand, cut",
        text="Error: OOM when allocating tensor with shape [3,3,512,2048] and type float on /job:localhost\n[[{{node training/adam/mul_73}} Mul[T=DT_float]\n",
        says=(failed("tf_oom", "", requested=f"{3 * 3 * 512 * 2048 * 4} B"),),
    ),
    Wording(
        source="tensorflow/models#6450: TensorFlow on the host",
        text="OOM when allocating tensor with shape[24,1,2304,1152,3] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu\n",
        says=(failed("tf_oom", "host", requested=f"{24 * 2304 * 1152 * 3 * 4} B"),),
    ),
    Wording(
        source="Azure/MachineLearningNotebooks#880: two root errors",
        text="ResourceExhaustedError: 2 root error(s) found.\n  (0) Resource exhausted: OOM when allocating tensor with shape[16,112,112,147] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{node resnet_v1_50/conv1/ExtractImagePatches}}]]\n",
        says=(failed("tf_oom", "cuda:0", requested=f"{16 * 112 * 112 * 147 * 4} B"),),
    ),
    Wording(
        source="mlcommons/algorithmic-efficiency#425: memory_summary of torch 2, cut",
        text=SUMMARY_HEAD + "| Allocated memory      |  10344 MiB |  14441 MiB |  45674 MiB |  35330 MiB |\n|       from large pool |  10338 MiB |  14435 MiB |  45632 MiB |  35294 MiB |\n|       from small pool |      5 MiB |      6 MiB |     42 MiB |     36 MiB |\n|---------------------------------------------------------------------------|\n| Active memory         |  10344 MiB |  14441 MiB |  45674 MiB |  35330 MiB |\n|       from large pool |  10338 MiB |  14435 MiB |  45632 MiB |  35294 MiB |\n",
        says=(logged("torch_memory_summary", "cuda:0", allocated="10344 MiB", peak_allocated="14441 MiB", also=("45674 MiB", "35330 MiB", "10338 MiB", "14435 MiB", "5 MiB", "6 MiB")),),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#2676: before the optimizer's states",
        text="Rank: 0 partition count [1] and sizes[(859520964, False)]\n[2023-01-07 20:45:30,471] [INFO] [utils.py:827:see_memory_usage] Before initializing optimizer states\n[2023-01-07 20:45:30,472] [INFO] [utils.py:828:see_memory_usage] MA 1.66 GB         Max_MA 1.66 GB         CA 3.27 GB         Max_CA 3 GB\n[2023-01-07 20:45:30,472] [INFO] [utils.py:836:see_memory_usage] CPU Virtual Memory:  used = 45.9 GB, percent = 73.2%\n",
        says=(
            logged("deepspeed_see_memory_usage", "cuda", allocated="1.66 GiB", peak_allocated="1.66 GiB", reserved="3.27 GiB", peak_reserved="3 GiB"),
            logged("deepspeed_see_memory_usage", "host", used="45.9 GiB"),
        ),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#2899: behind the node's name",
        text="gpu-q-13: [2023-02-22 14:30:21,080] [INFO] [utils.py:832:see_memory_usage] MA 0.0 GB         Max_MA 55.83 GB         CA 55.83 GB         Max_CA 56 GB \ngpu-q-13: [2023-02-22 14:30:21,080] [INFO] [utils.py:840:see_memory_usage] CPU Virtual Memory:  used = 72.17 GB, percent = 7.2%\n",
        says=(
            logged("deepspeed_see_memory_usage", "cuda", allocated="0 GiB", peak_allocated="55.83 GiB", reserved="55.83 GiB", peak_reserved="56 GiB"),
            logged("deepspeed_see_memory_usage", "host", used="72.17 GiB"),
        ),
    ),
    Wording(
        source="public file 20429562672 (notes on ALBERT with Megatron): a rank's line after the iteration's",
        text=" iteration      100/  100000 | consumed samples:         3200 | elapsed time per iteration (ms): 2275.1 | learning rate: 5.880E-05 | global batch size:    32 | lm loss: 9.648865E+00 | number of nan iterations:   0 |\n[Rank 0] (after 100 iterations) memory (MB) | allocated: 2712.5478515625 | max allocated: 10595.82275390625 | reserved: 12906.0 | max reserved: 12906.0\n",
        says=(logged("megatron_log", "cuda", allocated="2712.5478515625 MiB", peak_allocated="10595.82275390625 MiB", reserved="12906 MiB", peak_reserved="12906 MiB"),),
    ),
    Wording(
        source="public file 52696439354 (notes on experts with Megatron): the theory without activations, then the rank",
        text="Number of parameters in transformer layers in billions:  0.03\nNumber of parameters in embedding layers in billions: 0.07\nTotal number of parameters in billions: 0.09\nNumber of parameters in most loaded shard in billions: 0.0916\nTheoretical memory footprints: weight and optimizer=1048.55 MB\n[Rank 0] (after 1 iterations) memory (MB) | allocated: 999.52783203125 | max allocated: 999.5595703125 | reserved: 1126.0 | max reserved: 1126.0\n",
        says=(
            logged("megatron_log", "cuda", also=("1048.55 MiB",)),
            logged("megatron_log", "cuda", allocated="999.52783203125 MiB", peak_allocated="999.5595703125 MiB", reserved="1126 MiB", peak_reserved="1126 MiB"),
        ),
    ),
    Wording(
        source="pytorch/torchtitan#3393: with the gradient's norm",
        text="[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%\n",
        says=(logged("torchtitan_log", "cuda", reserved="9.46 GiB"),),
    ),
    Wording(
        source="axolotl-ai-cloud/axolotl#1153: a rank's memory after loading",
        text="[2024-01-19 08:21:55,145] [INFO] [axolotl.load_model:558] [PID:6550] [RANK:2] GPU memory usage after model load: 23.333GB (+0.722GB cache, +1.045GB misc)\n[2024-01-19 08:21:55,151] [INFO] [axolotl.load_model:581] [PID:6550] [RANK:2] converting PEFT model w/ prepare_model_for_kbit_training\n",
        says=(logged("axolotl_log", "cuda", allocated="23.333 GiB", unallocated="0.722 GiB", also=("1.045 GiB",)),),
    ),
    Wording(
        source="wookayin/gpustat#95: uses that are not known",
        text="fishtank                Wed Jan 13 12:10:38 2021  455.32.00\n[0] GeForce GTX 1080 Ti | 75°C, 100 % |  4335 / 11178 MB | jfx(?M)\n[1] GeForce GTX 1080 Ti | 71°C, 100 % |  4980 / 11178 MB | jfx(645M)\n",
        says=(
            logged("gpustat", "cuda:0", used="4335 MiB", capacity="11178 MiB"),
            logged("gpustat", "cuda:1", used="4980 MiB", capacity="11178 MiB"),
        ),
    ),
    Wording(
        source="pytorch/pytorch#64130: processes that hold nothing",
        text="+-----------------------------------------------------------------------------+\n| Processes:                                                                  |\n|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |\n|        ID   ID                                                   Usage      |\n|=============================================================================|\n|    0   N/A  N/A    331903      C   ...py3.6-torch1.8/bin/python     1733MiB |\n|    0   N/A  N/A    331904      C   ...py3.6-torch1.8/bin/python        0MiB |\n|    0   N/A  N/A    331905      C   ...py3.6-torch1.8/bin/python        0MiB |\n|    1   N/A  N/A    331903      C   ...py3.6-torch1.8/bin/python        0MiB |\n|    1   N/A  N/A    331904      C   ...py3.6-torch1.8/bin/python     1717MiB |\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", others=((331903, "1733 MiB"), (331904, "0 MiB"), (331905, "0 MiB"))),
            logged("nvidia_smi_text", "cuda:1", others=((331903, "0 MiB"), (331904, "1717 MiB"))),
        ),
    ),
    Wording(
        source="yyliu01/PS-MT#20: a table shortened by hand",
        text="+-----------------------------------------------------------------------------+\n| Processes:                                                                  |\n|  GPU   GI   CI        PID   Type   Process name                  GPU Memory | \n|        ID   ID                                                                              Usage      |\n|======================================================================|\n\n|    5   N/A  N/A     26598      C   ...da/envs/ps-mt/bin/python3     2885MiB |\n|    5   N/A  N/A     26599      C   ...da/envs/ps-mt/bin/python3     1387MiB |\n|    6   N/A  N/A     26599      C   ...da/envs/ps-mt/bin/python3     2889MiB |\n|    8   N/A  N/A     26601      C   ...da/envs/ps-mt/bin/python3     2869MiB |\n",
        says=(
            logged("nvidia_smi_text", "cuda:5", others=((26598, "2885 MiB"), (26599, "1387 MiB"))),
            logged("nvidia_smi_text", "cuda:6", others=((26599, "2889 MiB"),)),
            logged("nvidia_smi_text", "cuda:8", others=((26601, "2869 MiB"),)),
        ),
    ),
    Wording(
        source="apache/mxnet#4242: processes of 2016, one without a name",
        text="+-----------------------------------------------------------------------------+\n| Processes:                                                       GPU Memory |\n|  GPU       PID  Type  Process name                               Usage      |\n|=====================================================================|\n|    0     31794    C   Unknown Error                                 5371MiB |\n|    1      7653    C   python                                        5369MiB |\n|    1     13386    C   /xx/xxx/caffe             1205MiB |\n|    1     27707    C   Unknown Error                                 1011MiB |\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", others=((31794, "5371 MiB"),)),
            logged("nvidia_smi_text", "cuda:1", others=((7653, "5369 MiB"), (13386, "1205 MiB"), (27707, "1011 MiB"))),
        ),
    ),
    Wording(
        source="pytorch/pytorch#910: nvidia-smi of driver 375",
        text="+-----------------------------------------------------------------------------+\n| NVIDIA-SMI 375.39                 Driver Version: 375.39                    |\n|-------------------------------+----------------------+----------------------+\n| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|===============================+======================+======================|\n|   0  GeForce GTX TIT...  Off  | 0000:03:00.0     Off |                  N/A |\n| 24%   63C    P2    72W / 250W |  11409MiB / 12207MiB |      0%      Default |\n+-------------------------------+----------------------+----------------------+\n|   1  GeForce GTX TIT...  Off  | 0000:06:00.0      On |                  N/A |\n| 22%   49C    P8    18W / 250W |    698MiB / 12204MiB |      0%      Default |\n+-------------------------------+----------------------+----------------------+\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", used="11409 MiB", capacity="12207 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="698 MiB", capacity="12204 MiB"),
        ),
    ),
    Wording(
        source="pytorch/pytorch#32101: the script's own counters, then the failure",
        text="memory_allocated 9.7478528 memory_cached 22.013804544\nmemory_allocated 11.03991552 memory_cached 24.29550592\n\nRuntimeError: CUDA out of memory. Tried to allocate 152.00 MiB (GPU 0; 31.72 GiB total capacity; 24.89 GiB already allocated; 6.12 MiB free; 30.70 GiB reserved in total by PyTorch)\n",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="152 MiB", capacity="31.72 GiB", allocated="24.89 GiB", free="6.12 MiB", reserved="30.70 GiB"),),
    ),
    Wording(
        source="pytorch/pytorch#44616: list_gpu_processes, one card empty",
        text="GPU:0\nprocess      79749 uses      601.000 MB GPU memory\nGPU:1\nno processes are running\n",
        says=(logged("torch_gpu_processes", "cuda:0", others=((79749, "601 MiB"),)),),
    ),
)  # fmt: skip
