"""Reinforcement learning on the cards that train: sync → generate → score → update, and what waits where meanwhile.

The update is an ordinary training job and is estimated as one. Around it lie phases that hold other things: an engine
with its weights and its cache, log-probabilities of whole answers, a critic with states of its own. What stays from one
phase to the next is the framework's choice (verl's param_offload, vLLM's sleep mode), and the fullest phase decides.

Example: Qwen2.5-7B on 8 H100 by verl, rollout-share 0.5: while it generates, vLLM holds half of each card; the sharded
fp32 weights and Adam's states stay beside it (10.6 GiB) or wait in CPU memory (rollout-offload all).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.generation import estimate_generation
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.serving.estimate import estimate_serving
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecast import Forecast
from vramcast.job import Job, Precision
from vramcast.ledger import (
    CRITIC,
    GATING,
    HOST,
    LOAD,
    NEXT_BACKWARD,
    NEXT_FORWARD,
    NEXT_LOSS,
    NEXT_STEP,
    PREFILL,
    ROLLOUT,
    SCORE,
    SERVE,
    SYNC,
    Category,
    Entry,
    Ledger,
    Level,
    Origin,
)
from vramcast.setup.tasks import has_rl_phases, task_of_job
from vramcast.units import GiB, MiB

UPDATE = (NEXT_FORWARD, NEXT_LOSS, NEXT_BACKWARD, GATING, NEXT_STEP)
WEIGHTS = (Category.WEIGHTS, Category.COPIES)
STATES = (Category.OPTIMIZER, Category.MASTER)
# What stays allocated between the phases, whoever is at work.
STAYING = (*WEIGHTS, *STATES, Category.COMPANION, Category.WORKSPACE, Category.CONTEXT)
# gpu_memory_utilization where nothing is said: verl/trainer/config/rollout/rollout.yaml; openrlhf/cli/train_ppo_ray.py;
# trl/trainer/grpo_config.py since 0.18.
SHARES = {"verl": 0.5, "openrlhf": 0.95, "nemo": 0.6, "trl": 0.3, "hf": 0.3}
SLEEPS = {"verl": True, "nemo": True, "openrlhf": False, "trl": False}
# vLLM's sleep mode leaves its context, graphs and workspaces: 0.76 GiB printed at tp 1, 2.4 to 7.2 GiB at tp 2.
ASLEEP, ASLEEP_RANGE = round(0.76 * GiB), (round(0.3 * GiB), round(2.4 * GiB))
ASLEEP_TP, ASLEEP_TP_RANGE = round(2.4 * GiB), (round(1.5 * GiB), round(7.2 * GiB))
BUCKET = 2048 * MiB  # verl's update_weights_bucket_megabytes
BATCHED_TOKENS = {"verl": 8192, "trl": 4096, "hf": 4096}
LOGITS_BYTES = 2 + 4  # 16-bit logits and their fp32 copy
NOT_COUNTED = "the rollout engine is not counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The forecasts that an RL job is put together from."""

    job: Job
    update: Forecast
    critic: Forecast | None
    gpu: Gpu | None


def refuse_rl_phases(job: Job) -> None:
    """For tables of updates: an engine, rollouts and a critic would be missing from them without a word."""
    if has_rl_phases(job):
        raise UnsupportedError(
            "rollouts, a critic or a rollout engine lie around the update, which tables do not have: use vramcast "
            "estimate for each job"
        )


def update_job(job: Job) -> Job:
    """The policy's update alone: prompts are still what the loss does not score. `job`: with what its task brings."""
    generates = task_of_job(job).generates
    prompt = job.prompt_tokens
    if prompt is None and generates and job.rollout_tokens and job.seq:
        prompt = max(job.seq - job.rollout_tokens, 0)
    alone = replace(
        job,
        task="sft" if generates else job.task,
        rollout_engine=None,
        rollout_share=None,
        rollout_tp=1,
        rollout_sleep=None,
        rollout_offload="none",
        rollout_tokens=None,
        rollout_batch=None,
        prompt_tokens=prompt,
    )
    return replace(alone, critic="none", critic_model=None) if job.gpus > 1 else alone


def critic_job(job: Job) -> Job | None:
    """A critic on many GPUs: the model with one value per token instead of a head, trained by itself."""
    if job.critic == "none" or job.gpus == 1:
        return None
    if job.critic == "cpu":
        raise InputError("a critic is trained on a GPU: critic must be none, same or cuda:1")
    alone = update_job(job)
    return replace(
        alone,
        model=job.critic_model or job.model,
        task="classify",
        labels=1,
        reference=None,
        reward="none",
        reward_model=None,
        prompt_tokens=None,
        loss=None,
    )


def with_rl_phases(parts: Parts) -> Forecast:
    """The update's forecast with the phases around it."""
    job, update = parts.job, parts.update
    waiting = [entry for entry in update.ledger.entries if _stays(entry)]
    critics = () if parts.critic is None else tuple(_critic_entries(parts, parts.critic))
    kept = [_kept(entry, parts) for entry in waiting]
    moving = [entry for entry in update.ledger.entries if not _stays(entry)]
    holding = sum(entry.nbytes for entry in (*kept, *critics) if ROLLOUT in entry.phases)
    made = (*kept, *moving, *critics)
    rollout, texts, notes = _rollout(parts, waiting, holding)
    scores = tuple(_scoring(parts))
    moved = tuple(_on_host(parts, (*waiting, *critics)))
    entries = (*made, *rollout, *scores, *moved)
    ledger = Ledger(entries=entries, top_level=update.ledger.top_level)
    ledger.check()
    return replace(
        update,
        job=job,
        ledger=ledger,
        assumptions=(*_named(job, update.assumptions), *texts, *_assumptions(parts)),
        notes=(*update.notes, *notes),
    )


def _named(job: Job, texts: tuple[str, ...]) -> Iterator[str]:
    """The update alone is fine-tuning on what was generated; the user said what for."""
    for text in texts:
        head, colon, rest = text.partition(": ")
        if job.task is not None and colon and head.split(" ")[:2] == ["task", "sft"]:
            text = f"task {job.task}: {rest.partition('; ')[0]}; {task_of_job(job).source}"
        yield text


def _stays(entry: Entry) -> bool:
    is_outside = entry.category == Category.COMMUNICATION and entry.level == Level.PROCESS
    return (
        entry.is_device_memory()
        and NEXT_FORWARD in entry.phases
        and (entry.category in STAYING or is_outside)
        and "forward" not in entry.component
    )


def _is_moved(entry: Entry, offload: str) -> bool:
    """Does it wait in CPU memory while samples are generated?"""
    is_weight, is_state = entry.category in WEIGHTS, entry.category in STATES
    named = entry.component.startswith("critic: ")
    if named:
        is_weight, is_state = "weights" in entry.component, "weights" not in entry.component
    return (is_weight and offload in ("params", "all")) or (
        is_state and offload in ("optimizer", "all")
    )


def _kept(entry: Entry, parts: Parts) -> Entry:
    """The entry with the phases around the update in which it is on the card."""
    moved = _is_moved(entry, parts.job.rollout_offload)
    is_weight = entry.category in WEIGHTS
    phases = list(entry.phases)
    if _has_engine(parts) and (not moved or is_weight):
        phases.append(SYNC)
    if _has_rollout(parts):
        phases += [] if moved else [ROLLOUT]
        phases += [SCORE] if is_weight or not moved else []
    if parts.critic is not None and not moved:
        phases.append(CRITIC)
    return replace(entry, phases=tuple(phases))


def _has_engine(parts: Parts) -> bool:
    return parts.job.rollout_engine is not None


def _has_rollout(parts: Parts) -> bool:
    return _has_engine(parts) or parts.job.rollout_tokens is not None


# ---- the critic


def _critic_entries(parts: Parts, critic: Forecast) -> Iterator[Entry]:
    """Its states wait beside the policy's, or in CPU memory; its own update is a phase of its own."""
    at_rest = [
        entry
        for entry in critic.ledger.entries
        if _stays(entry) and entry.category in (*WEIGHTS, *STATES)
    ]
    peak = max(
        (
            critic.ledger.moment(phase, DEVICE)
            for phase in UPDATE
            if phase in critic.ledger.phases(DEVICE)
        ),
        key=lambda moment: moment.allocated_bytes,
    )
    for entry in at_rest:
        what = "weights" if entry.category in WEIGHTS else str(entry.category)
        named = replace(
            entry, category=Category.COMPANION, component=f"critic: {what}, {entry.component}"
        )
        moved = _is_moved(named, parts.job.rollout_offload)
        others = () if moved else (LOAD, *_phases_of(parts.update.ledger, UPDATE))
        phases = [CRITIC, *others]
        if not moved:
            phases += [SYNC] if _has_engine(parts) else []
            phases += [ROLLOUT, SCORE] if _has_rollout(parts) else []
        yield replace(named, phases=tuple(phases))
    for entry in critic.ledger.alive(peak.phase, DEVICE):
        if not _stays(entry):
            yield replace(entry, component=f"critic: {entry.component}", phases=(CRITIC,))


def _phases_of(ledger: Ledger, phases: Iterable[str]) -> tuple[str, ...]:
    known = ledger.phases(DEVICE)
    return tuple(phase for phase in phases if phase in known)


# ---- generating


def _rollout(
    parts: Parts, waiting: list[Entry], holding: int
) -> tuple[tuple[Entry, ...], tuple[str, ...], tuple[str, ...]]:
    """Entries, assumptions and notes of generating samples."""
    if not _has_rollout(parts):
        return (), (), ()
    if _has_engine(parts):
        return _engine_entries(parts, holding)
    return tuple(_generate_entries(parts, waiting)), (), ()


def _engine_entries(
    parts: Parts, holding: int
) -> tuple[tuple[Entry, ...], tuple[str, ...], tuple[str, ...]]:
    job = parts.job
    if parts.gpu is None:
        return (), (), (f"{NOT_COUNTED}: it fills a share of its card, give --gpu",)
    engine, framework = job.rollout_engine or "", job.framework
    share = job.rollout_share or SHARES.get(framework, 0.5)
    try:
        served = estimate_serving(_engine_job(job, share, parts.gpu.capacity_bytes() - holding))
    except UnsupportedError as error:
        return (), (), (f"{NOT_COUNTED}: {error}",)
    sleeps = SLEEPS.get(framework, False) if job.rollout_sleep is None else job.rollout_sleep
    always = () if sleeps else (SCORE, CRITIC, *_phases_of(parts.update.ledger, UPDATE))
    always = tuple(phase for phase in always if phase != CRITIC or parts.critic is not None)
    found = [
        _of_engine(entry, engine, always)
        for entry in served.ledger.entries
        if SERVE in entry.phases and entry.is_device_memory() and entry.category != Category.CONTEXT
    ]
    found.append(_bucket())
    if sleeps:
        found.append(_asleep(parts))
    answer = served.served
    notes: tuple[str, ...] = ()
    if answer is not None and not answer.starts:
        notes = (f"the rollout engine would not start: {answer.refusal}",)
    elif answer is not None:
        notes = (
            f"the rollout engine's cache holds {answer.kv_tokens:,} tokens: {int(answer.concurrency):,} samples of "
            f"{answer.max_model_len:,} tokens at once",
        )
    how = "gives its memory back while others train" if sleeps else "keeps its memory all the time"
    texts = (f"{engine} on the training cards fills {share:g} of each and {how}",)
    return tuple(found), texts, notes


def _engine_job(job: Job, share: float, free: int) -> Job:
    return Job(
        model=job.model,
        gpu=job.gpu,
        engine=job.rollout_engine,
        tp=job.rollout_tp,
        gpu_memory_utilization=share,
        max_model_len=job.seq,
        max_num_batched_tokens=BATCHED_TOKENS.get(job.framework),
        precision=Precision.BF16_TRUE,
        gpu_free=f"{max(free, 1)}",
    )


def _of_engine(entry: Entry, engine: str, always: tuple[str, ...]) -> Entry:
    is_weight = entry.category == Category.WEIGHTS
    phases = (SYNC, ROLLOUT, *always) if is_weight else (ROLLOUT, *always)
    return replace(
        entry,
        category=Category.COMPANION if is_weight else entry.category,
        component=f"{engine}: {entry.component}",
        phases=phases,
    )


def _bucket() -> Entry:
    return Entry(
        category=Category.COMMUNICATION,
        component="gathered weights on their way to the engine",
        place=DEVICE,
        phases=(SYNC,),
        nbytes=BUCKET,
        origin=Origin.ASSUMED,
        formula="one bucket",
        source="verl update_weights_bucket_megabytes 2048",
        range_bytes=(BUCKET // 4, BUCKET),
    )


def _asleep(parts: Parts) -> Entry:
    nbytes, limits = (
        (ASLEEP, ASLEEP_RANGE) if parts.job.rollout_tp == 1 else (ASLEEP_TP, ASLEEP_TP_RANGE)
    )
    phases = [SCORE, *_phases_of(parts.update.ledger, UPDATE)]
    if parts.critic is not None:
        phases.append(CRITIC)
    return Entry(
        category=Category.COMPANION,
        component=f"{parts.job.rollout_engine} asleep: context, graphs, workspaces",
        place=DEVICE,
        phases=tuple(phases),
        nbytes=nbytes,
        origin=Origin.ASSUMED,
        level=Level.PROCESS,
        source="Sleep mode freed … memory is still in use: 0.76 GiB at tp 1, 2.4 to 7.2 GiB at tp 2",
        range_bytes=limits,
    )


def _generate_entries(parts: Parts, waiting: list[Entry]) -> Iterator[Entry]:
    """generate() of transformers under DDP, FSDP or ZeRO: the model whole in 16 bit, and a cache that grows."""
    job = parts.job
    held = sum(entry.nbytes for entry in waiting if entry.category in WEIGHTS)
    generated = estimate_generation(_generation_job(job, job.rollout_tokens or 1))
    whole = sum(
        e.nbytes
        for e in generated.ledger.entries
        if e.category == Category.WEIGHTS and e.is_device_memory()
    )
    if held < whole:
        yield Entry(
            category=Category.COMMUNICATION,
            component="gathered weights for generate()",
            place=DEVICE,
            phases=(ROLLOUT,),
            nbytes=whole,
            origin=Origin.FORMULA,
            formula="every parameter in 16 bit",
            source="trl unwrap_model_for_generation: GatheredParameters, summon_full_params",
        )
    peak = generated.ledger.peak(DEVICE).phase
    for entry in generated.ledger.alive(peak, DEVICE):
        if entry.category in (Category.CACHE, Category.TEMPORARY, Category.INPUT):
            yield replace(entry, component=f"rollout: {entry.component}", phases=(ROLLOUT,))


def _generation_job(job: Job, new: int) -> Job:
    length = job.seq or 1024
    return Job(
        model=job.model,
        gpu=job.gpu,
        task="generate",
        batch=job.rollout_batch or job.batch,
        prompt=max(length - new, 1),
        new_tokens=new,
        precision=Precision.BF16_TRUE,
        attention=job.attention,
        torch_version=job.torch_version,
        transformers_version=job.transformers_version,
    )


# ---- scoring


def _scoring(parts: Parts) -> Iterator[Entry]:
    """Log-probabilities of the answers under the old and the reference policy: a pass without graph, and logits of
    every answered position."""
    job = parts.job
    if not _has_rollout(parts) or job.model is None:
        return
    length = job.seq or 1024
    answered = min(job.rollout_tokens or length, length)
    whole = estimate_generation(replace(_generation_job(job, 1), prompt=length, batch=job.batch))
    vocabulary = _vocabulary(job)
    logits = job.batch * answered * vocabulary * LOGITS_BYTES
    passing = [e for e in whole.ledger.alive(PREFILL, DEVICE) if e.category == Category.TEMPORARY]
    for entry in passing:
        yield replace(entry, component="scoring: one layer's tensors", phases=(SCORE,))
    yield Entry(
        category=Category.LOGITS,
        component="scoring: logits of answers",
        place=DEVICE,
        phases=(SCORE,),
        nbytes=logits,
        origin=Origin.FORMULA,
        formula=f"{job.batch:,} × {answered:,} × {vocabulary:,} × {LOGITS_BYTES} B",
        source="logits_to_keep: the answer's positions, 16 bit and fp32",
    )


def _vocabulary(job: Job) -> int:
    from vramcast.models.read.model import read_model

    config = read_model(job.model or "").config
    inner = config.sub("text_config") if config is not None else None
    for each in (inner, config):
        if each is not None and each.data.get("vocab_size"):
            return int(each.dim("vocab_size", "V"))
    return 0


# ---- CPU memory and texts


def _on_host(parts: Parts, entries: Iterable[Entry]) -> Iterator[Entry]:
    """What waits there while samples are generated, of all ranks of a node."""
    ranks = min(parts.job.gpus, parts.job.gpus_per_node)
    moved = sum(e.nbytes for e in entries if _is_moved(e, parts.job.rollout_offload))
    if moved and _has_rollout(parts):
        yield Entry(
            category=Category.WEIGHTS,
            component="weights and states that wait while samples are generated",
            place=HOST,
            phases=(ROLLOUT,),
            nbytes=moved * ranks,
            origin=Origin.FORMULA,
            formula=f"{ranks} ranks × {moved:,} B",
            source=f"rollout-offload {parts.job.rollout_offload}",
        )


def _assumptions(parts: Parts) -> Iterator[str]:
    if parts.critic is not None:
        yield "the critic is updated by itself, after or before the policy"
    if parts.job.rollout_offload != "none":
        yield f"rollout-offload {parts.job.rollout_offload}: back on the card for the update"
