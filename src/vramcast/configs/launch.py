"""A command of a launch script → who launches, what is launched, and with which flags.

`accelerate launch --config_file fsdp.yaml train.py --bf16 True` is the launcher accelerate with its options, the
program train.py, and its flags as records. `key=value` words are Hydra's overrides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from vramcast.configs.documents import plain, read_json
from vramcast.configs.framework import Framework
from vramcast.configs.model_parts import say_pixels, sees
from vramcast.configs.records import Draft, Record, Settings
from vramcast.configs.shell_words import Command, Word
from vramcast.errors import InputError

OVERRIDE = re.compile(r"(?:\+\+|\+)?([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
PYTHON = re.compile(r"(.*/)?python[0-9.]*")
PYTHON_FLAGS = ("-u", "-O", "-B", "-W", "-X", "-s")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
# Options of launchers that stand alone.
ALONE = (
    "standalone",
    "no_python",
    "multi_gpu",
    "cpu",
    "tpu",
    "use_deepspeed",
    "use_fsdp",
    "use_megatron_lm",
    "same_network",
    "debug",
    "quiet",
    "no_local_rank",
    "force_multi",
    "enable_each_rank_log",
    "module",
    "m",
    "no_ssh",
    "save_pid",
)
# Programs with a word of their own, and the words of theirs that train.
PROGRAMS = {
    "swift": ("ms-swift", ("sft", "pt", "rlhf")),
    "megatron": ("ms-swift-megatron", ("sft", "pt", "rlhf")),
    "llamafactory-cli": ("llama-factory", ("train",)),
    "lmf": ("llama-factory", ("train",)),
    "axolotl": ("axolotl", ("train",)),
    "trl": ("trl", ("sft", "dpo", "grpo", "kto", "reward", "rloo")),
    "litgpt": ("litgpt", ("finetune", "finetune_lora", "finetune_full", "pretrain")),
    "tune": ("torchtune", ("run",)),
    "automodel": ("nemo", ("finetune", "pretrain")),
    "composer": ("llm-foundry", ()),
}
MODULE_FRAMEWORKS = (
    ("openrlhf.cli.train", "openrlhf"),
    ("verl.trainer", "verl"),
    ("axolotl.cli.train", "axolotl"),
    ("llamafactory", "llama-factory"),
    ("swift.cli", "ms-swift"),
)
OTHER = re.compile(
    r"infer|generat|eval|export|convert|merge|preprocess|serve|rollout|chat|download", re.IGNORECASE
)
TRAINS = re.compile(r"finetun|pretrain|train|sft", re.IGNORECASE)  # `internvl_chat_finetune.py`
DOCUMENT = (".yaml", ".yml", ".json")


@dataclass(slots=True)
class Launched:
    """What one command starts."""

    launcher: str = ""
    options: list[Record] = field(default_factory=list)
    program: str = ""
    framework: str = ""  # where the program alone says it
    flags: list[Record] = field(default_factory=list)
    documents: list[Record] = field(
        default_factory=list
    )  # configuration files named without a flag
    is_training: bool = False
    is_other: bool = False  # exports, infers or serves
    starts_alone: bool = False  # no launcher starts a process per card


def launched_by(command: Command, file: str) -> Launched:
    words = _from_program(command.words)
    made = Launched()
    words = _take_launcher(words, made, file)
    words = _take_program(words, made, file)
    _take_flags(words, made, file)
    return made


def _from_program(words: list[Word]) -> list[Word]:
    """Without `srun …`, `ray job submit … --`, `uv run` and whatever else stands in front."""
    bars = [number for number, word in enumerate(words) if word.text == "--"]
    for start in (bars[-1] + 1, 0) if bars else (0,):
        rest = words[start:]
        for starts in (_starts_programs, _is_python_file):
            for number, word in enumerate(rest):
                if starts(word.text):
                    return rest[number:]
    return words


def _starts_programs(text: str) -> bool:
    name = text.rpartition("/")[2]
    return name in LAUNCHERS or name in PROGRAMS or PYTHON.fullmatch(text) is not None


def _is_python_file(text: str) -> bool:
    return text.endswith(".py") and not text.startswith("-") and "=" not in text


def _take_launcher(words: list[Word], made: Launched, file: str) -> list[Word]:
    if not words:
        return words
    name = words[0].text.rpartition("/")[2]
    if PYTHON.fullmatch(words[0].text):
        rest = [word for word in words[1:] if word.text not in PYTHON_FLAGS]
        if len(rest) > 1 and rest[0].text == "-m" and rest[1].text in MODULES:
            name, words = MODULES[rest[1].text], [rest[1], *rest[2:]]
        else:
            return rest
    if name not in LAUNCHERS:
        return words
    made.launcher = name
    rest = words[1:]
    if name == "accelerate" and rest and rest[0].text == "launch":
        rest = rest[1:]
    return _options(rest, made, file)


def _options(words: list[Word], made: Launched, file: str) -> list[Word]:
    """The launcher's own options end at the first word that is none."""
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        if word.text in ("-m", "--module"):
            break
        name, equals, value = word.text.lstrip("-").partition("=")
        name = name.replace("-", "_")
        at += 1
        span = None
        if (
            not equals
            and name not in ALONE
            and at < len(words)
            and not words[at].text.startswith("--")
        ):
            value, span = words[at].text, words[at].span
            at += 1
        made.options.append(
            Record(
                key=name,
                value=plain(value) if value else True,
                file=file,
                line=word.line,
                span=span,
            )
        )
    return words[at:]


def _take_program(words: list[Word], made: Launched, file: str) -> list[Word]:
    if not words:
        return words
    if words[0].text in ("-m", "--module") and len(words) > 1:
        words = words[1:]
        made.framework = next(
            (name for module, name in MODULE_FRAMEWORKS if words[0].text.startswith(module)), ""
        )
        made.is_training = bool(made.framework)
        verb = words[0].text.rpartition(".train_")[2]
        if made.framework == "openrlhf" and verb != words[0].text:
            made.flags.append(Record(key="_verb", value=verb, file=file, line=words[0].line))
    made.program = words[0].text
    made.starts_alone = not made.launcher and not made.framework
    name = made.program.rpartition("/")[2]
    if made.framework:  # `verl.trainer.main_generation`
        name = name.rpartition(".")[2]
    if name in PROGRAMS:
        framework, verbs = PROGRAMS[name]
        if not verbs or (len(words) > 1 and words[1].text in verbs):
            made.framework, made.is_training = framework, True
            verb = words[1].text if verbs else ""
            rest = words[2:] if verbs else words[1:]
            made.is_other = name == "tune" and any(OTHER.search(word.text) for word in rest[:1])
            if verb in ("dpo", "kto", "grpo", "reward", "rloo", "pt", "rlhf"):
                made.flags.append(Record(key="_verb", value=verb, file=file, line=words[1].line))
            return rest
        made.is_other = True
    elif OTHER.search(name) and not TRAINS.search(name):
        made.is_other = True
    return words[1:]


def _take_flags(words: list[Word], made: Launched, file: str) -> None:
    at = 0
    while at < len(words):
        word = words[at]
        override = OVERRIDE.fullmatch(word.text)
        at += 1
        if re.match(r"--?[A-Za-z]", word.text):
            name, equals, value = word.text.lstrip("-").partition("=")
            values = []
            while not equals and at < len(words) and not re.match(r"--?[A-Za-z]", words[at].text):
                values.append(words[at])
                at += 1
            made.flags += _with_groups(_flag(name, value if equals else None, values, word, file))
        elif override is not None:
            span = None if word.span is None else (word.span[1] - len(override[2]), word.span[1])
            made.flags.append(
                Record(
                    key=override[1].replace("/", "."),
                    value=plain(override[2]),
                    file=file,
                    line=word.line,
                    span=span,
                )
            )
        elif word.text.endswith(DOCUMENT):
            made.documents.append(Record(key="config", value=word.text, file=file, line=word.line))


def _flag(name: str, value: str | None, values: list[Word], word: Word, file: str) -> Record:
    key = name.replace("-", "_")
    if value is not None:
        span = None if word.span is None else (word.span[1] - len(value), word.span[1])
        return Record(key=key, value=plain(value), file=file, line=word.line, span=span)
    if not values:
        return Record(key=key, value=True, file=file, line=word.line)
    if len(values) == 1:
        return Record(
            key=key, value=plain(values[0].text), file=file, line=word.line, span=values[0].span
        )
    return Record(key=key, value=[plain(each.text) for each in values], file=file, line=word.line)


def _with_groups(flag: Record) -> list[Record]:
    """`--liger_kernel_config '{"rope": false}'` says a group of settings."""
    if not isinstance(flag.value, str) or not flag.value.startswith("{"):
        return [flag]
    try:
        inner = read_json(flag.value, flag.file)
    except InputError:
        return [flag]
    group = Record(key=flag.key, value={}, file=flag.file, line=flag.line, span=flag.span)
    named = [
        replace(each, key=f"{flag.key}.{each.key}", line=flag.line, span=None) for each in inner
    ]
    return [group, *named]


# ---- what launchers and the environment say


def _read_launcher(settings: Settings, draft: Draft) -> None:
    per_node = settings.record("nproc_per_node", "num_gpus", "NPROC_PER_NODE")
    nodes = settings.record("nnodes", "num_nodes", "num_machines", "NNODES")
    machines = _number(nodes) or 1
    processes = settings.record("num_processes")
    devices = settings.record("CUDA_VISIBLE_DEVICES", "include")
    if processes is not None:  # accelerate's file gives what its command does not say
        draft.replace("gpus", _number(processes), processes)
    elif per_node is not None and _number(per_node):
        draft.say("gpus", (_number(per_node) or 1) * machines, per_node)
        if machines > 1:
            draft.say("gpus-per-node", _number(per_node), per_node)
    elif devices is not None:
        count = str(devices.value).rpartition(":")[2].count(",") + 1
        draft.say("gpus", count, devices)
        if count > 1 and settings.text("_launcher") in SPREADS:
            draft.gap(devices, SPREAD)
    settings.used.add("_launcher")
    for record in (per_node, nodes, processes):
        if record is not None and _number(record) is None:
            draft.gap(record, "how many GPUs is not in the files: give --gpus")
    _read_allocator(settings, draft)
    tokens = settings.record("IMAGE_MAX_TOKEN_NUM")
    if tokens is not None and sees(draft):
        draft.say("image-tokens", tokens.value, tokens)
        draft.assume(f"{tokens.text}: images per sample are not in the files: say --images")
        draft.say("images", 1, f"{tokens.place}: counted with one image per sample")
    elif tokens is not None:
        draft.gap(tokens, "tokens of an image: say --image-tokens and --images")
    say_pixels(draft, settings.record("MAX_PIXELS"))


def _read_allocator(settings: Settings, draft: Draft) -> None:
    record = settings.record("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    if record is not None:
        draft.replace("alloc-conf", record.value, record)
    precision = settings.record("mixed_precision")
    if precision is not None:
        word = str(precision.value).lower()
        draft.facts.setdefault("compute", (word if word in ("bf16", "fp16") else "no", precision))
    workspace = settings.record("CUBLAS_WORKSPACE_CONFIG")
    if workspace is not None:
        draft.say("cublas-workspace", workspace.value, workspace)


def _number(record: Record | None) -> int | None:
    try:
        return None if record is None else int(str(record.value).partition(":")[0])
    except ValueError:
        return None


# Who starts one process for all cards: ms-swift without NPROC_PER_NODE, and Python alone.
SPREADS = ("swift", "python")
SPREAD = "several cards and no launcher: one process spreads its layers over them; counted as a process per card"
VIDEO = "videos: say the tokens of all frames with --image-tokens, the frames with --images"
LAUNCHER = Framework(
    name="launcher",
    title="launcher",
    rules=(_read_launcher,),
    gaps={
        "VIDEO_MAX_PIXELS": VIDEO,
        "FPS_MAX_FRAMES": VIDEO,
        "NFRAMES": VIDEO,
        "VIDEO_MAX_TOKEN_NUM": VIDEO,
    },
    apart=("",),  # variables of the script, whose values were filled in where they are used
)
