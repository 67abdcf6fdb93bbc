"""Words of pictures and HTML reports."""

from __future__ import annotations

PAGE = {
    "title": ("GPU memory of {name}", "{name} 的显存"),
    "peak_at": ("what holds memory at the peak", "峰值时谁占用显存"),
    "phases": ("peak of every phase", "各阶段的峰值"),
    "timeline": ("memory over time", "显存随时间的变化"),
    "lines": ("every line at the peak", "峰值时的每一项"),
    "host": ("CPU memory per node", "每节点的主机内存"),
    "notes": ("assumptions and notes", "假设与说明"),
    "ranks": ("ranks", "各进程"),
    "capacity": ("card {size}", "显卡 {size}"),
    "range": ("range {low} to {high}", "范围 {low} 至 {high}"),
    "free": ("{size} free", "剩余 {size}"),
    "short": ("{size} short", "还差 {size}"),
    "of": ("of {size}", "/ {size}"),
    "exact": ("exactly", "精确值"),
    "formula": ("formula", "公式"),
    "known_by": ("known by", "依据"),
    "alive_in": ("alive in", "存活于"),
    "needed_by": ("needed by", "被谁需要"),
    "could_be": ("could be", "可能为"),
    "growth_seq": ("peak against length", "峰值与序列长度"),
    "growth_batch": ("peak against micro-batch", "峰值与微批大小"),
    "tokens": ("tokens per sample", "每样本词元数"),
    "samples": ("samples per GPU", "每卡样本数"),
    "prompt_tokens": ("prompt tokens", "提示词元数"),
    "no_quadratic": ("nothing here grows with length²", "此处没有随长度²增长的部分"),
    "no_timeline": (
        "serving, scoring and encoding have no timeline: choose train or generate, or drop a trace or a snapshot",
        "服务、打分与编码没有时间线: 请选择训练或生成，或拖入 trace 或快照",
    ),
    "quadratic": ("grows with length²", "随长度²增长的部分"),
    "rest": ("everything else", "其余部分"),
    "peak": ("peak", "峰值"),
    "difference": ("difference", "差值"),
    "pinned": ("pinned", "已固定"),
    "now": ("now", "当前"),
    "front_process": ("peak against time per token; each point is a combination of changes",
                      "峰值与每词元耗时；每个点为一组改动"),
    "front_allocated": ("allocated at the peak against time per token; each point is a combination of changes",
                        "峰值时已分配的显存与每词元耗时；每个点为一组改动"),
    "as_given": ("as given", "不作改动"),
    "room": ("card without its CUDA context {size}", "显卡（不含 CUDA 上下文）{size}"),
    "fits": ("fits", "装得下"),
    "does-not-fit": ("does not fit", "装不下"),
    "report": ("the report as text", "文本报告"),
    "plan_title": ("what makes {name} fit", "让 {name} 装得下的改动"),
    "compare_title": ("jobs side by side", "任务对照"),
    "snapshot_title": ("GPU memory in {name}", "{name} 中的显存"),
    "diagnose_title": ("what happened", "发生了什么"),
    "host_title": ("CPU memory of a node", "一个节点的主机内存"),
    "sweep_title": ("peak of {name} by micro-batch and length", "{name} 的峰值: 按微批大小与长度"),
    "trace_title": ("GPU memory of {name}, traced", "{name} 的显存（追踪）"),
    "undecided": ("not decided: the run did not come to its end", "未能判定: 运行没有到达结尾"),
    "corner": ("micro-batch \\ length", "微批 \\ 长度"),
    "left_out": ("{shown} of {count} shown, evenly chosen", "均匀选取显示 {count} 项中的 {shown} 项"),
    "served": ("the engine's cache", "引擎的缓存"),
    "many_runs": (
        "no formula describes this model: each point takes a run on the virtual GPU. Copy the job as a command and "
        "ask vramcast plan or vramcast sweep",
        "没有公式描述此模型: 每个点都需在虚拟 GPU 上运行一次。请把任务复制为命令，"
        "用 vramcast plan 或 vramcast sweep 查询",
    ),
    "no_virtual_gpu": (
        "No formula describes this model, and there is no virtual GPU here: the figures are weights, gradients and "
        "states alone. For the whole bill run:",
        "没有公式描述此模型，而此处没有虚拟 GPU: 图中只有权重、梯度与优化器状态。"
        "要得到完整账单，请运行:",
    ),
    "no_tensors": (
        "No formula describes this model, and there is no torch here: of its weights only the number is known, not how "
        "the engine divides them. For the whole bill run:",
        "没有公式描述此模型，而此处没有 torch: 只知道权重的总数，不知道引擎如何划分。"
        "要得到完整账单，请运行:",
    ),
    "by_plan": (
        "found by vramcast plan: {count} combinations priced, the fitting ones estimated whole",
        "由 vramcast plan 求得: 为 {count} 种组合计价，装得下的作完整估算",
    ),
    "by_tries": (
        "{count} combinations tried one after the other, without NumPy; vramcast plan prices all of them and may find "
        "others",
        "在没有 NumPy 的情况下逐一尝试了 {count} 种组合；vramcast plan 会为全部组合计价，结果可能不同",
    ),
    "front_none": ("nothing to combine: changes of a training job apply to a training job on a card",
                   "没有可组合的改动: 这些改动只适用于显卡上的训练任务"),
    "cards": ("peak on every card, of what it has", "在各显卡上的峰值 / 容量"),
    "size_of": ("{size} of {whole}", "{size} / {whole}"),
}  # fmt: skip

# Groups of categories: one colour each, the same order everywhere.
PARTS = {
    "weights": ("weights", "权重"),
    "gradients": ("gradients", "梯度"),
    "optimizer": ("optimizer states", "优化器状态"),
    "activations": ("activations", "激活值"),
    "logits": ("logits and loss", "logits 与损失"),
    "temporary": ("temporaries and inputs", "临时缓冲与输入"),
    "cache": ("KV cache", "KV 缓存"),
    "companion": ("companion models", "伴随模型"),
    "communication": ("communication", "通信缓冲"),
    "slack": ("allocator slack", "分配器余量"),
    "context": ("CUDA context and libraries", "CUDA 上下文与库"),
}
