# ruff: noqa: E501 (pasted messages keep their lines)
"""More public threads with a known resolution, collected and answered before the tool had seen them (see the first)."""

from __future__ import annotations

from held_back_threads import Thread

MIXED_THREADS: tuple[Thread, ...] = (
    Thread(
        source="bmaltais/kohya_ss#623", resolved_by="Dreambooth had been started where adapters were meant: the whole model was trained",
        text="RuntimeError: CUDA out of memory. Tried to allocate 146.00 MiB (GPU 0; 8.00 GiB total capacity; 7.21 GiB already allocated; 0 bytes free; 7.32 GiB reserved in total by PyTorch)",
        causes=("activations", "model_states", "optimizer_states"),
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
        causes=("activations", "model_states", "optimizer_states"),
    ),
    Thread(
        source="tensorflow/tpu#385", resolved_by="a TPU with twice the memory",
        text="Status code: Resource exhausted [9x]\n  Compilation failure: Ran out of memory in memory space hbm. Used 8.38G of 8.00G hbm. Exceeded hbm capacity by 385.25M.\n",
        causes=("activations", "model_states",),
    ),
    Thread(
        source="MichalBusta/E2E-MLT#37", resolved_by="the maintainer: one GB is too little, the model takes 16",
        text="**RuntimeError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 983.69 MiB total capacity; 209.53 MiB already allocated; 69.56 MiB free; 6.47 MiB cached)**\n",
        causes=("activations", "model_states",),
    ),
    Thread(
        source="zhou13/lcnn#23", resolved_by="the maintainer: 12 GB are needed, or a smaller batch",
        text='File "/home/anxing/anaconda3/envs/learning/lib/python3.8/site-packages/torch/nn/modules/conv.py", line 341, in conv2d_forward\n    return F.conv2d(input, weight, self.bias, self.stride,\nRuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 5.81 GiB total capacity; 4.66 GiB already allocated; 77.50 MiB free; 4.68 GiB reserved in total by PyTorch) TensorBoard caught SIGTERM; exiting...\n',
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="Comfy-Org/ComfyUI#8984", resolved_by="the maintainer: a smaller model",
        text="MPS backend out of memory (MPS allocated: 15.72 GiB, other allocations: 2.41 MiB, max allowed: 18.13 GiB). Tried to allocate 5.81 GiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        causes=("activations", "model_states", "one_large_tensor"),
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
        causes=("card_full_elsewhere", "activations", "model_states"),
    ),
    Thread(
        source="microsoft/CNTK#220", resolved_by="a smaller batch",
        text="About to throw exception 'cuDNN failure 2: CUDNN_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=PTNUWCL5099642 ; expr=finder(calgo, algoPerf)'\n",
        causes=("card_full_elsewhere", "activations", "model_states"),
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
        causes=("activations", "model_states", "activations", "attention_scores"),
    ),
    Thread(
        source="jadore801120/attention-is-all-you-need-pytorch#103", resolved_by="fewer copies of the outputs in the loss, a smaller batch",
        text="    one_hot = one_hot * (1 - eps) + (1 - one_hot) * eps / (n_class - 1)\nRuntimeError: CUDA out of memory.",
        causes=("logits", "activations", "activations", "model_states"),
    ),
    Thread(
        source="hafs-community/HAFS#101", resolved_by="the node to itself: the job's share of host memory",
        text="slurmstepd: error: Detected 1 oom-kill event(s) in step 3495064.0 cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\nsrun: error: Orion-01-01: task 4: Out Of Memory\n",
        causes=("host_memory",),
    ),
)  # fmt: skip

# Collected with other searches after the changes that the first score led to.
LATER_MIXED_THREADS: tuple[Thread, ...] = (
    Thread(
        source="hzxie/CityDreamer#14", resolved_by="the maintainer: smaller patches for a smaller card",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.62 GiB (GPU 0; 3.63 GiB total capacity; 904.46 MiB already allocated; 1.60 GiB free; 930.00 MiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        causes=("one_tensor_larger_than_card", "activations", "model_states"),
    ),
    Thread(
        source="mahmoodlab/Patch-GCN#28", resolved_by="pictures at half the magnification: fewer patches in a bag",
        text="RuntimeError: CUDA out of memory. Tried to allocate 2.92 GiB (GPU 0; 23.65 GiB total capacity; 19.63 GiB already allocated; 188.56 MiB free; 21.93 GiB reserved in total by PyTorch)",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="open-edge-platform/anomalib#372", resolved_by="the maintainer: features of the whole training set are kept on the card",
        text="RuntimeError: CUDA out of memory. Tried to allocate 8.29 GiB (GPU 0; 31.75 GiB total capacity; 24.92 GiB already allocated; 2.77 GiB free; 27.75 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\nEpoch 0:   6%|▋         | 232/3612 [00:12<02:56, 19.15it/s, loss=nan] ",
        causes=("memory_grows",),
    ),
    Thread(
        source="CSAILVision/semantic-segmentation-pytorch#151", resolved_by="the maintainer: smaller pictures",
        text="RuntimeError: CUDA out of memory. Tried to allocate 4.46 GiB (GPU 0; 7.93 GiB total capacity; 4.72 GiB already allocated; 2.41 GiB free; 11.21 MiB cached)",
        causes=("activations", "model_states", "activations", "one_large_tensor"),
    ),
    Thread(
        source="Thvnvtos/Lung_Segmentation#7", resolved_by="the maintainer: 32 GB were used; slices instead of volumes",
        text="    logits = unet(batch)\nRuntimeError: CUDA out of memory.",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="idiap/ESLAM#20", resolved_by="docker run --shm-size=32g",
        text="RuntimeError: unable to write to file </torch_31911_952036340_6686>: No space left on device (28)",
        causes=("shared_memory",),
    ),
    Thread(
        source="Goekdeniz-Guelmez/mlx-lm-lora#16", resolved_by="the maintainer: 16 GB are too few",
        text="libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        causes=("activations", "model_states",),
    ),
    Thread(
        source="google-deepmind/jax_privacy#10", resolved_by="XLA_PYTHON_CLIENT_MEM_FRACTION=0.7: libraries outside of JAX's pool had no room",
        text="Original error: RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on device ordinal 0",
        causes=("card_full_elsewhere", "outside_pytorch"),
    ),
    Thread(
        source="mozilla/bugbug#3906", resolved_by="a worker with more memory",
        text="[taskcluster 2023-12-07 03:00:00.000Z] Training task exit with status code 137",
        causes=("host_memory",),
    ),
    Thread(
        source="microsoft/pai#1089", resolved_by="the cgroup's limit of 176 GiB was reached",
        text="> read 860000 img\n> /pai/bootstrap/docker_bootstrap.sh: line 159:   943 Killed                  /usr/bin/python3 Res-click-adCategory.py\n> [DEBUG] EXIT signal received in docker container, exiting ...\n",
        causes=("host_memory",),
    ),
    Thread(
        source="QwenLM/Qwen3#12", resolved_by="a larger share of the card for vLLM",
        text="ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        causes=("vllm_share", "no_room_for_cache"),
    ),
    Thread(
        source="cswry/SeeSR#9", resolved_by="the picture's encoder works on tiles",
        text="latents_condition_image = self.vae.encode(image*2-1).latent_dist.sample()\nRuntimeError: CUDA out of memory.",
        causes=("activations", "activations", "model_states", "image_tokens"),
    ),
    Thread(
        source="RVC-Project/Retrieval-based-Voice-Conversion-WebUI#915", resolved_by="a smaller batch",
        text="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)",
        causes=("card_full_elsewhere", "activations", "model_states"),
    ),
    Thread(
        source="pytorch/pytorch#16417", resolved_by="a smaller batch (one of its answers, with its own message)",
        text="RuntimeError: CUDA out of memory. Tried to allocate 54.00 MiB (GPU 0; 3.95 GiB total capacity; 2.65 GiB already allocated; 39.00 MiB free; 87.29 MiB cached)",
        causes=("activations", "model_states", "activations"),
    ),
    Thread(
        source="jchengai/planTF#28", resolved_by="fewer threads per node",
        text="(raylet) [2024-08-25 19:21:02,241 E 1111013 1111013] (raylet) node_manager.cc:3064: 12 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: b8aad7ac53c083fcae4851424e0362cec4a21916876b69bb1722ed29, IP: 172.31.105.218) over the last time period.",
        causes=("host_memory",),
    ),
    Thread(
        source="Blaizzy/mlx-vlm#79", resolved_by="a picture of many pixels: one buffer larger than Metal allows",
        text="libc++abi: terminating due to uncaught exception of type std::runtime_error: Attempting to allocate 51619840000 bytes which is greater than the maximum allowed buffer size of 21743271936 bytes.\nFatal Python error: Aborted\n",
        causes=("one_tensor_larger_than_card", "image_tokens", "driver_or_runtime_limit"),
    ),
    Thread(
        source="obryanlouis/qa#5", resolved_by="a batch of 4: the card was full",
        text="UnknownError: CUDNN_STATUS_EXECUTION_FAILED Failed to set dropout descriptor",
        causes=("card_full_elsewhere", "activations", "model_states"),
    ),
    Thread(
        source="ExplainableML/czsl#7", resolved_by="--cpu_eval: the scores of all pairs are evaluated in host memory",
        text='  File "train.py", line 108, in main\n    test(epoch, image_extractor, model, testloader, evaluator_val, writer, args, logpath)\n  File "train.py", line 193, in test\n    stats = evaluator.evaluate_predictions(results, all_attr_gt, all_obj_gt, all_pair_gt, all_pred_dict, topk=args.topk)\n  File "/nfs4/krissna/OWCZL/czsl-main/czsl-main/models/common.py", line 489, in evaluate_predictions\n    results = self.score_fast_model(scores, obj_truth, bias = bias, topk = topk)\n  File "/nfs4/krissna/OWCZL/czsl-main/czsl-main/models/common.py", line 363, in score_fast_model\n    scores[~mask] += bias # Add bias to test pairs\nRuntimeError: CUDA out of memory. Tried to allocate 4.18 GiB (GPU 0; 10.92 GiB total capacity; 4.68 GiB already allocated; 2.44 GiB free; 7.85 GiB reserved in total by PyTorch)\n',
        causes=("evaluation_gathers",),
    ),
    Thread(
        source="YBIGTA/pytorch-hair-segmentation#28", resolved_by="outputs kept with their graphs in the metric were deleted",
        text='[ 29/210] processing image... \n[ 30/210] processing image... \nTraceback (most recent call last):\n  File "E:/2018/final/HairSegment/pytorch-hair-segmentation/evaluate.py", line 94, in <module>\n    logit = net(data)\n  File "C:\\ProgramData\\Anaconda3\\lib\\site-packages\\torch\\nn\\modules\\module.py", line 489, in __call__\n    result = self.forward(*input, **kwargs)\n  File "E:\\2018\\final\\HairSegment\\pytorch-hair-segmentation\\networks\\pspnet.py", line 108, in forward\n    p = self.psp(f)\n  File "C:\\ProgramData\\Anaconda3\\lib\\site-packages\\torch\\nn\\modules\\module.py", line 489, in __call__\n    result = self.forward(*input, **kwargs)\n  File "E:\\2018\\final\\HairSegment\\pytorch-hair-segmentation\\networks\\pspnet.py", line 59, in forward\n    return torch.cat(features, dim=1)\nRuntimeError: CUDA out of memory. Tried to allocate 32.00 MiB (GPU 0; 8.00 GiB total capacity; 5.75 GiB already allocated; 17.18 MiB free; 351.95 MiB cached)\n',
        causes=("evaluation_keeps_graph", "memory_grows"),
    ),
    Thread(
        source="yikang-li/FactorizableNet#22", resolved_by="torch.no_grad() in testing",
        text="RuntimeError: CUDA out of memory. Tried to allocate 957.12 MiB (GPU 0; 10.73 GiB total capacity; 8.16 GiB already allocated; 801.19 MiB free; 865.05 MiB cached)",
        causes=("evaluation_keeps_graph", "memory_grows"),
    ),
    Thread(
        source="ylqi/Count-Anything#1", resolved_by="a smaller picture",
        text="torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 34.00 MiB (GPU 0; 3.95 GiB total capacity; 3.29 GiB already allocated; 11.38 MiB free; 3.37 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        causes=("activations", "model_states", "activations", "image_tokens"),
    ),
    Thread(
        source="Sentdex/OpenAssistant_API_Pythia_12B#2", resolved_by="24 GB are too few for the weights in 16 bit",
        text='Traceback (most recent call last):\n  File "/home/user/repos/OpenAssistant_API_Pythia_12B/oasstapiv1.py", line 24, in <module>\n    model = model.half().cuda()\n            ^^^^^^^^^^^^^^^^^^^\n  File "/home/user/.local/lib/python3.11/site-packages/torch/nn/modules/module.py", line 905, in cuda\n    return self._apply(lambda t: t.cuda(device))\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File "/home/user/.local/lib/python3.11/site-packages/torch/nn/modules/module.py", line 820, in _apply\n    param_applied = fn(param)\n                    ^^^^^^^^^\n  File "/home/user/.local/lib/python3.11/site-packages/torch/nn/modules/module.py", line 905, in <lambda>\n    return self._apply(lambda t: t.cuda(device))\n                                 ^^^^^^^^^^^^^^\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 492.00 MiB (GPU 0; 22.38 GiB total capacity; 21.72 GiB already allocated; 485.06 MiB free; 21.74 GiB reserved in total by PyTorch)',
        causes=("loading_the_model",),
    ),
)  # fmt: skip
