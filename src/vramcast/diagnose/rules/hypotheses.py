"""Why it happened: possible causes. Each rule is a small function that weighs one kind of evidence.

In: a Case (the reading and its findings). Out: Hypotheses, the most plausible first. The rules need only what was
printed and know no job; `join_explanations` adds the explanations that `job_gap` found for a job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramcast.diagnose.observation import Observation
from vramcast.diagnose.readers.log import Frame, Reading
from vramcast.diagnose.rules.evidence import frame_text
from vramcast.diagnose.rules.findings import DRIVER_MARGIN_BYTES, Finding
from vramcast.diagnose.rules.processes import BARE_CONTEXT_MAX_BYTES
from vramcast.units import GiB

if TYPE_CHECKING:  # the engine is loaded only if a job is given
    from vramcast.diagnose.job_gap.explanation import Explanation

# The largest published communication buffers of one process: 3.3 GB beyond the context (NVIDIA/nccl#1685).
NCCL_MAX_BYTES = 4 * GiB

# Plausibility, 0 to 100.
PROVEN = 95  # by the numbers
SEEN = 80  # the failing line says so
LIKELY = 60
POSSIBLE = 30

# How many of the innermost frames are searched, and how much less each frame further out proves.
CODE_DEPTH, LOSS_PER_FRAME = 12, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A cause by name, how plausible it is (0 to 100), and the evidence for it."""

    name: str
    plausibility: int
    evidence: tuple[str, ...] = ()  # names of findings, or code as printed
    # Where a job is known: the variant of it that agrees with the numbers.
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything that the rules may use."""

    reading: Reading
    findings: tuple[Finding, ...]

    def has(self, *rules: str) -> bool:
        return bool(self.found_among(rules))

    def found_among(self, rules: Sequence[str]) -> tuple[str, ...]:
        """Those of the rules that found something, each once, in the order of the log."""
        found = [finding.rule for finding in self.findings if finding.rule in rules]
        return tuple(dict.fromkeys(found))

    def failures(self) -> tuple[Observation, ...]:
        return tuple(item for item in self.reading.observations if item.is_failure())

    def failed_on_device(self) -> bool:
        return any(not item.is_host() for item in self.failures())

    def traces(self) -> tuple[str, ...]:
        """The failing code, innermost first, then the lines that were printed before the message."""
        frames = [frame_text(frame) for frame in reversed(self.reading.frames)]
        return (*frames, *reversed(self.reading.context))

    def has_large_request(self) -> bool:
        return self.has("one_large_tensor", *TOO_LARGE)


Rule = Callable[[Case], Hypothesis | None]


TOO_LARGE = ("request_larger_than_card", "request_larger_than_any_card", "absurd_request")
SURELY_HOST = (
    "killed_by_limit",
    "killed_by_machine",
    "host_allocation",
    "host_allocation_unknown",
)
HOST_RULES = ("killed", *SURELY_HOST)


def _from_findings(name: str, plausibility: int, *rules: str) -> Rule:
    """A rule: this cause has this plausibility if any of these findings is there."""

    def rule(case: Case) -> Hypothesis | None:
        found = case.found_among(rules)
        if not found:
            return None
        return Hypothesis(name=name, plausibility=plausibility, evidence=found)

    return rule


def _from_code(name: str, pattern: str, plausibility: int) -> Rule:
    """A rule: the failing code matches this pattern. Frames further out prove less."""
    compiled = re.compile(pattern)

    def rule(case: Case) -> Hypothesis | None:
        if not case.failed_on_device():
            return None
        for depth, text in enumerate(case.traces()[:CODE_DEPTH]):
            match = compiled.search(text)
            if match:
                at_depth = max(POSSIBLE, plausibility - LOSS_PER_FRAME * depth)
                return Hypothesis(name=name, plausibility=at_depth, evidence=(match.group(0),))
        return None

    return rule


# cause, plausibility in the innermost frame, pattern in the failing line or the name of its function
CODE_OF_CAUSES: tuple[tuple[str, int, str], ...] = (
    ("optimizer_foreach", SEEN, r"_foreach_\w+|_multi_tensor_\w+"),
    ("optimizer_temporary", SEEN, r"exp_avg_sq\w*\.sqrt\(\)|denom = |_single_tensor_\w+"),
    (
        "optimizer_states",
        SEEN,
        r"_init_group|torch\.zeros_like\(\s*p\b|state\[.exp_avg|init\w*_state\w*",
    ),
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
    (
        "gathered_parameters",
        SEEN,
        r"all_gather\w*|_?unshard\w*|fetch_sub_module|_alloc_storage|GatheredParameters",
    ),
    (
        "generation_cache",
        LIKELY + 5,
        r"\bgenerate\b|past_key_values?\b|cache_utils|DynamicCache|kv_cache",
    ),
    ("dequantised_weight", LIKELY, r"dequantize\w*|MatMul4Bit|MatMul8bitLt"),
    (
        "image_tokens",
        LIKELY,
        r"pixel_values|vision_tower|patch_embed|image_features|\bVision\w*(?:_forward|\.forward)",
    ),
    (
        "loading_the_model",
        LIKELY,
        r"from_pretrained|_load_state_dict_into\w*|model\.(?:to|cuda|half)\(|_apply |dispatch_model",
    ),
    (
        "activations",
        LIKELY - 10,
        r"checkpoint\.py|_engine_run_backward|\.backward\(|run_backward|\bforward\b",
    ),
)


def other_process(case: Case) -> Hypothesis | None:
    """Memory of another process, if the request could have been served from it."""
    if case.has("other_processes_decide"):
        return _other_process(PROVEN, "other_processes_decide")
    for finding in case.findings:
        plausibility = _plausibility_of_other_process(finding, case.reading)
        if plausibility is not None:
            return _other_process(plausibility, finding.rule)
    return None


def _other_process(plausibility: int, rule: str) -> Hypothesis:
    return Hypothesis(name="another_process", plausibility=plausibility, evidence=(rule,))


# Findings about memory that no listed process holds, and their value that says how much.
_HELD_ELSEWHERE = {"unlisted_processes": "unlisted_bytes", "held_outside_pytorch": "rest_bytes"}


def _plausibility_of_other_process(finding: Finding, reading: Reading) -> int | None:
    """None where the finding says nothing about memory held elsewhere, or where the driver had enough free."""
    if finding.rule not in _HELD_ELSEWHERE or finding.observation is None:
        return None
    oom = reading.observations[finding.observation]
    requested = oom.requested_bytes or 0
    if oom.free_bytes is None or oom.free_bytes > requested + DRIVER_MARGIN_BYTES:
        return None
    held = int(dict(finding.values)[_HELD_ELSEWHERE[finding.rule]])
    if finding.rule == "held_outside_pytorch":
        held -= BARE_CONTEXT_MAX_BYTES  # of this process, at most
    would_serve = requested <= oom.free_bytes + held
    if would_serve and _is_more_than_communication_buffers(held, oom):
        return SEEN + 5
    return POSSIBLE + 5


def _is_more_than_communication_buffers(held_bytes: int, oom: Observation) -> bool:
    return held_bytes > NCCL_MAX_BYTES or held_bytes * 4 > (oom.capacity_bytes or 0)


def unlisted_holder(case: Case) -> Hypothesis | None:
    """In a container the list of nvidia-smi is always empty, so next to a failure's own numbers this says little."""
    if not case.has("nobody_listed"):
        return None
    plausibility = POSSIBLE if case.failed_on_device() else LIKELY
    return _other_process(plausibility, "nobody_listed")


def host_memory(case: Case) -> Hypothesis | None:
    """The host killed the process. After an error on a device it was rather the launcher that ended other ranks."""
    found = case.found_among(HOST_RULES)
    if not found:
        return None
    may_be_the_launcher = _device_failed_first(case) and not case.has(*SURELY_HOST)
    plausibility = POSSIBLE + 5 if may_be_the_launcher else PROVEN
    return Hypothesis(name="host_memory", plausibility=plausibility, evidence=found)


def _device_failed_first(case: Case) -> bool:
    host_lines = [item.line for item in case.failures() if item.is_host()]
    device_lines = [item.line for item in case.failures() if not item.is_host()]
    if not host_lines or not device_lines:
        return False
    return min(device_lines) < min(host_lines)


def dense_attention(case: Case) -> Hypothesis | None:
    """A large request inside SDPA is the score matrix: the fused kernels request no more than their output."""
    sdpa = "scaled_dot_product_attention"
    is_inside = any(sdpa in text for text in case.traces()[:3])
    if not is_inside or not case.has_large_request():
        return None
    return Hypothesis(name="attention_scores", plausibility=SEEN, evidence=(sdpa,))


# Hand-written evaluation loops: trainers turn gradients off themselves, and a decorator that does leaves a frame.
_EVALUATES = re.compile(
    r"(?:^|[\s_.])(?:validat\w*|evaluat\w*|eval_\w+|predict\w*|inference)\b", re.IGNORECASE
)
_WITHOUT_GRADIENTS = re.compile(
    r"decorate_context|_contextlib|grad_mode|no_grad|inference_mode|transformers.trainer|lightning|generat",
    re.IGNORECASE,
)


_RUNS_THE_MODEL = re.compile(r"^(?:forward|__call__|_(?:wrapped_)?call_impl)$")


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The outermost frame that evaluates, and the frames inside it."""

    name: str
    inner: tuple[Frame, ...]


def _failed_evaluation(case: Case) -> _Evaluation | None:
    if not case.failed_on_device():
        return None
    for index, frame in enumerate(case.reading.frames):
        name = _function_or_script(frame)
        if _EVALUATES.search(f" {name}"):
            return _Evaluation(name, case.reading.frames[index + 1 :])
    return None


def _function_or_script(frame: Frame) -> str:
    if frame.function != "<module>":
        return frame.function
    return re.split(r"[/\\]", frame.file)[-1].removesuffix(".py")


def evaluation_keeps_graph(case: Case) -> Hypothesis | None:
    """A hand-written evaluation failed, and nothing in the traceback turns gradients off."""
    evaluation = _failed_evaluation(case)
    if evaluation is None:
        return None
    if any(_WITHOUT_GRADIENTS.search(frame_text(frame)) for frame in case.reading.frames):
        return None
    return Hypothesis(
        name="evaluation_keeps_graph", plausibility=LIKELY - 5, evidence=(evaluation.name,)
    )


def evaluation_of_results(case: Case) -> Hypothesis | None:
    """An evaluation failed while no model ran: it was handling the results of many batches."""
    evaluation = _failed_evaluation(case)
    if evaluation is None:
        return None
    if any(_RUNS_THE_MODEL.match(frame.function) for frame in evaluation.inner):
        return None
    plausibility = LIKELY if case.has_large_request() else LIKELY - 6
    return Hypothesis(
        name="evaluation_gathers", plausibility=plausibility, evidence=(evaluation.name,)
    )


def growth_over_steps(case: Case) -> Hypothesis | None:
    """A job that fails after many steps has grown, unless this batch was larger than the ones before."""
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
    """What remains if the numbers point to nothing else: the job needs more than the card has."""
    if not case.failed_on_device():
        return None
    if case.has("free_yet_refused", "request_larger_than_card", "other_processes_decide"):
        return None
    return Hypothesis(
        name="needs_more_than_the_card",
        plausibility=POSSIBLE + 10,
        evidence=case.found_among(("lower_bound",)),
    )


HYPOTHESES: tuple[Rule, ...] = (
    other_process,
    unlisted_holder,
    fragmented,
    _from_findings("cap_by_fraction", PROVEN, "capped"),
    _from_findings("one_tensor_larger_than_card", PROVEN, *TOO_LARGE),
    _from_findings("windows_spill", SEEN, "spilled"),
    _from_findings("all_ranks_on_one_card", LIKELY + 5, "shared_card", "stray_contexts"),
    _from_findings("driver_or_runtime_limit", SEEN, "free_yet_refused", "block_limit"),
    host_memory,
    _from_findings("shared_memory", PROVEN, "shared_memory"),
    _from_findings("open_files", PROVEN, "open_files", "shared_file_gone"),
    _from_findings("card_full_elsewhere", LIKELY, "outside_jax_pool"),
    _from_findings(
        "card_full_elsewhere",
        LIKELY + 10,
        "masked",
        "masked_nccl",
        "runtime_error",
        "masked_uncertain",
    ),
    _from_findings("vllm_share", SEEN, "vllm_share", "vllm_no_room"),
    _from_findings("outside_pytorch", LIKELY, "large_outside", "outside_async_pool", "mps_limit"),
    _from_findings("memory_grows", LIKELY, "growing"),
    growth_over_steps,
    _from_findings("loading_the_model", LIKELY, "as_much_again"),
    dense_attention,
    evaluation_keeps_graph,
    evaluation_of_results,
    _from_findings("one_large_tensor", LIKELY - 5, "one_large_tensor"),
    *(_from_code(name, pattern, plausibility) for name, plausibility, pattern in CODE_OF_CAUSES),
    too_much_for_the_card,
)


def rank(case: Case) -> tuple[Hypothesis, ...]:
    """The causes with any evidence, the most plausible first; equal ones keep the order of HYPOTHESES."""
    results = [rule(case) for rule in HYPOTHESES]
    found = [hypothesis for hypothesis in results if hypothesis is not None]
    strongest: dict[str, Hypothesis] = {}
    for hypothesis in _sort_by_plausibility(found):
        strongest.setdefault(hypothesis.name, hypothesis)  # two rules may find one cause
    return tuple(strongest.values())


def _sort_by_plausibility(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.plausibility)


def join_explanations(
    hypotheses: Sequence[Hypothesis], explanations: Sequence[Explanation]
) -> tuple[Hypothesis, ...]:
    """One list of the causes found in the text and of the explanations of the job. A cause in both appears once, with
    the evidence of both."""
    if not explanations:
        return tuple(_sort_by_plausibility(hypotheses))
    from_text = {item.name: item for item in hypotheses}
    from_text.pop("needs_more_than_the_card", None)  # the explanations say why it needs more
    joined = []
    for explanation in explanations:
        # A changed job that fails only because of another process does not explain that process.
        stands_alone = bool(explanation.agreement.because and explanation.changes)
        same_cause = None if stands_alone else from_text.pop(explanation.cause, None)
        joined.append(_join(explanation, same_cause))
    return tuple(_sort_by_plausibility((*joined, *from_text.values())))


def _join(explanation: Explanation, same_cause: Hypothesis | None) -> Hypothesis:
    alone = Hypothesis(
        name=explanation.cause, plausibility=explanation.plausibility, explanation=explanation
    )
    if same_cause is None:
        return alone
    plausibility = max(explanation.plausibility, same_cause.plausibility)
    return replace(alone, plausibility=plausibility, evidence=same_cause.evidence)
