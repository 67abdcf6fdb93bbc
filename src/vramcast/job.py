"""A Job: what is trained and how. Flags, job-file keys and fields are the same words.

Each field declares its help, its allowed values and its default once; the command line, job files and errors all read
them from here. None means "not said": the engine then decides, and the report says what it decided.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.errors import InputError, unknown
from vramcast.everyday_words import translate
from vramcast.ledger import Word
from vramcast.units import parse_count


class Precision(Word):
    FP32 = "fp32"
    BF16_TRUE = "bf16-true"
    FP16_TRUE = "fp16-true"
    BF16_AUTOCAST = "bf16-autocast"
    FP16_AUTOCAST = "fp16-autocast"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"
    BF16_MASTER = "bf16-master"
    FP16_MASTER = "fp16-master"
    MEGATRON_BF16 = "megatron-bf16"
    FP8 = "fp8"


# Beyond these a number is a typing mistake.
MOST = 10**15  # parameters, samples of a run
MOST_TOKENS = (
    10**8
)  # of a sample; also batches, ranks of adapters, and whatever else is a whole number
MOST_GPUS = 2**20
MOST_ACCUMULATED = 2**16  # each is replayed, as Trainer fetches the batches of a whole step
MOST_HIDDEN = 1000
MOST_SCORES = 10**16  # batch × tokens²: what they take must be counted in 64 bits

# 2.13, 2.8.0a1, 5.0.0.dev0, 2.4.0+cu121
VERSION = re.compile(
    r"\d{1,4}(\.\d{1,4})*(\.?(a|b|rc|alpha|beta|dev|post)\d{0,9})*([+-][\w.+-]{1,40})?"
)

OPTIMIZERS = (
    "adamw",
    "adam",
    "sgd",
    "sgd-momentum",
    "adamw-8bit",
    "paged-adamw",
    "paged-adamw-8bit",
    "adafactor",
    "lion",
    "adagrad",
    "rmsprop",
    "muon",
    "sophia",
    "came",
    "galore",
    "adam-mini",
    "lomo",
    "adamw-torchao-8bit",
    "adamw-torchao-4bit",
    "lion-8bit",
    "paged-lion",
    "paged-lion-8bit",
    "ademamix",
    "ademamix-8bit",
    "paged-ademamix",
    "paged-ademamix-8bit",
    "schedule-free-adamw",
    "apollo",
)
FRAMEWORKS = (
    "plain",
    "hf",
    "lightning",
    "accelerate",
    "trl",
    "torchtune",
    "torchtitan",
    "litgpt",
    "megatron",
    "deepspeed",
    "llama-factory",
    "axolotl",
    "ms-swift",
    "unsloth",
    "verl",
    "openrlhf",
    "nemo",
)
ENGINES = ("vllm", "sglang", "tgi", "llama.cpp")
# Formats of weights that serving engines read. Training knows the first four of `QUANTIZE`.
TRAINED_OVER = ("none", "int8", "nf4", "nf4-double")
SERVED_IN = (
    "fp8",
    "fp8-block",
    "w8a8",
    "awq",
    "gptq",
    "gptq-int8",
    "mxfp4",
    "nvfp4",
)
QUANTIZE = (*TRAINED_OVER, *SERVED_IN)
OF_TRL = (
    "dpo",
    "kto",
    "orpo",
    "reward",
    "grpo",
    "ppo",
)  # tasks that transformers' Trainer has no loss for
# What is trained beside frozen weights, as PEFT makes it; the last one adds whole blocks.
LOW_RANK = ("lora", "vera", "loha", "lokr", "adalora")
PROMPTS = ("prompt", "prefix", "p-tuning")
ROTATIONS = ("oft", "boft")
LLAMA_PRO = "llama-pro"
ADAPTERS = (*LOW_RANK, *ROTATIONS, "ia3", "ln-tuning", *PROMPTS, LLAMA_PRO)
DTYPES = ("fp32", "bf16", "fp16")
LOOPS = ("plain", "retain-graph", "aux-outputs", "one-pass", "joint", "scores-only")
PLACES = ("none", "same", "cpu", "cuda:1")


def option(
    help: str,
    default: Any = None,
    *,
    choices: tuple[str, ...] = (),
    kind: str = "text",
    least: int = 1,
    most: int | None = None,
    group: str = "",
) -> Any:
    """A field of the Job. kind: text, version, int, count, float, flag, list, targets."""
    most = most or (MOST if kind == "count" else MOST_TOKENS)
    facts = {
        "help": help,
        "choices": choices,
        "kind": kind,
        "least": least,
        "most": most,
        "group": group,
    }
    return dataclasses.field(default=default, metadata=facts)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job:
    """Everything that decides a job's memory, as users say it.

    >>> Job(model="gpt2", batch=4, gpu="rtx4090")
    Job(model='gpt2', batch=4, gpu='rtx4090')
    """

    model: str | None = option(
        "catalog name, HF config.json or folder, safetensors file or folder", group="model"
    )
    params: int | None = option(
        "only a number of parameters (7e9, 7B): no activations, so a lower bound",
        kind="count",
        group="model",
    )

    task: str | None = option(
        "what is trained for: rows per sample, head, loss, other models; generate, score and encode train nothing; "
        "default the head that the checkpoint has, classify for encoders",
        choices=(
            "sft",
            "pretrain",
            "classify",
            "classify-tokens",
            "dpo",
            "kto",
            "orpo",
            "reward",
            "grpo",
            "ppo",
            "distill",
            "embed",
            "generate",
            "score",
            "encode",
        ),
        group="model",
    )
    labels: int | None = option(
        "classes of a classifier; default as the config says, or 2", kind="int", group="model"
    )

    batch: int = option(
        "micro-batch per GPU, in samples: of preferences, one is two rows",
        1,
        kind="int",
        group="data",
    )
    seq: int | None = option(
        "tokens per sample (source tokens of an encoder-decoder)", kind="int", group="data"
    )
    target_seq: int | None = option(
        "decoder tokens of an encoder-decoder", kind="int", group="data"
    )
    longest_seq: int | None = option(
        "length of the longest sample, when batches are padded to it", kind="int", group="data"
    )
    mean_seq: int | None = option(
        "mean tokens per sample where lengths vary from batch to batch; seq is the longest",
        kind="int",
        group="data",
    )
    samples: int | None = option(
        "samples of the run, where lengths vary: in longer runs more batches are the longest so far",
        kind="count",
        group="data",
    )
    lengths: str | None = option(
        "a file with one number per line: the tokens of each sample in training order; samples longer than seq are cut",
        group="data",
    )
    accumulate: int = option(
        "micro-batches per optimizer step", 1, kind="int", most=MOST_ACCUMULATED, group="data"
    )
    prompt_tokens: int | None = option(
        "tokens of a sample that TRL's loss does not score; default half of seq for dpo and kto, what is not generated "
        "for grpo and ppo, else none",
        kind="int",
        least=0,
        group="data",
    )
    images: int | None = option(
        "images per sample of a vision-language model", kind="int", least=0, group="data"
    )
    image_tokens: int | None = option("language-model tokens per image", kind="int", group="data")

    precision: Precision | None = option(
        "dtypes of weights, compute and master copy: X-true all in X; X-mixed fp32 weights, compute in X; X-master "
        "weights and compute in X, fp32 master copy; X-autocast weights in X under autocast; default as the framework "
        "loads this model",
        choices=tuple(map(str, Precision)),
        group="recipe",
    )
    weights_dtype: str | None = option(
        "dtype in which trained weights are stored; this and the five below: default as precision says",
        choices=DTYPES,
        group="recipe",
    )
    frozen_dtype: str | None = option(
        "dtype in which frozen weights are stored, those under adapters among them",
        choices=DTYPES,
        group="recipe",
    )
    grad_dtype: str | None = option(
        "dtype in which Megatron and DeepSpeed add up gradients; torch keeps that of the weights",
        choices=DTYPES,
        group="recipe",
    )
    master_dtype: str | None = option(
        "copy of 16-bit weights that the optimizer updates: none or fp32",
        choices=("none", "fp32"),
        group="recipe",
    )
    state_dtype: str | None = option(
        "dtype of the optimizer's states", choices=DTYPES, group="recipe"
    )
    fp8_gather: bool = option(
        "Megatron's fp8-param-gather: linear weights exist in fp8 alone, beside the master weights",
        False,
        kind="flag",
        group="recipe",
    )
    optimizer: str | None = option(
        "optimizer; default adamw, or as the framework's users run it",
        choices=OPTIMIZERS,
        group="recipe",
    )
    optimizer_impl: str | None = option(
        "how the optimizer step runs; default as the framework and versions do",
        group="recipe",
        choices=("foreach", "fused", "loop", "in-backward"),
    )
    optimizer_rank: int = option(
        "rank of GaLore's and APOLLO's projection", 128, kind="int", group="recipe"
    )
    optimizer_block: int = option(
        "block size of 8-bit states: 256 (bitsandbytes ≥ 0.44) or 2048",
        256,
        kind="int",
        group="recipe",
    )
    attention: str = option(
        "attention kernel; sdpa: the one torch would choose",
        "sdpa",
        choices=("sdpa", "eager", "math", "efficient", "flash", "cudnn"),
        group="recipe",
    )
    checkpointing: str | None = option(
        "gradient checkpointing: none, full, selective (matrix products are kept), every-N (every Nth block), "
        "offload (full, block inputs in CPU memory); default as the framework does",
        group="recipe",
    )
    recompute: tuple[str, ...] = option(
        "parts of a layer that are recomputed in backward (Megatron's recompute-modules)",
        (),
        kind="list",
        choices=(
            "core_attn",
            "layernorm",
            "mla_up_proj",
            "mlp",
            "moe",
            "moe_act",
            "shared_experts",
        ),
        group="recipe",
    )
    reentrant: bool | None = option(
        "checkpointing with use_reentrant; default as transformers does: true before 5.0",
        kind="flag",
        group="recipe",
    )
    compile: bool = option(
        "torch.compile around the model, its blocks or its loss", False, kind="flag", group="recipe"
    )
    loss: str | None = option(
        "how the loss is computed: full logits, chunked (in fp32, chunk by chunk), tiled (TRL since 1.15), fused "
        "(Liger), pairs (ORPO); default as the framework and the task do",
        choices=("full", "chunked", "tiled", "fused", "pairs"),
        group="recipe",
    )
    kernels: tuple[str, ...] = option(
        "fused kernels that save only their inputs, such as Liger",
        (),
        kind="list",
        choices=("norm", "rope", "mlp"),
        group="recipe",
    )

    tuning: str | None = option(
        "what is trained: full, lora (adapters) or qlora (adapters over 4-bit weights); default as the framework does",
        choices=("full", "lora", "qlora"),
        group="adapter",
    )
    adapter: str | None = option(
        "kind of adapter, as PEFT makes it; llama-pro adds trained blocks to frozen ones; default lora where adapters "
        "are trained",
        choices=ADAPTERS,
        group="adapter",
    )
    lora_rank: int | None = option(
        "rank of LoRA, VeRA, LoHa, LoKr and AdaLoRA; trains adapters only; default as the framework does, PEFT's for "
        "other kinds than LoRA",
        kind="int",
        group="adapter",
    )
    lora_targets: tuple[str, ...] = option(
        "modules that get adapters: all-linear, names, or one regular expression (with * | ( [ ^ or $); default as the "
        "framework does",
        (),
        kind="targets",
        group="adapter",
    )
    adapter_block: int | None = option(
        "block size of OFT and BOFT; default 32 and 4, as PEFT does", kind="int", group="adapter"
    )
    virtual_tokens: int | None = option(
        "tokens that prompt tuning, prefix tuning and p-tuning put before each sample",
        kind="int",
        group="adapter",
    )
    prompt_hidden: int | None = option(
        "width of the network that makes virtual tokens; default the model's for p-tuning, no network for prefix",
        kind="int",
        group="adapter",
    )
    modules_to_save: tuple[str, ...] = option(
        "modules of which a copy is trained in full beside the adapters",
        (),
        kind="list",
        group="adapter",
    )
    layers_to_transform: tuple[str, ...] = option(
        "numbers of the layers that get adapters; default all", (), kind="list", group="adapter"
    )
    expand_blocks: int | None = option(
        "blocks that llama-pro adds, spread evenly over the model", kind="int", group="adapter"
    )
    lora_dropout: float | None = option(
        "dropout before the adapters; default as the framework does", kind="float", group="adapter"
    )
    lora_dtype: str | None = option(
        "dtype of adapters; default as the framework makes them: fp32 by PEFT",
        choices=DTYPES,
        group="adapter",
    )
    dora: bool = option("DoRA instead of LoRA", False, kind="flag", group="adapter")
    quantize: str = option(
        "storage of the frozen linear weights; fp8 and later are formats that serving engines read",
        "none",
        choices=QUANTIZE,
        group="adapter",
    )
    freeze: tuple[str, ...] = option(
        "parameters that are not trained, by name pattern; adapters are not put on them either",
        (),
        kind="list",
        group="adapter",
    )
    ema: str = option(
        "an averaged copy of the weights", "none", choices=("none", "same", "cpu"), group="adapter"
    )

    framework: str = option("whose training loop it is", "hf", choices=FRAMEWORKS, group="loop")
    loop: str = option(
        "how the gate of a mixture of experts is trained in addition to the main loss",
        "plain",
        choices=LOOPS,
        group="loop",
    )
    keep_outputs: bool | None = option(
        "whether a variable keeps the model's outputs alive during the step",
        kind="flag",
        group="loop",
    )
    zero_grad: str | None = option(
        "whether zero_grad runs before or after forward, or fills gradients with zeros in place (set_to_none=False, "
        "torch's default before 2.0); default as the framework does",
        choices=("before-forward", "after-forward", "in-place"),
        group="loop",
    )
    use_cache: bool | None = option(
        "whether the model fills past_key_values while it trains; default as its config and the framework say",
        kind="flag",
        group="loop",
    )
    attention_mask: bool | None = option(
        "whether batches bring an attention mask, as tokenizers and collators give them; default they do",
        kind="flag",
        group="loop",
    )
    reference: str | None = option(
        "a frozen reference model (DPO, NPO, KL); adapter: the model itself with its adapters switched off; default "
        "as the task needs one",
        choices=("none", "same", "adapter", "cpu", "cuda:1", "precomputed"),
        group="loop",
    )
    reference_dtype: str | None = option(
        "dtype of the reference's weights; default that of the trained ones",
        choices=DTYPES,
        group="loop",
    )
    reward: str = option(
        "a frozen reward model that scores rollouts", "none", choices=PLACES, group="companions"
    )
    reward_model: str | None = option("its model; default the trained one", group="companions")
    critic: str = option(
        "a value model trained together with the policy", "none", choices=PLACES, group="companions"
    )
    critic_model: str | None = option("its model; default the trained one", group="companions")
    teacher: str = option(
        "a frozen teacher whose logits the loss compares with",
        "none",
        choices=PLACES,
        group="companions",
    )
    teacher_model: str | None = option("its model; default the trained one", group="companions")
    companion_dtype: str | None = option(
        "dtype of reward and teacher weights; default that of the trained ones",
        choices=DTYPES,
        group="companions",
    )

    prompt: int | None = option(
        "tokens of the prompt (task generate)", kind="int", group="inference"
    )
    new_tokens: int | None = option(
        "tokens that are generated (task generate)", kind="int", group="inference"
    )
    kv_cache: str = option(
        "the cache of keys and values (task generate): grows with every token, is allocated at once, lies in CPU "
        "memory, or is kept in 4 bit",
        "dynamic",
        choices=("dynamic", "static", "offloaded", "quantized"),
        group="inference",
    )
    prefill_chunk: int | None = option(
        "tokens of the prompt that one pass reads (task generate, prefill_chunk_size); default all",
        kind="int",
        group="inference",
    )
    beams: int = option("beams of beam search (task generate)", 1, kind="int", group="inference")
    engine: str | None = option(
        "serving engine that loads the model, profiles it and fills the rest of the card with its cache",
        choices=ENGINES,
        group="serving",
    )
    engine_version: str | None = option(
        "its version, such as 0.11.0, of llama.cpp its build (b6000); default the newest that is known",
        group="serving",
    )
    max_model_len: int | None = option(
        "longest request in tokens, prompt and answer (llama.cpp: ctx-size); default the model's own limit",
        kind="int",
        group="serving",
    )
    gpu_memory_utilization: float | None = option(
        "share of the card that the engine may fill (SGLang: mem-fraction-static); default that of the version",
        kind="float",
        group="serving",
    )
    kv_cache_dtype: str | None = option(
        "dtype of cached keys and values: auto, fp8, q8_0, …; llama.cpp's two types as q8_0/q4_0; default auto",
        group="serving",
    )
    max_num_seqs: int | None = option(
        "requests that run at once (llama.cpp: parallel); default that of the version",
        kind="int",
        group="serving",
    )
    max_num_batched_tokens: int | None = option(
        "tokens of one pass (SGLang: chunked-prefill-size, llama.cpp: ubatch-size); default that of the version",
        kind="int",
        group="serving",
    )
    gguf: str | None = option(
        "tensor types of the file that llama.cpp reads, such as q4_k_m; default the checkpoint's dtype",
        group="serving",
    )
    enforce_eager: bool = option(
        "neither torch.compile nor CUDA graphs", False, kind="flag", group="serving"
    )
    max_lora_rank: int | None = option(
        "vLLM keeps room for adapters of this rank on every layer (enable-lora); default no adapters",
        kind="int",
        group="serving",
    )
    max_loras: int | None = option(
        "adapters that vLLM holds on the card at once; default 1",
        kind="int",
        group="serving",
    )
    gpu_layers: int | None = option(
        "layers on the card (llama.cpp: n-gpu-layers), the output layer counts as one; default all",
        kind="int",
        least=0,
        group="serving",
    )
    cpu_moe_layers: int | None = option(
        "first layers whose experts stay in CPU memory (llama.cpp: n-cpu-moe)",
        kind="int",
        least=0,
        group="serving",
    )
    gpu_free: str | None = option(
        "free memory of the card before the engine starts, such as 22GiB; default all but a CUDA context",
        group="serving",
    )
    rollout_tokens: int | None = option(
        "tokens generated per sample before each step; the prompt is the rest of seq",
        kind="int",
        group="phases",
    )
    rollout_batch: int | None = option(
        "sequences generated at once; default batch", kind="int", group="phases"
    )
    rollout_engine: str | None = option(
        "serving engine that generates on the training cards (verl, OpenRLHF, TRL's colocate mode)",
        choices=("vllm", "sglang"),
        group="phases",
    )
    rollout_share: float | None = option(
        "share of the card that the rollout engine fills (its gpu-memory-utilization); default the framework's",
        kind="float",
        group="phases",
    )
    rollout_tp: int = option(
        "tensor-parallel GPUs of the rollout engine", 1, kind="int", most=MOST_GPUS, group="phases"
    )
    rollout_sleep: bool | None = option(
        "whether the rollout engine gives its memory back while others train; default as the framework does",
        kind="flag",
        group="phases",
    )
    rollout_offload: str = option(
        "what of the trained models waits in CPU memory while samples are generated and scored",
        "none",
        choices=("none", "params", "optimizer", "all"),
        group="phases",
    )
    evaluate: bool = option("evaluation between steps", False, kind="flag", group="phases")
    eval_batch: int | None = option(
        "batch of the evaluation; default batch", kind="int", group="phases"
    )
    eval_kept: int = option(
        "batches whose logits stay on the GPU until evaluation ends (compute_metrics without eval_accumulation_steps)",
        0,
        kind="int",
        least=0,
        group="phases",
    )
    resume: str = option(
        "start from a checkpoint that torch.load puts into CPU memory (cpu) or on the GPU (same)",
        "none",
        choices=("none", "cpu", "same"),
        group="phases",
    )

    edit: tuple[str, ...] = option(
        "model editing: names or patterns of the inner parameters; everything else is frozen",
        (),
        kind="list",
        group="editing",
    )
    edit_rank: int = option("rank of the editor's layers (MEND)", 1920, kind="int", group="editing")
    edit_hidden: int = option(
        "hidden layers of the editor", 1, kind="int", least=0, most=MOST_HIDDEN, group="editing"
    )
    edit_forwards: int = option(
        "forward passes of the edited model per step", 5, kind="int", group="editing"
    )
    edit_gradients: str = option(
        "what the inner backward gives gradients to: only the inner parameters, or every parameter after the first one",
        "inner",
        choices=("inner", "all-after"),
        group="editing",
    )
    edit_graph: str = option(
        "joint: all edited forwards in one graph; cut: one at a time, their gradients summed at the edited weights",
        "joint",
        choices=("joint", "cut"),
        group="editing",
    )
    sub_device: str | None = option(
        "a second device (1, cuda:1) for the first edited layer and all later ones", group="editing"
    )

    gpus: int = option("GPUs of the whole job", 1, kind="int", most=MOST_GPUS, group="many gpus")
    gpus_per_node: int = option(
        "GPUs of one machine", 8, kind="int", most=MOST_GPUS, group="many gpus"
    )
    strategy: str | None = option(
        "data parallelism; default ddp if there is more than one copy of the model",
        group="many gpus",
        choices=("none", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3"),
    )
    shard_size: int | None = option(
        "GPUs that share one sharded copy (HSDP); default all data-parallel ones",
        kind="int",
        most=MOST_GPUS,
        group="many gpus",
    )
    tp: int = option("tensor-parallel GPUs", 1, kind="int", most=MOST_GPUS, group="many gpus")
    sequence_parallel: bool | None = option(
        "norms and residuals split over tp as well; default as the framework does",
        kind="flag",
        group="many gpus",
    )
    loss_parallel: bool | None = option(
        "logits stay split over tp by vocabulary; default as the framework does",
        kind="flag",
        group="many gpus",
    )
    pp: int = option("pipeline stages", 1, kind="int", most=MOST_GPUS, group="many gpus")
    schedule: str = option(
        "pipeline schedule",
        "1f1b",
        choices=("gpipe", "1f1b", "interleaved", "zero-bubble"),
        group="many gpus",
    )
    virtual_stages: int = option(
        "model chunks per GPU of an interleaved schedule",
        1,
        kind="int",
        most=MOST_GPUS,
        group="many gpus",
    )
    stage_layers: tuple[str, ...] = option(
        "layers of every stage in order, chunks of an interleaved schedule included (4,3,3,2)",
        (),
        kind="list",
        group="many gpus",
    )
    first_stage_layers: int | None = option(
        "layers of the first stage", kind="int", least=0, group="many gpus"
    )
    last_stage_layers: int | None = option(
        "layers of the last stage", kind="int", least=0, group="many gpus"
    )
    cp: int = option("context-parallel GPUs", 1, kind="int", most=MOST_GPUS, group="many gpus")
    cp_style: str = option(
        "how attention communicates between context-parallel GPUs",
        "ring",
        choices=("ring", "allgather", "ulysses"),
        group="many gpus",
    )
    ep: int = option("expert-parallel GPUs", 1, kind="int", most=MOST_GPUS, group="many gpus")
    expert_tp: int | None = option(
        "tensor-parallel GPUs within an expert; default as the framework does",
        kind="int",
        most=MOST_GPUS,
        group="many gpus",
    )
    expert_dispatch: str | None = option(
        "how tokens reach experts in Megatron; default allgather, as its flags do",
        choices=("allgather", "alltoall", "flex"),
        group="many gpus",
    )
    expert_gemm: str | None = option(
        "a GPU's experts in one grouped matrix product, or one by one; default grouped, as transformers does since 5",
        choices=("grouped", "loop"),
        group="many gpus",
    )
    overlap_experts: bool = option(
        "one micro-batch's forward runs at the same time as another's backward, to hide expert-parallel communication",
        False,
        kind="flag",
        group="many gpus",
    )
    grad_fusion: bool = option(
        "Megatron adds weight gradients directly to the main gradients",
        True,
        kind="flag",
        group="many gpus",
    )
    expert_load: int = option(
        "tokens of the busiest GPU's experts, in percent of an even share",
        100,
        kind="int",
        least=100,
        group="many gpus",
    )
    expert_capacity: int | None = option(
        "maximum tokens of an expert, in percent of an even share (capacity factor 1.25 is 125); others are dropped",
        kind="int",
        group="many gpus",
    )
    pad_experts: bool = option(
        "experts' inputs are padded to their capacity", False, kind="flag", group="many gpus"
    )
    offload: str = option(
        "what is kept in CPU memory",
        "none",
        choices=("none", "optimizer", "params", "activations", "all"),
        group="many gpus",
    )
    offload_modules: tuple[str, ...] = option(
        "parts of a layer whose saved tensors go to CPU memory (Megatron's offload-modules)",
        (),
        kind="list",
        group="many gpus",
        choices=(
            "attn_norm",
            "qkv_linear",
            "core_attn",
            "attn_proj",
            "mlp_norm",
            "expert_fc1",
            "moe_act",
        ),
    )
    offload_device: str = option(
        "where offloaded weights and states go; nvme is ZeRO-3's, with swap buffers in pinned memory",
        "cpu",
        choices=("cpu", "nvme"),
        group="many gpus",
    )
    bucket_view: bool = option(
        "DDP's gradient_as_bucket_view", False, kind="flag", group="many gpus"
    )
    reshard: bool = option(
        "FSDP reshards a block after its forward", True, kind="flag", group="many gpus"
    )
    units: str | None = option(
        "FSDP units other than the blocks: one root, or embedding and head separately; default as the framework does",
        choices=("root", "ends"),
        group="many gpus",
    )
    reduce_bucket: int | None = option(
        "DeepSpeed's reduce_bucket_size in elements; default 5e8, or hidden² as Hugging Face's auto",
        kind="count",
        group="many gpus",
    )
    vocab_multiple: int | None = option(
        "the vocabulary is padded to a multiple of this times tp; default as the framework does",
        kind="int",
        group="many gpus",
    )

    gpu: str | None = option(
        "card, such as rtx4090 or a100-80gb; or a size such as 24GiB", group="hardware"
    )
    dataset: str | None = option("training data: a parquet file, folder or pattern", group="host")
    dataset_mode: str = option(
        "how it is read: whole table, row groups within a budget, mapped Arrow cache, or one row group",
        "row-groups",
        choices=("table", "row-groups", "mmap", "ultra"),
        group="host",
    )
    workers: int = option("DataLoader workers per GPU", 0, kind="int", least=0, group="host")
    prefetch: int | None = option(
        "batches that each worker prepares; default 2", kind="int", group="host"
    )
    pin_memory: bool = option("batches go through pinned memory", False, kind="flag", group="host")
    torch_version: str = option("version of torch", "2.13", kind="version", group="versions")
    transformers_version: str = option(
        "version of transformers", "5.22", kind="version", group="versions"
    )
    bitsandbytes_version: str = option(
        "version of bitsandbytes", "0.49", kind="version", group="versions"
    )
    trl_version: str | None = option(
        "version of TRL; default the one released beside that transformers: 1.16, 0.26 with 4.57",
        kind="version",
        group="versions",
    )
    peft_version: str | None = option(
        "version of PEFT; default 0.21, with transformers before 4.43 0.11",
        kind="version",
        group="versions",
    )
    liger_version: str = option("version of Liger", "0.8.5", kind="version", group="versions")
    alloc_conf: str = option("PYTORCH_ALLOC_CONF of the job", "", group="versions")
    deterministic: bool = option(
        "torch.use_deterministic_algorithms(True), Megatron's deterministic-mode",
        False,
        kind="flag",
        group="versions",
    )
    cublas_workspace: str = option(
        "CUBLAS_WORKSPACE_CONFIG of the job (:4096:8)", "", group="versions"
    )

    module_loading: str | None = option(
        "CUDA_MODULE_LOADING: kernels are loaded when first used, or all at once; default lazy since torch 1.13",
        choices=("lazy", "eager"),
        group="versions",
    )

    def __post_init__(self) -> None:
        for name, field in FIELDS.items():
            value = getattr(self, name)
            if value is not field.default:
                check_value(field, value)
        if (self.model is None) == (self.params is None):
            raise InputError("give a model name or --params with a number of parameters (not both)")
        if self.lengths is not None and (self.mean_seq is not None or self.longest_seq is not None):
            raise InputError(
                "lengths says how long every sample is: leave out mean-seq and longest-seq"
            )

    @property
    def has_adapters(self) -> bool:
        """Are all weights frozen but those of adapters?"""
        return self.lora_rank is not None or self.adapter not in (None, LLAMA_PRO)

    def __repr__(self) -> str:
        """What differs from the defaults."""
        values = ((name, getattr(self, name), field.default) for name, field in FIELDS.items())
        said = (f"{name}={_plain(value)!r}" for name, value, default in values if value != default)
        return f"Job({', '.join(said)})"

    def changed(self, **changes: Any) -> Job:
        """The job with other values for some fields."""
        return dataclasses.replace(self, **changes)


FIELDS = {field.name: field for field in dataclasses.fields(Job)}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Word) else value


def flag_of(name: str) -> str:
    return name.replace("_", "-")


def fields() -> dict[str, dataclasses.Field[Any]]:
    """The Job's fields under the names users type."""
    return {flag_of(name): field for name, field in FIELDS.items()}


def check_value(field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse what the field does not allow, naming the flag, the value and the allowed ones."""
    facts, name = field.metadata, flag_of(field.name)
    if value is None or (value == field.default and not facts["choices"]):
        return
    _check_kind(name, facts["kind"], value)
    for word in value if facts["kind"] in ("list", "targets") else (value,):
        if facts["choices"] and str(word) not in facts["choices"]:
            raise unknown(name, str(word), facts["choices"])
    if facts["kind"] in ("int", "count") and not facts["least"] <= value <= facts["most"]:
        bound = (
            f"at least {facts['least']}" if value < facts["least"] else f"at most {facts['most']}"
        )
        raise InputError(f"{name} must be {bound}, not {value}")
    if facts["kind"] == "float" and not 0 <= value <= 1:
        raise InputError(f"{name} must be between 0 and 1, not {value}")


def _check_kind(name: str, kind: str, value: Any) -> None:
    """A Job made in Python is refused for what a flag is refused for."""
    is_text = isinstance(value, str)
    is_version = kind == "version" and is_text and VERSION.fullmatch(value.strip()) is not None
    is_wrong = (kind == "version" and not is_version) or (
        kind in ("int", "count", "float", "flag") and is_text
    )
    if is_wrong:
        raise InputError(f"{name} must be {_WANTED[kind]}, not {_shown(value)}")


def parse_value(name: str, value: Any) -> Any:
    """A value from a flag or a job file as the field wants it."""
    known = fields()
    if name not in known:
        raise unknown("job key", name, known)
    field = known[name]
    kind = field.metadata["kind"]
    try:
        parsed = _PARSERS[kind](value)
    except (KeyError, TypeError, ValueError, OverflowError, InputError):
        raise InputError(f"{name} must be {_WANTED[kind]}, not {_shown(value)}") from None
    parsed = _as_listed(parsed, field.metadata["choices"])
    if name == "precision" and isinstance(parsed, str):
        check_value(field, parsed)
        return Precision(parsed)
    return parsed


def _as_listed(parsed: Any, choices: tuple[str, ...]) -> Any:
    """`LORA` and `bf16_true` as the lists of choices write them."""
    word = parsed.lower().replace("_", "-") if isinstance(parsed, str) else ""
    return word if word in choices else parsed


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > MOST:
        return "a number with so many digits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError
    return str(value)


def _version(value: Any) -> str:
    text = _text(value).strip().removeprefix("v")
    if not VERSION.fullmatch(text):
        raise ValueError
    return text


def _flag(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    return value if isinstance(value, bool) else words[str(value).lower()]


def _list(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    names = tuple(_text(item).strip() for item in items if _text(item).strip())
    if isinstance(value, str) and not names:
        raise ValueError  # a lone comma names nothing
    return names


REGULAR_SIGNS = frozenset("*+?|()[]{}^$\\")  # no name of a module has one


def is_regular(targets: tuple[str, ...]) -> bool:
    """Is it one regular expression over whole names of modules, as PEFT takes a string?"""
    return len(targets) == 1 and not REGULAR_SIGNS.isdisjoint(targets[0])


def _targets(value: Any) -> tuple[str, ...]:
    """A regular expression may hold commas."""
    if isinstance(value, str) and is_regular((value,)):
        return (value.strip(),)
    return _list(value)


def _count(value: Any) -> int:
    return _int(value) if isinstance(value, int | float) else parse_count(value)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "version": _version,
    "int": _int,
    "count": _count,
    "float": float,
    "flag": _flag,
    "list": _list,
    "targets": _targets,
}
_WANTED = {
    "text": "a word",
    "version": "a version such as 2.13",
    "int": "a whole number",
    "count": "a count such as 7e9 or 7B",
    "float": "a number",
    "flag": "true or false",
    "list": "a list of names",
    "targets": "a list of names, or one regular expression",
}


def job_from(values: Mapping[str, Any]) -> Job:
    """A Job from flags or job-file keys, in the Job's own words or everyday ones; None counts as not given."""
    said = translate({name: value for name, value in values.items() if value is not None})
    if "framework" not in said and said.get("task") in OF_TRL:
        said["framework"] = "trl"
    given = {name: parse_value(name, value) for name, value in said.items() if value is not None}
    job = Job(**{name.replace("-", "_"): value for name, value in given.items()})
    check_sizes(job)
    return job


def check_sizes(job: Job) -> None:
    """Sizes that are possible alone can be absurd together."""
    batch, seq = (
        max(job.batch, job.eval_batch or 1, job.rollout_batch or 1),
        max(job.seq or 1, job.target_seq or 1),
    )
    if batch * seq**2 > MOST_SCORES:
        raise InputError(
            f"a batch of {batch} with {seq} tokens each is beyond any GPU: give a smaller batch or seq"
        )


def job_values(job: Job) -> dict[str, Any]:
    """The Job as users would write it: every key, plain values."""
    values: dict[str, Any] = {}
    for name, field in fields().items():
        value = getattr(job, field.name)
        values[name] = (
            list(value)
            if isinstance(value, tuple)
            else str(value)
            if isinstance(value, Word)
            else value
        )
    return values
