"""Fills a folder with real checkpoints and files, on the CPU: what a traced script must leave as it is."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import sys
import zipfile
from pathlib import Path

import lightning
import numpy as np
import safetensors.torch
import torch
from accelerate import Accelerator
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

CONFIG = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(8) + index
        return {"input_ids": tokens, "labels": tokens}


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def trainer(folder: str, **options: object) -> Trainer:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    return Trainer(GPT2LMHeadModel(CONFIG), arguments, train_dataset=Tokens())


def fit_with_lightning(folder: str, **options: object) -> None:
    saves = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, filename="best", monitor="loss", save_last=True, save_top_k=1, every_n_train_steps=1
    )
    fit = lightning.Trainer(
        max_steps=3,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    fit.fit(Regression(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2))


def main(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    torch.save(nn.Linear(32, 32).state_dict(), "model.pt")
    safetensors.torch.save_file(nn.Linear(32, 32).state_dict(), "model.safetensors")
    np.savez("weights.npz", weight=np.zeros((32, 32)))
    np.save("weights.npy", np.zeros(10))
    np.arange(1024, dtype=np.float32).tofile("weights.bin")
    np.arange(16, dtype=np.int64).tofile("memmap.bin")
    Path("weights.pkl").write_bytes(pickle.dumps(np.zeros(3)))
    Path("log.txt").write_text("first line\n")
    Path("metrics.csv").write_text("1,0.9\n")
    Path("state.json").write_text(json.dumps({"step": 4}))
    Path("config.json").write_text(json.dumps({"a": 1}))
    Path("linked").mkdir()
    Path("linked/target.txt").write_text("real")
    os.symlink("linked/target.txt", "link.txt")
    with zipfile.ZipFile("archive.zip", "w") as archive:
        archive.writestr("one", "x")
    with sqlite3.connect("runs.db") as database:
        database.execute("create table runs (number)")
        database.execute("insert into runs values (1)")
    database.close()
    trainer(".", max_steps=8, use_cpu=True).train()
    fit_with_lightning("lightning", accelerator="cpu")
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(4, 4))
    accelerator.save_state("accelerate")


if __name__ == "__main__":
    main(sys.argv[1])
