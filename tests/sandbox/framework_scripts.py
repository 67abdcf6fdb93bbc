"""Trainer, Lightning and accelerate scripts that rotate, resume and reload checkpoints in a folder with real ones."""

from __future__ import annotations

import os
import sys

import torch
from accelerate import Accelerator
from real_files import fit_with_lightning, trainer
from torch import nn


def rotate() -> None:
    """Save at 2, 4, …; keep one: the real checkpoint-4 to checkpoint-8 are deleted by rotation."""
    trainer(".", max_steps=4, save_total_limit=1).train()
    assert sorted(name for name in os.listdir(".") if name.startswith("checkpoint")) == [
        "checkpoint-4"
    ]


def resume() -> None:
    made = trainer(".", max_steps=10, save_total_limit=1)
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == 10
    assert os.path.isdir("checkpoint-10")


def use_lightning() -> None:
    fit_with_lightning("lightning", accelerator="gpu", devices=1)
    assert "last.ckpt" in os.listdir("lightning")
    assert "state_dict" in torch.load("lightning/last.ckpt")


def use_accelerate() -> None:
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(4, 4))
    accelerator.save_state("accelerate")
    accelerator.load_state("accelerate")
    model(torch.randn(2, 4, device="cuda")).sum().backward()


if __name__ == "__main__":
    {"rotate": rotate, "resume": resume, "lightning": use_lightning, "accelerate": use_accelerate}[
        sys.argv[1]
    ]()
