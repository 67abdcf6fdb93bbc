"""Words about configuration files that were read."""

from __future__ import annotations

WORDS = {
    "plan": ("plan {number} as a change of the files:", "方案 {number} 对应的文件修改:"),
    "no_words": ("  (the files have no words for it)", "  （文件中没有对应的写法）"),
    "alone": (
        "the changed files without these flags: {verdict}",
        "仅修改文件而不加这些参数: {verdict}",
    ),
    "left": ("not said by the files: {flags}", "文件中无法表达的部分: {flags}"),
    "read_as": ("read as", "识别为"),
    "profile": ("not said: what the framework does", "未指定: 框架的默认行为"),
    "not_counted": ("matters and is not counted:", "影响显存但未计入:"),
    "assumed": ("assumed:", "假设:"),
    "unknown": ("not known, so perhaps of no effect:", "未知设置，可能没有影响:"),
}
