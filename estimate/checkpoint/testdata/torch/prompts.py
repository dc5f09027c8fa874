"""What the processors of models with images or sounds in their prompts make of these, for families.py.

Each function returns what the model is given beside its text, and how many tokens of each text stand for one image or sound.
"""

import math

import torch


def mllama(c, v, batch, count, size, length, dtype):
    """Llama 3.2 Vision: as many tiles as there may be, and which of a text's tokens attend to which of them. One token stands for an image."""
    mask = torch.zeros(batch, length, count, v.max_num_tiles, dtype=torch.long)
    for i in range(count):
        mask[:, 1 + 2 * i :, i] = 1
    return {
        "pixel_values": torch.randn(batch, count, v.max_num_tiles, 3, v.image_size, v.image_size, dtype=dtype),
        "aspect_ratio_ids": torch.ones(batch, count, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(batch, count, v.max_num_tiles, dtype=torch.long),
        "cross_attention_mask": mask,
    }, 1


def gemma4(c, v, batch, count, size, length, dtype):
    """Gemma 4: patches, and their places, padded to as many as an image may have."""
    from transformers.models.gemma4.image_processing_gemma4 import get_aspect_ratio_preserving_size

    most = 280 * v.pooling_kernel_size**2
    height, width = get_aspect_ratio_preserving_size(size[1], size[0], v.patch_size, most, v.pooling_kernel_size)
    columns, rows = width // v.patch_size, height // v.patch_size
    places = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), dim=-1).reshape(-1, 2)
    places = torch.nn.functional.pad(places, (0, 0, 0, most - len(places)), value=-1)
    return {
        "pixel_values": torch.rand(batch * count, most, 3 * v.patch_size**2),
        "image_position_ids": places.repeat(batch * count, 1, 1),
    }, columns * rows // v.pooling_kernel_size**2


def qwen2_audio(c, a, batch, count, seconds, length, dtype):
    """Qwen2-Audio: the spectrum of 30 seconds, of which a sound may fill a part; a frame is 160 samples of 16,000 a second."""
    frames = min(math.ceil(seconds * 16_000 / 160), 2 * a.max_source_positions)
    mask = torch.zeros(batch * count, 2 * a.max_source_positions, dtype=torch.int32)
    mask[:, :frames] = 1
    return {
        "input_features": torch.randn(batch * count, a.num_mel_bins, 2 * a.max_source_positions, dtype=dtype),
        "feature_attention_mask": mask,
    }, (((frames - 1) // 2 + 1) - 2) // 2 + 1


def phi4(c, v, batch, count, size, length, dtype):
    """Phi-4 multimodal: the whole image before the tiles of it, which are padded at the right or at the bottom."""
    from transformers.models.phi4_multimodal.image_processing_phi4_multimodal import Phi4MultimodalImageProcessor as Processor

    of = Processor(size={"height": v.crop_size, "width": v.crop_size}, patch_size=v.patch_size)
    made = of([torch.zeros(3, size[1], size[0], dtype=torch.uint8)] * batch * count, return_tensors="pt")
    base = v.image_size // v.patch_size // 2
    seen = made["image_attention_mask"][0, 1:, 0::2, 0::2].sum().item()
    rows = vectors_in_column(made["image_attention_mask"][0, 1:], made["image_sizes"][0].tolist(), v.crop_size)
    del made["num_img_tokens"]  # as many as the usual model has
    made["image_pixel_values"] = torch.randn(made["image_pixel_values"].shape, dtype=dtype)
    return dict(made), int(seen) + rows + 1 + base * (base + 1)


def vectors_in_column(masks, size, side):
    """Of the first column of tiles, the vectors in their first column that are no padding."""
    return sum(int(masks[row * (size[1] // side), 0::2, 0].sum()) for row in range(size[0] // side))


BESIDE = {"mllama": mllama, "gemma4": gemma4, "qwen2_audio": qwen2_audio, "phi4_multimodal": phi4}


def given(c, batch, length, dtype, images=0, size=None, sounds=0, seconds=30):
    """What the model reads with a batch of texts of this length, with this many images or sounds in each."""
    if images:
        of, count, size, key = c.vision_config, images, size, "image"
    else:
        of, count, size, key = c.audio_config, sounds, seconds, "audio"
    beside, each = BESIDE[c.model_type](c, of, batch, count, size, length, dtype)
    token = next(getattr(where, k) for where in (c, of) for k in (f"{key}_token_id", f"{key}_token_index") if hasattr(where, k))
    text = torch.arange(batch * length).reshape(batch, length) % 7 + 8
    for i in range(count):  # text stands between them
        text[:, 1 + i * (each + 1) : (i + 1) * (each + 1)] = token
    if c.model_type == "gemma4":
        beside["mm_token_type_ids"] = (text == token).long()
    return {"input_ids": text, **beside}
