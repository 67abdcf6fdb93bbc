#!/bin/bash
BATCH=${BATCH:-8}
torchrun --nproc_per_node 1 train.py \
    --model_name_or_path lmsys/vicuna-7b-v1.5 \
    --lora_enable True --lora_r 128 \
    --bf16 True \
    --model_max_length 2048 \
    --per_device_train_batch_size $BATCH \
    --gradient_checkpointing True \
    --output_dir out
