"""How large the inputs of a model are, by its config: tokens, pictures, sound, time series.

In comes transformers' config object, out come plain numbers. A size is looked for under the names that configs use, in
the config and in those inside it; where a model takes any size, a usual one is taken and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

VISION = ("vision_config", "image_config", "vision_encoder_config", "vit_config", "backbone_config")
AUDIO = (
    "audio_config",
    "audio_encoder_config",
    "encoder_config",
    "speech_config",
    "acoustic_config",
)
TEXT = ("text_config", "llm_config", "language_config", "decoder", "thinker_config")
USUAL_IMAGE = 224  # pixels, where a model takes any
USUAL_SECONDS = 5
USUAL_RATE = 16_000
USUAL_FRAMES = 16  # of a film
ANY_SIZE = ("pixtral",)
USUAL_TOKENS = 256  # of a picture cut into patches of any number
LENGTHS = (
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_seq_length",
    "seq_length",
)


def parts_of(config: Any, first: tuple[str, ...] = ()) -> Iterator[Any]:
    """The configs inside that are named in `first`, the config itself, then all others inside."""
    named = [getattr(config, name, None) for name in first]
    inside = [
        value
        for name in (getattr(config, "sub_configs", None) or {})
        if (value := getattr(config, name, None)) is not None
    ]
    seen: set[int] = set()
    for part in (*named, config, *inside):
        if part is None or id(part) in seen or not hasattr(part, "to_dict"):
            continue
        seen.add(id(part))
        yield part
        if part is not config:
            yield from (deeper for deeper in parts_of(part, first) if id(deeper) not in seen)


def find(config: Any, *names: str, within: tuple[str, ...] = ()) -> Any:
    """The first value that is set under one of the names."""
    for part in parts_of(config, within):
        for name in names:
            value = getattr(part, name, None)
            if value is not None and not callable(value):
                return value
    return None


def number(config: Any, *names: str, default: int, within: tuple[str, ...] = ()) -> int:
    value = find(config, *names, within=within)
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return int(value) if isinstance(value, int | float) and value > 0 else default


def vocabulary(config: Any) -> int:
    return number(
        config, "vocab_size", "decoder_vocab_size", "src_vocab_size", default=1000, within=TEXT
    )


def longest(config: Any) -> int | None:
    """Positions that the text side has; None where the config does not say."""
    found = find(config, *LENGTHS, within=TEXT)
    return int(found) if isinstance(found, int) and found > 0 else None


# ---- pictures


def image_size(config: Any) -> tuple[int, int]:
    """Height and width in pixels, in whole patches. A tower that takes any size gets as many patches as usual."""
    if any(part.model_type in ANY_SIZE for part in parts_of(config, VISION)):
        side = int(USUAL_TOKENS**0.5) * patch_size(config) * merge_size(config)
        return side, side
    found = find(config, "image_size", "img_size", "input_size", within=VISION)
    if isinstance(found, dict):
        found = (found.get("height", USUAL_IMAGE), found.get("width", USUAL_IMAGE))
    if isinstance(found, int):
        found = (found, found)
    if (
        not isinstance(found, list | tuple)
        or len(found) < 2
        or not all(isinstance(side, int) and side > 0 for side in found[-2:])
    ):
        found = (USUAL_IMAGE, USUAL_IMAGE)
    patch = patch_size(config)
    height, width = (max(patch, side // patch * patch) for side in found[-2:])
    return height, width


def patch_size(config: Any) -> int:
    return number(config, "patch_size", "spatial_patch_size", default=1, within=VISION)


def channels(config: Any) -> int:
    return number(config, "num_channels", "in_channels", "in_chans", default=3, within=VISION)


def merge_size(config: Any) -> int:
    return number(
        config, "spatial_merge_size", "merge_size", "merge_kernel_size", default=1, within=VISION
    )


def temporal_patch(config: Any) -> int:
    return number(config, "temporal_patch_size", default=1, within=VISION)


def grid(config: Any, tokens: int) -> tuple[int, int, int]:
    """Frames, rows and columns of patches of one picture that becomes as many tokens; a square one if it can be."""
    merge = merge_size(config)
    side = int(tokens**0.5)
    rows = side if side * side == tokens else 1
    return 1, rows * merge, tokens // rows * merge


def patch_width(config: Any) -> int:
    """Numbers in one flattened patch."""
    return channels(config) * temporal_patch(config) * patch_size(config) ** 2


def num_frames(config: Any) -> int:
    return number(
        config,
        "num_frames",
        "frames_per_clip",
        "tubelet_frames",
        default=USUAL_FRAMES,
        within=VISION,
    )


# ---- sound


# Frames that a feature extractor joins to one.
JOINED = {"granite_speech5": 4, "fun_asr_nano": 7}


def mel_bins(config: Any) -> int:
    joined = (count for kind, count in JOINED.items() if config.model_type.startswith(kind))
    return next(joined, 1) * _bins(config)


def _bins(config: Any) -> int:
    convolutions = find(config, "subsampling_conv_channels", within=AUDIO)
    if isinstance(convolutions, list | tuple) and convolutions:
        return int(convolutions[0])  # Gemma 4: its projection takes a quarter of the bins, as many
    return number(
        config,
        "num_mel_bins",
        "feature_size",
        "n_mels",
        "input_feat_per_channel",
        "feature_projection_input_dim",
        "num_mel_filters",
        "input_dim",
        "input_feat_size",
        default=80,
        within=AUDIO,
    )


def mel_frames(config: Any) -> int:
    """Whisper's encoder takes one length: twice its positions. Others take any."""
    positions = find(config, "max_source_positions", within=AUDIO)
    if isinstance(positions, int) and positions > 0 and find(config, "num_mel_bins", within=AUDIO):
        return 2 * positions
    return number(config, "max_length", "spec_size", default=100 * USUAL_SECONDS, within=AUDIO)


def codebooks(config: Any) -> int:
    """Rows of tokens for one sound."""
    return number(config, "num_codebooks", default=1, within=("decoder",))


def only_length(config: Any) -> int | None:
    """The one length that a class trains on: Reformer's axial positions."""
    shape = getattr(config, "axial_pos_shape", None)
    return prod(shape) if shape and getattr(config, "axial_pos_embds", False) else None


def samples(config: Any) -> int:
    rate = number(config, "sampling_rate", "audio_sampling_rate", default=USUAL_RATE, within=AUDIO)
    return USUAL_SECONDS * rate


# ---- tokens that stand for other inputs

IMAGE_TOKEN = (
    "image_token_id",
    "image_token_index",
    "image_token",
    "im_patch_id",
    "media_token_id",
)
AUDIO_TOKEN = ("audio_token_id", "audio_token_index", "audio_token")
VIDEO_TOKEN = ("video_token_id", "video_token_index", "video_token")
