"""Memory over time as data: every allocation and free of one card, from the engine, a trace or a torch snapshot."""
