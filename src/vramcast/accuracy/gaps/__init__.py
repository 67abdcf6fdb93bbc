"""Formula against trace: a seeded grid of small jobs under several transformers, differences sorted by mechanism.

draw (seed → jobs) → formula_side (estimate) and trace_side (the loop of a real library on the virtual GPU, in a process
with the libraries of that version) → compare (tensor by tensor at the peak) → mechanisms (what the grid has in common).
"""
