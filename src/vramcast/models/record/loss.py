"""From logits to a loss, as the libraries have written it over time.

transformers (checked in its wheels): up to 4.45 the loss stood in each model's forward, which turned logits to fp32 or
did not, family by family, then copied them shifted; 4.46–4.48 upcast and shifted copy inside a loss function; from 4.49
upcast, no copy (labels are shifted instead). Losses of masked language models and of encoder-decoders never upcast.

Example: bf16 logits of shape [b, s, V] = [2, 1,024, 32,000] have 131 MB. transformers 4.57 casts them to fp32 (262 MB);
log_softmax saves its output (262 MB more), and backward makes a gradient of the same size. In 8 chunks, an eighth of
the fp32 logits and of their gradients exists at a time, while the log-probabilities of all chunks stay.
"""

from __future__ import annotations

from typing import Any

from vramcast.models.record.dims import Number, maximum, minimum
from vramcast.models.record.program import Program
from vramcast.models.record.tape import F32, Op, Tape, Value
from vramcast.models.record.tiled_loss import check_words

Version = tuple[int, int]

CHUNKS = 8  # torchtune's CEWithChunkedOutputLoss and its like
LABELS_SHIFTED_FROM: Version = (4, 49)  # of transformers; before, logits were shifted and copied
HANDED_ON = "logits handed on in fp32"
CACHE_HANDED_ON = "keys and values handed on in fp32"
LITGPT_ROWS = 128  # tokens per chunk, litgpt/utils.py chunked_cross_entropy


def add_loss(
    program: Program,
    *,
    transformers: Version,
    kind: str = "full",
    outputs_in_fp32: bool = False,
    keeps_outputs: bool = False,
    copies_by_caller: int = 0,
) -> None:
    """Record the loss as the program's last section, unless a fused head has computed it already. `outputs_in_fp32`:
    whoever called the model under autocast gets every 16-bit tensor of its outputs in fp32 (accelerate's
    convert_outputs_to_fp32), and may keep them in a variable. `copies_by_caller`: how many it makes of them, shifted,
    before backward."""
    t = program.tape
    if program.loss == "none" or "loss" in t.regime.fused:
        return
    logits = model_logits = _logits_of_model(program)
    converts_outputs = outputs_in_fp32 and _is_lowered_by_autocast(t, logits)
    with t.section("loss", logits) as section:
        if converts_outputs and kind in (
            "chunked",
            "pairs",
        ):  # by a loop that computes the loss itself
            logits = t.cast(logits, F32, HANDED_ON)
            logits.is_handed_on = keeps_outputs
        loss = _record_loss(t, logits, program.loss, transformers, kind)
        section.outputs = (loss,)
        if t.regime.code != "megatron":
            t.hold(loss, logits)  # a variable of whoever calls the loss
        if t.regime.code == "transformers" and program.loss == "causal" and kind == "full":
            t.use_head_input()
        if converts_outputs and kind == "full":
            handed_on = t.op(
                "to",
                (logits,),
                logits.shape,
                F32,
                requires_grad=False,
                label=HANDED_ON,
                by_caller=True,
            )
            handed_on.is_handed_on = keeps_outputs
            logits = handed_on
        if outputs_in_fp32 and t.regime.autocast is not None:
            _hand_on_the_rest(program, (model_logits, logits), keeps_outputs=keeps_outputs)
        if program.loss == "causal" and kind == "full":
            _copy_by_caller(t, logits, copies_by_caller)
    if keeps_outputs:
        for value in program.returned:
            value.storage.is_handed_on = not _is_raised(t, value, outputs_in_fp32=outputs_in_fp32)


def _copy_by_caller(t: Tape, logits: Value, copies: int) -> None:
    """A variable has each copy until the next one is made."""
    before: Value | None = None
    for _ in range(copies):
        shifted = _shift(t, logits)
        t.ops()[-1].by_caller = True
        if before is not None:
            t.hold(shifted, before)
        before = shifted


def _hand_on_the_rest(
    program: Program, logits: tuple[Value, Value], *, keeps_outputs: bool
) -> None:
    """Copies of what `outputs` has beside the logits. All are there when the call returns, and the model's own too."""
    t, copies = program.tape, []
    cached = program.cached() if t.regime.habits.returns_cache_as_tuple else []
    for label, values in (
        (CACHE_HANDED_ON, cached),
        ("hidden state handed on in fp32", program.returned),
    ):
        for value in values:
            if value.dtype != F32:
                copies.append(t.op("to", (), value.shape, F32, label=label, by_caller=True))
    for value in copies:
        value.is_handed_on = keeps_outputs
    if copies:
        t.hold(copies[-1], *copies, *logits)


def _is_raised(t: Tape, value: Value, *, outputs_in_fp32: bool) -> bool:
    return outputs_in_fp32 and t.regime.autocast is not None and value.dtype != F32


def hands_on_cache(program: Program) -> bool:
    """Does whoever called the model get copies of past_key_values, instead of its own?"""
    last = program.sections[-1].section
    return any(op.output.label == CACHE_HANDED_ON for op in last.ops)


def _logits_of_model(program: Program) -> Value:
    """As the model's forward returns them."""
    if program.loss == "causal" and _model_upcasts_logits(program.tape):
        return _upcast_in_model(program.tape, program.output)
    return program.output


def _is_lowered_by_autocast(t: Tape, logits: Value) -> bool:
    return t.regime.autocast is not None and logits.dtype != F32


def _model_upcasts_logits(t: Tape) -> bool:
    return t.regime.code == "transformers" and t.regime.upcasts_logits == "model"


def _record_loss(t: Tape, logits: Value, loss: str, transformers: Version, kind: str) -> Value:
    if kind == "pairs":
        return _pairs_loss(t, logits)
    if t.regime.code == "litgpt":
        return _litgpt_loss(t, logits)
    if t.regime.code == "megatron":
        return vocab_parallel_loss(t, logits)
    if t.regime.compiled_loss:
        return _compiled_loss(t, logits, chunked=kind == "chunked")
    if kind == "chunked":
        return _chunked_loss(t, logits)
    leaves_dtype = t.regime.code == "torchtitan" and t.regime.upcasts_logits != "loss"
    if leaves_dtype or t.regime.code == "torchtune":
        return cross_entropy(t, logits)
    return _transformers_loss(t, logits, loss, transformers)


def _pairs_loss(t: Tape, logits: Value) -> Value:
    """trl/experimental/orpo: cross entropy of the chosen half, whose logits are copied, and log-probabilities of all
    rows by a kernel that saves the logits as they are."""
    check_words(logits, "pairs")
    b, s, vocab = logits.shape
    half = t.select(logits, (b // 2, s - 1, vocab), "slice of pairs")
    chosen = t.copy(half, label="chosen logits")
    nll = t.hold(cross_entropy(t, chosen), chosen)
    scored = t.select(logits, (b, s - 1, vocab), "slice of pairs")
    per_token = t.op(
        "log-probabilities",
        (scored,),
        (b, s - 1),
        F32,
        saves=(scored,),
        label="log-probabilities of tokens",
    )
    return t.op("sum", (nll, per_token), (), F32, label="loss")


def _upcast_in_model(t: Tape, logits: Value) -> Value:
    """`logits = logits.float()` in the model's forward: the 16-bit ones go, `outputs` has those in fp32."""
    section = t.sections[-1].section
    with t.reopen(section):
        upcast = t.cast(logits, F32, "logits fp32")
        section.outputs = (upcast, *section.outputs[1:])
    return upcast


def _transformers_loss(t: Tape, logits: Value, loss: str, transformers: Version) -> Value:
    """Variables of the loss function hold the logits in every form until it returns."""
    is_causal = loss == "causal"
    upcast = shifted = logits
    if is_causal and t.regime.upcasts_logits == "loss":
        upcast = shifted = t.cast(logits, F32, "logits fp32")
    if is_causal and transformers < LABELS_SHIFTED_FROM:
        shifted = _shift(t, upcast)
    return t.hold(cross_entropy(t, shifted), upcast, shifted)


def _shift(t: Tape, logits: Value) -> Value:
    """`logits[..., :-1, :].contiguous()`: with one sample the slice is contiguous already, and nothing is copied."""
    b, s, vocab = logits.shape
    shape = (b, s - 1, vocab)
    if not isinstance(b, int):  # a grid of jobs: of each, as many samples as it copies
        copied = t.copy(logits, (b * (b > 1), s - 1, vocab), "shifted logits")
        return t.view(copied, shape)
    return t.select(logits, shape) if b == 1 else t.copy(logits, shape, "shifted logits")


def cross_entropy(t: Tape, x: Value) -> Value:
    """log_softmax saves its output, nll_loss needs it too. cross_entropy asks log_softmax for the dtype of its input
    (LossNLL.cpp), which autocast then leaves alone; nll_loss it runs in fp32."""
    saves = (x,) if t.regime.softmax_keeps_input else ()
    log_probs = t.op(
        "log_softmax",
        (x,),
        x.shape,
        x.dtype,
        saves=saves,
        saves_output=True,
        label="log-probabilities",
        **_loss_parallel_temps(t, x),
    )
    if t.regime.autocast:
        log_probs = t.cast(log_probs, F32)
    return t.op("nll_loss", (log_probs,), (), F32, saves=(log_probs,), label="loss")


def _loss_parallel_temps(t: Tape, x: Value) -> dict[str, Any]:
    """DTensor's loss_parallel (torch/distributed/tensor/parallel/loss.py) writes softmax and its gradient out in
    element-wise steps: shifted logits in addition to the result, and exp and sum in addition to the gradient."""
    split = t.regime.split
    if split.tp == 1 or not split.vocab_logits or t.regime.code == "megatron":
        return {}
    return {"forward_temp_bytes": x.nbytes, "backward_temp_bytes": 2 * x.nbytes}


def vocab_parallel_loss(t: Tape, logits: Value) -> Value:
    """vocab_parallel_cross_entropy(logits.float(), …): the fp32 copy becomes softmax, then the gradient, in place.
    Transformer Engine's kernel (cross-entropy-fusion-impl te) does so with the logits as they are."""
    softmax = logits if "cross entropy" in t.regime.fused else t.cast(logits, F32, "logits fp32")
    return t.op(
        "vocab parallel cross entropy",
        (softmax,),
        (),
        F32,
        saves=(softmax,),
        label="loss",
        grad_in_place_of_saved=True,
    )


def _litgpt_loss(t: Tape, logits: Value) -> Value:
    """chunked_cross_entropy in the dtype of the logits. With adapters the head itself is chunked along the sequence;
    else the shifted logits are copied and cut into rows."""
    b, s, vocab = logits.shape
    if t.regime.lora is None:
        x = t.copy(logits, (b, s - 1, vocab), "shifted logits")
        rows = LITGPT_ROWS
    else:
        x = logits
        rows = b * LITGPT_ROWS
    log_probs = Value(x.shape, x.dtype, label="log-probabilities")
    chunk_bytes = rows * vocab * x.dtype.nbytes
    return t.op(
        "chunked cross entropy",
        (x,),
        (),
        F32,
        saves=(log_probs,),
        label="loss",
        backward_temp_bytes=chunk_bytes,
        grad_in_place_of_saved=True,
    )


def _chunked_loss(t: Tape, logits: Value) -> Value:
    """Chunk after chunk in fp32; log-probabilities of all chunks stay. torchtune's head makes every chunk by itself, so
    that gradients exist one chunk at a time; of logits that were whole, the chunks' gradients are concatenated."""
    shapes = _chunk_shapes(logits)
    if t.regime.code != "torchtune":
        chunks = _split_into_chunks(t, logits, shapes)
        losses = [cross_entropy(t, _cast_rows_to_fp32(t, chunk)) for chunk in chunks]
        return t.op("stack", tuple(losses), (), F32, label="loss")
    log_probs = tuple(Value(shape, F32, label="log-probabilities") for shape in shapes)
    chunk_bytes = log_probs[0].nbytes
    return t.op(
        "chunked cross entropy",
        (logits,),
        (),
        F32,
        saves=log_probs,
        label="loss",
        forward_temp_bytes=chunk_bytes,
        backward_temp_bytes=2 * chunk_bytes,
        grad_in_place_of_saved=True,
    )


def _chunk_shapes(logits: Value) -> list[tuple[Number, ...]]:
    """torch.chunk along the sequence: as many rows to each, the last ones have what remains."""
    b, s, *rest = logits.shape
    rows = -(-s // CHUNKS)
    starts = [index * rows for index in range(CHUNKS)]
    return [(b, minimum(maximum(s - start, 0), rows), *rest) for start in starts]


def _cast_rows_to_fp32(t: Tape, chunk: Value) -> Value:
    """`chunk.float().flatten(0, 1)`: a copy, unless it is a single sample's in fp32."""
    label = "logits of a chunk"
    b, *rest = chunk.shape
    if chunk.dtype != F32:
        return t.cast(chunk, F32, label)
    if not isinstance(b, int):  # a grid of jobs: of each, as many samples as it copies
        shape = (b * (b > 1), *rest)
        rows = t.op("copy", (chunk,), shape, F32, label=label, passes_grad=True)
        return t.view(rows, chunk.shape)
    if b == 1:
        return chunk
    return t.op("copy", (chunk,), chunk.shape, F32, label=label, passes_grad=True)


def _split_into_chunks(t: Tape, x: Value, shapes: list[tuple[Number, ...]]) -> list[Value]:
    """torch.chunk: views forward; backward, the gradients of all chunks go into one new tensor when all are there."""
    chunks = [
        Value(shape, x.dtype, x.requires_grad, x.label, owner=x.storage, is_slice=True)
        for shape in shapes
    ]
    for chunk in chunks:
        is_last = chunk is chunks[-1]  # the first in backward: there the gradient of x is allocated
        inputs = (x,) if is_last else ()
        t.ops().append(Op(name="split", module=t.path(), inputs=inputs, output=chunk))
    return chunks


def _compiled_loss(t: Tape, logits: Value, *, chunked: bool) -> Value:
    """One kernel each way: the logits and two numbers per row are saved, log-probabilities are computed again."""
    rows = Value((*logits.shape[:-1], 2), F32, label="maximum and sum of each row")
    return t.op(
        "compiled cross entropy",
        (logits,),
        (),
        F32,
        saves=(logits, rows),
        label="loss",
        grad_in_place_of_saved=chunked,
    )
