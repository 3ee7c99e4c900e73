"""Build every model type of the installed transformers as a tiny random model, offline.

The default configuration of a type is shrunk by rules on attribute names (recursively through its
sub-configurations), then a model class is chosen, its size is checked on the meta device, its weights are
randomised and inputs are made from the signature of its forward method.

    python tools/tiny.py [TYPE...]
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import extra
import torch
from torch import Tensor, nn

MAX_PARAMETERS = 20_000_000

# Sizes of a tiny model. They differ from each other so that an axis cannot be mistaken for another one:
# 96 = 4 heads x 24 = 8 heads x 12, and an explicit head size (16) gives a projection that is not square.
HIDDEN = 96
MLP = 72
EXPERT_MLP = 40
HEADS = 4
GROUPED_HEADS = 8
KV_HEADS = 4
HEAD_DIM = 16
LAYERS = 2
VOCAB = 160
POSITIONS = 128
PROJECTION = 56
IMAGE = 32
PATCH = 8
MELS = 24
BATCH = 2
TEXT = 7
DECODER_TEXT = 5
FIRST_TEXT_ID = 10


def _each(names: Iterable[str], value: Any) -> dict[str, Any]:
    """The same entry for several names of a table."""
    return {name: value for name in names}


class CannotBuild(Exception):
    """The model type cannot be built here, for the reason in the message."""


@dataclass(frozen=True)
class Tiny:
    """A tiny random model in eval mode and keyword inputs for its forward method."""

    model: nn.Module
    inputs: dict[str, Any]


extra.enable()  # before transformers is imported: it looks for torchvision and timm

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

# ---------------------------------------------------------------------------------------------------------
# Configurations
# ---------------------------------------------------------------------------------------------------------

# The first pattern that matches the whole attribute name gives the size. Sizes are only ever reduced.
INT_RULES: list[tuple[str, int]] = [
    (r"(num_)?codebooks|num_quantizers|n_codebooks", 3),
    (r".*hash.*vocab", 50),
    (r"base_channels|latent_channels|z_channels|stem_out_channels", 32),
    (r"(num|n)_filters", 4),
    (
        r"output_channels|upsample_groups|mask_feature_size|feature_size|hidden_size_global|ext_pw_out_channel",
        HIDDEN,
    ),
    (r"num_pos_feats", HIDDEN // 2),
    (r"vector_quantization_hidden_dimension|d_latents", HIDDEN),
    (r"upsample_initial_channel", 64),
    (r"latent_query_num", 6),
    (r"rotary_dim", 8),
    (r"mm_tokens_per_image|index_topk", 4),
    (r"coordinate_size|shape_size", HIDDEN // 6),
    (r"subsampling_conv_channels", 32),
    (r"patch_embeds_hidden_size", 32),
    (r"type_vocab_size", 16),
    (r".*vocab_size(_per_layer_input)?|vocab_dim", VOCAB),
    (r"(codebook_size|num_embeddings|n_codes|audio_num_codebook.*|num_codevectors_per_group)", 32),
    (
        (
            r"max_.*position.*|n_positions|n_ctx|max_seq_len\w*|max_sequence_length|max_.*length|seq_length|"
            r"original_max_position_embeddings|context_length|block_size"
        ),
        POSITIONS,
    ),
    (r"moe_intermediate_size|.*expert.*(intermediate|ffn).*|moe_.*ffn.*|.*expert_dim", EXPERT_MLP),
    (
        (
            r".*intermediate_(size|dim)|.*ffn_(dim|hidden_size|size|embed_dim)|d_ff|n_inner|mlp_(dim|hidden_size|size)|"
            r".*feed_?forward_(dim|size|hidden_size)|.*inner_(dim|size)|dense_(ff|ffn)\w*|d_inner|ff_dim|"
            r".*linear_units"
        ),
        MLP,
    ),
    (
        r"(num|n|moe_num|n_routed|num_local|num_routed)_?(routed_|local_)?experts|moe_num_experts|num_expert",
        4,
    ),
    (r".*experts_per_tok(en)?|moe_k|.*top_?k(_experts)?|num_selected_experts|expert_top_k", 2),
    (r"n_group|topk_group|num_expert_group", 1),
    (r"q_lora_rank", 28),
    (r"kv_lora_rank", 20),
    (r"qk_rope_head_dim", 8),
    (r"qk_nope_head_dim", 12),
    (r"qk_head_dim", 20),
    (r"v_head_dim", 10),
    (r"linear_(num_)?(key|num_key)_heads", 2),
    (r"linear_(num_)?(value|num_value)_heads", 6),
    (r"linear_(key|value)_head_dim", 10),
    (r".*head_dim|head_size|d_kv|attention_head_size|kv_channels", HEAD_DIM),
    (r".*(num_key_value_heads|num_kv_heads|n_kv_heads|key_value_heads)", KV_HEADS),
    (r"mamba_(n|num)_heads", 6),
    (r"mamba_(d_head|head_dim)", 32),
    (r"(mamba_)?(d_state|state_size|ssm_state_size)", 14),
    (r".*n_groups", 1),
    (r".*chunk_size", 8),
    (r"(.*_)?(num_heads|num_attention_heads|n_heads?|attention_heads|num_head)", HEADS),
    (r"(.*_)?(num_hidden_layers|num_layers|n_layers?|layers|depth|num_blocks)", LAYERS),
    (
        (
            r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|hidden_dim|dim_model|model_dim|embedding_size|dim|width|"
            r"d_embed|embedding_dim|hidden_channels|embed_size|d_inner)"
        ),
        HIDDEN,
    ),
    (r".*projection_(dim|size)|.*proj_size|.*output_dim", PROJECTION),
    (r"patch_size|.*_patch_size", PATCH),
    (r"image_size|img_size|input_size|pretrain_image_size|.*image_size", IMAGE),
    (r"num_mel_bins|num_mels|n_mels|input_feat_per_channel|.*mel_bins", MELS),
    (r"sliding_window|attention_window|local_attention|window_size|.*_window", 4),
    (r"num_queries|.*num_queries|num_query_tokens|.*num_latents|.*query_tokens", 6),
    (r"num_frames|.*num_frames", 4),
]

# Sizes that are given even when the default leaves them open.
NONE_RULES = {"head_dim": HEAD_DIM, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB}

TOKEN_NAME = re.compile(r"(.*_)?token(_id|_index|_idx)s?|.*_token|.*_(id|index)")
BASE_FIELDS = {field.name for field in dataclasses.fields(PreTrainedConfig)}

# What the rules cannot know, by the model type of a configuration, wherever it occurs (a nested dict reaches
# into a sub-configuration).
_TIMM_VIT = {"embed_dim": HIDDEN, "img_size": IMAGE, "patch_size": PATCH, "depth": LAYERS, "num_heads": HEADS}
OVERRIDES: dict[str, dict[str, Any]] = {
    **_each(
        ["autoformer", "informer", "time_series_transformer"],
        {
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2, 4],
            "num_time_features": 1,
            "label_length": 4,
        },
    ),
    **_each(["t5gemma2_text", "t5gemma2_decoder"], {"dropout_rate": 0.0}),
    **_each(["llava_next", "llava_next_video", "llava_onevision"], {"image_grid_pinpoints": [[IMAGE, IMAGE]]}),
    **_each(["deepseek_ocr2_text"], {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}),
    **_each(["diffusion_gemma_text"], {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": EXPERT_MLP}),
    **_each(["blip-2", "instructblip"], {"image_token_index": VOCAB - 1}),
    "instructblipvideo": {"video_token_index": VOCAB - 1},
    "gemma3n_vision": {"architecture": "resnet10t", "hidden_size": 512},
    "gemma3n": {"vision_soft_tokens_per_image": 4},
    "granite_speech5_encoder": {"num_key_value_heads": GROUPED_HEADS},
    "granite4_vision": {
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [1],
        "downsample_rate": "1/2",
        "image_grid_pinpoints": [[IMAGE, IMAGE]],
    },
    "lw_detr": {"backbone_config": {"out_indices": [1, 2]}},
    "mistral_large4_text": {"kv_source_layers": None},
    "muse_glimmer": {"out_hidden_size": 4 * HIDDEN},
    "muse_spark": {"out_hidden_size": 4 * HIDDEN},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}, "image_token_id": VOCAB - 1},
    "perception_lm": {"vision_config": {"architecture": "vit_tiny_patch16_224", "model_args": _TIMM_VIT}},
    "pp_doclayout_v2": {"class_thresholds": [0.5, 0.5]},
    "pp_doclayout_v3": {"x4_feat_dim": 32},
    "pp_lcnet_v4": {"stem_channels": [3, 48, 96]},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD_DIM,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
        "output_gate_type": "sigmoid",
    },
    "sapiens2_head": {
        "upsample_out_channels": [32],
        "conv_out_channels": [32],
        "conv_kernel_sizes": [1],
        "upsample_kernel_sizes": [4],
    },
    **_each(["sam2_vision_model"], {"backbone_feature_sizes": [[8, 8], [4, 4], [2, 2]]}),
    "vibevoice_asr": {"acoustic_tokenizer_chunk_size": 6400},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "num_heads": 4},
    "zamba": {
        "attention_hidden_size": 2 * HIDDEN,
        "num_hidden_layers": 6,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "layers_block_type": [
            "linear_attention",
            "linear_attention",
            "hybrid",
            "linear_attention",
            "linear_attention",
            "hybrid",
        ],
    },
    **_each(["step3p5"], {"sliding_window": 4}),
    **_each(["clvp_encoder", "clvp_decoder"], {"num_attention_heads": 2}),
    **_each(
        ["align_vision_model", "efficientnet"],
        {
            "in_channels": [32, 16, 24, 40, 80, 112, 192],
            "out_channels": [16, 24, 40, 80, 112, 192, HIDDEN],
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "hidden_dim": 1280,
            "image_size": 64,
        },
    ),
    **_each(["pp_formulanet_vision", "slanext_vision"], {"output_channels": 256}),
    **_each(["granite_speech", "granite_speech_plus"], {"window_size": 15}),
    **_each(["sam", "sam_hq"], {"mask_decoder_config": {"hidden_size": HIDDEN}}),
    **_each(["sam_prompt_encoder", "sam_hq_prompt_encoder"], {"hidden_size": HIDDEN}),
    **_each(["voxtral"], {"audio_token_id": VOCAB - 1}),
    **_each(["voxtral_encoder", "glmasr_encoder"], {"intermediate_size": 4 * HIDDEN}),
    **_each(["neucodec", "xcodec2"], {"encoder_hidden_size": 4}),
    **_each(
        ["deepseek_ocr2_sam_vision_model", "unlimited_ocr_sam_vision_model"],
        {"downsample_channels": [48, HIDDEN]},
    ),
    **_each(["qwen3_omni_moe_talker_text"], {"shared_expert_intermediate_size": EXPERT_MLP}),
    "chameleon": {
        "vocabulary_map": {"<image>": VOCAB - 1}
        | {f"IMGIMG{chr(65 + i // 10)}{chr(65 + i % 10)}Z": 20 + i for i in range(32)}
    },
    "chmv2": {"backbone_config": {"return_class_token": True, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}},
    "clap_audio_model": {"spec_size": 128, "num_mel_bins": 32, "hidden_size": 256, "window_size": 4},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
        }
    },
    "depth_pro": {
        "patch_size": IMAGE,
        "intermediate_hook_ids": [1, 0],
        "fusion_hidden_size": 32,
        "intermediate_feature_dims": [32, 32],
        "scaled_images_feature_dims": [48, 48, 40],
    },
    **_each(["donut-swin", "swin"], {"window_size": 2, "image_size": 64}),
    "efficientloftr": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 2.0},
        "out_features": [16, 16, 32, HIDDEN],
        "stage_num_blocks": [1, 1, 1, 1],
    },
    "emu3": {
        "vocabulary_map": {"<image>": VOCAB - 1, "<|extra_200|>": 19}
        | {f"<|visual token {i:06d}|>": 20 + i for i in range(32)}
    },
    "emu3_vqgan": {"hidden_size": 128},
    "esm": {"pad_token_id": 1},
    "fastspeech2_conformer_hifigan": {"model_in_dim": MELS},
    "focalnet": {"embed_dim": 24},
    "gemma4_audio": {"subsampling_conv_channels": [128, 32]},
    "janus_vqgan": {"num_patches": 4},
    "moonshine_streaming": {"num_key_value_heads": KV_HEADS},
    "pix2struct_text_model": {"initializer_range": 0.02, "d_kv": HIDDEN // HEADS},
    "sam2_hiera_det_model": {"hidden_size": 12},
    "seggpt": {"image_size": [2 * IMAGE, IMAGE]},
    "textnet": {"stem_out_channels": 8},
    "timm_backbone": {"backbone": "resnet10t"},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "xcodec": {"codebook_dim": 224},
    "zoedepth": {"bottleneck_features": HIDDEN},
    "wav2vec2-bert": {"feature_projection_input_dim": MELS},
    "timm_wrapper": {"architecture": "resnet10t"},
    **_each(["minicpm_ocr", "minicpmv4_6", "minicpmv4_7"], {"image_token_id": VOCAB - 1}),
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 3 * HIDDEN},
    "muse_spark_audio": {"num_hidden_layers": 4},
    **_each(
        [f"{name}_prompt_encoder" for name in ("sam2", "sam2_video", "edgetam_video")],
        {"patch_size": 16},
    ),
    "sam3_tracker": {
        "mask_decoder_config": {"hidden_size": HIDDEN},
        "vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    },
    "edgetam_vision_model": {
        "backbone_channel_list": [256, 128, 64, 64],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    },
    "siglip_text_model": {"projection_size": HIDDEN},
    "siglip2_text_model": {"projection_size": HIDDEN},
    "mllama_text_model": {"cross_attention_layers": [1]},
    "aria": {"projector_patch_to_query_dict": {16: 6}},
    "bamba": {"attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "bros": {"hidden_size": 128},
    "dac": {"encoder_hidden_size": 8},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esmc": {"num_key_value_heads": GROUPED_HEADS, "head_dim": HIDDEN // GROUPED_HEADS},
    "falcon_h1": {"mamba_d_ssm": 2 * HIDDEN, "mamba_n_heads": 6, "mamba_d_head": 32},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": HIDDEN // 4}},
    "glm5_next_text": {"index_kpool": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "helium": {"head_dim": HIDDEN // GROUPED_HEADS},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "levit": {"patch_size": 16, "image_size": 128, "hidden_sizes": [64, 128, 192]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_vision_model": {"intermediate_size": 4 * HIDDEN},
    "longcat_flash": {"head_dim": 8},
    "lw_detr_vit": {"num_windows": 4},
    "mamba2": {"num_heads": 6, "head_dim": 32},
    "mobilevitv2": {"image_size": 64},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2]}},
    "moonshine": {
        f"{side}_num_{kind}_heads": HEADS for side in ("encoder", "decoder") for kind in ("attention", "key_value")
    },
    "reformer": {
        "axial_pos_embds_dim": [32, 64],
        "axial_pos_shape": [8, 16],
        "attn_layers": ["local", "lsh"],
    },
    "stablelm": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "vitmatte": {
        "fusion_hidden_sizes": [48, 24, 16, 8],
        "backbone_config": {"patch_size": 16, "image_size": 64},
    },
    "xmod": {"default_language": "en_XX"},
    **_each(["qwen2_5_vl_vision", "exaone4_5_vision", "qwen2_5_omni_vision_encoder"], {"window_size": 32}),
}


def _value(config: Any, name: str, default: Any = None) -> Any:
    """An attribute of a configuration, also of one which refuses to give what varies by layer."""
    try:
        return getattr(config, name, default)
    except Exception:
        return default


def _field_names(config: PreTrainedConfig) -> list[str]:
    names = [field.name for field in dataclasses.fields(config) if field.name not in BASE_FIELDS]
    return [name for name in names if not name.startswith("_")]


def _rule(name: str) -> int | None:
    return next((size for pattern, size in _COMPILED if pattern.fullmatch(name)), None)


_COMPILED = [(re.compile(pattern), size) for pattern, size in INT_RULES]


class _Tokens:
    """Gives every special token name that is out of the small vocabulary its own id inside of it."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._ids.setdefault(re.sub(r"_(id|index)$", "", name), VOCAB - 2 - len(self._ids))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


WIDTHS = re.compile(
    r".*(hidden_sizes|channels|dims?|widths|embed_dims|encoder_hidden|conv_dim|filters|embed_dim_per_stage|channel_list)"
)


def _is_widths(name: str, value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(_is_number(item) for item in value)
        and WIDTHS.fullmatch(name) is not None
        and max(value) >= 32
    )


def _width_factor(config: PreTrainedConfig, names: Iterable[str]) -> int:
    """One power of two that divides the widths of all stages, so that their ratios stay valid."""
    lists = [value for name in names if _is_widths(name, value := _value(config, name))]
    sizes = [item for value in lists for item in value if item > 4]
    factor = 1
    while sizes and min(sizes) // (2 * factor) >= 8 and all(size % (2 * factor) == 0 for size in sizes):
        factor *= 2
    return factor


def _shrink_list(name: str, value: Any, factor: int) -> Any:
    """A tiny version of a list attribute, the same object when there is nothing to shrink."""
    if not value or not all(_is_number(item) for item in value):
        return value
    if re.fullmatch(r"depths|layers|num_layers|.*num_blocks", name):
        small = [min(item, LAYERS) for item in value]
    elif re.fullmatch(r"(.*_)?(image_size|img_size|input_size)", name):
        small = [IMAGE] * len(value)
    elif re.fullmatch(r"global_attn_indexes|(deepstack_visual|window_block|fullatt_block)_ind\w+", name):
        small = [LAYERS - 1]
    elif name == "decoder_in_channels":
        small = [HIDDEN] * len(value)
    elif _is_widths(name, value):
        small = [item // factor if item > 4 else item for item in value]
    else:
        return value
    return type(value)(small)


# Their rotary embedding has sections for time, height and width also when the configuration does not say so.
MULTIMODAL_ROPE = re.compile(
    r"(cohere_compass|hunyuan_vl|cosmos3_edge|ernie4_5_vl|glm4v|glm46v|glmga|glm_image|glm_ocr|paddleocr_vl|qwen2_5_omni|"
    r"qwen2_5_vl|qwen2_vl|qwen3_5|qwen3_omni|qwen3_vl|qwen4_exp).*"
)


def _shrink_rope(parameters: dict[str, Any], head_dim: int, sections: bool) -> dict[str, Any]:
    """Fit the sections and per-frequency factors of rotary parameters to the head size."""
    small = {}
    half = int(head_dim * parameters.get("partial_rotary_factor", 1.0)) // 2
    if sections and "rope_type" in parameters:
        parameters = {"mrope_section": [1, 1, 1]} | parameters
    for key, value in parameters.items():
        if isinstance(value, dict):
            value = _shrink_rope(value, head_dim, sections)
        elif key == "mrope_section":
            value = _sections(value, half)
        elif key in ("long_factor", "short_factor"):
            value = list(value[:half])
        small[key] = value
    return small


def _sections(sections: Iterable[int], total: int) -> list[int]:
    """Sections in about the same proportions, with the given total."""
    old = list(sections)
    new = [max(1, size * total // sum(old)) for size in old]
    new[-1] += total - sum(new)
    return new


def _representative_layers(config: PreTrainedConfig, names: list[str]) -> dict[str, list[Any]]:
    """Shorten per-layer lists to one layer of each kind (at least two layers)."""
    columns = [list(_value(config, name)) for name in names]
    rows = list(zip(*columns, strict=True))
    kinds = [index for index, row in enumerate(rows) if row not in rows[:index]][:4]
    kept = kinds if len(kinds) > 1 else [0, 1]
    return {name: [column[index] for index in kept] for name, column in zip(names, columns, strict=True)}


def _per_layer_lists(config: PreTrainedConfig, names: list[str]) -> list[str]:
    count = _value(config, "num_hidden_layers")
    if not _is_number(count) or count < 3 or "depths" in names:
        return []
    values = {name: _value(config, name) for name in names}
    return [name for name, value in values.items() if isinstance(value, list | tuple) and len(value) == count]


def _resnet(timm: PreTrainedConfig) -> PreTrainedConfig:
    """A backbone in place of one from timm, whose models have fixed sizes."""
    return transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1], layer_type="basic",
        out_indices=list(_value(timm, "out_indices") or [4]),
    )  # fmt: skip


def _shrink_fields(config: PreTrainedConfig, tokens: _Tokens) -> dict[str, Any]:
    plain = type(config)()
    extra = [name for name in vars(config) if name not in vars(plain) and not name.startswith("_")]
    names = _field_names(config) + extra
    grouped = any(re.search(r"key_value_heads|kv_heads", name) for name in names) and "kv_lora_rank" not in names
    factor = _width_factor(config, names)
    small: dict[str, Any] = {}
    for name in names:
        value = _value(config, name)
        value = NONE_RULES.get(name) if value is None else value
        if isinstance(value, PreTrainedConfig):
            small[name] = _resnet(value) if value.model_type == "timm_backbone" else shrink(value, tokens)
        elif TOKEN_NAME.fullmatch(name) and _is_number(value) and value >= VOCAB - 40:
            small[name] = tokens(name)
        elif TOKEN_NAME.fullmatch(name) and isinstance(value, list) and value and _is_number(value[0]):
            small[name] = [tokens(f"{name}{index}") if item >= VOCAB - 40 else item for index, item in enumerate(value)]
        elif _is_number(value) and (size := _rule(name)) is not None:
            size = GROUPED_HEADS if size == HEADS and grouped and "head" in name and "k" not in name else size
            if value > size or name in NONE_RULES or (size == GROUPED_HEADS and grouped):
                small[name] = size
        elif isinstance(value, list | tuple) and (short := _shrink_list(name, value, factor)) is not value:
            small[name] = short
        elif value is not None and name not in small and value != _value(plain, name, value):
            small[name] = value
    if lists := _per_layer_lists(config, names):
        small |= _representative_layers(config, lists)
        small["num_hidden_layers"] = len(small[lists[0]])
    if isinstance(heads := _value(config, "num_heads"), list | tuple) and _is_number(_value(config, "embed_dim")):
        small["embed_dim"] = 8 * heads[0]  # the width of the first stage, which doubles in each further one
    return small | _backbone_stages(config, plain, small)


def _backbone_stages(config: PreTrainedConfig, plain: PreTrainedConfig, small: Mapping[str, Any]) -> dict[str, Any]:
    """As many layers as a backbone has to give hidden states of."""
    indices = _value(config, "out_indices")
    if not indices or indices == _value(plain, "out_indices"):
        return {}
    if not _is_number(_value(config, "num_hidden_layers")):
        return {"out_indices": list(indices)}
    count = max(len(indices), LAYERS)
    return {"num_hidden_layers": count, "out_indices": list(range(1 + count - len(indices), 1 + count))}


def _head_dim(small: Mapping[str, Any], config: PreTrainedConfig) -> int:
    explicit = small.get("head_dim", small.get("qk_rope_head_dim"))
    if explicit:
        return explicit
    heads = small.get("num_attention_heads", _value(config, "num_attention_heads")) or HEADS
    hidden = small.get("hidden_size", _value(config, "hidden_size")) or HIDDEN
    return hidden // heads if _is_number(heads) and _is_number(hidden) else HEAD_DIM


def _merge(small: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply overrides; a dict for a sub-configuration changes only the attributes it names."""
    for name, value in changes.items():
        old = small.get(name)
        if isinstance(old, PreTrainedConfig) and isinstance(value, dict):
            small[name] = type(old)(**_merge(_arguments(old), value))
        else:
            small[name] = value
    return small


def _arguments(config: PreTrainedConfig) -> dict[str, Any]:
    return {name: value for name in _field_names(config) if (value := _value(config, name)) is not None}


def shrink(config: PreTrainedConfig, tokens: _Tokens) -> PreTrainedConfig:
    """A tiny configuration of the same class."""
    small = _shrink_fields(config, tokens)
    small = _merge(small, OVERRIDES.get(config.model_type, {}))
    if "rope_parameters" not in OVERRIDES.get(config.model_type, {}):
        rope = _value(config, "rope_parameters")
        if (
            isinstance(rope, dict)
            and (fitted := _shrink_rope(rope, _head_dim(small, config), bool(MULTIMODAL_ROPE.match(config.model_type))))
            != rope
        ):
            small["rope_parameters"] = fitted
    return type(config)(**small)


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The tiny configuration of a model type."""
    return shrink(CONFIG_MAPPING[model_type](), _Tokens())


# ---------------------------------------------------------------------------------------------------------
# Classes
# ---------------------------------------------------------------------------------------------------------

# Heads in order of preference: the ones whose forward exercises everything come first.
TASKS = [
    "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM",
    "CAUSAL_LM",
    "CTC", "RNNT", "TDT", "TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM", "ZERO_SHOT_OBJECT_DETECTION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION",
    "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION", "TIME_SERIES_PREDICTION", "VISUAL_QUESTION_ANSWERING", "PRETRAINING",
    "QUESTION_ANSWERING", "SEQUENCE_CLASSIFICATION",
]  # fmt: skip


def _mappings() -> dict[str, Mapping[str, Any]]:
    """The auto mappings from model type to class name(s), preferred tasks first, the base model last."""
    suffix = "_MAPPING_NAMES"
    found = {
        name.removesuffix(suffix).removeprefix("MODEL_FOR_"): getattr(modeling_auto, name)
        for name in vars(modeling_auto)
        if name.startswith("MODEL_") and name.endswith(suffix)
    }
    base = found.pop("MODEL")
    order = sorted(found, key=lambda task: TASKS.index(task) if task in TASKS else len(TASKS))
    return {task: found[task] for task in order} | {"MODEL": base}


def _auto_classes(model_type: str) -> Iterator[type[PreTrainedModel]]:
    for mapping in _mappings().values():
        names = mapping.get(model_type, ())
        for name in (names,) if isinstance(names, str) else names:
            if (cls := getattr(transformers, name, None)) is not None:
                yield cls


def _own_classes(config_class: type[PreTrainedConfig]) -> Iterator[type[PreTrainedModel]]:
    """Model classes of the configuration's package which are made for exactly this configuration class."""
    name = config_class.__module__.replace(".configuration_", ".modeling_")
    try:
        module = importlib.import_module(name)
    except ImportError:
        return
    for cls in vars(module).values():
        if (
            inspect.isclass(cls)
            and issubclass(cls, PreTrainedModel)
            and cls.__module__ == name
            and cls.config_class is config_class
            and not cls.__name__.endswith("PreTrainedModel")
        ):
            yield cls


def _made_for(cls: type[PreTrainedModel], config_class: type[PreTrainedConfig]) -> bool:
    try:
        return issubclass(config_class, cls.config_class or ())
    except ImportError:  # a placeholder for a class whose package is missing refuses every access
        return False


def _classes(model_type: str) -> list[type[PreTrainedModel]]:
    """The classes of a model type, in order of preference."""
    config_class = CONFIG_MAPPING[model_type]
    auto = sorted(_auto_classes(model_type), key=lambda cls: not _made_for(cls, config_class))
    own = sorted(_own_classes(config_class), key=lambda cls: (cls.__name__.endswith("Model"), "For" in cls.__name__))
    return list(dict.fromkeys(auto or reversed(own)))


def model_types() -> list[str]:
    """Every model type of the installed transformers that has a model class, sorted."""
    return sorted(name for name in CONFIG_MAPPING_NAMES if _classes(name))


# ---------------------------------------------------------------------------------------------------------
# Inputs
# ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """One of the possible shapes of images and of audio features, with or without an attention mask."""

    image: str
    audio: str
    mask: bool


class _Inputs:
    """Makes the inputs of a model from the names of its forward parameters."""

    def __init__(self, model: PreTrainedModel, layout: _Layout) -> None:
        self.model = model
        self.config = model.config
        self.layout = layout
        self.generator = torch.Generator().manual_seed(1)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def find(self, name: str, *towers: str) -> Any:
        """An attribute of the configuration or else of a sub-configuration, the named ones first."""
        return _find(self.config, name, towers)

    def tokens(self, length: int) -> Tensor:
        vocab = self.find("vocab_size", "text_config", "decoder") or VOCAB
        special = _special_ids(self.config)
        allowed = torch.tensor([i for i in range(FIRST_TEXT_ID, min(vocab, VOCAB)) if i not in special])
        picks = torch.randint(len(allowed), (BATCH, length), generator=self.generator)
        return allowed[picks]

    def image_side(self) -> int:
        names = ("image_size", "input_size")
        sizes = [size for name in names if (size := self.find(name, "vision_config", "backbone_config"))]
        size = sizes[0] if sizes else 2 * IMAGE
        return size if _is_number(size) else max(size)

    def pixel_values(self) -> Tensor:
        channels = self.find("num_channels", "vision_config") or self.find("in_channels", "vision_config")
        channels = channels if _is_number(channels) else 3
        side = self.image_side()
        patch = self.find("patch_size", "vision_config")
        patch = patch if _is_number(patch) else PATCH
        frames = self.find("temporal_patch_size", "vision_config") or 1
        count = int(self.grid().prod(-1).sum())
        shapes = {
            "patches": (count, channels * frames * patch * patch),
            "still patches": (count, channels * patch * patch),
            "double patches": (count, channels * 2 * patch * patch),
            "patch images": (count, channels, patch, patch),
            "patch lists": (BATCH, count // BATCH, channels * frames * patch * patch),
            "patch image lists": (1, count, channels, patch, patch),
            "pairs": (BATCH, 2, channels, side, side),
            "videos": (BATCH * 4, channels, side, side),
            "image": (BATCH, channels, side, side),
            "images": (BATCH, 1, channels, side, side),
            "frames": (BATCH, self.find("num_frames", "vision_config") or 4, channels, side, side),
            "tiles": (BATCH, 1, 1, channels, side, side),
        }
        return self.randn(*shapes[self.layout.image])

    def grid(self) -> Tensor:
        return torch.tensor([[1, 4, 4]] * BATCH)

    def features(self) -> Tensor:
        names = ("num_mel_bins", "input_feat_size", "input_dim", "feature_size", "input_feat_per_channel")
        mels = next((size for name in names if (size := self.find(name, "audio_config", "encoder_config"))), MELS)
        shape = (self.frames(), mels) if self.layout.audio == "time" else (mels, self.frames())
        return self.randn(BATCH, *shape)

    def frames(self) -> int:
        positions = self.find("max_source_positions", "audio_config")
        return 2 * positions if positions else 64

    def waveform(self) -> Tensor:
        length = 2000
        return self.randn(BATCH, length) if self.layout.audio == "time" else self.randn(BATCH, 1, length)

    def build(self) -> dict[str, Any]:
        """All recognised inputs; placeholders for images and audio go into the text."""
        parameters = inspect.signature(self.model.forward).parameters
        inputs = {name: make(self) for name, make in MAKERS.items() if name in parameters}
        inputs |= {
            name: make(self)
            for name, make in REQUIRED.items()
            if name in parameters and parameters[name].default is inspect.Parameter.empty
        }
        for name, make in INPUTS.get(self.config.model_type, {}).items():
            inputs.pop(name, None)
            if make is not None:
                inputs[name] = make(self)
        if not self.layout.mask:
            inputs.pop("attention_mask", None)
        if "input_ids" in inputs:
            inputs["input_ids"] = self._with_placeholders(inputs)
            if "attention_mask" in inputs:
                inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if "mm_token_type_ids" in parameters:
                image = _token_id(self.config, "image")
                inputs["mm_token_type_ids"] = (inputs["input_ids"] == image).long()
        return inputs

    def _with_placeholders(self, inputs: dict[str, Any]) -> Tensor:
        ids = inputs["input_ids"]
        for kind, source in (
            ("image", "pixel_values"),
            ("video", "pixel_values"),
            ("audio", "input_features"),
        ):
            token = _token_id(self.config, kind)
            if (
                token is None
                or source not in inputs
                or bool((ids == token).any())
                or (kind == "video" and _token_id(self.config, "image") is not None)
            ):
                continue
            count = self._feature_count(kind, inputs) // BATCH
            placeholders = torch.full((BATCH, count), token)
            ids = torch.cat([ids[:, :3], placeholders, ids[:, 3:]], dim=1)
        return ids

    def _feature_count(self, kind: str, inputs: dict[str, Any]) -> int:
        """How many embeddings the images or sounds become, for which the text needs as many placeholders."""
        methods = [
            method
            for module in self.model.modules()
            if (method := getattr(module, f"get_{kind}_features", None)) is not None
        ]
        if not methods:
            return 0
        names = {name for method in methods for name in inspect.signature(method).parameters}
        names -= {"input_ids", "attention_mask"}
        with torch.no_grad():
            features = methods[0](**{name: value for name, value in inputs.items() if name in names})
        pooled = getattr(features, "pooler_output", features)
        pooled = features.last_hidden_state if pooled is None else pooled
        tensors = [pooled] if isinstance(pooled, Tensor) else list(pooled)
        return sum(t.numel() // t.shape[-1] for t in tensors)


def _find(config: Any, name: str, towers: tuple[str, ...]) -> Any:
    if (value := _value(config, name)) is not None:
        return value
    subs = {key: sub for key, sub in vars(config).items() if isinstance(sub, PreTrainedConfig)}
    for key in sorted(subs, key=lambda key: key not in towers):
        if (value := _find(subs[key], name, towers)) is not None:
            return value
    return None


def _special_ids(config: PreTrainedConfig) -> set[int]:
    found: set[int] = set()
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            found |= _special_ids(value)
        elif TOKEN_NAME.fullmatch(name):
            found |= {item for item in (value if isinstance(value, list) else [value]) if _is_number(item)}
    return found


def _token_id(config: PreTrainedConfig, kind: str) -> int | None:
    names = (f"{kind}_token_id", f"{kind}_token_index", f"{kind}_token")
    return next((value for name in names if _is_number(value := _find(config, name, ()))), None)


# Optional parameters that are always given when forward has them.
MAKERS: dict[str, Callable[[_Inputs], Any]] = {
    "input_ids": lambda i: i.tokens(TEXT),
    "attention_mask": lambda i: torch.ones(BATCH, TEXT, dtype=torch.long),
    "decoder_input_ids": lambda i: i.tokens(DECODER_TEXT),
    "pixel_values": lambda i: i.pixel_values(),
    "image_grid_thw": lambda i: i.grid(),
    "grid_thw": lambda i: i.grid(),
    "image_sizes": lambda i: torch.tensor([[i.image_side()] * 2] * BATCH),
    "input_features": lambda i: i.features(),
    "input_features_mask": lambda i: torch.ones(BATCH, i.frames(), dtype=torch.long),
    "feature_attention_mask": lambda i: torch.ones(BATCH, i.frames(), dtype=torch.long),
    "input_values": lambda i: i.waveform(),
    "past_values": lambda i: i.randn(BATCH, i.find("context_length") or 32, i.find("num_input_channels") or 1),
    "bbox": lambda i: torch.tensor([1, 2, 5, 9]).expand(BATCH, TEXT, 4).contiguous(),
}
# Parameters that are given only when forward has no default for them.
REQUIRED: dict[str, Callable[[_Inputs], Any]] = {
    "pixel_values_videos": lambda i: i.pixel_values(),
    "hidden_states": lambda i: i.pixel_values(),
    "inputs_embeds": lambda i: i.randn(BATCH, TEXT, HIDDEN),
    "encoder_hidden_states": lambda i: i.randn(BATCH, TEXT, HIDDEN),
    "query_embeds": lambda i: i.randn(BATCH, 6, HIDDEN),
    "qformer_input_ids": lambda i: i.tokens(DECODER_TEXT),
    "spectrogram": lambda i: i.randn(BATCH, 20, i.config.model_in_dim),
    "image": lambda i: i.pixel_values(),
    "merge_sizes": lambda i: torch.ones(BATCH, dtype=torch.long),
    "spatial_shapes": lambda i: i.grid()[:, 1:],
    "pixel_attention_mask": lambda i: torch.ones(BATCH, 16, dtype=torch.long),
    "pixel_position_ids": lambda i: torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(BATCH, 16, 2),
    "audio_mel": lambda i: i.randn(BATCH, 64, i.config.input_feat_size),
    "audio_mel_mask": lambda i: torch.zeros(BATCH, 64, dtype=torch.bool),
    "context": lambda i: i.randn(BATCH, 16, HIDDEN),
    "mask": lambda i: None,
    "prompt_pixel_values": lambda i: i.pixel_values(),
    "prompt_masks": lambda i: i.pixel_values(),
    "image_features": lambda i: i.randn(BATCH, 16, HIDDEN),
}


def _series(length: int, *sizes: int) -> Callable[[_Inputs], Tensor]:
    return lambda i: i.randn(BATCH, length, *sizes)


_FORECAST: dict[str, Callable[[_Inputs], Any] | None] = {
    "past_values": _series(12),
    "past_time_features": _series(12, 1),
    "past_observed_mask": lambda i: torch.ones(BATCH, 12),
    "future_values": _series(4),
    "future_time_features": _series(4, 1),
}
_SPATIAL: dict[str, Callable[[_Inputs], Any] | None] = {
    "spatial_shapes": lambda i: i.grid()[:, 1:],
    "pixel_attention_mask": lambda i: torch.ones(BATCH, 16, dtype=torch.long),
}
_TEXT_ONLY: dict[str, Callable[[_Inputs], Any] | None] = dict.fromkeys(
    ("pixel_values", "input_features", "input_features_mask", "image_grid_thw", "image_sizes")
)
_HIDDEN_STATES: dict[str, Callable[[_Inputs], Any] | None] = {"hidden_states": _series(TEXT, HIDDEN)}


def _flattened_patches(i: _Inputs) -> Tensor:
    positions = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).expand(BATCH, 16, 2)
    return torch.cat([positions, i.randn(BATCH, 16, HIDDEN)], dim=-1)


def _codes(length: int, books: int) -> Callable[[_Inputs], Tensor]:
    return lambda i: i.tokens(length * books).reshape(BATCH, length, books) % 30


def _packed_image(i: _Inputs) -> Tensor:
    return i.randn(1, 3, PATCH, PATCH * 16 * BATCH)


_PACKED: dict[str, Callable[[_Inputs], Any] | None] = {
    "pixel_values": _packed_image, "target_sizes": lambda i: i.grid()[:, 1:],
}  # fmt: skip
_PACKED_SOUND: dict[str, Callable[[_Inputs], Any] | None] = {
    "input_features": lambda i: i.randn(MELS, 64), "feature_lens": lambda i: torch.tensor([32, 32]),
    "attention_mask": None,
}  # fmt: skip


def _with_sounds(i: _Inputs) -> Tensor:
    """Text with a placeholder for every fourth frame, for a model that has no method to count them."""
    sound = torch.full((BATCH, i.frames() // 4), _token_id(i.config, "audio") or 0)
    return torch.cat([i.tokens(3), sound, i.tokens(4)], dim=1)


def _image_mask(i: _Inputs) -> Tensor:
    return torch.tensor([[0, 1, 1, 1, 1, 1, 1]] * BATCH)


# Inputs that the names of the parameters do not tell, by model type; None leaves one out.
INPUTS: dict[str, dict[str, Callable[[_Inputs], Any] | None]] = {
    **_each(["autoformer", "informer", "time_series_transformer"], _FORECAST),
    **_each(["siglip2", "siglip2_vision_model", "lfm2_vl"], _SPATIAL),
    **_each(["gemma4", "gemma4_unified", "embedding_gemma2", "glm_image"], _TEXT_ONLY),
    **_each(["flava_multimodal_model"], _HIDDEN_STATES),
    **_each(
        [
            "minicpm_ocr_vision",
            "minicpmv4_6_vision",
            "minicpmv4_7_vision",
            "minicpm_ocr",
            "minicpmv4_6",
            "minicpmv4_7",
        ],
        _PACKED,
    ),
    **_each(["qwen2_5_omni_audio_encoder"], _PACKED_SOUND),
    **_each(["clap", "clap_audio_model"], {"input_features": lambda i: i.randn(BATCH, 1, 512, 32)}),
    **_each(
        ["granite_speech5_ctc", "granite_speech5_encoder"],
        {"input_features": _series(64, 4 * MELS), "attention_mask": None},
    ),
    **_each(["fun_asr_nano", "fun_asr_nano_encoder"], {"input_features": _series(64, 7 * MELS)}),
    **_each(["mimi_decoder", "pocket_tts_audio_tokenizer_decoder"], {"latents": _series(HIDDEN, 8)}),
    "blip_2_qformer": {"encoder_hidden_states": _series(16, HIDDEN)},
    "blt": {"use_cache": lambda i: False},
    "blt_local_encoder": {
        "patch_ids": lambda i: torch.arange(TEXT).expand(BATCH, TEXT) // 3,
        "num_patches": lambda i: 3,
        "attention_mask": None,
    },
    "blt_local_decoder": {"inputs_embeds": _series(TEXT, HIDDEN), "input_ids": None, "attention_mask": None},
    "csm": {"input_values": None},
    "csm_depth_decoder_model": {"input_ids": lambda i: i.tokens(3), "attention_mask": None},
    "depth_pro": {"pixel_values": lambda i: i.randn(BATCH, 3, 128, 128)},
    "gemma4_audio": {"input_features": _series(64, 128), "attention_mask": None},
    "kosmos_2_5_vision_model": {"flattened_patches": _flattened_patches, "attention_mask": None},
    "kyutai_speech_to_text": {"input_values": None, "input_ids": _codes(TEXT, 4)},
    "moss_transcribe_diarize": {"padding_mask": lambda i: torch.ones(BATCH, i.frames(), dtype=torch.long)},
    "perceiver": {"inputs": lambda i: i.tokens(TEXT), "input_ids": None},
    "phi4_multimodal_audio": {"hidden_states": _series(64, 32), "mask": lambda i: None},
    "pi0": {
        "pixel_attention_mask": lambda i: torch.ones(BATCH, 1, dtype=torch.bool),
        "state": lambda i: i.randn(BATCH, i.config.max_state_dim),
        "actions": lambda i: i.randn(BATCH, i.config.chunk_size, i.config.max_action_dim),
        "timestep": lambda i: i.randn(BATCH).sigmoid(),
    },
    "pp_ocrv5_mobile_rec": {"pixel_values": lambda i: i.randn(BATCH, 3, 48, 160)},
    "qwen3_omni_moe_talker_code_predictor": {"input_ids": None, "inputs_embeds": _series(TEXT, HIDDEN)},
    **_each(["timesfm", "timesfm2_5"], {"past_values": _series(64)}),
    **_each(
        ["granite_speech", "granite_speech_plus"],
        {"input_features_mask": lambda i: torch.ones(BATCH, 15, dtype=torch.bool)},
    ),
    **_each(["granite_speech_encoder", "granite_speech_plus_encoder"], {"hidden_states": _series(64, HIDDEN)}),
    "musicgen": {"decoder_input_ids": lambda i: i.tokens(15).reshape(-1, 5), "input_values": None},
    "musicgen_melody": {
        "decoder_input_ids": lambda i: i.tokens(15).reshape(-1, 5),
        "input_features": _series(64, 12),
    },
    "qwen2_5_omni_bigvgan": {"mel_spectrogram": lambda i: i.randn(BATCH, i.config.mel_dim, 12)},
    "qwen3_omni_moe_thinker": {
        "input_features": lambda i: i.randn(BATCH, MELS, 200),
        "feature_attention_mask": lambda i: torch.ones(BATCH, 200, dtype=torch.long),
    },
    "qwen3_omni_moe_audio_encoder": {
        "input_features": lambda i: i.randn(MELS, 200),
        "attention_mask": None,
        "feature_lens": lambda i: torch.tensor([100, 100]),
    },
    "seggpt": _each(["pixel_values", "prompt_pixel_values", "prompt_masks"], lambda i: i.randn(BATCH, 3, IMAGE, IMAGE)),
    "muse_spark_audio": {"input_values": _series(3840)},
    **_each(["muse_spark", "vibevoice"], {"input_values": None}),
    "vibevoice_asr": {"input_values": _series(1, 6400)},
    **_each(
        ["musicgen_decoder", "musicgen_melody_decoder"],
        {"input_ids": lambda i: i.tokens(3 * TEXT).reshape(-1, TEXT), "attention_mask": None},
    ),
    "audio-spectrogram-transformer": {"input_values": lambda i: i.randn(BATCH, i.config.max_length, MELS)},
    "decision_transformer": {
        "states": lambda i: i.randn(BATCH, TEXT, i.config.state_dim),
        "actions": lambda i: i.randn(BATCH, TEXT, i.config.act_dim),
        "returns_to_go": _series(TEXT, 1),
        "timesteps": lambda i: torch.arange(TEXT).expand(BATCH, TEXT),
    },
    "deepseek_vl_hybrid": {"high_res_pixel_values": lambda i: i.randn(BATCH, 3, IMAGE, IMAGE)},
    "dia": {"decoder_input_ids": lambda i: i.tokens(5 * 9).reshape(BATCH, 5, 9)},
    "idefics": {"image_attention_mask": lambda i: torch.ones(BATCH, TEXT, 1, dtype=torch.long)},
    "kosmos-2": {"image_embeds_position_mask": _image_mask},
    "llava": {"image_sizes": None},
    "lxmert": {
        "visual_feats": lambda i: i.randn(BATCH, 5, i.config.visual_feat_dim),
        "visual_pos": lambda i: i.randn(BATCH, 5, 4).sigmoid(),
    },
    "kosmos-2.5": {"flattened_patches": _flattened_patches, "image_embeds_position_mask": _image_mask},
    "mllama": {
        "aspect_ratio_ids": lambda i: torch.ones(BATCH, 1, dtype=torch.long),
        "aspect_ratio_mask": lambda i: torch.ones(BATCH, 1, 4, dtype=torch.long),
        "cross_attention_mask": lambda i: torch.ones(BATCH, TEXT, 1, 4, dtype=torch.long),
        "pixel_values": lambda i: i.randn(BATCH, 1, 4, 3, IMAGE, IMAGE),
    },
    "mllama_vision_model": {
        "aspect_ratio_ids": lambda i: torch.ones(BATCH, 1, dtype=torch.long),
        "aspect_ratio_mask": lambda i: torch.ones(BATCH, 1, 4, dtype=torch.long),
        "pixel_values": lambda i: i.randn(BATCH, 1, 4, 3, IMAGE, IMAGE),
    },
    "moshi_depth": {
        "last_hidden_state": lambda i: i.randn(BATCH, 3, i.config.input_size),
        "input_ids": lambda i: i.tokens(3),
        "attention_mask": None,
    },
    "pix2struct": {"flattened_patches": _flattened_patches, "input_ids": None, "attention_mask": None},
    "pix2struct_vision_model": {"flattened_patches": _flattened_patches, "pixel_values": None},
    "pop2piano": {"input_features": _series(12, HIDDEN), "input_ids": None, "attention_mask": None},
    "rag": {
        "context_input_ids": lambda i: i.tokens(2 * TEXT).reshape(-1, TEXT),
        "context_attention_mask": lambda i: torch.ones(2 * BATCH, TEXT, dtype=torch.long),
        "doc_scores": lambda i: i.randn(BATCH, 2),
        "n_docs": lambda i: 2,
    },
    "speech-encoder-decoder": {"input_features": None, "attention_mask": None},
    **_each(
        ["vibevoice_acoustic_tokenizer"],
        {"input_values": _series(1, 6400), "padding_mask": lambda i: torch.ones(BATCH, 6400)},
    ),
    "qwen2_audio": {"input_ids": _with_sounds, "attention_mask": None},
    **_each(["vibevoice_acoustic_tokenizer_encoder"], {"hidden_states": _series(1, 6400)}),
    **_each(
        ["vibevoice_acoustic_tokenizer_decoder"],
        {"hidden_states": lambda i: i.randn(BATCH, i.config.hidden_size, 4)},
    ),
    "t5gemma2_decoder": {"encoder_hidden_states": _series(TEXT, HIDDEN)},
    "voxtral_realtime_text": {"t_cond": _series(1, HIDDEN)},
    "video_llama_3": {"image_merge_sizes": lambda i: torch.ones(BATCH, dtype=torch.long)},
    "voxtral_realtime": {"input_features": lambda i: i.randn(BATCH, MELS, 8 * TEXT)},
}


def _layouts(model: PreTrainedModel) -> list[_Layout]:
    """The layouts worth trying, from the parameters of forward."""
    names = set(inspect.signature(model.forward).parameters)
    images = ["image"]
    if names & {"image_grid_thw", "grid_thw"}:
        images = [
            "patches",
            "still patches",
            "double patches",
            "patch images",
            "patch lists",
            "patch image lists",
        ]
    elif names & {"pixel_values", "pixel_values_videos"}:
        images = ["image", "images", "pairs", "frames", "tiles", "patch lists", "videos", "still patches"]
    audio = ["mels", "time"] if names & {"input_features", "input_values"} else ["mels"]
    return [_Layout(image, sound, mask) for mask, image, sound in itertools.product((True, False), images, audio)]


# ---------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------


STDS = (0.15, None, 0.05, 0.02)
CONTENT = {
    "input_ids",
    "context_input_ids",
    "pixel_values",
    "pixel_values_videos",
    "input_values",
    "input_features",
    "past_values",
}


def _randomise(model: nn.Module, std: float | None) -> None:
    """Give every parameter a value that matters, also the ones which start at zero (gates, layer scales).

    Without std, weights are scaled by the number of their inputs, so that signals keep their size.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (std or 1.4 * (parameter.shape[0] / parameter.numel()) ** 0.5))
            else:
                parameter.add_(0.05 * noise)


def _instantiate(cls: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in cls(config).parameters())
    if count > MAX_PARAMETERS:
        raise CannotBuild(f"{cls.__name__} has {count / 1e6:.0f}M parameters even when it is shrunk")
    torch.manual_seed(0)
    return cls(config).float().eval()


def _influences(model: nn.Module, inputs: Mapping[str, Any], vector: Tensor) -> list[bool]:
    """For each of the inputs that carry content, whether the output depends on it."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for name, value in inputs.items():
        if name in CONTENT and isinstance(value, Tensor):
            noise = torch.randn(value.shape, generator=generator)
            other = value + noise if value.is_floating_point() else value.flip(0)
            changed = output(model, {**inputs, name: other})
            found.append(changed.shape != vector.shape or float((changed - vector).abs().max()) > 1e-4)
    return found


def _try(cls: type[PreTrainedModel], model_type: str) -> Tiny:
    """The model with the first layout of inputs that its forward takes."""
    model = _instantiate(cls, tiny_config(model_type))
    state = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    errors: list[Exception] = []
    for layout in _layouts(model):
        found: tuple[float | None, dict[str, Any]] | None = None
        for std in STDS:
            model.load_state_dict(state, strict=False)
            _randomise(model, std)
            try:
                inputs = _Inputs(model, layout).build()
                vector = output(model, inputs)
            except Exception as error:
                errors.append(error)
                break
            if not vector.numel() or not bool(torch.isfinite(vector).all()):
                errors.append(CannotBuild("the output is empty or not finite"))
                continue
            influences = _influences(model, inputs, vector)
            if all(influences) and float(vector.abs().max()) < 1e4:
                return Tiny(model, inputs)
            if any(influences) or not influences:
                found = found or (std, inputs)
            else:
                errors.append(CannotBuild("the output does not depend on the input with random weights"))
        if found is not None:  # large values, or an input that this forward ignores
            model.load_state_dict(state, strict=False)
            _randomise(model, found[0])
            return Tiny(model, found[1])
    raise errors[0]


def build(model_type: str) -> Tiny:
    """A tiny random model of the type, whose forward has run once on the inputs."""
    classes = _classes(model_type)
    if not classes:
        raise CannotBuild("there is no model class for this type")
    errors: list[Exception] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cls in classes:
            try:
                return _try(cls, model_type)
            except Exception as error:
                errors.append(error)
    raise CannotBuild(_sentence(errors[0])) from errors[0]


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()).split(". ")[0][:200]
    return text if isinstance(error, CannotBuild) else f"{type(error).__name__}: {text}"


def _tensors(value: Any) -> Iterator[Tensor]:
    """All floating tensors of an output in order, without caches and what is recorded per head or per layer."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not re.search(r"past_key_values|cache|attentions|(?<!last_)hidden_states|^mems$|^state$", str(name)):
                yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def output(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """All floating tensors that forward returns, as one vector; the same for the same weights and inputs."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some forwards sample noise
        tensors = [tensor.reshape(-1).float() for tensor in _tensors(model(**inputs))]
    vector = torch.cat(tensors) if tensors else torch.empty(0)
    return vector[vector > torch.finfo(vector.dtype).min]  # the value (or -inf) with which logits are masked


def main(names: list[str]) -> int:
    """Build the named types or all of them, one line each."""
    torch.set_num_threads(1)
    built = 0
    types = names or model_types()
    for name in types:
        start = time.perf_counter()
        try:
            tiny = build(name)
        except CannotBuild as error:
            print(f"{name}: cannot: {error}", flush=True)
            continue
        count = sum(parameter.numel() for parameter in tiny.model.parameters())
        seconds = time.perf_counter() - start
        print(f"{name}: ok {type(tiny.model).__name__} {count} {seconds:.1f}s", flush=True)
        built += 1
    print(f"{built} of {len(types)} model types built")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
