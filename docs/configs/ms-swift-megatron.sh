NPROC_PER_NODE=8 \
megatron sft \
    --model Qwen/Qwen2.5-14B-Instruct \
    --tuner_type full \
    --dataset 'my/data' \
    --tensor_model_parallel_size 4 \
    --sequence_parallel true \
    --micro_batch_size 4 \
    --global_batch_size 32 \
    --max_length 8192
