"""Code that speaks for a cause: the failing line, its function or its file.

In: nothing. Out: a table; the lines that were printed before a message are searched as well.
"""

from __future__ import annotations

from vramcast.diagnose.rules.case import LIKELY, PROVEN, SEEN

# cause, plausibility in the innermost frame, pattern in the failing line or the name of its function
CODE_OF_CAUSES: tuple[tuple[str, int, str], ...] = (
    ("optimizer_foreach", SEEN, r"_foreach_\w+|_multi_tensor_\w+"),
    ("optimizer_temporary", SEEN, r"exp_avg_sq\w*\.sqrt\(\)|denom = |_single_tensor_\w+"),
    (
        "optimizer_states",
        SEEN,
        r"_init_group|torch\.zeros_like\(\s*p\b|state\[.exp_avg|init\w*_state\w*",
    ),
    (
        "logits",
        SEEN,
        r"cross_entropy|log_softmax|_convert_to_fp32|ConvertOutputsToFp32|logits\.(?:float|contiguous"
        r"|clone)|lm_head\(|loss_function|log_probs?\b",
    ),
    ("logits", LIKELY + 4, r"_logps\b|\blogits = "),
    (
        "attention_scores",
        SEEN,
        r"softmax\(\s*att|attn_weights|attention_scores|baddbmm|eager_attention|unfused_att|attention_probs"
        # the product of queries and keys, under whatever name its result has
        r"|\bq(?:uery)?\w{0,6} ?@ ?k(?:ey)?\w{0,6}\b|(?:einsum|matmul"
        r"|bmm)\(.{0,60}?\bq\w{0,8}\b.{0,20}?, ?k\w{0,8}\b",
    ),
    (
        "evaluation_gathers",
        SEEN,
        r"prediction_loop|\bpreds\w* = .{0,40}cat\(|nested_concat|nested_gather|pad_and_concatenate"
        r"|pad_across_processes|evaluation_loop|gather_for_metrics",
    ),
    (
        "saving_gathers",
        SEEN,
        r"_full_p\w+_state_dict_hook|save_c\w+|_?save_model|optim_state_dict|gather_16bit|clone\(\) tensor",
    ),
    (
        "resuming_loads_twice",
        SEEN,
        r"load_checkpoint|_?load_opt\w*|_rebuild_cuda_tensor|resume_from|\bload_state_dict\b"
        r"|restore_(?:model|checkpoint)"
        r"|\b(?:torch|th)\.load\(|persistent_load|restore_location",
    ),
    ("allocator_warmup", PROVEN, r"caching_allocator_warmup"),
    (
        "vllm_share",
        SEEN + 5,
        r"_?allocate_kv_cache|_?initialize_(?:kv_)?caches?\b|init_memory_pool|initialize_cache\b|wake_up\b",
    ),
    (
        "many_boxes",
        SEEN,
        r"select_candidates_in_gts|get_pos_mask|dynamic_k_matching|get_(?:geometry_)?in_boxes_info"
        r"|\w*[Aa]ssigner\b|\bassign_wrt_overlaps"
        r"|bbox_overlaps|pairwise_iou|\bbox_iou(?:_\w+)?\b|label assignment|\bassign_targets\w*"
        r"|\bmatch_quality_matrix\b",
    ),
    (
        "dataset_on_gpu",
        SEEN,
        r"cameraList_from\w*|\bloadCam\b|data_?set\w*\.(?:cuda\(|to\()"
        r"|\b(?:self\.)?(?:all_\w+|images|rays|data|[Xx]_train|train_(?:data|images"
        r"|x))\s*=\s*.{0,80}\.(?:cuda\(|to\(.{0,12}(?:cuda|device))",
    ),
    (
        "input_too_large",
        SEEN,
        r"vae\.decode|first_stage_model\.decode|VAEDecode|\btiled_scale\w*|decode_first_stage"
        r"|vae_decode|autoencoder_kl\w*",
    ),
    # a layer makes its parameters: the model is still being built
    ("loading_the_model", SEEN, r"^__init__ \S*torch[/\\]nn[/\\]modules[/\\]"),
    # ComfyUI puts the weights on the card just before it samples
    ("loading_the_model", SEEN, r"prepare_sampling|load_models?_gpu|partially_load\b"),
    (
        "gathered_parameters",
        SEEN,
        r"all_gather\w*|_?unshard\w*|fetch_sub_module|_alloc_storage|GatheredParameters",
    ),
    (
        "generation_cache",
        LIKELY + 5,
        r"^generate |\.generate\b|past_key_values?\b|cache_utils|DynamicCache|kv_cache",
    ),
    ("dequantised_weight", LIKELY, r"dequantize\w*|MatMul4Bit|MatMul8bitLt"),
    (
        "image_tokens",
        LIKELY,
        r"pixel_values|vision_tower|patch_embed|image_features|\bVision\w*(?:_forward|\.forward)",
    ),
    (
        "loading_the_model",
        LIKELY,
        r"from_pretrained|_load_state_dict_into\w*|model\.(?:to|cuda|half)\(|_apply |dispatch_model"
        r"|_load_pretrained_model"
        r"|set_module_(?:quantized_)?tensor_to_device|load_checkpoint_in_model|_?initialize_model\b"
        r"|model_loader|load_weights"
        r"|prepare_model\(|^(?:to|cuda|half) \S*modules?\.py|\bconvert .{0,120}module\.py"
        r"|_move_model_to_device|create_weights",
    ),
    (
        "activations",
        LIKELY - 10,
        r"checkpoint\.py|_engine_run_backward|\.backward\(|run_backward|\bforward\b",
    ),
)
