"""Names of the activations of any Transformer, and the modules where each is read and replaced.

One scheme for models of regard and of transformers. `S` is the stack, encoder or decoder, and `i`
the block:

    S.embedding               output of the token embedding
    S.i.residual_in, _out     the residual stream before and after a block
    S.i.self.in, cross.in     input of an attention (after a pre-norm)
    S.i.self.latent_kv, _q    compressed keys and values, or queries (latent attention), normalised
    S.i.self.heads            output of each head, before W_O
    S.i.self.out              what attention adds to the residual stream, after W_O
    S.i.mixer.in, .out        input and output of what mixes positions otherwise (state spaces)
    S.i.shared.in, .out       of the feed-forward layer beside a mixture of experts
    S.i.mlp.in, .hidden, .out input, neurons and output of the feed-forward layer
    S.i.router.logits         scores of all experts
    S.i.router.experts, .weights  the experts that were chosen for each token, and their weights
    S.i.router.choice         both and the number of experts: what drop_expert and force_expert edit
    S.i.per_layer.in, …       the same of Gemma's second, gated by an embedding of the layer
    S.final_norm              output of the norm after the last block
    logits                    output of the model; `output` where it has no head
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from torch import nn

from regard.errors import LookError
from regard.inspection.adapters.activation_point import ActivationPoint
from regard.inspection.adapters.block_layout import (
    HEAD_COUNTS,
    MIXTURE,
    MLP_CHILD,
    expert_count,
    find_experts,
    find_latents,
    find_projections,
    head_count,
    is_mixture,
    is_norm,
    norm_width,
    parent_path,
)
from regard.inspection.adapters.block_stacks import BlockStack, find_stacks
from regard.inspection.adapters.module_tracker import uncompiled_modules
from regard.models.ngram import NgramMixture

OUTPUT = re.compile(r"(^|_)(o|wo|out|output|dense)(_|$)|c_proj|out_lin", re.IGNORECASE)
POST_PER_LAYER = re.compile(r"post_per_layer_\w*norm")
POST_ATTENTION = re.compile(r"post_(self_)?att(n|ention)_(layer_?)?norm")
POST_MLP = re.compile(
    r"post_(feed_?forward|mlp|ffn?)_(layer_?)?norm|feed_forward_residual\.output_norm"
)

OUR_EMBEDDINGS = {"encoder.blocks": "source_embedding", "decoder.blocks": "target_embedding"}


def find_activations(
    model: nn.Module, modules: Mapping[str, nn.Module] | None = None
) -> dict[str, ActivationPoint]:
    """Every activation of a model by name, in the order of computation.

    `modules` are its named modules, where they are known.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9))
    >>> list(find_activations(model))[:4]
    ['decoder.embedding', 'decoder.0.residual_in', 'decoder.0.self.in', 'decoder.0.self.heads']
    """
    modules = dict(model.named_modules()) if modules is None else modules
    stacks = find_named_stacks(modules)
    points: list[ActivationPoint] = []
    embeddings = _token_embeddings(model, modules)
    for name, stack in stacks:
        if (path := _embedding_of(stack.path, embeddings, len(stacks))) is not None:
            points.append(ActivationPoint(f"{name}.embedding", path, modules[path], "out"))
        known: dict[tuple, list[ActivationPoint]] = {}  # blocks of one stack are mostly alike
        # a module that is in several blocks (Zamba) is not one's
        uses = Counter(id(m) for block in stack.blocks for m in block.modules())
        for i, (block, inside) in enumerate(
            zip(stack.blocks, _modules_inside(stack, modules), strict=True)
        ):
            path = f"{stack.path}.{i}"
            alike = known.get(layout := _layout(inside))
            if alike is None:
                known[layout] = alike = list(_block_points(block))
            for point in alike:
                if point.path not in inside or uses[id(inside[point.path])] > 1:
                    continue
                module, around = inside[point.path], block if point.block else None
                full = f"{path}.{point.path}" if point.path else path
                place = f"{name}.{i}.{point.name}", full, module
                points.append(ActivationPoint(*place, *point[3:5], around, *point[6:]))
        if (norm := _final_norm(stack, modules)) is not None:
            points.append(ActivationPoint(f"{name}.final_norm", norm, modules[norm], "out"))
    # a model of transformers without a head, such as BertModel, returns hidden states
    is_headless = hasattr(model, "base_model_prefix") and model.base_model is model  # pyright: ignore
    # of the network alone, where n-grams are mixed in after it
    head = "readout" if isinstance(getattr(model, "ngrams", None), NgramMixture) else ""
    output = "output" if is_headless else "logits"
    points.append(ActivationPoint(output, head, modules.get(head, model), "out"))
    return {point.name: point for point in points}


def activation_names(model: nn.Module) -> list[str]:
    """Names of the activations of a model, in the order of computation.

    The same for models of regard and of transformers: for each stack S `S.embedding`; per block
    `S.i.residual_in`, `S.i.self.in`, `.heads`, `.out` (and `cross`), `S.i.mlp.in`, `.hidden`,
    `.out`, `S.i.residual_out`; `S.final_norm`; `logits` (`output` of a model without head).

    >>> model = rg.models.Classifier(rg.models.classifier_tiny(vocab=9, classes=2))
    >>> activation_names(model)[5:9]
    ['encoder.0.mlp.in', 'encoder.0.mlp.hidden', 'encoder.0.mlp.out', 'encoder.0.residual_out']
    """
    uncompiled_modules(model)  # raises if one is compiled
    return list(find_activations(model))


def paths_of_activations(points: Mapping[str, ActivationPoint]) -> dict[str, str]:
    """Names of activations by the path of the module whose output they are, or by path and word.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9))
    >>> paths = paths_of_activations(find_activations(model))
    >>> paths["decoder.blocks.1"], paths["decoder.blocks.1.feed_forward.hidden"]
    ('decoder.1.residual_out', 'decoder.1.mlp.hidden')
    """
    paths: dict[str, str] = {}
    for name, point in points.items():
        part, _, word = name.rpartition(".")
        around = points.get(f"{part}.in", points.get(f"{part}.residual_in", point)).path
        names = [f"{around}.{word}"] if part and around else []
        if point.side == "out":
            names += [point.path, around]
        for path in names:
            if path and path not in points:
                paths.setdefault(path, name)
    return paths


def name_of_part(points: Mapping[str, ActivationPoint], name: str) -> str:
    """The name of a part, "decoder.3.mlp", from that or from the path of its module."""
    return paths_of_activations(points).get(f"{name}.out", name).removesuffix(".out")


def match_activations(
    points: Mapping[str, ActivationPoint], globs: str | Sequence[str], argument: str
) -> list[ActivationPoint]:
    """The points whose names match a glob; each glob must match one."""
    matched: set[str] = set()
    for glob in globs if isinstance(globs, list | tuple) else [globs]:
        names = fnmatch.filter(points, glob) if isinstance(glob, str) else []
        if not names:
            paths = paths_of_activations(points)
            names = [paths[x] for x in fnmatch.filter(paths, glob)] if isinstance(glob, str) else []
        matched.update(names)
        if not names:
            close = get_close_matches(str(glob), [*points, *paths_of_activations(points)], 1, 0)
            raise LookError(
                f"{argument}: needs a glob over the names of activations, got {glob!r}; "
                f"try {(close or ['*'])[0]!r}, or one of regard.inspection.activation_names(model)"
            )
    return [point for name, point in points.items() if name in matched]


def _modules_inside(
    stack: BlockStack, modules: Mapping[str, nn.Module]
) -> list[dict[str, nn.Module]]:
    """The modules of each block by their paths in it, from those of the model."""
    by_block: list[dict[str, nn.Module]] = [{"": block} for block in stack.blocks]
    prefix = f"{stack.path}." if stack.path else ""
    for path, module in modules.items():
        if path.startswith(prefix):
            index, _, inside = path[len(prefix) :].partition(".")
            if inside and index.isdigit():
                by_block[int(index)][inside] = module
    return by_block


def _layout(modules: Mapping[str, nn.Module]) -> tuple:
    """What `_block_points` reads of a block: classes, shapes and head counts."""
    parts = []
    for name, module in modules.items():
        weight = module._parameters.get("weight")
        shape = None if weight is None else weight.shape
        parts.append((name, type(module), shape, *map(vars(module).get, HEAD_COUNTS)))
    return tuple(parts)


def _block_points(block: nn.Module) -> Iterator[ActivationPoint]:
    """The activations of a block, with names and paths inside it."""
    projections, modules = find_projections(block), dict(block.named_modules())

    def point(suffix: str, inside: str, side: Any, heads: int | None = None) -> ActivationPoint:
        flattens = block if inside and "." not in inside else None
        options = heads, flattens, has_streams and not inside
        return ActivationPoint(suffix, inside, modules[inside], side, *options)

    has_streams = any("AltUp" in type(module).__name__ for module in block.children())
    norms = [inside for inside, module in modules.items() if is_norm(module)]
    post_mlp = next((n for n in norms if POST_MLP.fullmatch(n)), None)
    # GLM has post_self_attn_layernorm for it, and post_attention_layernorm before the MLP
    after_attention = sorted(
        (n for n in norms if POST_ATTENTION.fullmatch(n)), key=lambda n: "self" not in n
    )
    post_attention = next(iter(after_attention), None)
    yield point("residual_in", "", "in")
    for kind in ("self", "cross"):
        if not (group := projections[kind]):
            continue
        # the last one, but Afmoe and Beam have a gate behind it
        writer = [n for n in group if OUTPUT.search(n.rpartition(".")[2])][-1:] or group[-1:]
        writer = writer[0]
        after = post_attention if post_mlp and kind == "self" else None
        if (ours := f"{kind}_residual.output_norm") in modules:
            after = ours
        yield point(f"{kind}.in", parent_path(group[0]), "in")
        for word, norm in find_latents(modules, group, writer):
            yield point(f"{kind}.latent_{word}", norm, "out")
        if (heads := head_count(block, writer)) is not None:
            yield point(f"{kind}.heads", writer, "in", heads)
        yield point(f"{kind}.out", after or writer, "out")
    for mixer in projections["mixer"][:1]:
        yield point("mixer.in", mixer, "in")
        yield point("mixer.out", mixer, "out")
    mixture = next((n for n in modules if n and is_mixture(n, modules)), None)
    if mixture is not None:
        yield point("mlp.in", mixture, "in")
        yield point("mlp.out", post_mlp or mixture, "out")
        others = [n for n, m in block.named_children() if MLP_CHILD.search(n) and n != mixture]
        others = [n for n in others if not is_norm(modules[n]) and not MIXTURE.search(n)]
        if others and post_mlp is None:
            yield point("shared.in", others[0], "in")
            yield point("shared.out", others[0], "out")
    elif group := projections["mlp"]:
        yield point("mlp.in", parent_path(group[0]), "in")
        if not any(MIXTURE.search(name) for name, _ in block.named_children()):
            yield point("mlp.hidden", group[-1], "in")  # the only part of what is added
        yield point("mlp.out", post_mlp or group[-1], "out")
    for experts, router in find_experts(modules).items():
        around = None, block, False
        if router is not None:
            yield ActivationPoint("router.logits", router, modules[router], "out", *around)
        for word, tensor in (("experts", 1), ("weights", 2), ("choice", None)):
            name, module = f"router.{word}", modules[experts]
            count = expert_count(module)
            yield ActivationPoint(name, experts, module, "in", *around, tensor, count)
        break
    if group := projections["per_layer"]:
        after = next((n for n in norms if POST_PER_LAYER.fullmatch(n)), group[-1])
        yield point("per_layer.in", group[0], "in")
        yield point("per_layer.hidden", group[-1], "in")
        yield point("per_layer.out", after, "out")
    yield point("residual_out", "", "out")


def find_named_stacks(modules: Mapping[str, nn.Module]) -> list[tuple[str, BlockStack]]:
    """The stacks of Transformer blocks by name: encoder or decoder, their path if two are one.

    Those that read tokens come last, as after the towers of images and sounds.
    """
    stacks = [stack for stack in find_stacks(modules) if _mixes_positions(stack)]
    if len(stacks) > 1:
        embeddings = _token_embeddings(modules[""], modules)
        # a table that both stacks share is listed once, as that of the encoder
        stacks.sort(
            key=lambda x: x.path in OUR_EMBEDDINGS or bool(_embedding_of(x.path, embeddings, 2))
        )
    names = [_stack_name(modules[""], stack) for stack in stacks]
    paths = [stack.path.rpartition(".")[0] or stack.path for stack in stacks]
    unique = (p if names.count(n) > 1 else n for n, p in zip(names, paths, strict=True))
    return list(zip(unique, stacks, strict=True))


def _mixes_positions(stack: BlockStack) -> bool:
    """Whether some block has an attention or another mixer of positions."""
    groups = {type(block): find_projections(block) for block in reversed(stack.blocks)}
    return any(group["self"] or group["mixer"] for group in groups.values()) or any(
        find_projections(block)["self"] for block in stack.blocks
    )


def _stack_name(model: nn.Module, stack: BlockStack) -> str:
    words = re.findall(r"encoder|decoder", stack.path.lower())
    if words:
        return words[-1]
    causal = any(getattr(m, "is_causal", False) is True for m in stack.blocks[0].modules())
    if not causal and (kind := getattr(getattr(model, "config", None), "model_type", None)):
        from transformers.models.auto import modeling_auto as auto

        # transformers has a causal language model of this type and no masked one
        causal = kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        causal = causal and kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return "decoder" if causal else "encoder"


def _final_norm(stack: BlockStack, modules: Mapping[str, nn.Module]) -> str | None:
    """The last norm beside a stack, or beside one of its parents, as wide as those of a block."""
    block, parent = stack.blocks[0], stack.path
    widths = {norm_width(m) for m in block.children() if is_norm(m)} - {None}
    while parent:
        parent = parent.rpartition(".")[0]
        children = dict(modules[parent].named_children())
        norms = [name for name, module in children.items() if is_norm(module)]
        norms = [n for n in norms if not widths or norm_width(children[n]) in (None, *widths)]
        norms = [name for name in norms if not re.search(r"embed|pre_|vocab", name)]
        if norms:
            return f"{parent}.{norms[-1]}" if parent else norms[-1]
    return None


def _token_embeddings(model: nn.Module, modules: Mapping[str, nn.Module]) -> list[str]:
    """Paths of the modules that look up tokens; those that share the weight are listed too."""
    names = ("embedding", "source_embedding", "target_embedding")  # in models of regard
    named = [path for path in names if path in modules]
    try:
        inputs = getattr(model, "get_input_embeddings", lambda: None)()
    except NotImplementedError:  # models of images or sounds
        return named
    weight = getattr(inputs, "weight", None)
    lookups = {path: m for path, m in modules.items() if isinstance(m, nn.Embedding)}
    return named + [path for path, m in lookups.items() if m.weight is weight]


def _embedding_of(stack: str, embeddings: list[str], stacks: int) -> str | None:
    """The embedding below the nearest parent of a stack."""
    if stacks == 1:
        return embeddings[0] if embeddings else None
    if (ours := OUR_EMBEDDINGS.get(stack)) in embeddings:
        return ours
    parent = stack.rpartition(".")[0]
    return next((path for path in embeddings if parent and path.startswith(f"{parent}.")), None)
