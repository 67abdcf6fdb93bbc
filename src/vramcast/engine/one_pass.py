"""One forward pass without graph: scoring texts (logits of every position, or a classifier's) and encoding them.

    load      the weights
    forward   the largest layer, or the logits; keys and values, where the model fills a cache by default

Example: Qwen3-0.6B scores 8 texts of 512 tokens: 8 × 512 × 151,936 × 2 B = 1.16 GiB of logits decide the peak.
"""

from __future__ import annotations

from dataclasses import replace

from vramcast.catalog.gpus import find_gpu
from vramcast.engine.bill import Bill, Remarks, allocator_slack, count_layers, summarize_model
from vramcast.engine.generation import OF_TRAINING, STORED
from vramcast.engine.lines.companions import during, line
from vramcast.engine.lines.overheads import context_entries, workspace_entries, workspaces
from vramcast.engine.lines.setting import KEPT, backbone, peak_of
from vramcast.engine.lines.states import States, unique, weight_entries
from vramcast.engine.no_effect import needless_without_training
from vramcast.engine.recording.record import DEVICE
from vramcast.engine.recording.regime import regime_of
from vramcast.engine.replay.card import replayed_on_card
from vramcast.engine.replay.run import Script
from vramcast.engine.stream.timeline import step_events
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecast import Forecast
from vramcast.job import Job, Precision, flag_of
from vramcast.ledger import FORWARD, LOAD, Category
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.models.record.program import Program, Sizes
from vramcast.setup import Setup, resolve
from vramcast.setup.defaults import stored_dtype
from vramcast.setup.tasks import with_head

PHASES_OF_PASS = (LOAD, FORWARD)
LENGTH = 512  # tokens, where none are given
INDEX_BYTES = 8


def estimate_pass(job: Job) -> Forecast:
    """The memory of one pass over a batch."""
    _check(job)
    assert job.model is not None
    source = read_model(job.model)
    if source.config is None or source.params is not None:
        raise UnsupportedError(
            f"{source.name}: its passes are not described; run the script itself with vramcast trace"
        )
    config = source.config if job.task == "score" else with_head(source.config, _as_body(job))
    length = job.seq or LENGTH
    precision = job.precision or STORED.get(stored_dtype(config), Precision.BF16_TRUE)
    setup = resolve(
        replace(
            job, task=None, precision=precision, tuning="full", seq=length, checkpointing="none"
        )
    )
    gpu = find_gpu(job.gpu) if job.gpu else None
    program = _record(job, setup, config, length)
    states = States(params=unique(program.params()), setup=setup)
    ids = 2 * job.batch * length * INDEX_BYTES
    working = line(
        "a pass's tensors, one layer at a time",
        DEVICE,
        f"{job.batch:,} × {length:,} tokens: the largest layer, or the output",
        "the model's pass, as recorded",
        Category.TEMPORARY,
    )
    whole = int(peak_of(program))
    body = backbone(_record(job, setup, config, length))
    held = int(body.sections[0].section.outputs[0].nbytes)  # the variable `inputs_embeds`
    during(working, (FORWARD,), max(whole, int(peak_of(body)) + held))
    inputs = line(
        "token ids and mask",
        DEVICE,
        f"2 × {job.batch:,} × {length:,} × {INDEX_BYTES} B",
        "int64",
        Category.INPUT,
    )
    during(inputs, (FORWARD,), ids)
    script = Script(
        weights=tuple(param.nbytes for param in states.params),
        first=[*step_events(program, KEPT)],
        later=[],
        states=(),
        step_temporaries=(),
        small=(ids // 2,) * 2,
        workspaces=workspaces(setup.versions, gpu)[:1],
        zero_grad_first=True,
    )
    replayed = replayed_on_card(script, gpu, setup)
    slack = (replace(entry, phases=PHASES_OF_PASS) for entry in allocator_slack(replayed))
    bill = Bill(
        job=job,
        gpu=gpu,
        model=summarize_model(source.name, states, config.model_type, count_layers(program)),
        entries=[
            *weight_entries(states, DEVICE),
            *working.entries(),
            *inputs.entries(),
            *workspace_entries(setup.versions, gpu, DEVICE, handles=1),
            *context_entries(setup.versions, gpu, DEVICE),
            *slack,
        ],
        phases=PHASES_OF_PASS,
        remarks=Remarks(
            assumptions=tuple(_assumptions(job, setup, length)),
            warnings=(*source.notes, *source.warnings, *needless_without_training(job)),
        ),
    )
    return bill.forecast()


def _as_body(job: Job) -> Job:
    """AutoModel: the model without its head."""
    return replace(job, task="embed")


def _record(job: Job, setup: Setup, config: Config, length: int) -> Program:
    """transformers' models fill past_key_values in eval() unless use_cache is off."""
    gpu = find_gpu(job.gpu) if job.gpu else None
    regime = replace(
        regime_of(setup, config, gpu),
        grad=False,
        training=False,
        kv_cache="none" if job.use_cache is False else "copy",
        mask=job.batch > 1,
        trainable=lambda name: False,
    )
    return record(config, regime, Sizes.named(job.batch, length, job.target_seq or length, 1, None))


def _check(job: Job) -> None:
    if job.model is None:
        raise InputError(f"task {job.task} needs a model")
    meant = [
        name
        for name, default in OF_TRAINING.items()
        if getattr(job, name) != default and name != "mean_seq"
    ]
    if meant:
        names = ", ".join(map(flag_of, meant))
        raise UnsupportedError(f"task {job.task} trains nothing, on one GPU: leave out {names}")


def _assumptions(job: Job, setup: Setup, length: int) -> list[str]:
    texts = [] if job.seq else [f"seq {length} (not given)"]
    if job.precision is None:
        texts.append(f"weights as the checkpoint stores them: {setup.precision.weights.name}")
    torch, transformers = (
        ".".join(map(str, version))
        for version in (setup.versions.torch, setup.versions.transformers)
    )
    return [*texts, f"torch {torch}, transformers {transformers}"]
