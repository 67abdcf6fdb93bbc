"""Prompts, responses, their end marks and the bytes of a batch."""

from __future__ import annotations

import pickle

import pytest
from transformers import ByT5Tokenizer

from vramcast.errors import InputError
from vramcast.runtime import PromptResponse, TokenizeCollate


@pytest.fixture(scope="module")
def tokenizer() -> ByT5Tokenizer:
    return ByT5Tokenizer()


def test_texts_end_in_one_mark() -> None:
    pair = PromptResponse()({"prompt": "你好", "response": "再见[EOS]", "other": 1})
    assert pair == ("你好[EOS]", "再见[EOS]")


def test_a_cut_text_keeps_its_mark() -> None:
    assert PromptResponse(max_chars=8)({"prompt": "abcdefgh", "response": "a"}) == (
        "abc[EOS]",
        "a[EOS]",
    )
    with pytest.raises(InputError, match="max_chars=5"):
        PromptResponse(max_chars=5)


def test_other_columns_can_be_named_and_a_missing_one_is() -> None:
    assert PromptResponse(prompt="q", response="a", eos="</s>")({"q": "x", "a": "y"}) == (
        "x</s>",
        "y</s>",
    )
    with pytest.raises(InputError, match=r"'prompt' holds None.*q, a"):
        PromptResponse()({"q": "x", "a": "y"})


def test_a_full_batch_has_exactly_the_predicted_bytes(tokenizer: ByT5Tokenizer) -> None:
    batch = TokenizeCollate(tokenizer=tokenizer, max_length=512)([("问" * 600, "a" * 600)] * 24)
    assert sum(tensor.nbytes for tensor in batch.values()) == 294_912
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == dict.fromkeys(
        batch, (24, 512)
    )


def test_padding_is_to_the_longest_and_not_trained_on(tokenizer: ByT5Tokenizer) -> None:
    batch = TokenizeCollate(tokenizer=tokenizer, max_length=512)([("abc", "x"), ("abcdef", "xyz")])
    assert batch["input_ids"].shape == (2, 7)
    assert batch["labels"].tolist()[0][2:] == [-100, -100]
    assert batch["labels"].tolist()[0][1] == tokenizer.eos_token_id


def test_a_cut_sequence_still_ends(tokenizer: ByT5Tokenizer) -> None:
    batch = TokenizeCollate(tokenizer=tokenizer, max_length=8)([("a" * 50, "b" * 50), ("a", "b")])
    assert batch["input_ids"][0, -1] == batch["labels"][0, -1] == tokenizer.eos_token_id


def test_both_travel_to_spawned_workers(tokenizer: ByT5Tokenizer) -> None:
    collate = pickle.loads(pickle.dumps(TokenizeCollate(tokenizer=tokenizer, max_length=8)))
    assert collate([pickle.loads(pickle.dumps(PromptResponse()))({"prompt": "a", "response": "b"})])
