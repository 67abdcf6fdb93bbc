"""vramcast: what a training job will take, and why."""
