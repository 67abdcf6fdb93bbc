"""What every script here starts from: a model's folder, a batch and a length as arguments, and made-up data."""

import sys

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

MODEL, BATCH, SEQ = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ADAPTERS = sys.argv[4] if len(sys.argv) > 4 else "none"  # none, lora or qlora
STEPS = 3
ROWS = BATCH * STEPS * 2


def tokenizer():
    """Of whole words, whatever the model: AutoTokenizer would build Qwen's own, which knows none of them."""
    return PreTrainedTokenizerFast.from_pretrained(MODEL)


def words(count):
    return " ".join(["w7"] * count)


def token_rows(**columns):
    """Samples of exactly SEQ tokens."""
    ids = [7] * SEQ
    row = {"input_ids": ids, "attention_mask": [1] * SEQ, **columns}
    return Dataset.from_list([row] * ROWS)


def text_rows(**columns):
    return Dataset.from_list([columns] * ROWS)


def four_bit():
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
