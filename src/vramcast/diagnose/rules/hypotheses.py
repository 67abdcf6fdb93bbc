"""Why it happened: candidate causes, each a small function that weighs one kind of evidence.

In: a Case (the reading and its findings). Out: Hypotheses, the most plausible first. Those here need only what was
printed; `joined` adds the priced explanations of a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers.log import Frame, Reading
from vramcast.diagnose.rules.findings import DRIVER_MARGIN_BYTES, Finding
from vramcast.units import GiB

if TYPE_CHECKING:  # the formula engine is loaded only where a job is given
    from vramcast.diagnose.job_gap.gap import Explanation

# Communication buffers of one process, the most that was published: 3.3 GB over the context (NVIDIA/nccl#1685).
NCCL_MAX_BYTES = 4 * GiB

# How plausible: what the numbers prove, what the failing line says, what is merely possible.
PROVEN, SEEN, LIKELY, POSSIBLE = 95, 80, 60, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A cause by name, how plausible it is (0 to 100), and what speaks for it."""

    name: str
    plausibility: int
    evidence: tuple[str, ...] = ()  # rules, frames or source lines, as printed
    explanation: Explanation | None = None  # where a job is known: the variant of it that agrees with the numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything known when a cause is sought."""

    reading: Reading
    findings: tuple[Finding, ...]

    def has(self, *rules: str) -> bool:
        return any(finding.rule in rules for finding in self.findings)

    def failures(self) -> tuple[Observation, ...]:
        return tuple(item for item in self.reading.observations if item.is_failure())

    def failed_on_device(self) -> bool:
        return any(not item.is_host() for item in self.failures())

    def traces(self) -> tuple[str, ...]:
        """The failing code, innermost first: functions and source lines, then what was printed before the message."""
        frames = [f"{frame.function} {frame.file} {frame.source}" for frame in reversed(self.reading.frames)]
        return (*frames, *reversed(self.reading.context))


Rule = Callable[[Case], Hypothesis | None]


def _from_findings(name: str, plausibility: int, *rules: str) -> Rule:
    def rule(case: Case) -> Hypothesis | None:
        seen = tuple(dict.fromkeys(finding.rule for finding in case.findings if finding.rule in rules))
        return Hypothesis(name=name, plausibility=plausibility, evidence=seen) if seen else None

    return rule


def _from_code(name: str, pattern: str, plausibility: int = SEEN) -> Rule:
    """The innermost frames name the operation; each frame further out speaks a little less clearly."""
    compiled = re.compile(pattern)

    def rule(case: Case) -> Hypothesis | None:
        if not case.failed_on_device():
            return None
        for depth, text in enumerate(case.traces()[:12]):
            match = compiled.search(text)
            if match:
                return Hypothesis(
                    name=name, plausibility=max(POSSIBLE, plausibility - 2 * depth), evidence=(match.group(0),)
                )
        return None

    return rule


TOO_LARGE = ("request_larger_than_card", "request_larger_than_any_card", "absurd_request")
HOST_ALLOCATION = ("host_allocation", "host_allocation_unknown")
HOST_RULES = ("killed", "killed_by_limit", "killed_by_machine", *HOST_ALLOCATION)

# cause, how clearly the code speaks for it, what stands in the failing line or its function's name.
CODE: tuple[tuple[str, int, str], ...] = (
    ("optimizer_foreach", SEEN, r"_foreach_\w+|_multi_tensor_\w+"),
    ("optimizer_temporary", SEEN, r"exp_avg_sq\w*\.sqrt\(\)|denom = |_single_tensor_\w+"),
    ("optimizer_states", SEEN, r"_init_group|torch\.zeros_like\(\s*p\b|state\[.exp_avg|init\w*_state\w*"),
    (
        "logits",
        SEEN,
        r"cross_entropy|log_softmax|logits\.(?:float|contiguous|clone)|lm_head\(|loss_function|log_probs?\b",
    ),
    (
        "attention_scores",
        SEEN,
        r"softmax\(\s*att|attn_weights|attention_scores|baddbmm|eager_attention|unfused_att|attention_probs"
        # the product of queries and keys, under whatever name its result has
        r"|\bq(?:uery)?\w{0,6} ?@ ?k(?:ey)?\w{0,6}\b|(?:einsum|matmul|bmm)\(.{0,60}?\bq\w{0,8}\b.{0,20}?, ?k\w{0,8}\b",
    ),
    (
        "evaluation_gathers",
        SEEN,
        r"nested_concat|nested_gather|pad_and_concatenate|pad_across_processes|evaluation_loop|gather_for_metrics",
    ),
    (
        "saving_gathers",
        SEEN,
        r"_full_p\w+_state_dict_hook|save_c\w+|_?save_model|optim_state_dict|gather_16bit|clone\(\) tensor",
    ),
    (
        "resuming_loads_twice",
        SEEN,
        r"load_checkpoint|_?load_opt\w*|_rebuild_cuda_tensor|resume_from|load_state_dict|restore_(?:model|checkpoint)"
        r"|\b(?:torch|th)\.load\(|persistent_load|restore_location",
    ),
    ("allocator_warmup", PROVEN, r"caching_allocator_warmup"),
    ("gathered_parameters", SEEN, r"all_gather\w*|_?unshard\w*|fetch_sub_module|_alloc_storage|GatheredParameters"),
    ("generation_cache", LIKELY + 5, r"\bgenerate\b|past_key_values?\b|cache_utils|DynamicCache|kv_cache"),
    ("dequantised_weight", LIKELY, r"dequantize\w*|MatMul4Bit|MatMul8bitLt"),
    ("image_tokens", LIKELY, r"pixel_values|vision_tower|patch_embed|image_features|\bVision\w*(?:_forward|\.forward)"),
    (
        "loading_the_model",
        LIKELY,
        r"from_pretrained|_load_state_dict_into\w*|model\.(?:to|cuda|half)\(|_apply |dispatch_model",
    ),
    ("activations", LIKELY - 10, r"checkpoint\.py|_engine_run_backward|\.backward\(|run_backward|\bforward\b"),
)


def neighbour(case: Case) -> Hypothesis | None:
    """Somebody else's memory, if giving it back would have served the request."""
    if case.has("other_processes_decide"):
        return Hypothesis(name="another_process", plausibility=PROVEN, evidence=("other_processes_decide",))
    for finding in case.findings:
        held = dict(finding.values).get(_HELD_ELSEWHERE.get(finding.rule, ""))
        if isinstance(held, int) and finding.observation is not None:
            oom = case.reading.observations[finding.observation]
            if oom.free_bytes is not None and oom.free_bytes <= (oom.requested_bytes or 0) + DRIVER_MARGIN_BYTES:
                would_serve = (oom.requested_bytes or 0) <= oom.free_bytes + held
                is_much = held > NCCL_MAX_BYTES or held * 4 > (oom.capacity_bytes or 0)
                strength = SEEN + 5 if would_serve and is_much else POSSIBLE + 5
                return Hypothesis(name="another_process", plausibility=strength, evidence=(finding.rule,))
    return None


def held_by_nobody_listed(case: Case) -> Hypothesis | None:
    """In a container the list is always empty, so beside a failure's own numbers this says little."""
    if not case.has("nobody_listed"):
        return None
    strength = POSSIBLE if case.failed_on_device() else LIKELY
    return Hypothesis(name="another_process", plausibility=strength, evidence=("nobody_listed",))


_HELD_ELSEWHERE = {"unlisted_processes": "unlisted_bytes", "held_outside_pytorch": "rest_bytes"}


def host_memory(case: Case) -> Hypothesis | None:
    """A kill by the host; after an error on a device it is rather the launcher clearing up the other ranks."""
    seen = tuple(dict.fromkeys(finding.rule for finding in case.findings if finding.rule in HOST_RULES))
    if not seen:
        return None
    first = min((item.line for item in case.failures() if item.is_host()), default=0)
    after_device = any(not item.is_host() and item.line < first for item in case.failures())
    surely_host = case.has("killed_by_limit", "killed_by_machine", *HOST_ALLOCATION)
    strength = POSSIBLE + 5 if after_device and not surely_host else PROVEN
    return Hypothesis(name="host_memory", plausibility=strength, evidence=seen)


def dense_attention(case: Case) -> Hypothesis | None:
    """A large request inside SDPA is the score matrix: its fused kernels ask for no more than their output."""
    is_large = case.has("one_large_tensor", *TOO_LARGE)
    inside = next((text for text in case.traces()[:3] if "scaled_dot_product_attention" in text), None)
    if inside is None or not is_large:
        return None
    return Hypothesis(name="attention_scores", plausibility=SEEN, evidence=("scaled_dot_product_attention",))


# Loops that evaluate by hand: trainers turn gradients off themselves, and a decorator that does leaves a frame.
_EVALUATES = re.compile(r"(?:^|[\s_.])(?:validat\w*|evaluat\w*|eval_\w+|predict\w*|inference)\b", re.IGNORECASE)
_WITHOUT_GRADIENTS = re.compile(
    r"decorate_context|_contextlib|grad_mode|no_grad|inference_mode|transformers.trainer|lightning|generat",
    re.IGNORECASE,
)


_RUNS_THE_MODEL = re.compile(r"^(?:forward|__call__|_(?:wrapped_)?call_impl)$")


def _evaluating(case: Case) -> tuple[str, tuple[Frame, ...]] | None:
    """The first frame of an evaluation, by its function or by the script's own name, and the frames inside of it."""
    for index, frame in enumerate(case.reading.frames):
        script = re.split(r"[/\\]", frame.file)[-1].removesuffix(".py")
        name = script if frame.function == "<module>" else frame.function
        if _EVALUATES.search(f" {name}"):
            return name, case.reading.frames[index + 1 :]
    return None


def evaluation_keeps_graph(case: Case) -> Hypothesis | None:
    """It failed in a hand-written evaluation, and nothing in the trace turns gradients off."""
    traces = [f"{frame.function} {frame.file} {frame.source}" for frame in case.reading.frames]
    found = _evaluating(case)
    if found is None or any(_WITHOUT_GRADIENTS.search(text) for text in traces) or not case.failed_on_device():
        return None
    return Hypothesis(name="evaluation_keeps_graph", plausibility=LIKELY - 5, evidence=(found[0],))


def evaluation_of_results(case: Case) -> Hypothesis | None:
    """It failed in an evaluation while no model ran: what is handled there are the results of many batches."""
    found = _evaluating(case)
    if found is None or any(_RUNS_THE_MODEL.match(frame.function) for frame in found[1]) or not case.failed_on_device():
        return None
    strength = LIKELY if case.has("one_large_tensor", *TOO_LARGE) else LIKELY - 6
    return Hypothesis(name="evaluation_gathers", plausibility=strength, evidence=(found[0],))


def grown_or_longer(case: Case) -> Hypothesis | None:
    """It ran for a while: what fails late has grown, unless this batch was larger than those before."""
    if not case.has("ran_before") or not case.failed_on_device():
        return None
    return Hypothesis(name="memory_grows", plausibility=POSSIBLE + 15, evidence=("ran_before",))


def fragmented(case: Case) -> Hypothesis | None:
    if case.has("fragmentation"):
        return Hypothesis(name="fragmentation", plausibility=SEEN + 7, evidence=("fragmentation",))
    if case.has("large_cache"):
        return Hypothesis(name="fragmentation", plausibility=POSSIBLE, evidence=("large_cache",))
    return None


def too_much_for_the_card(case: Case) -> Hypothesis | None:
    """What remains when nothing in the numbers points elsewhere: the job simply needs more."""
    if not case.failed_on_device() or case.has(
        "free_yet_refused", "request_larger_than_card", "other_processes_decide"
    ):
        return None
    evidence = ("lower_bound",) if case.has("lower_bound") else ()
    return Hypothesis(name="needs_more_than_the_card", plausibility=POSSIBLE + 10, evidence=evidence)


HYPOTHESES: tuple[Rule, ...] = (
    neighbour,
    held_by_nobody_listed,
    fragmented,
    _from_findings("cap_by_fraction", PROVEN, "capped"),
    _from_findings("one_tensor_larger_than_card", PROVEN, *TOO_LARGE),
    _from_findings("windows_spill", SEEN, "spilled"),
    _from_findings("all_ranks_on_one_card", LIKELY + 5, "shared_card", "stray_contexts"),
    _from_findings("driver_or_runtime_limit", SEEN, "free_yet_refused", "block_limit"),
    host_memory,
    _from_findings("shared_memory", PROVEN, "shared_memory"),
    _from_findings("card_full_elsewhere", LIKELY, "outside_jax_pool"),
    _from_findings("card_full_elsewhere", LIKELY + 10, "masked", "masked_nccl", "runtime_error", "masked_uncertain"),
    _from_findings("vllm_share", SEEN, "vllm_share", "vllm_no_room"),
    _from_findings("outside_pytorch", LIKELY, "large_outside", "outside_async_pool", "mps_limit"),
    _from_findings("memory_grows", LIKELY, "growing"),
    grown_or_longer,
    _from_findings("loading_the_model", LIKELY, "as_much_again"),
    dense_attention,
    evaluation_keeps_graph,
    evaluation_of_results,
    _from_findings("one_large_tensor", LIKELY - 5, "one_large_tensor"),
    *(_from_code(name, pattern, plausibility) for name, plausibility, pattern in CODE),
    too_much_for_the_card,
)


def rank(case: Case) -> tuple[Hypothesis, ...]:
    """The causes with any evidence, most plausible first; equals keep the order of the list."""
    found = [hypothesis for rule in HYPOTHESES if (hypothesis := rule(case)) is not None]
    ranked: dict[str, Hypothesis] = {}
    for hypothesis in sorted(found, key=lambda item: -item.plausibility):
        ranked.setdefault(hypothesis.name, hypothesis)  # two rules may speak for one cause
    return tuple(ranked.values())


def joined(hypotheses: Sequence[Hypothesis], explanations: Sequence[Explanation]) -> tuple[Hypothesis, ...]:
    """Causes seen in the text and variants of the job, one list. What both point to counts once, with both reasons;
    a variant that needs another process beside its own deviations does not explain why that process is there."""
    seen = {item.name: item for item in hypotheses if not explanations or item.name != "needs_more_than_the_card"}
    priced: list[Hypothesis] = []
    for item in explanations:
        text = None if item.agreement.because and item.changes else seen.pop(item.cause, None)
        priced.append(
            Hypothesis(
                name=item.cause, plausibility=max(item.plausibility, text.plausibility if text else 0),
                evidence=text.evidence if text else (), explanation=item,
            )
        )  # fmt: skip
    return tuple(sorted((*priced, *seen.values()), key=lambda hypothesis: -hypothesis.plausibility))
