"""What a job did not say and the engine had to decide, as sentences for the report."""

from __future__ import annotations

from vramcast.engine.recording.record import sizes_of
from vramcast.engine.recording.regime import expert_adapters_text
from vramcast.engine.recording.sequence_limits import has_tokens
from vramcast.engine.replay.varying_lengths import length_text
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.models.read.tasks import num_labels
from vramcast.setup import complete, resolve
from vramcast.setup.defaults import explain_precision, has_no_targets
from vramcast.setup.records import Adapter
from vramcast.setup.tasks import TASKS


def _adapter_texts(said: Job, job: Job, adapter: Adapter) -> list[str]:
    """The sizes of an adapter: of LoRA where they were left open, of other kinds always."""
    if job.adapter not in (None, "lora"):
        return [_adapter_text(adapter)] if adapter.kind is not None else []
    if job.lora_rank is None or (said.lora_rank is not None and said.lora_targets):
        return []
    rank = "" if said.lora_rank is not None else f" of rank {job.lora_rank}"
    stored = "" if said.quantize == job.quantize else f" over {job.quantize} weights"
    text = f"LoRA{rank} on {', '.join(job.lora_targets)}{stored}"
    if not said.lora_targets and has_no_targets(job):
        return [f"{text}: PEFT lists no targets for this model and asks for them"]
    return [f"{text}, as {job.framework} does"]


def _adapter_text(adapter: Adapter) -> str:
    sizes = [
        f"{name} {value}"
        for name, value in (
            ("rank", adapter.rank),
            ("blocks of", adapter.block),
            ("virtual tokens", adapter.virtual_tokens or None),
        )
        if value is not None
    ]
    if adapter.targets:
        sizes.append(f"targets {', '.join(adapter.targets)}")
    return f"adapter {adapter.kind}, as PEFT makes it: {'; '.join(sizes)}"


def list_assumptions(
    said: Job,
    config: Config | None,
    kernels: tuple[str, ...] = (),
    *,
    says_versions: bool = True,
) -> tuple[str, ...]:
    """One sentence for each option that the job left open. `kernels`: the attention kernels that its layers run.
    `says_versions`: the job's versions of libraries decide, and not those that are installed."""
    job, setup = complete(said), resolve(said)
    texts = [] if config is None else [_head_text(said, job, config)]
    texts += [f"precision {job.precision}: {setup.precision.whose}"]
    if said.precision is None:
        texts.append(f"precision was not given: {explain_precision(said)}")
    if said.quantize == "none" and job.quantize != "none" and said.tuning != "qlora":
        texts.append(
            f"quantize {job.quantize}: the checkpoint is stored so, or {job.framework} loads it so"
        )
    texts += _adapter_texts(said, job, setup.adapter)
    if said.optimizer is None and job.optimizer != "adamw":
        texts.append(f"optimizer {job.optimizer}, as {job.framework}'s users run it")
    if said.checkpointing is None and job.checkpointing != "none":
        texts.append(f"gradient checkpointing {job.checkpointing}, as {job.framework} does")
    if config is not None:
        if job.seq is None and job.longest_seq is None and has_tokens(config):
            texts.append(f"seq {int(sizes_of(setup.data, config).seq)} (not given)")
        if job.mean_seq is not None or job.lengths is not None:
            texts.append(length_text(setup, int(sizes_of(setup.data, config).seq)))
        if kernels:
            texts.append(f"attention {job.attention} → {', '.join(kernels)} kernel")
        texts.extend(expert_adapters_text(setup, config))
    if job.optimizer_impl is None:
        texts.append(
            f"{job.optimizer} runs as {setup.optimizer.implementation} "
            f"(framework {job.framework}, torch {job.torch_version})"
        )
    if says_versions:
        texts.append(f"torch {job.torch_version}, transformers {job.transformers_version}")
    return tuple(texts)


def _head_text(said: Job, job: Job, config: Config) -> str:
    """Which head the model has, and what a sample is where it is more than a row."""
    name = config.architecture or config.model_type
    if name.endswith("ForSequenceClassification"):
        name = f"{name} (labels: {int(num_labels(config))})"
    if job.task is None:
        return f"model {name}"
    not_given = "" if said.task == job.task else " (not given)"
    task = TASKS[job.task]
    return f"task {job.task}{not_given}: {name}; {task.source}"
