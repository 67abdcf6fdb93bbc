"""Words of a node's CPU memory."""

from __future__ import annotations

HOST = {
    "peak": ("CPU memory peak {size}", "主机内存峰值 {size}"),
    "range": ("(range {low} to {high})", "（范围 {low} 至 {high}）"),
    "training": ("while training", "训练时"),
    "ram": ("RAM", "内存"),
    "container": ("container limit", "容器上限"),
    "free": ("free now", "当前可用"),
    "shm": ("/dev/shm", "/dev/shm"),
    "small_shm": (
        "/dev/shm is too small: prefetched batches need {size}. Start the container with a larger --shm-size, or lower "
        "--workers or --prefetch.",
        "/dev/shm 太小: 预取的批次需要 {size}。请用更大的 --shm-size 启动容器，或降低 --workers、--prefetch。",
    ),
    "needed": ("needed", "必需"),
    "per_rank": ("per rank", "每个进程"),
    "shown": ("shown by PSS", "PSS 显示"),
    "file_pages": (
        "includes file pages that the kernel may drop",
        "含内核可以丢弃的文件页",
    ),
    "on_node": ("{moment}, {count} ranks on this node:", "{moment}，此节点上 {count} 个进程:"),
    "on_node_one": ("{moment}, 1 rank on this node:", "{moment}，此节点上 1 个进程:"),
    "by_phase": ("needed by phase", "各阶段必需"),
    "at_load": ("load", "加载"),
    "at_training": ("training", "训练"),
    "at_save": ("save", "保存"),
    "left": ("free", "剩余"),
    "batch": (
        "In training, {varies} of {needed} ({share}) depends on the batch size (batches in use, prefetched and "
        "pinned); the other {rest} (libraries, model, dataset, workers) does not.",
        "训练时，{needed} 中的 {varies}（{share}）取决于批大小（使用中、预取与锁页的批次）；"
        "其余 {rest}（库、模型、数据集、工作进程）与之无关。",
    ),
    "other_batch": (
        "The other batch size changes CPU memory by {change}.",
        "换成另一批大小，主机内存变化 {change}。",
    ),
    "encoded": ("{size} encoded", "编码后 {size}"),
    "decoded": ("{size} decoded", "解码后 {size}"),
    "partitions": ("from folders: {names}, {size} decoded", "来自文件夹: {names}，解码后 {size}"),
    "dataset": (
        "dataset: {rows} rows in {groups} row groups of {files} files; {encoded} encoded, {decoded} "
        "decoded{estimated}; largest row group {largest} rows, {size}",
        "数据集: {files} 个文件、{groups} 个行组，共 {rows} 行；编码后 {encoded}，解码后 {decoded}{estimated}；"
        "最大行组 {largest} 行，{size}",
    ),
    "dataset_one": (
        "dataset: {rows} rows in {groups} row groups of 1 file; {encoded} encoded, {decoded} decoded{estimated}; "
        "largest row group {largest} rows, {size}",
        "数据集: 1 个文件、{groups} 个行组，共 {rows} 行；编码后 {encoded}，解码后 {decoded}{estimated}；"
        "最大行组 {largest} 行，{size}",
    ),
    "estimated": (" (estimated)", "（估计）"),
}

PLACES_SHORT = {
    "pinned": ("pinned", "锁页"),
    "shm": ("shm", "共享内存"),
}
