"""Write what the configurations of transformers and diffusers say, for package family: `make tables`.

    python defaults.py ../../../internal/family/defaults.json

Of each type of CONFIG_MAPPING, and of each class of a part that one of them has, a row says

    class     the configuration class
    defaults  what a config.json that leaves a key out means: the values as the class declares
              them, before any of them is computed from others; null where none is declared
    saved     what save_pretrained writes for a config of defaults, where that differs: values
              computed from others, and keys under other names
    computed  keys that the class computes from others, whatever a file says
    sought    keys that the class does not declare and that its code looks for all the same, with
              what it takes without them
    names     attribute_map: other names of keys, with the name that save_pretrained writes
    parts     the configurations within: their type, and what they have where the file has no
              such part

The row "" has what all classes share, and the keys that say how text is written. Models of diffusers
have the defaults of their __init__. The versions of both libraries stand first. On stdout: what
changed against the file.
"""

import ast
import glob
import json
import os
import re
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"

import dataclasses
import functools
import inspect
import warnings

import diffusers
import transformers
from transformers import CONFIG_MAPPING
from transformers import GenerationConfig
from transformers.configuration_utils import PreTrainedConfig

warnings.simplefilter("ignore")

# Longer values are left out: they are tables of labels, and the like.
LONGEST = 3000

# Keys that each save writes anew.
WRITTEN = {"model_type", "transformers_version", "architectures", "id2label", "label2id", "dtype"}


def plain(value):
    """Return a value as config.json has it, or None if it can not have it."""
    try:
        text = json.dumps(PreTrainedConfig._encode_special_floats(value))
    except TypeError:
        return None
    return json.loads(text) if len(text) <= LONGEST else None


def declared(cls):
    """Return the values that a class declares."""
    values = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            continue
        if value is None or plain(value) is not None:
            values[field.name] = plain(value)
    return values


BASE = declared(PreTrainedConfig)


def is_config(cls):
    return isinstance(cls, type) and issubclass(cls, PreTrainedConfig)


def within(cls):
    """Return the configurations within one of a class: the key, the class or AutoConfig, and the spec."""
    specs = {key: (spec.config_class, spec) for key, spec in cls.sub_configs_defaults.items()}
    specs |= {key: (part, None) for key, part in cls.sub_configs.items() if key not in specs}
    for key, value in vars(made(cls)).items() if made(cls) else ():
        if isinstance(value, PreTrainedConfig) and key not in specs:
            specs[key] = (type(value), None)
    return specs


@functools.cache
def made(cls):
    """Return a config of defaults, or None if the class has none that make a model."""
    try:
        return cls()
    except Exception:
        return None


SOUGHT = re.compile(r'(getattr\((?:self\.|text_|vision_|audio_)?config, |hasattr\((?:self\.)?config, |kwargs\.(?:get|pop)\()"(\w+)"(?:, ([^()]*?))?\)')


@functools.cache
def sought(folder):
    """Return the keys that a model's files look for by name, with the usual values."""
    keys = {}
    for path in sorted(glob.glob(os.path.join(folder, "configuration_*.py")) + glob.glob(os.path.join(folder, "modeling_*.py"))):
        with open(path) as f:
            for call, key, usual in SOUGHT.findall(f.read()):
                if call.startswith("kwargs") and "modeling_" in path:  # an argument of forward
                    continue
                try:
                    keys[key] = plain(ast.literal_eval(usual)) if usual else None
                except (ValueError, SyntaxError):
                    keys[key] = None
    return keys


def overwritten(cls, key, value):
    """Report whether the class computes a number anew whatever it is given."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    try:
        return json.loads(cls(**{key: 2 * value + 2}).to_json_string(use_diff=False)).get(key) == value
    except Exception:  # it is refused
        return False


def row(cls, named):
    """Return the row of a class. named returns the type of a part."""
    own = {k: v for k, v in declared(cls).items() if k not in within(cls)}
    r = {"class": cls.__name__, "defaults": {k: v for k, v in own.items() if k not in BASE or v != BASE[k]}}
    parts = {}
    for key, (part, spec) in within(cls).items():
        parts[key] = {"type": named(part, spec)}
        if spec and spec.init_kwargs and plain(spec.init_kwargs) is not None:
            parts[key]["with"] = plain(spec.init_kwargs)
        if spec and spec.optional:
            parts[key]["optional"] = True
    written = {}
    if made(cls):
        try:
            written = json.loads(made(cls).to_json_string(use_diff=True))
        except TypeError:
            pass  # it cannot be saved
    saved = {
        k: v
        for k, v in written.items()
        if k not in WRITTEN and k not in parts and not k.startswith("_") and (k not in own or own[k] != v) and plain(v) is not None
    }
    computed = [k for k, v in saved.items() if k not in own and overwritten(cls, k, v)]
    read = sought(os.path.dirname(inspect.getfile(cls)))
    other = {k: v for k, v in sorted(read.items()) if not k.startswith("_") and k not in own and k not in BASE and k not in saved and k not in parts}
    for name, value in (("saved", saved), ("computed", computed), ("sought", other), ("names", dict(cls.attribute_map)), ("parts", parts)):
        if value:
            r[name] = value
    return r


def table():
    """Return the rows by type."""
    types = {}
    parts = {}  # classes without a type in CONFIG_MAPPING
    for name in CONFIG_MAPPING:
        types[name] = CONFIG_MAPPING[name]
    of = {cls: cls.model_type if types.get(cls.model_type) is cls else name for name, cls in types.items()}

    def walk(cls, at):
        for key, (part, _) in within(cls).items():
            if not is_config(part) or part in of or part in parts:
                continue
            name = part.model_type
            if not name or name in types or name in parts.values():
                name = at + "." + key
            parts[part] = name
            walk(part, name)

    for name, cls in sorted(types.items()):
        walk(cls, name)

    def named(part, spec):
        if is_config(part):
            return of.get(part) or parts[part]
        return spec.model_type if spec else ""

    rows = {name: row(cls, named) for cls, name in [*((c, n) for n, c in types.items()), *parts.items()]}
    rows[""] = {"class": "PreTrainedConfig", "defaults": BASE, "generation": sorted(GenerationConfig._get_default_generation_params())}
    return dict(sorted((rows | drawn()).items()))


def drawn():
    """Return the rows of diffusers' models, by class."""
    rows = {}
    for name in dir(diffusers.models):
        cls = getattr(diffusers.models, name)
        if not isinstance(cls, type) or not issubclass(cls, diffusers.ModelMixin) or not issubclass(cls, diffusers.ConfigMixin):
            continue
        parameters = inspect.signature(cls.__init__).parameters.values()
        values = {p.name: plain(p.default) for p in parameters if p.default is not p.empty and p.name not in cls.ignore_for_config}
        rows[name] = {"class": name, "defaults": values}
    return rows


def changes(old, new):
    """Yield what changed from one table to another."""
    for library in ("transformers", "diffusers"):
        yield f"{library} {old.get(library, '?')} -> {new[library]}"
    before, after = old.get("types", {}), new["types"]
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield f"+ {name}"
            continue
        if name not in after:
            yield f"- {name}"
            continue
        a, b = before[name], after[name]
        for what in ("defaults", "saved", "computed", "sought", "names", "parts", "generation"):
            was, now = ({k: k for k in of} if isinstance(of, list) else of for of in (a.get(what, {}), b.get(what, {})))
            for key in sorted(was.keys() | now.keys()):
                if key not in was:
                    yield f"  {name}: {what}: + {key} = {json.dumps(now[key])}"
                elif key not in now:
                    to = b.get("names", {}).get(key)
                    yield f"  {name}: {what}: - {key}" + (f", which is {to} now" if to else "")
                elif was[key] != now[key]:
                    yield f"  {name}: {what}: {key} = {json.dumps(was[key])} -> {json.dumps(now[key])}"


def main():
    path = sys.argv[1]
    old = {}
    if os.path.exists(path):
        with open(path) as f:
            old = json.load(f)
    new = {"transformers": transformers.__version__, "diffusers": diffusers.__version__, "types": table()}
    # One line for each type: package family finds a line and decodes no other.
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in new["types"].items())
    with open(path, "w") as f:
        f.write(f'{{"transformers": {json.dumps(new["transformers"])}, "diffusers": {json.dumps(new["diffusers"])}, "types": {{\n{lines}\n}}}}\n')
    print("\n".join(changes(old, new)))


if __name__ == "__main__":
    main()
