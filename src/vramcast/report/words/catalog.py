"""Chinese words of the parameter table and of the lists of models and GPUs, keyed by the English ones.

A label without a translation is a hole in this table, not a reason to mix languages silently: it raises.
"""

from __future__ import annotations

from vramcast.errors import InvariantError

CHINESE = {
    "parameters": "参数",
    "trainable": "可训练",
    "part": "部分",
    "shape": "形状",
    "each": "每层",
    "all": "全部",
    "share": "占比",
    "total": "总计",
    "embedding": "嵌入层",
    "head": "输出头",
    "layers": "层",
    "layer": "层",
    "tied": "共享",
    "is the same tensor as": "与下列张量共享，只计一次：",
    "in fp32": "(fp32)",
    "in 16 bit": "(16 位)",
    "as stored": "(按存储格式)",
    "note": "说明",
    "warning": "警告",
    "tensor": "张量",
    "kind": "类型",
    "model": "模型",
    "models": "个模型",
    "Hugging Face id": "Hugging Face 标识",
    "class": "类",
    "also known as": "别名",
    "GPUs": "款 GPU",
    "memory CUDA reports": "CUDA 报告的显存",
    "on the box": "标称",
    "bandwidth": "带宽",
    "bf16 dense": "bf16 稠密算力",
    "architecture": "架构",
    "totals seen (MiB)": "见过的总量 (MiB)",
    "context": "CUDA 上下文",
    "unknown": "未知",
}


def label(text: str, lang: str) -> str:
    """A fixed English label in the reader's language."""
    if lang == "en":
        return text
    if text not in CHINESE:
        raise InvariantError(f"no Chinese word for {text!r} in report/words.py")
    return CHINESE[text]
