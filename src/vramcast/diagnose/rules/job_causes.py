"""The job itself as a cause: what it computes, evaluates, keeps, or holds at rest.

In: a Case. Out: Hypotheses. Each rule weighs one kind of evidence; the last two are what remains if nothing speaks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramcast.diagnose.readers.frames import Frame
from vramcast.diagnose.rules.case import (
    LIKELY,
    POSSIBLE,
    SEEN,
    SERVER_STARTS,
    TOO_LARGE,
    Case,
    Hypothesis,
)
from vramcast.diagnose.rules.clues import SERVERS
from vramcast.diagnose.rules.evidence import frame_text


def tensor_of_tensorflow(case: Case) -> Hypothesis | None:
    """TensorFlow names the shape: a matrix is a weight, more axes with many samples in the first are activations."""
    for item in case.failures():
        sides = [int(side.value) for side in item.figures if side.label.startswith("shape[")]
        shape = "×".join(map(str, sides))
        if len(sides) > 2 and (sides[0] > 1 or max(sides) >= IMAGE_SIDE):
            return Hypothesis(name="activations", plausibility=LIKELY, evidence=(shape,))
        if len(sides) == 2 and (min(sides) >= MATRIX_SIDE or _is_table(sides)):
            return Hypothesis(name="model_states", plausibility=LIKELY, evidence=(shape,))
    return None


IMAGE_SIDE = 1024  # of one sample that is large itself
MATRIX_SIDE = 256  # smaller sides are batches or classes
TABLE_ROWS, TABLE_WIDTH = 10_000, 32  # of embeddings: more rows than any batch


def _is_table(sides: list[int]) -> bool:
    return max(sides) >= TABLE_ROWS and min(sides) >= TABLE_WIDTH


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


_MAKES_THE_MODEL = re.compile(r"^(?:__init__|from_pretrained|load\w*|build\w*|create_model)$")


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
    if any(_MAKES_THE_MODEL.match(frame.function) for frame in evaluation.inner):
        return None
    plausibility = LIKELY if case.has_large_request() else LIKELY - 6
    return Hypothesis(
        name="evaluation_gathers", plausibility=plausibility, evidence=(evaluation.name,)
    )


_STEP = re.compile(r"\bopt\w{0,12}\.step\(\s*\)|scaler\.step\(")


def failing_in_step(case: Case) -> Hypothesis | None:
    """The innermost line that was pasted is the optimizer's step. Lightning runs the model inside of it: deeper."""
    if not case.failed_on_device():
        return None
    match = next(filter(None, map(_STEP.search, case.traces()[:2])), None)
    if match is None:
        return None
    return Hypothesis(name="optimizer_states", plausibility=LIKELY + 2, evidence=(match.group(0),))


def growth_over_steps(case: Case) -> Hypothesis | None:
    """A job that fails after many steps has grown, unless this batch was larger than the ones before."""
    if not case.has("ran_before") or not case.failed_on_device() or case.seen("skips_batches"):
        return None
    return Hypothesis(name="memory_grows", plausibility=POSSIBLE + 15, evidence=("ran_before",))


def fragmented(case: Case) -> Hypothesis | None:
    if case.has("fragmentation"):
        plausibility = SEEN + 7 if _caches_far_more(case) else LIKELY + 12
        return Hypothesis(
            name="fragmentation", plausibility=plausibility, evidence=("fragmentation",)
        )
    if case.has("fragmentation_of_old"):
        return Hypothesis(
            name="fragmentation", plausibility=LIKELY - 5, evidence=("fragmentation_of_old",)
        )
    if case.has("large_cache"):
        return Hypothesis(name="fragmentation", plausibility=POSSIBLE, evidence=("large_cache",))
    return None


FAR_MORE = 1.5


def _caches_far_more(case: Case) -> bool:
    """Would the cache serve the request easily if it were in one piece? What barely adds up is nearly full as well."""
    values = [dict(item.values) for item in case.findings if item.rule == "fragmentation"]
    return any(
        int(item["unallocated_bytes"]) >= FAR_MORE * int(item["requested_bytes"]) for item in values
    )


def _has_a_better_answer(case: Case) -> bool:
    """The numbers prove that it is not simply too much for the card."""
    return case.has("free_yet_refused", "other_processes_decide", *TOO_LARGE)


def too_much_per_step(case: Case) -> Hypothesis | None:
    """What remains if nothing points to a part: what a step computes and keeps is too much."""
    if not case.failed_on_device() or _has_a_better_answer(case):
        return None
    if case.is_inference() and case.has(
        "one_large_tensor"
    ):  # without a backward pass it is the input's size
        return Hypothesis(
            name=_per_step(case), plausibility=LIKELY - 2, evidence=("one_large_tensor",)
        )
    return Hypothesis(name=_per_step(case), plausibility=POSSIBLE + 12)


def _per_step(case: Case) -> str:
    if not case.is_inference():
        return "activations"
    is_server = any(item.kind in SERVER_STARTS for item in case.failures())
    serves = is_server or case.seen(*SERVERS, "local_llm")
    return "kv_cache" if serves else "input_too_large"


def too_much_at_rest(case: Case) -> Hypothesis | None:
    """The other half of what remains: what lies there whatever the batch is."""
    if not case.failed_on_device() or _has_a_better_answer(case):
        return None
    name = "loading_the_model" if case.is_inference() else "model_states"
    # What lies there does so from the first step on.
    is_refuted = case.is_inference() or case.seen("after_steps") or case.has("ran_before")
    speaks = ("full_training",) if case.seen("batch_matters") else ("full_training", "batch_of_one")
    said = () if is_refuted else case.seen(*speaks)
    plausibility = POSSIBLE + 18 if said else POSSIBLE + 10
    return Hypothesis(name=name, plausibility=plausibility, evidence=said)


# Causes that remain where the text cannot decide.
UNDECIDED = ("activations", "model_states", "input_too_large", "loading_the_model", "kv_cache")
