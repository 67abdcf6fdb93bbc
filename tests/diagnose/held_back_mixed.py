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

# Collected with other searches after the changes that the first score led to.
LATER_MIXED: tuple[Wording, ...] = (
    Wording(
        source="Lightning-AI/litgpt#303: one card, then two, the second message cut",
        text="iter 3436 step 53: loss 2.9911, iter time: 400.10ms\nTraceback (most recent call last):\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.06 GiB. GPU 0 has a total capacty of 23.70 GiB of which 1.27 GiB is free. Including non-PyTorch memory, this process has 22.43 GiB memory in use. Of the allocated memory 12.62 GiB is allocated by PyTorch, and 8.65 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation. See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\n```\n\nWith 2 GPUs:\n```\niter 4 step 0: loss 2.6297, iter time: 827.80ms\n...\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.06 GiB. GPU 1 has a total capacty of 23.70 GiB of which 1.60 GiB is free. Including non-PyTorch memory, this process has 22.10 GiB memory in use. Of the allocated memory 12.16 GiB is allocated",
        says=(
            failed("torch_cuda_oom_v2", "cuda:0", requested="8.06 GiB", capacity="23.70 GiB", free="1.27 GiB", process="22.43 GiB", allocated="12.62 GiB", unallocated="8.65 GiB"),
            failed("torch_cuda_oom_v2", "cuda:1", requested="8.06 GiB", capacity="23.70 GiB", free="1.60 GiB", process="22.10 GiB", allocated="12.16 GiB"),
        ),
    ),
    Wording(
        source="huggingface/trl#3436: the ranks' traceback behind it",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total capacity of 9.68 GiB of which 95.75 MiB is free. Including non-PyTorch memory, this process has 9.54 GiB memory in use. Of the allocated memory 6.61 GiB is allocated by PyTorch, and 2.57 GiB is reserved by PyTorch but unallocated." + HINT + '\n[rank0]: Traceback (most recent call last):\n[rank0]:   File "/data/cy/LLMlable/grpo/sft/sft.py", line 67, in <module>\n[rank0]:     trainer.train()\n',
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="388 MiB", capacity="9.68 GiB", free="95.75 MiB", process="9.54 GiB", allocated="6.61 GiB", unallocated="2.57 GiB"),),
    ),
    Wording(
        source="pytorch/pytorch#123070: cut inside a word",
        text='  File "/project/p_trancal/trsclbjob/lib/python3.10/site-packages/torch/nn/functional.py", line 5115, in _canonical_mask\n    torch.zeros_like(mask, dtype=target_type)\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 29.07 GiB. GPU 3 has a total capaci',
        says=(failed("", "cuda:3", requested="29.07 GiB"),),
    ),
    Wording(
        source="hzxie/CityDreamer#14",
        text="```\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.62 GiB (GPU 0; 3.63 GiB total capacity; 904.46 MiB already allocated; 1.60 GiB free; 930.00 MiB reserved in total by PyTorch)" + OLD_HINT + "\n\n```\n",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="5.62 GiB", capacity="3.63 GiB", allocated="904.46 MiB", free="1.60 GiB", reserved="930 MiB"),),
    ),
    Wording(
        source="mahmoodlab/Patch-GCN#28: translated by a browser",
        text="> 当我没有跳过大尺寸的包时，我遇到了内存问题。我收到的错误消息是：RuntimeError：CUDA 内存不足。尝试分配 2.92 GiB（GPU 0;23.65 GiB 总容量;已分配 19.63 GiB;188.56 MiB 可用;PyTorch 总共保留 21.93 GiB） 我的设置包括一个 4090 显卡\n",
        says=(failed("", "cuda:0", requested="2.92 GiB", capacity="23.65 GiB", allocated="19.63 GiB", free="188.56 MiB", reserved="21.93 GiB"),),
    ),
    Wording(
        source="juglab/EmbedSeg#8: inside a sentence",
        text="when I start the \n`begin_training(train_dataset_dict, val_dataset_dict, model_dict, loss_dict, configs)`, I have RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 31.75 GiB total capacity; 30.71 GiB already allocated; 62.50 MiB free; 12.93 MiB cached). Please let me know how can I solve it.\n",
        says=(failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="128 MiB", capacity="31.75 GiB", allocated="30.71 GiB", free="62.5 MiB", unallocated="12.93 MiB"),),
    ),
    Wording(
        source="open-edge-platform/anomalib#203: a progress bar below",
        text="RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 5.42 GiB already allocated; 23.50 MiB free; 5.43 GiB reserved in total by PyTorch)\nEpoch 0:  62%|██████▏   | 878/1417 [00:15<00:09, 56.28it/s]\n",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="20 MiB", capacity="7.79 GiB", allocated="5.42 GiB", free="23.5 MiB", reserved="5.43 GiB"),),
    ),
    Wording(
        source="uni-medical/STU-Net#17: a thread's exception behind it",
        text="`RuntimeError: CUDA out of memory. Tried to allocate 1.25 GiB (GPU 0; 44.56 GiB total capacity; 41.63 GiB already allocated; 217.56 MiB free; 42.35 GiB reserved in total by PyTorch)" + OLD_HINT + " Exception in thread Thread-6:`\n",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="1.25 GiB", capacity="44.56 GiB", allocated="41.63 GiB", free="217.56 MiB", reserved="42.35 GiB"),),
    ),
    Wording(
        source="pytorch/pytorch#16417: the message, then nvidia-smi of driver 430",
        text="RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 7.94 GiB total capacity; 7.33 GiB already allocated; 1.12 MiB free; 40.48 MiB cached)\n\nnvidia-smi \nThu Aug 22 21:05:52 2019       \n+-----------------------------------------------------------------------------+\n| NVIDIA-SMI 430.40       Driver Version: 430.40       CUDA Version: 10.1     |\n|-------------------------------+----------------------+----------------------+\n| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|===============================+======================+======================|\n|   0  Quadro M4000        Off  | 00000000:09:00.0  On |                  N/A |\n| 46%   37C    P8    12W / 120W |     71MiB /  8126MiB |     10%      Default |\n+-------------------------------+----------------------+----------------------+\n|   1  GeForce GTX 105...  Off  | 00000000:41:00.0  On |                  N/A |\n| 29%   33C    P8    N/A /  75W |    262MiB /  4032MiB |      0%",
        says=(
            failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="2 MiB", capacity="7.94 GiB", allocated="7.33 GiB", free="1.12 MiB", unallocated="40.48 MiB"),
            logged("nvidia_smi_text", "cuda:0", used="71 MiB", capacity="8126 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="262 MiB", capacity="4032 MiB"),
        ),
    ),
    Wording(
        source="YBIGTA/pytorch-hair-segmentation#28: under a Windows traceback",
        text='  File "E:\\2018\\final\\HairSegment\\pytorch-hair-segmentation\\networks\\pspnet.py", line 59, in forward\n    return torch.cat(features, dim=1)\nRuntimeError: CUDA out of memory. Tried to allocate 32.00 MiB (GPU 0; 8.00 GiB total capacity; 5.75 GiB already allocated; 17.18 MiB free; 351.95 MiB cached)\n',
        says=(failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="32 MiB", capacity="8 GiB", allocated="5.75 GiB", free="17.18 MiB", unallocated="351.95 MiB"),),
    ),
    Wording(
        source="facebookresearch/ParlAI#4452: behind a rank and a level",
        text='rank:  3 | 2022-04-03 18:44:26,615 CRITICAL | Traceback (most recent call last):\n  File "/mnt/lustre/zhaojianqiao/ParlAI/parlai/utils/fp16.py", line 194, in backward\n    loss.backward()\nRuntimeError: CUDA out of memory. Tried to allocate 21.06 GiB (GPU 3; 79.35 GiB total capacity; 63.19 GiB already allocated; 8.57 GiB free; 68.48 GiB reserved in total by PyTorch)' + OLD_HINT + "\n\nDuring handling of the above exception, another exception occurred:\n",
        says=(failed("torch_cuda_oom_v1", "cuda:3", requested="21.06 GiB", capacity="79.35 GiB", allocated="63.19 GiB", free="8.57 GiB", reserved="68.48 GiB"),),
    ),
    Wording(
        source="ssitu/ComfyUI_fabric#4: cudaMallocAsync, much asked for",
        text="torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 2.65 GiB\nRequested               : 32.00 GiB\nDevice limit            : 8.00 GiB\nFree (according to CUDA): 3.97 GiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n\nPrompt executed in 1.62 seconds\n",
        says=(failed("torch_cudamallocasync_oom", "cuda:0", requested="32 GiB", capacity="8 GiB", free="3.97 GiB", allocated="2.65 GiB"),),
    ),
    Wording(
        source="maybleMyers/H1111#23: behind a launcher's word",
        text="SUBPROCESS: └─────────────────────────────────────────────────────────────────────────────┘\nSUBPROCESS: RuntimeError: CUDA error: out of memory\nSUBPROCESS: CUDA kernel errors might be asynchronously reported at some other API call, so\nSUBPROCESS: the stacktrace below might be incorrect.\n",
        says=(failed("cuda_runtime_oom", ""),),
    ),
    Wording(
        source="vllm-project/vllm-omni#1199: NPU, cut in a title",
        text="[Bug]: RuntimeError: NPU out of memory. Tried to allocate 52.00 MiB (NPU 0; 60.96 GiB total capacity; 59.36 GiB already allocated;",
        says=(failed("torch_npu_oom", "npu:0", requested="52 MiB", capacity="60.96 GiB", allocated="59.36 GiB"),),
    ),
    Wording(
        source="real-stanford/flingbot#11: Ray with the task's own use (Ray's GB are GiB)",
        text="ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 192.168.0.107, ID: fc2befb2867ce88e73a8a45572c43a640751ae1f2b5e15bd8315f293) where the task (actor ID: f9cc340f5aef7b479d86345001000000, name=SimEnv.__init__, pid=4331, memory used=2.22GB) was running was 59.49GB / 62.58GB (0.950744), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: d98ac96cdd66ea8c0a2604609381c3256c8285b87822896c767f7714) because it was the most recently scheduled task\n",
        says=(failed("host_oom_kill", "host", used="59.49 GiB", capacity="62.58 GiB", process="2.22 GiB"),),
    ),
    Wording(
        source="ray-project/ray#28776: an older Ray, a blank line between",
        text="ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n\nMemory on the node (IP: 172.31.69.247, ID: 5bf8d24f68a4b2f966b34cb94a41d1a312f406dc9081063ea7dd661b) where the task was running was 54.86GB / 57.60GB (0.952354), which exceeds the memory usage threshold of 0.95. Ray killed this worker\n",
        says=(failed("host_oom_kill", "host", used="54.86 GiB", capacity="57.60 GiB"),),
    ),
    Wording(
        source="flwrlabs/flower#2157: the raylet's summary",
        text="(raylet) [2023-07-23 15:21:29,851 E 9751 9751] (raylet) node_manager.cc:3084: 4 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: b287aac2de42bef55d13e884c4bdb6cffb2d81d1dc96aa08c4633a43, IP: 172.28.0.12) over the last time period.\n",
        says=(failed("host_oom_kill", "host"),),
    ),
    Wording(
        source="docker/for-linux#1001: two kills, a name in brackets",
        text="May 15 23:09:30 ubuntu-s-1vcpu-2gb-ams3-01 kernel: [  518.050606] Out of memory: Killed process 15784 (python3) total-vm:11964kB, anon-rss:4288kB, file-rss:3028kB, shmem-rss:0kB\nMay 15 23:09:30 ubuntu-s-1vcpu-2gb-ams3-01 kernel: [  518.053407] oom_reaper: reaped process 15784 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB\nMay 15 23:09:30 ubuntu-s-1vcpu-2gb-ams3-01 kernel: [  518.061172] Out of memory: Killed process 15925 ((resolved)) total-vm:168424kB, anon-rss:4064kB, file-rss:3584kB, shmem-rss:0kB\n",
        says=(
            failed("host_oom_kill", "host", process=f"{(4288 + 3028) * 1024} B", also=("15784 B", f"{11964 * 1024} B")),
            failed("host_oom_kill", "host", process=f"{(4064 + 3584) * 1024} B", also=("15925 B", f"{168424 * 1024} B")),
        ),
    ),
    Wording(
        source="microsoft/pai#1089: quoted, bash's line, then the kernel's limit",
        text="> read 860000 img\n> /pai/bootstrap/docker_bootstrap.sh: line 159:   943 Killed                  /usr/bin/python3 Res-click-adCategory.py\n> [DEBUG] EXIT signal received in docker container, exiting ...\n\n> core@paigcr-a-gpu-1013:~ $ dmesg  -T | grep oom -C 100\n> ...\n> [Thu Aug 16 09:05:19 2018] memory: usage 184320000kB, limit 184320000kB, failcnt 2316326\n",
        says=(failed("host_oom_kill", "host", used=f"{184320000} KiB", allowed=f"{184320000} KiB"), failed("host_oom_kill", "host")),
    ),
    Wording(
        source="flux-framework/flux-core#6289: Flux (G is 2^30)",
        text="29.475s: flux-shell[0]: ERROR: oom: Memory cgroup out of memory: killed 1 task on picl7.\n29.563s: flux-shell[0]: ERROR: oom: memory.peak = 1.4428558G\n",
        says=(failed("host_oom_kill", "host"), logged("", "host", used="1.4428558 GiB")),
    ),
    Wording(
        source="MIC-DKFZ/nnUNet#2162: shared memory, full",
        text='  File "/opt/miniconda3/envs/nnUnet_scratch/lib/python3.10/site-packages/torch/storage.py", line 374, in _share_fd_cpu_\n    return super()._share_fd_cpu_(*args, **kwargs)\nRuntimeError: unable to write to file </torch_8289_606636967_0>: No space left on device (28)\n',
        says=(failed("host_shm", "shm"),),
    ),
    Wording(
        source="vllm-project/vllm#10439: behind docker compose",
        text="vllm-1  | ERROR 11-18 18:07:28 engine.py:366] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n",
        says=(failed("vllm_startup", ""),),
    ),
    Wording(
        source="vllm-project/vllm#14574: what the weights took (vLLM's GB were GiB)",
        text="[2025-03-10T15:07:20Z] INFO 03-10 08:07:20 [gpu_model_runner.py:1067] Model loading took 0.2389 GB and 0.977005 seconds\n",
        says=(logged("", "cuda", also=("0.2389 GiB",)),),
    ),
    Wording(
        source="ml-explore/mlx-lm#236: peaks, then Metal's refusal (mlx-lm divides by 10^9)",
        text="Iter 10: Train loss 2.586, Learning Rate 1.000e-05, It/sec 1.426, Tokens/sec 251.622, Trained Tokens 1764, Peak mem 31.753 GB\nIter 50: Train loss 1.487, Learning Rate 1.000e-05, It/sec 0.372, Tokens/sec 358.620, Trained Tokens 26805, Peak mem 34.108 GB\nlibc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\nzsh: abort      mlx_lm.lora --model ./Qwen3-8\n",
        says=(
            logged("mlx_log", "mps", allocated="31.753 GB"),
            logged("mlx_log", "mps", allocated="34.108 GB"),
            failed("mlx_oom", "mps"),
        ),
    ),
    Wording(
        source="Blaizzy/mlx-vlm#79: MLX, larger than a buffer may be",
        text="libc++abi: terminating due to uncaught exception of type std::runtime_error: Attempting to allocate 51619840000 bytes which is greater than the maximum allowed buffer size of 21743271936 bytes.\nFatal Python error: Aborted\n",
        says=(failed("mlx_oom", "mps", requested="51619840000 B", allowed="21743271936 B"),),
    ),
    Wording(
        source="tensorflow/tensorflow#3304: statistics of 2016",
        text="I tensorflow/core/common_runtime/bfc_allocator.cc:696] Sum Total of in-use chunks: 479.76MiB\nI tensorflow/core/common_runtime/bfc_allocator.cc:698] Stats: \nLimit:                   503270604\nInUse:                   503061248\nMaxInUse:                503061248\nNumAllocs:                20717987\nMaxAllocSize:              4219136\n",
        says=(logged("tf_bfc", "cuda", allowed="503270604 B", allocated="503061248 B", peak_allocated="503061248 B", also=("4219136 B",)),),
    ),
    Wording(
        source="google-deepmind/jax_privacy#10: a device's ordinal",
        text="Original error: RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on device ordinal 0\n",
        says=(failed("jax_gpu_oom", "cuda:0", requested="184549376 B"),),
    ),
    Wording(
        source="Physical-Intelligence/openpi#379: of a replica",
        text="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 150994944 bytes.: while running replica 0 and partition 0 of a replicated computation (other replicas may have failed as well).\n",
        says=(failed("jax_gpu_oom", "", requested="150994944 B"),),
    ),
    Wording(
        source="pytorch/xla#3470: TPU at run time, behind a logger",
        text="2022-04-04 00:27:49.642380: E tensorflow/compiler/xla/xla_client/xla_util.cc:88]   (1) RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible. There are 6.78G free, 0B reserved, and 3.33G reservable.\n",
        says=(failed("jax_tpu_oom", "", requested="6.48 GiB", free="6.78 GiB", also=("0 B", "3.33 GiB")),),
    ),
    Wording(
        source="ggml-org/llama.cpp#18181: the size twice, rounded and in bytes",
        text="ggml_backend_cuda_buffer_type_alloc_buffer: allocating 372.08 MiB on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 390156544\n",
        says=(failed("", "cuda:0", requested="372.08 MiB"), failed("", "cuda:0", requested="390156544 B")),
    ),
    Wording(
        source="lmstudio-ai/lmstudio-bug-tracker#1360: where llama.cpp put the model",
        text="load_tensors: offloaded 20/49 layers to GPU\nload_tensors:   CPU_Mapped model buffer size =  4944.60 MiB\nload_tensors:        CUDA0 model buffer size =  3621.44 MiB\n",
        says=(logged("llama_cpp_log", "cuda:0", also=("3621.44 MiB",)),),
    ),
    Wording(
        source="huggingface/optimum-habana#89: Gaudi's log",
        text="{'loss': 0.6188, 'learning_rate': 2.9130434782608696e-05, 'epoch': 0.09, 'memory_allocated (GB)': 3.82, 'max_memory_allocated (GB)': 6.32, 'total_memory_available (GB)': 29.85}\n",
        says=(logged("hf_trainer_log", "hpu:0", allocated="3.82 GiB", peak_allocated="6.32 GiB", capacity="29.85 GiB"),),
    ),
    Wording(
        source="huggingface/transformers#13915: Trainer metrics, one of them negative",
        text="***** train metrics *****\n  before_init_mem_gpu        =      312MB\n  train_mem_gpu_alloc_delta  =     -153MB\n  train_mem_gpu_peaked_delta =     2012MB\n",
        says=(logged("hf_trainer_metrics", "cuda", also=("312 MiB", "-153 MiB", "2012 MiB")),),
    ),
    Wording(
        source="ecmwf/WeatherGenerator#2628: a JSON line of its own",
        text='{"weathergen.timestamp": 1783935174691, "stage": "train", "weathergen.step": 280, "performance.memory.train.max_allocated_gib": 15.098231315612793, "performance.memory.train.max_reserved_gib": 17.353515625}\n',
        says=(logged("", "cuda", peak_allocated="15.098231315612793 GiB", peak_reserved="17.353515625 GiB"),),
    ),
    Wording(
        source="gaopengcuhk/Stable-Pix2Seq#14: MetricLogger's peak",
        text="Epoch: [0]  [1280/3696]  eta: 0:32:17  lr: 0.000100  loss: 5.1132 (5.4946)  at: 5.1132 (5.4946)  at_unscaled: 5.1132 (5.4946)  time: 0.7906  data: 0.0349  max mem: 29528\n",
        says=(logged("metric_logger", "cuda", allocated="29528 MiB"),),
    ),
    Wording(
        source="iLearn-Lab/CVPR25-OSGNet#2: nvidia-smi of driver 570",
        text="+-----------------------------------------------------------------------------------------+\n| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |\n|-----------------------------------------+------------------------+----------------------+\n| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n|                                         |                        |               MIG M. |\n|=========================================+========================+======================|\n|   0  NVIDIA GeForce RTX 4090 D      Off |   00000000:34:00.0 Off |                  Off |\n| 32%   30C    P8             19W /  425W |      15MiB /  24564MiB |      0%      Default |\n|                                         |                        |                  N/A |\n+-----------------------------------------+------------------------+----------------------+\n|   1  NVIDIA GeForce RTX 4090 D      Off |   00000000:35:00.0 Off |                  Off |\n| 32%   31C    P8             21W /  425W |      15MiB /  24564MiB |      0%      Default |\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", used="15 MiB", capacity="24564 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="15 MiB", capacity="24564 MiB"),
        ),
    ),
    Wording(
        source="chuanli11/MGANs#1: one program on four cards, beside another",
        text="+-----------------------------------------------------------------------------+\n| Processes:                                                       GPU Memory |\n|  GPU       PID  Type  Process name                               Usage      |\n|=============================================================================|\n|    0      8090    G   /usr/bin/X                                     138MiB |\n|    0     15633    C   /home/hertzman/torch/install/bin/luajit        149MiB |\n|    2     15633    C   /home/hertzman/torch/install/bin/luajit       7118MiB |\n|    2     29852    C   /usr/bin/python                                111MiB |\n+-----------------------------------------------------------------------------+\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", others=((8090, "138 MiB"), (15633, "149 MiB"))),
            logged("nvidia_smi_text", "cuda:2", others=((15633, "7118 MiB"), (29852, "111 MiB"))),
        ),
    ),
    Wording(
        source="NVIDIA/gpu-operator#2880: a list typed off nvidia-smi",
        text="For example, nvidia-smi showed the following processes consuming memory on a single Tesla T4:\n\nPID       GPU Memory\n3794364 5144MiB\n3794783  2070 MiB\n3798331  1562 MiB\n",
        says=(logged("", "", others=((3794364, "5144 MiB"), (3794783, "2070 MiB"), (3798331, "1562 MiB"))),),
    ),
)  # fmt: skip
