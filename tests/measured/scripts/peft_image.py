"""FLUX.2-klein-base-4B tuned on images of 512 x 512, as PEFT's method comparison does (method_comparison/image-gen).

Batch 2, prompts of 512 tokens, checkpointing, bf16 weights and fp32 adapters, AdamW. What is measured is reserved
memory during training steps (`accelerator_memory_max_train` of its utils.py), so evaluation is left out and the cache
is empty before the first step. Text encoder and VAE come and go before: their results are made directly. The script
empties the cache every 25 steps, all alike: here after three.
"""

import argparse

import torch
from diffusers import Flux2KleinPipeline, Flux2Transformer2DModel
from peft import IA3Config, LNTuningConfig, LoraConfig, get_peft_model
from transformers import Dinov2Config, Dinov2Model

PROJECTIONS = [
    "to_out.0", "to_add_out", "to_qkv_mlp_proj", "add_k_proj", "add_q_proj", "add_v_proj", "to_k", "to_q", "to_v",
    "linear_in", "linear_out",
]  # fmt: skip
METHODS = {
    "lora-32": LoraConfig(r=32, lora_alpha=32, target_modules=PROJECTIONS),
    "lora-64": LoraConfig(r=64, lora_alpha=64, target_modules=PROJECTIONS),
    "ia3": IA3Config(target_modules=PROJECTIONS, feedforward_modules=PROJECTIONS),
    "ln-tuning": LNTuningConfig(target_modules=["norm_q", "norm_k"]),
    "full": None,
}
IMAGES, BATCH, TOKENS = 14, 2, 512

parser = argparse.ArgumentParser()
parser.add_argument("method", choices=METHODS)
args = parser.parse_args()

torch.nn.Linear(1, 1).to("cuda")
transformer = Flux2Transformer2DModel(
    num_layers=5,
    num_single_layers=20,
    num_attention_heads=24,
    joint_attention_dim=7680,
    guidance_embeds=False,
).to(torch.bfloat16)
transformer.enable_gradient_checkpointing()
if METHODS[args.method] is None:
    transformer.requires_grad_(True)
else:
    transformer = get_peft_model(transformer, METHODS[args.method], autocast_adapter_dtype=True)
transformer.train()

order = torch.cat([torch.randperm(IMAGES, device="cuda") for _ in range(1000)])
dino = Dinov2Model(Dinov2Config()).to("cuda").eval()
transformer = transformer.to("cuda")
optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-4, weight_decay=1e-4)

prompts = [torch.zeros(1, TOKENS, 7680, dtype=torch.bfloat16, device="cuda") for _ in range(IMAGES)]
prompt_cache = torch.cat(prompts, dim=0)
text_cache = torch.cat(
    [Flux2KleinPipeline._prepare_text_ids(prompt).to("cuda") for prompt in prompts], dim=0
)
latent_cache = torch.cat(
    [torch.zeros(BATCH, 128, 32, 32, dtype=torch.bfloat16, device="cuda") for _ in range(7)], dim=0
)
del prompts
torch.cuda.empty_cache()

losses = []
for step in range(1, 7):
    chosen = order[(step - 1) * BATCH : step * BATCH].to(
        device=latent_cache.device, dtype=torch.long
    )
    latents = latent_cache.index_select(0, chosen)
    prompt_embeds = prompt_cache.index_select(0, chosen)
    text_ids = text_cache.index_select(0, chosen)
    image_ids = Flux2KleinPipeline._prepare_latent_ids(latents).to(latents.device)
    noise = torch.randn_like(latents)
    timesteps = torch.rand(BATCH).to("cuda")
    sigmas = torch.rand(BATCH, 1, 1, 1, dtype=latents.dtype).to("cuda")
    noisy = (1.0 - sigmas) * latents + sigmas * noise
    packed = Flux2KleinPipeline._pack_latents(noisy)
    optimizer.zero_grad(set_to_none=True)
    predicted = transformer(
        hidden_states=packed,
        timestep=timesteps / 1000,
        guidance=None,
        encoder_hidden_states=prompt_embeds,
        txt_ids=text_ids,
        img_ids=image_ids,
        return_dict=False,
    )[0]
    predicted = predicted[:, : packed.size(1)]
    predicted = Flux2KleinPipeline._unpack_latents_with_ids(predicted, image_ids)
    weighting = torch.ones_like(sigmas)
    target = noise - latents
    loss = torch.mean(
        (weighting.float() * (predicted.float() - target.float()) ** 2).reshape(
            target.shape[0], -1
        ),
        1,
    )
    loss = loss.mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
    optimizer.step()
    losses.append(loss)
    if step == 3:
        torch.cuda.empty_cache()
