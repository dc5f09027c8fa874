"""Measure what PyTorch keeps for small models of each family, for the tests of package checkpoint.

    python families.py families.json [family ...] > measured.json && mv measured.json families.json

families_GROUP.json have further models, a group of families each.

The file has the config.json of each model. The model is built of it by transformers without
trained weights, and beside it are written its number of parameters, the bytes that autograd
keeps for the backward pass (unique storages seen by saved-tensor hooks on the CPU, without
parameters and buffers), and the most memory alive at once in a training step on two threads.
oneDNN's workspaces grow with the threads. Families that are named are measured again, without
names all are; ordinary.json has models of ordinary sizes. With --trace the tensors that are kept are printed by module instead.
A model with "checkpointed", a pattern of its blocks' paths, checkpoints them, and what the checkpoints hold for the second run counts too: tensors in
their closures, which no hook sees.
A model with "labels" is given labels, so that transformers computes the loss of its class, and the step begins its backward pass there.
"""

import gc
import json
import math
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import prompts
import torch
import transformers
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

BATCH = 2
torch.set_num_threads(2)


def build(config, dtype):
    cls = getattr(transformers, config["architectures"][0])
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
    torch.manual_seed(0)
    config_class = transformers.CONFIG_MAPPING[config["model_type"]] if config["model_type"] in transformers.CONFIG_MAPPING else cls.config_class
    return cls._from_config(config_class(**known), dtype=dtype)  # Llama's class also runs EXAONE


def images_in_prompt(model, dtype, text, images, size):
    """The images of each text, as the model's processor would make them, and the tokens that stand for them.

    The number of these tokens is that of the vectors that the model makes of the images."""
    c, v = model.config, model.config.vision_config
    total = BATCH * images
    given = (in_patches if v.model_type == "pixtral" else PIXELS.get(c.model_type, whole_image))(c, v, total, *size, dtype)
    token = next(getattr(c, k) for k in ("image_token_id", "image_token_index") if hasattr(c, k))
    with torch.no_grad():
        made = (model.model if hasattr(model, "model") else model).get_image_features(**given, return_dict=True)
    made = made.last_hidden_state if made.pooler_output is None else made.pooler_output
    made = sum(x.numel() // x.shape[-1] for x in (made if isinstance(made, (list, tuple)) else [made])) // BATCH
    each = made // images
    for i in range(images):  # text stands between them
        text["input_ids"][:, 1 + i * (each + 1) : (i + 1) * (each + 1)] = token
    if c.model_type.startswith(("qwen", "glm4v")):
        text["mm_token_type_ids"] = (text["input_ids"] == token).int()
    if c.model_type in ("gemma3", "paligemma"):
        text["token_type_ids"] = (text["input_ids"] == token).long() if c.model_type == "gemma3" else torch.zeros_like(text["input_ids"])
    return {**text, **given}


def whole_image(c, v, total, width, height, dtype):
    return {"pixel_values": torch.randn(total, 3, v.image_size, v.image_size, dtype=dtype)}


def in_patches(c, v, total, width, height, dtype):
    """Pixtral: the longer side is at most that of the encoder's images, and both sides are whole patches."""
    square = v.patch_size * getattr(c, "spatial_merge_size", 1)
    ratio = max(max(width, height) / v.image_size, 1)
    width, height = (math.ceil(math.floor(side / ratio) / square) * square for side in (width, height))
    return {"pixel_values": torch.randn(total, 3, height, width, dtype=dtype), "image_sizes": torch.tensor([[height, width]] * total)}


def in_tiles(c, v, total, width, height, dtype):
    """LLaVA-NeXT and LLaVA-OneVision: the whole image and tiles of it."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    several = c.model_type == "llava_onevision" and total > BATCH
    tiles = 1 if several else image_size_to_num_patches([height, width], c.image_grid_pinpoints, v.image_size)
    given = {"pixel_values": torch.randn(total, tiles, 3, v.image_size, v.image_size, dtype=dtype), "image_sizes": torch.tensor([[height, width]] * total)}
    return {**given, "batch_num_images": torch.tensor([total // BATCH] * BATCH)} if several else given


def split(c, v, total, width, height, dtype):
    """Idefics 3 and SmolVLM: the longer side becomes four tiles, which go before the whole image."""
    from types import SimpleNamespace

    from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor

    usual = SimpleNamespace(do_image_splitting=True, max_image_size=None, size=None)
    tiles, _, _ = Idefics3ImageProcessor.get_number_of_image_patches(
        usual, height, width, {"do_image_splitting": True, "max_image_size": {"longest_edge": v.image_size}, "size": {"longest_edge": 4 * v.image_size}})
    return {"pixel_values": torch.randn(BATCH, total // BATCH * max(tiles, 1), 3, v.image_size, v.image_size, dtype=dtype)}


def in_canvas(c, v, total, width, height, dtype):
    """InternVL: up to twelve tiles, and the whole image if there are several."""
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

    columns, rows = get_optimal_tiled_canvas((height, width), tuple(v.image_size), 1, 12)
    tiles = columns * rows + (columns * rows > 1)
    return {"pixel_values": torch.randn(total * tiles, 3, *v.image_size, dtype=dtype)}


def in_grid(c, v, total, width, height, dtype):
    """Llama 4: the grid of tiles that fits best, and the whole image if there are several."""
    from transformers.image_utils import SizeDict
    from transformers.models.llama4.image_processing_llama4 import find_supported_resolutions, get_best_fit

    side = v.image_size
    high, wide = get_best_fit((height, width), torch.tensor(find_supported_resolutions(16, SizeDict(height=side, width=side))))
    tiles = int(high // side * (wide // side))
    return {"pixel_values": torch.randn(total * (tiles + (tiles > 1)), 3, side, side, dtype=dtype)}


def packed(c, v, total, width, height, dtype):
    """Qwen's models and GLM-4V: patches of two frames, in whole merged squares."""
    from transformers.models.glm4v.image_processing_glm4v import smart_resize as glm_resize
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    square = v.patch_size * v.spatial_merge_size
    if c.model_type == "glm4v":
        height, width = glm_resize(2, height, width, 2, square, 112 * 112, 14 * 14 * 2 * 2 * 2 * 6144)
    else:  # the bounds that the published models have in their preprocessor_config.json
        height, width = smart_resize(height, width, square, *((56 * 56, 28 * 28 * 1280) if c.model_type.startswith("qwen2") else (1 << 16, 1 << 24)))
    rows, columns = height // v.patch_size, width // v.patch_size
    patch = v.in_channels * v.temporal_patch_size * v.patch_size**2
    return {"pixel_values": torch.randn(total * rows * columns, patch, dtype=dtype), "image_grid_thw": torch.tensor([[1, rows, columns]] * total)}


# What the processors of other families give their models.
PIXELS = {"llama4": in_grid, **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v"), packed), "idefics3": split, "smolvlm": split, "internvl": in_canvas, "mistral3": in_patches, "llava_next": in_tiles, "llava_onevision": in_tiles}


def inputs(model, dtype, length, images=0, size=(1024, 1024), **sounds):
    """Text, images or sounds, by what the model's forward takes first; text with images if there are any."""
    c = model.config
    if (images or sounds) and c.model_type in prompts.BESIDE:
        return prompts.given(c, BATCH, length, dtype, images, size, **sounds)
    if images:
        numbers = torch.arange(BATCH * length).reshape(BATCH, length) % 7 + 8
        return images_in_prompt(model, dtype, {"input_ids": numbers}, images, size)
    numbers = torch.arange(BATCH * length).reshape(BATCH, length) % 7 + 8
    text = {"input_ids": numbers}
    if c.get_text_config().is_encoder_decoder and c.model_type != "whisper":
        return {**text, "decoder_input_ids": numbers.clone()}
    if c.model_type == "whisper":
        return {"input_features": torch.randn(BATCH, c.num_mel_bins, 2 * c.max_source_positions, dtype=dtype), "decoder_input_ids": numbers.clone()}
    if c.model_type == "qwen2_audio_encoder":
        return {"input_features": torch.randn(BATCH, c.num_mel_bins, 2 * c.max_source_positions, dtype=dtype)}
    if model.main_input_name == "input_values":
        return {"input_values": torch.randn(BATCH, length, dtype=dtype)}
    if c.model_type in ("siglip2", "siglip2_vision_model"):
        v = getattr(c, "vision_config", c)
        side = int(v.num_patches**0.5)
        mask = torch.ones(BATCH, v.num_patches, dtype=torch.long)
        mask[:, (side - 1) * side:] = 0  # of the rows of patches the last is padding
        patches = {"pixel_values": torch.randn(BATCH, v.num_patches, v.num_channels * v.patch_size**2, dtype=dtype), "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[side - 1, side]] * BATCH)}
        return {**text, **patches} if type(model).__name__ == "Siglip2Model" else patches
    if c.model_type in ("clip", "siglip"):
        side = c.vision_config.image_size
        return {**text, "pixel_values": torch.randn(BATCH, 3, side, side, dtype=dtype)}
    if model.main_input_name == "pixel_values" and "text_config" not in c.to_dict():
        return {"pixel_values": torch.randn(BATCH, c.num_channels, c.image_size, c.image_size, dtype=dtype)}
    return text


def forward(model, inputs):
    kwargs = dict(inputs)
    if model.config.model_type == "blip-2":  # no image runs through its tower here, and it will not go without one
        model = model.language_model
    if "use_cache" in model.config.get_text_config().to_dict() and "decoder_input_ids" not in kwargs:
        kwargs["use_cache"] = False
    return model(**kwargs, **({"use_cache": False} if "decoder_input_ids" in kwargs else {}))


def choices(model, given):
    """The texts as choices of one question."""
    return {k: v[None] for k, v in given.items()} if type(model).__name__.endswith("ForMultipleChoice") else given


def labels(model, given):
    """What the model's class is given for its loss, beside the inputs."""
    name = type(model).__name__
    text = given.get("decoder_input_ids", given.get("input_ids"))
    classes = torch.arange(BATCH) % model.config.num_labels
    if name.endswith("ForQuestionAnswering"):
        return {"start_positions": torch.ones(BATCH, dtype=torch.long), "end_positions": torch.full((BATCH,), 2)}
    if name.endswith("ForTokenClassification"):
        return {"labels": text % model.config.num_labels}
    if name == "ElectraForPreTraining":
        return {"labels": text % 2}
    if name.endswith("ForCTC"):
        letters = max(1, int(0.3 * model._get_feat_extract_output_lengths(given["input_values"].shape[1])))  # LettersOfStep
        return {"labels": torch.arange(letters * BATCH).reshape(BATCH, letters) % 7 + 1}
    if name.endswith("Classification") or name.endswith("ForNextSentencePrediction"):
        if model.config.problem_type == "multi_label_classification":
            return {"labels": torch.ones(BATCH, model.config.num_labels, dtype=model.dtype)}
        return {"labels": classes.to(model.dtype) if model.config.num_labels == 1 else classes}
    if name.endswith("ForMultipleChoice"):
        return {"labels": torch.tensor([0])}
    if name.endswith("ForMaskedImageModeling"):
        side = getattr(model.config, "image_size") // getattr(model.config, "patch_size")
        masked = {"bool_masked_pos": (torch.arange(side * side) < side * side * 2 // 5).repeat(BATCH, 1)}
        if name.startswith("Beit"):  # predicts tokens of the masked patches
            masked["labels"] = torch.arange(int(masked["bool_masked_pos"].sum())) % model.config.vocab_size
        return masked
    if name in ("BertForPreTraining", "AlbertForPreTraining"):
        return {"labels": text.clone(), "sentence_order_label" if name.startswith("Albert") else "next_sentence_label": classes}
    return {"labels": text.clone()}


def storage(t):
    return t.untyped_storage()


def kept(model, dtype, given, trace=False):
    """The bytes of unique storages that autograd keeps, parameters and buffers left out."""
    own = {storage(t).data_ptr() for t in [*model.parameters(), *model.buffers()]}
    seen, held, stack = {}, [], [""]
    if trace:
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda m, i, name=name: stack.append(name))
            module.register_forward_hook(lambda m, i, o: stack.pop() and None)

    def pack(t):
        s = storage(t)
        if s.data_ptr() not in own and s.nbytes():
            if trace:
                print(f"{stack[-1]:60} {'     ' if s.data_ptr() in seen else s.nbytes():>8} {t.dtype} {tuple(t.shape)}")
            seen[s.data_ptr()] = s.nbytes()
            held.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = forward(model, given)
    total = sum(seen.values())
    del out
    return total


class Made(TorchDispatchMode):
    """The storages that operations make."""

    def __init__(self):
        super().__init__()
        self.storages = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(t, torch.Tensor) and storage(t).nbytes():
                self.storages[storage(t)._cdata] = (StorageWeakRef(storage(t)), storage(t).data_ptr(), storage(t).nbytes())
        return result


def held(model, given):
    """What kept counts, and beside it what else lives after the forward pass, the output left out."""
    own = {storage(t).data_ptr() for t in [*model.parameters(), *model.buffers()]}
    seen = {}

    def pack(t):
        if storage(t).data_ptr() not in own:
            seen[storage(t).data_ptr()] = storage(t).nbytes()
        return t

    made = Made()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), made:
        out = forward(model, given)
    logits = next(getattr(out, name) for name in OUTPUTS if getattr(out, name, None) is not None)
    del out
    gc.collect()
    for ref, address, size in made.storages.values():
        if not ref.expired() and address not in own and address != storage(logits).data_ptr():
            seen[address] = size
    return sum(seen.values())


PROMPT = ("images", "size", "sounds", "seconds")  # of each text
OUTPUTS = ("logits", "logits_per_image", "reconstruction", "pooler_output", "last_hidden_state")


def output(model, inputs):
    out = forward(model, inputs)
    for name in OUTPUTS:
        if getattr(out, name, None) is not None:
            return getattr(out, name)


def peak(step):
    """The most bytes alive at once above the beginning, by the profiler's record."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        prof.export_chrome_trace(path)
        with open(path) as f:
            events = json.load(f)["traceEvents"]
    live = top = 0
    for e in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        live += e["args"]["Bytes"]
        top = max(top, live)
    return top


def training_peak(model, dtype, given):
    """That of a step with Adam beyond weights, states and input; the output and its gradient are held."""
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step():
        if {"labels", "start_positions", "bool_masked_pos"} & given.keys():
            out = forward(model, given)
            out.loss.backward()
        else:
            out = output(model, given)
            out.backward(torch.ones_like(out))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()  # makes the states
    return peak(step)


def measure(config, length, images, labelled=False, checkpointed=False):
    # What is not defaulted by transformers would be random: dropout's masks count as well.
    model = build(config, torch.float32)
    result = {"params": sum(p.numel() for p in model.parameters()), "kept": {}, "peak": {}}
    for dtype in (torch.float32, torch.bfloat16):
        model = build(config, dtype).train()
        name = str(dtype).removeprefix("torch.")
        given = inputs(model, dtype, length, **images)
        if labelled:
            given = {**choices(model, given), **labels(model, given)}
        if checkpointed:
            model.gradient_checkpointing_enable()
        result["kept"][name] = held(model, given) if checkpointed else kept(model, dtype, given)
        result["peak"][name] = training_peak(model, dtype, given)
    return result


def fill_gaps():
    """Llama4ForConditionalGeneration.forward of 5.24.0 reads a field that its text model's output has not."""
    from transformers.models.llama4 import modeling_llama4

    modeling_llama4.MoeCausalLMOutputWithPast.image_outputs = None


def main(args):
    fill_gaps()
    trace = "--trace" in args
    path, *wanted = [a for a in args if not a.startswith("--")]
    with open(path) as f:
        models = json.load(f)
    models.pop("transformers", None), models.pop("torch", None)
    for name, model in models.items():
        if wanted and name not in wanted:
            continue
        config, length = model["config"], model.get("length", 32)
        images = {k: model[k] for k in PROMPT if k in model}
        labelled = {k: model[k] for k in ("labels", "checkpointed") if model.get(k)}
        if trace:
            dtype = torch.bfloat16 if "--bfloat16" in args else torch.float32
            built = build(config, dtype).train()
            given = inputs(built, dtype, length, **images)
            if "labels" in labelled:
                given = {**choices(built, given), **labels(built, given)}
            print(name, kept(built, dtype, given, True))
            continue
        try:
            models[name] = {"config": config, "length": length, **images, **labelled, **measure(config, length, images, "labels" in labelled, "checkpointed" in labelled)}
        except Exception as e:
            print(name, repr(e), file=sys.stderr, flush=True)
            continue
        print(name, {k: v for k, v in models[name].items() if k not in ("config", "length", *PROMPT, "labels", "checkpointed")}, file=sys.stderr, flush=True)
    if trace:
        return
    # One model to a line keeps changes readable.
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in models.items())
    print(f'{{"torch": {json.dumps(torch.__version__)}, "transformers": {json.dumps(transformers.__version__)},\n{lines}\n}}')


if __name__ == "__main__":
    main(sys.argv[1:])
