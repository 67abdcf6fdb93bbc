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
        "一个大张量与其余部分放不下。",
    ),
    "windows_spill": (
        "The card was full long before: memory spilled to the host.",
        "显存早已占满：已溢出到主机内存。",
    ),
    "all_ranks_on_one_card": ("Several ranks use the same card.", "多个 rank 用了同一张卡。"),
    "driver_or_runtime_limit": (
        "A driver or runtime limit, not capacity.",
        "驱动或运行时限制，而非容量。",
    ),
    "host_memory": ("Host memory ran out, not the GPU's.", "耗尽的是主机内存，不是显存。"),
    "shared_memory": ("/dev/shm is too small.", "/dev/shm 太小。"),
    "open_files": (
        "Not memory: files through which processes share tensors.",
        "不是内存问题：进程间共享张量所用的文件。",
    ),
    "card_full_elsewhere": (
        "The card was full when a library outside PyTorch's allocator needed a little.",
        "PyTorch 之外的库需要少量显存时卡已满。",
    ),
    "vllm_share": (
        "The inference engine's share (vLLM, SGLang) of the card does not fit.",
        "推理引擎（vLLM、SGLang）所占比例放不下。",
    ),
    "outside_pytorch": ("Memory outside PyTorch's allocator.", "PyTorch 分配器之外的占用。"),
    "memory_grows": ("Tensors are kept from step to step.", "张量在步与步之间一直被持有。"),
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
    "loading_the_model": ("The weights themselves do not fit.", "权重本身放不下。"),
    "generation_cache": ("Generation: the key-value cache.", "生成阶段：KV 缓存。"),
    "dequantised_weight": ("A quantised weight is expanded for use.", "量化权重在使用时被展开。"),
    "image_tokens": ("Images make more tokens than expected.", "图像产生的词元比预期多。"),
    "activations": ("Activations kept for backward.", "为反向传播保留的激活。"),
    "needs_more_than_the_card": ("The job needs more than the card has.", "任务需求超过显卡容量。"),
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
    "turn_off_spill": (
        "Turn off sysmem fallback in the NVIDIA control panel, so that it fails where it begins, then shrink the job.",
        "在 NVIDIA 控制面板关闭 sysmem fallback，使其在源头失败，然后缩小任务。",
    ),
    "pin_ranks": (
        "Call torch.cuda.set_device(local_rank) before anything touches CUDA, and load with map_location.",
        "在使用 CUDA 之前调用 torch.cuda.set_device(local_rank)，并在加载时用 map_location。",
    ),
    "look_below_pytorch": (
        "Look below PyTorch: driver and kernel log, container, WSL and vm.max_map_count limits; try another driver.",
        "检查 PyTorch 以下：驱动与内核日志、容器、WSL、vm.max_map_count 限制；换驱动版本试试。",
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
        "Lower gpu_memory_utilization to what is free, shorten max_model_len, or give vLLM a card of its own.",
        "把 gpu_memory_utilization 降到空闲量以内，缩短 max_model_len，或让 vLLM 独占一张卡。",
    ),
    "fewer_libraries": (
        "Find what else in the process uses the device: another framework, an inference engine, many process groups.",
        "找出同一进程里还有什么在用该设备：另一个框架、推理引擎、过多的通信组。",
    ),
    "stop_keeping_graphs": (
        "Store numbers, not tensors (loss.item(), .detach()), and drop outputs before the next step.",
        "保存数值而非张量（loss.item()、.detach()），并在下一步之前释放输出。",
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
        "Compute the loss in chunks or fused with the head (Liger, cut cross-entropy), or shorten the sequence.",
        "分块计算损失或与输出层融合（Liger、cut cross-entropy），或缩短序列。",
    ),
    "flash_attention": (
        "Use flash or memory-efficient attention (attn_implementation=\"sdpa\" or \"flash_attention_2\").",
        "使用 flash 或省显存的注意力（attn_implementation=\"sdpa\" 或 \"flash_attention_2\"）。",
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
        "Turn on gradient checkpointing.",
        "开启梯度检查点。",
    ),
    "smaller_batch": (
        "Make the micro-batch smaller and accumulate gradients instead.",
        "减小微批大小，改用梯度累积。",
    ),
    "fewer_image_tokens": (
        "Limit image resolution (max_pixels) or the number of images per sample.",
        "限制图像分辨率（max_pixels）或每个样本的图像数。",
    ),
}  # fmt: skip

HEADINGS: dict[str, tuple[str, str]] = {
    "what": ("What happened", "发生了什么"),
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
