"""Many GPUs: what each rank holds. Start reading at `ranks.py`.

topology → who shares what; layout → one rank's model; sharding → its states; windows → gathered parameters and reduced
gradients as births and deaths; pipeline → micro-batches in flight; buffers, host → what frameworks add; search → all
topologies of a cluster at once.
"""
