"""litgpt's own `finetune` commands, as its config hub and resource tables ran them.

litgpt_finetune.py lora falcon-7b --tokens 512 --lora_r 32 --train.micro_batch_size 1

What is not listed below goes to litgpt unchanged. Made here is what a run finds on the disk: a checkpoint folder of the
model without weights (every tensor is one number, repeated), a tokenizer of one word, and an Alpaca file whose samples
are as long as the longest of the published run. With `--then` only the first batch of the first rank has such a one, as
in lit-gpt of 2023, which began with the longest.
"""

import argparse
import inspect
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch
from litgpt import GPT, Config
from litgpt.utils import CLI, save_config
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils.data import DataLoader, DistributedSampler, random_split

SAMPLES, VALIDATION, SEED = (
    2000,
    0.03865,
    42,
)  # Alpaca2k has as many; how litgpt.data.Alpaca divides and shuffles


def write_checkpoint(name: str, folder: Path) -> None:
    config = Config.from_name(name)
    folder.mkdir()
    save_config(config, folder)
    with torch.device("meta"):
        weights = GPT(config).state_dict()
    one = torch.zeros((), dtype=torch.bfloat16)
    # torch.save would remember the tensors for torch.load; litgpt reads the file by itself
    torch.serialization.save(
        {key: one.expand(value.shape) for key, value in weights.items()}, folder / "lit_model.pth"
    )
    tokenizer = Tokenizer(WordLevel({"a": 1, "</s>": 2, "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "tokenizer_class": "Fast"})
    )


def write_data(folder: Path, tokens: int, then: int, devices: int) -> None:
    folder.mkdir()
    data = [sample(then)] * SAMPLES
    train = random_split(
        data, [1 - VALIDATION, VALIDATION], generator=torch.Generator().manual_seed(SEED)
    )[0]
    data[train.indices[first_index(len(train), devices)]] = sample(tokens)
    (folder / "alpaca_data_cleaned_archive.json").write_text(json.dumps(data))


def sample(tokens: int) -> dict[str, str]:
    return {"instruction": "a", "input": "", "output": "a " * tokens}


def first_index(count: int, devices: int) -> int:
    """Which training sample the first rank sees first: litgpt's shuffled loader, or fabric's sampler over ranks."""
    if devices > 1:
        return next(iter(DistributedSampler(range(count), num_replicas=devices, rank=0)))
    return int(
        next(
            iter(
                DataLoader(
                    range(count), shuffle=True, generator=torch.Generator().manual_seed(SEED)
                )
            )
        )
    )


def run(args: argparse.Namespace, given: list[str], home: Path) -> None:
    write_checkpoint(args.model, home / "checkpoint")
    write_data(home / "alpaca", args.tokens, args.then or args.tokens, args.devices)
    setup = import_module(f"litgpt.finetune.{args.method}").setup
    required = (
        inspect.signature(setup).parameters["checkpoint_dir"].default is inspect.Parameter.empty
    )  # since 0.4
    sys.argv = [
        sys.argv[0], *([] if required else ["--checkpoint_dir"]), str(home / "checkpoint"), "--out_dir",
        str(home / "out"), "--data", "Alpaca", "--data.download_dir", str(home / "alpaca"), "--precision", "bf16-true",
        "--devices", str(args.devices), "--train.max_seq_length", str(args.tokens), *given,
    ]  # fmt: skip
    torch.set_float32_matmul_precision("high")
    CLI(setup)


parser = argparse.ArgumentParser()
parser.add_argument("method", choices=("lora", "full"))
parser.add_argument("model")
parser.add_argument("--tokens", type=int, required=True, help="of the longest sample")
parser.add_argument(
    "--then", type=int, help="of all samples after the first; as many, if not given"
)
parser.add_argument("--devices", type=int, default=1)
args, given = parser.parse_known_args()
with tempfile.TemporaryDirectory() as home:
    run(args, given, Path(home))
