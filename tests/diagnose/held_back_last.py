# ruff: noqa: E501 (pasted messages keep their lines)
"""The last texts and threads: collected with yet other searches after all changes, read by eye before they were tried."""

from __future__ import annotations

from held_back_same_kinds import HINT, OLD_HINT, failed, logged
from held_back_threads import Thread
from held_back_wordings import Wording

HIP_HINT = HINT.replace("PYTORCH_CUDA", "PYTORCH_HIP")
TF_HINT = "\nHint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions for current allocation info.\n"

LAST_MIXED: tuple[Wording, ...] = (
    Wording(
        source="khanld/ASR-Wav2vec-Finetune#13",
        text="    return F.linear(input, self.weight, self.bias)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 102.00 MiB. GPU 1 has a total capacity of 39.38 GiB of which 5.38 MiB is free. Including non-PyTorch memory, this process has 39.36 GiB memory in use. Of the allocated memory 38.72 GiB is allocated by PyTorch, and 130.74 MiB is reserved by PyTorch but unallocated." + HINT + "`",
        says=(failed("torch_cuda_oom_v2", "cuda:1", requested="102 MiB", capacity="39.38 GiB", free="5.38 MiB", process="39.36 GiB", allocated="38.72 GiB", unallocated="130.74 MiB"),),
    ),
    Wording(
        source="facebookresearch/fairseq#932: a warning in italics",
        text="_WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 1.16 GiB (GPU 0; 10.91 GiB total capacity; 6.55 GiB already allocated; 1.05 GiB free; 1.94 GiB cached);\nSkipping batch_\n",
        says=(failed("torch_cuda_oom_legacy_cached", "cuda:0", requested="1.16 GiB", capacity="10.91 GiB", allocated="6.55 GiB", free="1.05 GiB", unallocated="1.94 GiB"),),
    ),
    Wording(
        source="huggingface/diffusers#10120: in a container, between backticks",
        text="`torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 36.00 MiB. GPU 0 has a total capacity of 39.56 GiB of which 2.81 MiB is free. Process 16368 has 39.55 GiB memory in use. Of the allocated memory 38.05 GiB is allocated by PyTorch, and 1021.72 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management `\n",
        says=(failed("torch_cuda_oom_v2", "cuda:0", requested="36 MiB", capacity="39.56 GiB", free="2.81 MiB", allocated="38.05 GiB", unallocated="1021.72 MiB", others=((16368, "39.55 GiB"),)),),
    ),
    Wording(
        source="pygod-team/pygod#72: under a notebook's traceback",
        text="~\\anaconda3\\lib\\site-packages\\torch_geometric\\utils\\to_dense_adj.py in to_dense_adj(edge_index, batch, edge_attr, max_num_nodes)\n     46     size = [batch_size, max_num_nodes, max_num_nodes]\n     47     size += list(edge_attr.size())[1:]\n---> 48     adj = torch.zeros(size, dtype=edge_attr.dtype, device=edge_index.device)\n     49 \n\nRuntimeError: CUDA out of memory. Tried to allocate 597.53 GiB (GPU 0; 16.00 GiB total capacity; 1.32 GiB already allocated; 12.78 GiB free; 1.35 GiB reserved in total by PyTorch)" + OLD_HINT,
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="597.53 GiB", capacity="16 GiB", allocated="1.32 GiB", free="12.78 GiB", reserved="1.35 GiB"),),
    ),
    Wording(
        source="pyg-team/pytorch_geometric#1113",
        text="`RuntimeError: CUDA out of memory. Tried to allocate 454.00 MiB (GPU 0; 10.76 GiB total capacity; 7.27 GiB already allocated; 453.12 MiB free; 9.45 GiB reserved in total by PyTorch)`\n",
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="454 MiB", capacity="10.76 GiB", allocated="7.27 GiB", free="453.12 MiB", reserved="9.45 GiB"),),
    ),
    Wording(
        source="pyg-team/pytorch_geometric#2730: a title with one number",
        text="RuntimeError: CUDA out of memory.(GPU 1; 14.76 GiB total capacity;)",
        says=(failed("torch_cuda_oom_v1", "cuda:1", capacity="14.76 GiB"),),
    ),
    Wording(
        source="NVIDIA/Megatron-LM#60: the next rank's traceback behind it",
        text='  File "/opt/conda/lib/python3.6/site-packages/torch/_utils.py", line 229, in _flatten_dense_tensors\n    flat = torch.cat([t.contiguous().view(-1) for t in tensors], dim=0)\nRuntimeError: CUDA out of memory. Tried to allocate 2.29 GiB (GPU 0; 31.72 GiB total capacity; 19.22 GiB already allocated; 1.88 GiB free; 28.32 GiB reserved in total by PyTorch)\nTraceback (most recent call last):\n  File "/opt/conda/lib/python3.6/runpy.py", line 193, in _run_module_as_main\n',
        says=(failed("torch_cuda_oom_v1", "cuda:0", requested="2.29 GiB", capacity="31.72 GiB", allocated="19.22 GiB", free="1.88 GiB", reserved="28.32 GiB"),),
    ),
    Wording(
        source="open-mmlab/mmdetection#188: torch 0.4.1",
        text='  File "/root/mmdetection/mmdet/core/bbox/geometry.py", line 59, in bbox_overlaps\n    ious = overlap / (area1[:, None] + area2 - overlap)\nRuntimeError: CUDA error: out of memory\n',
        says=(failed("cuda_runtime_oom", ""),),
    ),
    Wording(
        source="m-bain/whisperX#504: CTranslate2's words",
        text="RuntimeError: CUDA failed with error out of memory",
        says=(failed("cuda_runtime_oom", ""),),
    ),
    Wording(
        source="pinokiofactory/flux-webui#25: HIP, quoted",
        text="> Traceback (most recent call last):\n> (...)lots of traceback(...)\n> torch.OutOfMemoryError: HIP out of memory. Tried to allocate 80.00 MiB. GPU 0 has a total capacity of 15.98 GiB of which 84.00 MiB is free. Of the allocated memory 15.44 GiB is allocated by PyTorch, and 267.59 MiB is reserved by PyTorch but unallocated." + HIP_HINT,
        says=(failed("torch_hip_oom", "cuda:0", requested="80 MiB", capacity="15.98 GiB", free="84 MiB", allocated="15.44 GiB", unallocated="267.59 MiB"),),
    ),
    Wording(
        source="city96/ComfyUI-GGUF#208: HIP, then ComfyUI's devices",
        text="HIP out of memory. Tried to allocate 18.00 MiB. GPU 0 has a total capacity of 15.98 GiB of which 636.00 MiB is free. Of the allocated memory 14.77 GiB is allocated by PyTorch, and 282.37 MiB is reserved by PyTorch but unallocated." + HIP_HINT + " is:issue \n```\n\n## Devices\n\n- **Name:** cuda:0 AMD Radeon RX 6900 XT : native\n  - **Type:** cuda\n  - **VRAM Total:** 17163091968\n  - **VRAM Free:** 959880192\n  - **Torch VRAM Total:** 16152264704\n  - **Torch VRAM Free:** 292985856\n",
        says=(
            failed("torch_hip_oom", "cuda:0", requested="18 MiB", capacity="15.98 GiB", free="636 MiB", allocated="14.77 GiB", unallocated="282.37 MiB"),
            logged("", "cuda:0", capacity="17163091968 B", free="959880192 B", reserved="16152264704 B", unallocated="292985856 B"),
        ),
    ),
    Wording(
        source="BoBo0037/bobo-fun#8: MPS, a request of bytes",
        text="RuntimeError: MPS backend out of memory (MPS allocated: 72.40 GB, other allocations: 15.71 GB, max allowed: 81.60 GB). Tried to allocate 256 bytes on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n",
        says=(failed("torch_mps_oom", "mps", requested="256 B", allocated="72.40 GiB", allowed="81.60 GiB", also=("15.71 GiB",)),),
    ),
    Wording(
        source="pytorch/pytorch#130112: MPS in the backward",
        text=" return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nRuntimeError: MPS backend out of memory (MPS allocated: 5.50 GB, other allocations: 14.76 GB, max allowed: 20.40 GB). Tried to allocate 147.24 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n",
        says=(failed("torch_mps_oom", "mps", requested="147.24 MiB", allocated="5.50 GiB", allowed="20.40 GiB", also=("14.76 GiB",)),),
    ),
    Wording(
        source="PWhiddy/PokemonRedExperiments#6: NumPy, no digit behind the point",
        text="    self.observations = np.zeros((self.buffer_size, self.n_envs, *self.obs_shape), dtype=np.float32)\n                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nnumpy.core._exceptions._ArrayMemoryError: Unable to allocate 960. GiB for an array with shape (16777216, 1, 3, 128, 40) and data type float32\n",
        says=(failed("host_alloc_fail", "host", requested="960 GiB"),),
    ),
    Wording(
        source="starry-sky6688/MARL-Algorithms#61: NumPy, little asked for",
        text="我在转移到win平台上进行训练时出现了如下报错\nnumpy.core._exceptions.MemoryError: Unable to allocate 27.5 MiB for an array with shape (32, 400, 282) and data type float64\n在我查询各种资料后",
        says=(failed("host_alloc_fail", "host", requested="27.5 MiB"),),
    ),
    Wording(
        source="tambetm/simple_dqn#14: NumPy of 2016, without a word",
        text='  File "/home/shawn/simple_dqn/src/replay_memory.py", line 12, in **init**\n    self.screens = np.empty((self.size, args.screen_height, args.screen_width), dtype = np.uint8)\nMemoryError\n',
        says=(failed("host_alloc_fail", "host"),),
    ),
    Wording(
        source="openbabel/openbabel#2658: slurm with the node's name (KiB above KiB)",
        text="Dec 13 08:57:45 ... sorting Suffix Array chunks and saving them to disk...\nslurmstepd-falkor7: error: Step 1141810.0 exceeded memory limit (52917772 > 20971520), being killed\nsrun: Exceeded job memory limit\nslurmstepd-falkor7: error: *** STEP 1141810.0 ON falkor7 CANCELLED AT 2023-12-13T08:58:22 ***\n",
        says=(failed("host_oom_kill", "host", used="52917772 KiB", allowed="20971520 KiB"), failed("host_oom_kill", "host")),
    ),
    Wording(
        source="nextflow-io/nextflow#5932: slurm inside a sentence",
        text="I am having difficulty executing a calculation but it gives me the error slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM Killed. srun: error: sdumont6156: task 0: Out Of Memory, how do I remove this error\n",
        says=(failed("host_oom_kill", "host", also=("11300781 B",)),),
    ),
    Wording(
        source="spine-generic/spine-generic#108: bash's line, then Python's",
        text="/home/jcohen/code/spine-generic/spine-generic/processing/process_data.sh: line 76:  4663 Killed                  sct_deepseg_sc -i ${file}.nii.gz -c $contrast -qc ${PATH_QC} -qc-subject ${SUBJECT}\n~~~\n\nand this other job got the following error:\n~~~\nOSError: [Errno 12] Cannot allocate memory\n~~~\n",
        says=(failed("host_oom_kill", "host"), failed("host_alloc_fail", "host")),
    ),
    Wording(
        source="vllm-project/vllm#20305: one process of several",
        text="[multiproc_executor.py:492] ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\nERROR 06-30 13:53:19 [core.py:515] EngineCore failed to start.\n",
        says=(failed("vllm_startup", "", free="31.44 GiB", capacity="47.38 GiB", requested="45.01 GiB"),),
    ),
    Wording(
        source="OpenRLHF/OpenRLHF#336: too few tokens",
        text="ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (6048). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n",
        says=(failed("vllm_startup", "", also=("8192 B", "6048 B")),),
    ),
    Wording(
        source="sokrypton/ColabFold#62: TPU with its table",
        text="UnfilteredStackTrace: RuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 9.08G of 7.48G hbm. Exceeded hbm capacity by 1.60G.\n\nTotal hbm usage >= 9.60G:\n    reserved        530.00M \n    program           9.08G \n    arguments            0B \n\nOutput size 0B; shares 0B with arguments.\n\nProgram hbm requirement 9.08G:\n    global           420.0K\n    HLO temp          9.08G (95.4% utilization: Unpadded (8.65G) Padded (9.06G), 0.0% fragmentation (0B))\n\n  Largest program allocations in hbm:\n\n  1. Size: 124.00M\n     Shape: f32[512,245,256]{2,1,0:T(8,128)}\n     Unpadded size: 122.50M\n     Extra memory due to padding: 1.50M (1.0x expansion)\n",
        says=(failed("jax_tpu_oom", "tpu:0", requested="9.08 GiB", capacity="7.48 GiB", also=("1.60 GiB", "9.60 GiB", "530 MiB", "420 KiB", "8.65 GiB", "9.06 GiB", "124 MiB", "122.5 MiB", "1.5 MiB")),),
    ),
    Wording(
        source="google-deepmind/jaxline#11: inside a sentence",
        text="I receive ` RESOURCE_EXHAUSTED: Out of memory while trying to allocate 285212672 bytes.` errors. I have sufficient memory available on the GPUs.\n",
        says=(failed("jax_gpu_oom", "", requested="285212672 B"),),
    ),
    Wording(
        source="huggingface/transformers#8305: TensorFlow, the node on the same line",
        text="  (0) Resource exhausted:  OOM when allocating tensor with shape[3200,3072] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc         [[node BERT_MultiLabel_MultiClass/tf_bert_model/bert/encoder/layer_._11/intermediate/dense/Tensordot/MatMul (defined at myLib/python3.7/site-packages/transformers/modeling_tf_bert.py:327) ]]" + TF_HINT,
        says=(failed("tf_oom", "cuda:0", requested=f"{3200 * 3072 * 4} B"),),
    ),
    Wording(
        source="keras-team/keras#9643: the second card",
        text="ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[128,128,109,109] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc" + TF_HINT,
        says=(failed("tf_oom", "cuda:1", requested=f"{128 * 128 * 109 * 109 * 4} B"),),
    ),
    Wording(
        source="allenai/bilm-tf#195: a scalar",
        text="ResourceExhaustedError (see above for traceback): OOM when allocating tensor of shape [] and type float\n         [[node lm/RNN_0/rnn/multi_rnn_cell/cell_0/lstm_cell/kernel/Initializer/random_uniform/min (defined at /home/miniconda3/lib/python3.6/site-packages/bilm/training.py:410) ]]\n",
        says=(failed("tf_oom", "", requested="4 B"),),
    ),
    Wording(
        source="keras-team/keras#9994: no type, in bold",
        text='**ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[131072,2048]\n\t [[Node: training/Adam/mul_3 = Mul[T=DT_FLOAT, _device="/job:localhost/replica:0/task:0/gpu:0"](Adam/beta_1/read, training/Adam/Variable/read)]]**\n',
        says=(failed("tf_oom", "", also=("131072 B", "2048 B")),),
    ),
    Wording(
        source="deepspeedai/DeepSpeed#5222: before the optimizer's states",
        text="[2024-03-04 12:09:52,088] [INFO] [utils.py:800:see_memory_usage] Before initializing optimizer states\n[2024-03-04 12:09:52,090] [INFO] [utils.py:801:see_memory_usage] MA 7.21 GB         Max_MA 7.21 GB         CA 7.24 GB         Max_CA 7 GB \n[2024-03-04 12:09:50,593] [INFO] [utils.py:808:see_memory_usage] CPU Virtual Memory:  used = 10.04 GB, percent = 20.5%\n",
        says=(
            logged("deepspeed_see_memory_usage", "cuda", allocated="7.21 GiB", peak_allocated="7.21 GiB", reserved="7.24 GiB", peak_reserved="7 GiB"),
            logged("deepspeed_see_memory_usage", "host", used="10.04 GiB"),
        ),
    ),
    Wording(
        source="databrickslabs/dolly#28: after the fp32 partitions",
        text="[2023-03-28 12:06:47,842] [INFO] [utils.py:829:see_memory_usage] After creating fp32 partitions\n[2023-03-28 12:06:47,843] [INFO] [utils.py:830:see_memory_usage] MA 31.16 GB         Max_MA 32.1 GB         CA 35.85 GB         Max_CA 36 GB \n[2023-03-28 12:06:47,843] [INFO] [utils.py:838:see_memory_usage] CPU Virtual Memory:  used = 24.07 GB, percent = 3.2%\n",
        says=(
            logged("deepspeed_see_memory_usage", "cuda", allocated="31.16 GiB", peak_allocated="32.1 GiB", reserved="35.85 GiB", peak_reserved="36 GiB"),
            logged("deepspeed_see_memory_usage", "host", used="24.07 GiB"),
        ),
    ),
    Wording(
        source="public file 44916538522 (a torchtune run): after the model's init",
        text="2025-01-17 17:19:44,333 - torchtune.utils._logging - INFO - Memory stats after model init:\n        GPU peak memory allocation: 4.98 GiB\n        GPU peak memory reserved: 5.12 GiB\n        GPU peak memory active: 4.98 GiB\n2025-01-17 17:19:44,333 - torchtune.utils._logging - INFO - Instantiating model and loading checkpoint took 82.40 secs\n",
        says=(logged("torchtune_log", "cuda", allocated="4.98 GiB", reserved="5.12 GiB", also=("4.98 GiB",)),),
    ),
    Wording(
        source="public file 191457486 (torchtune's page on QLoRA): GB of 10^9",
        text="  Memory Stats after model init::\n  GPU peak memory allocation: 13.96 GB\n  GPU peak memory reserved: 13.98 GB\n  GPU peak memory active: 13.96 GB\n",
        says=(logged("torchtune_log", "cuda", allocated="13.96 GB", reserved="13.98 GB", also=("13.96 GB",)),),
    ),
    Wording(
        source="modelscope/ms-swift#2280: a log line, a progress bar behind it",
        text="{'loss': 2.0916357, 'token_acc': 0.47775947, 'grad_norm': 6.08488035, 'learning_rate': 1e-05, 'memory(GiB)': 65.89, 'train_speed(iter/s)': 0.014105, 'epoch': 0.0, 'global_step/max_steps': '1/2046', 'percentage': '0.05%'}\nTrain:   0%|          | 1/2046 [00:14<8:16:53, 14.58s/it][h264 @ 0x7fc648030400] mmco: unref short failure\n",
        says=(logged("hf_trainer_log", "cuda", reserved="65.89 GiB"),),
    ),
    Wording(
        source="horovod/horovod#109: nvidia-smi of driver 378",
        text="+-----------------------------------------------------------------------------+\n| NVIDIA-SMI 378.13                 Driver Version: 378.13                    |\n|-------------------------------+----------------------+----------------------+\n| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|===============================+======================+======================|\n|   0  Graphics Device     Off  | 0000:07:00.0     Off |                  N/A |\n| 23%   42C    P2   108W / 250W |  10719MiB / 11172MiB |     42%      Default |\n+-------------------------------+----------------------+----------------------+\n|   1  Graphics Device     Off  | 0000:0D:00.0     Off |                  N/A |\n| 23%   30C    P8    16W / 250W |     10MiB / 11172MiB |      0%      Default |\n+-------------------------------+----------------------+----------------------+\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", used="10719 MiB", capacity="11172 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="10 MiB", capacity="11172 MiB"),
        ),
    ),
    Wording(
        source="Lightning-AI/pytorch-lightning#958: nvidia-smi of driver 418",
        text="Wed Feb 26 18:44:17 2020\n+-----------------------------------------------------------------------------+\n| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |\n|-------------------------------+----------------------+----------------------+\n| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|===============================+======================+======================|\n|   0  GeForce RTX 208...  On   | 00000000:3D:00.0 Off |                  N/A |\n| 31%   41C    P8    33W / 250W |    730MiB / 10989MiB |      0%      Default |\n+-------------------------------+----------------------+----------------------+\n|   1  GeForce RTX 208...  On   | 00000000:3E:00.0 Off |                  N/A |\n| 31%   48C    P2    99W / 250W |   6014MiB / 10989MiB |     14%      Default |\n+-------------------------------+----------------------+----------------------+\n",
        says=(
            logged("nvidia_smi_text", "cuda:0", used="730 MiB", capacity="10989 MiB"),
            logged("nvidia_smi_text", "cuda:1", used="6014 MiB", capacity="10989 MiB"),
        ),
    ),
)  # fmt: skip

LAST_MIXED_THREADS: tuple[Thread, ...] = (
    Thread(
        source="facebookresearch/fairseq#932", resolved_by="memory_efficient_fp16: no fp32 copies of the weights",
        text="_WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 1.16 GiB (GPU 0; 10.91 GiB total capacity; 6.55 GiB already allocated; 1.05 GiB free; 1.94 GiB cached);\nSkipping batch_\n",
        causes=("activations", "model_states", "optimizer_states"),
    ),
    Thread(
        source="pygod-team/pygod#72", resolved_by="a dense matrix of all nodes by all nodes",
        text=LAST_MIXED[3].text,
        causes=("one_tensor_larger_than_card",),
    ),
    Thread(
        source="pyg-team/pytorch_geometric#1113", resolved_by="batches of very large graphs",
        text=LAST_MIXED[4].text,
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="pyg-team/pytorch_geometric#2730", resolved_by="the maintainer: the graph in parts, not whole",
        text=LAST_MIXED[5].text,
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="rlworkgroup/garage#1295", resolved_by="a smaller replay buffer",
        text="MemoryError: Unable to allocate 315. GiB for an array with shape (10000, 100, 84480) and data type float32",
        causes=("host_memory",),
    ),
    Thread(
        source="starry-sky6688/MARL-Algorithms#61", resolved_by="a smaller replay buffer",
        text=LAST_MIXED[14].text,
        causes=("host_memory",),
    ),
    Thread(
        source="tambetm/simple_dqn#14", resolved_by="--replay_size 100000",
        text=LAST_MIXED[15].text,
        causes=("host_memory",),
    ),
    Thread(
        source="carpedm20/deep-rl-tensorflow#20", resolved_by="2 GB do not hold the replay buffer",
        text='  File "/home/strky/deep-rl-tensorflow/agents/experience.py", line 15, in __init__\n    self.observations = np.empty([self.memory_size] + observation_dims, dtype=np.uint8)\nMemoryError\n',
        causes=("host_memory",),
    ),
    Thread(
        source="spine-generic/spine-generic#108", resolved_by="four times the memory per core",
        text=LAST_MIXED[18].text,
        causes=("host_memory",),
    ),
    Thread(
        source="open-mmlab/mmdetection#188", resolved_by="too many boxes in one picture: their overlaps with all anchors",
        text=LAST_MIXED[7].text,
        causes=("many_boxes", "one_large_tensor"),
    ),
    Thread(
        source="QwenLM/Qwen3#295", resolved_by="--max_model_len 7200",
        text=" raise ValueError(\nValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (7344). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n",
        causes=("vllm_share", "no_room_for_cache"),
    ),
    Thread(
        source="allenai/bilm-tf#195", resolved_by="the maintainer: a smaller batch, vocabulary or model",
        text=LAST_MIXED[25].text,
        causes=("activations", "model_states",),
    ),
    Thread(
        source="santi-pdp/segan#42", resolved_by="the maintainer: a smaller batch",
        text="ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[100,4096,32]",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="xuyige/BERT4doc-Classification#12", resolved_by="the maintainer: a smaller batch or shorter texts",
        text="OP_REQUIRES failed at cwise_ops_common.cc:70 : Resource exhausted: OOM when allocating tensor with shape[768,768].",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="Purfview/whisper-standalone-win#141", resolved_by="the maintainer: the card is too small for ten beams",
        text="RuntimeError: CUDA failed with error out of memory",
        causes=("input_too_large", "loading_the_model", "generation_cache"),
    ),
)  # fmt: skip

# Failures on a GPU only, collected when everything else was done.
GPU_THREADS: tuple[Thread, ...] = (
    Thread(
        source="649453932/Bert-Chinese-Text-Classification-Pytorch#114", resolved_by="a smaller batch",
        text="RuntimeError: CUDA out of memory. Tried to allocate 48.00 MiB (GPU 0; 6.00 GiB total capacity; 4.58 GiB already allocated; 37.63 MiB free; 51.94 MiB cached)2",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="VITA-Group/EnlightenGAN#135", resolved_by="the maintainer: a smaller batch",
        text="CUDA out of memory. Tried to allocate 252.00 MiB (GPU 0; 3.81 GiB total capacity; 2.67 GiB already allocated; 247.12 MiB free; 2.70 GiB reserved in total by PyTorch)\n该怎麼解决",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="xiaoyu2018/TextSum#4", resolved_by="a batch of 1",
        text="CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 11.91 GiB total capacity; 10.84 GiB already allocated; 205.62 MiB free; 10.87 GiB reserved in total by PyTorch)",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="RVC-Boss/GPT-SoVITS#1516", resolved_by="the maintainer: fewer or shorter texts at once, whose keys and values are kept",
        text='`Traceback (most recent call last):\n  File "/root/GPT-SoVITS/ttt.py", line 272, in <module>\n    pred_semantic_list, idx_list = t2s_model.model.infer_panel_batch_infer(\n  File "/root/GPT-SoVITS/GPT_SoVITS/AR/models/t2s_model.py", line 681, in infer_panel_batch_infer\n    xy_dec, k_cache, v_cache = self.t2s_transformer.decode_next_token(xy_pos, k_cache, v_cache,\n  File "/root/GPT-SoVITS/GPT_SoVITS/AR/models/t2s_model.py", line 259, in decode_next_token\n    x, k_cache[i], v_cache[i] = self.blocks[i].decode_next_token(x, k_cache[i], v_cache[i], attn_mask,\n  File "/root/GPT-SoVITS/GPT_SoVITS/AR/models/t2s_model.py", line 215, in decode_next_token\n    attn = F.linear(attn, self.out_w, self.out_b)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 23.68 GiB of which 2.69 MiB is free. Process 951046 has 23.68 GiB memory in use. Of the allocated memory 22.52 GiB is allocated by PyTorch, and 609.17 MiB is reserved by PyTorch but unallocated.' + HINT,
        causes=("generation_cache", "activations", "model_states"),
    ),
    Thread(
        source="levindabhi/cloth-segmentation#10", resolved_by="a picture of a quarter of the size",
        text="RuntimeError: CUDA out of memory. Tried to allocate 12.00 MiB (GPU 0; 6.00 GiB total capacity; 5.30 GiB already allocated; 0 bytes free; 5.32 GiB reserved in total by PyTorch)" + OLD_HINT,
        causes=("activations", "model_states", "activations", "image_tokens"),
    ),
    Thread(
        source="microsoft/Bringing-Old-Photos-Back-to-Life#19", resolved_by="the picture was too large",
        text="RuntimeError: CUDA out of memory. Tried to allocate 734.00 MiB (GPU 0; 10.74 GiB total capacity; 7.82 GiB already allocated; 195.75 MiB free; 9.00 GiB reserved in total by PyTorch)",
        causes=("activations", "model_states", "activations", "image_tokens"),
    ),
    Thread(
        source="CompVis/stable-diffusion#68", resolved_by="a picture of 320 instead of 1024 pixels: the scores between all its parts",
        text='  File "c:\\users\\xxx\\compvis_diffusion\\ldm\\modules\\attention.py", line 180, in forward\n    sim = einsum(\'b i d, b j d -> b i j\', q, k) * self.scale\nRuntimeError: CUDA out of memory. Tried to allocate 15.51 GiB (GPU 0; 24.00 GiB total capacity; 19.84 GiB already allocated; 610.39 MiB free; 20.63 GiB reserved in total by PyTorch)' + OLD_HINT,
        causes=("attention_scores", "image_tokens", "one_large_tensor"),
    ),
    Thread(
        source="royorel/Lifespan_Age_Transformation_Synthesis#23", resolved_by="fewer pictures at once",
        text="`RuntimeError: CUDA out of memory. Tried to allocate 3.21 GiB (GPU 0; 11.17 GiB total capacity; 4.47 GiB already allocated; 2.45 GiB free; 8.26 GiB reserved in total by PyTorch)`",
        causes=("activations", "model_states", "activations", "one_large_tensor"),
    ),
    Thread(
        source="Rudrabha/Wav2Lip#221", resolved_by="the maintainer: a smaller batch",
        text="RuntimeError: CUDA out of memory. Tried to allocate 288.00 MiB (GPU 0; 2.00 GiB total capacity; 849.59 MiB already allocated; 87.44 MiB free; 326.41 MiB cached)",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="KaiyangZhou/deep-person-reid#556", resolved_by="the first card, which somebody else had filled, was left out",
        text="self.padding, self.dilation, self.groups)\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 47.54 GiB total capacity; 194.45 MiB already allocated; 4.88 MiB free; 686.00 MiB reserved in total by PyTorch)" + OLD_HINT,
        causes=("another_process",),
    ),
    Thread(
        source="echocatzh/MTFAA-Net#4", resolved_by="the maintainer: shorter sounds, for attention over time",
        text="t_score = torch.einsum('bcft, bcfy->bfty', [qt, kt]) / (self.d_c**0.5)\nRuntimeError: CUDA out of memory.",
        causes=("attention_scores",),
    ),
    Thread(
        source="pytorch/pytorch#133206", resolved_by="flex attention had not been compiled and made all scores",
        text="scores = (query @ key.transpose(-2, -1)).to(dtype=working_precision)\nRuntimeError: CUDA out of memory.",
        causes=("attention_scores",),
    ),
)  # fmt: skip
