"""From rows to what a sequence-to-sequence model is fed: text pairs, and token ids made in the collate function.

In: rows with a prompt and a response. Out: pairs of strings ending in the end-of-sequence mark, and tensors of ids,
mask and labels. Tokenising in `collate_fn` keeps strings, not ids, in the dataset. Imports torch only to collate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.errors import InputError

IGNORED_LABEL = -100  # torch.nn.functional.cross_entropy's default ignore_index


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResponse:
    """Row to (prompt, response), each cut to `max_chars` with the mark included, each ending in one mark."""

    prompt: str = "prompt"
    response: str = "response"
    eos: str = "[EOS]"
    max_chars: int | None = None

    def __post_init__(self) -> None:
        if self.max_chars is not None and self.max_chars <= len(self.eos):
            raise InputError(
                f"max_chars={self.max_chars} leaves no room for text before {self.eos!r}"
            )

    def __call__(self, row: Mapping[str, Any]) -> tuple[str, str]:
        return self._ended(row, self.prompt), self._ended(row, self.response)

    def _ended(self, row: Mapping[str, Any], column: str) -> str:
        text = row.get(column)
        if not isinstance(text, str):
            known = ", ".join(row)
            raise InputError(f"column {column!r} holds {text!r}, not text. The row has: {known}.")
        bare = text.removesuffix(self.eos) if self.eos else text
        room = None if self.max_chars is None else self.max_chars - len(self.eos)
        return bare[:room] + self.eos


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeCollate:
    """Pairs of strings to `input_ids`, `attention_mask` and `labels`, padded to the longest of the batch.

    `tokenizer` is called as Hugging Face tokenizers are. A text cut at `max_length` still ends in `eos_token_id`.
    """

    tokenizer: Any
    max_length: int
    pad_to_max: bool = False

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
        prompts, responses = (
            self._encode([pair[0] for pair in pairs]),
            self._encode([pair[1] for pair in pairs]),
        )
        labels = responses["input_ids"].masked_fill(responses["attention_mask"] == 0, IGNORED_LABEL)
        return {
            "input_ids": prompts["input_ids"],
            "attention_mask": prompts["attention_mask"],
            "labels": labels,
        }

    def _encode(self, texts: list[str]) -> Mapping[str, Any]:
        encoded: Mapping[str, Any] = self.tokenizer(
            texts,
            padding="max_length" if self.pad_to_max else True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        )
        eos = getattr(self.tokenizer, "eos_token_id", None)
        if eos is not None and encoded["input_ids"].shape[1] == self.max_length:
            full = encoded["attention_mask"][:, -1] == 1
            encoded["input_ids"][full, -1] = eos
        return encoded
