# ruff: noqa: E501 (pasted messages keep their lines)
"""More public threads with a known resolution, collected and answered before the tool had seen them (see the first)."""

from __future__ import annotations

from held_back_threads import Thread

MIXED_THREADS: tuple[Thread, ...] = (
    Thread(
        source="bmaltais/kohya_ss#623", resolved_by="Dreambooth had been started where adapters were meant: the whole model was trained",
        text="RuntimeError: CUDA out of memory. Tried to allocate 146.00 MiB (GPU 0; 8.00 GiB total capacity; 7.21 GiB already allocated; 0 bytes free; 7.32 GiB reserved in total by PyTorch)",
        causes=("needs_more_than_the_card", "optimizer_states"),
    ),
    Thread(
        source="sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning#57", resolved_by="torch.no_grad() around the whole of validate()",
        text='Traceback (most recent call last):\n  File "train.py", line 349, in <module>\n    main()\n  File "train.py", line 127, in main\n    criterion=criterion)\n  File "train.py", line 282, in validate\n    scores_copy = scores.clone()\nRuntimeError: CUDA error: out of memory\n',
        causes=("evaluation_keeps_graph",),
    ),
    Thread(
        source="LeelaChessZero/lc0#927", resolved_by="too much was running on the card at once",
        text="error CUDA error: out of memory (c:\\projects\\lc0\\src\\neural\\cuda\\network_cudnn.cc:442",
        causes=("another_process", "card_full_elsewhere"),
    ),
    Thread(
        source="lllyasviel/Fooocus#237", resolved_by="more virtual memory under Windows",
        text="RuntimeError: [enforce fail at ..\\c10\\core\\impl\\alloc_cpu.cpp:72] data. DefaultCPUAllocator: not enough memory: you tried to allocate 26214400 bytes.",
        causes=("host_memory",),
    ),
    Thread(
        source="wuyifan18/DeepLog#50", resolved_by="a smaller batch and less kept in host memory",
        text="[enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 278528000 bytes. Error code 12 (Cannot allocate memory)",
        causes=("host_memory",),
    ),
    Thread(
        source="facebookresearch/Mask2Former#185", resolved_by="a larger machine: the host's memory in evaluation",
        text="DefaultCPUAllocator: can't allocate memory: you tried to allocate 3077222400 bytes. Error code 12 (Cannot allocate memory)",
        causes=("host_memory",),
    ),
    Thread(
        source="bytedance/Protenix#2", resolved_by="docker run --shm-size=128g",
        text="RuntimeError: DataLoader worker (pid 572) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        causes=("shared_memory",),
    ),
    Thread(
        source="hiyouga/LlamaFactory#4629", resolved_by="the maintainer: more system memory (252 GB were full)",
        text="[2024-07-01 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] exits with return code = -9",
        causes=("host_memory",),
    ),
    Thread(
        source="iperov/DeepFaceLab#683", resolved_by="the lightweight encoder",
        text="Error: OOM when allocating tensor with shape [3,3,512,2048] and type float on /job:localhost\n[[{{node training/adam/mul_73}} Mul[T=DT_float]\n",
        causes=("needs_more_than_the_card", "optimizer_states"),
    ),
    Thread(
        source="tensorflow/tpu#385", resolved_by="a TPU with twice the memory",
        text="Status code: Resource exhausted [9x]\n  Compilation failure: Ran out of memory in memory space hbm. Used 8.38G of 8.00G hbm. Exceeded hbm capacity by 385.25M.\n",
        causes=("needs_more_than_the_card",),
    ),
    Thread(
        source="MichalBusta/E2E-MLT#37", resolved_by="the maintainer: one GB is too little, the model takes 16",
        text="**RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 983.69 MiB total capacity; 209.53 MiB already allocated; 69.56 MiB free; 6.47 MiB cached)**\n",
        causes=("needs_more_than_the_card",),
    ),
    Thread(
        source="zhou13/lcnn#23", resolved_by="the maintainer: 12 GB are needed, or a smaller batch",
        text='File "/home/anxing/anaconda3/envs/learning/lib/python3.8/site-packages/torch/nn/modules/conv.py", line 341, in conv2d_forward\n    return F.conv2d(input, weight, self.bias, self.stride,\nRuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 5.81 GiB total capacity; 4.66 GiB already allocated; 77.50 MiB free; 4.68 GiB reserved in total by PyTorch) TensorBoard caught SIGTERM; exiting...\n',
        causes=("needs_more_than_the_card", "activations"),
    ),
    Thread(
        source="Comfy-Org/ComfyUI#8984", resolved_by="the maintainer: a smaller model",
        text="MPS backend out of memory (MPS allocated: 15.72 GiB, other allocations: 2.41 MiB, max allowed: 18.13 GiB). Tried to allocate 5.81 GiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        causes=("needs_more_than_the_card", "one_large_tensor"),
    ),
    Thread(
        source="wencolani/CrossE#2", resolved_by="13 GB were held by somebody whom nvidia-smi does not list",
        text="+-----------------------------------------------------------------------------+\n| NVIDIA-SMI 410.48                 Driver Version: 410.48                    |\n|-------------------------------+----------------------+----------------------+\n| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |\n| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |\n|===============================+======================+======================|\n|   0  Tesla P100-SXM2...  Off  | 00000000:05:00.0 Off |                    0 |\n| N/A   36C    P0    41W / 300W |  12799MiB / 16280MiB |      0%      Default |\n+-------------------------------+----------------------+----------------------+\n                                                                               \n+-----------------------------------------------------------------------------+\n| Processes:                                                       GPU Memory |\n|  GPU       PID   Type   Process name                             Usage      |\n|=============================================================================|\n+-----------------------------------------------------------------------------+\n",
        causes=("another_process",),
    ),
    Thread(
        source="ROCm/tensorflow-upstream#82", resolved_by="the maintainer: another process had taken the memory",
        text="2019-01-08 19:06:10.822532: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1189] Created TensorFlow device (/job:localhost/replica:0/task:0/device:GPU:0 with 7524 MB memory) -> physical GPU (device: 0, name: Vega 10 XL/XT [Radeon RX Vega 56/64], pci bus id: 0000:03:00.0)\n2019-01-08 19:06:11.303639: E tensorflow/stream_executor/rocm/rocm_driver.cc:601] failed to allocate 7.35G (7889485824 bytes) from device: hipError_t(1002)\n2019-01-08 19:06:11.303736: E tensorflow/stream_executor/rocm/rocm_driver.cc:601] failed to allocate 6.61G (7100536832 bytes) from device: hipError_t(1002)\n",
        causes=("another_process", "card_full_elsewhere"),
    ),
    Thread(
        source="amdegroot/ssd.pytorch#33", resolved_by="a batch of 8 and no search for cuDNN's algorithms",
        text="RuntimeError: CUDNN_STATUS_ALLOC_FAILED",
        causes=("card_full_elsewhere", "needs_more_than_the_card"),
    ),
    Thread(
        source="microsoft/CNTK#220", resolved_by="a smaller batch",
        text="About to throw exception 'cuDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=PTNUWCL5099642 ; expr=finder(calgo, algoPerf)'\n",
        causes=("card_full_elsewhere", "needs_more_than_the_card"),
    ),
    Thread(
        source="Vchitect/LaVie#64", resolved_by="xformers had not been installed right: dense attention",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 400.00 GiB (GPU 0; 44.52 GiB total capacity; 12.21 GiB already allocated; 31.33 GiB free; 12.83 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        causes=("attention_scores", "one_tensor_larger_than_card"),
    ),
    Thread(
        source="heykeetae/Self-Attention-GAN#59", resolved_by="a batch of 8: the scores of self-attention over all pixels",
        text="In models.networks.py, energy = torch.bmm(proj_query.permute, proj_key)\nRuntimeError: CUDA out of memory. Tried to allocate 268.21 GiB (GPU 4; 10.92 GiB total capacity; 1.80 GiB already allocated; 8.52 GiB free; 47.59 MiB cached)",
        causes=("attention_scores", "one_tensor_larger_than_card"),
    ),
    Thread(
        source="meta-pytorch/torchtune#1603", resolved_by="a cache as long as the answer, not as the model's longest text",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 62.81 MiB is free. \nProcess 539192 has 23.57 GiB memory in use. Of the allocated memory 23.02 GiB is allocated by PyTorch, and 121.49 MiB is reserved by PyTorch but unallocated. \nIf reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        causes=("generation_cache",),
    ),
    Thread(
        source="NVIDIA/Megatron-LM#92", resolved_by="a very large vocabulary: fp32 logits",
        text='  File "/data/quxiaoru/Code/rev_gen/megatron/model/gpt_model.py", line 104, in forward\n    self.fp16_lm_cross_entropy)\n  File "/data/quxiaoru/Code/rev_gen/megatron/model/gpt_model.py", line 60, in post_language_model_processing\n    loss = mpu.vocab_parallel_cross_entropy(output.float(), labels)\nRuntimeError: CUDA out of memory. Tried to allocate 9.33 GiB (GPU 0; 10.76 GiB total capacity; 5.17 GiB already allocated; 4.48 GiB free; 5.28 GiB reserved in total by PyTorch)\n',
        causes=("logits",),
    ),
    Thread(
        source="dhlee347/pytorchic-bert#5", resolved_by="the maintainer: a smaller batch",
        text="h = (scores @ v).transpose(1, 2).contiguous()\nRuntimeError: CUDA error: out of memory",
        causes=("needs_more_than_the_card", "activations", "attention_scores"),
    ),
    Thread(
        source="jadore801120/attention-is-all-you-need-pytorch#103", resolved_by="fewer copies of the outputs in the loss, a smaller batch",
        text="    one_hot = one_hot * (1 - eps) + (1 - one_hot) * eps / (n_class - 1)\nRuntimeError: CUDA out of memory.",
        causes=("logits", "activations", "needs_more_than_the_card"),
    ),
    Thread(
        source="hafs-community/HAFS#101", resolved_by="the node to itself: the job's share of host memory",
        text="slurmstepd: error: Detected 1 oom-kill event(s) in step 3495064.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\nsrun: error: Orion-01-01: task 4: Out Of Memory\n",
        causes=("host_memory",),
    ),
)  # fmt: skip
