"""Count the tokens that stand for an image of a size, as the processors of transformers count them.

    python tokens.py > tokens.json

For each family the file has the config.json of its usual model, as far as images are concerned, and
the tokens of images of some sizes, in pixels: what _get_num_multimodal_tokens of its processor
returns, with the settings that the published models have in their preprocessor_config.json.
"""

import json
import os
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers
from transformers.image_utils import SizeDict
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.glm4v.image_processing_glm4v import Glm4vImageProcessor
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.llama4.image_processing_llama4 import find_supported_resolutions, get_best_fit
from transformers.models.llama4.processing_llama4 import Llama4Processor
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.phi4_multimodal.image_processing_phi4_multimodal import Phi4MultimodalImageProcessor
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

SIZES = [(1024, 1024), (640, 480), (1920, 1080), (100, 70), (333, 1777), (3000, 2000), (64, 64)]
ONEVISION = [[384 * h, 384 * w] for h in range(1, 7) for w in range(1, 7)]


def asked(cls, **fields):
    """The numbers of a processor that has these fields and nothing else."""
    of = SimpleNamespace(**fields)
    of._merge_kwargs = lambda **kwargs: {"images_kwargs": fields.get("images_kwargs", {}), "text_kwargs": {}}
    for name in ("_get_number_of_features", "_get_unpadded_features"):
        if hasattr(cls, name):
            setattr(of, name, getattr(cls, name).__get__(of))
    return [cls._get_num_multimodal_tokens(of, image_sizes=[[h, w]])["num_image_tokens"][0] for w, h in SIZES]


def tiler(cls, **fields):
    of = SimpleNamespace(**fields)
    of.get_number_of_image_patches = lambda h, w, kwargs=None: cls.get_number_of_image_patches(of, h, w, kwargs or {})
    return of


def llama4(side, each):
    """All tokens of the text that Llama 4's processor writes for an image, which it has no function to count."""
    grids = torch.tensor(find_supported_resolutions(16, SizeDict(height=side, width=side)))
    best = [get_best_fit((h, w), grids) for w, h in SIZES]
    return [Llama4Processor._prompt_split_image(None, (int(h) // side, int(w) // side), each).count("<|") for h, w in best]


def phi4():
    """All tokens of an image, which Phi-4's processor of images counts when it has cut the image."""
    return [int(Phi4MultimodalImageProcessor()([torch.zeros(3, h, w, dtype=torch.uint8)])["num_img_tokens"][0]) for w, h in SIZES]


def main():
    clip, siglip = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}, {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, "vision_use_head": False}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    next_sizes = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    models = {
        "llava_next": ({"image_grid_pinpoints": next_sizes, "vision_config": {**sizes, **clip}, "text_config": {"model_type": "llama"}},
            asked(LlavaNextProcessor, patch_size=14, num_additional_image_tokens=1, vision_feature_select_strategy="default", image_processor=SimpleNamespace(size={"shortest_edge": 336}, image_grid_pinpoints=next_sizes))),
        "llava_onevision": ({"image_grid_pinpoints": ONEVISION, "vision_aspect_ratio": "anyres_max_9", "vision_config": {**sizes, **siglip}, "text_config": {"model_type": "qwen2"}},
            asked(LlavaOnevisionProcessor, num_image_tokens=729, vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_9", image_processor=SimpleNamespace(size={"height": 384, "width": 384}, image_grid_pinpoints=ONEVISION))),
        "mistral3": ({"spatial_merge_size": 2, "vision_config": {**sizes, "model_type": "pixtral", "image_size": 1540, "patch_size": 14, "head_dim": 16}, "text_config": {"model_type": "mistral"}},
            asked(PixtralProcessor, patch_size=14, spatial_merge_size=2, image_processor=SimpleNamespace(size={"longest_edge": 1540}))),
        "qwen2_vl": ({"vision_config": {"embed_dim": 64, "hidden_size": 64, "depth": 2, "num_heads": 4, "patch_size": 14}, "text_config": {"model_type": "qwen2_vl_text"}},
            asked(Qwen2VLProcessor, image_processor=tiler(Qwen2VLImageProcessor, size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, patch_size=14, merge_size=2, temporal_patch_size=2))),
        "qwen3_vl": ({"vision_config": {"hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "depth": 2, "num_heads": 4, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}, "text_config": {"model_type": "qwen3_vl_text", "head_dim": 16}},
            asked(Qwen3VLProcessor, image_processor=tiler(Qwen2VLImageProcessor, size={"shortest_edge": 1 << 16, "longest_edge": 1 << 24}, patch_size=16, merge_size=2, temporal_patch_size=2))),
        "glm4v": ({"vision_config": {"hidden_size": 64, "out_hidden_size": 64, "intermediate_size": 96, "depth": 2, "num_heads": 4, "patch_size": 14, "image_size": 336}, "text_config": {"model_type": "glm4v_text", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}},
            asked(Glm4vProcessor, image_processor=tiler(Glm4vImageProcessor, size=Glm4vImageProcessor.size, patch_size=14, merge_size=2, temporal_patch_size=2))),
        "gemma4": ({"vision_config": {**sizes, "num_key_value_heads": 4, "head_dim": 16, "position_embedding_size": 10240}, "text_config": {"model_type": "gemma4_text"}, "audio_config": None},
            asked(Gemma4Processor, images_kwargs={"patch_size": 16, "pooling_kernel_size": 3, "max_soft_tokens": 280}, image_processor=SimpleNamespace())),
        "llama4": ({"vision_config": {**sizes, "intermediate_size": 256, "image_size": 336, "patch_size": 14, "projector_input_dim": 96, "projector_output_dim": 96, "vision_output_dim": 96}, "text_config": {"model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 2, "interleave_moe_layer_step": 2}}, llama4(336, 144)),
        "idefics3": ({"scale_factor": 2, "vision_config": {**sizes, "model_type": "idefics3_vision", "image_size": 364, "patch_size": 14}, "text_config": {"model_type": "llama"}},
            asked(Idefics3Processor, image_seq_len=169, tokenizer=lambda *a, **k: {"input_ids": [0]}, image_processor=tiler(Idefics3ImageProcessor, do_image_splitting=True, max_image_size={"longest_edge": 364}, size={"longest_edge": 4 * 364}))),
        "internvl": ({"vision_config": {**sizes, "model_type": "internvl_vision", "image_size": [448, 448], "patch_size": [14, 14]}, "text_config": {"model_type": "qwen2"}},
            asked(InternVLProcessor, image_seq_length=256, image_processor=tiler(GotOcr2ImageProcessor, min_patches=1, max_patches=12, crop_to_patches=True, size=SimpleNamespace(height=448, width=448)))),
    }
    whole = {"phi4_multimodal": ({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "vision_config": {**sizes, "image_size": 448, "crop_size": 448, "patch_size": 14}, "audio_config": {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 2, "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 8}}, phi4())}
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}
    rows = []
    for name, (config, tokens) in (models | whole).items():
        config = {"model_type": name, **config}
        if name not in whole:  # else the text's settings stand among all others
            config["text_config"] = {**text, **config["text_config"]}
        rows.append(f"{json.dumps(name)}: {json.dumps({'config': config, 'tokens': [[w, h, n] for (w, h), n in zip(SIZES, tokens)]})}")
    print(f'{{"transformers": {json.dumps(transformers.__version__)},\n' + ",\n".join(rows) + "\n}")


if __name__ == "__main__":
    main()
