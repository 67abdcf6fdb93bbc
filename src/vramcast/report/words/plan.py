"""Chinese words of the plans; a word without a translation stays English."""

from __future__ import annotations

ZH = {
    "plans that fit, cheapest first": "可行的方案（代价从低到高）",
    "nothing that was tried fits; the smallest is": "没有找到可行的方案；最小的是",
    "it fits as it is": "无需改动即可装下",
    "fits only if what is assumed stays below its upper end": "仅当假定值低于上限时可行",
    "times assume": "耗时的假定",
    "count": "数量",
    "together": "合计",
    "capacity": "容量",
    "price": "价格",
    "cheapest": "最便宜",
    "by the prices given": "按给定价格",
    "by memory, then number of cards; no prices given": "按显存，再按卡数；未给定价格",
    "single changes": "单项改动",
    "advice, priced line by line": "逐条计价的建议",
    "advice": "建议",
    "yes": "是",
    "no": "否",
    "barely": "勉强",
    "memory against time": "显存与时间的取舍（未计入缓存碎片）",
    "how": "做法",
    "process": "进程显存",
    "allocated": "已分配",
    "reserved": "已保留",
    "left": "剩余",
    "kind": "代价类别",
    "time per token": "每词元耗时",
    "changes": "改动",
    "frees": "可释放",
    "why": "原因",
    "free": "无代价",
    "slower": "变慢",
    "changes the training": "改变训练",
    "combinations were priced": "种组合已计价",
    "as given": "原作业",
    "fewest changes": "改动最少",
    "still short": "仍差",
    "fits up to": "最多可用",
    "micro-batch": "微批大小",
    "sequence length": "序列长度",
    "the cheapest single changes": "代价最低的单项改动",
    "more, and combinations that fit": "更多改动与可行组合",
    "fits": "可行",
    "frees nothing here": "此处无效",
    "traced on the virtual GPU": "虚拟 GPU 实测",
    "GPUs": "显卡",
    "fused optimizer": "融合优化器",
    "optimizer step inside backward": "在反向传播中更新参数",
    "outputs not held": "不保留模型输出",
    "chunked cross entropy": "分块交叉熵",
    "fused linear cross entropy": "线性层与交叉熵融合",
    "SDPA attention": "SDPA 注意力",
    "zero_grad before forward": "前向之前清零梯度",
    "reference log-probabilities precomputed": "预先计算参考模型的对数概率",
    "gradients of inner parameters only": "只对被编辑参数求梯度",
    "edited forwards one at a time": "逐个执行编辑后的前向",
    "expandable segments": "可扩展段（expandable_segments）",
    "reference model on the second GPU": "参考模型放到第二张卡",
    "reference model on the CPU": "参考模型放到 CPU",
    "edited layers on the second GPU": "被编辑层放到第二张卡",
    "selective checkpointing": "选择性重计算",
    "checkpointing": "梯度检查点",
    "checkpointing with offload": "梯度检查点并卸载到主机",
    "optimizer states paged to the host": "优化器状态分页到主机",
    "8-bit AdamW": "8 位 AdamW",
    "paged 8-bit AdamW": "分页 8 位 AdamW",
    "everything in bf16": "全部使用 bf16",
    "embeddings frozen": "冻结词嵌入",
    "embeddings and encoder frozen": "冻结词嵌入与编码器",
    "embeddings and lower half of the layers frozen": "冻结词嵌入与下半层",
    "sequence ÷ 2": "序列长度 ÷ 2",
    "sequence ÷ 4": "序列长度 ÷ 4",
    "ZeRO-1": "ZeRO-1（切分优化器状态）",
    "ZeRO-2": "ZeRO-2（再切分梯度）",
    "ZeRO-3": "ZeRO-3（再切分权重）",
    "FSDP2": "FSDP2（全部切分）",
    "optimizer states on the host": "优化器状态放到主机",
    "weights and optimizer states on the host": "权重与优化器状态放到主机",
    "tensor parallel 2": "张量并行 2",
    "tensor parallel 4": "张量并行 4",
    "tensor parallel 8": "张量并行 8",
    "the foreach step makes a list as large as all parameters; the fused kernel works in place": (
        "foreach 更新会临时生成与全部参数等大的列表；融合内核就地更新"
    ),
    "each gradient is used and dropped as soon as it exists; the global norm cannot be clipped": (
        "梯度一产生就被使用并释放；无法按全局范数裁剪"
    ),
    "logits and past_key_values live through backward and step while a variable holds them": (
        "只要有变量引用，logits 和 past_key_values 会一直存活到更新结束"
    ),
    "gradients of the logits exist one chunk at a time": "logits 的梯度逐块产生",
    "the logits never exist as a whole": "完整的 logits 从不出现",
    "fused kernels keep no scores": "融合内核不保存注意力分数",
    "the last step's gradients are not alive in the next forward": "上一步的梯度不再占用下一次前向的显存",
    "the reference does not change, so one pass over the data before training is enough": (
        "参考模型不变，训练前对数据算一遍即可"
    ),
    "requires_grad only where the editor reads a gradient": "只在编辑器需要梯度的地方设置 requires_grad",
    "the edited weights are leaves: each loss runs backward alone, their gradients are summed there": (
        "把编辑后的权重作为叶子：各损失单独反向，梯度在叶子处累加"
    ),
    "cached blocks can grow instead of lying unused": "缓存块可以增长，而不是闲置",
    "its weights leave this GPU; batches and results cross over": "其权重离开本卡；批次与结果需跨卡传输",
    "its weights leave the GPU; its forward takes seconds instead of milliseconds": (
        "其权重离开显卡；前向从毫秒变为秒级"
    ),
    "layers from the first edited one on, with what they keep, leave this GPU": (
        "从第一个被编辑层起，层与其激活离开本卡"
    ),
    "results of matrix products are kept, the rest is recomputed": "保留矩阵乘的结果，其余重算",
    "only the inputs of blocks are kept, each block runs forward twice": "只保留各块输入，每块前向计算两次",
    "the inputs of blocks wait in host memory": "各块输入暂存在主机内存",
    "the same global batch in more, smaller pieces": "同样的全局批大小，分成更多更小的部分",
    "states live in unified memory and cross PCIe in every step": "状态放在统一内存，每步经过 PCIe",
    "states in 8 bit with block-wise scales": "状态用 8 位存储，按块缩放",
    "8-bit states in unified memory, which the driver moves to the host when the card is full": (
        "8 位状态放在统一内存，显存满时由驱动移到主机"
    ),
    "factored second moments, no first moment": "二阶矩分解存储，无一阶矩",
    "weights, gradients and states in 2 bytes; small updates can get lost": (
        "权重、梯度、状态均为 2 字节；过小的更新可能丢失"
    ),
    "only adapters have gradients and states; frozen weights in 16 bit": "只有适配器有梯度和状态；冻结权重为 16 位",
    "only adapters have gradients and states": "只有适配器有梯度和状态",
    "frozen weights in 4 bit, adapters on top": "冻结权重为 4 位，上面加适配器",
    "activations and logits shrink with the length; longer samples are cut": (
        "激活和 logits 随长度缩小；过长样本被截断"
    ),
    "their gradients and states go": "其梯度和状态不再需要",
    "no gradients, states or kept activations below the first trained layer": (
        "第一个可训练层以下没有梯度、状态和保留的激活"
    ),
    "optimizer states are divided": "切分优化器状态",
    "gradients too": "再切分梯度",
    "weights too": "再切分权重",
    "weights, gradients and states are divided; blocks are gathered as they run": (
        "切分权重、梯度和状态；各块运行时再聚合"
    ),
    "the CPU updates; gradients and weights cross PCIe in every step": "由 CPU 更新；梯度和权重每步经过 PCIe",
    "what is not at work waits in host memory": "未参与计算的部分放在主机内存",
    "each matrix is divided; activations are reduced in every layer": "每个矩阵被切分；每层归约激活",
}


def plan_word(text: str, lang: str) -> str:
    if lang != "zh":
        return text
    if text.startswith("micro-batch ÷"):
        return text.replace("micro-batch", "微批").replace(", accumulation", "，累积")
    return ZH.get(text, text)
