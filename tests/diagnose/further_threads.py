# ruff: noqa: E501 (pasted messages keep their lines)
"""Further public threads: the cause was written down before the tool saw them. What programs print is kept; what people
told around it is told anew in fewer words. KEPT was tried once, when everything for FURTHER was done; ADDED came between.
"""

from __future__ import annotations

from held_back_threads import Thread

NO_GRAPH = "evaluation_keeps_graph"
V1 = "RuntimeError: CUDA out of memory. Tried to allocate {} (GPU 0; {} total capacity; {} already allocated; {} free; {} reserved in total by PyTorch)"
MPS = "MPS backend out of memory (MPS allocated: {}, other allocations: {}, max allowed: {}). Tried to allocate {} on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)."
KV = "ValueError: The model's max seq len ({}) is larger than the maximum number of tokens that can be stored in KV cache ({}). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
WARM_UP = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
BUS = "RuntimeError: DataLoader worker (pid {}) is killed by signal: Bus error."


def killed(rank: int) -> str:
    return f"[2023-09-10 11:45:59,207] [INFO] [launch.py:428:sigkill_handler] Killing subprocess {6000 + rank}\n[2023-09-10 11:46:00,010] [ERROR] [launch.py:434:sigkill_handler] ['python', '-u', 'train.py', '--local_rank={rank}'] exits with return code = -9"


FURTHER: tuple[Thread, ...] = (
    Thread(source="huggingface/trl#3128", resolved_by="evident: the engine beside the trainer", causes=("vllm_share",),
           text='[rank0]:   File "/opt/conda/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py", line 404, in __init__\n[rank0]:     self.llm = LLM(\n[rank0]:   File "/opt/conda/lib/python3.11/site-packages/vllm/engine/llm_engine.py", line 429, in _initialize_kv_caches\n[rank0]:     self.model_executor.initialize_cache(num_gpu_blocks, num_cpu_blocks)\n[rank0]: torch.OutOfMemoryError: CUDA out of memory.'),
    Thread(source="verl-project/verl#302", resolved_by="a share of 0.45", causes=("vllm_share",), text="cuda error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"),
    Thread(source="vllm-project/vllm#15105", resolved_by="the maintainer: fewer sequences", causes=("server_buffers",), text=f"ERROR 03-20 02:29:07 [core.py:340] {WARM_UP}\nvllm serve /mnt/llm/Qwen2.5-32B-Instruct-AWQ -tp 2 --max-model-len 15000 --gpu-memory-utilization 0.78"),
    Thread(source="deepspeedai/DeepSpeed#237", resolved_by="evident in the traceback", causes=("optimizer_states", "model_states"),
           text='[INFO 2020-05-26 20:08:23] Creating fp16 ZeRO stage 2 optimizer\n  File "/opt/conda/lib/python3.6/site-packages/deepspeed/pt/deepspeed_zero_optimizer.py", line 333, in __init__\n    self.initialize_optimizer_states()\nRuntimeError: CUDA out of memory.'),
    Thread(source="liucongg/ChatGLM-Finetuning#102", resolved_by="evident: four ranks load at once", causes=("host_load",), text=f"deepspeed train.py --ds_file ds_zero2_no_offload.json\nLoading checkpoint shards:   0%|          | 0/7 [00:00<?, ?it/s]\n{killed(3)}"),
    Thread(source="oobabooga/textgen#51", resolved_by="evident: host memory while loading", causes=("host_load", "host_memory"), text=f"Loading pygmalion-2.7b...\n{killed(0)}"),
    Thread(source="kijai/ComfyUI-CogVideoXWrapper#26", resolved_by="tiled decoding", causes=("input_too_large",),
           text='Error occurred when executing CogVideoDecode:\n\nAllocation on device\n\nFile "E:\\ComfyUI\\custom_nodes\\ComfyUI-CogVideoXWrapper\\nodes.py", line 336, in decode\nframes = vae.decode(latents).sample'),
    Thread(source="ultralytics/yolov3#1381", resolved_by="smaller images", causes=("activations", "input_too_large"), text="python train.py --batch_size 1 on a card of 4 GB says: CUDA out of memeory,"),
    Thread(source="open-mmlab/mmdetection#9616", resolved_by="evident: crowded images", causes=("many_boxes",), text="RTMDet-Ins, over 100 ground truths per img: CUDA out of memory in epoch 32\nEpoch(train) [32][20/41]  lr: 4.0000e-03  memory: 7136  loss: 1.4545"),
    Thread(source="sgl-project/sglang#5285", resolved_by="smaller graphs", causes=("server_buffers",),
           text='  File "/sgl-workspace/sglang/python/sglang/srt/model_executor/cuda_graph_runner.py", line 269, in __init__\n    raise Exception(\nException: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 7 has a total capacity of 95.00'),
    Thread(source="axolotl-ai-cloud/axolotl#219", resolved_by="the optimizer was loaded on the GPU", causes=("resuming_loads_twice",), text="The first run works; CUDA out of memory whenever I resume it from a checkpoint."),
    Thread(source="huggingface/pytorch-image-models#72", resolved_by="map_location='cpu'", causes=("resuming_loads_twice",), text='Batch 128 on each of 8 cards trains. When I resumed it there was a "CUDA out of memory" error.'),
    Thread(source="ByteDance-Seed/Bagel#116", resolved_by="sharded checkpoints", causes=("saving_gathers",), text="Fine-tuning runs on 8 cards, but sometimes there is an OOM when saving the checkpoint; the batch is 1."),
    Thread(source="RVC-Project/RVC-WebUI#915", resolved_by="a smaller batch", causes=("card_full_elsewhere", "activations"), text="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    Thread(source="mozilla/TTS#149", resolved_by="a batch of 16 in place of 32", causes=("activations",), text="`cuda out of memory. tried to allocate 78.88 mib (gpu 0; 3.95 gib total capacity; 2.99 gib already allocated; 74.44 mib free; 557.82 mib cached)`"),
    Thread(source="amdegroot/ssd.pytorch#257", resolved_by="a batch of 4", causes=("activations",), text="python train.py\nRuntimeError: CUDA error: out of memory"),
    Thread(source="tloen/alpaca-lora#546", resolved_by="32 GB of RAM in place of 16", causes=("host_load",), text="It stops at `Loading checkpoint shards: 52%` with the message `killed`."),
    Thread(source="chatchat-space/Langchain-Chatchat#35", resolved_by="the asker: host memory", causes=("host_load",), text="python knowledge_based_chatglm.py\nLoading checkpoint shards:  38%|██████▊           | 3/8 [00:02<00:03,  1.28it/s]Killed"),
    Thread(source="OpenNMT/OpenNMT-py#1406", resolved_by="evident: somebody else uses GPU 0", causes=("another_process",), text="RuntimeError: CUDA out of memory. Tried to allocate 73.50 MiB (GPU 0; 11.17 GiB total capacity; 732.35 MiB already allocated; 60.12 MiB free; 4.90 MiB cached)"),
    Thread(source="oobabooga/textgen#171", resolved_by="evident: 13B and a longer context on 15 GB", causes=("kv_cache", "loading_the_model"), text="A 13B model answers, but the context window is short: at 314 words it ends.\n" + V1.format("20.00 MiB", "14.75 GiB", "13.50 GiB", "18.81 MiB", "13.71 GiB")),
    Thread(source="facebookresearch/fairseq#103", resolved_by="fewer tokens per batch", causes=("long_sample", "activations"),
           text="THCudaCheck FAIL file=/pytorch/torch/lib/THC/generic/THCStorage.cu line=58 error=2 : out of memory\n| WARNING: ran out of memory on GPU #2, skipping batch\n| epoch 001:   0%|▏     | 315/72115 [01:24<5:21:16,  3.72it/s, loss=11.45, oom=0]"),
    Thread(source="ollama/ollama#6860", resolved_by="evident: buffers for the context", causes=("kv_cache", "server_buffers"),
           text="llama_new_context_with_model: KV self size  = 5120.00 MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory\nllama_new_context_with_model: failed to allocate compute buffers"),
    Thread(source="abetlen/llama-cpp-python#1944", resolved_by="evident in the text", causes=("kv_cache",),
           text="ggml_backend_cuda_buffer_type_alloc_buffer: allocating 204800.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_kv_cache_init: failed to allocate buffer for kv cache"),
    Thread(source="pytorch/pytorch#5040", resolved_by="a larger /dev/shm", causes=("shared_memory",), text=f"num_workers=1 is enough:\n{BUS.format(13)}"),
    Thread(source="xusenlinzy/api-for-open-llm#225", resolved_by="a shorter context", causes=("no_room_for_cache", "kv_cache"), text=KV.format(8192, 4512)),
    Thread(source="serend1p1ty/SeqNet#13", resolved_by="torch.no_grad()", causes=(NO_GRAPH,),
           text='  File "demo.py", line 69, in main\n    gallery_output = model(gallery_img)[0]\n  File "/home/ubuntu/workspace/SeqNet/models/seqnet.py", line 107, in inference\n    features = self.backbone(images.tensors)\nRuntimeError: CUDA out of memory.'),
    Thread(source="Tencent/FaceDetection-DSFD#11", resolved_by="no_grad", causes=(NO_GRAPH, "memory_grows"), text="demo.py leaks memory? More than one image gives a CUDA out of memory error."),
    Thread(source="open-mmlab/mmskeleton#41", resolved_by="mmap_mode", causes=("host_array", "host_memory"), text="    data = np.load('train_data.npy')\nMemoryError"),
    Thread(source="tensorflow/tensorflow#42617", resolved_by="evident: a weight matrix", causes=("model_states",), text="OOM when allocating tensor with shape[320000,512] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"),
    Thread(source="m-bain/whisperX#102", resolved_by="a smaller model", causes=("loading_the_model",),
           text='OutOfMemoryError                          Traceback (most recent call last)\nCell In[2], line 7\n----> 7 model = whisperx.load_model("large", device)\n\nFile ~/lib/python3.10/site-packages/whisperx/__init__.py:115, in load_model(name, device, download_root, in_memory)\n    113 model.load_state_dict(checkpoint["model_state_dict"])\n--> 115 return model.to(device)'),
    Thread(source="Purfview/whisper-standalone-win#255", resolved_by="the maintainer: a smaller model", causes=("loading_the_model", "input_too_large"), text="RuntimeError: CUDA failed with error out of memory (with -bs=10)"),
)  # fmt: skip

ADDED: tuple[Thread, ...] = (
    Thread(source="TorchSSL/TorchSSL#4", resolved_by="fewer workers", causes=("host_workers",), text="DataLoader worker (pid 12847) is killed by signal: Killed"),
    Thread(source="FoNDUE-HTR/Documentation#5", resolved_by="host memory of the job", causes=("host_limit", "host_memory"), text="#SBATCH --mem=0\nsrun: error: gpu001: task 0: Out Of Memory"),
    Thread(source="hpcaitech/Open-Sora#173", resolved_by="host memory grows", causes=("host_growth",), text="训练中内存一直增加\nRuntimeError: DataLoader worker (pid 3979007) is killed by signal: Killed."),
    Thread(source="AUTOMATIC1111/stable-diffusion-webui#8628", resolved_by="a smaller image", causes=("input_too_large", "one_large_tensor"), text="text2img above 1000x1000\n" + V1.format("3.75 GiB", "8.00 GiB", "5.89 GiB", "0 bytes", "6.00 GiB")),
    Thread(source="AUTOMATIC1111/stable-diffusion-webui#10763", resolved_by="a smaller upscale", causes=("input_too_large", "one_large_tensor"), text="high res fix from 640x940\n" + V1.format("4.02 GiB", "12.00 GiB", "6.06 GiB", "2.27 GiB", "7.45 GiB")),
    Thread(source="espnet/espnet#2798", resolved_by="without utterances above 3000 frames", causes=("long_sample", "activations"), text="Training on 90 hours of ASR data ends with CUDA out of memory whatever the batch is."),
    Thread(source="NVIDIA-NeMo/Speech#5230", resolved_by="shorter audio", causes=("long_sample", "memory_grows"), text="CUDA out of memory after 44 epochs\nmax_duration: 62.0\n" + V1.format("130.00 MiB", "11.91 GiB", "10.99 GiB", "50.38 MiB", "11.19 GiB")),
    Thread(source="NervanaSystems/deepspeech#10", resolved_by="a larger card", causes=("activations",), text='  File "/srv/neon/backends/nervanagpu.py", line 146, in __init__\n    self.gpudata = allocator(self.nbytes)\npycuda._driver.MemoryError: cuMemAlloc failed: out of memory'),
    Thread(source="espnet/espnet#2575", resolved_by="a shorter reference", causes=("input_too_large", "one_large_tensor"), text="The second sentence of the multi-tts demo:\n" + V1.format("6.41 GiB", "10.92 GiB", "7.46 GiB", "2.83 GiB", "7.47 GiB")),
    Thread(source="modelscope/ms-swift#1860", resolved_by="MAX_PIXELS", causes=("image_tokens",), text="swift sft --model_type qwen2-vl-7b-instruct --sft_type lora\n显存一直增加，直到 out of memory"),
    Thread(source="pytorch/pytorch#105839", resolved_by="evident: other Metal users", causes=("outside_pytorch", "mps_limit"), text=MPS.format("1.45 GB", "7.42 GB", "9.07 GB", "563.62 MB")),
    Thread(source="Comfy-Org/ComfyUI#8984", resolved_by="a smaller model", causes=("mps_limit", "loading_the_model"), text="ComfyUI\n" + MPS.format("15.72 GiB", "2.41 MiB", "18.13 GiB", "5.81 GiB")),
)  # fmt: skip

KEPT: tuple[Thread, ...] = (
    Thread(source="vllm-project/vllm#188", resolved_by="quantised weights", causes=("loading_the_model",), text="python -m vllm.entrypoints.openai.api_server --model mistralai/Mistral-7B-v0.1 --dtype half --gpu-memory-utilization 0.8  --max-model-len 4096\n" + V1.format("224.00 MiB", "10.73 GiB", "9.85 GiB", "46.44 MiB", "9.86 GiB")),
    Thread(source="huggingface/trl#3523", resolved_by="evident: 1024 sequences", causes=("server_buffers",), text=f"A server for GRPO:\n{WARM_UP}"),
    Thread(source="deepseek-ai/DeepSeek-Coder#78", resolved_by="offloading", causes=("model_states",), text="Full parameters of deepseek-coder-33b-instruct, ZeRO-3, batch_size 1.\n" + V1.format("3.50 GiB", "79.35 GiB", "77.08 GiB", "415.19 MiB", "77.54 GiB")),
    Thread(source="deepspeedai/DeepSpeed#3160", resolved_by="host memory", causes=("host_memory", "host_offload"), text="CPU Virtual Memory:  used = 28.43 GB, percent = 22.6%\n['run_clm.py', '--gradient_accumulation_steps', '1'] exits with return code = -9"),
    Thread(source="deepspeedai/DeepSpeed#4239", resolved_by="the maintainer: parameters back on the GPU", causes=("host_offload",), text='"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}\n' + killed(7)),
    Thread(source="databrickslabs/dolly#111", resolved_by="evident: 95 % of 32 GB", causes=("host_memory", "host_offload"), text="CPU Virtual Memory:  used = 29.71 GB, percent = 95.3%\n" + killed(0)),
    Thread(source="Comfy-Org/ComfyUI#6616", resolved_by="evident: a video on 10 GB", causes=("input_too_large",), text="- **Node Type:** VAEDecodeTiled\n- **Exception Type:** torch.OutOfMemoryError\n- **Exception Message:** Allocation on device"),
    Thread(source="dbolya/yolact#105", resolved_by="evident: all masks at full size", causes=("one_large_tensor",),
           text='  File "/home/j/yolact/eval.py", line 956, in evaluate\n    prep_metrics(ap_data, preds)\n  File "/home/j/yolact/layers/output_utils.py", line 91, in postprocess\n    masks = F.interpolate(masks.unsqueeze(0), (h, w))\nRuntimeError: CUDA out of memory. Tried to allocate 6.68 GiB (GPU 0; 7.93 GiB t'),
    Thread(source="dingjiansw101/AerialDetection#8", resolved_by="evident: many boxes", causes=("many_boxes",), text="So many gt boxes in one photo!\n    losses = model(**data)\nRuntimeError: CUDA out of memory."),
    Thread(source="hiyouga/LlamaFactory#2769", resolved_by="flash attention", causes=("one_large_tensor",),
           text="CUDA out of memory. Tried to allocate 37.33 GiB. GPU 0 has a total capacity of 47.54 GiB of which 34.00 GiB is free. Process 251364 has 13.53 GiB memory in use. Of the allocated memory 8.89 GiB is allocated by PyTorch, and 4.32 GiB is reserved by PyTorch but unallocated."),
    Thread(source="openvinotoolkit/nncf#204", resolved_by="evident: the card is somebody else's", causes=("another_process",), text=V1.format("20.00 MiB", "11.78 GiB", "46.62 MiB", "12.38 MiB", "58.00 MiB") + '\n  File "/home/a/mmcv/runner/checkpoint.py", line 200, in _load_checkpoint\n    checkpoint = torch.load(filename, map_location=map_location)'),
    Thread(source="rwth-i6/returnn#1345", resolved_by="ranks load onto their own card", causes=("resuming_loads_twice",), text="With several GPUs: when it loads the existing checkpoint, OutOfMemoryError: CUDA out of memory in the first step."),
    Thread(source="microsoft/SpareNet#12", resolved_by="losses detached", causes=("memory_grows",), text="After two epochs CUDA out of memory; nvidia-smi shows a steady increase."),
    Thread(source="QwenLM/Qwen3#873", resolved_by="a card with room", causes=("card_full_elsewhere",), text="    return F.linear(input, self.weight, self.bias)\nRuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    Thread(source="zai-org/ChatGLM-6B#7", resolved_by="host memory", causes=("host_load",), text="Loading checkpoint shards:  62%, then the process is killed"),
    Thread(source="oobabooga/textgen#2509", resolved_by="host memory", causes=("host_load",), text="INFO:Loading lmsys_vicuna-7b...\nLoading checkpoint shards:   0%|      | 0/2 [00:00<?, ?it/s]\nKilled"),
    Thread(source="turboderp-org/exllamav2#761", resolved_by="evident: a cache for the whole context", causes=("kv_cache", "loading_the_model"), text='  File "/content/exllamav2/exllamav2/cache.py", line 92, in create_state_tensors\n    p_value_states = torch.zeros(self.shape_wv)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 14.74 GiB of which 38.12 MiB is free.'),
    Thread(source="kijai/ComfyUI-CogVideoXWrapper#18", resolved_by="tiled decoding", causes=("input_too_large",), text='CogVideo Decode ends with "Allocation on device": out-of-memory errors on 24 GB.'),
    Thread(source="facebookresearch/fairseq#869", resolved_by="evident: an unusual batch", causes=("long_sample", "activations"), text="| WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 7.20 GiB already allocated; 17.56 MiB free; 46.25 MiB cached);\n Skipping batch"),
    Thread(source="ollama/ollama#8447", resolved_by="fewer layers", causes=("loading_the_model",), text="ggml_backend_cuda_buffer_type_alloc_buffer: allocating 35533.34 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer"),
    Thread(source="ikawrakow/ik_llama.cpp#749", resolved_by="evident: compute buffers", causes=("kv_cache", "server_buffers"), text="llama_new_context_with_model: KV self size  = 1005.79 MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 279356.51 MiB on device 0: cudaMalloc failed: out of memory"),
    Thread(source="XPixelGroup/BasicSR#59", resolved_by="evident: docker", causes=("shared_memory",), text=BUS.format(20991) + " Details are lost due to multiprocessing."),
    Thread(source="vllm-project/vllm#2418", resolved_by="a shorter context", causes=("no_room_for_cache",), text="# GPU blocks: 229, # CPU blocks: 512\n" + KV.format(4096, 3664)),
    Thread(source="Graph-COM/SubgraphRAG#19", resolved_by="a shorter context", causes=("no_room_for_cache",), text=KV.format(131072, 39024)),
    Thread(source="facebookresearch/detectron2#1514", resolved_by="torch.no_grad()", causes=(NO_GRAPH,), text="Where does torch.no_grad() belong? CUDA out of memory error after 1 image."),
    Thread(source="pytorch/pytorch#9439", resolved_by="SGD in place of Adam", causes=("optimizer_states",), text="RuntimeError                              Traceback (most recent call last)\n<ipython-input-5-a2a7> in <module>()\n     28         loss.backward()\n---> 29         optimizer.step()\n\nRuntimeError: CUDA error: out of memory"),
    Thread(source="meghshukla/ActiveLearningForHumanPose#1", resolved_by="host memory of 16 GB", causes=("host_memory", "host_array"), text="File “C:\\ProgramData\\lib\\site-packages\\numpy\\lib\\format.py”, line 664, in write_array\npickle.dump(array, fp, protocol=3, **pickle_kwargs)\nMemoryError"),
    Thread(source="hizhangp/yolo_tensorflow#71", resolved_by="a smaller batch", causes=("activations",), text="ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[45,28,28,512]"),
    Thread(source="davabase/whisper_real_time#8", resolved_by="a smaller model", causes=("loading_the_model",), text='  File "D:\\env\\lib\\site-packages\\whisper\\__init__.py", line 122, in load_model\n    return model.to(device)\n  File "D:\\env\\lib\\site-packages\\torch\\nn\\modules\\module.py", line 641, in _apply\n    module._apply(fn)\n' + V1.format("26.00 MiB", "8.00 GiB", "6.50 GiB", "0 bytes", "6.83 GiB")[:150]),
)  # fmt: skip
