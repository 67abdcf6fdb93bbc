"""Words of a memory snapshot's report."""

from __future__ import annotations

SNAPSHOT = {
    "header": (
        "{name}: cuda:{device}, {events} events in {seconds} s, allocator settings: {settings}",
        "{name}: cuda:{device}，{seconds} 秒内 {events} 个事件，分配器设置: {settings}",
    ),
    "defaults": ("defaults", "默认"),
    "also": ("also in the file: {names} (choose with --device)", "文件中还有: {names}（用 --device 选择）"),
    "peak_allocated": ("peak allocated", "已分配峰值"),
    "peak_reserved": ("peak reserved", "已保留峰值"),
    "start": ("start", "开始"),
    "end": ("end", "结束"),
    "allocated": ("allocated", "已分配"),
    "reserved": ("reserved", "已保留"),
    "before_first": ("before the first event", "第一个事件之前"),
    "after_event": ("after event {number}", "事件 {number} 之后"),
    "at_second": ("{where}, {seconds} s", "{where}，{seconds} 秒"),
    "chart": (
        "allocated █ and reserved ░ over {events} events, {size} GiB high",
        "{events} 个事件中的已分配 █ 与已保留 ░，高 {size} GiB",
    ),
    "fragmentation": (
        "fragmentation: at the reserved peak {unused} of {reserved} reserved were not allocated ({share})",
        "碎片: 已保留峰值时，保留的 {reserved} 中有 {unused} 未分配（{share}）",
    ),
    "stuck": ("free pieces of segments in use", "使用中的段里的空闲部分"),
    "releasable": (
        "whole free segments, which empty_cache() would return",
        "整段空闲，empty_cache() 会归还",
    ),
    "waiting": ("freed, but another stream may still use it", "已释放，但其他流可能仍在使用"),
    "rounding": ("inside allocated blocks, beyond what was requested", "已分配的块中超出请求的部分"),
    "largest_free": ("the largest free block", "最大的空闲块"),
    "oom": (
        "out of memory at event {number}: {requested} requested, {free} free on the card, {reserved} reserved, of "
        "which {unused} not allocated",
        "事件 {number} 处显存耗尽: 请求 {requested}，显卡剩余 {free}，已保留 {reserved}，其中 {unused} 未分配",
    ),
    "holders": (
        "what holds memory at the peak (top {shown} of {count}; categories are guessed from the stack)",
        "峰值时谁占用显存（{count} 处中的前 {shown} 处；类别由调用栈推测）",
    ),
    "more_places": ("in {count} more places", "其余 {count} 处"),
    "one_block": ("1 block", "1 个块"),
    "blocks": ("{count} blocks", "{count} 个块"),
    "by_category": ("by category (guessed): ", "按类别（推测）: "),
    "replay": (
        "replay: {same} of {count} allocations at the same address ({share}), {segments} of {all} segments taken as "
        "recorded",
        "回放: {count} 次分配中 {same} 次地址相同（{share}），{all} 个段中 {segments} 个与记录一致",
    ),
    "replay_peaks": (
        "  peak allocated {allocated} B, peak reserved {reserved} B, end state {state}",
        "  已分配峰值 {allocated} B，已保留峰值 {reserved} B，最终状态{state}",
    ),
    "identical": ("identical", "相同"),
    "different": ("different", "不同"),
    "alternatives": (
        "the same requests from an empty allocator (what was allocated at the start is requested first)",
        "从空分配器开始的相同请求（开始时已分配的内容最先请求）",
    ),
    "note": ("note", "说明"),
}  # fmt: skip

TRACED = {
    "peak_title": ("at the peak, {moment}, {place}:", "峰值时，{moment}，{place}:"),
    "in_total": ("in total, as nvidia-smi would show", "合计（nvidia-smi 所见）"),
    "more": ("{count} more", "另有 {count} 项"),
    "by_lines": ("allocated by these lines:", "由这些源代码行分配:"),
    "files": ("files", "文件"),
    "kept": ("files kept in {folder}", "文件保存在 {folder}"),
    "network": ("network", "网络"),
    "beside": ("line by line, {moment}, {place}", "逐项对照，{moment}，{place}"),
    "formulas_peak": ("; the formulas peak {moment}", "；公式的峰值在: {moment}"),
    "traced": ("traced", "追踪"),
    "formula": ("formula", "公式"),
    "difference": ("difference", "差值"),
    "unmatched": ("unmatched", "无对应"),
    "and_more": (" and {count} more", " 等，另有 {count} 项"),
    "nothing": ("nothing", "无"),
    "host": ("CPU memory: {size} in tensors", "主机内存: 张量占 {size}"),
    "allocated": ("{size} allocated", "已分配 {size}"),
    "letters": (
        "l load, f forward, b backward, s step, e eval",
        "l 加载，f 前向，b 反向，s 优化器更新，e 评估",
    ),
}
