"""Words of `divide`, `fit`, `sweep` and `compare`."""

from __future__ import annotations

DIVIDE = {
    "checkpointing": ("checkpointing", "梯度检查点"),
    "batch": ("micro-batch", "微批大小"),
    "allocated": ("allocated", "已分配峰值"),
    "stage": ("fullest stage", "最满的阶段"),
    "found": ("{count} valid layouts of {gpus} GPUs", "{gpus} 张显卡共有 {count} 种有效布局"),
    "found_fitting": ("{count} valid layouts of {gpus} GPUs, of which {fitting} fit on {gpu}",
                      "{gpus} 张显卡共有 {count} 种有效布局，其中 {fitting} 种在 {gpu} 上装得下"),
    "shown": ("the {shown} with the smallest peak are shown", "显示峰值最小的 {shown} 种"),
    "more": ("full breakdown of the first", "第一种的完整明细"),
}  # fmt: skip

FIT = {
    "on_some": ("fits on {fitting} of {tried} cards; the smallest: {gpu} ({capacity})",
                "{tried} 种显卡中有 {fitting} 种装得下；最小的是 {gpu}（{capacity}）"),
    "on_none": ("fits on none of {tried} cards", "{tried} 种显卡都装不下"),
    "left_out": ("{count} more cards on which it does not fit: -v", "另有 {count} 种显卡装不下: -v"),
    "gpu": ("GPU", "GPU"),
    "count": ("GPUs needed", "所需数量"),
    "together": ("total memory", "总显存"),
    "capacity": ("memory", "显存"),
    "peak": ("peak per GPU", "每卡峰值"),
    "free": ("free (GiB)", "剩余 (GiB)"),
    "price": ("price", "价格"),
    "by_price": ("cheapest by the given prices: {count} × {gpu}", "按给定价格最便宜: {count} × {gpu}"),
    "by_memory": ("smallest by total memory (no prices given): {count} × {gpu}",
                  "总显存最少（未给定价格）: {count} × {gpu}"),
}  # fmt: skip

SWEEP = {
    "title": ("{model}: GiB allocated at the peak", "{model}: 已分配显存峰值 (GiB)"),
    "title_gpu": ("{model}: GiB allocated at the peak; on {gpu} ({capacity}): ~ tight, × does not fit",
                  "{model}: 已分配显存峰值 (GiB)；在 {gpu} ({capacity}) 上：~ 勉强装得下，× 装不下"),
    "corner": ("batch \\ seq", "批大小 \\ 长度"),
    "largest": ("largest batch that fits", "装得下的最大批大小"),
    "none": ("none", "无"),
    "observed": ("observed", "观测"),
    "predicted": ("predicted", "预测"),
    "line": ("{per_sample} GB per sample + {fixed}", "每个样本 {per_sample} GB + {fixed}"),
    "points": ("largest deviation {residual} GB over {count} points ({points})",
               "{count} 个点的最大偏差 {residual} GB（{points}）"),
    "by_line": ("largest batch by this line: {batch}", "按此直线的最大批大小: {batch}"),
    "of_table": ("(allocated, first length of the table)", "（已分配，表中第一个长度）"),
}  # fmt: skip

COMPARE = {
    "title": ("GiB at the peak of each job", "每个任务峰值时的显存 (GiB)"),
    "phase": ("peak in", "峰值阶段"),
    "gpu": ("GPU memory", "显卡容量"),
    "verdict": ("verdict", "结论"),
}
