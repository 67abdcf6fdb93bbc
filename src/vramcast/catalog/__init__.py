"""Facts that ship with the package, each with its source: model configs and GPUs."""
