"""TRL's SFTTrainer with its defaults, told only what the job says; texts are longer than what it cuts them to."""

import dataclasses
import inspect

import trl
from datasets import Dataset
from parts import SAMPLES, load_model, lora_config, read_job, trainer_arguments
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ("<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(60)))


def tokenizer() -> PreTrainedTokenizerFast:
    numbers = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    )


job = read_job()
text = " ".join(["w7"] * (job["seq"] + 8))
rows = Dataset.from_dict({"text": [text] * (SAMPLES * job["batch"])})
known = {field.name for field in dataclasses.fields(trl.SFTConfig)}
length = "max_length" if "max_length" in known else "max_seq_length"
args = trl.SFTConfig(**trainer_arguments(job), dataset_text_field="text", **{length: job["seq"]})
takes = inspect.signature(trl.SFTTrainer.__init__).parameters
tokens = "processing_class" if "processing_class" in takes else "tokenizer"
trl.SFTTrainer(
    model=load_model(job),
    args=args,
    train_dataset=rows,
    peft_config=None if job["lora_rank"] is None else lora_config(job),
    **{tokens: tokenizer()},
).train()
