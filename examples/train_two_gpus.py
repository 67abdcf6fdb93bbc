"""A model split over two GPUs by hand: the first half on cuda:0, the second on cuda:1."""

import torch
import torch.nn as nn

assert torch.cuda.device_count() >= 2, "two GPUs are needed"


class TwoStages(nn.Module):
    def __init__(self, width=2048, depth=8):
        super().__init__()
        blocks = [
            nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True) for _ in range(depth)
        ]
        self.first = nn.Sequential(*blocks[: depth // 2]).to("cuda:0")
        self.second = nn.Sequential(*blocks[depth // 2 :]).to("cuda:1")
        self.head = nn.Linear(width, 1000).to("cuda:1")

    def forward(self, x):
        hidden = self.first(x.to("cuda:0"))
        return self.head(self.second(hidden.to("cuda:1")).mean(dim=1))


model = TwoStages()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
criterion = nn.CrossEntropyLoss()
for step in range(3):
    inputs = torch.randn(8, 256, 2048, device="cuda:0")
    targets = torch.randint(0, 1000, (8,), device="cuda:1")
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    peaks = [torch.cuda.max_memory_allocated(i) / 2**30 for i in range(2)]
    print(f"step {step} loss {loss.item():.3f} peaks {peaks[0]:.2f} {peaks[1]:.2f} GiB")
