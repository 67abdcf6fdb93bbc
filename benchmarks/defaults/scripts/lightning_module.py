"""A LightningModule around transformers' model, with precision bf16-mixed."""

import lightning
import torch
from common import BATCH, MODEL, STEPS, token_rows
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, default_data_collator


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(MODEL)

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-5)


data = DataLoader(
    token_rows().map(lambda row: {"labels": row["input_ids"]}),
    batch_size=BATCH,
    collate_fn=default_data_collator,
)
trainer = lightning.Trainer(
    precision="bf16-mixed",
    max_steps=STEPS,
    accelerator="gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Module().train(), data)
