# ruff: noqa: E501 (a sentence and its translation read better whole)
"""The words of a diagnosis, English and Chinese side by side: causes, steps and headings."""

from __future__ import annotations

CAUSES: dict[str, tuple[str, str]] = {
    "another_process": ("Another process holds the memory.", "显存被别的进程占用。"),
    "fragmentation": ("PyTorch's cache is fragmented.", "PyTorch 缓存碎片化。"),
    "cap_by_fraction": ("A memory fraction caps this process.", "本进程被显存比例上限限制。"),
    "one_tensor_larger_than_card": ("One tensor is larger than the card.", "单个张量就大于显卡。"),
    "one_large_tensor": (
        "One large tensor does not fit in addition to the rest.",
        "除已占用的部分外，再放不下这一个大张量。",
    ),
    "windows_spill": (
        "The card was full long before: memory spilled to the host.",
        "显存早已占满：已溢出到主机内存。",
    ),
    "all_ranks_on_one_card": (
        "Several processes of this job use the same card.",
        "同一任务的多个进程用了同一张卡。",
    ),
    "driver_or_runtime_limit": (
        "A driver or runtime limit, not capacity.",
        "驱动或运行时限制，而非容量。",
    ),
    "host_memory": ("Host memory ran out, not the GPU's.", "耗尽的是主机内存，不是显存。"),
    "shared_memory": ("/dev/shm is too small.", "/dev/shm 太小。"),
    "open_files": (
        "Not a lack of memory: the files through which DataLoader workers share tensors are too many, or gone.",
        "不是内存不足：DataLoader 工作进程共享张量所用的文件打开过多，或已被删除。",
    ),
    "card_full_elsewhere": (
        "The card was full when a library outside PyTorch's allocator needed a little.",
        "PyTorch 之外的库需要少量显存时卡已满。",
    ),
    "vllm_share": (
        "The inference engine (vLLM, SGLang) takes a larger share of the card than is free, or leaves too little beside it.",
        "推理引擎（vLLM、SGLang）预占的显存超过空闲量，或留给其余部分的太少。",
    ),
    "outside_pytorch": ("Memory outside PyTorch's allocator.", "PyTorch 分配器之外的占用。"),
    "memory_grows": (
        "Tensors are kept from one step, or one run, to the next.",
        "张量在步与步之间、或两次运行之间一直被持有。",
    ),
    "optimizer_foreach": (
        "The foreach optimizer step makes a temporary copy the size of all parameters.",
        "foreach 优化器在 step 中临时多出一份全部参数大小的张量。",
    ),
    "optimizer_temporary": ("A temporary of the optimizer step.", "优化器 step 的临时张量。"),
    "optimizer_states": (
        "Optimizer states, created in the first step.",
        "第一步创建的优化器状态。",
    ),
    "gradients": ("Gradients of all parameters.", "全部参数的梯度。"),
    "companion_models": (
        "Other models in addition to the trained one.",
        "训练模型之外的其他模型。",
    ),
    "logits": (
        "Logits and their loss (tokens × vocabulary, often fp32).",
        "logits 及其损失（词元数 × 词表，常为 fp32）。",
    ),
    "attention_scores": (
        "Attention scores are materialised (sequence squared).",
        "注意力分数被完整展开（序列长度的平方）。",
    ),
    "evaluation_gathers": (
        "Evaluation gathers all predictions on the GPU.",
        "评估时把全部预测汇总在 GPU 上。",
    ),
    "evaluation_keeps_graph": (
        "Evaluation keeps its graph: gradients are not turned off.",
        "评估时保留了计算图：未关闭梯度。",
    ),
    "saving_gathers": (
        "Saving gathers the full state on one GPU.",
        "保存时把完整状态汇总到一张 GPU。",
    ),
    "resuming_loads_twice": (
        "Loading a checkpoint holds two copies.",
        "加载检查点时同时存在两份。",
    ),
    "allocator_warmup": (
        "transformers' allocator warm-up reserves the model's size at once.",
        "transformers 的分配器预热一次性申请模型大小的显存。",
    ),
    "gathered_parameters": ("Sharded parameters are gathered for use.", "分片参数在使用时被汇聚。"),
    "loading_the_model": (
        "The weights do not fit on this card where they are loaded: too large a model, too wide a data type, or a whole copy "
        "on every card.",
        "权重在加载时就放不下：模型太大、数据类型太宽，或每张卡都加载了完整一份。",
    ),
    "generation_cache": ("Generation: the key-value cache.", "生成阶段：KV 缓存。"),
    "dequantised_weight": ("A quantised weight is expanded for use.", "量化权重在使用时被展开。"),
    "image_tokens": ("Images make more tokens than expected.", "图像产生的词元比预期多。"),
    "activations": (
        "A step computes and keeps too much for this card: the batch, the sequence length or the image size (activations).",
        "单步计算并保留的内容对这张卡来说太多：批次、序列长度或图像尺寸（激活值）。",
    ),
    "model_states": (
        "The model itself is too large for this card: weights, gradients and optimizer states, whatever the batch is.",
        "模型本身对这张卡来说太大：权重、梯度与优化器状态，与批次无关。",
    ),
    "long_sample": (
        "This batch was larger than the ones before: a longer sample, a larger image, more objects.",
        "这个批次比之前的都大：样本更长、图像更大或目标更多。",
    ),
    "input_too_large": (
        "The input is too large to be processed in one piece: resolution, number of frames, or sequence length.",
        "输入太大，无法一次处理完：分辨率、帧数或序列长度。",
    ),
    "many_boxes": (
        "Matching ground-truth boxes with anchors: the matrix grows with the boxes of the fullest image.",
        "真实框与锚点的匹配：矩阵随框最多的那张图像的框数增长。",
    ),
    "dataset_on_gpu": (
        "The whole data set is put on the GPU before training begins.",
        "训练开始前整个数据集就被放到 GPU 上。",
    ),
    "kv_cache": (
        "The KV cache and its buffers: they grow with the context length and with the requests served at once.",
        "KV 缓存及其缓冲区：随上下文长度与并发请求数增长。",
    ),
    "no_room_for_cache": (
        "Weights and activations fill the server's share of the card, or what remains holds fewer tokens than the maximum length.",
        "权重与激活值占满了推理服务的显存份额，或剩余部分容不下最大长度的词元。",
    ),
    "on_chip_memory": (
        "Not GPU memory: a kernel asks for more of the chip's own shared memory than this GPU has.",
        "不是显存问题：某个内核申请的片上共享内存超过了这块 GPU 的上限。",
    ),
    "illegal_access": (
        "Not a lack of memory: a kernel used an index or an address outside its tensors, often a label or a token id that is too large.",
        "不是内存不足：内核使用了张量范围之外的下标或地址，常见原因是标签或词元编号过大。",
    ),
    "disk_full": (
        "Not memory: a disk is full (the output folder, the cache, or /tmp).",
        "不是内存问题：磁盘已满（输出目录、缓存或 /tmp）。",
    ),
    "server_buffers": (
        "The server's own buffers: CUDA graphs, or the profiling run with the largest batch, do not fit beside weights and cache.",
        "推理服务自身的缓冲区：CUDA 图或最大批次的预跑，在权重与缓存之外放不下。",
    ),
    "optimizer_flat_copy": (
        "A flat fp32 copy of all parameters, as mixed-precision optimizers make it.",
        "混合精度优化器建立的一整份 fp32 参数副本。",
    ),
    "desktop_and_context": (
        "Of this small card, a large part is taken by the CUDA context and by other programs (desktop, browser).",
        "这张小显存的卡有很大一部分被 CUDA 上下文与其他程序（桌面、浏览器）占用。",
    ),
    "host_workers": (
        "Host memory ran out where a DataLoader has workers: every worker holds its own copy of what the data set caches.",
        "DataLoader 的工作进程使主机内存耗尽：每个 worker 都持有数据集缓存的一份副本。",
    ),
    "host_array": (
        "A NumPy array is larger than the free host memory.",
        "NumPy 数组大于空闲的主机内存。",
    ),
    "host_limit": (
        "The host memory limit of the container or job was reached.",
        "达到了容器或作业的主机内存上限。",
    ),
    "host_offload": (
        "Host memory ran out: offloaded weights, gradients and optimizer states lie there.",
        "主机内存耗尽：被卸载的权重、梯度与优化器状态都放在那里。",
    ),
    "host_load": (
        "Host memory ran out while the checkpoint was loaded, before anything reached the GPU.",
        "加载检查点时主机内存耗尽，此时还没有内容进入 GPU。",
    ),
    "host_growth": (
        "Host memory grew from step to step until it ran out.",
        "主机内存逐步增长直至耗尽。",
    ),
    "page_file": (
        "Windows' commit limit: RAM and page file together are used up, usually by many worker processes.",
        "Windows 提交上限：内存加页面文件已用尽，通常是工作进程过多。",
    ),
    "mps_limit": (
        "PyTorch's limit on Apple's shared memory was reached: the job needs more than the GPU may use.",
        "达到了 PyTorch 对苹果统一内存设置的上限：任务需求超过 GPU 可用的部分。",
    ),
    "crashed": (
        "Not memory, as far as the text says: native code crashed (a bad address, an abort, an unknown instruction).",
        "就文本所示不是内存问题：原生代码崩溃（地址错误、主动中止或未知指令）。",
    ),
    "not_memory": (
        "Not memory: the process was ended from outside.",
        "不是内存问题：进程被外部信号结束。",
    ),
}

STEPS: dict[str, tuple[str, str]] = {
    "free_the_card": (
        "Stop the other processes (nvidia-smi lists them; a dead notebook kernel counts) or take another card.",
        "结束其他进程（用 nvidia-smi 查看；残留的 notebook 内核也算），或换一张卡。",
    ),
    "expandable_segments": (
        "Set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9).",
        "设置 PYTORCH_ALLOC_CONF=expandable_segments:True（torch 2.9 之前为 PYTORCH_CUDA_ALLOC_CONF）。",
    ),
    "raise_the_cap": (
        "Raise or remove set_per_process_memory_fraction (or per_process_memory_fraction in the allocator settings).",
        "提高或去掉 set_per_process_memory_fraction（或分配器设置中的 per_process_memory_fraction）。",
    ),
    "shrink_that_tensor": (
        "Make that tensor smaller: shorter sequence, smaller batch, a fused or chunked operation. Check its shape first: "
        "a request beyond the card is often a bug.",
        "缩小该张量：更短的序列、更小的批次、融合或分块的算子。先检查形状：超过显卡的申请往往是 bug。",
    ),
    "newer_allocator": (
        "Update torch: since 2.1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins pieces, which the allocator of this one cannot.",
        "升级 torch：自 2.1 起可用 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True 合并碎片，这个版本的分配器做不到。",
    ),
    "turn_off_spill": (
        "Turn off sysmem fallback in the NVIDIA control panel, so that it fails where it begins, then shrink the job.",
        "在 NVIDIA 控制面板关闭 sysmem fallback，使其在源头失败，然后缩小任务。",
    ),
    "pin_ranks": (
        "Give each process its own card: as many processes as CUDA_VISIBLE_DEVICES has cards, torch.cuda.set_device(local_rank) "
        "before anything touches CUDA, and map_location when loading.",
        "让每个进程独占一张卡：进程数与 CUDA_VISIBLE_DEVICES 的卡数一致，在使用 CUDA 之前调用 torch.cuda.set_device(local_rank)，加载时用 map_location。",
    ),
    "look_below_pytorch": (
        "Look below PyTorch: driver and kernel log, container, WSL and vm.max_map_count limits; try another driver. On Windows enlarge the page file: GPU memory counts against the commit limit.",
        "检查 PyTorch 以下：驱动与内核日志、容器、WSL、vm.max_map_count 限制；换驱动版本试试。在 Windows 上增大页面文件：显存也计入提交上限。",
    ),
    "less_host_memory": (
        "Raise the memory limit of the job or container, or need less: fewer workers, no full-precision load on every rank, "
        "less offloading.",
        "提高作业或容器的内存上限，或减少需求：更少的 worker、不要每个 rank 都以全精度加载、减少卸载。",
    ),
    "share_through_files": (
        "Raise the limit (ulimit -n 65535), or share tensors by name: torch.multiprocessing.set_sharing_strategy('file_system'); "
        "do not keep batches of the DataLoader in a list.",
        "提高上限（ulimit -n 65535），或按名称共享张量：torch.multiprocessing.set_sharing_strategy('file_system')；"
        "不要把 DataLoader 的批次保存在列表里。",
    ),
    "more_shm": (
        "Give the container shared memory (docker --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of medium Memory "
        "at /dev/shm) or use fewer workers.",
        "给容器更多共享内存（docker --shm-size=8g 或 --ipc=host；Kubernetes 用 medium: Memory 的 emptyDir 挂载 /dev/shm），"
        "或减少 worker。",
    ),
    "leave_room_for_libraries": (
        "Leave 1 to 2 GiB outside PyTorch for contexts, NCCL and workspaces, and make the job smaller by that much.",
        "给上下文、NCCL 与工作区在 PyTorch 之外留出 1 到 2 GiB，并相应缩小任务。",
    ),
    "lower_vllm_share": (
        "Lower gpu_memory_utilization (SGLang: mem-fraction-static) to what is free, shorten max_model_len, or give vLLM a card of its own.",
        "把 gpu_memory_utilization（SGLang 为 mem-fraction-static）降到空闲量以内，缩短 max_model_len，或让 vLLM 独占一张卡。",
    ),
    "fewer_libraries": (
        "Find what else in the process uses the device: another framework, an inference engine, many process groups.",
        "找出同一进程里还有什么在用该设备：另一个框架、推理引擎、过多的通信组。",
    ),
    "stop_keeping_graphs": (
        "Store numbers, not tensors (loss.item(), .detach()), and drop outputs before the next step.",
        "保存数值而非张量（loss.item()、.detach()），并在下一步之前释放输出。",
    ),
    "release_between_runs": (
        "Release what the last run left: delete results and models that are no longer used, then torch.cuda.empty_cache(). If a restart "
        "of the program helps, this is it.",
        "释放上一次运行留下的内容：删除不再使用的结果与模型，再调用 torch.cuda.empty_cache()。若重启程序就好，便是这个原因。",
    ),
    "fused_optimizer": (
        "Use the fused optimizer (fused=True, adamw_torch_fused) or foreach=False: the temporary copy disappears.",
        "使用融合优化器（fused=True、adamw_torch_fused）或 foreach=False：临时副本即消失。",
    ),
    "smaller_optimizer": (
        "Use 8-bit or sharded optimizer states.",
        "使用 8 位或分片的优化器状态。",
    ),
    "fewer_trained": (
        "Train less (LoRA), keep gradients in 16 bit or sharded; under FSDP accumulate with synchronisation.",
        "训练更少的参数（LoRA），梯度用 16 位或分片；在 FSDP 下累积时保持同步。",
    ),
    "companions_elsewhere": (
        "Put the reference or reward model in 16 bit, on another card or on the CPU, or compute its outputs beforehand.",
        "把参考或奖励模型改为 16 位、放到另一张卡或 CPU，或事先算好其输出。",
    ),
    "chunked_loss": (
        "If it is the logits (tokens × vocabulary): compute the loss in chunks or fused with the head (Liger, cut cross-entropy), or shorten the sequence.",
        "若是 logits（词元数 × 词表）：分块计算损失或与输出层融合（Liger、cut cross-entropy），或缩短序列。",
    ),
    "flash_attention": (
        "If it is attention (length²): use flash or memory-efficient attention (attn_implementation=\"sdpa\" or \"flash_attention_2\").",
        "若是注意力（长度的平方）：使用 flash 或省显存的注意力（attn_implementation=\"sdpa\" 或 \"flash_attention_2\"）。",
    ),
    "eval_accumulation": (
        "Set eval_accumulation_steps, preprocess_logits_for_metrics or prediction_loss_only, or a smaller eval batch.",
        "设置 eval_accumulation_steps、preprocess_logits_for_metrics 或 prediction_loss_only，或减小评估批次。",
    ),
    "no_grad": (
        "Evaluate under torch.no_grad() or torch.inference_mode(): model.eval() alone keeps the graph.",
        "在 torch.no_grad() 或 torch.inference_mode() 下评估：仅 model.eval() 仍会保留计算图。",
    ),
    "sharded_save": (
        "Save sharded, or offload the full state dict to the CPU on rank 0.",
        "分片保存，或把完整 state dict 卸载到 rank 0 的 CPU。",
    ),
    "load_on_cpu": (
        "Load with map_location=\"cpu\" (and mmap=True) before moving to the GPU.",
        "先用 map_location=\"cpu\"（及 mmap=True）加载，再移到 GPU。",
    ),
    "skip_warmup": (
        "Load in the final dtype, or quantised; the warm-up asks for the size the weights will have on this card.",
        "以最终 dtype 或量化方式加载；预热申请的就是权重在这张卡上的大小。",
    ),
    "smaller_units": (
        "Wrap smaller units (one block each), limit prefetch, lower stage3_max_live_parameters.",
        "用更小的单元分片（每块一个）、限制预取、降低 stage3_max_live_parameters。",
    ),
    "smaller_weights": (
        "Load in 16 bit, or quantised, or shard the weights over more cards.",
        "以 16 位或量化加载，或把权重分片到更多卡。",
    ),
    "shorter_generation": (
        "Shorten generation or its batch, or use fewer completions at once.",
        "缩短生成长度或减小其批次，减少同时生成的数量。",
    ),
    "checkpointing": (
        "Turn on gradient checkpointing: activations of one layer at a time, for about a third more time.",
        "开启梯度检查点：一次只保留一层的激活值，时间约多三分之一。",
    ),
    "smaller_batch": (
        "Make the batch (or the length, or the images) smaller; gradient accumulation keeps the effective batch.",
        "减小批次（或长度、图像尺寸）；用梯度累积保持有效批次。",
    ),
    "shard_or_offload": (
        "Divide weights, gradients and states over more cards (ZeRO-3, FSDP), or offload them to the CPU.",
        "把权重、梯度与优化器状态分到更多卡上（ZeRO-3、FSDP），或卸载到 CPU。",
    ),
    "cap_the_length": (
        "Cap the length or size of a sample, sort the longest first so that it fails at once, or batch by tokens.",
        "限制样本的长度或尺寸，把最长的样本排在最前以便尽早失败，或按词元数组批。",
    ),
    "tile_the_input": (
        "Process it in tiles or chunks (a tile size, tiled VAE decoding, --chunk_size): memory then follows the tile, not the input.",
        "分块处理（设置 tile 大小、分块 VAE 解码、--chunk_size）：占用只取决于块的大小，而非整个输入。",
    ),
    "smaller_input": (
        "Make the input smaller: resolution, frames, length, or one item at a time; load the model in 16 bit.",
        "缩小输入：分辨率、帧数、长度，或一次只处理一个；以 16 位加载模型。",
    ),
    "fewer_boxes": (
        "Limit the boxes per image or crop crowded images, compute the assignment on the CPU, or use a release that does it in parts.",
        "限制每张图像的框数或裁剪密集图像，在 CPU 上做标签分配，或使用分批计算的新版本。",
    ),
    "data_on_cpu": (
        "Keep the data on the CPU and move one batch at a time (for 3D Gaussian splatting: --data_device cpu), or lower its resolution.",
        "数据留在 CPU，每次只移一个批次（3D 高斯泼溅用 --data_device cpu），或降低分辨率。",
    ),
    "shorter_context": (
        "Lower the maximum context length (--max-model-len, --context-length, -c) and the requests served at once.",
        "降低最大上下文长度（--max-model-len、--context-length、-c）与并发请求数。",
    ),
    "quantised_cache": (
        "Quantise the cache (fp8, q8_0) or the weights, or put fewer layers on the GPU (-ngl).",
        "量化缓存（fp8、q8_0）或权重，或减少放在 GPU 上的层数（-ngl）。",
    ),
    "fewer_sequences": (
        "Lower the largest batch that is profiled and captured: --max-num-seqs, --cuda-graph-max-bs.",
        "降低预跑与捕获的最大批次：--max-num-seqs、--cuda-graph-max-bs。",
    ),
    "no_graphs": (
        "Switch CUDA graphs off (--enforce-eager, --disable-cuda-graph): 1 to 3 GiB, at the cost of speed.",
        "关闭 CUDA 图（--enforce-eager、--disable-cuda-graph）：省 1 到 3 GiB，代价是速度。",
    ),
    "free_the_desktop": (
        "Close other programs that draw on this card, or run the desktop on another one; otherwise use the CPU.",
        "关闭占用这张卡的其他程序，或让桌面使用另一张卡；否则改用 CPU。",
    ),
    "fewer_workers": (
        "Use fewer DataLoader workers (num_workers=2, or 0 to see the true error) and a smaller prefetch_factor.",
        "减少 DataLoader 的 worker（num_workers=2，或设为 0 以看到真实报错），并减小 prefetch_factor。",
    ),
    "smaller_array": (
        "Read the array in parts (np.memmap, chunks), in a smaller dtype, or crop or down-sample it; otherwise more RAM.",
        "分块读取数组（np.memmap）、用更小的 dtype，或裁剪、降采样；否则增加内存。",
    ),
    "raise_the_limit": (
        "Ask for more host memory: --mem in Slurm, resources.limits.memory in Kubernetes, docker --memory.",
        "申请更多主机内存：Slurm 的 --mem、Kubernetes 的 resources.limits.memory、docker --memory。",
    ),
    "less_offload": (
        "Offload less (16 to 18 bytes of host memory per parameter in ZeRO-3, divided by the nodes): keep parameters on the GPU, use "
        "NVMe, or LoRA.",
        "减少卸载（ZeRO-3 每个参数约占主机内存 16 到 18 字节，按节点数平分）：参数留在 GPU、使用 NVMe，或改用 LoRA。",
    ),
    "load_less_at_once": (
        "Load in 16 bit from safetensors (dtype=\"auto\", device_map=\"auto\"), one rank at a time or on rank 0 only, or add RAM or swap.",
        "以 16 位从 safetensors 加载（dtype=\"auto\"、device_map=\"auto\"），逐个 rank 或仅在 rank 0 加载，或增加内存与交换空间。",
    ),
    "find_what_grows": (
        "Find what is kept: lists of losses, predictions or batches, metrics that are never reset, lists of Python objects in the data set "
        "(use arrays).",
        "找出一直被保留的对象：损失、预测或批次的列表，从不 reset 的指标，数据集中的 Python 对象列表（改用数组）。",
    ),
    "larger_page_file": (
        "Enlarge the page file (System > Advanced > Performance > Virtual memory: system managed), on a drive with room.",
        "增大页面文件（系统 > 高级 > 性能 > 虚拟内存：系统管理），放在有空间的磁盘上。",
    ),
    "find_the_crash": (
        "Find the line with python -X faulthandler, and check that the versions of driver, CUDA, torch and compiled extensions belong "
        "together; look into the kernel log (dmesg) only for a line that says \"Out of memory\".",
        "用 python -X faulthandler 找到崩溃的那一行，并检查驱动、CUDA、torch 与编译扩展的版本是否匹配；内核日志（dmesg）里只有出现 "
        "\"Out of memory\" 才与内存有关。",
    ),
    "keep_the_session": (
        "Nothing to free: run it in tmux, screen or with nohup, and ask the scheduler why it ended the job (time limit, preemption).",
        "无需释放内存：在 tmux、screen 或 nohup 中运行，并查看调度器为何结束任务（时限、抢占）。",
    ),
    "raise_the_watermark": (
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the limit; the machine may then swap, so make the job smaller as well.",
        "设置 PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 可解除上限；之后机器可能开始交换内存，因此也要缩小任务。",
    ),
    "look_who_holds": (
        "Look at nvidia-smi: if something else is on the card, stop it or take another card.",
        "查看 nvidia-smi：若卡上还有别的程序，结束它或换一张卡。",
    ),
    "raise_the_share": (
        "Raise the share if nothing else uses the card (--gpu-memory-utilization 0.95, --mem-fraction-static).",
        "若卡上没有其他程序，提高份额（--gpu-memory-utilization 0.95、--mem-fraction-static）。",
    ),
    "smaller_blocks": (
        "Use smaller blocks or fewer num_stages in the kernel, another kernel, or a GPU with more shared memory per block.",
        "减小内核的分块或 num_stages，换用其他内核，或使用每块共享内存更大的 GPU。",
    ),
    "find_the_access": (
        "Run with CUDA_LAUNCH_BLOCKING=1 to see the true line; check indices (labels beyond the vocabulary) and versions of custom kernels.",
        "设置 CUDA_LAUNCH_BLOCKING=1 找到真正出错的行；检查索引（超出词表的标签）与自定义内核的版本。",
    ),
    "free_the_disk": (
        "Free the disk that df -h shows as full, or point TMPDIR, HF_HOME or the output folder to another one.",
        "清理 df -h 显示已满的磁盘，或把 TMPDIR、HF_HOME、输出目录指向别处。",
    ),
    "one_copy": (
        "Load it once and divide it: device_map=\"auto\" in one process, FSDP or ZeRO-3 with sharded loading, tensor parallelism in a server.",
        "只加载一份并切分：单进程用 device_map=\"auto\"，FSDP 或 ZeRO-3 分片加载，推理服务用张量并行。",
    ),
    "fewer_image_tokens": (
        "Limit image resolution (max_pixels) or the number of images per sample.",
        "限制图像分辨率（max_pixels）或每个样本的图像数。",
    ),
}  # fmt: skip

HEADINGS: dict[str, tuple[str, str]] = {
    "answer": ("Answer", "结论"),
    "asked_and_free": (
        "{requested} was asked for and {free} was free.",
        "申请 {requested}，而空闲只有 {free}。",
    ),
    "asked": ("{requested} was asked for.", "申请了 {requested}。"),
    "held": ("PyTorch held {held} of {capacity}.", "PyTorch 占用了 {capacity} 中的 {held}。"),
    "cause": ("{likelihood}: {cause}", "{likelihood}：{cause}"),
    "undecided": (
        "The text alone does not decide why. The likeliest causes:",
        "仅凭这段文本无法判定原因。最可能的是：",
    ),
    "first_step": ("First: {step}", "首先：{step}"),
    "give": ("To decide, give: {needs}.", "要判定，请提供：{needs}。"),
    "gain": (" (frees up to {gain})", "（最多释放 {gain}）"),
    "own_code": ("your code", "您的代码"),
    "what": ("What was read", "读到了什么"),
    "facts": ("What the numbers say", "数字说明了什么"),
    "causes": ("Why, most likely first", "原因（按可能性排序）"),
    "steps": ("What to do", "怎么办"),
    "where": ("Where", "位置"),
    "omitted": (
        "{count} more not shown: {kind}",
        "另有 {count} 条未列出：{kind}",
    ),
    "seen_in": ("seen in the log: {evidence}", "日志中可见：{evidence}"),
    "times": ("{count} times", "共 {count} 次"),
    "line": ("line {line}", "第 {line} 行"),
    "nothing": (
        "Nothing about memory was recognised in this text. Paste the error with its traceback, nvidia-smi, or the log "
        "lines around the end.",
        "未在文本中识别到与内存有关的内容。请粘贴带回溯的报错、nvidia-smi 输出，或结尾附近的日志。",
    ),
}

# What decides between causes, as a Question names it.
NEEDS: dict[str, tuple[str, str]] = {
    "model": ("--model NAME", "--model 模型名"),
    "batch": ("--batch N (samples per GPU)", "--batch N（每卡样本数）"),
    "seq": ("--seq N (tokens of the longest sample)", "--seq N（最长样本的词元数）"),
    "gpu": ("--gpu NAME", "--gpu 显卡型号"),
    "from_file": (
        "or --from FILE (your config or launch script)",
        "或 --from 文件（配置或启动脚本）",
    ),
    "traceback": ("the traceback above the message", "报错上方的回溯"),
    "nvidia_smi": ("the output of nvidia-smi", "nvidia-smi 的输出"),
    "launch_command": ("the command that started it", "启动命令"),
    "kernel_log": ("dmesg -T | grep -iE 'killed|oom'", "dmesg -T | grep -iE 'killed|oom' 的输出"),
    "free_memory": ("free -h while it runs", "运行时 free -h 的输出"),
    "limit_of_job": (
        "the job's memory limit (sacct, kubectl describe pod)",
        "任务的内存上限（sacct、kubectl describe pod）",
    ),
    "no_workers": ("the error with num_workers=0", "num_workers=0 时的报错"),
    "memory_over_time": (
        "free -h after 10 and after 1000 steps",
        "第 10 步与第 1000 步时的 free -h",
    ),
    "shm_size": ("df -h /dev/shm", "df -h /dev/shm 的输出"),
}

FIELDS: dict[str, tuple[str, str]] = {
    "requested_bytes": ("requested", "申请"),
    "capacity_bytes": ("capacity", "容量"),
    "allowed_bytes": ("allowed", "上限"),
    "free_bytes": ("free", "空闲"),
    "allocated_bytes": ("allocated", "已分配"),
    "reserved_bytes": ("reserved", "已保留"),
    "unallocated_bytes": ("cached", "缓存未用"),
    "process_bytes": ("process", "进程"),
    "used_bytes": ("used by all processes", "所有进程占用"),
    "peak_allocated_bytes": ("peak allocated", "分配峰值"),
    "peak_reserved_bytes": ("peak reserved", "保留峰值"),
}
