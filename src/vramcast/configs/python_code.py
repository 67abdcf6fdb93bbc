"""Training scripts and notebooks in Python → records, by their syntax tree. Nothing is run: only literals are values.

The arguments of a few well-known calls are read (`TrainingArguments`, `SFTConfig`, `from_pretrained`, `LoraConfig`,
…). A name that was given a literal before stands for it; anything else is a value that is not in the file.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.configs import peft
from vramcast.configs.python_values import Values, is_open
from vramcast.configs.records import Record
from vramcast.errors import InputError

MOST_NODES = 300_000
MOST_CHARACTERS = 2_000_000  # of all cells of a notebook; pictures are no code
TRAINING = (
    "TrainingArguments",
    "Seq2SeqTrainingArguments",
    "UnslothTrainingArguments",
    "SentenceTransformerTrainingArguments",
)
TRL = tuple(
    f"{name}Config"
    for name in (
        "SFT",
        "DPO",
        "GRPO",
        "ORPO",
        "KTO",
        "CPO",
        "Reward",
        "RLOO",
        "GKD",
        "BCO",
        "OnlineDPO",
    )
)
TRAINERS = tuple(f"{name.removesuffix('Config')}Trainer" for name in TRL)
PARSERS = ("TrlParser", "HfArgumentParser")
UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastSentenceTransformer")
# `AutoModelForCausalLM`, `Mistral3ForConditionalGeneration`
MODEL_CLASS = re.compile(
    r"Model|For(Causal|Conditional|Sequence|Token|Image|Masked|Question|Seq2Seq|Vision)"
)
HEAD = re.compile(r"For(MaskedLM|SequenceClassification)$")
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # as Python counts them
# PEFT's methods that the Job has no word for.
OTHER_PEFT = tuple(
    f"{name}Config"
    for name in (
        "VBLoRA",
        "FourierFT",
        "HRA",
        "XLora",
        "Bone",
        "MiSS",
        "Adamss",
        "RandLora",
        "Shira",
        "C3A",
    )
)
NO_MODEL = ("Peft", "Tokenizer", "Processor", "Config")
VERBS = {
    "DPOConfig": "dpo",
    "ORPOConfig": "orpo",
    "CPOConfig": "cpo",
    "RewardConfig": "reward",
    "GRPOConfig": "grpo",
    "KTOConfig": "kto",
    "DPOTrainer": "dpo",
    "ORPOTrainer": "orpo",
    "RewardTrainer": "reward",
    "KTOTrainer": "kto",
    "CPOTrainer": "cpo",
    "GRPOTrainer": "grpo",
    "RLOOConfig": "grpo",
    "RLOOTrainer": "grpo",
    "SentenceTransformerTrainingArguments": "embed",
}
NAMED = ("model_name", "pretrained_model_name_or_path", "quantization_config", "model", "config")
IN_TRAINER = ("max_seq_length", "packing", "model", "dataset_text_field", "max_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    file: str
    text: str


def read_python(text: str, path: Path) -> tuple[str, list[Record], list[str]]:
    """The framework (trl, hf or unsloth), what the calls say, and what was assumed for it."""
    reader = _Reader()
    for cell in _cells(text, path):
        reader.read(cell)
    if reader.parser and not reader.has_config:
        raise InputError(
            f"{path}: takes its settings from the command line ({reader.parser}); give the launch script or its "
            "configuration, or say them with flags"
        )
    if not reader.framework:
        raise InputError(
            f"{path}: no TrainingArguments, TRL config or unsloth model in it; `vramcast trace {path}` runs it instead"
        )
    records = reader.of_last_training()
    return reader.framework, records, sorted(reader.values.assumed)


def _cells(text: str, path: Path) -> Iterator[Cell]:
    if path.suffix != ".ipynb":
        yield Cell(file=str(path), text=text)
        return
    try:
        notebook = json.loads(text)
        cells = [each for each in notebook["cells"] if each["cell_type"] == "code"]
        sources = ["".join(each["source"]) for each in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a notebook ({type(error).__name__})") from None
    for number, source in enumerate(sources, 1):
        yield Cell(file=f"{path} cell {number}", text=_without_magics(source))


def _without_magics(source: str) -> str:
    """`!pip install …` and `%%capture` are not Python."""
    lines = source.split("\n")
    return "\n".join("" if line.lstrip().startswith(("!", "%")) else line for line in lines)


class _Reader:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.trainings: list[tuple[str, list[Record]]] = []  # of every configuration in the text
        self.trainers: list[tuple[str, list[Record]]] = []
        self.values = Values()
        self.framework = ""
        self.num_characters = 0
        self.num_nodes = 0
        self.has_loaded = False
        self.by_unsloth = False
        self.has_config = False
        self.parser = ""  # what reads the settings from the command line

    def read(self, cell: Cell) -> None:
        self.num_characters += len(cell.text)
        if self.num_characters > MOST_CHARACTERS:
            raise InputError(f"{cell.file}: too much Python for a training script")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python's own, of literals as in `1in`
                tree = ast.parse(cell.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if " cell " in cell.file:
                return  # a cell of shell, or half written
            line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
            raise InputError(f"{cell.file}{line}: not Python ({type(error).__name__})") from None
        nodes = list(ast.walk(tree))
        self.num_nodes += len(nodes)
        if self.num_nodes > MOST_NODES:
            raise InputError(f"{cell.file}: too much Python for a training script")
        self.values.learn(nodes)
        for node in nodes:
            self._tokenizer_length(node, cell)
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            self._call(call, cell)

    def _value(self, node: ast.expr) -> Any:
        return self.values.value(node)

    def _call(self, call: ast.Call, cell: Cell) -> None:
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name in PARSERS:
            self.parser = name
        elif name in TRAINING or name in TRL:
            self._training(name, call, cell)
        elif name in TRAINERS:
            self._trainer(name, call, cell)
        elif name == "from_pretrained":
            self._loading(owner, call, cell)
        elif name == "LoraConfig" or (name == "get_peft_model" and owner in UNSLOTH):
            self._take(call, cell)
            self._say("use_peft", True, call, cell)
        elif name in peft.CLASSES:
            self._take(call, cell)
            self._say("peft_type", peft.CLASSES[name], call, cell)
        elif name in OTHER_PEFT:
            self._say("peft_config", name, call, cell)
        elif name == "BitsAndBytesConfig":
            self._take(call, cell)
        elif name == "gradient_checkpointing_enable":
            self._say("gradient_checkpointing", True, call, cell)
        elif name == "prepare_model_for_kbit_training":
            self._prepared(call, cell)
        elif any(each.arg == "truncation" for each in call.keywords):
            self._tokenizing(call, cell)

    def _prepared(self, call: ast.Call, cell: Cell) -> None:
        """PEFT: checkpointing is on unless the call says otherwise."""
        named = {each.arg: self._value(each.value) for each in call.keywords}
        self._say("_prepared", named.get("use_gradient_checkpointing", True), call, cell)

    def _tokenizing(self, call: ast.Call, cell: Cell) -> None:
        """`tokenizer(text, truncation=True, max_length=512)` says how long samples are."""
        lengths = [each for each in call.keywords if each.arg == "max_length"]
        if lengths and type(self._value(lengths[0].value)) is int:
            self._say("tokenizer.max_length", self._value(lengths[0].value), lengths[0].value, cell)

    def _tokenizer_length(self, node: ast.AST, cell: Cell) -> None:
        """`tokenizer.model_max_length = 4096`"""
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or not isinstance(target, ast.Attribute):
            return
        if target.attr == "model_max_length" and type(self._value(node.value)) is int:
            self._say("tokenizer.max_length", self._value(node.value), node.value, cell)

    def _training(self, name: str, call: ast.Call, cell: Cell) -> None:
        self.has_config = True
        self._recognise("trl" if name in TRL else "hf")
        start = len(self.records)
        if name in VERBS:
            self._say("_verb", VERBS[name], call, cell)
        for keyword in call.keywords:
            self._keyword(keyword, cell)
        self.trainings.append((name.removesuffix("Config"), self.records[start:]))

    def _trainer(self, name: str, call: ast.Call, cell: Cell) -> None:
        self._recognise("trl")
        start = len(self.records)
        if name in VERBS:
            self._say("_verb", VERBS[name], call, cell)
        models = [each.value for each in call.keywords if each.arg == "model"] or call.args[:1]
        for model in models:
            value = self._value(model)
            if isinstance(value, str) and not is_open(value) and not self.has_loaded:
                self._say("model_name_or_path", value, model, cell)
        for keyword in call.keywords:
            if keyword.arg in IN_TRAINER and keyword.arg != "model":
                self._keyword(keyword, cell)
        self.trainers.append((name.removesuffix("Trainer"), self.records[start:]))

    def of_last_training(self) -> list[Record]:
        """A notebook may train twice; what its last training does not say is not taken from another."""
        if len(self.trainings) < 2:
            return self.records
        name, _ = self.trainings[-1]
        others = [records for _, records in self.trainings[:-1]]
        has_own = any(trainer == name for trainer, _ in self.trainers)
        others += [records for trainer, records in self.trainers if has_own and trainer != name]
        dropped = {id(record) for records in others for record in records}
        self.values.assumed.add(f"has {len(self.trainings)} trainings: the last is read, `{name}`")
        return [record for record in self.records if id(record) not in dropped]

    def _loading(self, owner: str, call: ast.Call, cell: Cell) -> None:
        """Models; tokenizers and processors are loaded by the same word."""
        last = owner.rpartition(".")[2]
        is_model = last in UNSLOTH or (
            MODEL_CLASS.search(last) is not None and not any(word in last for word in NO_MODEL)
        )
        if not is_model or (self.has_loaded and (last not in UNSLOTH or self.by_unsloth)):
            return  # the first that is loaded, or the first by unsloth
        self.by_unsloth = last in UNSLOTH
        self.has_loaded = True
        if last in UNSLOTH:
            self._recognise("unsloth")
        self._say("_loaded", "stored", call, cell)
        head = HEAD.search(last)
        if head is not None:
            self._say("_head", head[0], call, cell)
        named = next(
            (
                each.value
                for each in call.keywords
                if each.arg in ("model_name", "pretrained_model_name_or_path")
            ),
            None,
        )
        named = named if named is not None else next(iter(call.args), None)
        if named is not None:
            self._say("model_name_or_path", self._value(named), named, cell)
        self._take(call, cell)

    def _take(self, call: ast.Call, cell: Cell) -> None:
        """All arguments with a name; what the table does not know is named in the report."""
        for keyword in call.keywords:
            if keyword.arg not in NAMED:
                self._keyword(keyword, cell)

    def _keyword(self, keyword: ast.keyword, cell: Cell) -> None:
        value = self._value(keyword.value)
        if keyword.arg is None and isinstance(value, dict):  # `LoraConfig(**settings)`
            for key, each in value.items():
                if key not in NAMED:
                    self._say(key, each, keyword.value, cell)
        elif keyword.arg is None:
            self._say(f"**{ast.unparse(keyword.value)[:100]}", "$(…)", keyword.value, cell)
        elif isinstance(value, dict):
            for key, each in value.items():
                self._say(f"{keyword.arg}.{key}", each, keyword.value, cell)
        else:
            self._say(str(keyword.arg), value, keyword.value, cell)

    def _say(self, key: str, value: Any, node: ast.expr, cell: Cell) -> None:
        span = None
        if isinstance(node, ast.Constant) and " cell " not in cell.file:
            span = _span(node, cell.text)
        self.records.append(
            Record(key=key, value=value, file=cell.file, line=node.lineno, span=span)
        )

    def _recognise(self, name: str) -> None:
        order = ("", "hf", "trl", "unsloth")
        self.framework = max(self.framework, name, key=order.index)


def _span(node: ast.expr, text: str) -> tuple[int, int] | None:
    """Characters of a literal; columns of the tree count bytes."""
    lines, starts = _lines(text)
    one_line = node.end_lineno == node.lineno and node.lineno <= len(lines)
    if not one_line or node.end_col_offset is None:
        return None
    line = lines[node.lineno - 1].encode()
    before = starts[node.lineno - 1]
    start, end = (len(line[:column].decode()) for column in (node.col_offset, node.end_col_offset))
    return before + start, before + end


@functools.lru_cache(maxsize=2)
def _lines(text: str) -> tuple[list[str], list[int]]:
    """The lines, and where each begins."""
    lines = LINE.findall(text)
    return lines, [0, *itertools.accumulate(map(len, lines))]
