"""Every tensor of every model: names and shapes against the model transformers builds on the meta device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from configs import CATALOG_NAMES, OTHERS, config
from real import meta_model, model_class

from vramcast.errors import VramcastError
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import Regime


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
    return table(
        (param.name, param.shape, param.tied_to or param.name)
        for param in program.params(tied=True)
    )


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
    data = config(
        name, architectures=[architecture], num_labels=2 if "Question" in architecture else 5
    )
    assert ours(data) == theirs(data)


def test_an_untied_t5_checkpoint_stores_its_head_apart() -> None:
    """google/flan-t5-small and google/mt5-small: parameters as published, and as transformers 5 builds them."""
    for name, built, published in (
        ("flan-t5-small", 60511616, 76961152),
        ("mt5-small", 172119424, 300176768),
    ):
        program = record(Config(config(name)), Regime(), Sizes())
        assert sum(param.numel for param in program.params()) == built
        assert program.checkpoint_elements == published


BARE = [
    "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTNeoForCausalLM", "GPTJForCausalLM", "CodeGenForCausalLM",
    "OPTForCausalLM", "GPTNeoXForCausalLM", "PhiForCausalLM", "StableLmForCausalLM", "Starcoder2ForCausalLM",
    "BloomForCausalLM", "FalconForCausalLM", "BertForMaskedLM", "RobertaForMaskedLM", "XLMRobertaForMaskedLM",
    "CamembertForMaskedLM", "ElectraForMaskedLM", "DistilBertForMaskedLM", "T5ForConditionalGeneration",
    "MT5ForConditionalGeneration", "UMT5ForConditionalGeneration", "BartForConditionalGeneration",
    "MBartForSequenceClassification", "BartForSequenceClassification", "PegasusForConditionalGeneration",
    "MarianMTModel", "WhisperForConditionalGeneration",
]  # fmt: skip


@pytest.mark.parametrize("architecture", BARE)
def test_absent_keys_mean_what_they_mean_to_transformers(architecture: str) -> None:
    data = {"model_type": model_class({"architectures": [architecture]}).config_class.model_type}
    data["architectures"] = [architecture]
    assert ours(data) == theirs(data)


SWITCHES = [
    ("gpt2", {"add_cross_attention": True}), ("gpt2", {"tie_word_embeddings": False, "n_inner": 100}),
    ("starcoderbase-1b", {"multi_query": False}), ("opt-125m", {"enable_bias": False, "tie_word_embeddings": False}),
    ("opt-125m", {"layer_norm_elementwise_affine": False}), ("opt-125m", {"_remove_final_layer_norm": True}),
    ("pythia-70m", {"attention_bias": False, "tie_word_embeddings": True}), ("phi-2", {"num_key_value_heads": 8}),
    ("bloom-560m", {"tie_word_embeddings": False}), ("falcon-40b", {"num_ln_in_parallel_attn": 1}),
    ("falcon-7b", {"parallel_attn": False, "bias": True}), ("falcon-7b", {"ffn_hidden_size": 1000}),
    ("falcon-rw-1b", {"num_kv_heads": 32, "alibi": False}), ("starcoder2-3b", {"use_bias": False}),
    ("bert-base-uncased", {"tie_word_embeddings": False}), ("roberta-base", {"tie_word_embeddings": False}),
    ("electra-small", {"embedding_size": 256}), ("t5-small", {"feed_forward_proj": "gated-silu"}),
    ("t5-small", {"num_decoder_layers": 2}), ("bart-large", {"tie_word_embeddings": False}),
    ("bart-large", {"decoder_layers": 3, "decoder_ffn_dim": 512, "encoder_attention_heads": 8}),
    ("opus-mt-en-de", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60000}),
    ("opus-mt-en-de", {"tie_word_embeddings": False}), ("whisper-tiny", {"tie_word_embeddings": False}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), SWITCHES)
def test_switches_of_a_config_change_the_table_as_in_transformers(
    name: str, changes: dict[str, Any]
) -> None:
    data = config(name, **changes)
    assert ours(data) == theirs(data)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gpt2", {"n_head": 7}, "768 does not divide by 7"), ("bert-base-uncased", {"hidden_size": 100}, "100"),
        ("falcon-40b", {"num_kv_heads": 7}, "128 does not divide by 7"), ("opt-125m", {"ffn_dim": -1}, "ffn_dim"),
        ("gpt-j-6b", {"rotary_dim": 1000}, "rotary_dim"), ("t5-small", {"feed_forward_proj": "a-b-c"}, "a-b-c"),
        ("bart-large", {"d_model": "wide"}, "d_model"), ("phi-2", {"num_key_value_heads": 5}, "5"),
        ("whisper-tiny", {"decoder_attention_heads": 5}, "5"), ("gpt2", {"architectures": ["GPT2ForDreams"]}, "Dreams"),
        ("gpt2", {"activation_function": "wobble"}, "wobble"), ("bloom-560m", {"hidden_dropout": "much"}, "much"),
    ],
)  # fmt: skip
def test_an_absurd_config_is_refused_by_name(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(VramcastError, match=said):
        ours(config(name, **changes))
