"""Memory lines that training frameworks log while they run, each as data: the words beside each number.

What each framework divides by was read in its source: all print 2^30 (or 2^20) as GB (MB) unless `binary=False`.
Figures of one line that have no field of their own keep the framework's label.
"""

from __future__ import annotations

from vramcast.diagnose.observation import Moment
from vramcast.diagnose.readers.reader import Form, clause

DEEPSPEED_USAGE = Form(
    kind="deepspeed_see_memory_usage",
    words=("max_ma", "max memory allocated"),  # deepspeed/runtime/utils.py
    clauses=(
        clause("allocated_bytes", r"(?<![_A-Za-z])MA {q}"),
        clause("peak_allocated_bytes", r"Max_MA {q}"),
        clause("reserved_bytes", r"(?<![_A-Za-z])CA {q}"),
        clause("peak_reserved_bytes", r"Max_CA {q}"),
        clause("allocated_bytes", r"(?<!Max )Memory Allocated {q}"),
        clause("peak_allocated_bytes", r"Max Memory Allocated {q}"),
        clause("reserved_bytes", r"(?<!Max )cache[d]? (?:memory )?allocated {q}"),
    ),
    needs=("allocated_bytes",),
)
DEEPSPEED_HOST = Form(
    kind="deepspeed_see_memory_usage",
    words=("cpu virtual memory",),
    place="host",
    clauses=(clause("used_bytes", r"used = {q}"), clause("+percent", r"percent = {n} ?%", "%")),
    needs=("used_bytes",),
)
DEEPSPEED_TIMER = Form(
    kind="deepspeed_log",
    words=("memallocated=",),  # ThroughputTimer
    clauses=(
        clause("allocated_bytes", r"(?<![Mm]ax)\bMemAllocated={q}"),
        clause("peak_allocated_bytes", r"MaxMemAllocated={q}"),
    ),
)
MEGATRON = Form(
    kind="megatron_log",
    words=("max allocated:",),  # megatron/training/utils.py report_memory
    clauses=(
        clause("allocated_bytes", r"(?<!max )\ballocated: {n}", "MB"),
        clause("peak_allocated_bytes", r"max allocated: {n}", "MB"),
        clause("reserved_bytes", r"(?<!max )\breserved: {n}", "MB"),
        clause("peak_reserved_bytes", r"max reserved: {n}", "MB"),
    ),
    needs=("peak_allocated_bytes",),
)
MEGATRON_SHARE = Form(
    kind="megatron_log",
    words=("mem usages:",),
    clauses=(clause("+mem usages", r"mem usages:\s*{n}", "share"),),
)
MEGATRON_THEORY = Form(
    kind="megatron_log",
    moment=Moment.THEORY,
    span=12,
    words=(
        "theoretical memory footprint",
        "number of parameters in",
        "activation memory footprint",
    ),
    clauses=(
        clause(
            "+parameters in transformer block",
            r"in transformer (?:block|layers) in billions:\s*{n}",
            "billions",
        ),
        clause(
            "+parameters in embedding layers",
            r"parameters in embedding layers in billions:\s*{n}",
            "billions",
        ),
        clause("+total parameters", r"Total number of parameters in billions:\s*{n}", "billions"),
        clause(
            "+parameters in most loaded shard",
            r"parameters in most loaded shard in billions:\s*{n}",
            "billions",
        ),
        clause(
            "+parameters in other shards",
            r"parameters in other shards in billions:\s*{n}",
            "billions",
        ),
        clause(
            "+activation per layer",
            r"Activation memory footprint per (?:\w+ )?transformer layer: {q}",
        ),
        clause("+weight and optimizer", r"weight and optimizer={q}"),
        clause("+activation", r"activation={q}"),
        clause("+total", r"total={q}"),
    ),
)
TORCHTITAN = Form(
    kind="torchtitan_log",
    words=("gib(",),
    moment=Moment.PEAK,  # torchtitan/components/metrics.py: max_reserved
    clauses=(
        clause("reserved_bytes", r"memory: {q}\s*\([\d.]+%\)"),
        clause("+percent of capacity", r"memory: [\d.]+ ?GiB\s*\({n}%\)", "%"),
        clause("reserved_bytes", r"memory usage for model: {q}\s*\("),
    ),
    needs=("reserved_bytes",),
)
TORCHTITAN_CARD = Form(
    kind="torchtitan_log",
    words=("capacity:",),
    clauses=(clause("capacity_bytes", r"capacity: .{1,60} with {q} memory"),),
    needs=("capacity_bytes",),
)
AXOLOTL = Form(
    kind="axolotl_log",
    words=("gpu memory",),  # axolotl/utils/bench.py: allocated, cache, device minus both
    clauses=(
        clause("allocated_bytes", r"GPU memory usage [^:]{0,60}: {q} \("),
        clause("unallocated_bytes", r"\+{q} ?cache"),
        clause("+misc", r"\+{q} ?misc"),
    ),
    needs=("allocated_bytes",),
)
AXOLOTL_EARLY = Form(
    kind="axolotl_log",
    words=("gpu memory ",),  # axolotl#354: what NVML reports for the whole device
    clauses=(
        clause(
            "used_bytes", r"GPU memory (?:baseline|after [\w ]{1,30}|while [\w ]{1,30}): {q}\.?$"
        ),
    ),
    needs=("used_bytes",),
    notes=("whole_device",),
)
AXOLOTL_METRICS = Form(
    kind="axolotl_log",
    words=("memory/",),
    moment=Moment.PEAK,
    span=4,
    clauses=(
        clause("+max active", r"max_(?:mem_)?active ?\(gib\)['\"]?: {n}", "GiB"),
        clause("allocated_bytes", r"max_(?:mem_)?alloc(?:ated)? ?\(gib\)['\"]?: {n}", "GiB"),
        clause("reserved_bytes", r"device_(?:mem_)?reserved ?\(gib\)['\"]?: {n}", "GiB"),
    ),
)
LLAMA_RECIPES = Form(
    kind="llama_recipes_log",
    words=("cuda memory",),
    moment=Moment.PEAK,
    span=5,  # MemoryTrace: whole GiB, printed GB
    clauses=(
        clause("allocated_bytes", r"Max CUDA memory allocated was {q}"),
        clause("reserved_bytes", r"Max CUDA memory reserved was {q}"),
        clause("+active", r"Peak active CUDA memory was {q}"),
        clause("+cudaMalloc retries", r"CUDA Malloc retries\s*:\s*{n}", "count"),
    ),
)
LLAMA_RECIPES_STEP = Form(
    kind="llama_recipes_log",
    words=("reserved memory is",),
    notes=("bare_number_is_gib",),
    clauses=(
        clause("reserved_bytes", r"reserved memory is {n}", "GiB"),
        clause("allocated_bytes", r"allocated memory is {n}", "GiB"),
    ),
)
NANOTRON = Form(
    kind="nanotron_log",
    words=("peak allocated:",),
    clauses=(
        clause("allocated_bytes", r"Memory usage: {q}"),
        clause("peak_allocated_bytes", r"Peak allocated: {q}"),
        clause("peak_reserved_bytes", r"Peak reserved: {q}"),
    ),
)
NANOTRON_PARAMETERS = Form(
    kind="nanotron_log",
    words=("number of parameters:",),
    moment=Moment.THEORY,
    span=2,
    clauses=(
        clause("+total parameters", r"Total number of parameters: [\d.]+[KMBT]? \({q}\)"),
        clause("+local parameters", r"Local number of parameters: [\d.]+[KMBT]? \({q}\)"),
    ),
)
# torchtune divided by 1e9 and printed all digits; later it divided by 2^30 and printed GiB.
TORCHTUNE = Form(
    kind="torchtune_log",
    words=("gpu peak memory",),
    moment=Moment.PEAK,
    binary=False,
    span=4,
    clauses=(
        clause("allocated_bytes", r"GPU peak memory alloc(?:ation|ated)?: {q}"),
        clause("reserved_bytes", r"GPU peak memory reserved: {q}"),
        clause("+active", r"GPU peak memory active: {q}"),
    ),
)
TORCHTUNE_EARLY = Form(
    kind="torchtune_log",
    words=("memory allocated:", "memory reserved:"),
    binary=False,
    span=3,
    clauses=(
        clause("allocated_bytes", r"^Memory Allocated: {q}"),
        clause("reserved_bytes", r"^Memory Reserved: {q}"),
        clause("peak_allocated_bytes", r"^Peak Memory: {q}"),
    ),
    needs=("allocated_bytes", "reserved_bytes", "peak_allocated_bytes"),
)
TORCHTUNE_METRICS = Form(
    kind="torchtune_log",
    words=("peak_memory_",),
    moment=Moment.PEAK,
    notes=("unit_assumed_gib",),
    clauses=(
        clause("allocated_bytes", r"peak_memory_alloc(?:ated)?['\"]?[:= ]+{n}", "GiB"),
        clause("reserved_bytes", r"peak_memory_reserved['\"]?[:= ]+{n}", "GiB"),
        clause("+active", r"peak_memory_active['\"]?[:= ]+{n}", "GiB"),
    ),
)
UNSLOTH = Form(
    kind="unsloth_log",
    words=("max memory", "of memory reserved", "peak reserved memory"),
    span=10,
    clauses=(
        clause("capacity_bytes", r"Max memory[ =:]+{q}"),
        clause("reserved_bytes", r"{q} of memory reserved"),
        clause("peak_reserved_bytes", r"Peak reserved memory = {q}"),
        clause("+reserved for training", r"Peak reserved memory for training = {q}"),
        clause("+peak reserved percent", r"Peak reserved memory % of max memory = {n} ?%", "%"),
        clause("+reserved for training percent", r"for training % of max memory = {n} ?%", "%"),
    ),
)
GAUDI = Form(
    kind="hf_trainer_log",
    words=("memory_allocated (gb)",),
    place="hpu:0",
    clauses=(
        clause("allocated_bytes", r"(?<!max_)memory_allocated \(GB\)['\"]?: {n}", "GB"),
        clause("peak_allocated_bytes", r"max_memory_allocated \(GB\)['\"]?: {n}", "GB"),
        clause("capacity_bytes", r"total_memory_available \(GB\)['\"]?: {n}", "GB"),
    ),
)
SWIFT = Form(
    kind="hf_trainer_log",
    words=("memory(gib)",),
    moment=Moment.PEAK,  # ms-swift: max_memory_reserved
    clauses=(clause("reserved_bytes", r"memory\(GiB\)['\"]?: {n}", "GiB"),),
)
LLAMA_FACTORY = Form(
    kind="hf_trainer_log",
    words=("vram_",),
    moment=Moment.PEAK,
    clauses=(
        clause("allocated_bytes", r"vram_allocated['\"]?: {n}", "GB"),
        clause("reserved_bytes", r"vram_reserved['\"]?: {n}", "GB"),
    ),
)
VERL = Form(
    kind="verl_log",
    words=("max_memory_allocated_gb", "max_memory_reserved_gb"),
    moment=Moment.PEAK,
    clauses=(
        clause("allocated_bytes", r"max_memory_allocated_gb['\"]?:\s?{n}", "GB"),
        clause("reserved_bytes", r"max_memory_reserved_gb['\"]?:\s?{n}", "GB"),
        clause("+host used", r"cpu_memory_used_gb['\"]?:\s?{n}", "GB"),
    ),
)
# mlx-examples divided by 2^30 until mlx-lm switched to 1e9, and both print GB.
MLX = Form(
    kind="mlx_log",
    words=("peak mem",),
    moment=Moment.PEAK,
    place="mps",
    binary=False,
    notes=("unit_by_version",),
    clauses=(clause("allocated_bytes", r"(?-i:Peak mem(?:ory)?):? {q}"),),
    needs=("allocated_bytes",),
)
DETECTRON = Form(
    kind="detectron2_log",
    words=("max_mem:",),
    moment=Moment.PEAK,
    clauses=(clause("allocated_bytes", r"max_mem: {q}"),),
    needs=("allocated_bytes",),
)
MMENGINE = Form(
    kind="mmengine_log",
    words=("memory: ",),
    moment=Moment.PEAK,
    clauses=(
        clause(
            "allocated_bytes", r"data_time: .{1,40}\bmemory: (?P<n>\d{2,7})(?![\d.]| ?[GM])", "MB"
        ),
    ),
    needs=("allocated_bytes",),
)
FAIRSEQ = Form(
    kind="fairseq_log",
    words=("gb_free",),
    clauses=(clause("free_bytes", r"gb_free['\"]?[=: ]+['\"]?{n}", "GB"),),
)
CGROUP = Form(
    kind="cgroup_counters",
    words=("memory.peak", "memory.max", "memory.current", "_in_bytes"),
    place="host",
    span=4,
    clauses=(
        clause("used_bytes", r"memory\.(?:peak|max_usage_in_bytes)\s*[=:]?\s*{q}"),
        clause(
            "used_bytes",
            r"memory\.(?:peak|max_usage_in_bytes|current|usage_in_bytes)\s*[=:]?\s*{n}",
            "B",
        ),
        clause("allowed_bytes", r"memory\.(?:max|limit_in_bytes)\s*[=:]?\s*{q}"),
        clause("allowed_bytes", r"memory\.(?:max|limit_in_bytes)\s*[=:]?\s*{n}", "B"),
    ),
)
SEFF = Form(
    kind="slurm_seff",
    words=("memory utilized", "memory efficiency"),
    place="host",
    span=2,
    moment=Moment.PEAK,
    clauses=(
        clause("used_bytes", r"Memory Utilized:\s*{q}"),
        clause("allowed_bytes", r"Memory Efficiency:\s*[\d.]+% of {q}"),
        clause("+percent", r"Memory Efficiency:\s*{n}% of", "%"),
    ),
)
ROCM_SMI = Form(
    kind="rocm_smi",
    words=("vram total",),
    span=4,
    clauses=(
        clause("capacity_bytes", r"VRAM Total Memory \(B\): {n}", "B"),
        clause("used_bytes", r"VRAM Total Used Memory \(B\): {n}", "B"),
    ),
)
COMFYUI = Form(
    kind="comfyui_log",
    words=("vram total:", "total vram "),
    span=4,
    device=r"\bcuda:(\d{1,3})\b",
    clauses=(
        clause("capacity_bytes", r"(?<!Torch )VRAM Total:\W{0,4}{n}", "B"),
        clause("free_bytes", r"(?<!Torch )VRAM Free:\W{0,4}{n}", "B"),
        clause("reserved_bytes", r"Torch VRAM Total:\W{0,4}{n}", "B"),
        clause("unallocated_bytes", r"Torch VRAM Free:\W{0,4}{n}", "B"),
        clause("capacity_bytes", r"Total VRAM {q}, total RAM"),
        clause("+host capacity", r"Total VRAM [\d.]{1,12} ?MB, total RAM {q}"),
    ),
    needs=("capacity_bytes",),
)
METRIC_LOGGER = Form(
    kind="metric_logger",
    words=("max mem:",),
    moment=Moment.PEAK,  # torchvision's references: 2^20
    clauses=(clause("allocated_bytes", r"\bmax mem: {n}\b", "MB"),),
    needs=("allocated_bytes",),
)
LLAMA_CPP = Form(
    kind="llama_cpp_log",
    words=("buffer size =",),
    device=r"\b(?:CUDA|ROCm)(\d{1,3}) \w+ buffer",
    clauses=(
        clause("+model buffer", r"(?:CUDA|ROCm)\d{1,3} model buffer size = {q}"),
        clause("+kv buffer", r"(?:CUDA|ROCm)\d{1,3} KV buffer size = {q}"),
        clause("+compute buffer", r"(?:CUDA|ROCm)\d{1,3} compute buffer size = {q}"),
    ),
)
LITGPT = Form(
    kind="litgpt_log",
    words=("memory used:",),
    moment=Moment.PEAK,
    binary=False,  # max_memory_allocated / 1e9
    clauses=(clause("peak_allocated_bytes", r"^Memory used: {q}$"),),
    needs=("peak_allocated_bytes",),
)
SGLANG = Form(
    kind="sglang_log",
    words=("avail mem=",),  # get_available_gpu_memory divides by 1 << 30
    clauses=(clause("free_bytes", r"avail mem={q}"), clause("used_bytes", r"mem usage={q}")),
    needs=("free_bytes",),
)
AUTOBATCH = Form(
    kind="ultralytics_log",
    words=("autobatch: using",),
    moment=Moment.THEORY,
    device=r"CUDA:(\d{1,3})",
    clauses=(
        clause("used_bytes", r"for CUDA:\d{1,3} {q}/"),
        clause("capacity_bytes", r"for CUDA:\d{1,3} [\d.]{1,9}G/{q}"),
    ),
    needs=("used_bytes",),
)
HF_DOCS = Form(
    kind="hf_gpu_utilization",
    words=("gpu memory occupied",),
    notes=("whole_device",),  # the guide's NVML snippet
    clauses=(clause("used_bytes", r"GPU memory occupied: {q}"),),
    needs=("used_bytes",),
)
MEMORY_STATS = Form(
    kind="torch_memory_stats",
    words=("_bytes.all.",),
    span=6,  # torch.cuda.memory_stats(), exact bytes
    clauses=(
        clause("allocated_bytes", r"(?<!in)allocated_bytes\.all\.current['\"]?\s*[,:]\s*{n}", "B"),
        clause(
            "peak_allocated_bytes", r"(?<!in)allocated_bytes\.all\.peak['\"]?\s*[,:]\s*{n}", "B"
        ),
        clause("reserved_bytes", r"reserved_bytes\.all\.current['\"]?\s*[,:]\s*{n}", "B"),
        clause("peak_reserved_bytes", r"reserved_bytes\.all\.peak['\"]?\s*[,:]\s*{n}", "B"),
        clause("+active", r"(?<!in)active_bytes\.all\.current['\"]?\s*[,:]\s*{n}", "B"),
        clause("+requested", r"requested_bytes\.all\.current['\"]?\s*[,:]\s*{n}", "B"),
    ),
)
# Metrics whose name ends with the unit, whoever wrote them.
NAMED_GIB = Form(
    kind="torch_counters",
    words=("_gib",),
    is_fallback=True,
    span=4,
    clauses=tuple(
        clause(
            f"{moment}{level}_bytes",
            rf"{word}(?:mem(?:ory)?_)?{level[:5]}\w{{0,6}}_gib['\"]?[:= ]+{{n}}",
            "GiB",
        )
        for moment, word in (("peak_", r"(?:max|peak)_"), ("", r"(?<![a-z_])(?<!max_)(?<!peak_)"))
        for level in ("allocated", "reserved")
    ),
)
# Scripts print torch's counters under torch's names; what they divided by is not known: the unit is as printed.
COUNTERS = Form(
    kind="torch_counters",
    binary=False,
    span=4,
    words=("memory_allocated", "memory_reserved", "memory allocated", "memory reserved"),
    notes=("unit_as_printed",),
    is_fallback=True,
    clauses=(
        clause("peak_allocated_bytes", r"max[_ ]memory[_ ]allocated(?:\(\w*\))?[^\d\n]{1,12}{q}"),
        clause("peak_reserved_bytes", r"max[_ ]memory[_ ]reserved(?:\(\w*\))?[^\d\n]{1,12}{q}"),
        clause("allocated_bytes", r"(?<!max[_ ])memory[_ ]allocated(?:\(\w*\))?[^\d\n]{1,12}{q}"),
        clause(
            "reserved_bytes", r"(?<!max[_ ])(?<!-of-)memory[_ ]reserved(?:\(\w*\))?[^\d\n]{1,12}{q}"
        ),
    ),
)

READERS = tuple(
    form.reader()
    for form in (
        DEEPSPEED_USAGE,
        DEEPSPEED_HOST,
        DEEPSPEED_TIMER,
        MEGATRON,
        MEGATRON_SHARE,
        MEGATRON_THEORY,
        TORCHTITAN,
        TORCHTITAN_CARD,
        AXOLOTL,
        AXOLOTL_EARLY,
        AXOLOTL_METRICS,
        LLAMA_RECIPES,
        LLAMA_RECIPES_STEP,
        NANOTRON,
        NANOTRON_PARAMETERS,
        TORCHTUNE,
        TORCHTUNE_EARLY,
        TORCHTUNE_METRICS,
        UNSLOTH,
        GAUDI,
        SWIFT,
        LLAMA_FACTORY,
        VERL,
        MLX,
        DETECTRON,
        MMENGINE,
        FAIRSEQ,
        SEFF,
        ROCM_SMI,
        COMFYUI,
        METRIC_LOGGER,
        LLAMA_CPP,
        LITGPT,
        SGLANG,
        AUTOBATCH,
        HF_DOCS,
        MEMORY_STATS,
        CGROUP,
        NAMED_GIB,
        COUNTERS,
    )
)
