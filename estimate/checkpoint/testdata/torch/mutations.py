"""Count the parameters of transformers' models, with each key of their config.json changed.

    python mutations.py coverage [type ...] > coverage.txt
    python mutations.py mutations [type ...] > mutations.txt

Both write coverage.json.gz and mutations.json.gz beside this file, for the tests of package checkpoint; what is printed
is what could not be built, and why. Types that are named are counted again, and the others stay as they are; without
names all are. Nothing is downloaded, and no model takes memory: each is built on PyTorch's meta device.

coverage.json.gz has the default config of each model_type of transformers' auto mappings, as save_pretrained writes it,
and the number of parameters of each class that a MODEL_..._MAPPING has for the type. A class that cannot be built of
its default config has no number.

mutations.json.gz has one class for each type that package family names, with few blocks. Each scalar key of its config
and of the parts of it is changed in turn, by the constructor of the config class, and so is each entry of lists. A case
has the keys in which the file then differs, and the number of parameters of the model that transformers makes of that
file; where it refuses the file there is no case. Of models that write texts it also has the bytes of keys, values and
states that one text holds after a prompt and the token that follows it, in bfloat16, where the meta device can run the
model and the key may bear on it; tokens is how many there are then.
"""

import copy
import glob
import gzip
import inspect
import json
import os
import re
import signal
import sys
import typing

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto import modeling_auto

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILY = os.path.join(HERE, "../../../internal/family")

# The mappings whose class is changed, the first that has the type.
PREFERRED = [
    "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "CAUSAL_LM", "CTC",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "",
]

# Numbers of blocks, which are few in what is changed.
BLOCKS = {
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers", "depth", "n_head_layer", "num_hidden_groups",
}
FEW = [6, 20]  # the second where the first is too few

# Keys that have nothing to do with the model's sizes in any class of transformers: its files, tokens and outputs.
# Keys on which no cache depends.
CACHELESS = re.compile(r"dropout|eps|initializer|act$|activation|vocab|intermediate|expert|ffn|bias|position|token|rope|coef|scal|pad|logit|mlp|^vision|^audio|norm|drop|image")

# The length of the prompt before what a cache holds is counted; less where the model has fewer learned positions.
PROMPT = 5000

SKIPPED = {
    "_name_or_path", "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id",
    "problem_type", "return_dict", "output_hidden_states", "output_attentions", "tokenizer_class", "task_specific_params",
    "finetuning_task", "quantization_config", "experts_implementation", "attn_implementation", "auto_map", "base_model_tp_plan",
    "base_model_pp_plan", "chunk_size_feed_forward",
}

# What replaces a word, where the class does not say it.
WORDS = {"act": ["relu", "silu", "gelu"], "activation": ["relu", "silu", "gelu"], "activation_function": ["relu", "gelu_new"]}


class Late(Exception):
    pass


def late(*_):
    raise Late("it takes too long")


def build(cls, config):
    """The model of a config, on no memory; it must not take long."""
    signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        with torch.device("meta"):
            return cls(config)
    finally:
        signal.alarm(0)


def written(config, cls):
    """What save_pretrained writes."""
    config.architectures = [cls.__name__]
    return json.loads(config.to_json_string(use_diff=True))


def made(cls, of, text):
    """The model of a file, in bfloat16."""
    config = of.from_dict(of._decode_special_floats(copy.deepcopy(text)))
    if not isinstance(config, cls.config_class):  # as AutoModelForCausalLM does
        config = config.get_text_config()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return build(cls, config)
    finally:
        torch.set_default_dtype(torch.float32)


def count(cls, of, text):
    """The number of parameters of the model that is made of a file, each tied weight once."""
    return made(cls, of, text).num_parameters()


def held(cache):
    """The bytes of a cache's tensors."""
    seen = {}

    def walk(o):
        if torch.is_tensor(o):
            seen[id(o)] = o.numel() * o.element_size()
        elif isinstance(o, (dict, list, tuple)):
            for v in o.values() if isinstance(o, dict) else o:
                walk(v)
        elif type(o).__module__.startswith("transformers.cache_utils"):
            walk(vars(o))

    walk(cache)
    return sum(seen.values())


def cached(model, tokens):
    """The bytes of keys, values and states of one text after a prompt and the token that follows it; None if it has none."""
    if not model.can_generate() or model.config.is_encoder_decoder:
        return None
    try:
        model.eval().set_experts_implementation("batched_mm")  # the usual one looks at the router's numbers
    except Exception:
        pass
    signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5)  # some models loop over the tokens
    try:
        with torch.no_grad(), torch.device("meta"):
            ids = torch.zeros((1, tokens), dtype=torch.long)
            cache = model(input_ids=ids, use_cache=True).past_key_values
            model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)
        return held(cache) or None
    except Exception:
        return None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def mappings():
    """For each type its classes, with the mappings that have them."""
    pairs = {}
    for name, mapping in sorted(vars(modeling_auto).items()):
        if not re.fullmatch(r"MODEL_(FOR_)?(\w+_)?MAPPING_NAMES", name):
            continue
        task = name.removeprefix("MODEL_").removeprefix("FOR_").removesuffix("MAPPING_NAMES").removesuffix("_")
        for kind, classes in mapping.items():
            for cls in classes if isinstance(classes, (tuple, list)) else [classes]:
                pairs.setdefault(kind, {}).setdefault(cls, []).append(task)
    return pairs


def why(e):
    return f"{type(e).__name__}: {str(e).strip()}".splitlines()[0][:160]


def coverage(kind, classes):
    of, row = CONFIG_MAPPING[kind], {"config": None, "classes": {}}
    for name, tasks in sorted(classes.items()):
        params = None
        try:
            cls = getattr(transformers, name)
            text = written(of(), cls)
            if row["config"] is None:
                del text["architectures"]
                row["config"] = text
                text = {**text, "architectures": [name]}
            params = count(cls, of, text)
        except Exception as e:
            print(kind, name, why(e), flush=True)
        row["classes"][name] = {"params": params, "tasks": tasks}
    return row


def named_types():
    """The types that package family names, and those of parts."""
    types = set()
    for path in glob.glob(os.path.join(FAMILY, "**", "*.go"), recursive=True):
        with open(path) as f:
            types |= set(re.findall(r'"([a-zA-Z0-9_-]+)"', f.read()))
    return types


def preferred(classes):
    for task in PREFERRED:
        for name, tasks in classes.items():
            if task in tasks:
                return name
    return sorted(classes)[0]


def flat(text, path=()):
    """The values of a file by their paths."""
    result = {}
    for key, value in text.items():
        if isinstance(value, dict) and value and key not in ("id2label", "label2id"):
            result.update(flat(value, (*path, key)))
        else:
            result["/".join((*path, key))] = value
    return result


def difference(base, text):
    old, new = flat(base), flat(text)
    result = {"set": {k: v for k, v in new.items() if k not in old or old[k] != v or type(old[k]) is not type(v)}}
    if gone := sorted(k for k in old if k not in new):
        result["unset"] = gone
    return result


def parts(config):
    """The configs inside a config, by key."""
    return {k: v for k, v in vars(config).items() if isinstance(v, PreTrainedConfig) and not k.startswith("_")}


def few(cls, most):
    """The arguments that give a config few blocks, by which all others keep their defaults."""
    config = cls()
    arguments = {}
    for key, value in vars(config).items():
        if key in BLOCKS and isinstance(value, int) and value > most:
            arguments[key] = most
    for key, part in parts(config).items():
        if inner := few(type(part), most):
            arguments[key] = {**inner}
    return arguments


def words_of(cls, key):
    """The words with which the code of the model compares a key."""
    try:
        with open(inspect.getfile(cls)) as f:
            source = f.read()
    except (OSError, TypeError):
        return []
    found = re.findall(rf'\b{re.escape(key)}\)? *(?:==|!=|in|not in) *[\[({{]?((?:"[\w. -]+",? ?)+)', source)
    return sorted({w for text in found for w in re.findall(r'"([\w. -]+)"', text)})


def hints(config):
    result = {}
    for base in reversed(type(config).__mro__):
        result.update(getattr(base, "__annotations__", {}))
    return {k: str(v) for k, v in result.items()}


def changed(cls, config, key, value, hint):
    """The values that may replace a value, the likely one first; at most some of them are kept."""
    optional = [None] if "None" in hint else []
    literal = re.findall(r"'([\w. -]+)'", hint.split("Literal", 1)[1]) if "Literal" in hint else []
    if isinstance(value, bool):
        return [[not value]]
    if isinstance(value, int):
        return [[2 * value, value // 2, value + 1] if value > 1 else [1 - value, 2], [value + 1] if value > 3 else [3], optional]
    if isinstance(value, float):
        return [[value / 2, 2 * value] if value else [0.1, 1.0], optional]
    if isinstance(value, str):
        choices = [w for w in [*literal, *words_of(cls, key)] if w != value]
        for end, others in WORDS.items():
            if key.endswith(end):
                choices += [w for w in others if w != value]
        return [[w] for w in choices[:4]]
    if value is None:
        guesses = [[16, 2, 1], [1]] if "int" in hint or hint in ("", "Any") else []
        guesses += [[True]] if "bool" in hint or hint == "" else []
        guesses += [[0.5]] if "float" in hint else []
        return guesses + [[w] for w in [*literal, *words_of(cls, key)][:3]]
    if isinstance(value, (list, tuple)) and value:
        value = list(value)
        if all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return [[[2 * v for v in value], [v + 1 for v in value]], [[2 * value[0], *value[1:]], [value[0] + 1, *value[1:]]], [value[:-1], [*value, value[-1]]]]
        if all(isinstance(v, bool) for v in value):
            return [[[not value[0], *value[1:]]]]
        if all(isinstance(v, str) for v in value):
            others = sorted({*value, *words_of(cls, key), *words_of(cls, "layer_type"), *words_of(cls, "attention_type")})
            return [[[w, *value[1:]], [w] * len(value)] for w in others if w != value[0]][:4]
    return []


def mutations(kind, classes, printed):
    name = preferred(classes)
    cls, of = getattr(transformers, name), CONFIG_MAPPING[kind]
    for arguments in [*(few(of, n) for n in FEW), {}]:
        try:
            base = written(of(**copy.deepcopy(arguments)), cls)
            model = made(cls, of, base)
            params = model.num_parameters()
            break
        except Exception as e:
            if not arguments:
                raise
            printed(kind, name, "few blocks: " + why(e))
    positions = [base.get(k, PROMPT) for k in ("n_positions", "max_position_embeddings") if "rope_parameters" not in base]
    tokens = min([PROMPT, *(p - 1 for p in positions)])
    cache = cached(model, tokens)
    cases, seen = [], {json.dumps(base, sort_keys=True)}

    def attempt(path, value, direct=False):
        """Builds with one key changed; direct changes the file in place of the constructor's arguments."""
        given = copy.deepcopy(base if direct else arguments)
        at = given
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = value
        try:
            text = given if direct else written(of(**given), cls)
            if (mark := json.dumps(text, sort_keys=True)) in seen:
                return None
            model = made(cls, of, text)
            n = model.num_parameters()
        except Exception as e:
            return why(e)
        seen.add(mark)
        case = {"key": "/".join(path), **difference(base, text), **({} if n == params else {"params": n})}
        if cache and not all(CACHELESS.search(k) for k in case["set"]):
            case["cache"] = cached(model, tokens)
        cases.append(case)
        return None

    def walk(config, path):
        known = hints(config)
        inner = parts(config)
        for key, value in config.to_dict().items():
            if key in SKIPPED or key.startswith("_") or key.endswith("_token_id") or key in inner:
                continue
            if isinstance(value, dict):
                for sub, v in value.items():
                    if isinstance(v, (bool, int, float)):
                        for choices in changed(cls, config, sub, v, ""):
                            for choice in choices:
                                if not attempt((*path, key, sub), choice, True):
                                    break
                continue
            built, wrong, whole = len(cases), None, "/".join((*path, key))
            for choices in changed(cls, config, key, value, known.get(key, "")):
                for choice in choices:
                    if reason := attempt((*path, key), choice):
                        wrong = reason
                        continue
                    if cases and cases[-1]["key"] == whole and len(cases[-1]["set"]) > 1:
                        attempt((*path, key), choice, True)  # the file without what follows from the key
                    break
            if wrong and len(cases) == built:
                printed(kind, name, whole, wrong)
        for key, part in inner.items():
            walk(part, (*path, key))

    walk(of(**copy.deepcopy(arguments)), ())
    if name.endswith(("Classification", "Classifier")):
        attempt(("num_labels",), 5)
    return {"class": name, "config": base, "params": params, **({"tokens": tokens + 1, "cache": cache} if cache else {}), "cases": cases}


def store(file, rows):
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(rows[k], separators=(',', ':'))}" for k in sorted(rows))
    text = f'{{"transformers": {json.dumps(transformers.__version__)}, "types": {{\n{lines}\n}}}}\n'
    with open(file, "wb") as f, gzip.GzipFile(filename="", mode="wb", fileobj=f, mtime=0) as z:
        z.write(text.encode())


def main(what, wanted):
    file = os.path.join(HERE, what + ".json.gz")
    rows = {}
    if wanted:
        with gzip.open(file) as f:
            rows = json.load(f)["types"]
    named = named_types()
    for kind, classes in sorted(mappings().items()):
        if wanted and kind not in wanted or what == "mutations" and kind not in named:
            continue
        try:
            rows[kind] = coverage(kind, classes) if what == "coverage" else mutations(kind, classes, lambda *a: print(*a, flush=True))
        except Exception as e:
            print(kind, why(e), flush=True)
            continue
        print(kind, len(rows[kind].get("cases", rows[kind].get("classes"))), file=sys.stderr, flush=True)
        store(file, rows)  # it takes a while: what is done stays


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
