"""Groups of categories that share a colour."""

from __future__ import annotations

# Category → the group that gives it its colour and its place in the order.
PART_OF = {
    "weights": "weights",
    "weight copies": "weights",
    "model load": "weights",
    "gradients": "gradients",
    "optimizer states": "optimizer",
    "master weights": "optimizer",
    "activations": "activations",
    "logits and loss": "logits",
    "temporaries": "temporary",
    "inputs": "temporary",
    "data pipeline": "temporary",
    "unattributed": "temporary",
    "kv cache": "cache",
    "companion models": "companion",
    "communication buffers": "communication",
    "allocator slack": "slack",
    "cuda context": "context",
    "library workspaces": "context",
    "interpreter and libraries": "context",
}
