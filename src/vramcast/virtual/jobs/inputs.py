"""The batch of any model that transformers can build, by what its forward asks for.

In come a model (on the card) and a job, out come tensors under the names of forward's parameters. What a batch holds
follows from the signature: every parameter that must be given, the model's main input, masks, and labels where the
class computes a loss from labels of a plain shape. Values are random: memory does not depend on them.
Does not know labels that are lists of objects (boxes, masks): there the loss is the mean of what the model returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.virtual.jobs import further_inputs
from vramcast.virtual.jobs import input_sizes as sizes

KNOWN_TOKENS = 1000  # ids are drawn below it: control tokens are above, or few
TEXTS = ("input_ids", "decoder_input_ids", "context_input_ids")
# Labels by the ending of a class; the first that fits.
TOKEN_LABELS = (
    "ForCausalLM",
    "LMHeadModel",
    "LMHead",
    "ForConditionalGeneration",
    "ForMaskedLM",
    "ForPreTraining",
    "ForTokenClassification",
    "ForMaskedDiffusion",
    "MTModel",
    "ForSpeechSeq2Seq",
    "ForSpeechToText",
    "DoubleHeadsModel",
    "WithLMHead",
    "VisionEncoderDecoderModel",
    "EncoderDecoderModel",
)
CLASS_LABELS = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForAudioClassification",
    "ForVideoClassification",
    "ForNextSentencePrediction",
    "ForMultipleChoice",
    "ForXVector",
    "ForImageClassificationWithTeacher",
)
PIXEL_LABELS = ("ForSemanticSegmentation",)
SPAN_LABELS = ("ForQuestionAnswering", "ForQuestionAnsweringSimple")
ALWAYS = ("attention_mask", "decoder_input_ids", "pixel_values", "input_features", "input_values")


@dataclass(frozen=True)
class Batch:
    """What is put together for one step. `placeholders`: tokens that stand for other inputs, by their id."""

    model: Any
    job: Job
    seq: int
    placeholders: Mapping[int, int] = field(default_factory=dict)
    with_labels: bool = True
    with_pictures: bool = True
    with_text: bool | None = None
    least_image: int = 0

    @cached_property
    def config(self) -> Any:
        return self.model.config

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Of forward, without those that only name a way of answering."""
        forward = getattr(self.model, "vramcast_forward", self.model.forward)
        found = inspect.signature(forward).parameters.items()
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {name: parameter for name, parameter in found if parameter.kind not in kinds}

    @cached_property
    def kind(self) -> str:
        return type(self.model).__name__

    @property
    def size(self) -> int:
        return self.job.batch

    @cached_property
    def pictures(self) -> int:
        if not self.with_pictures:
            return 0
        return 1 if self.job.images is None else self.job.images

    @cached_property
    def is_multiple_choice(self) -> bool:
        return self.kind.endswith("ForMultipleChoice")

    def has(self, name: str) -> bool:
        return name in self.parameters

    def must_have(self, name: str) -> bool:
        return self.has(name) and self.parameters[name].default is inspect.Parameter.empty

    @cached_property
    def main(self) -> tuple[str, ...]:
        named = getattr(self.model, "main_input_name", "input_ids")
        return (named,) if isinstance(named, str) else tuple(named)

    # ---- the whole of it

    def tensors(self) -> dict[str, Any]:
        """Made on the host, as a data loader does."""
        found: dict[str, Any] = {}
        for name in self.parameters:
            if self._is_wanted(name):
                made = MAKERS[name](self)
                if made is not None:
                    found[name] = made
        missing = [name for name in self.parameters if self.must_have(name) and name not in found]
        if missing:
            raise UnsupportedError(
                f"{self.kind} takes {', '.join(missing)}, which no job describes: run your own script with "
                "vramcast trace"
            )
        if self.with_labels:
            found |= labels_of(self)
        return found

    def _is_wanted(self, name: str) -> bool:
        if name not in MAKERS:
            return False
        if name == "input_ids" and self.with_text is not None:
            return self.with_text
        if self.must_have(name) or name in self.main:
            return True
        if further_inputs.is_needed(name, self.parameters, self.config):
            return True
        return name in WITH or (name in OPTIONAL and OPTIONAL[name](self))

    # ---- pieces

    def further(self, name: str) -> Tensor | None:
        wanted = further_inputs.Wanted(self.config, self.size, self.seq, self.image())
        return further_inputs.MAKERS[name](wanted)

    def ids(self, length: int, vocabulary: int | None = None) -> Tensor:
        high = max(2, min(vocabulary or sizes.vocabulary(self.config), KNOWN_TOKENS))
        return torch.randint(min(3, high - 1), high, (self.size, length))

    def codes(self, length: int) -> Tensor:
        """Tokens of sound, a row for each codebook."""
        ids = self.ids(length)
        return ids.repeat(sizes.codebooks(self.config), 1)

    def text(self) -> Tensor:
        """Token ids with placeholders of pictures and sounds in front."""
        if self.config.model_type in CODE_DECODERS:
            return self.codes(self.seq)
        ids = self.ids(self.seq)
        at = 1
        for token, count in self.placeholders.items():
            ids[:, at : at + count] = token
            at += count
        if self.is_multiple_choice:
            return torch.stack([ids, ids], dim=1)
        return ids

    def image(self) -> tuple[int, int]:
        height, width = sizes.image_size(self.config)
        if self.has("prompt_pixel_values"):  # SegGPT puts the prompt above the picture
            height //= 2
        return max(height, self.least_image), max(width, self.least_image)

    @property
    def target_seq(self) -> int:
        return self.job.target_seq or self.seq


Maker = Callable[[Batch], Any]


def _ones_like_text(batch: Batch) -> Tensor | None:
    if batch.has("input_ids"):
        return torch.ones_like(batch.text())
    if batch.has("input_values"):
        return None
    return None


def _pixel_values(batch: Batch) -> Tensor:
    config, (height, width) = batch.config, batch.image()
    count = batch.size * batch.pictures
    if _has_grid(batch):
        frames, rows, columns = sizes.grid(config, batch.job.image_tokens or sizes.USUAL_TOKENS)
        return torch.randn(count * frames * rows * columns, sizes.patch_width(config))
    if _takes_flat_patches(batch):
        rows, columns = _patch_rows(batch)
        return torch.randn(count, rows * columns, sizes.patch_width(config))
    shape: tuple[int, ...] = (sizes.channels(config), height, width)
    if config.model_type == "xclip_vision_model":  # whole films, picture by picture
        count *= sizes.num_frames(config)
    if batch.kind in PAIRS:
        return torch.randn(batch.size, 2, *shape)
    if batch.has("perceiver_embeddings"):  # IDEFICS: pictures of a text in a row
        return torch.randn(batch.size, batch.pictures, *shape)
    if _takes_films(batch):
        return torch.randn(batch.size, sizes.num_frames(config), *shape)
    if batch.has("pixel_attention_mask") and batch.has("input_ids"):
        return torch.randn(batch.size, batch.pictures, *shape)
    if batch.has("aspect_ratio_ids"):
        tiles = sizes.number(config, "max_num_tiles", default=4, within=sizes.VISION)
        return torch.randn(batch.size, batch.pictures, tiles, *shape)
    return torch.randn(count, *_tiles(batch), *shape)


# Two pictures are compared.
PAIRS = (
    "EfficientLoFTRModel",
    "EfficientLoFTRForKeypointMatching",
    "LightGlueForKeypointMatching",
    "SuperGlueForKeypointMatching",
)


def _takes_flat_patches(batch: Batch) -> bool:
    """Pictures of any size as rows of patches, each with its place."""
    names = ("spatial_shapes", "image_position_ids", "pixel_position_ids")
    return any(batch.has(name) for name in names)


def _patch_rows(batch: Batch) -> tuple[int, int]:
    """Rows and columns of patches, as many as become the usual number of tokens."""
    tokens = batch.job.image_tokens or sizes.USUAL_TOKENS
    pooled = sizes.number(batch.config, "pooling_kernel_size", default=1, within=sizes.VISION)
    side = max(int(tokens**0.5), 2) * pooled
    return side, side


def _patch_places(batch: Batch) -> Tensor:
    rows, columns = _patch_rows(batch)
    places = torch.cartesian_prod(torch.arange(columns), torch.arange(rows))
    return places.expand(batch.size * batch.pictures, -1, -1).contiguous()


def _patch_mask(batch: Batch) -> Tensor | None:
    if not _takes_flat_patches(batch):
        return None
    rows, columns = _patch_rows(batch)
    return torch.ones(batch.size * batch.pictures, rows * columns, dtype=torch.long)


def _tiles(batch: Batch) -> tuple[int, ...]:
    """LLaVA-NeXT cuts a picture into tiles of the best of its grids, with a small one of the whole."""
    grids = sizes.find(batch.config, "image_grid_pinpoints")
    if not grids or not batch.has("image_sizes"):
        return ()
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    height, width = batch.image()
    return (int(image_size_to_num_patches([height, width], grids, height)),)


def _has_grid(batch: Batch) -> bool:
    return batch.has("image_grid_thw") or batch.has("grid_thw")


def _takes_films(batch: Batch) -> bool:
    named = f"{batch.kind} {batch.config.model_type}".lower()
    if batch.config.model_type.endswith(
        "vision_model"
    ):  # it gets the pictures of a film one by one
        return False
    words = ("video", "timesformer", "vivit", "xclip", "vjepa")
    return (any(word in named for word in words) and not batch.has("input_ids")) or (
        "xclip" in named and "text" not in named
    )


def _grids(batch: Batch) -> Tensor:
    one = sizes.grid(batch.config, batch.job.image_tokens or sizes.USUAL_TOKENS)
    return torch.tensor([one] * (batch.size * batch.pictures))


def _flat_patches(batch: Batch) -> Tensor:
    """A vision tower that takes patches in a row, or its pictures under this name."""
    if not _has_grid(batch):
        if "pixel_values" in batch.main:
            return _pixel_values(batch)
        names: tuple[str, ...] = ("input_dim", "hidden_size", "d_model")
        if batch.must_have("mask"):  # Phi-4's tower of sound
            names = ("input_size", *names)
        width = sizes.number(batch.config, *names, default=64)
        return torch.randn(batch.size, batch.seq, width)
    frames, rows, columns = sizes.grid(batch.config, batch.job.image_tokens or sizes.USUAL_TOKENS)
    return torch.randn(
        batch.size * batch.pictures * frames * rows * columns, sizes.patch_width(batch.config)
    )


def _image_sizes(batch: Batch) -> Tensor:
    height, width = batch.image()
    return torch.tensor([[height, width]] * (batch.size * batch.pictures))


def _aspect_ratios(batch: Batch) -> Tensor:
    return torch.ones(batch.size, batch.pictures, dtype=torch.long)


def _aspect_mask(batch: Batch) -> Tensor:
    tiles = sizes.number(batch.config, "max_num_tiles", default=4, within=sizes.VISION)
    return torch.ones(batch.size, batch.pictures, tiles, dtype=torch.long)


def _cross_attention_mask(batch: Batch) -> Tensor:
    tiles = sizes.number(batch.config, "max_num_tiles", default=4, within=sizes.VISION)
    return torch.ones(batch.size, batch.seq, batch.pictures, tiles, dtype=torch.long)


def _input_features(batch: Batch) -> Tensor:
    """Bins first as Whisper has them, frames first as speech encoders of the other line do."""
    config = batch.config
    bins, frames = sizes.mel_bins(config), sizes.mel_frames(config)
    if batch.has("is_longer"):  # CLAP: spectrograms as pictures of one channel
        return torch.randn(batch.size, 1, CLAP_FRAMES, bins)
    if _has_frames_first(batch):
        return torch.randn(batch.size, frames, bins)
    return torch.randn(batch.size, bins, frames)


CLAP_FRAMES = 1001  # ten seconds
FRAMES_FIRST = (
    "speech_to_text",
    "wav2vec2-bert",
    "seamless",
    "parakeet",
    "lasr",
    "granite_speech",
    "phi4",
    "gemma",
    "nemotron",
    "canary",
    "cohere_asr",
    "fun_asr",
    "pop2piano",
    "univnet",
    "xcodec2",
    "neucodec",
)


def _has_frames_first(batch: Batch) -> bool:
    audio = next(sizes.parts_of(batch.config, sizes.AUDIO))
    return any(word in f"{batch.config.model_type} {audio.model_type}" for word in FRAMES_FIRST)


def _input_values(batch: Batch) -> Tensor:
    config = batch.config
    if sizes.find(config, "max_length", within=sizes.AUDIO) and "spectrogram" in config.model_type:
        return torch.randn(batch.size, config.max_length, config.num_mel_bins)
    if config.model_type in CODECS or getattr(config, "audio_channels", None):
        return torch.randn(
            batch.size, int(getattr(config, "audio_channels", 1) or 1), sizes.samples(config)
        )
    return torch.randn(batch.size, sizes.samples(config))


CODECS = (
    "dac",
    "encodec",
    "mimi",
    "xcodec",
    "xcodec2",
    "neucodec",
    "pe_audio",
    "pe_audio_encoder",
    "vibevoice_acoustic_tokenizer",
    "vibevoice_acoustic_tokenizer_encoder",
)
CODE_DECODERS = ("musicgen_decoder", "musicgen_melody_decoder")


def _bool_masked(batch: Batch) -> Tensor | None:
    height, width = batch.image()
    patch = sizes.patch_size(batch.config)
    return torch.zeros(batch.size, (height // patch) * (width // patch), dtype=torch.bool)


def _series(batch: Batch) -> Tensor:
    config = batch.config
    length = sizes.number(config, "context_length", "seq_length", default=batch.seq)
    lags = sizes.find(config, "lags_sequence")
    length += max(lags) if isinstance(lags, list | tuple) and lags else 0
    width = sizes.number(config, "num_input_channels", "input_size", default=1)
    is_plain = config.model_type in ("timesfm", "timesfm2_5") or (
        hasattr(config, "lags_sequence") and width == 1
    )
    return torch.randn(batch.size, length) if is_plain else torch.randn(batch.size, length, width)


def _boxes(batch: Batch) -> Tensor:
    """Places on a page; BROS takes them as parts of its width and height."""
    boxes = torch.zeros(batch.size, batch.seq, 4, dtype=torch.long)
    return boxes.float() if batch.config.model_type == "bros" else boxes


def _flattened_patches(batch: Batch) -> Tensor:
    config = batch.config
    flat = sizes.channels(config) * sizes.patch_size(config) ** 2
    width = 2 + sizes.number(config, "patch_embed_hidden_size", default=flat, within=sizes.VISION)
    return torch.rand(batch.size, batch.seq, width)


def _decoder_ids(batch: Batch) -> Tensor | None:
    """Models with labels shift them themselves."""
    has_loss = batch.with_labels and batch.has("labels") and batch.kind.endswith(TOKEN_LABELS)
    if has_loss:
        return None
    is_music = batch.config.model_type in ("musicgen", "musicgen_melody")
    return batch.codes(batch.target_seq) if is_music else batch.ids(batch.target_seq)


def _features(batch: Batch) -> Tensor:
    width = sizes.number(batch.config, "hidden_size", "d_model", "model_in_dim", default=64)
    return torch.randn(batch.size, batch.seq, width)


def _like_features(batch: Batch) -> Tensor:
    return torch.ones(batch.size, sizes.mel_frames(batch.config), dtype=torch.long)


def _no_padding(batch: Batch) -> Tensor:
    """Gemma 3n's mask says where there is none."""
    return torch.zeros(batch.size, sizes.mel_frames(batch.config), dtype=torch.bool)


def _image_attention(batch: Batch) -> Tensor | None:
    if not batch.has("perceiver_embeddings"):
        return None
    return torch.ones(batch.size, batch.seq, batch.pictures, dtype=torch.long)


def _inputs(batch: Batch) -> Tensor | None:
    """Perceiver's ids; a model of speech and text has its sound under a name of its own."""
    return None if batch.has("input_values") else batch.ids(batch.seq)


MAKERS: dict[str, Maker] = {
    "input_ids": lambda batch: batch.text(),
    "attention_mask": _ones_like_text,
    "decoder_input_ids": _decoder_ids,
    "inputs_embeds": _features,
    "pixel_values": _pixel_values,
    "image_pixel_values": _pixel_values,
    "image": _pixel_values,
    "image_attention_mask": _image_attention,
    "pixel_values_videos": lambda batch: torch.randn(
        batch.size,
        sizes.num_frames(batch.config),
        sizes.channels(batch.config),
        *batch.image(),
    ),
    "hidden_states": _flat_patches,
    "image_grid_thw": _grids,
    "grid_thw": _grids,
    "image_sizes": _image_sizes,
    "spatial_shapes": lambda batch: torch.tensor(
        [list(_patch_rows(batch))] * (batch.size * batch.pictures)
    ),
    "image_position_ids": _patch_places,
    "pixel_position_ids": _patch_places,
    "pixel_attention_mask": _patch_mask,
    "aspect_ratio_ids": _aspect_ratios,
    "aspect_ratio_mask": _aspect_mask,
    "cross_attention_mask": _cross_attention_mask,
    "input_features": _input_features,
    "audio_mel": _input_features,
    "audio_input_features": _input_features,
    "input_features_mask": _like_features,
    "feature_attention_mask": _like_features,
    "audio_mel_mask": _no_padding,
    "input_values": _input_values,
    "is_longer": lambda batch: torch.zeros(batch.size, 1, dtype=torch.bool),
    "bbox": _boxes,
    "bool_masked_pos": _bool_masked,
    "past_values": _series,
    "flattened_patches": _flattened_patches,
    "inputs": _inputs,
    "mm_token_type_ids": lambda batch: _kinds_of_tokens(batch),
    "token_type_ids": lambda batch: _token_types(batch),
    "spectrogram": lambda batch: torch.randn(
        batch.size, 100, sizes.number(batch.config, "model_in_dim", default=80)
    ),
    "return_loss": lambda batch: True if batch.with_labels else None,
    "mask": lambda batch: torch.ones(batch.size, batch.seq, dtype=torch.bool),
    "merge_sizes": lambda batch: torch.full(
        (batch.size * batch.pictures,), sizes.merge_size(batch.config)
    ),
}
MAKERS |= {name: partial(Batch.further, name=name) for name in further_inputs.MAKERS}


def _kinds_of_tokens(batch: Batch) -> Tensor | None:
    """Text and pictures apart; some classes ask for it in training, whatever there is."""
    return torch.zeros_like(batch.text()) if not batch.placeholders else _token_types(batch)


def _token_types(batch: Batch) -> Tensor | None:
    if not batch.placeholders and not batch.must_have("token_type_ids"):
        return None
    ids = batch.text()
    known = torch.zeros_like(ids)
    known[:, 1 : 1 + sum(batch.placeholders.values())] = 1
    return known


WITH = ("attention_mask", "decoder_input_ids", "mm_token_type_ids", "return_loss")


def _takes_any_size(batch: Batch) -> bool:
    parts = sizes.parts_of(batch.config, sizes.VISION)
    return any(part.model_type in sizes.ANY_SIZE for part in parts)


def _shows_pictures(batch: Batch) -> bool:
    return bool(batch.pictures)


def _plays_sounds(batch: Batch) -> bool:
    """Sound where there is no picture to show."""
    return batch.with_pictures and not batch.has("pixel_values")


def _takes_waves(batch: Batch) -> bool:
    """A wave or its spectrogram, not both."""
    return batch.has("input_values") and batch.has("inputs")


OPTIONAL: dict[str, Callable[[Batch], bool]] = {
    "pixel_values": _shows_pictures,
    "image_pixel_values": _shows_pictures,
    "image_grid_thw": _shows_pictures,
    "image_sizes": lambda batch: (
        bool(batch.pictures) and bool(_tiles(batch) or _takes_any_size(batch))
    ),
    "spatial_shapes": _shows_pictures,
    "image_position_ids": _shows_pictures,
    "pixel_attention_mask": _shows_pictures,
    "aspect_ratio_ids": _shows_pictures,
    "aspect_ratio_mask": _shows_pictures,
    "cross_attention_mask": lambda batch: bool(batch.pictures) and batch.has("aspect_ratio_ids"),
    "input_features": lambda batch: _plays_sounds(batch) and not _takes_waves(batch),
    "input_values": _plays_sounds,
    "image_attention_mask": _shows_pictures,
    "flattened_patches": lambda batch: True,
    "input_features_mask": _plays_sounds,
    "feature_attention_mask": _plays_sounds,
    "bbox": lambda batch: True,
    "is_longer": lambda batch: True,
    "bool_masked_pos": lambda batch: batch.kind.endswith("ForMaskedImageModeling"),
    "token_type_ids": lambda batch: bool(batch.placeholders),
}


def labels_of(batch: Batch) -> dict[str, Any]:
    """What the class computes its loss from, where that has a plain shape."""
    kind = batch.kind
    if kind.endswith(SPAN_LABELS) and batch.has("start_positions"):
        zeros = torch.zeros(batch.size, dtype=torch.long)
        return {"start_positions": zeros, "end_positions": zeros.clone()}
    if not batch.has("labels"):
        return {}
    if kind.endswith(CLASS_LABELS):
        return {"labels": torch.zeros(batch.size, dtype=torch.long)}
    if kind.endswith("ForTokenClassification"):
        return {"labels": torch.zeros(batch.size, batch.seq, dtype=torch.long)}
    if kind.endswith("ForCTC"):
        return {"labels": batch.ids(20)}
    if kind.endswith(PIXEL_LABELS):
        return {"labels": torch.zeros(batch.size, *batch.image(), dtype=torch.long)}
    if kind.endswith(TOKEN_LABELS) and (batch.has("input_ids") or batch.has("decoder_input_ids")):
        divided = getattr(batch.config, "is_encoder_decoder", False)
        return {"labels": batch.ids(batch.target_seq) if divided else batch.text().clone()}
    return {}


def loss_of(outputs: Any) -> Tensor:
    """The model's own loss, or the mean of everything that it returns with a gradient."""
    loss = getattr(outputs, "loss", None)
    if isinstance(loss, Tensor) and loss.requires_grad:
        return loss if loss.dim() == 0 else loss.mean()
    means = [value.float().mean() for value in _with_gradients(outputs)]
    if not means:
        raise UnsupportedError("the model returns nothing that a gradient could come from")
    return torch.stack(means).sum()


def _with_gradients(outputs: Any) -> list[Tensor]:
    """Tensors that a gradient can come from: those on top, else those in lists of feature maps."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() and outputs.requires_grad else []
    values = list(outputs.values() if isinstance(outputs, Mapping) else outputs or ())
    found = [
        tensor for value in values if isinstance(value, Tensor) for tensor in _with_gradients(value)
    ]
    inside = [value for value in values if isinstance(value, tuple | list | Mapping)]
    return found or [tensor for value in inside for tensor in _with_gradients(value)]
