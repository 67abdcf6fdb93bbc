"""What is asked of a serving engine: the model, the card, the engine's version and its flags, looked up once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramcast.catalog.gpus import Gpu, find_gpu
from vramcast.engine.serving.gguf_types import GGUF_TYPES
from vramcast.errors import InputError, UnsupportedError, unknown
from vramcast.job import Job, Precision, flag_of
from vramcast.models.families import MODULE_OF
from vramcast.models.read.config import Config
from vramcast.models.read.gguf import GgufFile
from vramcast.models.read.model import quantisation_warnings, read_served
from vramcast.models.read.positions import positions_of
from vramcast.models.read.source import ModelSource
from vramcast.setup import Setup, resolve
from vramcast.setup.defaults import has_bf16, stored_dtype
from vramcast.units import parse_bytes

# The newest release of each engine whose sources were read.
NEWEST = {"vllm": "0.28", "sglang": "0.5.18", "tgi": "3.3.7", "llama.cpp": "10068"}
VERSION = re.compile(r"[vb]?(\d+(?:\.\d+)*).*")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
BY_PRECISION = {
    Precision.FP32: "float32",
    Precision.BF16_TRUE: "bfloat16",
    Precision.FP16_TRUE: "float16",
}
# Options of a job that an engine does not have, and their values where nothing is said.
OF_TRAINING = {
    "lora_rank": None,
    "checkpointing": None,
    "optimizer": None,
    "accumulate": 1,
    "rollout_tokens": None,
    "evaluate": False,
    "edit": (),
    "reference": None,
    "reward": "none",
    "critic": "none",
    "teacher": "none",
    "mean_seq": None,
    "lengths": None,
    "longest_seq": None,
    "strategy": None,
    "offload": "none",
    "beams": 1,
    "seq": None,
    "cp": 1,
}
# Modules of models/families whose models keep no cache of their own answers, or are no text decoders.
WITHOUT_CACHE = ("encoder", "t5", "bart", "vision", "cnn")
# Options that only llama.cpp has.
OF_LLAMA_CPP = {"gpu_layers": None, "cpu_moe_layers": None}
OF_VLLM = ("max_lora_rank", "max_loras")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job for a serving engine with everything looked up."""

    job: Job
    setup: Setup
    source: ModelSource
    config: Config  # of the whole model
    text: Config  # of its language model
    gguf: GgufFile | None
    gpu: Gpu | None
    engine: str
    version: tuple[int, ...]
    dtype: str  # of weights that are not quantised, and of activations: bfloat16, float16, float32

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def tp(self) -> int:
        return self.job.tp

    @property
    def pp(self) -> int:
        return self.job.pp

    @property
    def total_bytes(self) -> int:
        """Memory of one card, which engines take a share of."""
        if self.gpu is None:
            raise InputError(
                f"{self.engine} fills a share of its card: give --gpu (a name such as rtx4090, or a size such as 24GiB)"
            )
        return self.gpu.capacity_bytes()

    @property
    def hidden(self) -> int:
        return int(self.text.dim("hidden_size", "h", "n_embd", "d_model"))

    @property
    def vocabulary(self) -> int:
        return int(self.text.dim("vocab_size", "V"))

    @property
    def layers(self) -> int:
        return int(self.text.dim("num_hidden_layers", "L", "n_layer", "num_layers"))

    @property
    def longest(self) -> int:
        """Positions that the model was made for."""
        return positions_of(self.text)

    @property
    def max_model_len(self) -> int:
        return self.job.max_model_len or self.longest


def resolve_request(job: Job) -> Request:
    _check(job)
    assert job.model is not None
    assert job.engine is not None
    source, gguf = read_served(job.model)
    if source.config is None:
        raise UnsupportedError(
            f"{source.name}: only its tensors are known; give a config.json, which says what its cache is made of"
        )
    text = text_config(source.config)
    _check_model(job, source.name, text)
    gpu = find_gpu(job.gpu) if job.gpu else None
    precision = job.precision or Precision.BF16_TRUE
    setup = resolve(_as_plain_job(job, precision))
    return Request(
        job=job,
        setup=setup,
        source=source,
        config=source.config,
        text=text,
        gguf=gguf,
        gpu=gpu,
        engine=job.engine,
        version=_read_version(job),
        dtype=_dtype(job, source.config),
    )


def warnings_of(request: Request) -> tuple[str, ...]:
    """What reading the model said, without what holds for training alone."""
    of_training = set(quantisation_warnings(request.config))
    texts = (*request.source.notes, *request.source.warnings)
    said = tuple(text for text in texts if text not in of_training and "activations" not in text)
    if request.gguf is not None or not request.source.has_count_alone:
        return said
    counted = (
        f"no formula describes {request.source.name}: only how many parameters it has is known here, so its weights "
        "are not divided as the engine divides them. With torch and transformers they are: "
        "pip install 'vramcast[trace]'"
    )
    return (counted, *said)


def text_config(config: Config) -> Config:
    """The language model's part of a composite config."""
    for name in ("text_config", "llm_config", "thinker_config", "language_config"):
        inner = config.sub(name)
        if inner.data:
            return text_config(inner)
    return config


def _as_plain_job(job: Job, precision: Precision) -> Job:
    """The same versions and card, without what is the engine's: for the lines that all jobs share."""
    return Job(
        model=job.model,
        gpu=job.gpu,
        precision=precision,
        optimizer="sgd",
        torch_version=job.torch_version,
        transformers_version=job.transformers_version,
        module_loading=job.module_loading,
    )


def _read_version(job: Job) -> tuple[int, ...]:
    text = job.engine_version or NEWEST[job.engine or ""]
    match = VERSION.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"engine-version must be a version such as 0.11.0 or a build such as b6000, not {text!r}"
        )
    return tuple(map(int, match[1].split(".")))


def _dtype(job: Job, config: Config) -> str:
    """vllm/config/model.py _get_and_verify_dtype: the checkpoint's dtype, fp32 becomes 16 bit; cards without bf16
    need fp16."""
    if job.precision in BY_PRECISION:
        return BY_PRECISION[job.precision]
    if job.precision is not None:
        known = ", ".join(map(str, BY_PRECISION))
        raise UnsupportedError(f"an engine serves in one dtype: precision {known}")
    stored = stored_dtype(config)
    if not has_bf16(job.gpu):
        return "float16"
    return stored if stored in ("bfloat16", "float16") else "bfloat16"


def _check(job: Job) -> None:
    if job.model is None:
        raise InputError("engine needs a model, not a count of parameters")
    if job.task not in (None, "generate", "embed"):
        raise UnsupportedError(f"engine {job.engine} serves a model; task {job.task} trains one")
    meant = [name for name, default in OF_TRAINING.items() if getattr(job, name) != default]
    if meant:
        names = ", ".join(map(flag_of, meant))
        raise UnsupportedError(f"engine {job.engine} trains nothing: leave out {names}")
    if job.engine != "llama.cpp":
        only = [name for name, default in OF_LLAMA_CPP.items() if getattr(job, name) != default]
        if only:
            raise UnsupportedError(
                f"{', '.join(map(flag_of, only))} is llama.cpp's: leave it out, or say --engine llama.cpp"
            )
    _check_adapters(job)
    _check_format(job)
    if job.engine != "llama.cpp" and job.gpus not in (1, job.tp * job.pp):
        raise InputError(
            f"an engine runs on tp × pp GPUs, here {job.tp} × {job.pp}: give tp and pp instead of gpus {job.gpus}"
        )
    if job.gpu_memory_utilization == 0:
        raise InputError("gpu-memory-utilization must be above 0")


def _check_adapters(job: Job) -> None:
    said = [name for name in OF_VLLM if getattr(job, name) is not None]
    if said and job.engine != "vllm":
        raise UnsupportedError(
            f"{', '.join(map(flag_of, said))} is described for vLLM alone: leave it out, or say --engine vllm"
        )
    if job.max_loras is not None and job.max_lora_rank is None:
        raise InputError("max-loras without max-lora-rank: say how large an adapter may be")


def _check_model(job: Job, name: str, text: Config) -> None:
    if MODULE_OF.get(text.model_type) in WITHOUT_CACHE:
        raise UnsupportedError(
            f"{name} is a {text.model_type}: engines are described for decoders; one pass of it is --task encode or "
            "score"
        )
    heads = text.data.get("num_attention_heads") or text.data.get("n_head")
    if isinstance(heads, int) and heads % job.tp:
        fitting = ", ".join(str(tp) for tp in (1, 2, 4, 8, 16) if heads % tp == 0)
        raise InputError(
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({job.tp}): "
            f"take tp {fitting}"
        )


def _check_format(job: Job) -> None:
    if job.engine != "llama.cpp" and job.gguf is not None:
        raise UnsupportedError(
            f"gguf {job.gguf} is a type that llama.cpp reads: for {job.engine} say quantize, or say --engine llama.cpp"
        )
    if job.engine == "llama.cpp" and job.quantize != "none":
        raise UnsupportedError(
            f"llama.cpp reads GGUF, not {job.quantize}: say --gguf with one of {', '.join(GGUF_TYPES)}"
        )
    if job.gguf is not None and job.gguf not in GGUF_TYPES:
        raise unknown("gguf", job.gguf, GGUF_TYPES)


def free_at_start(request: Request, taken_bytes: int) -> int:
    """Free memory when the engine measures it first: as said, else all but what its own process has taken."""
    if request.job.gpu_free is not None:
        return min(parse_bytes(request.job.gpu_free), request.total_bytes)
    return request.total_bytes - taken_bytes
