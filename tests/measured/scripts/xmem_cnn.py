"""A plain training loop over images, as xMem ran it: four iterations, gradients cleared at the start of each."""

import argparse

import torch
from cnn_models import MODELS

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=MODELS)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--optimizer", required=True)
parser.add_argument("--side", type=int, default=86)
args = parser.parse_args()

device = torch.device("cuda:0")
model = MODELS[args.model]()
model.to(device)
model.train()
optimizer = getattr(torch.optim, args.optimizer)(params=model.parameters(), lr=0.001)
criterion = torch.nn.CrossEntropyLoss()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
for _ in range(4):
    inputs, labels = torch.randn(args.batch, 3, args.side, args.side), torch.randint(0, 10, (args.batch,))
    optimizer.zero_grad()
    inputs, labels = inputs.to(device), labels.to(device)
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
    _, predictions = torch.max(outputs, 1)
    scheduler.step()
