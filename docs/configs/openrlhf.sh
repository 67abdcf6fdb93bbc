deepspeed --num_gpus 8 --module openrlhf.cli.train_dpo \
    --pretrain meta-llama/Llama-3.1-8B-Instruct \
    --chosen_key chosen --rejected_key rejected --ref_offload \
    --micro_train_batch_size 2 --train_batch_size 128 \
    --max_len 4096 --zero_stage 3 --gradient_checkpointing
