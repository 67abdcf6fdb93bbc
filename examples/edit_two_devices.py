"""Train a MEND-style editor with the edited layers on a second GPU.

    python examples/edit_two_devices.py                                          a small model on one device
    python examples/edit_two_devices.py --device 0 --sub-device 1                two GPUs
    python examples/edit_two_devices.py --model qwen2-vl-7b --device 0 --sub-device 1

Per step: the frozen lower layers once per batch; one loss for the editor's input; then every edited forward backward
on its own against the same leaves, and one pass through the editor at the end. Weights are random: nothing is
downloaded.
"""

import argparse

import torch
import torch.nn.functional as F
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from vramcast.ledger import EDIT, Category, Entry, Ledger, Origin
from vramcast.runtime import (
    FunctionalEdit,
    GraphCut,
    MemoryMonitor,
    Mend,
    kl_to_reference,
    label_positions,
)

SMALL = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
         "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6}}  # fmt: skip
SMALL_VISION = {
    "depth": 2,
    "embed_dim": 32,
    "hidden_size": 128,
    "num_heads": 2,
    "patch_size": 14,
    "mlp_ratio": 2,
}
SEVEN_B = {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
           "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
           "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}}  # fmt: skip
SEVEN_B_VISION = {"hidden_size": 3584}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("small", "qwen2-vl-7b"), default="small")
    parser.add_argument("--device", default="0" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--sub-device", help="another device for the edited layers; the next GPU if left out"
    )
    parser.add_argument(
        "--layers", type=int, default=3, help="how many of the last layers are edited"
    )
    parser.add_argument("--rank", type=int, help="of the editor; 1920 for qwen2-vl-7b")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


def build(name: str) -> torch.nn.Module:
    seven = name == "qwen2-vl-7b"
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = Qwen2VLConfig(
        text_config={**(SEVEN_B if seven else SMALL), **special},
        vision_config=SEVEN_B_VISION if seven else SMALL_VISION,
        image_token_id=500, video_token_id=501, vision_start_token_id=502, vision_end_token_id=503,
    )  # fmt: skip
    torch.manual_seed(0)
    return (
        Qwen2VLForConditionalGeneration(config)
        .to(torch.bfloat16 if seven else torch.float32)
        .eval()
    )


def batch_of(args: argparse.Namespace, seed: int) -> dict[str, torch.Tensor]:
    """A question that is not labelled and an answer that is."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 480, (1, args.sequence), generator=generator)
    labels = ids.clone()
    labels[:, : -args.sequence // 4] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def edit_step(edit: FunctionalEdit, mend: Mend, args: argparse.Namespace, number: int) -> float:
    """Learn one edit so that a paraphrase follows it (outer) and other text does not (locality)."""
    inner, outer, other = (
        batch_of(args, seed) for seed in (number % 4, number % 4, 100 + number % 4)
    )
    mask, labels = label_positions(
        inner["labels"]
    )  # on the CPU: no synchronisation to know how many there are
    there = labels.to(edit.device)
    loss_of = lambda logits: F.cross_entropy(logits.float(), there)  # noqa: E731
    prefix, outer_prefix, other_prefix = edit.prefix(inner), edit.prefix(outer), edit.prefix(other)
    every = torch.ones(1, args.sequence, dtype=torch.bool)
    with torch.no_grad():
        base = edit(other_prefix)
    steps = mend(edit.factors(prefix, loss_of, mask))
    with GraphCut(edit.edited(steps)) as cut:
        loss = loss_of(edit(outer_prefix, cut.leaves, mask))
        loss.backward()
        kl_to_reference(edit(other_prefix, cut.leaves), base, every).backward()
        cut.replay()
    return loss.item()


def bill(edit: FunctionalEdit, mend: Mend, args: argparse.Namespace, vocabulary: int) -> Ledger:
    """The edit, the editor, and the largest loss of this script: KL over every position of a batch."""
    tokens, place = args.sequence, str(edit.device)
    loss = Entry(
        category=Category.LOGITS, component="locality loss", place=place, phases=(EDIT,), origin=Origin.FORMULA,
        nbytes=26 * tokens * vocabulary,
        formula=f"(6·4 + 2)·T·V: six float32 tensors and the base's logits = 26·{tokens}·{vocabulary}",
    )  # fmt: skip
    kept_bytes = edit.kept_bytes(edit.prefix(batch_of(args, 0)))
    editor = mend.ledger(place, tokens=tokens)
    return edit.ledger(tokens=tokens, kept_bytes=kept_bytes).extended((*editor.entries, loss))


def main() -> None:
    args = arguments()
    model = build(args.model)
    last = model.config.text_config.num_hidden_layers
    names = [
        f"model.language_model.layers.{layer}.mlp.{part}.weight"
        for layer in range(last - args.layers, last)
        for part in ("up_proj", "down_proj")
    ]
    edit = FunctionalEdit(model, names).place(args.device, args.sub_device)
    mend = Mend(
        edit, rank=args.rank or (1920 if args.model == "qwen2-vl-7b" else 16), initial_rate=1e-3
    )
    optimizer = torch.optim.Adam(mend.parameters(), lr=1e-3)
    print(f"base on {edit.device}, edited layers on {edit.sub_device}")
    ledger = bill(edit, mend, args, model.config.text_config.vocab_size)
    for entry in ledger.entries:
        print(
            f"  {entry.place:8} {entry.component:24} {entry.nbytes / 2**30:8.3f} GiB  {entry.formula}"
        )
    devices = dict.fromkeys((edit.device, edit.sub_device))
    with MemoryMonitor(*devices, ledger=ledger) as monitor:
        for number in range(args.steps):
            loss = edit_step(edit, mend, args, number)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            monitor.end_step()
            print(f"step {number}: edit loss {loss:.4f}  {monitor.metrics}", flush=True)


if __name__ == "__main__":
    main()
