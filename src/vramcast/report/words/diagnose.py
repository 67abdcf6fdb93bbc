# ruff: noqa: E501 (a sentence and its translation read better whole)
"""The words of a diagnosis, English and Chinese side by side: findings and notes.

Names in braces are the values of a finding; those ending in _bytes arrive as formatted sizes.
"""

from __future__ import annotations

FINDINGS: dict[str, tuple[str, str]] = {
    "request_larger_than_card": (
        "One request of {requested_bytes} is larger than the {limit_bytes} the process can have at all. No allocator "
        "setting helps: this tensor must become smaller.",
        "单次申请 {requested_bytes}，超过进程最多可用的 {limit_bytes}。任何分配器设置都无济于事：必须缩小这个张量。",
    ),
    "request_larger_than_any_card": (
        "One request of {requested_bytes} is larger than any card there is ({limit_bytes}). No setting helps: look at the shape "
        "of this tensor, it is probably a mistake.",
        "单次申请 {requested_bytes}，比任何现有显卡（{limit_bytes}）都大。任何设置都无济于事：请检查这个张量的形状，多半有误。",
    ),
    "one_large_tensor": (
        "{requested_bytes} in one piece ({elements} numbers in fp32) is an eighth of the card or more: a single large "
        "tensor such as logits, attention scores or a gathered output.",
        "一次申请 {requested_bytes}（按 fp32 计 {elements} 个数），占显卡八分之一以上：是某个很大的单个张量，"
        "如 logits、注意力分数或汇总的输出。",
    ),
    "logits_sized": (
        "{requested_bytes} is just the size of {tokens} tokens × a vocabulary of {vocabulary} ({models}) × {itemsize} bytes: logits.",
        "{requested_bytes} 恰好等于 {tokens} 个词元 × 词表 {vocabulary}（{models}）× {itemsize} 字节：是 logits。",
    ),
    "full_beside_free": (
        "The table shows {full} full and {free} nearly free.",
        "表格显示 {full} 已满，{free} 几乎空闲。",
    ),
    "crashed": (
        "{signal}: the process crashed in native code. Memory that runs out raises an error or ends in SIGKILL; nothing here says that it did.",
        "{signal}：进程在原生代码中崩溃。内存耗尽会报错或以 SIGKILL 结束；这里没有这种迹象。",
    ),
    "states_fill_card": (
        "Weights, gradients and optimizer states alone take {states_bytes} of the {card_bytes} that PyTorch can have: next to them little else fits.",
        "仅权重、梯度与优化器状态就占 {states_bytes}，而 PyTorch 可用 {card_bytes}：剩余空间很少。",
    ),
    "states_fill_card_of_one": (
        "Weights, gradients and optimizer states alone take {states_bytes} of the {card_bytes} that PyTorch can have: next to them little else fits.",
        "仅权重、梯度与优化器状态就占 {states_bytes}，而 PyTorch 可用 {card_bytes}：剩余空间很少。",
    ),
    "states_fill_card_if_full": (
        "If all parameters are trained, weights, gradients and optimizer states alone take {states_bytes} of the {card_bytes} that PyTorch can have.",
        "若训练全部参数，仅权重、梯度与优化器状态就占 {states_bytes}，而 PyTorch 可用 {card_bytes}。",
    ),
    "small_allocation": (
        "Only {requested_bytes} was asked for: host memory was full before, with what had been loaded or kept until then.",
        "只申请了 {requested_bytes}：在此之前主机内存就已被先前加载或保留的内容占满。",
    ),
    "long_sequence": (
        "The text names a length of {tokens} tokens: what a step keeps grows with it, whatever the model is.",
        "文中给出的长度为 {tokens} 个词元：无论模型多大，单步保留的内容都随之增长。",
    ),
    "half_the_card": (
        "This one request of {requested_bytes} is at least half of the {limit_bytes} that the process can have at all.",
        "仅这一次申请的 {requested_bytes} 就至少是进程可用的 {limit_bytes} 的一半。",
    ),
    "as_much_again": (
        "The {requested_bytes} asked for in one piece are all that this process holds already: a second copy of it (an allocator "
        "warm-up, a checkpoint, a clone).",
        "一次申请的 {requested_bytes} 与本进程已占用的一样多：是第二份副本（分配器预热、检查点或克隆）。",
    ),
    "capped": (
        "The process was capped at {allowed_bytes} of the card's {capacity_bytes} (set_per_process_memory_fraction or "
        "per_process_memory_fraction): it ran into the cap, not into the card.",
        "进程被限制为 {allowed_bytes}（显卡共 {capacity_bytes}，由 set_per_process_memory_fraction 等设置）："
        "撞上的是这个上限，而不是显卡容量。",
    ),
    "spilled": (
        "PyTorch held {held_bytes}, more than the card's {capacity_bytes}: the Windows driver had already moved memory "
        "to the host (sysmem fallback), which is slow long before it fails.",
        "PyTorch 占用 {held_bytes}，超过显卡的 {capacity_bytes}：Windows 驱动已把显存换到主机内存（sysmem fallback），"
        "失败之前早已变慢。",
    ),
    "block_limit": (
        "The driver refuses single blocks above 4 GB on this device, whatever is free; {requested_bytes} was asked for.",
        "该设备的驱动拒绝单块超过 4 GB 的申请（与剩余多少无关）；本次申请 {requested_bytes}。",
    ),
    "absurd_request": (
        "More than 1 EB was asked for: not a size anybody meant. An overflow, a negative or corrupted length, or state that "
        "does not belong to this run.",
        "申请了超过 1 EB：不可能是本意。多半是溢出、负数或损坏的长度，或不属于本次运行的状态。",
    ),
    "container": (
        "Process {pid} with {process_bytes} is this very process: in a container the driver prints host process ids, and "
        "it holds just what PyTorch reserved ({reserved_bytes}) and a little more. It is not a foreign process.",
        "进程 {pid}（{process_bytes}）就是本进程：容器中驱动显示的是宿主机进程号，而它占用的正好是 PyTorch 保留的 "
        "{reserved_bytes} 再多一点。并不是别的进程。",
    ),
    "this_process": (
        "This process held {process_bytes}: {allocated_bytes} in live tensors, {unallocated_bytes} cached by PyTorch, "
        "{outside_bytes} outside PyTorch (CUDA context, NCCL, libraries).",
        "本进程占用 {process_bytes}：存活张量 {allocated_bytes}，PyTorch 缓存 {unallocated_bytes}，PyTorch 之外 "
        "{outside_bytes}（CUDA 上下文、NCCL、各种库）。",
    ),
    "large_outside": (
        "{outside_bytes} of this process is outside PyTorch's allocator, more than context and communication buffers "
        "usually take: another library in the same process (vLLM's allocator, CuPy, TensorFlow, many NCCL groups).",
        "本进程有 {outside_bytes} 不归 PyTorch 分配器管，多于上下文与通信缓冲的常见用量：同进程内还有别的库"
        "（vLLM 的分配器、CuPy、TensorFlow、过多的 NCCL 通信组）。",
    ),
    "listed_is_this_process": (
        "Process {pid} with {process_bytes} is this very process: it holds all of the card that is in use, so there is no room "
        "for another one.",
        "进程 {pid}（{process_bytes}）就是本进程：显卡上已用的显存全部由它占用，没有别的进程的余地。",
    ),
    "this_process_is_listed": (
        "The {count} listed processes hold all of the card that is in use: one of them is this very process.",
        "列出的 {count} 个进程占用了显卡上全部已用显存：其中一个就是本进程。",
    ),
    "other_processes": (
        "Other processes held {others_bytes} on this card (pid {pids}).",
        "其他进程在这张卡上占用 {others_bytes}（pid {pids}）。",
    ),
    "other_processes_decide": (
        "Other processes held {others_bytes} on this card (pid {pids}); without them the {requested_bytes} would have fitted.",
        "其他进程在这张卡上占用 {others_bytes}（pid {pids}）；没有它们，这 {requested_bytes} 放得下。",
    ),
    "unlisted_processes": (
        "{unlisted_bytes} of the card is held by neither this process ({process_bytes}) nor a listed one: another "
        "container, another user, or a process that died without freeing its memory.",
        "显卡上有 {unlisted_bytes} 既不属于本进程（{process_bytes}）也不属于列出的进程：另一个容器、另一个用户，"
        "或未释放显存的残留进程。",
    ),
    "held_outside_pytorch": (
        "Of {capacity_bytes}, PyTorch here reserved {reserved_bytes}, yet {rest_bytes} more is in use: other processes "
        "or other libraries on the same card.",
        "共 {capacity_bytes}，这里的 PyTorch 保留 {reserved_bytes}，另有 {rest_bytes} 被占用：同一张卡上的其他进程或其他库。",
    ),
    "dead_process": (
        "nvidia-smi can no longer name process {pids}, which holds {total_bytes}: it has ended without freeing its memory.",
        "nvidia-smi 已无法给出进程 {pids} 的名称，而它仍占用 {total_bytes}：进程已结束但没有释放显存。",
    ),
    "nobody_listed": (
        "{used_bytes} is in use on {place} and nvidia-smi lists no process: one that died without freeing its memory, another "
        "user's, or, inside a container, any process of this machine.",
        "{place} 上有 {used_bytes} 被占用，而 nvidia-smi 没有列出任何进程：未释放显存的残留进程、其他用户的进程，"
        "或（在容器内）本机的任何进程。",
    ),
    "ranks_on_one_card": (
        "{count} processes share this card. If they are ranks of this job, each needs {rank_bytes} with its context, together "
        "{together_bytes} of {card_bytes}.",
        "有 {count} 个进程共用这张卡。若它们是本任务的 rank，每个连同上下文需要 {rank_bytes}，合计 {together_bytes}，而显卡共 {card_bytes}。",
    ),
    "shared_card": (
        "{count} processes share {place}. If they are ranks of one job, each should have a card of its own.",
        "{count} 个进程共用 {place}。若它们是同一任务的多个 rank，每个 rank 应独占一张卡。",
    ),
    "fragmentation_of_old": (
        "PyTorch had {unallocated_bytes} cached and unused, enough for the {requested_bytes}, but not in one piece: fragmentation, against "
        "which this old torch has no setting.",
        "PyTorch 缓存了 {unallocated_bytes} 未使用，足够 {requested_bytes}，但不成整块：碎片化，而这个旧版 torch 没有可用的设置。",
    ),
    "fragmentation": (
        "PyTorch had {unallocated_bytes} cached and unused, enough for the {requested_bytes}, but not in one piece: "
        "fragmentation.",
        "PyTorch 缓存而未用的有 {unallocated_bytes}，足够这次的 {requested_bytes}，但不连续：显存碎片。",
    ),
    "crumbs": (
        "PyTorch's cache ({unallocated_bytes}) adds up to the {requested_bytes} asked for but is less than a tenth of what "
        "it holds, in pieces: the card is simply full.",
        "PyTorch 的缓存（{unallocated_bytes}）加起来够这次的 {requested_bytes}，但不到其占用的十分之一且零散：显卡确实满了。",
    ),
    "large_cache": (
        "{unallocated_bytes} was cached and unused, but even with all free memory that makes {room_bytes}, less than the "
        "{requested_bytes} asked for.",
        "有 {unallocated_bytes} 缓存未用，但连同全部空闲也只有 {room_bytes}，少于申请的 {requested_bytes}。",
    ),
    "free_yet_refused": (
        "{free_bytes} was free when {requested_bytes} was refused: capacity is not the problem. Look at the driver, a "
        "container or WSL limit, a limit on the number of mappings, or another process that freed memory meanwhile.",
        "拒绝 {requested_bytes} 时仍有 {free_bytes} 空闲：问题不在容量。请检查驱动、容器或 WSL 限制、映射数量上限，"
        "或恰好释放了显存的邻居进程。",
    ),
    "free_above_capacity": (
        "{free_bytes} free of {capacity_bytes}: an integrated GPU that reports host memory as free.",
        "空闲 {free_bytes} 大于总量 {capacity_bytes}：集成显卡把主机内存报告为空闲。",
    ),
    "hint_cannot_help": (
        "The message advises {hint}. It cannot help here: free and cached memory together are {room_bytes}, less than "
        "the {requested_bytes} asked for.",
        "报错建议设置 {hint}，这里无效：空闲加缓存共 {room_bytes}，少于申请的 {requested_bytes}。",
    ),
    "hint_may_help": (
        "The message advises {hint}. It may help: free and cached memory together are {room_bytes}, and {requested_bytes} "
        "was asked for.",
        "报错建议设置 {hint}，这里可能有效：空闲加缓存共 {room_bytes}，申请的是 {requested_bytes}。",
    ),
    "hint_delays": (
        "The message advises {hint}. It could serve this one request of {requested_bytes} and leave {left_bytes}: the next "
        "would fail.",
        "报错建议设置 {hint}：或许能满足这一次 {requested_bytes}，但只剩 {left_bytes}，下一次仍会失败。",
    ),
    "hint_beside_the_point": (
        "The message advises {hint}. It does not matter here: {free_bytes} was free outside PyTorch's cache.",
        "报错建议设置 {hint}，但文不对题：PyTorch 缓存之外就有 {free_bytes} 空闲。",
    ),
    "watermark_hint": (
        "The message advises PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0. That removes the limit, not the need: the machine then "
        "swaps and may freeze.",
        "报错建议 PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0。那只是去掉上限，需求不变：机器会开始换页，甚至卡死。",
    ),
    "mps_limit": (
        "PyTorch held {allocated_bytes} (its cache included) and other Metal users in this process {others_bytes}, of "
        "{allowed_bytes} allowed. The limit is PyTorch's, not the machine's.",
        "PyTorch 占用 {allocated_bytes}（含缓存），本进程其他 Metal 用量 {others_bytes}，上限 {allowed_bytes}。"
        "该上限由 PyTorch 设定，不是机器的内存。",
    ),
    "outside_async_pool": (
        "{rest_bytes} is neither allocated by this PyTorch ({allocated_bytes}) nor free: the pool's own cache, the context, "
        "or other processes. cudaMallocAsync does not say which.",
        "{rest_bytes} 既非本 PyTorch 分配（{allocated_bytes}）也非空闲：内存池缓存、上下文或其他进程，cudaMallocAsync 不作区分。",
    ),
    "last_straw": (
        "{requested_bytes} is the size of a segment, not of the tensor: something of at most {tensor_bytes} was the last "
        "straw, and says nothing about what filled the card.",
        "{requested_bytes} 是一个段的大小，不是张量的大小：压垮它的只是不超过 {tensor_bytes} 的小张量，并不说明显存被什么占满。",
    ),
    "private_pools": (
        "{pools_bytes} is in private pools (CUDA graphs): kept for replay, counted as allocated, not reusable by others.",
        "私有池（CUDA Graphs）中有 {pools_bytes}：为重放保留，计入已分配，别处无法复用。",
    ),
    "truncated": (
        "The message is cut off before its numbers; the full one is in the log of the failing process.",
        "报错在数字之前被截断；完整内容在失败进程的日志里。",
    ),
    "lower_bound": (
        "{allocated_bytes} allocated at the failure is a lower bound, not the need: at least {at_least_bytes} with this "
        "request, and more for what would have come after it.",
        "失败时已分配的 {allocated_bytes} 只是下限而非需求：加上这次申请至少 {at_least_bytes}，之后还会更多。",
    ),
    "killed": (
        "The process was killed (signal 9) without a message. CUDA raises an error when a GPU is full; a silent kill means "
        "that host memory ran out, or that somebody killed it.",
        "进程被信号 9 杀死且没有报错。显存不足时 CUDA 会抛出错误；悄无声息地被杀说明主机内存耗尽，或被人为终止。",
    ),
    "flat_copy": (
        "{requested_bytes} in one piece are 4 bytes for each of {billions} billion parameters, and what is allocated is their 16-bit "
        "weights with {copies} such copies: the flat fp32 master weights or optimizer states of one rank.",
        "一次申请的 {requested_bytes} 正好是 {billions}B 参数各 4 字节，而已分配的正是其 16 位权重加 {copies} 份这样的副本："
        "即一个 rank 的整块 fp32 主权重或优化器状态。",
    ),
    "partition": (
        "{requested_bytes} in one piece is 4 bytes for each of the model's {billions} billion parameters, divided by {share}: master weights "
        "or an optimizer state in fp32, as one rank makes them.",
        "一次申请的 {requested_bytes} 正好是该模型 {billions}B 参数各 4 字节再除以 {share}：即一个 rank 的 fp32 主权重或优化器状态。",
    ),
    "job_from_log": (
        "The log names the job, and it was priced as far as it does: {said}.",
        "日志中写明了任务，已据此估算：{said}。",
    ),
    "states": (
        "Weights, gradients and optimizer states of the job take {states_bytes} per GPU, whatever the batch is.",
        "该任务的权重、梯度与优化器状态每卡占用 {states_bytes}，与批次无关。",
    ),
    "size_from_name": (
        "The name {name} says {billions} billion parameters; with so many:",
        "名称 {name} 表明有 {billions}B 参数；按此计算：",
    ),
    "states_exceed_card_if_full": (
        "If all parameters are trained, weights, gradients and optimizer states alone take {states_bytes} per GPU, and PyTorch can have "
        "{card_bytes}: no batch is small enough.",
        "若训练全部参数，仅权重、梯度与优化器状态每张 GPU 就要 {states_bytes}，而 PyTorch 最多可用 {card_bytes}：再小的批次也放不下。",
    ),
    "states_exceed_card": (
        "Weights, gradients and optimizer states alone take {states_bytes} per GPU; PyTorch can have {card_bytes}. No batch is small enough.",
        "仅权重、梯度与优化器状态每卡就要 {states_bytes}，而 PyTorch 最多可用 {card_bytes}。再小的批次也放不下。",
    ),
    "states_leave_room": (
        "Weights, gradients and optimizer states take {states_bytes} of {card_bytes}; the other {rest_bytes} that were allocated depend on the "
        "batch and the length.",
        "权重、梯度与优化器状态占 {card_bytes} 中的 {states_bytes}；其余已分配的 {rest_bytes} 取决于批次与长度。",
    ),
    "weights_exceed_card": (
        "The weights of {model} take about {weights_bytes} per card, more than the {card_bytes} it has.",
        "{model} 的权重每卡约需 {weights_bytes}，超过显卡的 {card_bytes}。",
    ),
    "served_weights": (
        "The weights of {model} take about {weights_bytes} of {card_bytes} per card; the rest of the share is for the cache.",
        "{model} 的权重每卡约占 {card_bytes} 中的 {weights_bytes}；所占比例的其余部分留给缓存。",
    ),
    "kernel_gone": (
        "The notebook's kernel ended without a message: most often host memory ran out, else native code crashed.",
        "笔记本内核无声结束：多半是主机内存耗尽，否则是本地代码崩溃。",
    ),
    "no_batch_fits": (
        "accelerate halved the batch down to zero: not even one sample fits.",
        "accelerate 把批次一路减半到零：连一个样本也放不下。",
    ),
    "on_chip_memory": (
        "The shared memory in this message is on the GPU's chip, a few hundred KiB per block; it is neither GPU memory nor /dev/shm.",
        "这里的 shared memory 是 GPU 芯片上每块几百 KiB 的存储，既不是显存也不是 /dev/shm。",
    ),
    "illegal_access": (
        "An address was wrong; how much memory is free does not matter.",
        "访问的地址有误；与空闲内存多少无关。",
    ),
    "disk_full": (
        "A disk had no space left. Neither GPU nor host memory is involved.",
        "磁盘空间不足。与显存和主机内存无关。",
    ),
    "vllm_warm_up": (
        "vLLM ran out while it warmed up with its largest batch of requests: the share leaves too little for that.",
        "vLLM 在以最大请求数预热时显存不足：所占份额没有为此留出空间。",
    ),
    "killed_worker": (
        "A DataLoader worker was killed (signal 9): host memory ran out. The GPU is not involved.",
        "DataLoader 的工作进程被杀（信号 9）：主机内存耗尽。与 GPU 无关。",
    ),
    "array_allocation": (
        "NumPy on the host was refused {requested_bytes}. The GPU is not involved.",
        "主机上的 NumPy 申请 {requested_bytes} 被拒绝。与 GPU 无关。",
    ),
    "page_file": (
        "Windows could not commit more memory: RAM plus page file were used up. The GPU is not involved.",
        "Windows 无法再提交内存：内存加页面文件已用尽。与 GPU 无关。",
    ),
    "ended": (
        "{signal}: the process was ended from outside (a closed terminal, a person, a scheduler). Nothing here says that memory ran out.",
        "{signal}：进程被外部结束（终端关闭、人为、调度器）。这里没有任何内存耗尽的迹象。",
    ),
    "worker_gone": (
        "A DataLoader worker ended without a message: /dev/shm too small, killed by the host, or a crash in native code. "
        "num_workers=0 shows the true error.",
        "DataLoader 的工作进程无声结束：/dev/shm 太小、被主机杀死，或本地代码崩溃。设 num_workers=0 可看到真实报错。",
    ),
    "weights_offloaded": (
        "accelerate had no room on the GPUs for all weights and put some of them on the CPU or the disk.",
        "accelerate 发现 GPU 放不下全部权重，把一部分放到了 CPU 或磁盘。",
    ),
    "shared_file_not_opened": (
        "A shared file could not be opened, and no reason was printed. Opening takes no memory: most often the limit of open files "
        "(ulimit -n) was reached.",
        "共享文件无法打开，且没有打印原因。打开文件不占内存：多半是达到了打开文件数上限（ulimit -n）。",
    ),
    "small_card_shared": (
        "{rest_bytes} of the card's {capacity_bytes} is used outside PyTorch: by the CUDA context of this process and by other programs.",
        "显卡 {capacity_bytes} 中有 {rest_bytes} 在 PyTorch 之外：本进程的 CUDA 上下文与其他程序。",
    ),
    "killed_by_limit": (
        "The kernel killed the process because its container or job reached its host memory limit. The GPU is not involved.",
        "容器或作业达到主机内存上限，内核杀死了进程。与 GPU 无关。",
    ),
    "killed_by_machine": (
        "The kernel killed the process because the whole machine was out of memory. The GPU is not involved.",
        "整台机器内存耗尽，内核杀死了进程。与 GPU 无关。",
    ),
    "killed_holding": (
        "It held {process_bytes} of host memory when it was killed.",
        "被杀时它占用主机内存 {process_bytes}。",
    ),
    "host_limit": (
        "Host memory in use was {used_bytes} of {limit_bytes}.",
        "主机内存已用 {used_bytes}，上限 {limit_bytes}。",
    ),
    "host_before_the_end": (
        "The last host reading before the end: {used_bytes} in use, on a machine of about {total_bytes}.",
        "结束前最后一次主机读数：已用 {used_bytes}，机器约有 {total_bytes}。",
    ),
    "host_allocation": (
        "The host, not the GPU, refused {requested_bytes}: a tensor on the CPU (loading, offloading, gathering, or a batch "
        "with a wrong shape).",
        "拒绝 {requested_bytes} 的是主机而不是 GPU：这是 CPU 上的张量（加载、卸载、汇总，或形状有误的批次）。",
    ),
    "gpu_told": (
        "The text says that GPU memory ran out; no program's message was pasted with it.",
        "文字说显存耗尽；没有贴出程序的报错。",
    ),
    "host_told": (
        "The text says that host memory ran out; no program's message was pasted with it.",
        "文字说主机内存耗尽；没有贴出程序的报错。",
    ),
    "host_allocation_unknown": (
        "The host, not the GPU, was out of memory.",
        "内存不足的是主机，不是 GPU。",
    ),
    "open_files": (
        "The limit of open files was reached: DataLoader workers hold one for every tensor they pass on. Memory did not run out.",
        "达到了打开文件数上限：DataLoader 工作进程每传递一个张量就占用一个文件。并非内存不足。",
    ),
    "shared_file_gone": (
        "A shared file was gone before another process opened it: its owner had ended, or something cleared it away. Memory did "
        "not run out.",
        "共享文件在另一进程打开之前就已消失：其所有者已退出，或文件被清理。并非内存不足。",
    ),
    "shared_memory": (
        "/dev/shm was too small: DataLoader workers and NCCL pass data through it. Docker gives 64 MB unless told otherwise.",
        "/dev/shm 太小：DataLoader 工作进程与 NCCL 通过它传递数据。Docker 默认只给 64 MB。",
    ),
    "masked": (
        "{name} is an out-of-memory in disguise: the library could not get its handle or workspace on a full card.",
        "{name} 实为显存不足：显卡已满，库拿不到句柄或工作区。",
    ),
    "masked_uncertain": (
        "{name} is often an out-of-memory in disguise (the handle could not be made on a full card), but also appears after "
        "an earlier kernel error: run once with CUDA_LAUNCH_BLOCKING=1.",
        "{name} 常常是显存不足的伪装（满卡上建不出句柄），但也可能由先前的内核错误引起：请用 CUDA_LAUNCH_BLOCKING=1 再跑一次。",
    ),
    "masked_nccl": (
        "NCCL could not get its buffers: they are allocated outside PyTorch's allocator, on a card that PyTorch had filled.",
        "NCCL 拿不到缓冲区：它们在 PyTorch 分配器之外，而显卡已被 PyTorch 占满。",
    ),
    "runtime_error_bare": (
        "The message has no numbers. Torch up to 1.0 says no more when its own allocator finds the card full; with a later one, some other "
        "call into CUDA did.",
        "这条报错没有数字。1.0 及更早的 torch 在自身分配器显存不足时也只说这么多；较新的版本则是其他 CUDA 调用失败。",
    ),
    "failing_together": (
        "Two processes of this text failed on {place}, and each names the other as the holder of the rest: they are of one launch.",
        "文中两个进程都在 {place} 上失败，且互相把对方列为占用者：它们属于同一次启动。",
    ),
    "runtime_error": (
        "The CUDA runtime itself was out of memory, outside PyTorch's allocator, so no figures were printed.",
        "CUDA 运行时本身（PyTorch 分配器之外）显存不足，因此没有打印数字。",
    ),
    "not_a_failure": (
        "This allocator warning is not a failure: TensorFlow would have been faster with more memory, and went on.",
        "这条分配器警告不是失败：TensorFlow 只是说内存更多会更快，随后继续运行。",
    ),
    "compile_time": (
        "The compiled program needs {requested_bytes} of {capacity_bytes}: XLA plans before running, so this is the whole "
        "need.",
        "编译后的程序需要 {requested_bytes}，而设备只有 {capacity_bytes}：XLA 在运行前规划，所以这就是全部需求。",
    ),
    "xla_need": (
        "The program's buffers add up to {total_bytes}; the largest part is {part} with {part_bytes}.",
        "程序的缓冲共 {total_bytes}；最大的部分是 {part}，{part_bytes}。",
    ),
    "tensor_shape": (
        "The tensor asked for has shape {shape}: {requested_bytes}.",
        "申请的张量形状为 {shape}：{requested_bytes}。",
    ),
    "vllm_share": (
        "vLLM wanted {wanted_bytes} (a share of {share} of the whole card) and found {free_bytes} free: {used_bytes} was "
        "already in use.",
        "vLLM 想要 {wanted_bytes}（整卡的 {share}），但只有 {free_bytes} 空闲：已有 {used_bytes} 被占用。",
    ),
    "vllm_no_room": (
        "The engine's share of the card was used up by weights and activations before the key-value cache it needs.",
        "推理引擎分到的份额已被权重和激活值用尽，放不下所需的 KV 缓存。",
    ),
    "snapshot": (
        "This is an allocator snapshot: `vramcast snapshot FILE` reads it in full.",
        "这是分配器快照：用 `vramcast snapshot 文件` 可完整分析。",
    ),
    "retries": (
        "PyTorch had to empty its cache and ask again {count} times: the job runs at the edge of the card.",
        "PyTorch 清空缓存并重试了 {count} 次：任务已在显存边缘运行。",
    ),
    "windows_driver": (
        "The card runs under the Windows display driver (WDDM): the desktop takes part of it, and a full card spills to host "
        "memory before it fails.",
        "显卡使用 Windows 显示驱动（WDDM）：桌面占用一部分，显存满时先换到主机内存。",
    ),
    "unified_memory": (
        "The driver does not report this device's memory: it shares the host's, so look at the host's figures.",
        "驱动不报告该设备的显存：它与主机共用内存，请看主机的数字。",
    ),
    "stray_contexts": (
        "{count} processes of the same program hold only a context on {place} ({total_bytes} together): ranks that touched "
        "the wrong card (missing torch.cuda.set_device or map_location).",
        "同一程序有 {count} 个进程在 {place} 上只占一个上下文（共 {total_bytes}）：这些 rank 碰了不属于自己的卡"
        "（缺少 torch.cuda.set_device 或 map_location）。",
    ),
    "failing_ranks": (
        "{count} ranks failed ({ranks}).",
        "{count} 个 rank 失败（{ranks}）。",
    ),
    "theory_only": (
        "The ZeRO estimate covers parameters, gradients and optimizer states only: activations, buckets and temporaries come "
        "on top.",
        "ZeRO 估算只含参数、梯度与优化器状态：激活、通信桶和临时量另计。",
    ),
    "growing": (
        "Allocated memory grew over {count} readings without ever coming down, from {first_bytes} to {last_bytes}: something "
        "keeps tensors alive.",
        "已分配显存连续 {count} 次读数只增不减，从 {first_bytes} 到 {last_bytes}：有东西一直持有张量。",
    ),
    "ran_before": (
        "{count} steps had been done before it failed: what is needed at every step shows in the first ones. Either this "
        "batch was larger than those before it, or something grows.",
        "失败之前已完成 {count} 步：每一步都需要的显存在最初几步就会显现。要么这一批比之前的更大，要么有东西在不断增长。",
    ),
    "outside_jax_pool": (
        "The driver refused this, not JAX's own pool: a library searched for algorithms in what JAX had left of the card. "
        "Lower XLA_PYTHON_CLIENT_MEM_FRACTION.",
        "拒绝的是驱动而不是 JAX 自己的内存池：库在 JAX 预占之后剩余的显存里搜索算法。请调低 XLA_PYTHON_CLIENT_MEM_FRACTION。",
    ),
    "highest": (
        "Nothing failed in this text; the highest {level} memory it shows is {size_bytes}.",
        "这段文本中没有失败；其中最高的 {level} 显存为 {size_bytes}。",
    ),
}  # fmt: skip

NOTES: dict[str, tuple[str, str]] = {
    "gb_is_gib": ("printed as GB (MB), meaning GiB (MiB)", "打印为 GB（MB），实为 GiB（MiB）"),
    "mb_is_mib": ("MB and MiB both mean 2^20 bytes here", "此处 MB 与 MiB 都是 2^20 字节"),
    "bare_number_is_mib": ("printed without a unit, in MiB", "未打印单位，实为 MiB"),
    "bare_number_is_gib": ("printed without a unit, in GiB", "未打印单位，实为 GiB"),
    "nonsense_is_unknown": (
        "a printed value that no memory can have counts as unknown",
        "不可能的数值按未知处理",
    ),
    "mps_limit_is_not_the_machine": (
        "capacity is the limit PyTorch sets on MPS; the machine's memory is not printed",
        "容量取 PyTorch 在 MPS 上的上限；机器内存未打印",
    ),
    "unit_as_printed": ("unit taken as printed by the script", "单位按脚本所打印"),
    "unit_assumed_gib": (
        "no unit printed; GiB as torchtune now has it",
        "未打印单位；按 torchtune 现行的 GiB",
    ),
    "unit_by_version": (
        "GB taken as 10^9; early mlx-examples divided by 2^30",
        "GB 按 10^9；早期 mlx-examples 按 2^30",
    ),
    "whole_device": (
        "what the whole device holds, not this process alone",
        "整个设备的占用，不只本进程",
    ),
}
