"""Memory snapshots of torch: reading them safely, and what they tell."""
