from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel, is_bfloat16_supported

model, tokenizer = FastLanguageModel.from_pretrained(
    "unsloth/Qwen2.5-7B", max_seq_length=8192, load_in_4bit=False
)
model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing=False)
arguments = SFTConfig(
    per_device_train_batch_size=2,
    optim="adamw_8bit",
    bf16=is_bfloat16_supported(),
)
SFTTrainer(model=model, args=arguments).train()
