"""A plain training loop over images, as xMem ran it: four iterations.

Its results name where gradients were cleared (`zero_grad_mode`: 0 start, 1 before backward). Where they name nothing,
its trainer of that time did not pass the setting on, and its default was 1. It keeps torch from giving cuBLAS
workspaces.
"""

import argparse
import os

import torch
from cnn_models import MODELS

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=MODELS)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--optimizer", required=True)
parser.add_argument("--clear", choices=("start", "backward"), default="backward")
parser.add_argument("--side", type=int, default=86)
args = parser.parse_args()

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":0:0"
device = torch.device("cuda:0")
model = MODELS[args.model]()
model.to(device)
model.train()
optimizer = getattr(torch.optim, args.optimizer)(params=model.parameters(), lr=0.001)
criterion = torch.nn.CrossEntropyLoss()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
for _ in range(4):
    inputs, labels = (
        torch.randn(args.batch, 3, args.side, args.side),
        torch.randint(0, 10, (args.batch,)),
    )
    if args.clear == "start":
        optimizer.zero_grad()
    inputs, labels = inputs.to(device), labels.to(device)
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    if args.clear == "backward":
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    _, predictions = torch.max(outputs, 1)
    scheduler.step()
