"""Many GPUs: what each rank holds. Start reading at `ranks.py`.

topology      who shares what
rank_model    one rank's model: divided sizes, the sections of its stage
sharding      its weights, gradients and optimizer states, by framework
fsdp_units    parameters that are gathered and reduced together
gathering     gathered parameters and reduced gradients in the order the frameworks issue them
pipeline      micro-batches in flight
comm_buffers  gradient buckets, reduction buffers, NCCL's own memory
companions    evaluation, reference and reward models, saving on a rank
host          what offloading moves to the host
divisions     all topologies of a cluster at once
"""
