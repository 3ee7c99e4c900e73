"""Tiny random models of many families: the rows of the test-suite's "family x law" tables.

Every row states next to its config what a person reads off that config: how many attention modules of which
type, with how many heads of which width, how many MLPs with how many neurons, how many layers. The finder has
to come to the same result from the model alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import extra
import pytest
import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Attention:
    """All attention modules of a family that look alike."""

    type: str  # "encoder", "decoder" or "cross"
    count: int  # modules
    heads: int
    kv_heads: int
    width: int  # of one head at the input of the output projection: the width of its values


@dataclass(frozen=True)
class Family:
    """One model family: how to make a tiny member of it, and what there is to be found in it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    attentions: tuple[Attention, ...]
    neurons: tuple[tuple[int, int], ...]  # (MLPs, neurons of each); routed experts count where each is a module
    layers: int  # of all stacks together
    generates: bool = False  # has a working model.generate


def build(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Inputs]:
    """Make the model of a family and a batch for it, the same ones each time, and nobody else's."""
    model, inputs = copy.deepcopy(_model(ZOO[name].make)), ZOO[name].inputs()
    floats = {key: value.to(dtype) for key, value in inputs.items() if value.is_floating_point()}
    return model.to(dtype), inputs | floats


@functools.cache
def _model(make: Callable[[], nn.Module]) -> nn.Module:
    """The model that is copied for each test: to make one takes twice as long as to copy it.

    Kept by what makes it and not by its name, under which a test may put a family of its own.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().eval()
        with torch.no_grad():
            # The usual initialisations (std .02, zero biases, unit norms) make tiny models nearly linear, and
            # blind to the loss of a head or of a per-head parameter. Frozen parameters are tables of
            # sinusoids, which no checkpoint holds: they have to stay what a freshly made model has.
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    continue
                if parameter.dim() > 1:
                    parameter.normal_(std=0.15)
                else:
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def output(model: nn.Module, inputs: Inputs) -> Tensor:
    """The tensor that a model is judged by."""
    with torch.no_grad():
        return judged(model(**inputs))


def judged(result: Any) -> Tensor:
    """The one tensor of a model's result that stands for it."""
    if isinstance(result, Tensor):
        return result
    for key in ("logits", "last_hidden_state", "logits_per_image"):
        if getattr(result, key, None) is not None:
            return getattr(result, key)
    raise TypeError(f"no tensor to judge a model by in {type(result).__name__}")


# ---------------------------------------------------------------------------------------------------- inputs

VOCAB = 64
PICTURE_TOKEN = VOCAB  # of models for pictures in texts, whose vocabulary is a little larger


def _tokens(length: int, seed: int = 0) -> Tensor:
    """Random ids of two different texts without the special tokens 0, 1, 2 and the last one."""
    return torch.randint(3, VOCAB - 1, (2, length), generator=torch.Generator().manual_seed(seed))


def _normal(*shape: int) -> Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))


def text() -> Inputs:
    return {"input_ids": _tokens(7)}


def text_with_global_token() -> Inputs:
    return {"input_ids": _tokens(7), "global_attention_mask": torch.tensor([[1, 0, 0, 0, 0, 0, 0]] * 2)}


def text_to_text() -> Inputs:
    return {"input_ids": _tokens(7), "decoder_input_ids": _tokens(5, seed=1)}


def picture() -> Inputs:
    return {"pixel_values": _normal(3, 32, 32)}


def picture_to_hide() -> Inputs:
    """The noise decides which of the 16 patches are hidden; the model would draw it anew at each call."""
    return {"pixel_values": _normal(3, 32, 32), "noise": _normal(16)}


def film() -> Inputs:
    return {"pixel_values": _normal(4, 3, 32, 32)}


def picture_and_text() -> Inputs:
    return {"input_ids": _tokens(7), "pixel_values": _normal(3, 32, 32)}


def picture_to_text() -> Inputs:
    return {"pixel_values": _normal(3, 32, 32), "decoder_input_ids": _tokens(5)}


def picture_in_text() -> Inputs:
    """The 16 patches of a picture come in the place of 16 picture tokens."""
    return {"input_ids": _after_picture_tokens(16), "pixel_values": _normal(3, 32, 32)}


def merged_picture_in_text() -> Inputs:
    """Qwen2-VL takes all patches in one row, as two frames each, and merges four of them into one token."""
    return {
        "input_ids": _after_picture_tokens(4),
        "mm_token_type_ids": (_after_picture_tokens(4) == PICTURE_TOKEN).int(),
        "pixel_values": _normal(16, 3 * 2 * 8 * 8).flatten(0, 1),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
    }


def _after_picture_tokens(count: int) -> Tensor:
    return torch.cat([torch.full((2, count), PICTURE_TOKEN), _tokens(7)], dim=1)


def sound() -> Inputs:
    return {"input_values": _normal(400)}


def sound_to_text() -> Inputs:
    return {"input_values": _normal(400), "decoder_input_ids": _tokens(5)}


def long_sound_to_text() -> Inputs:
    return {"input_values": _normal(1600), "decoder_input_ids": _tokens(5)}


def spectrogram() -> Inputs:
    return {"input_values": _normal(32, 16)}


def spectrogram_to_text() -> Inputs:
    return {"input_features": _normal(8, 40), "decoder_input_ids": _tokens(5)}


def features() -> Inputs:
    return {"inputs": _normal(7, 24)}


def series() -> Inputs:
    return {"past_values": _normal(16, 2)}


# ------------------------------------------------------------------------------------------------------ rows


def enc(count: int, heads: int, kv_heads: int | None = None, width: int = 8) -> Attention:
    return Attention("encoder", count, heads, kv_heads or heads, width)


def dec(count: int, heads: int, kv_heads: int | None = None, width: int = 8) -> Attention:
    return Attention("decoder", count, heads, kv_heads or heads, width)


def cross(count: int, heads: int, kv_heads: int | None = None, width: int = 8) -> Attention:
    return Attention("cross", count, heads, kv_heads or heads, width)


def hf(
    name: str,
    model: str,
    config: dict[str, Any],
    attentions: Iterable[Attention],
    neurons: Iterable[tuple[int, int]],
    layers: int = 2,
    inputs: Callable[[], Inputs] = text,
    generates: bool = False,
) -> Family:
    """A row for a class of transformers, by name: transformers imports a class when it is asked for."""

    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, model)
        return cls(cls.config_class(**copy.deepcopy(config)))  # some configs take what they are given apart

    return Family(name, make, inputs, tuple(attentions), tuple(neurons), layers, generates)


causal = partial(hf, generates=True)
seq2seq = partial(hf, inputs=text_to_text, layers=4, generates=True)
image = partial(hf, inputs=picture)
audio = partial(hf, inputs=sound)

SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
ENCODER = dict(SIZES, vocab_size=VOCAB, max_position_embeddings=40)
DECODER = dict(ENCODER, **SPECIAL)
DISENTANGLED = dict(ENCODER, relative_attention=True, pos_att_type=["c2p", "p2c"])
MODERN = dict(DECODER, local_attention=4, cls_token_id=1, sep_token_id=2)
XLM = dict(vocab_size=VOCAB, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=40)
# Grouped queries, two or four to a group. All heads together are wider than the hidden size, as they are in
# many a model with a head_dim of its own; SQUARE is for configs that have no head_dim.
GQA = dict(DECODER, num_attention_heads=8, num_key_value_heads=4, head_dim=8)
GQA4 = dict(GQA, num_key_value_heads=2)
SQUARE = dict(DECODER, hidden_size=64, num_attention_heads=8, num_key_value_heads=4)
SQUARE4 = dict(SQUARE, num_key_value_heads=2)
ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4))  # where the default is a long context
SLIDING = dict(sliding_window=4, layer_types=["sliding_attention", "full_attention"])
# The default way to run experts, grouped_mm, knows no float64.
EXPERTS = dict(num_experts_per_tok=2, experts_implementation="eager")
LATENT = dict(kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4)
DEEPSEEK = dict(DECODER, **LATENT, **EXPERTS, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
                moe_intermediate_size=16, first_k_dense_replace=1)  # fmt: skip
GPT = dict(SPECIAL, vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=40)
FALCON = dict(DECODER, ffn_hidden_size=48)
SEQ2SEQ = dict(SPECIAL, vocab_size=VOCAB, d_model=32, max_position_embeddings=40, decoder_start_token_id=1,
               encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48,
               decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48)  # fmt: skip
T5 = dict(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
VISION = dict(SIZES, image_size=32, patch_size=8)
WINDOWS = dict(image_size=32, patch_size=4, embed_dim=32, depths=[2, 2], num_heads=[4, 8], window_size=4,
               mlp_ratio=1.5)  # fmt: skip
PYRAMID = dict(num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 32], num_attention_heads=[2, 4])
SOUND = dict(ENCODER, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
             num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)  # fmt: skip
ENC_DEC = (enc(2, 4), dec(2, 4), cross(2, 4))

TEXT_ENCODERS = [
    hf("bert", "BertForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("roberta", "RobertaForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("roberta-prelayernorm", "RobertaPreLayerNormForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("camembert", "CamembertForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("xlm-roberta", "XLMRobertaForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("xlm-roberta-xl", "XLMRobertaXLForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("electra", "ElectraForMaskedLM", dict(ENCODER, embedding_size=16), [enc(2, 4)], [(2, 48)]),
    # One layer, used twice.
    hf("albert", "AlbertForMaskedLM", dict(ENCODER, embedding_size=16), [enc(1, 4)], [(1, 48)], layers=1),
    hf("distilbert", "DistilBertForMaskedLM",
       dict(vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=48), [enc(2, 4)], [(2, 48)]),
    hf("mpnet", "MPNetForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("ernie", "ErnieForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("megatron-bert", "MegatronBertForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("rembert", "RemBertForMaskedLM", dict(DECODER, input_embedding_size=16, output_embedding_size=24),
       [enc(2, 4)], [(2, 48)]),
    hf("deberta", "DebertaForMaskedLM", DISENTANGLED, [enc(2, 4)], [(2, 48)]),
    hf("deberta-v2", "DebertaV2ForMaskedLM", DISENTANGLED, [enc(2, 4)], [(2, 48)]),
    hf("modernbert", "ModernBertForMaskedLM", MODERN, [enc(2, 4)], [(2, 48)]),
    hf("nomic_bert", "NomicBertForMaskedLM", ENCODER, [enc(2, 4)], [(2, 48)]),
    hf("eurobert", "EuroBertForMaskedLM", dict(SQUARE, mask_token_id=3), [enc(2, 8, 4)], [(2, 48)]),
    hf("esm", "EsmForMaskedLM",
       dict(ENCODER, pad_token_id=0, mask_token_id=1, position_embedding_type="rotary"),
       [enc(2, 4)], [(2, 48)]),
    hf("roformer", "RoFormerForMaskedLM", dict(ENCODER, rotary_value=True), [enc(2, 4)], [(2, 48)]),
    hf("nystromformer", "NystromformerForMaskedLM",
       dict(ENCODER, num_landmarks=7, segment_means_seq_len=7, conv_kernel_size=3), [enc(2, 4)], [(2, 48)]),
    # Calls the forward of its layers, not the layers: they are none in the sense of the other rows.
    hf("squeezebert", "SqueezeBertForMaskedLM", dict(ENCODER, embedding_size=32), [enc(2, 4)], [(2, 48)], layers=0),
    hf("longformer", "LongformerForMaskedLM", dict(ENCODER, attention_window=4), [enc(2, 4)], [(2, 48)],
       inputs=text_with_global_token),
    hf("big_bird", "BigBirdForMaskedLM", dict(DECODER, sep_token_id=2, attention_type="original_full"),
       [enc(2, 4)], [(2, 48)]),
    # A list of attentions and a list of MLPs side by side: no element of either is a layer.
    hf("xlm", "XLMWithLMHeadModel", XLM, [enc(2, 4)], [(2, 128)], layers=0),
    hf("flaubert", "FlaubertWithLMHeadModel", XLM, [enc(2, 4)], [(2, 128)], layers=0),
]  # fmt: skip

DECODERS = [
    causal("gpt2", "GPT2LMHeadModel", dict(GPT, n_inner=48), [dec(2, 4)], [(2, 48)]),
    causal("openai-gpt", "OpenAIGPTLMHeadModel", GPT, [dec(2, 4)], [(2, 128)]),
    causal("ctrl", "CTRLLMHeadModel", dict(GPT, dff=48), [dec(2, 4)], [(2, 48)]),
    causal("gpt_neo", "GPTNeoForCausalLM", dict(
        SPECIAL, vocab_size=VOCAB, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48,
        attention_types=[[["global", "local"], 1]], window_size=4, max_position_embeddings=40),
        [dec(2, 4)], [(2, 48)]),
    causal("gptj", "GPTJForCausalLM", dict(GPT, n_inner=48, rotary_dim=4), [dec(2, 4)], [(2, 48)]),
    causal("codegen", "CodeGenForCausalLM", dict(GPT, n_inner=48, rotary_dim=4), [dec(2, 4)], [(2, 48)]),
    causal("gpt_neox", "GPTNeoXForCausalLM", DECODER, [dec(2, 4)], [(2, 48)]),
    causal("gpt_bigcode", "GPTBigCodeForCausalLM", dict(GPT, n_inner=48), [dec(2, 4, 1)], [(2, 48)]),
    causal("gpt_bigcode-mha", "GPTBigCodeForCausalLM", dict(GPT, n_inner=48, multi_query=False),
           [dec(2, 4)], [(2, 48)]),
    causal("opt", "OPTForCausalLM", dict(DECODER, ffn_dim=48, word_embed_proj_dim=16),
           [dec(2, 4)], [(2, 48)]),
    causal("biogpt", "BioGptForCausalLM", DECODER, [dec(2, 4)], [(2, 48)]),
    causal("bloom", "BloomForCausalLM", dict(SPECIAL, vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4),
           [dec(2, 4)], [(2, 128)]),
    causal("mpt", "MptForCausalLM",
           dict(SPECIAL, vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=40),
           [dec(2, 4)], [(2, 128)]),
    causal("falcon", "FalconForCausalLM", dict(FALCON, multi_query=False, alibi=True),
           [dec(2, 4)], [(2, 48)]),
    causal("falcon-mqa", "FalconForCausalLM", FALCON, [dec(2, 4, 1)], [(2, 48)]),
    causal("falcon-gqa", "FalconForCausalLM", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2),
           [dec(2, 4, 2)], [(2, 48)]),
    causal("llama", "LlamaForCausalLM", GQA, [dec(2, 8, 4)], [(2, 48)]),
    causal("mistral", "MistralForCausalLM", GQA4, [dec(2, 8, 2)], [(2, 48)]),
    causal("ministral", "MinistralForCausalLM", dict(GQA, **SLIDING), [dec(2, 8, 4)], [(2, 48)]),
    causal("qwen2", "Qwen2ForCausalLM", SQUARE, [dec(2, 8, 4)], [(2, 48)]),
    causal("qwen3", "Qwen3ForCausalLM", GQA4, [dec(2, 8, 2)], [(2, 48)]),
    # The query projection of each head gives a gate for that head's output, too.
    causal("qwen3_next", "Qwen3NextForCausalLM",
           dict(GQA, layer_types=["full_attention"] * 2, mlp_only_layers=[0, 1]), [dec(2, 8, 4)], [(2, 48)]),
    causal("gemma", "GemmaForCausalLM", dict(GQA, num_key_value_heads=1), [dec(2, 8, 1)], [(2, 48)]),
    causal("gemma2", "Gemma2ForCausalLM", dict(GQA, **SLIDING), [dec(2, 8, 4)], [(2, 48)]),
    causal("gemma3_text", "Gemma3ForCausalLM", dict(GQA4, **SLIDING), [dec(2, 8, 2)], [(2, 48)]),
    causal("phi", "PhiForCausalLM", dict(DECODER, qk_layernorm=True), [dec(2, 4)], [(2, 48)]),
    causal("phi3", "Phi3ForCausalLM", SQUARE4, [dec(2, 8, 2)], [(2, 48)]),
    causal("olmo", "OlmoForCausalLM", dict(SQUARE, clip_qkv=1.0), [dec(2, 8, 4)], [(2, 48)]),
    causal("olmo2", "Olmo2ForCausalLM", SQUARE, [dec(2, 8, 4)], [(2, 48)]),
    causal("olmo3", "Olmo3ForCausalLM", dict(SQUARE4, **SLIDING), [dec(2, 8, 2)], [(2, 48)]),
    # Rotates the positions in the first layer only.
    causal("smollm3", "SmolLM3ForCausalLM", dict(SQUARE, no_rope_layers=[1, 0]), [dec(2, 8, 4)], [(2, 48)]),
    causal("stablelm", "StableLmForCausalLM", dict(SQUARE, qk_layernorm=True), [dec(2, 8, 4)], [(2, 48)]),
    causal("starcoder2", "Starcoder2ForCausalLM", SQUARE4, [dec(2, 8, 2)], [(2, 48)]),
    causal("cohere", "CohereForCausalLM", dict(SQUARE, use_qk_norm=True), [dec(2, 8, 4)], [(2, 48)]),
    causal("cohere2", "Cohere2ForCausalLM", dict(GQA, **SLIDING), [dec(2, 8, 4)], [(2, 48)]),
    causal("granite", "GraniteForCausalLM", dict(SQUARE4, attention_multiplier=0.3),
           [dec(2, 8, 2)], [(2, 48)]),
    causal("nemotron", "NemotronForCausalLM", GQA, [dec(2, 8, 4)], [(2, 48)]),
    causal("glm", "GlmForCausalLM", GQA, [dec(2, 8, 4)], [(2, 48)]),
    causal("glm4", "Glm4ForCausalLM", GQA4, [dec(2, 8, 2)], [(2, 48)]),
    causal("persimmon", "PersimmonForCausalLM", DECODER, [dec(2, 4)], [(2, 48)]),
    causal("exaone4", "Exaone4ForCausalLM", dict(GQA, **SLIDING), [dec(2, 8, 4)], [(2, 48)]),
    causal("helium", "HeliumForCausalLM", dict(SQUARE, head_dim=8), [dec(2, 8, 4)], [(2, 48)]),
    # The first layer is a convolution and has no heads.
    causal("lfm2", "Lfm2ForCausalLM",
           dict(SQUARE, block_auto_adjust_ff_dim=False, layer_types=["conv", "full_attention"]),
           [dec(1, 8, 4)], [(2, 48)]),
    causal("minicpm3", "MiniCPM3ForCausalLM", dict(DECODER, **LATENT, q_lora_rank=12, v_head_dim=8),
           [dec(2, 4)], [(2, 48)]),
    causal("modernbert-decoder", "ModernBertDecoderForCausalLM", MODERN, [dec(2, 4)], [(2, 48)]),
    causal("apertus", "ApertusForCausalLM", dict(SQUARE4, **ROPE), [dec(2, 8, 2)], [(2, 48)]),
    # A norm over all heads together stands between them and their output projection.
    causal("bitnet", "BitNetForCausalLM", SQUARE, [dec(2, 8, 4)], [(2, 48)]),
    causal("bert-generation", "BertGenerationDecoder", dict(DECODER, is_decoder=True),
           [dec(2, 4)], [(2, 48)]),
    causal("imagegpt", "ImageGPTForCausalImageModeling", dict(GPT, n_inner=48), [dec(2, 4)], [(2, 48)]),
    causal("mixtral", "MixtralForCausalLM", dict(GQA, **EXPERTS, num_local_experts=4), [dec(2, 8, 4)], []),
    causal("olmoe", "OlmoeForCausalLM", dict(SQUARE, **EXPERTS, num_experts=4), [dec(2, 8, 4)], []),
    causal("qwen3_moe", "Qwen3MoeForCausalLM",
           dict(GQA, **EXPERTS, num_experts=4, moe_intermediate_size=16, mlp_only_layers=[0]),
           [dec(2, 8, 4)], [(1, 48)]),
    causal("dbrx", "DbrxForCausalLM", dict(
        SPECIAL, vocab_size=VOCAB, d_model=64, n_layers=2, n_heads=8, max_seq_len=40,
        attn_config=dict(kv_n_heads=2, clip_qkv=1.0, rope_theta=1e4),
        ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2)), [dec(2, 8, 2)], []),
    causal("gpt_oss", "GptOssForCausalLM",
           dict(GQA, **EXPERTS, **ROPE, num_local_experts=4, sliding_window=4), [dec(2, 8, 4)], []),
    # The second layer has experts, of which one is shared by all tokens, hence an MLP like any other.
    causal("deepseek_v2", "DeepseekV2ForCausalLM", dict(DEEPSEEK, q_lora_rank=None, v_head_dim=8),
           [dec(2, 4)], [(1, 48), (1, 16)]),
    causal("deepseek_v3", "DeepseekV3ForCausalLM", dict(DEEPSEEK, q_lora_rank=12, v_head_dim=6),
           [dec(2, 4, width=6)], [(1, 48), (1, 16)]),
    # Which query and output projections a head has is up to a router, token by token; all experts have as many
    # query heads as there are kv heads, and a unit is one kv head with its query head in every expert.
    causal("jetmoe", "JetMoeForCausalLM", dict(
        SPECIAL, vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_key_value_heads=4, kv_channels=8,
        intermediate_size=48, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=40),
        [dec(2, 4)], []),
]  # fmt: skip

ENCODER_DECODERS = [
    seq2seq("t5", "T5ForConditionalGeneration", T5, ENC_DEC, [(4, 48)]),
    seq2seq("t5-gated", "T5ForConditionalGeneration", dict(T5, feed_forward_proj="gated-gelu"),
            ENC_DEC, [(4, 48)]),
    # Six heads of width 8 in a model of width 32.
    seq2seq("mt5", "MT5ForConditionalGeneration", dict(T5, num_heads=6, d_ff=40),
            [enc(2, 6), dec(2, 6), cross(2, 6)], [(4, 40)]),
    seq2seq("umt5", "UMT5ForConditionalGeneration", T5, ENC_DEC, [(4, 48)]),
    seq2seq("longt5", "LongT5ForConditionalGeneration", dict(T5, local_radius=3), ENC_DEC, [(4, 48)]),
    seq2seq("t5gemma", "T5GemmaForConditionalGeneration", dict(
        SPECIAL, vocab_size=VOCAB, decoder_start_token_id=1, encoder=dict(GQA, **SLIDING),
        decoder=dict(GQA4, **SLIDING, cross_attention_hidden_size=32)),
        [enc(2, 8, 4), dec(2, 8, 2), cross(2, 8, 2)], [(4, 48)]),
    # Each stack has an MLP in its first layer and four experts, which are modules, in its second.
    seq2seq("switch_transformers", "SwitchTransformersForConditionalGeneration", dict(
        T5, num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=4,
        experts_implementation="eager"), ENC_DEC, [(10, 48)]),
    seq2seq("bart", "BartForConditionalGeneration", SEQ2SEQ, ENC_DEC, [(4, 48)]),
    seq2seq("mbart", "MBartForConditionalGeneration", SEQ2SEQ, ENC_DEC, [(4, 48)]),
    seq2seq("plbart", "PLBartForConditionalGeneration", SEQ2SEQ, ENC_DEC, [(4, 48)]),
    seq2seq("marian", "MarianMTModel", dict(SEQ2SEQ, decoder_attention_heads=8, decoder_ffn_dim=40),
            [enc(2, 4), dec(2, 8, width=4), cross(2, 8, width=4)], [(2, 48), (2, 40)]),
    seq2seq("pegasus", "PegasusForConditionalGeneration", SEQ2SEQ, ENC_DEC, [(4, 48)]),
    seq2seq("m2m_100", "M2M100ForConditionalGeneration", SEQ2SEQ, ENC_DEC, [(4, 48)]),
    seq2seq("blenderbot", "BlenderbotForConditionalGeneration", dict(SEQ2SEQ, decoder_layers=3),
            [enc(2, 4), dec(3, 4), cross(3, 4)], [(5, 48)], layers=5),
    seq2seq("fsmt", "FSMTForConditionalGeneration", dict(SEQ2SEQ, src_vocab_size=VOCAB, tgt_vocab_size=VOCAB),
            ENC_DEC, [(4, 48)]),
    seq2seq("prophetnet", "ProphetNetForConditionalGeneration", dict(
        SPECIAL, vocab_size=VOCAB, hidden_size=32, max_position_embeddings=40, decoder_start_token_id=1,
        num_encoder_layers=2, num_encoder_attention_heads=4, encoder_ffn_dim=48,
        num_decoder_layers=2, num_decoder_attention_heads=4, decoder_ffn_dim=48), ENC_DEC, [(4, 48)]),
    seq2seq("bert2bert", "EncoderDecoderModel", dict(
        SPECIAL, decoder_start_token_id=1, encoder=dict(ENCODER, model_type="bert"),
        decoder=dict(ENCODER, model_type="bert", is_decoder=True, add_cross_attention=True)),
        ENC_DEC, [(4, 48)]),
    seq2seq("vit-gpt2", "VisionEncoderDecoderModel", dict(
        SPECIAL, decoder_start_token_id=1, encoder=dict(VISION, model_type="vit"),
        decoder=dict(GPT, n_inner=48, model_type="gpt2", add_cross_attention=True)),
        ENC_DEC, [(4, 48)], inputs=picture_to_text),
]  # fmt: skip

PICTURES = [
    image("vit", "ViTForImageClassification", VISION, [enc(2, 4)], [(2, 48)]),
    image("deit", "DeiTForImageClassification", VISION, [enc(2, 4)], [(2, 48)]),
    image("beit", "BeitForImageClassification", dict(VISION, use_relative_position_bias=True),
          [enc(2, 4)], [(2, 48)]),
    image("data2vec-vision", "Data2VecVisionForImageClassification",
          dict(VISION, use_shared_relative_position_bias=True), [enc(2, 4)], [(2, 48)]),
    image("dinov2", "Dinov2ForImageClassification", dict(VISION, mlp_ratio=2), [enc(2, 4)], [(2, 64)]),
    image("dinov2_with_registers", "Dinov2WithRegistersForImageClassification",
          dict(VISION, mlp_ratio=2, use_swiglu_ffn=True), [enc(2, 4)], [(2, 48)]),
    image("dinov3_vit", "DINOv3ViTModel", dict(VISION, use_gated_mlp=True, num_register_tokens=2),
          [enc(2, 4)], [(2, 48)]),
    image("ijepa", "IJepaForImageClassification", VISION, [enc(2, 4)], [(2, 48)]),
    image("vit_mae", "ViTMAEModel", dict(VISION, mask_ratio=0.5), [enc(2, 4)], [(2, 48)],
          inputs=picture_to_hide),
    image("vit_msn", "ViTMSNForImageClassification", VISION, [enc(2, 4)], [(2, 48)]),
    image("siglip_vision", "SiglipForImageClassification",
          dict(vision_config=dict(VISION, vision_use_head=False)), [enc(2, 4)], [(2, 48)]),
    image("yolos", "YolosForObjectDetection", dict(VISION, image_size=[32, 32], num_detection_tokens=3),
          [enc(2, 4)], [(2, 48)]),
    image("swin", "SwinForImageClassification", WINDOWS,
          [enc(2, 4), enc(2, 8)], [(2, 48), (2, 96)], layers=4),
    image("swinv2", "Swinv2ForImageClassification", WINDOWS,
          [enc(2, 4), enc(2, 8)], [(2, 48), (2, 96)], layers=4),
    image("segformer", "SegformerForImageClassification", dict(
        PYRAMID, sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[3, 3]),
        [enc(1, 2), enc(1, 4)], [(1, 48), (1, 96)]),
    image("pvt", "PvtForImageClassification", dict(
        PYRAMID, image_size=32, sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2], strides=[4, 2],
        mlp_ratios=[3, 3], num_labels=4), [enc(1, 2), enc(1, 4)], [(1, 48), (1, 96)]),
    image("cvt", "CvtForImageClassification", dict(
        patch_sizes=[7, 3], patch_stride=[4, 2], patch_padding=[2, 1], embed_dim=[16, 32], num_heads=[2, 4],
        depth=[1, 2], mlp_ratio=[3.0, 3.0], qkv_bias=[True, True], cls_token=[False, True],
        qkv_projection_method=["dw_bn", "dw_bn"], kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2],
        padding_q=[1, 1], stride_q=[1, 1], drop_rate=[0.0, 0.0], attention_drop_rate=[0.0, 0.0],
        drop_path_rate=[0.0, 0.0]),
        [enc(1, 2), enc(2, 4)], [(1, 48), (2, 96)], layers=3),
    image("hiera", "HieraForImageClassification", dict(
        image_size=[32, 32], embed_dim=16, depths=[1, 1], num_heads=[2, 4], mlp_ratio=3.0, num_query_pool=1,
        masked_unit_size=[4, 4], masked_unit_attention=[True, False]),
        [enc(1, 2), enc(1, 4)], [(1, 48), (1, 96)]),
    # Attention within windows in the first layer.
    image("sam_vision", "SamVisionModel", dict(
        VISION, mlp_dim=48, output_channels=16, window_size=2, global_attn_indexes=[1]),
        [enc(2, 4)], [(2, 48)]),
    image("videomae", "VideoMAEForVideoClassification", dict(VISION, num_frames=4), [enc(2, 4)], [(2, 48)],
          inputs=film),
    image("vivit", "VivitForVideoClassification", dict(VISION, num_frames=4, tubelet_size=[2, 8, 8]),
          [enc(2, 4)], [(2, 48)], inputs=film),
    # Attention over time, then attention over space, in each layer.
    image("timesformer", "TimesformerForVideoClassification", dict(VISION, num_frames=4),
          [enc(4, 4)], [(2, 48)], inputs=film),
]  # fmt: skip

PICTURES_AND_TEXTS = [
    # The mask of the text tower is causal, but it is an encoder.
    hf("clip", "CLIPModel", dict(text_config=DECODER, vision_config=VISION, projection_dim=16),
       [enc(4, 4)], [(4, 48)], layers=4, inputs=picture_and_text),
    # A learned query pools the picture: one more attention, with an MLP of its own.
    hf("siglip", "SiglipModel", dict(text_config=DECODER, vision_config=VISION),
       [enc(4, 4), cross(1, 4)], [(5, 48)], layers=4, inputs=picture_and_text),
    hf("blip", "BlipForConditionalGeneration", dict(
        text_config=dict(DECODER, encoder_hidden_size=32, sep_token_id=2), vision_config=VISION,
        projection_dim=16),
       ENC_DEC, [(4, 48)], layers=4, inputs=picture_and_text, generates=True),
    hf("llava", "LlavaForConditionalGeneration", dict(
        text_config=dict(GQA, model_type="llama", vocab_size=VOCAB + 1),
        vision_config=dict(VISION, model_type="clip_vision_model"),
        image_token_index=PICTURE_TOKEN, image_seq_length=16, vision_feature_layer=-1),
       [enc(2, 4), dec(2, 8, 4)], [(4, 48)], layers=4, inputs=picture_in_text, generates=True),
    hf("qwen2_vl", "Qwen2VLForConditionalGeneration", dict(
        text_config=dict(SQUARE4, vocab_size=VOCAB + 4, rope_parameters=dict(
            rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 2])),
        vision_config=dict(depth=2, embed_dim=32, hidden_size=64, num_heads=4, mlp_ratio=3, patch_size=8),
        image_token_id=PICTURE_TOKEN, video_token_id=VOCAB + 1, vision_start_token_id=VOCAB + 2,
        vision_end_token_id=VOCAB + 3),
       [enc(2, 4), dec(2, 8, 2)], [(2, 96), (2, 48)], layers=4, inputs=merged_picture_in_text,
       generates=True),
]  # fmt: skip

SOUNDS = [
    audio("wav2vec2", "Wav2Vec2ForCTC", SOUND, [enc(2, 4)], [(2, 48)]),
    audio("hubert", "HubertForCTC", SOUND, [enc(2, 4)], [(2, 48)]),
    audio("wavlm", "WavLMForCTC", SOUND, [enc(2, 4)], [(2, 48)]),
    audio("unispeech", "UniSpeechForCTC", dict(SOUND, num_ctc_classes=VOCAB), [enc(2, 4)], [(2, 48)]),
    # Two MLPs in each layer, one on either side of the attention.
    audio("wav2vec2-conformer", "Wav2Vec2ConformerForCTC", dict(SOUND, conv_depthwise_kernel_size=3),
          [enc(2, 4)], [(4, 48)]),
    audio("audio-spectrogram-transformer", "ASTForAudioClassification",
          dict(SIZES, patch_size=8, frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16),
          [enc(2, 4)], [(2, 48)], inputs=spectrogram),
    seq2seq("whisper", "WhisperForConditionalGeneration", dict(
        SEQ2SEQ, num_mel_bins=8, max_source_positions=20, max_target_positions=20,
        begin_suppress_tokens=None),
        ENC_DEC, [(4, 48)], inputs=spectrogram_to_text),
    seq2seq("moonshine", "MoonshineForConditionalGeneration", dict(
        SPECIAL, vocab_size=VOCAB, hidden_size=32, intermediate_size=48, decoder_start_token_id=1,
        encoder_num_hidden_layers=2, encoder_num_attention_heads=4, encoder_num_key_value_heads=4,
        decoder_num_hidden_layers=2, decoder_num_attention_heads=4, decoder_num_key_value_heads=4),
        ENC_DEC, [(4, 48)], inputs=long_sound_to_text),
    seq2seq("speecht5", "SpeechT5ForSpeechToText", dict(
        SOUND, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_start_token_id=1,
        decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, encoder_max_relative_position=8),
        ENC_DEC, [(4, 48)], inputs=sound_to_text),
]  # fmt: skip

OTHERS = [
    # Latents that attend to the inputs, in a layer that is in no list, then to each other, in two that are in one;
    # queries and keys are half as wide as values.
    hf("perceiver", "PerceiverModel", dict(
        d_model=24, num_latents=5, d_latents=32, num_blocks=1, num_self_attends_per_block=2, qk_channels=16,
        v_channels=32, num_self_attention_heads=4, self_attention_widening_factor=2,
        num_cross_attention_heads=4, cross_attention_widening_factor=2),
       [cross(1, 4), enc(2, 4)], [(3, 64)], inputs=features),
    hf("patchtst", "PatchTSTModel", dict(
        d_model=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, num_input_channels=2,
        context_length=16, patch_length=4, patch_stride=4),
       [enc(2, 4)], [(2, 48)], inputs=series),
]  # fmt: skip


# ---------------------------------------------------------------------------------- rows without transformers

LAYER = dict(d_model=32, nhead=4, dim_feedforward=48)


def _module(name: str) -> ModuleType:
    """Import a module of torchvision or timm, or skip the test that needs it."""
    extra.enable()
    return pytest.importorskip(name)


def torch_encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER, batch_first=True), num_layers=2)


def torch_encoder_seq_first() -> nn.Module:
    layer = nn.TransformerEncoderLayer(**LAYER)
    return nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)


def torch_decoder() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(**LAYER, batch_first=True), num_layers=2)


def torch_transformer() -> nn.Module:
    return nn.Transformer(**LAYER, num_encoder_layers=2, num_decoder_layers=2, batch_first=True)


def torchvision_vit() -> nn.Module:
    cls = _module("torchvision.models").VisionTransformer
    return cls(32, 8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48, num_classes=10)


def torchvision_swin() -> nn.Module:
    cls = _module("torchvision.models").SwinTransformer
    return cls([4, 4], 32, depths=[2, 2], num_heads=[4, 8], window_size=[4, 4], mlp_ratio=1.5, num_classes=10)


def timm_vit() -> nn.Module:
    cls = _module("timm.models.vision_transformer").VisionTransformer
    sizes = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, mlp_ratio=1.5)
    return cls(**sizes, qk_norm=True, num_classes=10)


def timm_swin() -> nn.Module:
    cls = _module("timm.models.swin_transformer").SwinTransformer
    sizes = dict(img_size=32, embed_dim=32, depths=(2, 2), num_heads=(4, 8), window_size=4, mlp_ratio=1.5)
    return cls(**sizes, num_classes=10)


def sequence() -> Inputs:
    return {"src": _normal(7, 32)}


def sequence_first() -> Inputs:
    return {"src": _normal(7, 32).transpose(0, 1)}


def sequence_and_memory() -> Inputs:
    return {"tgt": _normal(5, 32), "memory": _normal(7, 32)}


def two_sequences() -> Inputs:
    return {"src": _normal(7, 32), "tgt": _normal(5, 32)}


def x_picture() -> Inputs:
    return {"x": _normal(3, 32, 32)}


PLAIN = [
    Family("torch-encoder", torch_encoder, sequence, (enc(2, 4),), ((2, 48),), 2),
    Family("torch-encoder-seq-first", torch_encoder_seq_first, sequence_first, (enc(2, 4),), ((2, 48),), 2),
    Family("torch-decoder", torch_decoder, sequence_and_memory, (dec(2, 4), cross(2, 4)), ((2, 48),), 2),
    Family("torch-transformer", torch_transformer, two_sequences, ENC_DEC, ((4, 48),), 4),
    Family("torchvision-vit", torchvision_vit, x_picture, (enc(2, 4),), ((2, 48),), 2),
    Family("torchvision-swin", torchvision_swin, x_picture, (enc(2, 4), enc(2, 8)), ((2, 48), (2, 96)), 4),
    Family("timm-vit", timm_vit, x_picture, (enc(2, 4),), ((2, 48),), 2),
    Family("timm-swin", timm_swin, x_picture, (enc(2, 4), enc(2, 8)), ((2, 48), (2, 96)), 4),
]

ALL = [TEXT_ENCODERS, DECODERS, ENCODER_DECODERS, PICTURES, PICTURES_AND_TEXTS, SOUNDS, OTHERS, PLAIN]
ZOO: dict[str, Family] = {family.name: family for families in ALL for family in families}
