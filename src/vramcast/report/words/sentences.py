# ruff: noqa: E501 (a sentence and its translation read better whole)
"""Sentences that the engine says (assumptions, warnings, notes, names of lines, errors), by their English form.

The engine below the reports writes English. A sentence with values is recognised by its template; values in braces are
themselves looked up, so a reason inside a sentence is translated too. What is not known here stays as it is: names,
code and citations.
"""

from __future__ import annotations

import re
from functools import cache

from vramcast.report.words import config_sentences
from vramcast.report.words.bill_sentences import BILL_SENTENCES
from vramcast.report.words.config_sentences import GAPS
from vramcast.report.words.error_sentences import ERROR_SENTENCES
from vramcast.report.words.option_sentences import OPTION_SENTENCES
from vramcast.report.words.script_sentences import SCRIPT_SENTENCES

SENTENCES = {
    **SCRIPT_SENTENCES,
    **OPTION_SENTENCES,
    **BILL_SENTENCES,
    # assumptions
    "model {a}": "模型 {a}",
    "precision was not given: {a}": "未给定精度：{a}",
    "precision {a}: {b}": "精度 {a}：{b}",
    "everything in bf16, no master copy": "全部为 bf16，没有主副本",
    "transformers modeling_utils.py from_pretrained: the checkpoint's dtype since 5.0, fp32 before; Trainer(bf16=True) runs it under autocast": "transformers modeling_utils.py from_pretrained：5.0 起采用检查点的 dtype，之前为 fp32；Trainer(bf16=True) 在 autocast 下运行",
    "plain fp32": "全部为 fp32",
    "torch.autocast({a}): fp32 weights and gradients, {b} matmuls": "torch.autocast({a})：权重与梯度为 fp32，矩阵乘法为 {b}",
    "Hugging Face Trainer's bf16=True over a model loaded in bf16: autocast, all stored in bf16": "模型以 bf16 加载，Hugging Face Trainer 使用 bf16=True：autocast，存储全部为 bf16",
    "Apex O2 / DeepSpeed: {a} weights and gradients, fp32 master weights and states": "Apex O2 / DeepSpeed：权重与梯度为 {a}，主权重与优化器状态为 fp32",
    "Megatron-LM bf16: fp32 main gradients, fp32 master weights and states": "Megatron-LM bf16：主梯度、主权重与优化器状态为 fp32",
    "gradient checkpointing {a}, as {b} does": "梯度检查点 {a}（{b} 的默认）",
    "LoRA of rank {a} on {b} over {c} weights, as {d} does": "秩为 {a} 的 LoRA，作用于 {b}，基座权重为 {c}（{d} 的默认）",
    "adapter {a}, as PEFT makes it: {b}": "适配器 {a}，与 PEFT 的做法一致：{b}",
    "rank {a}; targets {b}": "秩 {a}；目标 {b}",
    "blocks of {a}; targets {b}": "块大小 {a}；目标 {b}",
    "virtual tokens {a}": "虚拟词元 {a} 个",
    "targets {a}": "目标 {a}",
    "adapters on {a}: no formula describes it, so two training steps ran on the virtual GPU": "{a} 上的这种适配器没有公式描述，因此在虚拟 GPU 上运行了两个训练步",
    "LoRA of rank {a} on {b}, as {c} does": "秩为 {a} 的 LoRA，作用于 {b}（{c} 的默认）",
    "LoRA on {a} over {b} weights, as {c} does": "LoRA 作用于 {a}，基座权重为 {b}（{c} 的默认）",
    "LoRA on {a}, as {b} does": "LoRA 作用于 {a}（{b} 的默认）",
    "LoRA of rank {a} on {b}: PEFT lists no targets for this model and asks for them": "秩为 {a} 的 LoRA，作用于 {b}: PEFT 没有为该模型列出目标模块，需要自行指定",
    "LoRA on {a}: PEFT lists no targets for this model and asks for them": "LoRA 作用于 {a}: PEFT 没有为该模型列出目标模块，需要自行指定",
    "tensor-parallel over {a} GPUs (not given)": "张量并行于 {a} 张显卡（未给定）",
    "seq {a} (not given)": "序列长度 {a}（未给定）",
    "attention {a} → {b} kernel": "注意力 {a} → {b} 内核",
    "{a} runs as {b} (framework {c}, torch {d})": "{a} 以 {b} 方式执行（框架 {c}，torch {d}）",
    "torch {a}, transformers {b}": "torch {a}，transformers {b}",
    "strategy {a} (not given), as {b} does": "并行策略 {a}（未给定，{b} 的默认）",
    "strategy {a} (not given): the first of {b} that fits": "并行策略 {a}（未给定）：{b} 中第一个装得下的",
    "strategy {a} (not given): none of {b} fits": "并行策略 {a}（未给定）：{b} 都装不下",
    "task {a} (not given): {b}": "任务 {a}（未给定）：{b}",
    "schedule {a}, {b} micro-batches per step": "流水线调度 {a}，每步 {b} 个微批",
    "tensor parallelism as Megatron divides: columns of qkv and gate/up, rows of the outputs, vocabulary": "张量并行按 Megatron 的方式切分：qkv 与 gate/up 按列，输出按行，词表",
    "products add weight gradients to main gradients themselves (grad-fusion)": "矩阵乘法直接把权重梯度加到主梯度上（grad-fusion）",
    "rows reach experts by {a} (expert-dispatch), which run as one grouped product (expert-gemm)": "词元经 {a} 到达专家（expert-dispatch），专家以一次分组矩阵乘法执行（expert-gemm）",
    "adapters on each expert's linear layers, as PEFT makes them before transformers 5": "每个专家的线性层上都有适配器（transformers 5 之前 PEFT 如此）",
    "adapters on experts that are spread over GPUs are not counted": "分布在多张显卡上的专家的适配器未计入",
    "adapters on experts as PEFT {a} puts them: added to one tensor as large as the experts": "专家上的适配器按 PEFT {a} 的方式：加到一个与专家同样大小的张量上",
    "the reference is a deepcopy made on the host before the model moves to the GPU": "参考模型是移到 GPU 之前在主机上 deepcopy 的副本",
    "the reference runs after the policy's forward, while its graph is alive": "参考模型在策略模型前向之后运行，此时其计算图仍在",
    "policy and critic share one loss: both graphs are alive together (TRL's PPO)": "策略与评论模型共用一个损失：两个计算图同时存在（TRL 的 PPO）",
    "lengths of mean {a} as evenly spread up to {b} as that mean allows, {c} batches (samples not given) in a typical random order: every batch longer than all before it adds reserved bytes": "长度平均 {a}、最长 {b}，在此均值下尽量均匀分布，共 {c} 个批次（未给定样本数），按典型随机顺序：每遇到更长的批次，保留显存就会增加",
    "{a} on the training cards fills {b} of each and {c}": "训练卡上的 {a} 占每张卡的 {b}，并且{c}",
    "gives its memory back while others train": "训练时归还显存",
    "keeps its memory all the time": "始终占用显存",
    "the critic is updated by itself, after or before the policy": "评论模型单独更新，在策略模型之前或之后",
    "rollout-offload {a}: back on the card for the update": "rollout-offload {a}：更新时移回显卡",
    "the rollout engine's cache holds {a} tokens: {b} samples of {c} tokens at once": "采样引擎的缓存可容纳 {a} 个词元：可同时处理 {b} 个长度为 {c} 的样本",
    "the rollout engine would not start: {a}": "采样引擎将无法启动：{a}",
    "the rollout engine is not counted: {a}": "未计入采样引擎：{a}",
    "it fills a share of its card, give --gpu": "它按比例占用显卡，请给出 --gpu",
    "the critic is not counted: {a}": "未计入评论模型：{a}",
    "layers of different kinds share one pool: {a} padding layers are added": "不同种类的层共用一个缓存池：补 {a} 层",
    "of {a} layers {b} fit on the card at {c} tokens: --gpu-layers {d}": "{a} 层中有 {b} 层可放入显卡（{c} 个词元）：--gpu-layers {d}",
    "{a}, {b} where weights are not quantised, cache in {c}": "{a}，未量化的权重为 {b}，缓存为 {c}",
    "flash attention on": "开启 flash attention",
    "flash attention off": "关闭 flash attention",
    "{a} {b} (not given)": "{a} {b}（未给定）",
    "model {a}: no formula describes it, so its generate() ran on the virtual GPU: the pass over the prompt, and the last tokens": "模型 {a}：没有公式描述它，因此在虚拟 GPU 上运行了它的 generate()：处理提示词的一遍，以及最后几个词元",
    "layers without kernels of their own run as transformers runs them in plain torch": "没有专用内核的层按 transformers 的纯 torch 实现运行",
    "no formula describes {a}, and its generate() is traced in one dtype: leave out quantize": "没有公式描述 {a}，其 generate() 只按一种数据类型追踪: 请去掉 quantize",
    "no formula describes {a}, and one pass of it is not run by itself: say --task generate --new-tokens 1, whose prefill is such a pass, or trace your own script": "没有公式描述 {a}，其单次前向不单独运行: 请使用 --task generate --new-tokens 1（其预填充即为这样一次前向），或追踪自己的脚本",
    "no formula describes {a}: the virtual GPU runs its generate() first": "没有公式描述 {a}：虚拟 GPU 先运行它的 generate()",
    "model {a}: no formula describes it, so two training steps ran on the virtual GPU": "模型 {a}：没有公式描述它，因此在虚拟 GPU 上运行了两个训练步",
    "inputs {a}": "输入 {a}",
    "loss the mean of the outputs: {a} has none for labels of a plain shape": "损失取输出的平均值：{a} 没有适用于简单形状标签的损失",
    "decided by {a}": "由 {a} 决定",
    "trace kept in {a}: the next answer takes no time": "追踪结果保存在 {a}：下次立即得到答案",
    # warnings and notes
    "no formula describes {a}: the virtual GPU runs its step first": "没有公式描述 {a}：先由虚拟 GPU 运行它的训练步",
    "no formula describes {a}: only how many parameters it has is known here, so its weights are not divided as the engine divides them. With torch and transformers they are: pip install 'vramcast[trace]'": "没有公式描述 {a}：此处只知道其参数总数，因此权重未按引擎的方式划分。安装 torch 与 transformers 后即可划分：pip install 'vramcast[trace]'",
    "no formula describes {a}: with torch and transformers the virtual GPU runs its step and gives the whole bill: pip install 'vramcast[trace]' ({b} is missing)": "没有公式描述 {a}：安装 torch 与 transformers 后，虚拟 GPU 会运行它的训练步并给出完整账单：pip install 'vramcast[trace]'（缺少 {b}）",
    "no formula describes {a}: the table follows from {b} traced sizes": "没有公式描述 {a}：此表由 {b} 个追踪尺寸推得",
    "the loop of {a} was traced as the Hugging Face Trainer's, with {b}'s settings": "{a} 的训练循环按 Hugging Face Trainer 的循环追踪，采用 {b} 的设置",
    "evaluate was not traced: evaluation keeps no graph": "未追踪 evaluate：评估不保留计算图",
    "seq {a} is less than the pictures and sounds take: the step ran with {b}": "seq {a} 小于图像与声音所占的长度：训练步以 {b} 运行",
    "seq {a} is beyond the {b} positions of this model: the step ran with {c}": "seq {a} 超出此模型的 {b} 个位置：训练步以 {c} 运行",
    "{a}: this model takes them in a form that a job does not describe, so the step ran on text alone": "{a}：此模型所需的形式无法由任务描述，因此训练步仅以文本运行",
    "{a} {b} was asked for, but {c} {d} is installed and ran the step": "要求的是 {a} {b}，但安装并运行训练步的是 {c} {d}",
    "only the parameters are known: activations, logits, temporaries and overheads are not included": "只知道参数量：不含激活值、logits、临时缓冲与其他开销",
    "only parameters are known: activations and gathered layers are not included": "只知道参数量：不含激活值与聚合的层",
    "{a} has no effect: it needs {b}": "{a} 不起作用：需要同时给出 {b}",
    "{a} has no effect with {b}": "{a} 在 {b} 下不起作用",
    "tuning full has no effect: adapters are asked for, and they are what is trained": "tuning full 不起作用：已要求使用适配器，训练的只有适配器",
    "{a} has no effect: this model is no classifier here, unless you say task classify": "{a} 不起作用：此模型在这里不是分类器，除非给出 task classify",
    "{a} {b} is older than {c}, the oldest known here: taken as if it were {d}": "{a} {b} 比已知的最旧版本 {c} 更旧：按 {d} 处理",
    "{a} has no effect: this model reads no images": "{a} 不起作用：此模型不读图像",
    "{a} has no effect: this model has no encoder and decoder, seq is its only length": "{a} 不起作用：此模型不是编码器-解码器结构，只有 seq 一个长度",
    "{a} has no effect: this model has no experts": "{a} 不起作用：此模型没有专家",
    "{a} has no effect: it needs the model's layers, and only its parameters are known": "{a} 不起作用：需要模型的各层，而这里只知道参数量",
    "checkpointing every-{a} checkpoints no block: the model has {b}": "checkpointing every-{a} 不会对任何层做检查点：模型只有 {b} 层",
    "{a} {b} is newer than {c}, the newest known here: taken as if it were {d}": "{a} {b} 比已知的最新版本 {c} 更新：按 {d} 处理",
    "lora-rank {a} is above the full rank of every matrix ({b}): adapters are larger than what they adapt": "lora-rank {a} 超过每个矩阵的满秩（{b}）：适配器比被适配的矩阵还大",
    "seq {a} is beyond the {b} positions that the model was made for: it runs, with positions it has not seen": "seq {a} 超出模型设计的 {b} 个位置：可以运行，但位置未见过",
    "attention flash needs an Ampere card or newer: on {a} the call would fail": "attention flash 需要 Ampere 或更新的显卡：在 {a} 上调用会失败",
    "seq {a} left out: longer than the learned positions of this model": "略去 seq {a}：超出此模型学习过的位置数",
    "padded to {a} tokens, of which {b} are padding on average; batches of {c} tokens would peak at {d} allocated ({e})": "填充到 {a} 个词元，平均 {b} 是填充；{c} 个词元的批次峰值为已分配 {d}（{e}）",
    "{a} was taken for {b} by its name; give its config.json if it differs.": "按名称把 {a} 当作 {b}；若不同，请给出它的 config.json。",
    "transformers 5 ties the head when it builds this model ({a} parameters); the published checkpoint is untied and stays so when loaded ({b}).": "transformers 5 构建此模型时共享输出头（{a} 个参数）；已发布的检查点不共享，加载后也不共享（{b}）。",
    # names of lines
    "output head": "输出头",
    "attention": "注意力",
    "experts": "专家",
    "vision and audio": "视觉与音频",
    "norms, biases and routers": "归一化、偏置与路由",
    "copies of kv_b_proj for latent attention": "潜在注意力的 kv_b_proj 副本",
    "table of rotary positions": "旋转位置编码表",
    "peak of the profiling run": "试运行的峰值",
    "one request of max-model-len": "一个长度为 max-model-len 的请求",
    "CUDA graphs": "CUDA 图",
    "keys and values": "键与值",
    "{a} batch sizes": "{a} 种批大小",
    "outside of torch's allocator": "torch 分配器之外",
    "kernels and buffers that come with the weights": "随权重加载的内核与缓冲",
    "states of running requests": "运行中请求的状态",
    "positions of running requests": "运行中请求的位置表",
    "a chunk of prefill": "一段预填充",
    "NCCL and custom all-reduce": "NCCL 与自定义 all-reduce",
    "a pass over the longest prefill": "最长预填充的一次前向",
    "model buffer": "模型缓冲",
    "compute buffer": "计算缓冲",
    "in CPU memory": "在主机内存中",
    "critic: {a}": "评论模型：{a}",
    "vllm: {a}": "vllm：{a}",
    "sglang: {a}": "sglang：{a}",
    "rollout: {a}": "采样：{a}",
    "scoring: one layer's tensors": "打分：一层的张量",
    "scoring: logits of answers": "打分：回答的 logits",
    "gathered weights on their way to the engine": "同步给引擎途中聚合的权重",
    "gathered weights for generate()": "为 generate() 聚合的权重",
    "{a} asleep: context, graphs, workspaces": "{a} 休眠时：上下文、图、工作区",
    "weights and states that wait while samples are generated": "采样期间暂存的权重与状态",
    "{a} (kept for backward)": "{a}（为反向传播保留）",
    "{a} exp_avg, exp_avg_sq": "{a} exp_avg, exp_avg_sq",
    "of trained parameters, {a}": "可训练参数，{a}",
    "of trained parameters": "可训练参数",
    "trained, {a}": "可训练，{a}",
    "frozen, {a}": "冻结，{a}",
    "adapter, {a}": "适配器，{a}",
    "rounding inside blocks": "块内对齐",
    "reserved but unallocated": "已保留但未分配",
    "working memory of backward": "反向传播的工作内存",
    "cuBLAS workspaces": "cuBLAS 工作区",
    "with loaded kernels": "含已加载的内核",
    "with all kernels loaded at once": "一次加载全部内核",
    "16-bit copies of weights (autocast)": "权重的 16 位副本（autocast）",
    "gradient of {a}": "{a} 的梯度",
    "log-probabilities": "对数概率",
    "logits that `outputs` still holds": "变量 `outputs` 仍持有的 logits",
    "logits kept alive by the variable `outputs`": "变量 `outputs` 仍持有的 logits",
    "input ids (int64)": "输入 id (int64)",
    "attention mask (int64)": "注意力掩码 (int64)",
    "labels (int64)": "标签 (int64)",
    "loss": "损失",
    "embedding": "嵌入层",
    "head": "输出头",
    "DDP's gradient buckets": "DDP 的梯度桶",
    "NCCL's channel buffers": "NCCL 的通道缓冲",
    "gathered parameters": "聚合的参数",
    "all-gather output": "all-gather 输出",
    "reduce-scatter input": "reduce-scatter 输入",
    "reference model, {a}": "参考模型，{a}",
    "reward model, {a}": "奖励模型，{a}",
    "teacher, {a}": "教师模型，{a}",
    "fp32 master weights": "fp32 主权重",
    "{a} parameters, 4-bit with scales": "{a} 个参数，4 位加缩放因子",
    "{a} parameters × {b} B": "{a} 个参数 × {b} B",
    "{a} parameters": "{a} 个参数",
    "{a} MiB bare + {b} MiB kernels": "空上下文 {a} MiB + 内核 {b} MiB",
    "{a} handles × {b} MiB": "{a} 个句柄 × {b} MiB",
    "as large as all gradients": "与全部梯度同样大",
    "every rank": "每个进程",
    "{a} communicators × {b} MiB": "{a} 个通信器 × {b} MiB",
    "{a} communicator × {b} MiB": "{a} 个通信器 × {b} MiB",
    # errors
    "unknown {a} {b}. Did you mean {c}? Known: {d}. {e}": "未知的 {a}：{b}。是否指 {c}？可用: {d}。{e}",
    "unknown {a} {b}. Did you mean {c}? Known: {d}.": "未知的 {a}：{b}。是否指 {c}？可用: {d}。",
    "unknown {a} {b}. Known: {c}.": "未知的 {a}：{b}。可用: {c}。",
    "unknown {a} {b}. Did you mean {c}? {d}": "未知的 {a}：{b}。是否指 {c}？{d}",
    "unknown {a} {b}. {c}": "未知的 {a}：{b}。{c}",
    "See `vramcast models`, give a config.json or its folder, or ask the Hub: --hub.": "请查看 `vramcast models`，给出 config.json 或其文件夹，或向 Hub 查询: --hub。",
    "See `vramcast models`, or give a config.json or its folder.": "请查看 `vramcast models`，或给出 config.json 或其文件夹。",
    "See `vramcast gpus`, or give a size: --gpu 24GiB.": "请查看 `vramcast gpus`，或给出容量: --gpu 24GiB。",
    "`vramcast plan` lists those that apply.": "`vramcast plan` 会列出适用的改动。",
    "See vramcast estimate --help-all.": "请查看 vramcast estimate --help-all。",
    "model": "模型",
    "command": "命令",
    "change for --try": "--try 的改动",
    "job key for --keep": "--keep 的任务键",
    "job key for --try": "--try 的任务键",
    "job key": "任务键",
    "{a} must be {b}, not {c}": "{a} 必须是{b}，而不是 {c}",
    "a word": "一个词",
    "a whole number": "整数",
    "a number": "数字",
    "true or false": "true 或 false",
    "a list of names": "名称列表",
    "a version such as 2.13": "形如 2.13 的版本号",
    "a count such as 7e9 or 7B": "形如 7e9 或 7B 的数量",
    "at least {a}": "不小于 {a} 的数",
    "at most {a}": "不大于 {a} 的数",
    "{a} must be between 0 and 1, not {b}": "{a} 必须在 0 与 1 之间，而不是 {b}",
    "give a model name or --params with a number of parameters (not both)": "请给出模型名，或用 --params 给出参数量（二者选一）",
    "--gpu is empty: give a card such as rtx4090, or a size such as 24GiB.": "--gpu 为空: 请给出显卡（如 rtx4090）或容量（如 24GiB）。",
    "--gpu {a} has no unit. Write a size like {b}GiB, or a card's name.": "--gpu {a} 没有单位。请写成 {b}GiB，或写显卡名称。",
    "--gpu {a}: {b} bytes is too small for a GPU. Write it like 24GiB.": "--gpu {a}: {b} 字节对显卡来说太小。请写成 24GiB 的形式。",
    "{a} may be {b}. Write one of these.": "{a} 可能是 {b}。请写其中之一。",
    "lora-rank {a} is larger than any matrix of this model ({b}). Ranks are 4 to 256.": "lora-rank {a} 比此模型的任何矩阵都大（{b}）。常用的秩为 4 到 256。",
    "{a} belongs to adapter {b}: leave it out, or name one of them (adapter is {c})": "{a} 属于适配器 {b}：请去掉它，或改用其中之一（当前适配器为 {c}）",
    "adapter {a} is PEFT's, and {b} has adapters of its own: name another framework, or adapter lora": "适配器 {a} 属于 PEFT，而 {b} 有自己的适配器：请换一个框架，或使用 adapter lora",
    "adapter {a} needs virtual-tokens, which PEFT has no default for: say 20": "适配器 {a} 需要 virtual-tokens，PEFT 没有默认值：例如 20",
    "adapter prefix does not work with gradient checkpointing: PEFT refuses it. Give --checkpointing none": "适配器 prefix 不能与梯度检查点同用，PEFT 会拒绝：请给出 --checkpointing none",
    "adapter {a}: PEFT knows no targets for model type {b}: give --lora-targets": "适配器 {a}：PEFT 没有模型类型 {b} 的默认目标：请给出 --lora-targets",
    "adapter ia3: PEFT knows no feedforward modules for model type {a}, and refuses it": "适配器 ia3：PEFT 没有模型类型 {a} 的前馈模块列表，会拒绝",
    "adapter llama-pro needs expand-blocks: how many blocks are added, such as 8 to 32": "适配器 llama-pro 需要 expand-blocks：增加多少个块，例如 32 层增加 8 个",
    "expand-blocks {a} must divide the {b} layers of the model: blocks are added evenly": "expand-blocks {a} 必须整除模型的 {b} 层：块均匀地插入",
    "lora-targets {a} is no regular expression: {b}. Give names, separated by commas": "lora-targets {a} 不是正则表达式：{b}。请给出以逗号分隔的名称",
    "layers-to-transform goes with names: a regular expression in lora-targets says the layers itself": "layers-to-transform 只与名称同用：lora-targets 中的正则表达式自己指定层",
    "layers-to-transform must be numbers of layers from 0 on, not {a}": "layers-to-transform 必须是从 0 开始的层号，而不是 {a}",
    "modules-to-save {a} match no module. {b}": "modules-to-save {a} 没有匹配任何模块。{b}",
    "lora-targets: PEFT puts no {a} on {b}, which is a Conv1D: name nn.Linear modules": "lora-targets：{b} 是 Conv1D，PEFT 不在其上放置 {a}：请给出 nn.Linear 模块",
    "adapter-block {a} must divide {b}, the width of {c}'s input: PEFT refuses it": "adapter-block {a} 必须整除 {c} 的输入宽度 {b}，否则 PEFT 会拒绝",
    "adapter {a}: PEFT refuses it ({b})": "适配器 {a}：PEFT 拒绝（{b}）",
    "dora needs lora-rank": "dora 需要 lora-rank",
    "quantize {a} freezes the weights it stores: give lora-rank to train adapters": "quantize {a} 会冻结所存的权重: 请给出 lora-rank 以训练适配器",
    "lora-targets {a} match no module. {b}": "lora-targets {a} 没有匹配任何模块。{b}",
    "freeze {a} matches no parameter. {b}": "freeze {a} 没有匹配任何参数。{b}",
    "freeze {a} leaves nothing to train": "freeze {a} 之后没有可训练的参数",
    "Linear modules of this model: {a}.": "此模型的线性模块: {a}。",
    "a sequence of {a} is longer than the {b} learned positions of this model ({c}): the look-up would fail. Give at most {d}, or a config with more positions.": "序列长度 {a} 超过此模型学习过的 {b} 个位置（{c}）: 查表会失败。请给出不大于 {d} 的长度，或位置更多的配置。",
    "seq {a} is longer than the {b} learned positions of this model": "seq {a} 超过此模型学习过的 {b} 个位置",
    "mean-seq {a} is more than the longest length, seq {b}": "mean-seq {a} 大于最长长度 seq {b}",
    "{a} is given twice: {b} counts, {c} is ignored": "{a} 给出了两次：以 {b} 为准，忽略 {c}",
    "{a} is empty: give a value, or leave it out": "{a} 为空：请给出值，或去掉它",
    "one of the arguments is empty: give a name, or leave it out": "有一个参数为空：请给出名称，或去掉它",
    "{a} and {b} contradict each other: leave out one": "{a} 与 {b} 互相矛盾：请去掉其中一个",
    "--gpu {a} is no size. Write a size like 24GiB, or a card's name.": "--gpu {a} 不是容量。请写成 24GiB 这样的容量，或显卡名称。",
    "--gpu {a} is too large for one GPU. Write it like 24GiB.": "--gpu {a} 超过任何一块 GPU。请写成 24GiB 这样。",
    "--ram {a} is too small for a machine. Write it like 16GiB.": "--ram {a} 对一台机器来说太小。请写成 16GiB 这样。",
    "--strict refuses what is TIGHT on a card: give --gpu": "--strict 会拒绝显卡上“紧张”的结果：请给出 --gpu",
    "--explain prints text: leave out --json and --markdown": "--explain 输出文本：请去掉 --json 和 --markdown",
    "rollout-batch needs rollout-tokens": "rollout-batch 需要 rollout-tokens",
    "eval-batch and eval-kept need evaluate": "eval-batch 与 eval-kept 需要 evaluate",
    "checkpointing must be none, full, selective, every-N (such as every-2) or offload, not {a}": "checkpointing 必须是 none、full、selective、every-N（如 every-2）或 offload，而不是 {a}",
    "gpu {a} and gpus {b} differ: give one of them": "gpu {a} 与 gpus {b} 不一致: 请只给出一个",
    "{a} and {b} mean the same: leave out one": "{a} 与 {b} 含义相同: 请去掉一个",
    "loss {a} scores one word after the other, and this model's head gives one answer per sample: leave out --loss": "损失 {a} 逐词计分，而该模型的头对每个样本只给出一个结果: 请去掉 --loss",
    "{a} cannot be combined with edit": "{a} 不能与 edit 一起使用",
    "tp {a} × pp {b} × cp {c} = {d} does not divide the {e} GPUs. Take gpus {f}, or sizes whose product is one of {g}.": "tp {a} × pp {b} × cp {c} = {d} 不能整除 {e} 张显卡。请取 gpus {f}，或使乘积为 {g} 之一。",
    "sub-device is the second device of an editing job: it needs edit": "sub-device 是编辑任务的第二个设备: 需要 edit",
    "{a}: no such file": "{a}: 没有这个文件",
    "{a}: no such file or folder. A model is a catalog name, a config.json or its folder.": "{a}: 没有这个文件或文件夹。模型可以是内置模型名、config.json 或其文件夹。",
    "{a}: holds neither a config.json nor safetensors files": "{a}: 既没有 config.json，也没有 safetensors 文件",
    "{a}: cannot be read ({b})": "{a}: 无法读取（{b}）",
    "{a}: cannot be written ({b})": "{a}: 无法写入（{b}）",
    "{a}: a job file is a list of `key: value` lines": "{a}: 任务文件由若干 `键: 值` 行组成",
    "no line matches {a}. Lines of this report: {b}.": "没有与 {a} 匹配的行。此报告中的行: {b}。",
    "fit tries all cards; for one card use `vramcast estimate --gpu`": "fit 会尝试所有显卡；只看一张请用 `vramcast estimate --gpu`",
    "--most-gpus must be at least 1, not {a}": "--most-gpus 至少为 1，而不是 {a}",
    "--price is written like rtx4090=0.5, with a number above 0, not {a}": "--price 的写法形如 rtx4090=0.5，数字须大于 0，而不是 {a}",
    "a plan needs a card: give --gpu": "plan 需要显卡: 请给出 --gpu",
    "--max-slowdown must be above 0, not {a}": "--max-slowdown 必须大于 0，而不是 {a}",
    "--max-growth compares with an earlier answer: give it with --baseline": "--max-growth 是与先前的结果比较: 请同时给出 --baseline",
    "--margin is what stays free on a card: give --gpu": "--margin 是显卡上要留出的余量: 请给出 --gpu",
    "{a} must be numbers or ranges such as 1,2,4 or 1..64 or 128..4096:128, not {b}": "{a} 必须是数字或范围，如 1,2,4、1..64 或 128..4096:128，而不是 {b}",
    "divide needs the number of GPUs: --gpus N, with N of at least 2": "divide 需要显卡数量: --gpus N，N 至少为 2",
    "nothing fits, so {a} was not written": "没有装得下的方案，因此没有写入 {a}",
    "an empty job": "任务为空",
    "{a} is not a size. Write it like 24GiB, 80GB or 512MiB.": "{a} 不是容量。请写成 24GiB、80GB 或 512MiB 的形式。",
    "{a} is not a count. Write it like 7e9, 7B or 350M.": "{a} 不是数量。请写成 7e9、7B 或 350M 的形式。",
    "{a}: unrecognized arguments: {b} (did you mean {c}?). See {d} --help.": "{a}: 无法识别的参数: {b}（是否指 {c}？）。请查看 {d} --help。",
    "{a}: unrecognized arguments: {b} ({c} changes no memory: leave it out). See {d} --help.": "{a}: 无法识别的参数: {b}（{c} 不影响内存，请去掉）。请查看 {d} --help。",
    "{a}: unrecognized arguments: {b} ({c} here: {d}). See {e} --help.": "{a}: 无法识别的参数: {b}（{c} 在这里的写法: {d}）。请查看 {e} --help。",
    "unknown {a} {b}: say {c}": "未知的 {a} {b}: 请写 {c}",
    "{a} must be 0, 1, 2 or 3, not {b}": "{a} 必须是 0、1、2 或 3，而不是 {b}",
    "deepspeed {a} is a file: give it with --from": "deepspeed {a} 是一个文件: 请用 --from 给出",
    "{a}: unrecognized arguments: {b}. See {c} --help.": "{a}: 无法识别的参数: {b}。请查看 {c} --help。",
    "{a}: argument {b}: expected one argument. See {c} --help.": "{a}: 参数 {b} 需要一个值。请查看 {c} --help。",
    "{a}: argument {b}: invalid choice: {c} (choose from {d}). See {e} --help.": "{a}: 参数 {b} 的值 {c} 无效（可选 {d}）。请查看 {e} --help。",
    "{a}: argument {b}: not allowed with argument {c}. See {d} --help.": "{a}: 参数 {b} 不能与 {c} 同时使用。请查看 {d} --help。",
    "{a}: the following arguments are required: {b}. See {c} --help.": "{a}: 缺少参数: {b}。请查看 {c} --help。",
    **config_sentences.SENTENCES,
    **ERROR_SENTENCES,
}  # fmt: skip

DEEPEST = 3  # sentences inside sentences
_SLOT = re.compile(r"\{([a-g])\}")


def translate(text: str, lang: str, depth: int = 0) -> str:
    """The sentence in this language; as it is where it is not known."""
    if lang == "en" or depth > DEEPEST or not text:
        return text
    if text in SENTENCES:
        return SENTENCES[text]
    for pattern, template in _patterns():
        found = pattern.fullmatch(text)
        if found is not None:
            return _filled(template, found, lang, depth)
    return _not_counted(text)


def _not_counted(text: str) -> str:
    """A setting of a file, and behind it why it is in no number."""
    at = text.find(": ")
    while at >= 0:
        reason = GAPS.get(text[at + 2 :])
        if reason is not None:
            return f"{text[: at + 2]}{reason}"
        at = text.find(": ", at + 2)
    return GAPS.get(text, text)


def _filled(template: str, found: re.Match[str], lang: str, depth: int) -> str:
    return _SLOT.sub(lambda slot: translate(found[slot[1]], lang, depth + 1), template)


def is_known(text: str) -> bool:
    """Is there a translation of this sentence?"""
    return (
        text in SENTENCES
        or text in GAPS
        or any(pattern.fullmatch(text) for pattern, _ in _patterns())
    )


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Templates with slots, those with the most words of their own first."""
    with_slots = [english for english in SENTENCES if "{" in english]
    ordered = sorted(with_slots, key=lambda english: -len(_SLOT.sub("", english)))
    return [(_pattern(english), SENTENCES[english]) for english in ordered]


def _pattern(english: str) -> re.Pattern[str]:
    parts = _SLOT.split(english)
    texts = [f"(?P<{part}>.+?)" if at % 2 else re.escape(part) for at, part in enumerate(parts)]
    return re.compile("".join(texts), re.DOTALL)
