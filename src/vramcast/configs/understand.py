"""Files → the Job they describe, with the origin of every value.

1. every file gives parts: settings, and the framework whose words they are (`recognise`) 2. the main part is read
first, then DeepSpeed's, accelerate's and the launcher's 3. paths inside a part are followed (`folders.py`) 4. what
they decide together is decided: precision, what the framework does by default 5. flags win over files; what is left
open stays open, for the framework's profile
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vramcast.configs.deepspeed import stage_from_name
from vramcast.configs.documents import read_json, read_yaml
from vramcast.configs.folders import Folders, real_path
from vramcast.configs.framework import SUGGESTIVE, Framework, is_off
from vramcast.configs.framework_version import FrameworkVersion, check_version, decide_version
from vramcast.configs.launch import LAUNCHER, Launched, launched_by
from vramcast.configs.megatron import MEGATRON_ARGS, megatron_argument
from vramcast.configs.parents import with_parents
from vramcast.configs.pinned_versions import pinned_versions, say_pinned_versions
from vramcast.configs.precision import decide_precision
from vramcast.configs.records import Draft, Gap, Record, Said, Settings, is_open, is_unset
from vramcast.configs.shell import read_shell
from vramcast.configs.tables import AFTER, BY_NAME, LEAST_LIKENESS, PARTNERS
from vramcast.errors import InputError, unknown
from vramcast.job import FRAMEWORKS

YAML = (".yaml", ".yml")
# Whose model or configuration is Python, by keys of their files.
IN_CODE = {
    "trainer.": "Lightning's model is a class of your own: `vramcast trace -- python … fit --config …` runs it",
    "job.": "torchtitan configures in Python: `vramcast trace -- …` runs its launch line",
}
# Settings that are paths whose last part says what is meant.
NAMED_BY_PATH = (
    "model_name_or_path",
    "model_id",
    "model",
    "pretrain",
    "base_model",
    "actor_rollout_ref.model.path",
    "model.path",
    "model.partial_pretrain",
    "checkpointer.checkpoint_dir",
    "deepspeed",
    "deepspeed_config",
)
LAST_NAME = re.compile(r".*/([A-Za-z][\w.+-]*)/?", re.DOTALL)
# Names of lengths and of DeepSpeed's settings, where no framework's table knows them.
LENGTHS = re.compile(
    r"(^|[._])(max|pack|prompt|response|completion|context|seq|block)(_\w+)?_len(gth)?(_|$)|deepspeed"
)
SHELL = (".sh", ".bash", ".slurm", ".sbatch", ".zsh", ".txt")
PYTHON = (".py", ".ipynb")
WRAPPER = "parameters."
MODEL_CONFIG = ("model_type", "architectures")
# Whose habits stand in while a framework has no profile of its own.
NEAREST = {
    "llama-factory": "hf",
    "axolotl": "hf",
    "ms-swift": "hf",
    "ms-swift-megatron": "megatron",
    "peft": "hf",
    "unsloth": "hf",
    "openrlhf": "deepspeed",
    "verl": "accelerate",
    "nemo": "accelerate",
    "llm-foundry": "accelerate",
    "nanotron": "megatron",
    "llama-factory-v1": "llama-factory",
}


@dataclass(slots=True)
class Part:
    framework: Framework
    settings: Settings
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What the files say, as the Job's values with origins, and what of them is not in it."""

    said: Mapping[str, Said]
    frameworks: tuple[str, ...]  # titles, the main one first
    gaps: tuple[Gap, ...]
    unknown: tuple[Record, ...]
    assumptions: tuple[str, ...]
    total_batch: Record | None = None  # of all GPUs, accumulated
    version: FrameworkVersion = FrameworkVersion()
    asked_version: str | None = None  # by --framework-version
    parts: tuple[Part, ...] = field(default=(), repr=False)

    @property
    def values(self) -> dict[str, Any]:
        return {key: said.value for key, said in self.said.items()}


@dataclass(slots=True)
class _Reader:
    folders: Folders
    forced: str | None
    parts: list[Part] = field(default_factory=list)
    draft: Draft = field(default_factory=Draft)
    merged: set[Path] = field(default_factory=set)  # files that others inherit from
    asked_version: str | None = None
    model: str | None = None  # that a flag names
    version: FrameworkVersion = FrameworkVersion()

    # ---- files

    def take(self, path: Path) -> None:
        if path.is_dir():
            self._folder(path)
            return
        suffix = path.suffix.lower()
        text = self.folders.read(path)
        if suffix in PYTHON:
            self._python(text, path)
        elif suffix in SHELL or text.startswith("#!"):
            self._script(text, path)
        elif suffix == ".toml":
            raise InputError(
                f"{path}: TOML is not read yet; say the job with flags, or with `vramcast trace -- …`"
            )
        else:
            self._document(self._records(path), path)

    def _records(self, path: Path) -> list[Record]:
        read = read_json if path.suffix.lower() == ".json" else read_yaml
        return read(self.folders.read(path), str(path))

    def _folder(self, path: Path) -> None:
        """A folder with a config.json is the model; one with an adapter_config.json says how it is adapted."""
        adapter = path / "adapter_config.json"
        if (path / "config.json").exists():
            self.draft.say("model", str(path), str(path))
        if adapter.exists():
            self.take(adapter)
        elif "model" not in self.draft.said:
            raise InputError(f"{path}: a folder without config.json; name the files in it")

    def _document(self, records: list[Record], path: Path) -> None:
        records, parents = with_parents(records, path, self.folders, self.draft, self._records)
        self.merged |= parents
        self.parts = [part for part in self.parts if real_path(part.path) not in parents]
        keys = {record.key for record in records}
        if any(key.startswith(MEGATRON_ARGS) for key in keys):
            self._environment(records, path)
            records = [
                named for record in records if (named := megatron_argument(record)) is not None
            ]
        if (
            "model_type" in keys
            and any(key.startswith("architectures") for key in keys)
            and "base_model" not in keys
        ):
            self.draft.say("model", str(path), str(path))
            return
        records = self._unwrapped(records, path)
        settings = Settings(records)
        framework = self._recognise(settings, str(path))
        self.parts.append(Part(framework=framework, settings=settings, path=path))

    def _unwrapped(self, records: list[Record], path: Path) -> list[Record]:
        """MosaicML's platform keeps a training's settings under `parameters`, and its cards under `compute`."""
        inner = [
            _renamed(each, each.key.removeprefix(WRAPPER))
            for each in records
            if each.key.startswith(WRAPPER)
        ]
        likeness = max(each.likeness(Settings(inner)) for each in BY_NAME.values())
        if not inner or likeness < LEAST_LIKENESS:
            return records
        cards = [_renamed(each, "num_processes") for each in records if each.key == "compute.gpus"]
        self.parts.append(Part(framework=LAUNCHER, settings=Settings(cards), path=path))
        return inner

    def _environment(self, records: list[Record], path: Path) -> None:
        prefix = "ENV_VARS."
        named = [each for each in records if each.key.startswith(prefix)]
        found = [_renamed(each, each.key.removeprefix(prefix)) for each in named]
        self.parts.append(Part(framework=LAUNCHER, settings=Settings(found), path=path))

    def _recognise(self, settings: Settings, where: str) -> Framework:
        scores = {name: each.likeness(settings) for name, each in BY_NAME.items()}
        partner = max(PARTNERS[:2], key=lambda name: scores[name])
        best = max(scores, key=lambda name: scores[name])
        if best == partner and scores[partner] >= LEAST_LIKENESS:
            return BY_NAME[partner]
        if self.forced is not None:
            return BY_NAME[self.forced]
        if scores[best] < LEAST_LIKENESS:
            for key, text in IN_CODE.items():
                if any(record.key.startswith(key) for record in settings):
                    raise InputError(f"{where}: {text}")
            raise InputError(
                f"{where}: no framework's configuration is recognised in it; say whose it is with --framework "
                f"({', '.join(sorted(BY_NAME))})"
            )
        return BY_NAME[best]

    # ---- scripts

    def _script(self, text: str, path: Path) -> None:
        script = read_shell(text, str(path), lambda named: self._sourced(named, path))
        made = [(command, launched_by(command, str(path))) for command in script.commands]
        training = [(command, each) for command, each in made if self._trains(each)]
        if not training:
            raise InputError(
                f"{path}: no command in it that starts a training was recognised; say whose with --framework"
            )
        command, launched = training[0]
        if len(training) > 1:
            self.draft.assume(
                f"{path} starts {len(training)} trainings: the first is read, `{launched.program}`"
            )
        for line in script.open_lines:
            self.draft.assume(
                f"{path}:{line}: which branch is taken is not in the files: the first is read"
            )
        for line in script.loose_lines:
            self.draft.assume(
                f"{path}:{line}: a space behind the backslash ends the command in bash; read as if it went on"
            )
        for word in script.not_sourced:
            self.draft.assume(
                f"{path}:{word.line}: takes in {word.text}, which is not read: give its values as flags"
            )
        environment = {**script.exported, **command.environment}
        records = [
            Record(key=name, value=word.text, file=str(path), line=word.line, span=word.span)
            for name, word in environment.items()
        ]
        self._launched(launched, records, path)

    def _sourced(self, named: str, path: Path) -> str | None:
        found = self.folders.find(named, path)
        return None if found is None or found.is_dir() else self.folders.read(found)

    def _trains(self, launched: Launched) -> bool:
        if launched.is_training or launched.framework or launched.is_other:
            return not launched.is_other
        settings = Settings(launched.flags)
        scores = [each.likeness(settings) for each in BY_NAME.values()]
        is_launched = bool(launched.launcher and (launched.documents or "config" in settings))
        return max(scores) >= LEAST_LIKENESS or is_launched

    def _launched(self, launched: Launched, environment: list[Record], path: Path) -> None:
        alone = "swift" if launched.program.endswith("swift") else "python"
        how = launched.launcher or (alone if launched.starts_alone else "")
        said = Record(key="_launcher", value=how, file=str(path), line=0)
        options = Settings([*environment, *launched.options, said])
        if launched.launcher == "accelerate":
            self._follow_accelerate(options, path)
        flags = list(launched.flags)
        named = [
            record for record in flags if record.key == "config" and isinstance(record.value, str)
        ]
        for record in (*launched.documents, *named):
            flags = [*self._followed_document(record, path), *flags]
        settings = Settings(flags)
        name = self.forced or launched.framework
        framework = BY_NAME[name] if name in BY_NAME else self._recognise(settings, str(path))
        program = Record(key="_program", value=launched.program, file=str(path), line=0)
        settings.records[program.key] = program
        self.parts.append(Part(framework=framework, settings=settings, path=path))
        self.parts.append(Part(framework=LAUNCHER, settings=options, path=path))

    def _follow_accelerate(self, options: Settings, path: Path) -> None:
        record = options.record("config_file")
        if record is None:
            return
        found = self._found(record, path)
        if found is not None and not self._is_read(found):
            self.take(found)
        elif found is None:
            self.draft.gap(record, self._why_not(record, path))

    def _followed_document(self, record: Record, path: Path) -> list[Record]:
        found = self._found(record, path)
        if found is None:
            if record.value and str(record.value).endswith((*YAML, ".json")):
                self.draft.gap(record, self._why_not(record, path))
            return []
        self.parts = [part for part in self.parts if part.path != found]
        return self._records(found)

    def _python(self, text: str, path: Path) -> None:
        from vramcast.configs.python_code import read_python

        framework, records, assumed = read_python(text, path)
        for each in assumed:
            told = f"{path} {each}"
            self.draft.assume(told)
        chosen = BY_NAME[self.forced or framework]
        settings = Settings(records)
        settings.asked.update(each.key for each in records if each.key.startswith("**"))
        settings.used.update(settings.asked)
        self.parts.append(Part(framework=chosen, settings=settings, path=path))

    # ---- paths inside

    def _found(self, record: Record, path: Path) -> Path | None:
        return self.folders.find(str(record.value), path)

    def _is_read(self, path: Path) -> bool:
        real = real_path(path)
        return real in self.merged or any(real_path(part.path) == real for part in self.parts)

    def _why_not(self, record: Record, path: Path) -> str:
        if self.folders.is_outside(str(record.value), path):
            return "lies outside of the given folders and is not opened: give it as well"
        return "is not here: give the file as well"

    def follow(self) -> None:
        """DeepSpeed's and accelerate's files that a part names."""
        has_deepspeed = any(part.framework.name == "deepspeed" for part in self.parts)
        for part in list(self.parts):
            self._take_names(part)
            if has_deepspeed:
                self._drop_open(part)
            for key in (
                "deepspeed",
                "deepspeed_config",
                "deepspeed_config.deepspeed_config_file",
                "fsdp_config",
            ):
                record = part.settings.record(key)
                if record is not None and isinstance(record.value, str):
                    self._follow_partner(key, record, part)
            inner = part.settings.under("deepspeed") if part.framework.name not in PARTNERS else []
            if inner:
                records = [_renamed(each, each.key.removeprefix("deepspeed.")) for each in inner]
                made = Part(
                    framework=BY_NAME["deepspeed"], settings=Settings(records), path=part.path
                )
                self.parts.append(made)

    def _take_names(self, part: Part) -> None:
        """`$MODELS/Qwen2.5-7B`: the folder is not in the files, the name is."""
        for key in NAMED_BY_PATH:
            record = part.settings.records.get(key)
            value = "" if record is None else str(record.value)
            found = LAST_NAME.fullmatch(value)
            if record is None or not is_open(value) or found is None:
                continue
            part.settings.records[key] = replace(record, value=found[1])
            self.draft.assume(
                f"{record.text}: the folder is not in the files; taken by its name as {found[1]}"
            )

    def _drop_open(self, part: Part) -> None:
        """`--deepspeed $CONFIG`, and DeepSpeed's file is given."""
        for key in ("deepspeed", "deepspeed_config"):
            record = part.settings.records.get(key)
            if record is not None and is_open(record.value):
                del part.settings.records[key]
                self.draft.assume(
                    f"{record.text}: not in the files; DeepSpeed's file that was given is taken"
                )

    def _follow_partner(self, key: str, record: Record, part: Part) -> None:
        found = self._found(record, part.path)
        if found is not None and self._is_read(found):
            return
        if found is None:
            is_named = key != "fsdp_config" and stage_from_name(
                Path(str(record.value)).name, record, self.draft
            )
            if not is_named or self.folders.is_outside(str(record.value), part.path):
                self.draft.gap(record, self._why_not(record, part.path))
            return
        records = self._records(found)
        if key == "fsdp_config":
            records = [_renamed(each, f"fsdp_config.{each.key}") for each in records]
            part.settings = Settings([*part.settings, *records])
        else:
            self.parts.append(
                Part(framework=BY_NAME["deepspeed"], settings=Settings(records), path=found)
            )

    # ---- the job

    def read(self) -> None:
        """Main parts first, then those that say how they are run."""
        order = sorted(self.parts, key=lambda part: _rank(part.framework.name))
        main = [part for part in order if part.framework.name not in PARTNERS]
        self.draft.framework = self.forced or (
            main[0].framework.name if main else order[0].framework.name
        )
        pins = pinned_versions(self.folders)
        self.version = decide_version(self.draft, self.asked_version, pins)
        if self.model is not None:
            self.draft.facts["model"] = self.model
        for part in order:
            try:
                part.framework.read(part.settings, self.draft)
            except (TypeError, ValueError, OverflowError) as error:
                raise InputError(
                    f"{part.path}: a value is not what {part.framework.title} takes ({error})"
                ) from None
        for after in AFTER.get(self.draft.framework, ()):
            after(main[0].settings if main else order[0].settings, self.draft)
        say_pinned_versions(pins, self.draft)
        decide_precision(self.draft)
        self._framework_word()
        self._check_model(main)
        self.parts = order

    def _framework_word(self) -> None:
        if not {"lora-rank", "adapter"} & set(self.draft.said):
            self.draft.say("tuning", "full", "no adapters in the files")
        name = self.draft.framework
        word = name if name in FRAMEWORKS else NEAREST.get(name, "hf")
        title = BY_NAME[name].title
        how = f"{title} recognised" if self.forced is None else "--framework"
        if "framework" not in self.draft.said:
            self.draft.say("framework", word, how)

    def _check_model(self, main: Sequence[Part]) -> None:
        """A path relative to the file that names it; a folder that is not here is known by its name."""
        for key in ("model", "critic-model"):
            said = self.draft.said.get(key)
            if said is not None and said.record is not None and main:
                self._check_path(key, str(said.value), said.record)

    def _check_path(self, key: str, named: str, record: Record) -> None:
        if "$" in named:
            self.draft.said.pop(key)
            self.draft.gap(record, "the model's name is not in the files: give MODEL")
            return
        path = self.folders.find(named, Path(record.file))
        if path is not None and not _holds_model(path):
            path = None  # a folder of the same name
        if path is not None and path != Path(named):
            self.draft.replace(key, str(path), record)
        elif (
            path is None
            and (named.startswith((".", "/", "~")) or named.count("/") > 1)
            and not Path(named).exists()
        ):
            last = named.rstrip("/").rpartition("/")[2]
            self.draft.replace(key, last, record)
            self.draft.assume(f"{record.text}: not here; taken by its name as {last}")


def _holds_model(path: Path) -> bool:
    if not path.is_dir():
        return True
    return (path / "config.json").exists() or any(path.glob("*.safetensors"))


def _rank(name: str) -> int:
    return PARTNERS.index(name) + 1 if name in PARTNERS else 0


def _renamed(record: Record, key: str) -> Record:
    return replace(record, key=key)


def understand(
    paths: Sequence[Path],
    framework: str | None = None,
    texts: Mapping[Path, str] | None = None,
    *,
    version: str | None = None,
    model: str | None = None,
) -> Understood:
    """Read the files as one job. `texts` stand in for files on disk. `version`: of the framework; `model`: what a flag
    says that it is, whose config decides what files say of "the checkpoint's dtype" or "the last two layers"."""
    check_version(version)
    if framework is not None and framework not in BY_NAME:
        if framework not in FRAMEWORKS:
            raise unknown("framework", framework, {*BY_NAME, *FRAMEWORKS})
        framework = None
    reader = _Reader(
        folders=Folders(paths, texts), forced=framework, asked_version=version, model=model
    )
    for path in paths:
        if not reader._is_read(path):
            reader.take(path)
    if not reader.parts:
        raise InputError(
            f"{paths[0]}: says which model, and nothing of a training; give its configuration as well"
        )
    reader.follow()
    reader.read()
    draft = reader.draft
    unread = [record for part in reader.parts for record in _unread(part)]
    doubtful = [
        record
        for record in unread
        if (SUGGESTIVE.search(record.key) or LENGTHS.search(record.key))
        and not is_off(record.value)
    ]
    for record in doubtful:
        draft.gap(record, "not known, and by its name it may matter")
    return Understood(
        said=draft.said,
        frameworks=tuple(dict.fromkeys(part.framework.title for part in reader.parts)),
        gaps=tuple(draft.gaps),
        unknown=tuple(record for record in unread if record not in doubtful),
        assumptions=tuple(draft.assumptions),
        total_batch=draft.facts.get("global_batch"),
        version=reader.version,
        asked_version=version,
        parts=tuple(reader.parts),
    )


def _unread(part: Part) -> list[Record]:
    """What nobody looked at; a name with an underscore in front is the reader's own."""
    found = (record for record in part.settings.unused() if not is_unset(record.value))
    return [record for record in found if not record.key.startswith("_")]
