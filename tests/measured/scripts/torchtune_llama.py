"""Llama tuned as torchtune's single-device recipes do, on packed data of 4096 tokens.

README.md, "Optimization flags" (Llama 3.2 3B): every flag is an option here. The recipes' own steps, with random
weights and tokens instead of a checkpoint, a tokenizer and Alpaca; packs hold sixteen samples of 256. `--load`: until
the recipe prints its memory after model init, as its tutorials show it.
"""

import argparse
from functools import partial

import torch
from torchtune import modules, training
from torchtune.data import padded_collate_packed
from torchtune.models.llama2 import lora_llama2_7b
from torchtune.models.llama3_2 import llama3_2_3b, lora_llama3_2_3b, qlora_llama3_2_3b
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params

LENGTH, BATCH, SAMPLES = 4096, 2, 16
LORA = partial(
    lora_llama3_2_3b, lora_attn_modules=["q_proj", "v_proj", "output_proj"], apply_lora_to_mlp=True, lora_rank=64,
    lora_alpha=128, lora_dropout=0.0,
)  # fmt: skip
QLORA = partial(
    qlora_llama3_2_3b, lora_attn_modules=["q_proj", "v_proj", "output_proj"], apply_lora_to_mlp=True, lora_rank=64,
    lora_alpha=128, lora_dropout=0.0,
)  # fmt: skip
LORA_7B = partial(
    lora_llama2_7b, lora_attn_modules=["q_proj", "v_proj"], lora_rank=8, lora_alpha=16
)
MODELS = {"full": llama3_2_3b, "lora": LORA, "qlora": QLORA, "llama2-7b-lora": LORA_7B}

parser = argparse.ArgumentParser()
parser.add_argument("method", choices=MODELS)
parser.add_argument("--load", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--chunked", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--offloading", action="store_true")
parser.add_argument("--in_backward", action="store_true")
parser.add_argument("--bits", type=int, choices=(8,))
args = parser.parse_args()

device = torch.device("cuda")
with training.set_default_dtype(torch.bfloat16), device:
    model = MODELS[args.method]()
if args.method != "full":
    set_trainable_params(model, get_adapter_params(model))
if args.compile:
    training.compile_model(model)
if args.checkpointing:
    training.set_activation_checkpointing(
        model, auto_wrap_policy={modules.TransformerSelfAttentionLayer}
    )
offloading = training.get_act_offloading_ctx_manager(model, args.offloading)
if args.load:
    raise SystemExit
if args.bits == 8:
    import bitsandbytes as bnb

    make = partial(bnb.optim.PagedAdamW8bit, lr=2e-5)
else:
    make = partial(torch.optim.AdamW, lr=2e-5, fused=True)
optimizer = None
if args.in_backward:
    each = {p: make([p]) for p in model.parameters()}
    training.register_optim_in_bwd_hooks(model=model, optim_dict=each)
else:
    optimizer = make([p for p in model.parameters() if p.requires_grad])
loss_of = CEWithChunkedOutputLoss() if args.chunked else torch.nn.CrossEntropyLoss()
if args.compile:
    training.compile_loss(loss_of)
if args.chunked:
    model.set_num_output_chunks(loss_of.num_output_chunks)
ignored = torch.full((BATCH, 1), loss_of.ignore_index, device=device)


def pack():
    tokens = torch.randint(0, 128000, (LENGTH,))
    places = torch.arange(LENGTH // SAMPLES).repeat(SAMPLES)
    lengths = torch.full((SAMPLES,), LENGTH // SAMPLES)
    return {"tokens": tokens, "labels": tokens.clone(), "input_pos": places, "seq_lens": lengths}


for _ in range(4):
    batch = {
        name: part.to(device)
        for name, part in padded_collate_packed([pack() for _ in range(BATCH)]).items()
    }
    count = (batch["labels"] != loss_of.ignore_index).sum()
    labels = batch.pop("labels")
    with offloading:
        logits = model(**batch)
    labels = torch.hstack((labels[..., 1:], ignored))
    if not isinstance(logits, list):
        labels = labels.reshape(-1)
        logits = logits.reshape(-1, logits.size(-1))
    loss = loss_of(logits, labels)
    del logits
    loss = loss * count
    loss.backward()
    if optimizer is not None:
        training.scale_grads(model, 1 / count)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    loss.item()
