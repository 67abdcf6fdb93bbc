"""Words of timelines."""

from __future__ import annotations

TIMELINE = {
    "title": ("memory over time", "显存随时间的变化"),
    "stacked_by": ("stacked by", "堆叠方式"),
    "by_category": ("what it is", "按用途"),
    "by_module": ("module", "按模块"),
    "by_source": ("source line", "按源代码行"),
    "by_tensor": ("tensor or op", "按张量或算子"),
    "zoom": ("zoom", "缩放"),
    "zoom_in": ("zoom in", "放大"),
    "zoom_out": ("zoom out", "缩小"),
    "whole": ("all", "全部"),
    "peak": ("peak", "峰值"),
    "to_peak": ("zoom to the peak", "放大到峰值处"),
    "others": ("all others", "其余全部"),
    "event": ("event", "事件"),
    "room": ("card without its CUDA context:", "显卡容量（不含 CUDA 上下文）:"),
    "alive_at_peak": ("Alive at the peak:", "峰值时存活:"),
    "alive_there": ("Alive there:", "此刻存活:"),
    "show_all": ("show all", "全部显示"),
    "how": (
        "Across: allocations and frees in their order, each column its fullest moment. Dashed: what torch reserves. "
        "Drag to zoom, click for who is alive; keys: arrows, + − 0, p for the peak.",
        "横轴: 按顺序的分配与释放，每一列为其中最满的时刻。虚线: torch 保留的显存。"
        "拖动以缩放，点击查看谁存活；按键: 方向键、+ − 0、p 为峰值。",
    ),
    "thinned": (
        "Shortened from {recorded} to {left} events: what lives too briefly to be seen is left out; every fullest "
        "moment is kept.",
        "已由 {recorded} 个事件精简为 {left} 个: 存活过短而看不见的被省略，所有最满的时刻保持不变。",
    ),
    "of_formula": ("from the formulas: loading and two steps", "来自公式: 加载与两个训练步"),
    "of_traced": ("traced: the script on a virtual GPU", "来自追踪: 脚本在虚拟 GPU 上运行"),
    "of_measured": ("recorded by torch", "由 torch 记录"),
    "before_recording": ("before the recording", "记录开始之前"),
    "recorded": ("recorded", "已记录"),
    "guessed": ("What it is for was guessed from call stacks.", "用途由调用栈推测。"),
    "fullest": ("fullest card: {place}", "最满的卡: {place}"),
    "too_small": (
        "the card is too small: this is the run on a card without limit",
        "显卡容量不足: 此处为不限容量时的运行",
    ),
}
