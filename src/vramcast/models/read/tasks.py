"""Which head a model has on its backbone, by the class name that a config gives in `architectures`."""

from __future__ import annotations

from vramcast.errors import UndescribedModelError
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Dim

TASK_OF_SUFFIX = {
    "ForCausalLM": "lm",
    "ForMaskedLM": "lm",
    "ForConditionalGeneration": "lm",
    "LMHeadModel": "lm",
    "ForPreTraining": "pretraining",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "question",
    "ForMultipleChoice": "choice",
    "ForNextSentencePrediction": "next sentence",
    "DoubleHeadsModel": "two heads",
    "EncoderModel": "encoder",
    "MTModel": "lm",
    "Model": "none",
}


def task_of(c: Config, known: tuple[str, ...]) -> str:
    """The task of the config's class; `known[0]` when the config names none."""
    name = c.architecture
    if not name:
        return known[0]
    task = next((task for suffix, task in TASK_OF_SUFFIX.items() if name.endswith(suffix)), name)
    if task not in known:
        suffixes = ", ".join(suffix for suffix, task in TASK_OF_SUFFIX.items() if task in known)
        raise UndescribedModelError(
            f"{c.where}: architectures {name!r} has a head that is not described for {c.model_type}. "
            f"Known endings: {suffixes}. Change `architectures`, or trace the model instead."
        )
    return task


def num_labels(c: Config, default: int = 2) -> Dim:
    """As transformers counts them: `num_labels`, or the entries of `id2label`, or the default."""
    labels = c.data.get("id2label")
    if isinstance(labels, dict) and labels:
        default = len(labels)
    return c.dim("num_labels", "labels", default=default)
