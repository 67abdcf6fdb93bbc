# ruff: noqa: E501 (pasted messages keep their lines)
"""Public threads with a known resolution, collected and answered before the tool had seen any of them.

Each: the thread and what resolved it, what was printed (machine output, shortened to the failing lines), the cause, and
where the thread says what was trained, the job. Several names where the resolution covers them all. A cause may be one
that the tool does not know: then it misses.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    source: str
    resolved_by: str
    text: str
    causes: tuple[str, ...]
    job: dict[str, object] = field(default_factory=dict)


# The first collection. Its first score led to changes, so that what it scores now says little.
THREADS: tuple[Thread, ...] = (
    Thread(
        source="junyanz/pytorch-CycleGAN-and-pix2pix#962", resolved_by="the maintainer: other programs hold the card",
        text="RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 2.42 GiB already allocated; 26.12 MiB free; 2.75 GiB reserved in total by PyTorch)",
        causes=("another_process",),
    ),
    Thread(
        source="phamquiluan/ResidualMaskingNetwork#15", resolved_by="the maintainer: other programs hold the card",
        text="RuntimeError: CUDA out of memory. Tried to allocate 36.00 MiB (GPU 0; 10.76 GiB total capacity; 996.23 MiB already allocated; 8.81 MiB free; 1010.00 MiB reserved in total by PyTorch)",
        causes=("another_process",),
    ),
    Thread(
        source="LISTatSNU/FastMRI_challenge#238", resolved_by="a zombie process was killed",
        text="Tried to allocate 216.00 MiB (GPU 0; 7.92 GiB total capacity; 69.17 MiB already allocated; 24.56 MiB free; 86.00 MiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        causes=("another_process",),
    ),
    Thread(
        source="vllm-project/vllm-ascend#1670", resolved_by="a privileged container had attached everybody's devices",
        text="RuntimeError: NPU out of memory. Tried to allocate 88.00 MiB (NPU 0; 60.96 GiB total capacity; 4.24 GiB already allocated; 4.24 GiB current active; 7.47 MiB free; 4.37 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        causes=("another_process",),
    ),
    Thread(
        source="vllm-project/vllm#783", resolved_by="others held 15 GB; vLLM takes its share of the whole card",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.63 GiB (GPU 0; 44.56 GiB total capacity; 27.91 GiB already allocated; 565.31 MiB free; 27.93 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        causes=("another_process", "vllm_share"),
    ),
    Thread(
        source="huggingface/transformers#25100", resolved_by="the full state dict offloaded to the CPU",
        text="/root/zhuxuekai/anaconda3/envs/py39/lib/python3.9/site-packages/torch/distributed/fsdp/_state_dict_utils.py:312: UserWarning: Failed to clone() tensor with name _fsdp_wrapped_module.model.layers.30.mlp.down_proj.weight on rank 0. This may mean that this state_dict entry could point to invalid memory regions after returning from state_dict() call if this parameter is managed by FSDP. Please check clone implementation of _fsdp_wrapped_module.model.layers.30.mlp.down_proj.weight. Error: CUDA out of memory. Tried to allocate 172.00 MiB (GPU 0; 47.54 GiB total capacity; 45.40 GiB already allocated; 25.62 MiB free; 46.42 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        causes=("saving_gathers",),
    ),
    Thread(
        source="huggingface/transformers#26702", resolved_by="no compute_metrics: the logits of all batches were kept on the card",
        text="/usr/local/lib/python3.10/dist-packages/transformers/trainer_pt_utils.py in torch_pad_and_concatenate(tensor1, tensor2, padding_index)\n     86 \n     87     # Now let's fill the result tensor\n---> 88     result = tensor1.new_full(new_shape, padding_index)\n     89     result[: tensor1.shape[0], : tensor1.shape[1]] = tensor1\n     90     result[tensor1.shape[0] :, : tensor2.shape[1]] = tensor2\n\nOutOfMemoryError: CUDA out of memory. Tried to allocate 12.94 GiB (GPU 0; 39.56 GiB total capacity; 18.33 GiB already allocated; 12.29 GiB free; 25.71 GiB reserved in total by PyTorch)",
        causes=("evaluation_gathers",),
    ),
    Thread(
        source="MAGICS-LAB/DNABERT_2#78", resolved_by="less evaluation data: predictions of all batches were kept on the card",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.44 GiB. GPU 0 has a total capacity of 10.58 GiB of which 4.44 GiB is free. Including non-PyTorch memory, this process has 6.14 GiB memory in use. Of the allocated memory 5.77 GiB is allocated by PyTorch, and 178.42 MiB is reserved by PyTorch but unallocated.",
        causes=("evaluation_gathers",),
    ),
    Thread(
        source="zai-org/CogVideo#63", resolved_by="npu_fuse_attention instead of torch's SDPA",
        text="hidden_states = F.scaled_dot_product_attention(\nRuntimeError: NPU out of memory. Tried to allocate 35.31 GiB (NPU 0; 60.97 GiB total capacity; 26.13 GiB already allocated; 26.13 GiB current active; 33.81 GiB free; 26.61 GiB reserved in total by PyTorch)",
        causes=("attention_scores",),
    ),
    Thread(
        source="hiyouga/LlamaFactory#505", resolved_by="the dataset was too large for the host",
        text="RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 104857600 bytes. Error code 12 (Cannot allocate memory)",
        causes=("host_memory",),
    ),
    Thread(
        source="RLHF-V/RLHF-V#11", resolved_by="the maintainer: loading has a temporary peak in host memory",
        text="ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 484375) of binary: /usr/bin/python",
        causes=("host_memory",),
    ),
    Thread(
        source="OedoSoldier/chatglm_webui#3", resolved_by="16 GB of host memory were too few for loading",
        text="Loading checkpoint shards:  88%|███████████████▊  | 7/8 [00:12<00:01,  1.84s/it][1]    14875 killed     python main.py --low_vram",
        causes=("host_memory",),
    ),
    Thread(
        source="danijar/dreamerv3#203", resolved_by="a smaller replay buffer in host memory",
        text="Writing metrics: /home/bzs/logdir/dreamer/20251205T175323/metrics.jsonl\nWriting metrics: /home/bzs/logdir/dreamer/20251205T175323/scores.jsonl\n已杀死",
        causes=("host_memory",),
    ),
    Thread(
        source="fastai/docker-containers#21", resolved_by="docker run --shm-size=3G",
        text="RuntimeError: DataLoader worker (pid 47) is killed by signal: Bus\nerror. It is possible that dataloader's workers are out of shared\nmemory. Please try to raise your shared memory limit.",
        causes=("shared_memory",),
    ),
    Thread(
        source="ccpem/affinity-vae#192", resolved_by="no pictures of confidence intervals in host memory",
        text="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=487912.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
        causes=("host_memory",),
    ),
    Thread(
        source="ArjunaCluster/ArjunaUsers#52", resolved_by="the cgroup's limit on host memory",
        text="/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py --prop hform --epochs 400\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
        causes=("host_memory",),
    ),
    Thread(
        source="skorch-dev/skorch#218", resolved_by="torch.no_grad() in validation_step",
        text='  File "/usr/local/lib/python3.6/dist-packages/skorch/net.py", line 477, in validation_step\n    y_pred = self.infer(Xi, **fit_params)\nRuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58',
        causes=("evaluation_keeps_graph",),
    ),
    Thread(
        source="pytorch/pytorch#18313", resolved_by="tensors kept from epoch to epoch were deleted",
        text='Traceback (most recent call last):\n  File "info.py", line 409, in <module>\n    loss.backward()\n  File "/home/xyz/anaconda3/envs/ml_torch/lib/python3.7/site-packages/torch/tensor.py", line 93, in backward\n    torch.autograd.backward(self, gradient, retain_graph, create_graph)\n  File "/home/xyz/anaconda3/envs/ml_torch/lib/python3.7/site-packages/torch/autograd/__init__.py", line 90, in backward\n    allow_unreachable=True)  # allow_unreachable flag\nRuntimeError: CUDA error: out of memory',
        causes=("memory_grows",),
    ),
    Thread(
        source="EleutherAI/lm-evaluation-harness#1689", resolved_by="more cards: the first had no room for cuBLAS",
        text="RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        causes=("card_full_elsewhere",),
    ),
    Thread(
        source="awslabs/sockeye#897", resolved_by="half the vocabulary: the card was full",
        text="mxnet.base.MXNetError: Check failed: err == CUBLAS_STATUS_SUCCESS (1 vs. 0) : Create cublas handle failed",
        causes=("card_full_elsewhere",),
    ),
    Thread(
        source="Kaggle/docker-rstats#182", resolved_by="TF_FORCE_GPU_ALLOW_GROWTH: TensorFlow had taken the whole card",
        text="Error (test_torch.R:15:3): gpu imports\n<Rcpp::exception/C++Error/error/condition>\nError in `torch_tensor_cpp(data, dtype, device, requires_grad, pin_memory)`: CUDA error: out of memory",
        causes=("card_full_elsewhere", "outside_pytorch", "another_process"),
    ),
    Thread(
        source="awslabs/graphstorm#344", resolved_by="the optimizer's checkpoint loaded to the CPU",
        text='  File "/develop/graphstorm/python/graphstorm/trainer/gsgnn_trainer.py", line 342, in restore_model\n    self._optimizer.load_opt_state(model_path, self._model.device)\n  File "/develop/graphstorm/python/graphstorm/model/utils.py", line 596, in load_opt_state\n    checkpoint = th.load(os.path.join(model_path, \'optimizers.bin\'))\n  File "/usr/local/lib/python3.8/dist-packages/torch/serialization.py", line 789, in load\n    return _load(opened_zipfile, map_location, pickle_module, **pickle_load_args)\n  File "/usr/local/lib/python3.8/dist-packages/torch/serialization.py", line 1131, in _load\n    result = unpickler.load()\n  File "/usr/local/lib/python3.8/dist-packages/torch/serialization.py", line 1101, in persistent_load\n    load_tensor(dtype, nbytes, key, _maybe_decode_ascii(location))\ntorch.cuda.OutOfMemoryError: CUDA out of memory.',
        causes=("resuming_loads_twice",),
    ),
    Thread(
        source="ProGamerGov/neural-dream#6", resolved_by="torch.load(map_location='cpu')",
        text='  File "/home/xxx/neural-dream/neural_dream/CaffeLoader.py", line 412, in loadCaffemodel\n    cnn.load_state_dict(torch.load(model_file)[\'state_dict\'], strict=(not disable_check))\n  File "/home/xxx/.local/lib/python3.7/site-packages/torch/serialization.py", line 529, in load\n    return _legacy_load(opened_file, map_location, pickle_module, **pickle_load_args)\n  File "/home/xxx/.local/lib/python3.7/site-packages/torch/serialization.py", line 665, in persistent_load\n    deserialized_objects[root_key] = restore_location(obj, location)\nRuntimeError: CUDA error: out of memory',
        causes=("resuming_loads_twice", "loading_the_model"),
    ),
    Thread(
        source="mlcommons/algorithmic-efficiency#505", resolved_by="an embedding of 2 GiB has a temporary of 2 GiB in AdamW",
        text='  File "/usr/local/lib/python3.8/dist-packages/torch/optim/adamw.py", line 321, in adamw\n    func(\n  File "/usr/local/lib/python3.8/dist-packages/torch/optim/adamw.py", line 440, in _single_tensor_adamw\n    denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 12.10 GiB already allocated; 373.44 MiB free; 14.10 GiB reserved in total by PyTorch)',
        causes=("optimizer_temporary",),
    ),
    Thread(
        source="huggingface/transformers#46145", resolved_by="load_adapter warms up the allocator with the adapter's size only",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 51.87 GiB.\nGPU 0 has a total capacity of 94.50 GiB of which 41.85 GiB is free.\nIncluding non-PyTorch memory, this process has 52.64 GiB memory in use.",
        causes=("allocator_warmup", "loading_the_model"),
    ),
    Thread(
        source="huggingface/transformers#39627", resolved_by="the warm-up asks what is free on XPU too",
        text='  File "C:\\Users\\ai01\\miniforge3\\envs\\ao\\lib\\site-packages\\transformers\\modeling_utils.py", line 4399, in from_pretrained\n    ) = cls._load_pretrained_model(\n  File "C:\\Users\\ai01\\miniforge3\\envs\\ao\\lib\\site-packages\\transformers\\modeling_utils.py", line 4793, in _load_pretrained_model\n    caching_allocator_warmup(model_to_load, expanded_device_map, factor=2 if hf_quantizer is None else 4)\ntorch.OutOfMemoryError: XPU out of memory.',
        causes=("allocator_warmup",),
    ),
    Thread(
        source="modelscope/ms-swift#3456", resolved_by="images of high resolution: the dense scores of the vision part",
        text="[rank1]:     attn_output = F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_p=0.0)\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 23.41 GiB. GPU 1 has a total capacity of 39.38 GiB of which 7.57 GiB is free. Including non-PyTorch memory, this process has 31.80 GiB memory in use. Of the allocated memory 29.62 GiB is allocated by PyTorch, and 857.53 MiB is reserved by PyTorch but unallocated.",
        causes=("image_tokens", "attention_scores"),
    ),
    Thread(
        source="unslothai/unsloth#1390", resolved_by="images resized: the dense scores of the vision part",
        text='  File "/home/sahil/my_folder/unsloth_compiled_cache/unsloth_compiled_module_qwen2_vl.py", line 409, in forward\n    return VisionSdpaAttention_forward(self, hidden_states, cu_seqlens, rotary_pos_emb)\n  File "/home/sahil/my_folder/unsloth_compiled_cache/unsloth_compiled_module_qwen2_vl.py", line 393, in VisionSdpaAttention_forward\n    attn_output = F.scaled_dot_product_attention(q, k, v, attention_mask, dropout_p=0.0)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 272.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 60.47 GiB is free. Including non-PyTorch memory, this process has 18.66 GiB memory in use.',
        causes=("image_tokens", "attention_scores"),
    ),
    Thread(
        source="merveenoyan/smol-vision#22", resolved_by="fewer pixels per image",
        text="> CUDA out of memory. Tried to allocate 22.15 GiB. GPU 0 has a total capacity of 39.56 GiB of which 5.33 GiB is free. Process 62116 has 34.22 GiB memory in use. Of the allocated memory 33.66 GiB is allocated by PyTorch, and 66.74 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation. See documentation for Memory Management",
        causes=("image_tokens", "attention_scores"),
    ),
    Thread(
        source="frostinassiky/gtad#30", resolved_by="half the batch",
        text="CUDA out of memory. Tried to allocate 4.00 GiB (GPU 0; 10.73 GiB total capacity; 4.41 GiB already allocated; 1.75 GiB free; 3.78 GiB cached)",
        causes=("activations", "model_states", "activations", "one_large_tensor"),
    ),
    Thread(
        source="patrickbryant1/AFProfile#8", resolved_by="the maintainer: a larger card is needed",
        text="jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:  372.76MiB\n              constant allocation:    48.5KiB\n        maybe_live_out allocation:    9.64GiB\n     preallocated temp allocation:    4.44GiB\n                 total allocation:   14.44GiB\n              total fragmentation:  680.30MiB (4.60%)",
        causes=("activations", "model_states",),
    ),
    Thread(
        source="PaddlePaddle/PGL#26", resolved_by="a batch of 128 instead of 1024",
        text="Out of memory error on GPU 0. Cannot allocate 6.933594GB memory on GPU 0, available memory is only 726.750000MB.\n\nPlease check whether there is any other process using GPU 0.\n1. If yes, please stop them, or start PaddlePaddle on another GPU.\n2. If no, please try one of the following suggestions:\n   1) Decrease the batch size of your model.\n   2) FLAGS_fraction_of_gpu_memory_to_use is 0.92 now, please set it to a higher value but less than 1.0.",
        causes=("activations", "model_states", "one_large_tensor", "one_tensor_larger_than_card"),
    ),
    Thread(
        source="IndicoDataSolutions/finetune#339", resolved_by="a batch of 2 to 4 instead of 16: scores of 16 x 12 x 512 x 512",
        text="ResourceExhaustedError: OOM when allocating tensor with shape[16,12,512,512] and type float on /job:localhost/replica:0/task:0/device:GPU:2 by allocator GPU_2_bfc",
        causes=("attention_scores", "activations", "activations", "model_states"),
    ),
    Thread(
        source="ikhlestov/vision_networks#25", resolved_by="a batch of 8 instead of 64",
        text="ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[64,372,32,32] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        causes=("activations", "activations", "model_states"),
    ),
    Thread(
        source="flyteorg/flyte#2376", resolved_by="a higher limit on host memory",
        text="[1/1] currentAttempt done. Last Error: USER::Pod failed. No message received from kubernetes.\n[f8107735c673549d7acd-n0-0] terminated with exit code (137). Reason [Error]. Message: \n.",
        causes=("host_memory",),
    ),
    Thread(
        source="kubeflow/kubeflow#1261", resolved_by="the node had run out of host memory",
        text="The node was low on resource: memory.\nKilling container with id docker://notebook:Need to kill Pod",
        causes=("host_memory",),
    ),
    Thread(
        source="Azure/azure-databricks-operator#62", resolved_by="a higher limit on host memory",
        text="      Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137",
        causes=("host_memory",),
    ),
    Thread(
        source="ml-explore/mlx-examples#70", resolved_by="16 bit instead of fp32 and a smaller batch",
        text="libc++abi: terminating due to uncaught exception of type std::runtime_error: [malloc_or_wait] Unable to allocate 12 bytes.",
        causes=("activations", "model_states",),
    ),
    Thread(
        source="hiyouga/LlamaFactory#5491", resolved_by="every rank loads the whole model of 72 billion onto its card",
        text='  File "/usr/local/python3.10.13/lib/python3.10/site-packages/transformers/modeling_utils.py", line 4415, in _load_pretrained_model\n    new_error_msgs, offload_index, state_dict_index = _load_state_dict_into_meta_model(\n  File "/usr/local/python3.10.13/lib/python3.10/site-packages/transformers/modeling_utils.py", line 936, in _load_state_dict_into_meta_model\n    set_module_tensor_to_device(model, param_name, param_device, **set_module_kwargs)\n  File "/usr/local/python3.10.13/lib/python3.10/site-packages/accelerate/utils/modeling.py", line 400, in set_module_tensor_to_device\n    new_value = value.to(device)\nRuntimeError: NPU out of memory. Tried to allocate 386.00 MiB (NPU 2; 60.97 GiB total capacity; 59.57 GiB already allocated; 59.57 GiB current active; 16.54 MiB free; 60.06 GiB reserved in total by PyTorch)',
        causes=("loading_the_model",),
    ),
    Thread(
        source="mgrankin/ru_transformers#23", resolved_by="a batch of 1 instead of 3: 96 MiB are the fp16 scores of 3 x 16 x 1024 x 1024",
        text="RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 7.79 GiB total capacity; 6.59 GiB already allocated; 74.06 MiB free; 6.79 GiB reserved in total by PyTorch)",
        causes=("attention_scores", "activations"),
        job={"model": "gpt2-medium", "batch": 3, "seq": 1024, "precision": "fp16-master", "torch-version": "1.4", "transformers-version": "2.5"},
    ),
    Thread(
        source="tatsu-lab/stanford_alpaca#76", resolved_by="the cards were A10 of 24 GB, not A100: the job as described is too large for them",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB (GPU 2; 23.70 GiB total capacity; 21.91 GiB already allocated; 315.69 MiB free; 22.09 GiB reserved in total by PyTorch)",
        causes=("as described",),
        job={"model": "llama2-7b", "batch": 1, "seq": 512, "precision": "bf16-mixed", "framework": "hf", "gpus": 4, "strategy": "fsdp1", "torch-version": "2.0", "transformers-version": "4.28"},
    ),
)  # fmt: skip

# Collected after those changes, and answered before they were tried on it.
LATER_THREADS: tuple[Thread, ...] = (
    Thread(
        source="eps696/aphantasia#22", resolved_by="fewer samples at once",
        text="RuntimeError: CUDA out of memory. Tried to allocate 60.00 MiB (GPU 0; 6.00 GiB total capacity; 4.11 GiB already allocated; 34.82 MiB free; 4.42 GiB reserved in total by PyTorch)",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="microsoft/computervision-recipes#561", resolved_by="a smaller batch or image",
        text="CUDA out of memory. Tried to allocate 36.00 MiB (GPU 0; 4.00 GiB total capacity; 2.88 GiB already allocated; 627.20 KiB free; 2.95 GiB reserved in total by PyTorch)",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="zjunlp/EasyEdit#563", resolved_by="a length taken from max_position_embeddings was far too large",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 355.43 GiB. GPU 0 has a total capacty of 79.32 GiB of which 18.06 GiB is free. Including non-PyTorch memory, this process has 61.25 GiB memory in use. Of the allocated memory 52.51 GiB is allocated by PyTorch, and 8.25 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.",
        causes=("one_tensor_larger_than_card",),
    ),
    Thread(
        source="open-mmlab/mmaction2#218", resolved_by="no workers: shared memory had run out",
        text="RuntimeError: unable to open shared memory object </torch_16550_876314950> in read-write mode",
        causes=("shared_memory",),
    ),
    Thread(
        source="OpenMOSS/MOSS#328", resolved_by="more host memory for WSL",
        text="RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        causes=("host_memory", "driver_or_runtime_limit"),
    ),
    Thread(
        source="oobabooga/textgen#1041", resolved_by="generation's cache grows with every token",
        text='  File "E:\\oobabooga-windows\\installer_files\\env\\lib\\site-packages\\transformers\\models\\llama\\modeling_llama.py", line 209, in forward\n    key_states = torch.cat([past_key_value[0], key_states], dim=2)\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; 6.63 GiB already allocated; 0 bytes free; 7.29 GiB reserved in total by PyTorch)',
        causes=("generation_cache",),
    ),
    Thread(
        source="salesforce/LAVIS#84", resolved_by="evaluation keeps what every batch returns",
        text="\n".join(f"Evaluation  [{2060 + 10 * at}/5000]  eta: 0:02:28    time: 0.0498  data: 0.0003  max mem: {size}" for at, size in enumerate((17239, 17276, 17314, 17351, 17389, 17426, 17463, 17501, 17538, 17576, 17613, 17651, 17688, 17726, 17763, 17801))),
        causes=("memory_grows", "evaluation_gathers"),
    ),
    Thread(
        source="huggingface/accelerate#1210", resolved_by="the optimizer's checkpoint loaded to the device, not to the host by every rank",
        text="Detected 1 oom-kill event(s) in StepId=125757.batch. Some of your processes may have been killed by the cgroup out-of-memory handler.",
        causes=("host_memory",),
    ),
    Thread(
        source="chnsh/DCRNN_PyTorch#6", resolved_by="a smaller batch",
        text="`RuntimeError:CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 5.80 GiB total capacity; 4.36 GiB already allocated; 6.69 MiB free; 4.63 GiB reserved in total by PyTorch)`",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="pytorch/examples#621", resolved_by="a card with more than 1 GB",
        text="RuntimeError: CUDA out of memory. Tried to allocate 26.00 MiB (GPU 0; 1024.00 MiB total capacity; 435.61 MiB already allocated; 24.17 MiB free; 26.39 MiB cached)",
        causes=("activations", "model_states",),
    ),
    Thread(
        source="Lightning-AI/pytorch-lightning#18134", resolved_by="ZeRO-3 gathers a submodule's parameters",
        text='torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 31.75 GiB total capacity; 30.25 GiB already allocated; 62.19 MiB free; 30.67 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\n    param_coordinator.fetch_sub_module(sub_module, forward=True)\n    param_buffer = torch.empty(',
        causes=("gathered_parameters",),
    ),
    Thread(
        source="GanjinZero/RRHF#30", resolved_by="saving gathers the full state dict",
        text="`UserWarning: Failed to clone() tensor with name lm_head.weight. This may mean that this state_dict entry could point to invalid memory regions after returning from state_dict() call if this parameter is managed by FSDP. Please check clone implementation of lm_head.weight. Error: CUDA out of memory. Tried to allocate 982.00 MiB (GPU 2; 79.35 GiB total capacity; 77.16 GiB already allocated; 272.19 MiB free; 77.16 GiB reserved in total by PyTorch)",
        causes=("saving_gathers",),
    ),
)  # fmt: skip

# Collected last, after all changes, and answered before the tool was tried on it. Nothing was changed for it since.
LAST_THREADS: tuple[Thread, ...] = (
    Thread(
        source="he-y/filter-pruning-geometric-median#20", resolved_by="a batch of 128 or less",
        text="RuntimeError: CUDA out of memory. Tried to allocate 392.00 MiB (GPU 0; 11.90 GiB total capacity; 11.34 GiB already allocated; 18.94 MiB free; 579.50 KiB cached)",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="hiyouga/LlamaFactory#182", resolved_by="CUDA_VISIBLE_DEVICES had been overwritten: it ran on a card in use",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB (GPU 0; 31.75 GiB total capacity; 5.22 GiB already allocated; 44.69 MiB free; 5.22 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        causes=("another_process",),
    ),
    Thread(
        source="qibin0506/llm_trainer#2", resolved_by="four ranks on one card",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 79.32 GiB of which 6.88 MiB is free. Process 1563103 has 9.89 GiB memory in use. Process 1563102 has 35.03 GiB memory in use. Process 1563104 has 23.79 GiB memory in use. Includ\ning non-PyTorch memory, this process has 10.58 GiB memory in use. Of the allocated memory 9.56 GiB is allocated by PyTorch, and 534.22 MiB is reserved by PyTorch but unallocated.",
        causes=("all_ranks_on_one_card",),
    ),
    Thread(
        source="ymoslem/OpenNMT-Tutorial#6", resolved_by="no workers: the host's memory had run out",
        text="RuntimeError: DataLoader worker (pid 629) is killed by signal: Killed.\nMemory cgroup out of memory: Killed process 629 (onmt_train) total-vm:14119556kB, anon-rss:6538204kB, file-rss:80652kB, shmem-rss:16kB, UID:0 pgtables:13432kB oom_score_adj:0",
        causes=("host_memory",),
    ),
    Thread(
        source="zylo117/Yet-Another-EfficientDet-Pytorch#317", resolved_by="no workers",
        text="ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nRuntimeError: DataLoader worker (pid 6230) is killed by signal: Bus error.",
        causes=("shared_memory",),
    ),
    Thread(
        source="InternLM/InternLM#79", resolved_by="the whole model was moved to one card, in fp32",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 172.00 MiB (GPU 0; 23.65 GiB total capacity; 22.99 GiB already allocated; 154.06 MiB free; 22.99 GiB reserved in total by PyTorch)",
        causes=("loading_the_model",),
    ),
    Thread(
        source="THUDM/LongCite#7", resolved_by="bfloat16: only then is the fused attention used",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 179.46 GiB. GPU 0 has a total capacity of 31.73 GiB of which 14.55 GiB is free. Process 2995003 has 406.00 MiB memory in use. Process 2375671 has 1.59 GiB memory in use. Including non-PyTorch memory, this process has 15.20 GiB memory in use. Of the allocated memory 11.80 GiB is allocated by PyTorch, and 3.03 GiB is reserved by PyTorch but unallocated.",
        causes=("one_tensor_larger_than_card", "attention_scores"),
    ),
    Thread(
        source="lm-sys/FastChat#2429", resolved_by="a reboot",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 86.00 MiB (GPU 0; 16.00 GiB total capacity; 7.36 GiB already allocated; 7.19 GiB free; 7.36 GiB reserved in total by PyTorch)",
        causes=("driver_or_runtime_limit",),
    ),
    Thread(
        source="rshaojimmy/MADDoG#11", resolved_by="a larger card",
        text="RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB already allocated; 19.75 MiB free; 13.71 GiB reserved in total by PyTorch)",
        causes=("activations", "model_states", "one_large_tensor"),
    ),
    Thread(
        source="NVIDIA-NeMo/RL#2859", resolved_by="the fp32 copy of the logits of long sequences",
        text='  File "/opt/nemo-rl/3rdparty/Megatron-LM-workspace/Megatron-LM/megatron/core/transformer/module.py", line 448, in forward\n    outputs = float16_to_fp32(outputs)\n              ^^^^^^^^^^^^^^^^^^^^^^^^\n  File "/opt/nemo-rl/3rdparty/Megatron-LM-workspace/Megatron-LM/megatron/core/transformer/module.py", line 373, in float_conversion\n    val = val.float()\n          ^^^^^^^^^^^\ntorch.OutOfMemoryError: CUDA out of memory.',
        causes=("logits",),
    ),
    Thread(
        source="bitsandbytes-foundation/bitsandbytes#916", resolved_by="the model does not fit while it is loaded",
        text='  File "E:\\model_collect\\venv\\lib\\site-packages\\transformers\\modeling_utils.py", line 4104, in _load_pretrained_model\n    new_error_msgs, offload_index, state_dict_index = _load_state_dict_into_meta_model(\n  File "E:\\model_collect\\venv\\lib\\site-packages\\transformers\\modeling_utils.py", line 786, in _load_state_dict_into_meta_model\n    set_module_quantized_tensor_to_device(\n  File "E:\\model_collect\\venv\\lib\\site-packages\\transformers\\integrations\\bitsandbytes.py", line 96, in set_module_quantized_tensor_to_device\n    new_value = bnb.nn.Int8Params(new_value, requires_grad=False, **kwargs).to(device)\ntorch.cuda.OutOfMemoryError: CUDA out of memory.',
        causes=("loading_the_model",),
    ),
    Thread(
        source="sgl-project/sglang#5576", resolved_by="12 billion parameters in 16 bit on 16 GB",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 226.00 MiB. GPU 0 has a total capacity of 15.58 GiB of which 71.25 MiB is free. Including non-PyTorch memory, this process has 13.94 GiB memory in use. Of the allocated memory 13.64 GiB is allocated by PyTorch, and 67.23 MiB is reserved by PyTorch but unallocated.",
        causes=("activations", "model_states", "loading_the_model"),
    ),
)  # fmt: skip
