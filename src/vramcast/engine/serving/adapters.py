"""Room that vLLM keeps for LoRA adapters, whether one is used or not: A and B of every layer that may have one.

    a layer that is cut by its output   A (rank × in) whole, B (out × rank) divided over tp
    a layer that is cut by its input    A divided, B whole
    embedding and head                  up to 0.11, in models that name them: a vector of the rank per word

Read in vllm/lora/layers of v0.7.1 to v0.27.0. Example: Qwen3-8B, rank 32: 36 layers × 75,776 × 32 × 2 B = 0.16 GiB.
"""

from __future__ import annotations

import re

from vramcast.engine.serving.request import Request
from vramcast.models.record.tape import Param

CUT_BY_INPUT = re.compile(r"(^|\.)(o_proj|down_proj|out_proj|wo|w2|dense_4h_to_h|c_proj)(\.|$)")
# Models whose class names its embedding and its head (embedding_modules).
WITH_EMBEDDINGS = (
    "llama", "mistral", "mixtral", "granite", "granitemoe", "exaone", "exaone4", "cohere", "bamba", "falcon_h1",
    "jamba", "lfm2", "minicpm", "nemotron", "nemotron_h", "phimoe", "solar", "apertus",
)  # fmt: skip
WITHOUT_EMBEDDINGS_FROM = (0, 12)
EXTRA_WORDS = 256  # lora_extra_vocab_size


def adapter_bytes(request: Request, param: Param) -> int:
    """On one rank, beside one linear layer of the decoder."""
    if request.job.max_lora_rank is None or param.kind != "linear" or len(param.shape) != 2:
        return 0
    rows, columns = map(int, param.shape)
    if CUT_BY_INPUT.search(param.name):
        columns //= request.tp
    else:
        rows //= request.tp
    return (rows + columns) * _rank(request) * request.dtype_bytes


def embedding_adapter_bytes(request: Request, *, is_tied: bool) -> int:
    """Beside embedding and head: A of the one, B of the other. A tied head is the embedding once more, with an A of
    its own."""
    is_named = request.text.model_type in WITH_EMBEDDINGS
    if (
        request.job.max_lora_rank is None
        or not is_named
        or request.version >= WITHOUT_EMBEDDINGS_FROM
    ):
        return 0
    words, hidden = request.vocabulary + EXTRA_WORDS, request.hidden
    per_word = 3 if is_tied else 2
    beside = (per_word * words + 2 * hidden) * _rank(request)
    return (beside + 2 * EXTRA_WORDS * hidden) * request.dtype_bytes


def _rank(request: Request) -> int:
    return (request.job.max_lora_rank or 0) * (request.job.max_loras or 1)
