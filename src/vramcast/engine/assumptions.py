"""What a job did not say and the engine had to decide, as sentences for the report."""

from __future__ import annotations

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.lines.optimizers import implementation
from vramcast.engine.recording.precision import RECIPES
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.recording.regime import attention_kernel, expert_adapters_text
from vramcast.engine.recording.sequence_limits import has_tokens
from vramcast.engine.replay.varying_lengths import length_text
from vramcast.job import Job
from vramcast.models.read.config import Config


def list_assumptions(job: Job, config: Config | None) -> tuple[str, ...]:
    """What was not said and had to be decided."""
    texts = [f"precision {job.precision}: {RECIPES[job.precision].whose}"]
    if config is not None:
        if job.seq is None and job.longest_seq is None and has_tokens(config):
            texts.append(f"seq {int(sizes_of(job, config).seq)} (not given)")
        if job.mean_seq is not None or job.lengths is not None:
            texts.append(length_text(job, int(sizes_of(job, config).seq)))
        kernel = attention_kernel(job, config, find_gpu(job.gpu) if job.gpu else None)
        texts.append(f"attention {job.attention} → {kernel} kernel")
        texts.extend(expert_adapters_text(job, config))
    if job.optimizer_impl is None:
        texts.append(
            f"{job.optimizer} runs as {implementation(job)} (framework {job.framework}, torch {job.torch_version})"
        )
    texts.append(f"torch {job.torch_version}, transformers {job.transformers_version}")
    return tuple(texts)
