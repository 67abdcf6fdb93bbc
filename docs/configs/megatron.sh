MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --num-attention-heads 32
    --seq-length 4096
)
TRAINING_ARGS=(
    --micro-batch-size 4
    --global-batch-size 256
    --bf16
    --use-distributed-optimizer
    --tensor-model-parallel-size 2
    --sequence-parallel
)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]}
