# ruff: noqa: E501 (a sentence and its translation read better whole)
"""The words of a diagnosis with a job, English and Chinese side by side: deviations, contrasts, measurements, findings."""

from __future__ import annotations

# What is different from the job as described.
DEVIATIONS: dict[str, tuple[str, str]] = {
    "weights_fp32": ("the weights are really fp32", "权重实际是 fp32"),
    "computes_in_fp32": ("autocast is not active: everything is computed in fp32", "autocast 未生效：全部以 fp32 计算"),
    "weights_16bit": ("the weights are really 16 bit", "权重实际是 16 位"),
    "reference_on_gpu": ("the reference model is really on this GPU", "参考模型实际在这张 GPU 上"),
    "second_model": ("a second copy of the model is on the GPU (a reference, an average, an earlier notebook cell)", "GPU 上还有模型的第二份副本（参考模型、EMA，或先前运行的 notebook 单元）"),
    "reference_fp32": ("the reference model is fp32", "参考模型是 fp32"),
    "foreach_step": ("the optimizer steps with foreach, not fused", "优化器使用 foreach 而非 fused"),
    "fused_step": ("the optimizer step is fused and makes no copies", "优化器 step 是 fused，不产生副本"),
    "loop_step": ("the optimizer steps tensor by tensor, not fused", "优化器逐个张量更新，而非 fused"),
    "plain_adamw": ("the optimizer is really plain AdamW", "优化器实际是普通 AdamW"),
    "eager_attention": ("attention is really eager and keeps its scores", "注意力实际为 eager，会保留注意力分数"),
    "math_attention": ("SDPA fell back to its math kernel and keeps its scores", "SDPA 退回 math 内核，会保留注意力分数"),
    "no_checkpointing": ("gradient checkpointing is not active", "梯度检查点未生效"),
    "twice_the_tokens": ("the failing batch had about twice the tokens (a longer sequence or a larger batch)", "出错批次的词元约为两倍（序列更长或批次更大）"),
    "four_times_the_tokens": ("the failing batch had about four times the tokens (a longer sequence or a larger batch)", "出错批次的词元约为四倍（序列更长或批次更大）"),
    "other_length": ("the failing batch had about {seq} tokens per sample, as the size of the request says", "从申请大小看，出错批次每个样本约有 {seq} 个词元"),
    "outputs_held": ("a variable holds the outputs (logits, key-value cache) during the step", "有变量在整个步骤中持有输出（logits、KV 缓存）"),
    "gradients_in_forward": ("gradients of the last step are still alive in the forward (zero_grad comes after it)", "上一步的梯度在前向时仍然存活（zero_grad 在其后）"),
    "older_transformers": ("an older transformers makes more fp32 copies of the logits", "较旧的 transformers 会多出 logits 的 fp32 副本"),
    "loss_not_fused": ("the fused or chunked loss is not active", "融合或分块损失未生效"),
    "trains_everything": ("the adapters are not active: everything is trained", "适配器未生效：训练的是全部参数"),
    "not_quantised": ("the weights are not quantised", "权重并未量化"),
    "evaluation": ("it happened in an evaluation", "发生在评估阶段"),
    "not_sharded": ("nothing is sharded: every rank holds the whole model", "并未分片：每个 rank 都持有整个模型"),
    "stays_gathered": ("gathered parameters stay allocated until backward (SHARD_GRAD_OP, no reshard after forward)", "汇聚的参数一直保留到反向（SHARD_GRAD_OP，前向后不再分片）"),
    "not_offloaded": ("offloading is not active", "卸载未生效"),
    "residuals_on_every_rank": ("sequence parallelism is not active: every rank holds all norms and residuals", "序列并行未生效：每个 rank 都持有全部 norm 与残差"),
    "logits_on_every_rank": ("every rank holds the logits of the whole vocabulary", "每个 rank 都持有整个词表的 logits"),
}  # fmt: skip

# The best explanation with one ingredient taken away.
CONTRASTS: dict[str, tuple[str, str]] = {
    "weights in 16 bit": ("everything in bf16", "全部为 bf16"),
    "textbook": (
        "as textbooks count (16-bit weights and gradients, fp32 states)",
        "按教科书算法（16 位权重和梯度，fp32 优化器状态）",
    ),
    "reference on the CPU": (
        "the same with the reference model on the CPU",
        "其他不变，参考模型放在 CPU",
    ),
    "fused optimizer": ("the same with a fused optimizer", "其他不变，使用 fused 优化器"),
    "fused attention": ("the same with fused attention", "其他不变，使用融合注意力"),
    "checkpointing": ("the same with gradient checkpointing", "其他不变，开启梯度检查点"),
}

# What to look at, by what it decides.
MEASURES: dict[str, tuple[str, str]] = {
    "precision": ("print({p.dtype for p in model.parameters()}) before training", "训练前执行 print({p.dtype for p in model.parameters()})"),
    "reference": ("print(next(reference.parameters()).device), or torch.cuda.memory_allocated() right after loading", "打印 next(reference.parameters()).device，或在加载后立即打印 torch.cuda.memory_allocated()"),
    "reference dtype": ("print(next(reference.parameters()).dtype)", "打印 next(reference.parameters()).dtype"),
    "optimizer": ("print(optimizer.defaults): its class, foreach and fused", "打印 optimizer.defaults：类别、foreach 与 fused"),
    "attention": ("print(model.config._attn_implementation), and run once under torch.nn.attention.sdpa_kernel", "打印 model.config._attn_implementation，并在 torch.nn.attention.sdpa_kernel 下运行一次"),
    "checkpointing": ("print(model.is_gradient_checkpointing)", "打印 model.is_gradient_checkpointing"),
    "tokens": ("print the shape of input_ids of the failing batch", "打印出错批次 input_ids 的形状"),
    "outputs": ("look for variables that hold the model's outputs until the next iteration", "查看是否有变量把模型输出持有到下一次迭代"),
    "gradients": ("torch.cuda.memory_allocated() before the second forward: are the gradients gone?", "在第二次前向之前打印 torch.cuda.memory_allocated()：梯度释放了吗？"),
    "version": ("the versions of torch and transformers the job ran with", "任务所用 torch 与 transformers 的版本"),
    "loss": ("whether the loss function that runs is the fused one (a breakpoint in it)", "实际运行的是否是融合损失（在其中设断点）"),
    "adapter": ("model.print_trainable_parameters(), and {p.dtype for p in model.parameters()}", "model.print_trainable_parameters() 以及 {p.dtype for p in model.parameters()}"),
    "sharding": ("torch.cuda.memory_allocated() on every rank after wrapping, compared with the bytes of all parameters", "包装之后在每个 rank 打印 torch.cuda.memory_allocated()，与全部参数的字节数对照"),
    "offload": ("{p.device for p in model.parameters()} and the devices of the optimizer's states", "打印 {p.device for p in model.parameters()} 以及优化器状态所在设备"),
    "tensor parallel": ("the shapes of a layer's input and of the logits on one rank", "打印单个 rank 上某层输入与 logits 的形状"),
    "phases": ("the traceback: did it fail in an evaluation?", "回溯：是否在评估时失败？"),
    "phase": ("the last frames of the traceback: forward, backward or optimizer step", "回溯的最后几帧：前向、反向还是优化器 step"),
}  # fmt: skip

FINDINGS: dict[str, tuple[str, str]] = {
    "job_need": (
        "The job as described needs at least {need_bytes} of allocated memory {phase}.",
        "按描述，该任务至少需要 {need_bytes} 已分配显存（{phase}）。",
    ),
    "card_unknown": (
        "Neither the text nor the job says how large the card is: give --gpu.",
        "文本和任务都没有说明显卡大小：请给出 --gpu。",
    ),
    "job_too_large": (
        "The job as described needs at least {need_bytes} of allocated memory {phase}; PyTorch can use {card_bytes} of this card.",
        "按描述，该任务至少需要 {need_bytes} 已分配显存（{phase}）；这张卡上 PyTorch 最多可用 {card_bytes}。",
    ),
    "job_would_fit": (
        "The job as described needs at most {need_bytes} of allocated memory ({phase}) and would not have run out: PyTorch can use {card_bytes} of this card. Something was different.",
        "按描述，该任务最多需要 {need_bytes} 已分配显存（{phase}），不会耗尽：这张卡上 PyTorch 可用 {card_bytes}。一定有什么与描述不同。",
    ),
    "more_than_described": (
        "{allocated_bytes} was allocated, more than the job as described ever needs ({need_bytes}).",
        "已分配 {allocated_bytes}，超过任务按描述的最大需求（{need_bytes}）。",
    ),
    "no_explanation": (
        "None of the {count} variants of the job that were evaluated agrees with these numbers: the cause is something else, or this is not the job that failed.",
        "已计算的 {count} 种任务变体都与这些数字不符：原因不在列表之内，或失败的不是这个任务。",
    ),
    "job_not_priced": ("The job cannot be estimated: {error}", "无法估算该任务：{error}"),
    "job_without_failure": (
        "The text holds neither a failure of a CUDA device nor a peak to compare the job with.",
        "文本中既没有 CUDA 设备的失败，也没有可与任务对照的峰值。",
    ),
    "peak_levels": (
        "The job as described peaks at {allocated_bytes} allocated, {reserved_bytes} with PyTorch's cache, {process_bytes} with everything that nvidia-smi counts.",
        "按描述，该任务的峰值为：已分配 {allocated_bytes}，连同 PyTorch 缓存 {reserved_bytes}，nvidia-smi 计入的全部 {process_bytes}。",
    ),
    "peak_as_described": (
        "{seen_bytes} ({level}) was seen; the job as described needs {need_bytes}: nothing is unexplained.",
        "观察到 {seen_bytes}（{level}）；按描述的任务为 {need_bytes}：没有无法解释的部分。",
    ),
    "peak_above": (
        "{seen_bytes} ({level}) was seen, {difference_bytes} more than the job as described needs ({need_bytes}).",
        "观察到 {seen_bytes}（{level}），比按描述的任务（{need_bytes}）多 {difference_bytes}。",
    ),
    "peak_below": (
        "{seen_bytes} ({level}) was seen, {difference_bytes} less than the job as described needs ({need_bytes}).",
        "观察到 {seen_bytes}（{level}），比按描述的任务（{need_bytes}）少 {difference_bytes}。",
    ),
    "expected_exceeded": (
        "{expected_bytes} was expected and {seen_bytes} ({level}) was seen.",
        "预期 {expected_bytes}，观察到 {seen_bytes}（{level}）。",
    ),
    "expected_kept": (
        "{seen_bytes} ({level}) was seen, no more than the expected {expected_bytes}.",
        "观察到 {seen_bytes}（{level}），未超过预期的 {expected_bytes}。",
    ),
    "expected_refuted": (
        "The expected {expected_bytes} is refuted: {allocated_bytes} was already allocated, and that is a lower bound.",
        "预期的 {expected_bytes} 不成立：失败时已分配 {allocated_bytes}，而这只是下限。",
    ),
    "expected_possible": (
        "The expected {expected_bytes} is not refuted by what was allocated.",
        "从已分配量看，预期的 {expected_bytes} 并未被否定。",
    ),
    "expected_fits": (
        "A job of {expected_bytes} would not have run out: PyTorch can use {card_bytes} of this card.",
        "需要 {expected_bytes} 的任务不会耗尽显存：这张卡上 PyTorch 可用 {card_bytes}。",
    ),
    "script_runs_out": (
        "On a virtual card of {card_bytes} the script runs out too, at {line} after {steps} optimizer step(s), with {allocated_bytes} allocated.",
        "在 {card_bytes} 的虚拟显卡上脚本同样耗尽显存：{line}，已完成 {steps} 步，已分配 {allocated_bytes}。",
    ),
    "script_fits": (
        "On a virtual card of {card_bytes} the script does not run out within {steps} optimizer step(s): it allocates {allocated_bytes} at most. Something on the real machine was different (versions, data, other processes).",
        "在 {card_bytes} 的虚拟显卡上脚本运行 {steps} 步并未耗尽：最多分配 {allocated_bytes}。真实机器上有所不同（版本、数据或其他进程）。",
    ),
}  # fmt: skip

HEADINGS: dict[str, tuple[str, str]] = {
    "as_described": ("the job as described", "与描述一致"),
    "different": ("different from the description", "与描述不同"),
    "needs": ("needs at least {need}; fails {phase}, which starts with {start} allocated and peaks at {peak}", "至少需要 {need}；失败于{phase}，开始时已分配 {start}，最高 {peak}"),
    "peaks": ("peaks at {need} allocated {phase}", "峰值为已分配 {need}（{phase}）"),
    "or_in": ("or fails {phases}", "或失败于{phases}"),
    "because_fragmentation": ("only together with fragmentation", "仅在有碎片的情况下成立"),
    "because_another_process": ("only because somebody else holds part of the card", "仅因其他进程占用了部分显存"),
    "made_of": ("made of", "组成"),
    "request": ("the request was", "申请的是"),
    "or": ("or", "或"),
    "no_tensor": ("no tensor of this phase has the size of the request", "该阶段没有与申请大小相符的张量"),
    "contrasts": ("For comparison", "对照"),
    "would_fit": ("{name}: needs {need} and would not have run out", "{name}：需要 {need}，不会耗尽"),
    "would_not_fit": ("{name}: needs {need} and would have run out as well", "{name}：需要 {need}，同样会耗尽"),
    "would_need": ("{name}: needs {need}", "{name}：需要 {need}"),
    "decide": ("To decide between these: {measure}.", "用一次测量区分以上解释：{measure}。"),
    "first_step": ("in the first optimizer step", "第一次优化器更新"),
    "weights": ("{dtype} weights", "{dtype} 权重"),
    "autocast": ("{dtype} weights under {compute} autocast", "{dtype} 权重（{compute} autocast）"),
    "adapters": ("LoRA adapters", "LoRA 适配器"),
    "reference": ("{dtype} reference model on the same GPU", "{dtype} 参考模型在同一 GPU 上"),
    "optimizer": ("{impl} {optimizer}", "{impl} {optimizer}"),
    "attention": ("{kernel} attention", "{kernel} 注意力"),
    "holders": ("What held memory at the peak", "峰值时占用显存的代码"),
    "plan": ("{moves}: {process} of {capacity}", "{moves}：{process} / {capacity}"),
}  # fmt: skip
