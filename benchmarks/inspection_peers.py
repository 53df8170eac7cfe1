"""Inspection of a language model by Regard and by other libraries: same model, same numbers.

python benchmarks/inspection_peers.py MODEL               # a Hugging Face folder, on the CPU
python benchmarks/inspection_peers.py --device cuda       # a random model of SmolLM2-135M's sizes
python benchmarks/inspection_peers.py --rows dla patching --libraries regard transformer_lens

Peers are measured where they can be imported: transformer_lens, nnsight, bertviz, captum, inseq.
Each task of a library is one function, whose lines are counted. Per task every library has a
process of its own; their calls take turns. Printed are the median of wall time, its spread, CPU
time and peak memory above what the loaded model takes. Results have to agree to 1e-4.
"""

import argparse
import ast
import ctypes
import gc
import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

import regard as rg

TOLERANCE = 1e-4
# transformers alone is a forward pass without any inspection, for comparison
LIBRARIES = "regard", "transformer_lens", "nnsight", "captum", "bertviz", "inseq", "transformers"
ROWS = {
    "cache": "6 activations of every block and the logits, 128 tokens",
    "pattern": "one head's map and the logits, 256 tokens",
    "ablation": "loss without each head, 32 tokens",
    "patching": "logit difference with each layer × position patched, 10 tokens",
    "dla": "logit difference split by head, 128 tokens",
    "gradient": "gradient · input of each token, 128 tokens",
    "lens": "logits after each block, all of 14 tokens",
    "sae": "logits with one residual stream through an autoencoder of 4,608 features, 14 tokens",
    "induction": "induction score of each head, 7 tokens twice",
    "entropy_1k": "entropy of every row of every map, 1,024 tokens",
    "entropy_2k": "entropy of every row of every map, 2,048 tokens",
}
LENGTHS = {"cache": 128, "pattern": 256, "ablation": 32, "patching": 10, "dla": 128,
           "gradient": 128, "lens": 14, "sae": 14, "induction": 14, "entropy_1k": 1024,
           "entropy_2k": 2048}  # fmt: skip
LAYER, HEAD = 5, 3  # of the pattern; the layer of the autoencoder too
FIRST, SECOND = 260, 1200  # tokens of the logit difference
TASKS: dict[tuple[str, str], Callable[[Any], Any]] = {}
Work = SimpleNamespace  # model, as the library wraps it; ids and other, (1, time); heads; width


def task(library: str, *rows: str) -> Callable:
    """Register a function for one or several rows."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        TASKS.update({(library, row): function for row in rows})
        return function

    return register


def difference(logits: Any) -> Any:
    """The metric: logit of one token minus that of another, at the last position."""
    return logits[0, -1, FIRST] - logits[0, -1, SECOND]


def induction(pattern: Any) -> Any:
    """The score of each head on tokens that were repeated once: weight on what followed a copy."""
    half = pattern.shape[-1] // 2
    return pattern.diagonal(1 - half, -2, -1)[..., 1:].mean((0, 2))


@task(
    "transformers",
    *("cache", "pattern", "dla", "lens", "sae", "induction", "entropy_1k", "entropy_2k"),
)
def forward(work: Work) -> Any:
    return work.model(work.ids).logits


# Regard


@task("regard", "cache")
def regard_cache(work: Work) -> Any:
    kinds = ["residual_in", "self.heads", "self.out", "mlp.hidden", "mlp.out", "residual_out"]
    with rg.look(work.model, "", activations=[*(f"*.{kind}" for kind in kinds), "logits"]) as sight:
        work.model(work.ids)
    return list(sight.activations.values())


@task("regard", "pattern")
def regard_pattern(work: Work) -> Any:
    with rg.look(work.model, f"model.layers.{LAYER}.*") as sight:
        logits = work.model(work.ids).logits
    return [sight.sites[0].window(head=HEAD), logits]


@task("regard", "ablation")
def regard_ablation(work: Work) -> Any:
    loss = lambda model: model(work.ids, labels=work.ids).loss  # noqa: E731
    return list(rg.head_importance(work.model, loss, exact=True).ablation.values())


@task("regard", "patching")
def regard_patching(work: Work) -> Any:
    over = "residual×position"
    return rg.patching.sweep(work.model, work.ids, work.other, difference, over=over).values


@task("regard", "dla")
def regard_dla(work: Work) -> Any:
    found = rg.inspection.logit_attribution(work.model, work.ids, FIRST, against=SECOND, by="head")
    return [x for name, x in found.parts.items() if " head " in name]


@task("regard", "gradient")
def regard_gradient(work: Work) -> Any:
    score = lambda model: difference(model(work.ids).logits)  # noqa: E731
    found = rg.inspection.activation_gradients(work.model, score, "decoder.embedding")
    name = "decoder.embedding"
    return (found.gradients[name] * found.activations[name]).sum(-1)


@task("regard", "lens")
def regard_lens(work: Work) -> Any:
    return rg.inspection.logit_lens(work.model, work.ids).logits


@task("regard", "sae")
def regard_sae(work: Work) -> Any:
    edit = rg.edit.ActivationEdit(f"decoder.{LAYER}.residual_out", "autoencoder", work.autoencoder)
    with rg.what_if(work.model, edit):
        return work.model(work.ids).logits


@task("regard", "induction")
def regard_induction(work: Work) -> Any:
    return [row.induction for row in rg.inspection.score_heads(work.model, work.twice)]


@task("regard", "entropy_1k", "entropy_2k")
def regard_entropy(work: Work) -> Any:
    with rg.look(work.model, survey=["entropy"]) as sight:
        work.model(work.ids)
    return [site.survey(statistics=["entropy"]).entropy for site in sight]


# TransformerLens


@task("transformer_lens", "cache")
def lens_cache(work: Work) -> Any:
    kinds = "hook_resid_pre attn.hook_z hook_attn_out mlp.hook_post hook_mlp_out hook_resid_post"
    keep = lambda name: name.endswith(tuple(kinds.split()))  # noqa: E731
    logits, cache = work.model.run_with_cache(work.ids, names_filter=keep)
    blocks = range(work.model.cfg.n_layers)
    return [*(cache[f"blocks.{i}.{kind}"] for i in blocks for kind in kinds.split()), logits]


@task("transformer_lens", "pattern")
def lens_pattern(work: Work) -> Any:
    name = f"blocks.{LAYER}.attn.hook_pattern"
    logits, cache = work.model.run_with_cache(work.ids, names_filter=name)
    return [cache[name][:, HEAD], logits]


@task("transformer_lens", "ablation")
def lens_ablation(work: Work) -> Any:
    def zero(head: int, z: Any, hook: Any) -> Any:
        z[:, :, head] = 0
        return z

    base = work.model(work.ids, return_type="loss")
    losses = [
        work.model.run_with_hooks(
            work.ids,
            return_type="loss",
            fwd_hooks=[(f"blocks.{layer}.attn.hook_z", partial(zero, head))],
        )
        for layer in range(work.model.cfg.n_layers)
        for head in range(work.model.cfg.n_heads)
    ]
    return torch.stack(losses) - base


@task("transformer_lens", "patching")
def lens_patching(work: Work) -> Any:
    from transformer_lens import patching

    _, cache = work.model.run_with_cache(work.ids)
    return patching.get_act_patch_resid_pre(work.model, work.other, cache, difference)


@task("transformer_lens", "dla")
def lens_dla(work: Work) -> Any:
    _, cache = work.model.run_with_cache(work.ids)
    heads = cache.apply_ln_to_stack(cache.stack_head_results(pos_slice=-1), pos_slice=-1)
    unembed = work.model.W_U[:, FIRST] - work.model.W_U[:, SECOND]
    return heads @ (unembed * work.model.ln_final.weight)


@task("transformer_lens", "gradient")
def lens_gradient(work: Work) -> Any:
    kept = []

    def keep(x: Any, hook: Any) -> Any:
        kept.append(x.detach().requires_grad_())
        return kept[0]

    logits = work.model.run_with_hooks(work.ids, fwd_hooks=[("hook_embed", keep)])
    return (torch.autograd.grad(difference(logits), kept)[0] * kept[0]).sum(-1)


@task("transformer_lens", "lens")
def lens_lens(work: Work) -> Any:
    keep = lambda name: name.endswith("hook_resid_post") or name == "blocks.0.hook_resid_pre"  # noqa: E731
    _, cache = work.model.run_with_cache(work.ids, names_filter=keep)
    return work.model.unembed(work.model.ln_final(torch.cat(list(cache.values()))))


@task("transformer_lens", "sae")
def lens_sae(work: Work) -> Any:
    hook = (f"blocks.{LAYER}.hook_resid_post", lambda x, hook: work.autoencoder(x))
    return work.model.run_with_hooks(work.ids, fwd_hooks=[hook])


@task("transformer_lens", "induction")
def lens_induction(work: Work) -> Any:
    keep = lambda name: name.endswith("hook_pattern")  # noqa: E731
    _, cache = work.model.run_with_cache(work.twice, names_filter=keep)
    return torch.stack([induction(pattern) for pattern in cache.values()])


@task("transformer_lens", "entropy_1k", "entropy_2k")
def lens_entropy(work: Work) -> Any:
    found = []

    def add(pattern: Any, hook: Any) -> None:
        found.append(torch.special.entr(pattern).sum(-1))

    keep = lambda name: name.endswith("hook_pattern")  # noqa: E731
    work.model.run_with_hooks(work.ids, fwd_hooks=[(keep, add)])
    return found


# nnsight


@task("nnsight", "cache")
def nnsight_cache(work: Work) -> Any:
    model = work.model
    with model.trace(work.ids):
        kept = [].save()
        for layer in model.model.layers:
            kept += [layer.input, layer.self_attn.o_proj.input, layer.self_attn.o_proj.output]
            kept += [layer.mlp.down_proj.input, layer.mlp.down_proj.output, layer.output]
        kept.append(model.output.logits)
    return kept


@task("nnsight", "pattern")
def nnsight_pattern(work: Work) -> Any:
    model = work.model
    with model.trace(work.ids):
        pattern = model.model.layers[LAYER].self_attn.output[1][:, HEAD].save()
        logits = model.output.logits.save()
    return [pattern, logits]


@task("nnsight", "ablation")
def nnsight_ablation(work: Work) -> Any:
    model, width, losses = work.model, work.width, []
    with model.trace(work.ids, labels=work.ids):
        base = model.output.loss.save()
    for layer in model.model.layers:
        for head in range(work.heads):
            with model.trace(work.ids, labels=work.ids):
                layer.self_attn.o_proj.input[..., head * width : (head + 1) * width] = 0
                loss = model.output.loss.save()
            losses.append(loss - base)
    return losses


@task("nnsight", "patching")
def nnsight_patching(work: Work) -> Any:
    model, values = work.model, []
    with model.trace(work.ids):
        clean = [layer.input for layer in model.model.layers].save()
    for i, layer in enumerate(model.model.layers):
        for position in range(work.ids.shape[1]):
            with model.trace(work.other):
                layer.input[:, position] = clean[i][:, position]
                value = difference(model.output.logits).save()
            values.append(value)
    return values


@task("nnsight", "dla")
def nnsight_dla(work: Work) -> Any:
    model = work.model
    with model.trace(work.ids):
        heads = [].save()
        for layer in model.model.layers:
            heads.append(layer.self_attn.o_proj.input[0, -1].unflatten(0, (work.heads, -1)))
        last = model.model.norm.input[0, -1].save()
    scale = (last.square().mean() + model.config.rms_norm_eps).rsqrt()
    direction = model.lm_head.weight[FIRST] - model.lm_head.weight[SECOND]
    direction = scale * direction * model.model.norm.weight
    weights = (layer.self_attn.o_proj.weight for layer in model.model.layers)
    pairs = zip(heads, weights, strict=True)
    return [(z * (direction @ w).view_as(z)).sum(-1) for z, w in pairs]


@task("nnsight", "gradient")
def nnsight_gradient(work: Work) -> Any:
    model = work.model
    with model.trace(work.ids):
        x = model.model.embed_tokens.output
        x.requires_grad_()
        score = difference(model.output.logits)
        with score.backward():
            gradient = x.grad.save()
        x.save()
    return (gradient * x).sum(-1)


@task("nnsight", "lens")
def nnsight_lens(work: Work) -> Any:
    model = work.model
    with model.trace(work.ids):
        states = [model.model.layers[0].input, *(layer.output for layer in model.model.layers)]
        logits = model.lm_head(model.model.norm(torch.cat(states))).save()
    return [logits]


@task("nnsight", "sae")
def nnsight_sae(work: Work) -> Any:
    model = work.model
    with model.trace(work.ids):
        layer = model.model.layers[LAYER]
        layer.output = work.autoencoder(layer.output)
        logits = model.output.logits.save()
    return [logits]


@task("nnsight", "induction")
def nnsight_induction(work: Work) -> Any:
    model = work.model
    with model.trace(work.twice):
        scores = [].save()
        for layer in model.model.layers:
            scores.append(induction(layer.self_attn.output[1]))
    return scores


@task("nnsight", "entropy_1k", "entropy_2k")
def nnsight_entropy(work: Work) -> Any:
    model = work.model
    with model.trace(work.ids):
        found = [].save()
        for layer in model.model.layers:
            found.append(torch.special.entr(layer.self_attn.output[1]).sum(-1))
    return found


# captum


@task("captum", "cache")
def captum_cache(work: Work) -> Any:
    layers, forward = work.model.model.layers, lambda ids: work.model(ids).logits
    inner = [m for x in layers for m in (x.self_attn.o_proj, x.mlp.down_proj)]
    read = lambda modules, inputs: work.captum.LayerActivation(forward, modules).attribute(  # noqa: E731
        work.ids, attribute_to_layer_input=inputs
    )
    ins, outs = read([*layers, *inner], True), read([*layers, *inner, work.model.lm_head], False)
    n = len(layers)
    first, *others = (ins[i] for i in range(n)), ins[n::2], outs[n::2], ins[n + 1 :: 2]
    parts = zip(first, *others, outs[n + 1 :: 2], outs[:n], strict=False)
    return [*(x[0] if isinstance(x, tuple) else x for block in parts for x in block), outs[-1]]


@task("captum", "ablation")
def captum_ablation(work: Work) -> Any:
    forward = lambda ids: work.model(ids, labels=ids).loss[None]  # noqa: E731
    mask = torch.arange(work.heads, device=work.ids.device).repeat_interleave(work.width)
    changes = [
        work.captum.LayerFeatureAblation(forward, layer.self_attn.o_proj).attribute(
            work.ids, layer_mask=mask[None, None], attribute_to_layer_input=True
        )
        for layer in work.model.model.layers
    ]
    return [-x[0, 0, :: work.width] for x in changes]


@task("captum", "gradient")
def captum_gradient(work: Work) -> Any:
    forward = lambda ids: difference(work.model(ids).logits)[None]  # noqa: E731
    method = work.captum.LayerGradientXActivation(forward, work.model.model.embed_tokens)
    return method.attribute(work.ids).sum(-1)


# BertViz


@task("bertviz", "pattern")
def bertviz_pattern(work: Work) -> Any:
    out = work.model(work.ids, output_attentions=True)
    tokens = [str(i) for i in work.ids[0].tolist()]
    work.head_view(out.attentions, tokens, include_layers=[LAYER], html_action="return")
    return [out.attentions[LAYER][:, HEAD], out.logits]


# inseq


@task("inseq", "gradient")
def inseq_gradient(work: Work) -> Any:
    last = work.ids.shape[1]
    found = work.model.attribute(
        work.text,
        work.text + " the",
        attributed_fn="difference",
        attr_pos_start=last,
        attr_pos_end=last + 1,
        show_progress=False,
    )
    return found.sequence_attributions[0].target_attributions[:last, 0].sum(-1)


# the harness: one process per library and row


def load(library: str, row: str, folder: str | None, device: str) -> Work:
    """Import a library, and make the model and the inputs of a row."""
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    eager = (
        library == "bertviz"
        or library == "nnsight"
        and row.startswith(("pattern", "induction", "entropy"))
    )
    options: dict[str, Any] = {"attn_implementation": "eager" if eager else "sdpa"}
    work = Work(folder=folder)
    if folder is None:  # the sizes of SmolLM2-135M
        config = transformers.LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
            num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
            tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, initializer_range=0.05,
        )  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_config(config, **options)
        words = Tokenizer(WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, "<unk>"))
        special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
        work.folder = tempfile.mkdtemp()
        config.save_pretrained(work.folder)
        tokenizer.save_pretrained(work.folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(work.folder)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, **options
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = model.eval().to(device)
    heads = model.config.num_attention_heads
    work.model, work.heads, work.width = model, heads, model.config.hidden_size // heads
    length = LENGTHS[row]
    if folder is None:
        work.ids = torch.randint(3, 49152, (1, length), generator=torch.Generator().manual_seed(1))
    else:
        text = inspect.getdoc(sys.modules["argparse"]) + inspect.getsource(argparse)
        work.ids = tokenizer(text, return_tensors="pt").input_ids[:, :length]
        work.text = tokenizer.decode(work.ids[0])
    work.ids = work.ids.to(device)
    work.other = work.ids.clone()
    work.other[:, length // 2] = 500
    half = torch.randperm(40_000, generator=torch.Generator().manual_seed(1))[: length // 2]
    work.twice = half.repeat(2)[None].to(device)
    width = model.config.hidden_size
    down, up = torch.randn(2, width, 8 * width, device=device) / width**0.5
    work.autoencoder = lambda x: torch.relu(x @ down) @ up.mT
    wrap(library, work, tokenizer, device)
    return work


def wrap(library: str, work: Work, tokenizer: Any, device: str) -> None:
    """Wrap the model as the library wants it."""
    if library == "transformer_lens":
        from transformer_lens.model_bridge import TransformerBridge

        work.model = TransformerBridge.boot_transformers(
            work.folder, hf_model=work.model, tokenizer=tokenizer, device=device
        )
    elif library == "nnsight":
        from nnsight import NNsight

        work.model = NNsight(work.model)
    elif library == "captum":
        from captum import attr

        work.captum = attr
    elif library == "bertviz":
        from bertviz import head_view

        work.head_view = head_view
    elif library == "inseq":
        import inseq

        inseq.register_step_function(
            lambda args: difference(args.forward_output.logits)[None], "difference", overwrite=True
        )
        work.model = inseq.load_model(
            work.model, "input_x_gradient", tokenizer=tokenizer, device=device
        )


def serve(library: str, row: str, folder: str | None, device: str, threads: int) -> None:
    """Run the task once for each line of the standard input, and print what it took."""
    work = load(library, row, folder, device)
    torch.set_num_threads(threads)
    function = TASKS[library, row]
    needs_grad = row in ("gradient",) or (library, row) == ("regard", "ablation")
    on_gpu = device != "cpu"
    print("ready", flush=True)
    for line in sys.stdin:
        before = reset_peak(on_gpu)
        with torch.set_grad_enabled(needs_grad):
            wall, cpu = time.perf_counter(), time.process_time()
            result = function(work)
            if on_gpu:
                torch.cuda.synchronize()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        report = {"wall": wall, "cpu": cpu, "peak": read_peak(on_gpu) - before}
        if line.strip():
            torch.save(flatten(result), line.strip())
        del result
        print(json.dumps(report), flush=True)


def flatten(result: Any) -> Any:
    """All numbers of a result in one vector."""
    if isinstance(result, list | tuple):
        return torch.cat([flatten(x) for x in result])
    return torch.as_tensor(result).detach().float().cpu().flatten()


def reset_peak(on_gpu: bool) -> int:
    """Start to measure peak memory; returns the bytes in use."""
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give freed memory back, or the next call would reuse it
    Path("/proc/self/clear_refs").write_text("5")
    return read_status("VmRSS")


def read_peak(on_gpu: bool) -> int:
    """The peak since `reset_peak`, in bytes."""
    return torch.cuda.max_memory_allocated() if on_gpu else read_status("VmHWM")


def read_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith(name)).split()[1]) << 10


def count_lines(function: Callable) -> int:
    """Lines of code of a function's body."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    body = inspect.getsource(function).splitlines()[tree.body[0].lineno - 1 :]
    return sum(bool(line.strip()) for line in body)


def measure(row: str, libraries: list[str], options: Any) -> list[dict[str, Any]]:
    """One dict per library that has the row; the calls of all libraries take turns."""
    present = [x for x in libraries if (x, row) in TASKS]
    command = [sys.executable, __file__, *([options.model] if options.model else [])]
    command += ["--device", options.device, "--threads", str(options.threads), "--serve", row]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    found: dict[str, list[dict[str, float]]] = {}
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        workers = {}
        for library in present:
            error = (Path(scratch) / f"{library}.log").open("w")
            workers[library] = subprocess.Popen(
                [*command, library], env=environment, stderr=error, **pipe
            )
        for name, worker in workers.items():
            file = Path(scratch) / f"{name}.pt"
            first = ask(worker, None) and ask(worker, str(file))  # the first call is a warm-up
            if not first:
                reason = (Path(scratch) / f"{name}.log").read_text().strip().splitlines()[-1:]
                print(f"{row}: {name} cannot run: {reason}", flush=True)
                continue
            found[name], results[name] = [], file
        vectors = {name: torch.load(file) for name, file in results.items()}
        for _ in range(options.repeats):
            for name in found:
                found[name].append(json.loads(ask(workers[name], "")))
        for worker in workers.values():
            worker.communicate()
    reference = vectors[next(iter(vectors))]
    size = float(reference.abs().max())
    rows = []
    for name, runs in found.items():
        same = vectors[name].shape == reference.shape
        error = float((vectors[name] - reference).abs().max()) / size if same else float("inf")
        error = 0.0 if name == "transformers" else error
        walls = sorted(run["wall"] for run in runs)
        rows.append({
            "row": row, "library": name, "wall": median(walls), "least": walls[0],
            "most": walls[-1], "cpu": median(run["cpu"] for run in runs),
            "peak": max(run["peak"] for run in runs), "lines": count_lines(TASKS[name, row]),
            "error": error,
        })  # fmt: skip
    return rows


def ask(worker: Any, line: str | None) -> str:
    """The next line that a worker prints, after it got a line; "" if it ended."""
    try:
        if line is not None:
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
        return worker.stdout.readline()
    except BrokenPipeError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="Hugging Face folder of a Llama-like model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        row, library = options.serve
        serve(library, row, options.model, options.device, options.threads)
        return
    libraries = [x for x in options.libraries if find_spec(x)]
    if options.model is None and "inseq" in libraries:
        libraries.remove("inseq")  # needs a tokenizer
    packages = [x.replace("_", "-") for x in dict.fromkeys((*libraries, "torch")) if x != "regard"]
    print(", ".join(f"{x} {version(x)}" for x in packages), flush=True)
    print("| task | library | time | least to most | CPU time | peak | lines | error |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for row in options.rows:
        for x in measure(row, libraries, options):
            spread = f"{x['least']:.3g} to {x['most']:.3g} s"
            print(
                f"| {row} | {x['library']} | {x['wall']:.3g} s | {spread} | {x['cpu']:.3g} s | "
                f"{x['peak'] / 1e6:,.0f} MB | {x['lines']} | {x['error']:.0e} |",
                flush=True,
            )
            if not x["error"] <= TOLERANCE:
                sys.exit(
                    f"{row}: {x['library']} needs the numbers of the first, error {x['error']:.1e}"
                )


if __name__ == "__main__":
    main()
