"""From logits to a loss, as the libraries have written it over time.

transformers (checked in its wheels): up to 4.45 the loss stood in each model's forward, which turned logits to fp32 or
did not, family by family, then copied them shifted; 4.46–4.48 upcast and shifted copy inside a loss function; from 4.49
upcast, no copy (labels are shifted instead). Losses of masked language models and of encoder-decoders never upcast.
"""

from __future__ import annotations

from typing import Any

from vramcast.models.record.dims import Number, maximum, minimum
from vramcast.models.record.program import Program
from vramcast.models.record.tape import F32, Op, Tape, Value

Version = tuple[int, int]

CHUNKS = 8  # torchtune's CEWithChunkedOutputLoss and its like
LITGPT_ROWS = 128  # tokens per chunk, litgpt/utils.py chunked_cross_entropy


def add_loss(program: Program, *, transformers: Version, kind: str = "full", outputs_in_fp32: bool = False) -> None:
    """Record the loss as the program's last section, unless a fused head has computed it already. `outputs_in_fp32`:
    whoever called the model under autocast gets its logits in fp32 (accelerate's convert_outputs_to_fp32)."""
    t, logits = program.tape, program.output
    if program.loss == "none" or "loss" in t.regime.fused:
        return
    if program.loss == "causal" and t.regime.code == "transformers" and t.regime.raises_logits == "model":
        logits = _raised_by_model(t, logits)
    with t.part("loss", logits) as part:
        handed_on = outputs_in_fp32 and t.regime.autocast and logits.dtype != F32
        if handed_on and kind == "chunked":  # by a loop that computes the loss itself
            logits = t.cast(logits, F32, "logits handed on in fp32")
        part.outputs = (_loss(t, logits, program.loss, transformers, kind),)
        if t.regime.code != "megatron":
            t.holding(part.outputs[0], logits)  # a variable of whoever calls the loss
        if handed_on and kind == "full":
            t.op("to", (logits,), logits.shape, F32, requires_grad=False, label="logits handed on in fp32")


def _loss(t: Tape, logits: Value, loss: str, transformers: Version, kind: str) -> Value:
    if t.regime.code == "litgpt":
        return _litgpt(t, logits)
    if t.regime.code == "megatron":
        return vocab_parallel_loss(t, logits)
    if t.regime.compiled_loss:
        return _compiled(t, logits, chunked=kind == "chunked")
    if kind == "chunked":
        return _chunked(t, logits)
    if t.regime.code == "torchtitan" and t.regime.raises_logits != "loss":
        return cross_entropy(t, logits)
    return cross_entropy(t, logits) if t.regime.code == "torchtune" else _full(t, logits, loss, transformers)


def _raised_by_model(t: Tape, logits: Value) -> Value:
    """`logits = logits.float()` in the model's forward: the 16-bit ones go, `outputs` has those in fp32."""
    section = t.placed[-1].section
    with t.reopened(section):
        raised = t.cast(logits, F32, "logits fp32")
        section.outputs = (raised, *section.outputs[1:])
    return raised


def _full(t: Tape, logits: Value, loss: str, transformers: Version) -> Value:
    """Variables of the loss function hold the logits in every form until it returns."""
    raises = loss == "causal" and t.regime.raises_logits == "loss"
    raised = t.cast(logits, F32, "logits fp32") if raises else logits
    shifted = _shifted(t, raised) if loss == "causal" and transformers < (4, 49) else raised
    return t.holding(cross_entropy(t, shifted), raised, shifted)


def _shifted(t: Tape, logits: Value) -> Value:
    """`logits[..., :-1, :].contiguous()`: with one sample the slice is contiguous already, and nothing is copied."""
    b, s, vocab = logits.shape
    shape = (b, s - 1, vocab)
    if isinstance(b, int):
        return t.select(logits, shape) if b == 1 else t.copy(logits, shape, "shifted logits")
    return t.view(t.copy(logits, (b * (b > 1), s - 1, vocab), "shifted logits"), shape)  # of many jobs at once


def cross_entropy(t: Tape, x: Value) -> Value:
    """log_softmax keeps its output, nll_loss needs it too. cross_entropy asks log_softmax for the dtype of its input
    (LossNLL.cpp), which autocast then leaves alone; nll_loss it runs in fp32."""
    saves = (x,) if t.regime.softmax_keeps_input else ()
    log_probs = t.op(
        "log_softmax", (x,), x.shape, x.dtype, saves=saves, saves_output=True, label="log-probabilities",
        **_loss_parallel(t, x),
    )  # fmt: skip
    if t.regime.autocast:
        log_probs = t.cast(log_probs, F32)
    return t.op("nll_loss", (log_probs,), (), F32, saves=(log_probs,), label="loss")


def _loss_parallel(t: Tape, x: Value) -> dict[str, Any]:
    """DTensor's loss_parallel (torch/distributed/tensor/parallel/loss.py) writes softmax and its gradient out in
    element-wise steps: shifted logits beside the result, and exp and sum beside the gradient."""
    split = t.regime.split
    if split.tp == 1 or not split.vocab_logits or t.regime.code == "megatron":
        return {}
    return {"forward_temp_bytes": x.nbytes, "backward_temp_bytes": 2 * x.nbytes}


def vocab_parallel_loss(t: Tape, logits: Value) -> Value:
    """vocab_parallel_cross_entropy(logits.float(), …): the fp32 copy becomes softmax, then the gradient, in place.
    Transformer Engine's kernel (cross-entropy-fusion-impl te) does so with the logits as they are."""
    softmax = logits if "cross entropy" in t.regime.fused else t.cast(logits, F32, "logits fp32")
    return t.op(
        "vocab parallel cross entropy", (softmax,), (), F32, saves=(softmax,), label="loss",
        grad_in_place_of_saved=True,
    )  # fmt: skip


def _litgpt(t: Tape, logits: Value) -> Value:
    """chunked_cross_entropy in the dtype of the logits. With adapters the head itself is chunked along the sequence;
    else the shifted logits are copied and cut into rows."""
    b, s, vocab = logits.shape
    x, rows = logits, b * LITGPT_ROWS
    if t.regime.lora is None:
        x, rows = t.copy(logits, (b, s - 1, vocab), "shifted logits"), LITGPT_ROWS
    log_probs = Value(x.shape, x.dtype, label="log-probabilities")
    chunk = rows * vocab * x.dtype.nbytes
    return t.op(
        "chunked cross entropy", (x,), (), F32, saves=(log_probs,), label="loss", backward_temp_bytes=chunk,
        grad_in_place_of_saved=True,
    )  # fmt: skip


def _chunked(t: Tape, logits: Value) -> Value:
    """Chunk after chunk in fp32; log-probabilities of all chunks stay. torchtune's head makes every chunk by itself, so
    that gradients exist one chunk at a time; of logits that were whole, the chunks' gradients are put together."""
    b, s, *rest = logits.shape
    rows = -(-s // CHUNKS)  # torch.chunk: as many to each, the last ones have what remains
    shapes = [(b, minimum(maximum(s - index * rows, 0), rows), *rest) for index in range(CHUNKS)]
    if t.regime.code != "torchtune":
        losses = [cross_entropy(t, _rows_in_fp32(t, part)) for part in _split(t, logits, shapes)]
        return t.op("stack", tuple(losses), (), F32, label="loss")
    log_probs = tuple(Value(shape, F32, label="log-probabilities") for shape in shapes)
    chunk = log_probs[0].nbytes
    return t.op(
        "chunked cross entropy", (logits,), (), F32, saves=log_probs, label="loss",
        forward_temp_bytes=chunk, backward_temp_bytes=2 * chunk, grad_in_place_of_saved=True,
    )  # fmt: skip


def _rows_in_fp32(t: Tape, part: Value) -> Value:
    """`part.float().flatten(0, 1)`: a copy, unless it is a single sample's in fp32."""
    b, *rest = part.shape
    if part.dtype != F32:
        return t.cast(part, F32, "logits of a chunk")
    if isinstance(b, int) and b == 1:
        return part
    copied = b if isinstance(b, int) else b * (b > 1)  # of many jobs at once
    rows = t.op("copy", (part,), (copied, *rest), F32, label="logits of a chunk", passes_grad=True)
    return rows if isinstance(b, int) else t.view(rows, part.shape)


def _split(t: Tape, x: Value, shapes: list[tuple[Number, ...]]) -> list[Value]:
    """torch.chunk: views forward; backward, the gradients of all parts go into one new tensor when all are there."""
    parts = [Value(shape, x.dtype, x.requires_grad, x.label, owner=x.storage, is_slice=True) for shape in shapes]
    for part in parts:
        t.ops().append(Op(name="split", module=t.path(), inputs=(x,) if part is parts[-1] else (), output=part))
    return parts


def _compiled(t: Tape, logits: Value, *, chunked: bool) -> Value:
    """One kernel each way: the logits and two numbers per row are kept, log-probabilities are computed again."""
    rows = Value((*logits.shape[:-1], 2), F32, label="maximum and sum of each row")
    return t.op(
        "compiled cross entropy", (logits,), (), F32, saves=(logits, rows), label="loss",
        grad_in_place_of_saved=chunked,
    )  # fmt: skip
