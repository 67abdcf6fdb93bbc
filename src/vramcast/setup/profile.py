"""A Profile: what a framework does where its user says nothing. The profiles themselves are in `setup.profiles`.

A value that changed with a library's version is a `Since`:

    Since("transformers", "foreach", (((4, 54), "fused"),))     foreach before 4.54, fused from then on
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vramcast.job import Job, Precision
from vramcast.setup.versions import Version, parse_version, peft_version, trl_version

T = TypeVar("T")
Versions = dict[str, Version]  # library → its version in this job


@dataclass(frozen=True, slots=True)
class Since(Generic[T]):
    """A value that a library's version decides."""

    library: str
    before: T
    changes: tuple[tuple[Version, T], ...]  # the version that brought a value, oldest first

    def at(self, versions: Versions) -> T:
        found = self.before
        for version, value in self.changes:
            if versions[self.library] >= version:
                found = value
        return found


def at(value: T | Since[T], versions: Versions) -> T:
    """The value with these versions of the libraries."""
    return value.at(versions) if isinstance(value, Since) else value


# peft/tuners/tuners_utils.py _cast_adapter_dtype: 16-bit adapters are raised to fp32; before, they took the dtype of
# the weight they were put on, unless that was quantised.
PEFT = Since("peft", "weights", (((0, 12), "fp32"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One framework's habits, as read in its source."""

    version: str  # what was read …
    read: str  # … and of which day it was
    source: str  # where the dtype of its weights is decided
    sources: dict[str, str] = field(default_factory=dict)  # of other values, by field
    # Whose loop runs beneath, in the engine's word; None: its own.
    runs_as: str | None = None

    # What is trained: full, lora, or qlora; and the adapters where nothing is said about them.
    tuning: str = "full"
    lora_rank: int = 16
    lora_targets: tuple[str, ...] = ("all-linear",)
    lora_dropout: float = 0.0
    adapter_dtype: str | Since[str] = PEFT  # "weights": as the frozen ones are stored
    # The loader passes its dtype on, so that it holds for what 4-bit models leave unquantised, too.
    passes_dtype: bool = False
    quantised_adapter_dtype: str | None = None  # of adapters over 4-bit weights, if another
    four_bit: str = "nf4"  # what 4-bit means: nf4, or nf4-double
    raises_quantised: bool = False  # PEFT's prepare_model_for_kbit_training

    # Dtypes. `precision`: the same for every model; None: it follows the loaded weights, which are "fp32", "stored" (as
    # the checkpoint has them) or "16-bit" (whatever the checkpoint has).
    precision: Precision | None = None
    quantised_precision: Precision | None = None  # over 4- or 8-bit weights, if another
    loads: str | Since[str] = "fp32"
    raises_trained: bool = False  # full training turns them to fp32
    # accelerate: FSDP turns what is trained to fp32, and DeepSpeed keeps a master copy.
    uses_accelerate: bool = False

    optimizer: str = "adamw"
    optimizer_impl: str | Since[str] = "foreach"  # of torch's AdamW; older torch loops
    other_impl: str = "foreach"  # of torch's other optimizers
    checkpointing: str | Since[str] = "none"
    quantised_checkpointing: str | None = None  # if another over 4- or 8-bit weights
    reentrant: bool | Since[bool] = False
    loss: str | Since[str] = "full"
    kernels: tuple[str, ...] = ()
    keeps_outputs: bool | Since[bool] = False  # in a variable until the next forward
    zero_grad: str = "before-forward"
    use_cache: bool | Since[bool | None] | None = None  # what it tells the model; None: nothing
    copies_logits: int | Since[int] = 0  # how many, shifted, for the accuracy of tokens
    seq: int | None = None  # None: what the model was made for
    alloc_conf: str = ""

    # What its users spread a job over GPUs with: the first that fits.
    strategies: tuple[str, ...] = ("ddp", "fsdp2")
    sequence_parallel: bool = False
    loss_parallel: bool | Since[bool] = False
    vocab_multiple: int = 1


def versions_of(job: Job) -> Versions:
    """Of the libraries that decide defaults."""
    return {
        "torch": parse_version(job.torch_version),
        "transformers": parse_version(job.transformers_version),
        "trl": trl_version(job.trl_version, parse_version(job.transformers_version)),
        "peft": peft_version(job.peft_version, parse_version(job.transformers_version)),
    }
