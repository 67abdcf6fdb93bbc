"""Words of a memory breakdown: verdict, categories, phases, origins."""

from __future__ import annotations

VERDICTS = {
    "fits": ("FITS", "装得下"),
    "tight": ("TIGHT", "勉强装得下"),
    "does not fit": ("DOES NOT FIT", "装不下"),
    "needs": ("NEEDS", "需要"),
}

# Names in braces are sizes that arrive as text.
HEADLINE = {
    "peak": ("peak {peak}", "峰值 {peak}"),
    "of": ("of {capacity}", "/ {capacity}"),
    "free": ("{size} free", "剩余 {size}"),
    "short": ("{size} short", "还差 {size}"),
    "lower_bound": ("(lower bound)", "（下限）"),
    "range": ("likely {low}–{high} GiB (9 of 10 jobs)", "多半为 {low}–{high} GiB（十中有九）"),
    "between": ("between {low} and {high} GiB", "在 {low} 与 {high} GiB 之间"),
    "safe": ("safe limit {size} (98 of 100 jobs)", "安全上限 {size}（百中九十八）"),
    "few_sources": ("few measurements: sources {count}", "实测来源少: {count} 个"),
    "when": ("highest {moment}, {place}", "峰值出现在: {moment}, {place}"),
    "not_understood": (
        "settings that matter and are not counted: {count}",
        "影响显存但未计入的设置: {count} 个",
    ),
}

LABELS = {
    "not_counted": ("not counted", "未计入"),
    "parameters": ("parameters", "个参数"),
    "trainable": ("trainable", "个可训练"),
    "what": ("what", "项目"),
    "why": ("why", "依据"),
    "origin": ("origin", "来源"),
    "total": ("total", "合计"),
    "smaller": ("{count} smaller items: {names}", "{count} 个较小项: {names}"),
    "smaller_one": ("1 smaller item: {names}", "1 个较小项: {names}"),
    "largest": ("largest parts", "占用最大"),
    "growth": ("activations grow by {linear} per token of length (batch {batch})",
               "激活值随序列长度增长: 每个词元 {linear}（批大小 {batch}）"),
    "growth_quadratic": ("activations grow by {linear} per token of length plus {quadratic} × length² (batch {batch}); "
                         "the squared part is larger from length {length} on",
                         "激活值随序列长度增长: 每个词元 {linear}，另加 {quadratic} × 长度²（批大小 {batch}）；"
                         "长度达到 {length} 后平方项更大"),
    "phases": ("phases ({place}, GiB)", "各阶段 ({place}, GiB)"),
    "with_margin": ("   with margin {size}", "   含余量 {size}"),
    "all_of_it": ("in all, as nvidia-smi shows it", "合计（nvidia-smi 所见）"),
    "all_reserved": ("in all, as torch reserves it", "合计（torch 保留）"),
    "all_allocated": ("in all, as torch allocates it", "合计（torch 分配）"),
    "smaller_count": ("{count} smaller parts", "{count} 个较小部分"),
    "assumed_short": ("assumed", "假设"),
    "verbose": ("every line, its formula and where each assumption comes from: -v",
                "逐行明细、公式与各项假设的出处: -v"),
    "later_steps": ("from step 2", "第 2 步起"),
    "step_2": ("{phase} (step 2+)", "{phase}（第 2 步起）"),
    "ranks": ("ranks ({count}, allocated, GiB)", "各进程 ({count}, 已分配, GiB)"),
    "per_node": ("per node, {count} nodes", "每节点，共 {count} 个节点"),
    "per_one_node": ("per node, 1 node", "每节点，共 1 个节点"),
    "assumed": ("assumed", "假设"),
    "warning": ("warning", "警告"),
    "note": ("note", "说明"),
}  # fmt: skip

LEVELS = {
    "allocated": ("allocated", "已分配"),
    "reserved": ("reserved", "已保留"),
    "process": ("process", "进程"),
}
COUNTERS = {
    "allocated": ("allocated (torch.cuda.max_memory_allocated)", "已分配（torch.cuda.max_memory_allocated）"),
    "reserved": ("reserved (torch.cuda.max_memory_reserved)", "已保留（torch.cuda.max_memory_reserved）"),
    "process": ("process (nvidia-smi)", "进程（nvidia-smi）"),
}  # fmt: skip

PLACES = {
    "host": ("CPU memory", "主机内存"),
    "pinned": ("pinned CPU memory", "锁页主机内存"),
    "shm": ("shared memory (/dev/shm)", "共享内存（/dev/shm）"),
}

CATEGORIES = {
    "weights": ("weights", "权重"),
    "gradients": ("gradients", "梯度"),
    "optimizer states": ("optimizer states", "优化器状态"),
    "master weights": ("master weights", "主权重"),
    "weight copies": ("weight copies", "权重副本"),
    "activations": ("activations", "激活值"),
    "logits and loss": ("logits and loss", "logits 与损失"),
    "temporaries": ("temporaries", "临时缓冲"),
    "companion models": ("companion models", "伴随模型"),
    "kv cache": ("KV cache", "KV 缓存"),
    "inputs": ("inputs", "输入"),
    "communication buffers": ("communication buffers", "通信缓冲"),
    "library workspaces": ("library workspaces", "库工作区"),
    "allocator slack": ("allocator slack", "分配器余量"),
    "cuda context": ("CUDA context", "CUDA 上下文"),
    "interpreter and libraries": ("interpreter and libraries", "解释器与库"),
    "model load": ("model load", "模型加载"),
    "data pipeline": ("data pipeline", "数据管线"),
    "unattributed": ("unattributed", "未归类"),
}

ORIGINS = {
    "formula": ("formula", "公式"),
    "traced": ("traced", "追踪"),
    "simulated": ("simulated", "模拟"),
    "measured": ("measured", "实测"),
    "assumed": ("assumed", "假设"),
}

# Phases in a list; those of later steps stand under the heading `later_steps` there.
PHASES = {
    "load": ("load", "加载"),
    "resume": ("resume", "恢复"),
    "edit": ("edit", "编辑"),
    "forward": ("forward", "前向"),
    "loss": ("loss", "损失"),
    "backward": ("backward", "反向"),
    "step": ("step", "优化器更新"),
    "rollout": ("rollout", "采样"),
    "next forward": ("forward", "前向"),
    "next loss": ("loss", "损失"),
    "next backward": ("backward", "反向"),
    "gating": ("gate backward", "门控反向"),
    "next step": ("step", "优化器更新"),
    "eval": ("eval", "评估"),
    "save": ("save", "保存"),
    "prefill": ("prefill", "预填充"),
    "decode": ("decode", "解码"),
    "sync": ("weight sync", "权重同步"),
    "score": ("scoring", "打分"),
    "critic": ("critic update", "评论模型更新"),
    "profile": ("profiling run", "试运行"),
    "serve": ("serving", "服务"),
}

# Phases in a sentence.
MOMENTS = {
    "load": ("while loading", "加载时"),
    "resume": ("while resuming from a checkpoint", "从检查点恢复时"),
    "edit": ("while editing", "编辑时"),
    "forward": ("in the forward pass", "前向传播"),
    "loss": ("in the loss", "损失计算"),
    "backward": ("in the backward pass", "反向传播"),
    "step": ("in the optimizer step", "优化器更新"),
    "rollout": ("while generating samples", "采样时"),
    "next forward": ("in the forward pass of step 2 and later", "第 2 步起的前向传播"),
    "next loss": ("in the loss of step 2 and later", "第 2 步起的损失计算"),
    "next backward": ("in the backward pass of step 2 and later", "第 2 步起的反向传播"),
    "gating": ("in the backward pass of the gate", "门控的反向传播"),
    "next step": ("in the optimizer step of step 2 and later", "第 2 步起的优化器更新"),
    "eval": ("in the evaluation", "评估时"),
    "save": ("while saving", "保存时"),
    "prefill": ("in the pass over the prompt (prefill)", "处理提示词时（预填充）"),
    "decode": ("while generating token by token (decode)", "逐词生成时（解码）"),
    "sync": ("while weights go to the rollout engine", "向采样引擎同步权重时"),
    "score": ("while samples are scored (log-probabilities)", "为样本打分时（对数概率）"),
    "critic": ("in the critic's update", "更新评论模型时"),
    "profile": ("in the engine's profiling run", "引擎试运行时"),
    "serve": ("while requests are served", "处理请求时"),
}
