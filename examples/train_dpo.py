"""Direct preference optimisation by hand: a policy that trains and a frozen reference beside it. Needs a GPU."""

import copy

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
)
policy = LlamaForCausalLM(config).to(device, dtype=torch.bfloat16)
reference = copy.deepcopy(policy).eval()
for parameter in reference.parameters():
    parameter.requires_grad_(False)
policy.gradient_checkpointing_enable()


class Pairs(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        lengths = torch.randint(200, 512, (2,))
        return [torch.randint(5, 32000, (int(n),)) for n in lengths]


def collate(pairs):
    rows = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def log_probabilities(model, batch):
    logits = model(**batch).logits[:, :-1]
    labels = batch["input_ids"][:, 1:]
    picked = torch.gather(logits.float().log_softmax(-1), 2, labels.unsqueeze(-1)).squeeze(-1)
    return (picked * batch["attention_mask"][:, 1:]).sum(-1)


optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-7)
for step, batch in enumerate(
    DataLoader(Pairs(), batch_size=4, collate_fn=collate, num_workers=2, pin_memory=True)
):
    batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
    with torch.no_grad():
        reference_chosen, reference_rejected = log_probabilities(reference, batch).chunk(2)
    chosen, rejected = log_probabilities(policy, batch).chunk(2)
    margin = 0.1 * ((chosen - reference_chosen) - (rejected - reference_rejected))
    loss = -F.logsigmoid(margin).mean()
    loss.backward()
    if not torch.isfinite(loss):
        raise SystemExit("the loss is not finite")
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    accuracy = (margin > 0).float().mean().item()
    print(f"step {step} loss {loss.item():.4f} accuracy {accuracy:.2f}")
torch.save(policy.state_dict(), "policy.pt")
