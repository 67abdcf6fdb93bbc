# one card
CUDA_VISIBLE_DEVICES=0 \
swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --tuner_type lora \
    --torch_dtype bfloat16 \
    --dataset 'my/data' \
    --max_length 8192 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8
