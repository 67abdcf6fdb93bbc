"""Words around a failure that say which program ran and what it was doing.

In: a Reading. Out: Clues by name, each with the words that were seen. A clue is never a cause by itself: `causes` says
which clues speak for what. Each row is one mechanism in the words of the programs and of the people who paste them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vramcast.diagnose.readers.log import Reading
from vramcast.diagnose.rules.evidence import frame_text

MAX_SEEN_CHARS = 60

_TABLE: tuple[tuple[str, str], ...] = (
    # programs that only run models
    (
        "vllm",
        r"(?<![a-z])vllm(?!\w{0,20}\W{0,3}\s?(?:false|none|null)\b)"
        r"|gpu[-_]memory[-_]utilization|cumem_allocator|\bVllmWorker",
    ),
    ("sglang", r"\bsglang\b|mem[-_]fraction[-_]static|launch_server"),
    (
        "local_llm",
        r"\bggml[-_]\w+|llama_(?:new_context|kv_cache|model_load|init|context)|llama-server|\bollama\b"
        r"|\.gguf\b|mistralrs|llama runner|whisper\.cpp|llamafile|lm studio"
        r"|exllama|koboldcpp|text-generation-(?:webui|inference)|\bLlamaCpp\b",
    ),
    (
        "image_generation",
        r"comfyui|\bVAEDecode|KSampler|stable[- ]diffusion|diffusers[/\\.]pipelines"
        r"|\w+Pipeline\.from_pretrained|a1111|vae\.decode|\b(?:txt|text|img|image)2(?:img|image|video|vid)\b"
        r"|hi(?:gh)?[- ]?re[sx][. _-]?fix|fooocus|invokeai|cogvideo|hunyuan ?video|\bcomfy\b|\bhi-?res\b"
        r"|\bvae[ _-](?:de|en)cod\w*|\bwan ?2\.\d|\bflux[ ._-]?(?:1|2|dev|schnell)|\bsdxl\b|--(?:med|low)vram\b"
        r"|unloading all loaded models|prompt executed in"
        r"|\bgenerat(?:e|es|ing) (?:an? |the |any )?(?:\w+ )?(?:images?|pictures?|videos?)\b|生成图|出图"
        r"|文生视频|图生视频",
    ),
    (
        "upscaling",
        r"real-?esrgan|upscal\w+|super[-_ ]?resolution|\bsupir\b|scale_by\b|waifu2x|gfpgan|swinir|inpaint",
    ),
    (
        "folding",
        r"alphafold|openfold|fastfold|esmfold|colabfold|pLDDT|\bresidues?\b|boltz|rfdiffusion|rosetta"
        r"|uni-?fold|\bproteins?\b|aatype|\besm(?:-?[12]b?)?\b|\bmsa_mask\b",
    ),
    (
        "runs_a_model",
        r"\binference\b|\binfer(?:s|red|ring)?\b|\binfer\w*\.py|\bpredict(?:ion|ions|ing)?\b|\w*demo\.py"
        r"|推理|预测|图生图"
        r"|\bexample(?:_\w+)?\.py\b|(?:chat|text)_completion|\.generate\b|\b(?:to|when|while) generat(?:e"
        r"|ing)\b(?! the following)"
        r"|转换图片|\binferenc\w+\b|\bwhisperx?\b|\btranscri\w+|CUDA failed with error|ctranslate2"
        r"|text-to-(?:image|video|speech)|\bdemo\b(?! data)|synthesi[sz](?:e|es|ed|ing)\b",
    ),
    (
        "sees_images",
        r"[-_ ]?vl\b|\bvlms?\b|llava|internvl|minicpm-v|(?:max|min)_pixels|multi-?modal|vision-language",
    ),
    # data of which one sample can be many times as long as another
    (
        "uneven_samples",
        r"max_duration|\butterances?\b|\basr\b|librispeech|\baudio (?:file|clip|segment)s?|speech recognition|语音",
    ),
    (
        "chats",
        r"context (?:window|length|size)\b|\bnum_ctx\b|\blong(?:er)? (?:prompts?|conversations?)\b|上下文(?:太|过)长"
        r"|\bchat(?:bot)?\.py|对话(?:轮|多)",
    ),
    (
        "trains",
        r"(?<!not )(?<!n't )(?<!not to )\btrain(?:ing|er|ed|s)?\b|train\w*\.py|(?<!not )training"
        r"|\bepochs?\b|fine-?tun\w+|\boptimizer\b"
        r"|\.backward\(|\bq?lora\b|训练|微调"
        r"|deepspeed|accelerate launch",
    ),
    # what the server was doing
    ("wakes_up", r"wake_up\b|cumem_allocator|create_and_map"),
    # an engine with cards of its own takes nothing from the trainer's
    (
        "engine_elsewhere",
        r"vllm_mode\W{1,4}server|vllm_server_host|vllm_num_engines|swift rollout\b",
    ),
    ("beside_a_trainer", r"\b(?:grpo|rloo|ppo|verl|openrlhf|rollout)\w*|self\.llm = LLM\("),
    # ... and then it is the trainer's turn, not the engine's
    (
        "trainers_turn",
        r"actor_update|update_actor|update_policy|update_critic|compute_(?:ref_)?log_prob|_per_token_logps"
        r"|training_step"
        r"|(?:\b(?:at|in|during|through|on|of)\s(?:\w+\s){0,3}?|second |\d )(?:loss\.)?back(?:ward|prop)\w*",
    ),
    (
        "graph_capture",
        r"capture (?:the )?cuda ?graphs?|capturing .{0,40}cuda ?graphs?|cuda_graph_runner|capture_model",
    ),
    (
        "profiling_run",
        r"profile_run|dummy (?:requests|run)|determine_num_available_blocks|warming up",
    ),
    (
        "server_weights",
        r"error loading model|alloc_tensor_range|load_tensors\b[^\n]{0,60}?(?:fail|unable)"
        r"|unable to allocate .{0,12}buffer",
    ),
    (
        "context_buffers",
        r"KV (?:self size|buffer size)|failed to (?:create|initialize) (?:the )?context"
        r"|compute (?:buffer|pp)|buffer for kv cache|kv_cache_init\(\) failed",
    ),
    # what the job was doing
    ("eager_mode", r"enforce[-_]eager"),
    (
        "offload",
        r"offload_(?:optimizer|param)\w*(?![^,}\n]{0,30}\b(?:none|null|false)\b)|adam_offload|ZeRO?Offload"
        r"|zero(?:(?!no_?offload)\w)*offload|(?:ds|zero)_?z?[23](?:(?!no_?offload)\w)*offload"
        r"|cpu_offload(?!\W{0,4}false)"
        r"|offload_opt(?!imizer)|cpuadam",
    ),
    # the host's own /dev/shm, one of at least 30 GB, or one in which `df` shows at least 4 GB free
    (
        "roomy_shm",
        r"--ipc[= ]host|ipc: ?['\"]?host|shm[-_]size[=: ]{1,2}['\"]?(?:[3-9]\d|\d{3,})\s?g"
        r"|\s[\d.]+[GT]i?\s+[\d.]+[KMGT]?i?\s+(?:[4-9]|\d{2,4})(?:\.\d+)?[GT]i?\s+\d{1,2}%\s+/dev/shm",
    ),
    ("workers", r"num_workers|DataLoader worker|\bworkers?[=: ]+\d+|dataloader_num_workers"),
    (
        "evaluates",
        r"(?:during|in|at|while|after|until|when(?:ever)?|once|on|(?:proceeds?|gets?|comes?|goes) to"
        r"|reach(?:es|ed)|enter(?:s|ed))\s(?:the\s)?(?:[\w-]+\s){0,3}(?:evaluation|eval|evaluating"
        r"|validation|validating)\b|evaluation phase"
        r"|\b(?:evaluation|eval|validation)\s(?:\w+\s){0,2}?(?:fails?|failed|crash\w*|ooms?|dies|runs? out)\b"
        r"|\.predict\(|predict_results|predict_with_generate|compute_metrics"
        r"|(?:评估|验证|eval(?:uation)?)\s?的?(?:时|阶段|过程|集上)"
        r"|(?:一到|进入|到了?|进行|开始)\s?(?:running )?(?:eval|评估|验证)",
    ),
    (
        "full_training",
        r"full[-_ ]param\w*|full[-_ ](?:param(?:eter)?s?[-_ ])?(?:fine|sft|finetun|weight)|全量|全参"
        r"|finetuning_type\W{0,4}full|dreambooth",
    ),
    ("adapters", r"\bq?lora\b|\bpeft\b|\badapters?\b"),
    (
        "divides",
        r"deepspeed|\bzero[-_ ]?(?:stage)?[-_ ]?[123]\b|\bfsdp\b|megatron|(?:tensor|pipeline)[-_ ]parallel|device_map"
        r"|offload|\bq?lora\b",
    ),
    (
        "batch_of_one",
        r"batch(?:[-_ ]?size\W{0,4}(?:is |of |to |at |= ?)?|(?:[-_ ]?size)? and \w+ to )1(?!\d|\.\d)"
        r"|批次?(?:大小)?\w{0,3}\s?1(?!\d)|(?:even"
        r"|only) (?:with|when|if|using).{0,40}batch"
        r"|no matter (?:how|what|which)|无论怎么|不管怎么",
    ),
    (
        "many_boxes",
        r"label assignment|select_candidates_in_gts|get_pos_mask|task_?aligned|\btal\.py"
        r"|dynamic_k_matching|simota|assigner"
        r"|(?:ground[- ]?truths?|gts?|bbox(?:es)?|box(?:es)?|objects|instances|targets|annotations) "
        r"(?:per|in (?:a|one|each)(?: single)?) (?:im(?:g|age)|photo|picture|sample)"
        r"|\b(?:many|number of) (?:gts?\b|ground[- ]truth|bbox(?:es)?\b|boxes\b)"
        r"|\bmax_?det(?:ections)?(?:_per_im\w*)?\W{1,4}\d{3,}|_mask_iou\b|\bmask_?iou\("
        r"|(?:目标|框|标注|物体)(?:数量?)?(?:太|过|很)多",
    ),
    (
        "not_loaded",
        r"(?:can ?not|can't|could not|unable to|fails? to|failed to) (?:even )?(?:be )?load(?:ed)?\b"
        r"(?! (?:data|image|lib))"
        r"|(?:无法|不能|没法)加载(?:模型|权重)?|加载(?:模型|权重)时?.{0,8}(?:OOM|爆|不足|溢出)",
    ),
    (
        "first_card_fuller",
        r"\b(?:gpu|cuda|card|device)[ :#]?0\b[^.\n]{0,40}\b(?:more|most|higher|very high|full(?:er)?|much)\b"
        r"|\b(?:0|0th|first) (?:gpu|card|device)\b[^.\n]{0,30}\b(?:more|most|higher|full(?:er)?)\b"
        r"|process(?:es)? (?:are|is) (?:all )?(?:using|on) (?:gpu|cuda|card)[ :#]?0\b"
        r"|\b(?:gpu|cuda|card|device)[ :#]?0\b[^.\n]{0,60}\b(?:while|but|whereas)\s(?:the "
        r"|all )?other(?:s\b|\s(?:gpu|card|device)s?)"
        r"|(?:0号|第一张)(?:卡|显卡|GPU)[^。\n]{0,16}(?:更多|最多|占满|爆)"
        r"|(?:都|全部?|均)(?:占用?|用|在|跑|挤)[^。\n]{0,6}(?:0号|第一张|第0张|GPU ?0|cuda:0)",
    ),
    (
        "resumes",
        r"(?:when(?:ever)?|while|after|upon|unable to|cannot|can't|fails? to|tr(?:y|ied|ying) to)\s"
        r"(?:\w+\s){0,3}?resum\w+|resum(?:e|ing) (?:the |my )?(?:training|run|model)?\s?from"
        r"|when (?:it |I )?load(?:s|ed|ing)? (?:the |an? )?(?:\w+ )?checkpoint\b(?! shards)|(?:断点|恢复|继续)训练",
    ),
    (
        "saves",
        r"(?:when(?:ever)?|while|at|during|upon|before)\s(?:\w+\s){0,3}?sav(?:e|es|ing)\b(?! (?:gpu |v?ram|memory))"
        r"|保存(?:模型|检查点|权重|ckpt|checkpoints?)?\s?的?(?:时候?|阶段)|\w*save_ckpt\b",
    ),
    (
        "says_no_grad",
        r"\b(?:where|forg[eo]t\w*|without|missing|needs?|should|lacks?|not us\w+|didn't use|no)\b[^.\n]{0,40}?"
        r"(?:torch\.)?(?:no_grad|inference_mode)\b",
    ),
    (
        "after_items",
        r"after\s(?:\w+ing\s)?(?:about |around |~)?\d[\d,]*\s(?:\w+\s){0,2}?(?:images?|samples?|frames?"
        r"|files?|inputs?"
        r"|sequences?|requests?|prompts?)\b|more than (?:one|two|\d+) (?:image|sample|frame|file|input)s?\b",
    ),
    (
        "skips_batches",
        r"skip(?:ping|ped) (?:this |the )?batch|attempting to recover|\boom=0?\.?0*[1-9]",
    ),
    (
        "dataset_on_gpu",
        r"cameraList_from\w*|loadCam\b|train_cameras\[|data_device(?![ =:'\"]{0,4}cpu)"
        r"|(?:load|cache|preload)\w* (?:the "
        r")?(?:whole |entire |all )?(?:data ?set|images|data) "
        r"(?:on|to|onto|into) (?:the )?(?:gpu|cuda)|cache_device",
    ),
    (
        "grows",
        r"(?:memory|\bv?ram)(?: (?:of|on|in|for) (?:the )?\w+)?(?: usage| use| consumption| utili[sz]ation)?"
        r" (?:is |was |are |keeps? |kept |will |would |starts? to |has been |be )*(?:\w+ly )?"
        r"(?:rais|ris|grow|increas|leak|creep|climb|accumulat)\w*"
        r"|(?:slow|steady|gradual|constant|continuous)(?: and \w+)? (?:increase|growth|rise)\b"
        r"|\b(?:ram|memory) (?:is |gets? |was )?(?:slowly |gradually )?(?:filled|fills?|filling) up\b"
        r"|(?:keeps?|kept|slowly|steadily|gradually|continu\w+|still|constantly|monotonic\w*|linearly) (?:to )?"
        r"(?:ris|rais|grow|increas|climb)\w*"
        r"|(?:内存|显存)[^\n]{0,16}?(?:上涨|增长|增加|变大|涨|增大|泄[漏露]|越来越|升高|攀升)",
    ),
    # it fits or not as the batch is small or large
    (
        "batch_matters",
        r"(?<![a-z])batch(?:[-_ ]?size)?\W{0,4}(?:of |is |to |as )?\d+\b[^.\n]{0,24}?\b(?:works|is (?:fine"
        r"|ok)|runs|fits)\b(?! out)"
        r"|\b(?:works?|runs?|trains?|fits?|fine|ok|success\w*)\b[^.\n]{0,16}\b(?:with|at|for"
        r"|using) (?:a )?batch[^.\n]{0,40}?\d+[^\n]{0,60}?"
        r"\b(?:fails?|oom|out of memory|not|stops?|crash\w*|error)\b"
        r"|\b(?:any|a|use|using|with|try|tried) (?:bigger|larger|higher|greater) batch"
        r"|\b(?:reduc|lower|decreas)\w*[^.\n]{0,24}\bbatch\w*\W{0,4}(?:to |of )?\d*\s(?:works|helps|solves"
        r"|fixes|is ok)\b"
        r"|\bbatch(?:[-_ ]?size)? like \d+\b[^.\n]{0,30}\b(?:starts|works|runs)\b"
        r"|batch(?:[-_ ]?size)?[^\n\d]{0,8}\d+[^\n]{0,8}?(?:可以|正常|没问题|能跑)",
    ),
    # one input is too much: then it is not how many there are
    (
        "even_one_input",
        r"\b(?:even|just|only)\s(?:\w+\s){0,4}?(?:a )?(?:single|one|1) (?:image|sample|example|frame|picture)\b"
        r"|(?:一张|单张)图片?(?:都|也|就)",
    ),
    # some batches are larger than others
    (
        "at_random",
        r"\b(?:random(?:ly)?|occasional(?:ly)?|sporadic(?:ally)?|intermittent(?:ly)?|sometimes"
        r"|once in a while|unpredictabl\w+)"
        r"\b[^.\n]{0,40}?(?:ooms?\b|out of memory|crash|fail)"
        r"|(?:ooms?\b|out of memory|crash\w*|fails?)(?: (?:errors? )?(?:happens?|occurs?|appears?"
        r"|comes?))? (?:randomly|occasionally|sometimes|at random|at different (?:steps|iterations|points))"
        r"|\b(?:partial|small\w*|sub)[- ]?(?:data ?)?sets?\b[^.\n]{0,60}"
        r"\b(?:whole|full|entire|overall|complete|larger?) (?:data ?)?set\b[^.\n]{0,30}(?:ooms?\b"
        r"|out of memory|fails?|crash)"
        r"|(?:偶尔|偶发|随机|有时候?)[^。\n]{0,12}(?:OOM|爆|溢出|不足)",
    ),
    # the first run works, and leaves something behind
    (
        "runs_again",
        r"\b(?:second|2nd) (?:run|time|call|attempt|generation|image|request)\b"
        r"|\bfirst (?:run|time|call|generation|image|request|one)\b[^.\n]{0,60}?\b(?:second|subsequent|then"
        r"|next|again|after)\b"
        r"|\brestart(?:ing|ed)? (?:the |my )?(?:kernel|notebook|runtime|server|webui|comfy\w*|program)\b"
        r"|第二次(?:运行|生成|推理|调用|训练)|第一次(?:运行|生成|推理)?(?:可以|正常|没问题)",
    ),
    # the loss is taken as a number: then it keeps no graph
    ("counts_numbers", r"\bloss\w*(?:\.\w+\(\))*\.(?:item|detach)\("),
    # models or inputs one after the other, in one process
    (
        "loops",
        r"\bin (?:a|the) (?:for[- ]?)?loop\b|one after (?:the other|another)|\b(?:consecutively|repeatedly)\b"
        r"|(?:循环|依次|连续)(?:训练|调用|推理|处理)",
    ),
    (
        "after_steps",
        r"after (?:a few|several|some|many|a couple of) (?:hundred |thousand )?(?:training )?(?:iterations|steps"
        r"|epochs|batches)\b"
        r"|(?:after|until|(?:ran?|runs?|running|train(?:s|ed|ing)?|works?|worked|went|got|fails?|crash(?:es"
        r"|ed)?|stops?|stopped)"
        r"(?: \w+){0,2}? (?:for|to|at|up to)|after(?: \w+){0,4}? (?:running|training))\s~?(?:about |around "
        r"|roughly |some )?"
        r"\d[\d,.]*k?(?:\s?(?:-|–|~|to)\s?\d[\d,.]*k?)?\s?(?:th |training )?(?:iterations?|iters?|steps?"
        r"|epochs?|batches)\b"
        r"|\d+\s?(?:个)?(?:epochs?|轮|步|样本|个?step)\s?(?:后|时|就|之后)"
        r"|训练(?:到)?(?:一半|中途|过程中途)|halfway through"
        r"|\bafter (?:(?:about|around|roughly|several|a few|some|many) )?(?:\d+(?:\.\d+)?(?:\s?(?:-|–|~"
        r"|to)\s?\d+)? ?)?(?:hours?|hrs?|days?)\b"
        r"|(?:训练|运行|跑)(?:起来)?了?(?:一段时间|一阵子?|一会儿?|几个?小时|很久)",
    ),
    (
        "left_over",
        r"/dev/nvidia\d{1,3}:?\s.{0,40}F\.{3}m|\bdefunct\b|\bzombie\b|no such process|僵尸|残留|C\s+Unknown "
        r"Error\s+\d+MiB|\(null\)\s*$",
    ),
    (
        "length_named",
        r"on sequence .{0,80}of length \d{2,6}|sequence length is longer|too many tokens",
    ),
    ("subdivisions", r"\bsubdivisions?\b"),
)
CLUES = tuple((name, re.compile(pattern, re.IGNORECASE | re.MULTILINE)) for name, pattern in _TABLE)
SERVERS = ("vllm", "sglang")
INFERENCE = (*SERVERS, "local_llm", "image_generation", "upscaling", "folding")


def clues_of(reading: Reading) -> Mapping[str, str]:
    """The clues in the text around the failure and in its traceback, each with the words that were seen first."""
    text = "\n".join((*reading.surroundings, *map(frame_text, reading.frames)))
    found = {name: match for name, pattern in CLUES if (match := pattern.search(text))}
    return {name: match.group(0).strip()[:MAX_SEEN_CHARS] for name, match in found.items()}
