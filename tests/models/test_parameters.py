"""Every tensor of every model: names and shapes against the model transformers builds on the meta device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from configs import CATALOG_NAMES, OTHERS, config
from real import meta_model

from vramcast.models.config import Config
from vramcast.models.families import record
from vramcast.models.program import Sizes
from vramcast.models.tape import Regime


@dataclass(frozen=True, slots=True)
class Table:
    """All names with their shapes, and which of them are one tensor."""

    shapes: dict[str, tuple[int, ...]]
    tied: frozenset[frozenset[str]]


def table(names: Iterable[tuple[str, tuple[int, ...], Any]]) -> Table:
    """Of (name, shape, identity)."""
    groups: dict[Any, set[str]] = {}
    shapes = {}
    for name, shape, identity in names:
        shapes[name] = tuple(int(n) for n in shape)
        groups.setdefault(identity, set()).add(name)
    return Table(shapes, frozenset(frozenset(group) for group in groups.values() if len(group) > 1))


def ours(data: Mapping[str, Any]) -> Table:
    program = record(Config(data), Regime(), Sizes())
    return table((param.name, param.shape, param.tied_to or param.name) for param in program.params(tied=True))


def theirs(data: Mapping[str, Any]) -> Table:
    parameters = meta_model(data).named_parameters(remove_duplicate=False)
    return table((name, tuple(param.shape), id(param)) for name, param in parameters)


@pytest.mark.parametrize("name", [*CATALOG_NAMES, *OTHERS])
def test_parameters_are_those_of_the_transformers_model(name: str) -> None:
    data = config(name)
    assert ours(data) == theirs(data)


HEADS = [
    ("bert-base-uncased", "Bert", "Model PreTraining NextSentencePrediction SequenceClassification TokenClassification "
     "QuestionAnswering MultipleChoice"),
    ("roberta-base", "Roberta", "Model CausalLM SequenceClassification TokenClassification QuestionAnswering "
     "MultipleChoice"),
    ("xlm-roberta-base", "XLMRoberta", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("electra-small", "Electra", "Model MaskedLM SequenceClassification TokenClassification QuestionAnswering"),
    ("distilbert-base", "DistilBert", "Model SequenceClassification TokenClassification QuestionAnswering "
     "MultipleChoice"),
    ("t5-small", "T5", "Model EncoderModel SequenceClassification TokenClassification QuestionAnswering"),
    ("mt5-small", "MT5", "Model SequenceClassification"),
    ("umt5-small", "UMT5", "Model EncoderModel SequenceClassification TokenClassification QuestionAnswering"),
    ("bart-large", "Bart", "Model SequenceClassification QuestionAnswering"),
    ("mbart-large", "MBart", "Model SequenceClassification QuestionAnswering"),
    ("pegasus-large", "Pegasus", "Model"),
    ("opus-mt-en-de", "Marian", "Model"),
    ("whisper-tiny", "Whisper", "Model"),
    ("gpt2", "GPT2", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("gpt-neo-125m", "GPTNeo", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("gpt-j-6b", "GPTJ", "Model SequenceClassification QuestionAnswering"),
    ("opt-350m", "OPT", "Model SequenceClassification QuestionAnswering"),
    ("pythia-70m", "GPTNeoX", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("bloom-560m", "Bloom", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("falcon-7b", "Falcon", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("phi-2", "Phi", "Model SequenceClassification TokenClassification"),
    ("stablelm-2-1_6b", "StableLm", "Model SequenceClassification TokenClassification"),
    ("starcoder2-3b", "Starcoder2", "Model SequenceClassification TokenClassification"),
]  # fmt: skip


CLASSES = [
    (name, f"{family}{'' if head.endswith('Model') else 'For'}{head}")
    for name, family, heads in HEADS
    for head in heads.split()
]


@pytest.mark.parametrize(("name", "architecture"), CLASSES)
def test_the_head_follows_the_class_in_architectures(name: str, architecture: str) -> None:
    data = config(name, architectures=[architecture], num_labels=2 if "Question" in architecture else 5)
    assert ours(data) == theirs(data)


def test_an_untied_t5_checkpoint_stores_its_head_apart() -> None:
    """google/flan-t5-small and google/mt5-small: parameters as published, and as transformers 5 builds them."""
    for name, built, published in (("flan-t5-small", 60511616, 76961152), ("mt5-small", 172119424, 300176768)):
        program = record(Config(config(name)), Regime(), Sizes())
        assert sum(param.numel for param in program.params()) == built
        assert program.checkpoint_elements == published
