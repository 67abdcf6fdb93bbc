# ruff: noqa: E501 (pasted messages keep their lines)
"""Wordings that no sample and no other test has, each with every number it says about memory, read off by eye.

Written down before the reader had seen any of them. A Wording lists statements in the text's order: whether something
failed, and the figures by field; `others` are processes with their numbers. A statement without figures only has to be
recognised.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    fails: bool
    figures: dict[str, str] = field(default_factory=dict)
    others: tuple[tuple[int, str], ...] = ()
    place: str = ""  # "" where the text leaves it open
    kind: str = ""  # the same
    also: tuple[
        str, ...
    ] = ()  # printed numbers without a field, found among the observation's figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    source: str
    text: str
    says: tuple[Statement, ...]


def failed(place: str = "", **figures: str) -> Statement:
    return Statement(fails=True, figures=figures, place=place)


def logged(place: str = "", others: tuple[tuple[int, str], ...] = (), **figures: str) -> Statement:
    return Statement(fails=False, figures=figures, place=place, others=others)


# The first collection. Its first score led to changes, so that what it scores now says little.
WORDINGS: tuple[Wording, ...] = (
    Wording(
        source="pcyin/tranX#41: dmesg wrapped with runs of blanks",
        text="[2059991.491542] Out of memory: Killed process 25315 (python3) total-vm:53312244                                                                                                                     kB, anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:690                                                                                                                     68kB oom_score_adj:0",
        says=(failed("host", process_bytes=f"{(31451456 + 74816 + 12296) * 1024} B"),),
    ),
    Wording(
        source="0jc1/py-autovod#7: dmesg with commas in the numbers, one of them astray",
        text="[Sun Mar 30 08:24:00 2025] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/init.scope,task=python,pid=7899,uid=0\n[Sun Mar 30 08:24:00 2025] Out of memory: Killed process 7899 (python) total-vm:26,184,840kB, anon-rss:153,700,88kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:38964kB oom_score_adj:0",
        says=(failed("host"), failed("host", process_bytes=f"{15370088 * 1024} B")),
    ),
    Wording(
        source="equinor/ert#7797: dmesg with ISO times",
        text="2024-04-29T14:55:41,679700+02:00 Out of memory: Killed process 1440763 (perl) total-vm:87033376kB, anon-rss:60356340kB, file-rss:0kB, shmem-rss:0kB, UID:21417 pgtables:169956kB oom_score_adj:0\n2024-04-29T14:55:46,947445+02:00 oom_reaper: reaped process 1440763 (perl), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        says=(failed("host", process_bytes=f"{60356340 * 1024} B"),),
    ),
    Wording(
        source="openbmc/openbmc#1887: an older kernel's line",
        text="[ 4018.450000] Killed process 935 (python) total-vm:113656kB, anon-rss:102104kB, file-rss:0kB, shmem-rss:0kB",
        says=(failed("host", process_bytes=f"{102104 * 1024} B"),),
    ),
    Wording(
        source="ZwwWayne/K-Net#30: slurmstepd with the node's name",
        text="slurmstepd-gpu20-15: error: Detected 1 oom-kill event(s) in StepId=9411285.0. Some of your processes may have been killed by the cgroup out-of-memory handler.",
        says=(failed("host"),),
    ),
    Wording(
        source="flyteorg/flyte#2376: exit code in brackets",
        text="[f8107735c673549d7acd-n0-0] terminated with exit code (137). Reason [Error]. Message: ",
        says=(failed("host"),),
    ),
    Wording(
        source="kubeflow/kubeflow#1261: a node short of memory",
        text="The node was low on resource: memory.",
        says=(failed("host"),),
    ),
    Wording(
        source="chrisknewman/tusas#149: free -lm",
        text="nid001310:~$ free -lm\n              total        used        free      shared  buff/cache   available\nMem:         257088      131148      135934        1120        2517      125939\nSwap:             0           0           0",
        says=(logged("host", capacity_bytes="257088 MiB", used_bytes="131148 MiB", free_bytes="135934 MiB"),),
    ),
    Wording(
        source="sgl-project/sglang#7691: after the weights (sglang divides by 2^30)",
        text="[2025-07-02 07:41:58 DP0 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=21.73 GB, mem usage=166.59 GB.",
        says=(logged("cuda", free_bytes="21.73 GiB", used_bytes="166.59 GiB"),),
    ),
    Wording(
        source="sgl-project/sglang#322",
        text="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        says=(failed("cuda"),),
    ),
    Wording(
        source="wookayin/gpustat#130: four cards, nobody on them",
        text="gpu-a-11.extreme         Mon Aug 22 15:23:57 2022  515.65.01\n[0] Tesla P100-PCIE-16GB | 27'C,   0 % |   103 / 16384 MB |\n[1] Tesla P100-PCIE-16GB | 27'C,   0 % |   103 / 16384 MB |\n[2] Tesla P100-PCIE-16GB | 28'C,   0 % |   103 / 16384 MB |\n[3] Tesla P100-PCIE-16GB | 27'C,   2 % |   103 / 16384 MB |",
        says=tuple(logged(f"cuda:{card}", used_bytes="103 MiB", capacity_bytes="16384 MiB") for card in range(4)),
    ),
    Wording(
        source="wookayin/gpustat#97: program and number of the process",
        text="[0] GeForce GTX Titan X | 77'C,  96 % | 11848 / 12287 MB | python/52046(11821M)",
        says=(logged("cuda:0", used_bytes="11848 MiB", capacity_bytes="12287 MiB", others=((52046, "11821 MiB"),)),),
    ),
    Wording(
        source="qizhou000/VisEdit#5: a holder without a name",
        text="[6] NVIDIA A100 80GB PCIe | 52'C, 100 % | 10151 / 81920 MB | (null)",
        says=(logged("cuda:6", used_bytes="10151 MiB", capacity_bytes="81920 MiB"),),
    ),
    Wording(
        source="XuehaiPan/nvitop#8: nvidia-smi's table of MIG devices",
        text="| MIG devices:                                                                |\n+------------------+----------------------+-----------+-----------------------+\n| GPU  GI  CI  MIG |         Memory-Usage |        Vol|         Shared        |\n|      ID  ID  Dev |           BAR1-Usage | SM     Unc| CE  ENC  DEC  OFA  JPG|\n|==================+======================+===========+=======================|\n|  1    3   0   0  |  14366MiB / 19968MiB | 28      0 |  2   0    1    0    0 |\n|                  |      4MiB / 32767MiB |           |                       |\n+------------------+----------------------+-----------+-----------------------+\n|  1    5   0   1  |   9880MiB / 19968MiB | 28      0 |  2   0    1    0    0 |\n|                  |      4MiB / 32767MiB |           |                       |",
        says=(
            logged(used_bytes="14366 MiB", capacity_bytes="19968 MiB"),
            logged(used_bytes="9880 MiB", capacity_bytes="19968 MiB"),
        ),
    ),
    Wording(
        source="abhishekbajpayee/nvidia-top#9: nvidia-top",
        text="  #                     Name            Mem. Use       Mem. Use            Pow. Use     Temp.\n----------------------------------------------------------------------------------------------\n  1     GeForce GTX TITAN X*    94 MiB/12209 MiB           0.77    20.38 W/250.00 W      37 C",
        says=(logged(used_bytes="94 MiB", capacity_bytes="12209 MiB"),),
    ),
    Wording(
        source="facebookarchive/loop#57: nvidia-smi rows between dashes, and torch 0.4's failure",
        text="+-------------------------------+----------------------+----------------------+\n--\n|   0  GeForce GTX 1080    Off  | 00000000:01:00.0  On |                  N/A |\n| 58%   70C    P2    67W / 200W |   8108MiB /  8111MiB |     25%      Default |\n+-------------------------------+----------------------+----------------------+\nTHCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
        says=(logged("cuda:0", used_bytes="8108 MiB", capacity_bytes="8111 MiB"), failed("cuda")),
    ),
    Wording(
        source="rowanz/neural-motifs#58: torch 0.4",
        text="RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCTensorRandom.cu:25",
        says=(failed("cuda"),),
    ),
    Wording(
        source="junjie18/CMT#15: spconv",
        text="RuntimeError: TensorStorage /io/include/tensorview/tensor.h 168\ncuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1 to get correct traceback.",
        says=(failed("cuda"),),
    ),
    Wording(
        source="ggml-org/llama.cpp#20431: the exact size on the next line",
        text="ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624\nllama_model_load: error loading model: unable to allocate CUDA0 buffer",
        says=(failed("cuda:0", requested_bytes="144817.04 MiB"), failed("cuda:0", requested_bytes="151851674624 B")),
    ),
    Wording(
        source="ggml-org/llama.cpp#11476: behind docker compose's prefix",
        text="deep-seek-1  | ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9866.00 MiB on device 1: cudaMalloc failed: out of memory",
        says=(failed("cuda:1", requested_bytes="9866 MiB"),),
    ),
    Wording(
        source="ggml-org/llama.cpp#9629: a decimal comma",
        text="ggml_cuda_host_malloc: failed to allocate 1900,00 MiB of pinned memory: invalid argument",
        says=(failed("host", requested_bytes="1900 MiB"),),
    ),
    Wording(
        source="candle-org/MindAct#1761: MindSpore",
        text="[ERROR] PRE_ACT(54175,fffdbcff91e0,python):2024-10-22-11:24:55.301.443 [mindspore/ccsrc/backend/common/mem_reuse/mem_dynamic_allocator.cc:392] AddMemBlockAndMemBufByEagerFree] TotalUsedMemStatistics : 29356337664 plus TotalUsedByEventMemStatistics : 0 and plus alloc size : 301990400 is more than total mem size : 29464985600.",
        says=(failed("npu", requested_bytes="301990400 B", allocated_bytes="29356337664 B", capacity_bytes="29464985600 B"),),
    ),
    Wording(
        source="PKU-YuanGroup/Helios#62: the Ascend runtime",
        text="ERROR 04-09 21:56:46 [diffusion_engine.py:82]         Call rtMalloc fail, purpose: page caching, type = 2, size:3221291008, device_id:0[FUNC:Alloc][FILE:device_allocator.cc][LINE:72]",
        says=(failed("npu:0", requested_bytes="3221291008 B"),),
    ),
    Wording(
        source="mindspore-ai/mindspore#172: pinned memory",
        text="[ERROR] MD(14433,7fea2effd700,python):2021-12-12-14:13:43.932.181 [mindspore/ccsrc/minddata/dataset/util/arena.cc:250] Init] cudaHostAlloc failed, ret[2], out of memory",
        says=(failed("host"),),
    ),
    Wording(
        source="PaddlePaddle/Paddle#19779: Paddle of 2019",
        text="Out of memory error on GPU 0. Cannot allocate 145.468994MB GPU memory, available memory is 72.312500MB.",
        says=(failed("cuda:0", requested_bytes="145.468994 MiB", free_bytes="72.3125 MiB"),),
    ),
    Wording(
        source="PaddlePaddle/Paddle#26892: wrapped after `only`",
        text="Out of memory error on GPU 0. Cannot allocate 1.531250GB memory on GPU 0, available memory is only \n                   416.625000MB.",
        says=(failed("cuda:0", requested_bytes="1.53125 GiB", free_bytes="416.625 MiB"),),
    ),
    Wording(
        source="PaddlePaddle/PaddleGAN#587",
        text="``Out of memory error on GPU 0. Cannot allocate 3.621826GB memory on GPU 0, 21.184814GB memory has been allocated and available memory is only 2.814575GB. Please check whether there is any other process using GPU 0.``",
        says=(failed("cuda:0", requested_bytes="3.621826 GiB", allocated_bytes="21.184814 GiB", free_bytes="2.814575 GiB"),),
    ),
    Wording(
        source="PaddlePaddle/Paddle#8992: Paddle of 2018",
        text="paddle.fluid.core.EnforceNotMet: enforce allocating <= available failed, 10513462067 > 1369702144\nat [/home/disk1/wanghaoshuang/paddle/Paddle/paddle/fluid/platform/gpu_info.cc:89]",
        says=(failed("cuda", requested_bytes="10513462067 B", free_bytes="1369702144 B"),),
    ),
    Wording(
        source="PaddlePaddle/Paddle#43211",
        text="OSError: (External) CUDA error(2), out of memory. \n  [Hint: 'cudaErrorMemoryAllocation'. The API call failed because it was unable to allocate enough memory to perform the requested operation. ] (at /paddle/paddle/phi/backends/gpu/gpu_context.cc:359)",
        says=(failed("cuda"),),
    ),
    Wording(
        source="patrick-kidger/equinox#737: XLA with the device's ordinal",
        text="XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 6.27GiB (6727663616B) on device ordinal 0",
        says=(failed("cuda:0", requested_bytes="6727663616 B"),),
    ),
    Wording(
        source="jax-ml/jax#788: XLA of 2019, broken inside `Out of`",
        text="[1] 2019-06-13 01:17:08.886805: E external/org_tensorflow/tensorflow/compiler/xla/python/local_client.cc:672] Execution of replica 0 failed: Resource exhausted: Out \nof memory while trying to allocate 5520758552 bytes.",
        says=(failed("cuda", requested_bytes="5520758552 B"),),
    ),
    Wording(
        source="intel/intel-extension-for-tensorflow#34: an allocator of no name, and the tensor on XPU",
        text="2023-05-13 17:10:55.926325: E itex/core/devices/bfc_allocator.cc:98] Allocator ran out of memory trying to allocate 117964800 Bytes (rounded to 117964800 Bytes)\nResourceExhaustedError: {{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:XPU:0}} OOM when allocating tensor with shape[3,3,2560,1280] and type float on /job:localhost/replica:0/task:0/device:XPU:0 by allocator Simple allocator [Op:AddV2]",
        says=(failed(requested_bytes="117964800 B"), failed("xpu:0", requested_bytes="117964800 B")),
    ),
    Wording(
        source="tensorflow/tensor2tensor#782: a warning that is no failure",
        text="2018-05-10 09:14:16.536752: W tensorflow/core/common_runtime/bfc_allocator.cc:217] Allocator (GPU_0_bfc) ran out of memory trying to allocate 84.60MiB. The caller indicates that this is not a failure, but may mean that there could be performance gains if more memory is available.",
        says=(logged("cuda:0", requested_bytes="84.60 MiB"),),
    ),
    Wording(
        source="vllm-project/vllm-ascend#1127: behind Ray's and vLLM's prefixes",
        text="(NPURayWorkerWrapper pid=45464) ERROR 06-09 06:57:48 worker_base.py:581] RuntimeError: NPU out of memory. Tried to allocate 30.00 MiB (NPU 3; 60.96 GiB total capacity; 60.34 GiB already allocated; 60.34 GiB current active; 14.24 MiB free; 60.60 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation. [repeated 6x across cluster]",
        says=(failed("npu:3", requested_bytes="30 MiB", capacity_bytes="60.96 GiB", allocated_bytes="60.34 GiB", free_bytes="14.24 MiB", reserved_bytes="60.60 GiB"),),
    ),
    Wording(
        source="Comfy-Org/ComfyUI#8767: XPU without free",
        text="XPU out of memory. Tried to allocate 5.12 GiB (GPU 0; 15.11 GiB total capacity; 13.40 GiB already allocated; 13.90 GiB reserved in total by PyTorch)",
        says=(failed("xpu:0", requested_bytes="5.12 GiB", capacity_bytes="15.11 GiB", allocated_bytes="13.40 GiB", reserved_bytes="13.90 GiB"),),
    ),
    Wording(
        source="huggingface/autotrain-advanced#737: HIP behind a logger",
        text="ERROR    | 2024-08-21 22:56:04 | autotrain.trainers.common:wrapper:121 - HIP out of memory. Tried to allocate 124.00 MiB. GPU 0 has a total capacity of 19.94 GiB of which 554.47 MiB is free. Of the allocated memory 15.87 GiB is allocated by PyTorch, and 165.29 MiB is reserved by PyTorch but unallocated.",
        says=(failed("cuda:0", requested_bytes="124 MiB", capacity_bytes="19.94 GiB", free_bytes="554.47 MiB", allocated_bytes="15.87 GiB", unallocated_bytes="165.29 MiB"),),
    ),
    Wording(
        source="pinokiocomputer/pinokio#941: MPS, a request of bytes",
        text="MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max allowed: 18.13 GB). Tried to allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        says=(failed("mps", allocated_bytes="16 GiB", allowed_bytes="18.13 GiB", requested_bytes="256 B"),),
    ),
    Wording(
        source="Comfy-Org/ComfyUI#7440: MPS in GiB",
        text="MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB). Tried to allocate 292.50 MiB on private pool.",
        says=(failed("mps", allocated_bytes="9.57 GiB", allowed_bytes="27.20 GiB", requested_bytes="292.50 MiB"),),
    ),
    Wording(
        source="Comfy-Org/ComfyUI#4634: cudaMallocAsync, blanks collapsed",
        text="Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated : 17.31 GiB\nRequested : 7.72 GiB\nDevice limit : 23.99 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n: 17179869184.00 GiB",
        says=(failed("cuda:0", allocated_bytes="17.31 GiB", requested_bytes="7.72 GiB", capacity_bytes="23.99 GiB", free_bytes="0 B"),),
    ),
    Wording(
        source="meta-pytorch/torchtune#389: torchtune's first statistics (it divides by 10^9)",
        text="        After Model Setup :\n        Memory Allocated: 13.51 GB\n        Memory Reserved: 28.14 GB\n        Peak Memory: 27.83 GB",
        says=(logged("cuda", allocated_bytes="13.51 GB", reserved_bytes="28.14 GB", peak_allocated_bytes="27.83 GB"),),
    ),
    Wording(
        source="Lightning-AI/lightning-thunder#2116: the benchmark's peak (it divides by 10^9)",
        text="Average iter time: 943.72 ms\nMemory used: 32.85 GB\nTokens/s: 69427.74",
        says=(logged("cuda", peak_allocated_bytes="32.85 GB"),),
    ),
    Wording(
        source="ultralytics/yolov5#8914: AutoBatch's forecast",
        text="AutoBatch: Using batch-size 3 for CUDA:0 5.40G/6.00G (90%)",
        says=(logged("cuda:0", used_bytes="5.40 GiB", capacity_bytes="6 GiB"),),
    ),
    Wording(
        source="huggingface/optimum#1060: ONNX Runtime",
        text="onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 90177536",
        says=(failed(requested_bytes="90177536 B"),),
    ),
    Wording(
        source="QwenLM/Qwen3-VL#334: a corrupt size",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 538976288.13 GiB. GPU 1 has a total capacity of 47.54 GiB of which 43.55 GiB is free. Process 741857 has 3.97 GiB memory in use. Of the allocated memory 3.19 GiB is allocated by PyTorch, and 478.31 MiB is reserved by PyTorch but unallocated.",
        says=(
            Statement(
                fails=True, place="cuda:1", others=((741857, "3.97 GiB"),),
                figures={"requested_bytes": "538976288.13 GiB", "capacity_bytes": "47.54 GiB", "free_bytes": "43.55 GiB", "allocated_bytes": "3.19 GiB", "unallocated_bytes": "478.31 MiB"},
            ),
        ),
    ),
    Wording(
        source="awslabs/sockeye#897: MXNet's cuBLAS",
        text="mxnet.base.MXNetError: Check failed: err == CUBLAS_STATUS_SUCCESS (1 vs. 0) : Create cublas handle failed",
        says=(failed("cuda"),),
    ),
    Wording(
        source="Lightning-AI/lightning-thunder#2116: cut after free",
        text="RuntimeError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 3 has a total capacity of 79.10 GiB of which 83.88 MiB is free.",
        says=(failed("cuda:3", requested_bytes="448 MiB", capacity_bytes="79.10 GiB", free_bytes="83.88 MiB"),),
    ),
)  # fmt: skip

# Collected after those changes, and read by eye before they were tried on it.
LATER_WORDINGS: tuple[Wording, ...] = (
    Wording(
        source="salesforce/LAVIS#84: MetricLogger's peak, in MiB",
        text="Evaluation  [2060/5000]  eta: 0:02:28    time: 0.0498  data: 0.0003  max mem: 17239",
        says=(logged("cuda", allocated_bytes="17239 MiB"),),
    ),
    Wording(
        source="NVIDIA/TensorRT-LLM#3636",
        text="RuntimeError: Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mMemPool->getPool(), mCudaStream->get()): out of memory (/home/jenkins/agent/workspace/LLM/release-0.18/L0_Test-x86_64/tensorrt_llm/cpp/tensorrt_llm/runtime/tllmBuffers.h:125)",
        says=(failed("cuda"),),
    ),
    Wording(
        source="ggml-org/llama.cpp#1230",
        text="CUDA error 2 at ggml-cuda.cu:359: out of memory",
        says=(failed("cuda"),),
    ),
    Wording(
        source="microsoft/computervision-recipes#561: KiB free",
        text="CUDA out of memory. Tried to allocate 36.00 MiB (GPU 0; 4.00 GiB total capacity; 2.88 GiB already allocated; 627.20 KiB free; 2.95 GiB reserved in total by PyTorch)",
        says=(failed("cuda:0", requested_bytes="36 MiB", capacity_bytes="4 GiB", allocated_bytes="2.88 GiB", free_bytes="0.6125 MiB", reserved_bytes="2.95 GiB"),),
    ),
    Wording(
        source="vllm-project/vllm#15039: a worker's log, private pools",
        text="(VllmWorkerProcess pid=486731) ERROR 03-19 10:55:18 [multiproc_worker_utils.py:242] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 2 has a total capacity of 79.33 GiB of which 16.00 MiB is free. Process 37008 has 79.29 GiB memory in use. Of the allocated memory 69.59 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 118.90 MiB is reserved by PyTorch but unallocated.",
        says=(
            Statement(
                fails=True, place="cuda:2", others=((37008, "79.29 GiB"),),
                figures={"requested_bytes": "128 MiB", "capacity_bytes": "79.33 GiB", "free_bytes": "16 MiB", "allocated_bytes": "69.59 GiB", "unallocated_bytes": "118.90 MiB"},
            ),
        ),
    ),
    Wording(
        source="ollama/ollama#9782: where llama.cpp put the model",
        text="load_tensors: offloaded 62/62 layers to GPU\nload_tensors:        CUDA0 model buffer size = 48928.09 MiB\nload_tensors:        CUDA1 model buffer size = 70752.48 MiB",
        says=(logged("cuda:0", allocated_bytes="48928.09 MiB"), logged("cuda:1", allocated_bytes="70752.48 MiB")),
    ),
    Wording(
        source="zju3dv/Diffuman4D#20: under a rich box",
        text="│   126 class SwiGLU(nn.Module):                                                    │\n╰────────────────────────────────────────────────────────────────────────────────────╯\nOutOfMemoryError: CUDA out of memory. Tried to allocate 960.00 MiB. GPU 0 has a total capacity of 23.99 GiB of which 15.52 GiB is free. Of the allocated memory 6.78 GiB is allocated by PyTorch, and 76.36 MiB is reserved by PyTorch but unallocated.",
        says=(failed("cuda:0", requested_bytes="960 MiB", capacity_bytes="23.99 GiB", free_bytes="15.52 GiB", allocated_bytes="6.78 GiB", unallocated_bytes="76.36 MiB"),),
    ),
    Wording(
        source="pytorch/examples#621: a card in MiB",
        text="RuntimeError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 1024.00 MiB total capacity; 435.61 MiB already allocated; 24.17 MiB free; 26.39 MiB cached)",
        says=(failed("cuda:0", requested_bytes="26 MiB", capacity_bytes="1024 MiB", allocated_bytes="435.61 MiB", free_bytes="24.17 MiB", unallocated_bytes="26.39 MiB"),),
    ),
    Wording(
        source="kaito-project/kaito#976: vLLM's engine log",
        text="ERROR 04-01 23:46:56 [engine.py:160] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB is free. Process 562167 has 15.25 GiB memory in use. Of the allocated memory 13.73 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 736.86 MiB is reserved by PyTorch but unallocated.",
        says=(
            Statement(
                fails=True, place="cuda:0", others=((562167, "15.25 GiB"),),
                figures={"requested_bytes": "546 MiB", "capacity_bytes": "15.77 GiB", "free_bytes": "514.19 MiB", "allocated_bytes": "13.73 GiB", "unallocated_bytes": "736.86 MiB"},
            ),
        ),
    ),
)  # fmt: skip
