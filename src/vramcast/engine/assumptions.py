"""What a job did not say and the engine had to decide, as sentences for the report."""

from __future__ import annotations

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.recording.record import sizes_of
from vramcast.engine.recording.regime import attention_kernel, expert_adapters_text
from vramcast.engine.recording.sequence_limits import has_tokens
from vramcast.engine.replay.varying_lengths import length_text
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.setup import complete, resolve
from vramcast.setup.profiles import explain_precision


def list_assumptions(said: Job, config: Config | None) -> tuple[str, ...]:
    """One sentence for each option that the job left open."""
    job, setup = complete(said), resolve(said)
    texts = [f"precision {job.precision}: {setup.precision.whose}"]
    if said.precision is None:
        texts.append(f"precision was not given: {explain_precision(said)}")
    if said.checkpointing is None and job.checkpointing != "none":
        texts.append(f"gradient checkpointing {job.checkpointing}, as {job.framework} does")
    if config is not None:
        if job.seq is None and job.longest_seq is None and has_tokens(config):
            texts.append(f"seq {int(sizes_of(setup.data, config).seq)} (not given)")
        if job.mean_seq is not None or job.lengths is not None:
            texts.append(length_text(setup, int(sizes_of(setup.data, config).seq)))
        kernel = attention_kernel(setup, config, find_gpu(job.gpu) if job.gpu else None)
        texts.append(f"attention {job.attention} → {kernel} kernel")
        texts.extend(expert_adapters_text(setup, config))
    if job.optimizer_impl is None:
        texts.append(
            f"{job.optimizer} runs as {setup.optimizer.implementation} "
            f"(framework {job.framework}, torch {job.torch_version})"
        )
    texts.append(f"torch {job.torch_version}, transformers {job.transformers_version}")
    return tuple(texts)
