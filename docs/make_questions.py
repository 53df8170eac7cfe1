"""Write docs/work/questions.md: exam questions, each with its command and output.

python docs/make_questions.py    # half a minute; a test runs every command and compares
"""

import contextlib
import io
import os
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "work" / "questions.md"


class Question(NamedTuple):
    """A question, the command that answers it, and an optional note."""

    text: str
    command: str
    note: str = ""


QUESTIONS = (
    Question(
        "Update one of three word vectors by plain self-attention; now all at once.",
        "regard work self-attention",
        "The worked entry is that of the first word; the matrices hold all words.",
    ),
    Question(
        "Given X, W_Q, W_K, W_V: queries, keys, values, scores, weights and output, as fractions, "
        "then decimals, scaled or not.",
        'regard work three-tokens --each "scale=1,1/sqrt(2)" --only Q,K,V,S,Z,A,H --digits 12',
    ),
    Question(
        "The same with a causal or a local mask.",
        "regard work three-tokens --each mask=causal,local:1 --only R,A,H",
    ),
    Question(
        "Which convention is this, and what shape is each matrix? Why does this product fail?",
        "regard work column-convention docs/work/problems/other-convention.toml --shapes",
        "The second problem is written for columns but solved as rows.",
    ),
    Question(
        "What happens to A and H when β is 0, 1/√d, huge?",
        "regard work sharpness --only β*,A_*,H_*,remarks",
    ),
    Question(
        "Perturb this key / this query / this token: which outputs move and how much, to first and "
        "second order?",
        "regard work move-key move-query move-token --only dA,dH,H_1,H_2,n_*,remarks",
    ),
    Question(
        "Scale this key by α: for which queries does its weight rise?",
        "regard work scale-key --only A,A_a,remarks",
    ),
    Question(
        "Make the layer an identity, a permutation, a width-3 convolution; how far off is it?",
        "regard work identity permutation convolution --only A,H,r,remarks",
    ),
    Question(
        "Split d = 512 into 8 heads: dimensions, weights, cost; compute two heads on a toy example "
        "of 4 features.",
        "regard work parameter-counts two-heads --only d_k,w_QKV,w_O,w_A,FF,A_*,H_*,H,O,remarks",
    ),
    Question(
        "Write the position encodings for 0..3 with d = 4; show the rotation by k; the dot product "
        "of two positions.",
        "regard work positions",
    ),
    Question(
        "Show that permuting the input permutes the output; now pool; now mask.",
        "regard work shuffle --each mask=none,causal --only H_1,H_2,D,d,remarks",
    ),
    Question(
        "Trace an encoder block: every tensor, with residuals and LN; a decoder block with "
        "cross-attention.",
        "regard work encoder decoder "
        "--only A_*,O,O_c,P_1,P_2,m_1,v_1,r_1,LN_1,LN_2,LN_3,FF,remarks",
        "Without `--only` every one of the 39 and 42 steps is shown.",
    ),
    Question(
        "Cut an image into patches, embed, add CLS and positions, classify; resize the position "
        "embeddings.",
        "regard work vit position-resize --only T,X_p,X_c,X_0,A,LN_f,x,l,p,pos_*,remarks",
    ),
    Question(
        "Unroll RNN, GRU and LSTM for T steps with given numbers; gate values and states.",
        "regard work rnn gru lstm --only z_*,r_*,i_*,f_*,o_*,g_*,c_1,h_1,h_2,h_3 --digits 10",
    ),
    Question(
        "True or false, with reasons: z ≈ 0; z ≈ 1 and r ≈ 0; x = 0; f = 0; gates non-negative; "
        "gates as distributions.",
        "regard work gates --only remarks",
    ),
    Question("Prove σ(-x) = 1 - σ(x).", "regard work proof-sigmoid-negation"),
    Question(
        "Derive ∂J/∂W_c of an LSTM, check it with autograd, show the product of the forget gates.",
        "regard work forward-mode-lstm --autograd --only f_*,dc_*,dW_c,X_*,Dc_*,Dh_*,fW_c,remarks",
        "BPTT, each gradient first as a formula in one line, ∂J/∂W_c also in forward mode, and "
        "both compared with autograd.",
    ),
    Question(
        "Why do gradients vanish or explode; at which ρ? What does clipping do?",
        "regard work bptt-rnn --only ρ,u,n_*,n,k,cW,remarks",
    ),
    Question(
        "RNN with attention, step by step, with each score function.",
        "regard work recurrent-attention-additive --each score=dot,scaled,additive "
        "--only p_3,q_3,k_3,s_3,z_3,A_3,a_3,h_1,h_2,h_3,remarks",
    ),
    Question(
        "Mean and variance of q·k for given μ, σ, d; the right scale; a simulation.",
        "regard work dot-product-moments",
    ),
    Question(
        "Multiply-adds for encoder, cross and decoder attention at M, N, k; which term dominates; "
        "the cost of a second language.",
        "regard work cost-translation --only E*,D*,C*,t,u,remarks",
    ),
    Question(
        "Read this map: which token attends to which; does any token attend to itself?",
        'regard look phrases "14 May 2024" --to de --at encoder.1.self --describe',
        "The pretrained translator; the map of a worked example is described at the end of "
        "question 1.",
    ),
    Question(
        "What does this token point to, by head and layer, before and after training?",
        'regard look phrases "14 May 2024" --to de --at "*.cross" --query 2',
        "The query is the “.” of “14.”, after which the month is generated: after training, every "
        "head of the last layer attends to “may”.",
    ),
    Question(
        "How do the accuracy curves of CNN and ViT compare as data grows?",
        "python benchmarks/results_figures.py docs/results/figures/glyphs-sizes.json --show",
        "Five seeds (four at 100,000) with 95% intervals; [the results](../results/images.md) have "
        "the training commands.",
    ),
    Question(
        "Compare the transformer with an RNN and with an MLP, with numbers.",
        "regard work cost-layers",
    ),
)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


def page() -> str:
    """Text of the page."""
    parts = [
        "# Twenty-five questions",
        "Exam questions on attention and recurrent networks, each with one command that answers it "
        "and its output, shortened with `--only`. Generated by `python docs/make_questions.py`; "
        "a test runs every command and compares. The options of the command are described in "
        "[Worked solutions](by-hand.md).",
    ]
    for number, question in enumerate(QUESTIONS, 1):
        parts.append(f"## {number}. {question.text}")
        if question.note:
            parts.append(question.note)
        parts.append(transcript(question.command))
    return "\n\n".join(parts) + "\n"


def transcript(command: str) -> str:
    """A command and its output as a fenced block."""
    return f"```text\n$ {command}\n{run_command(command)}\n```"


def run_command(command: str) -> str:
    """Output of a command."""
    program, *rest = shlex.split(command)
    if program == "regard":
        from regard.cli import app

        with _working_directory(ROOT):
            output = CliRunner().invoke(app, rest).output
    else:
        output = _python(rest)
    return "\n".join(line.rstrip() for line in output.rstrip().splitlines())


def _python(rest: list[str]) -> str:
    """Output of one of our scripts, run on copies of its input files."""
    script, *arguments = rest
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, _working_directory(Path(folder)):
        for name in (path for path in arguments if (ROOT / path).is_file()):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, name)
        before, sys.argv = sys.argv, [script, *arguments]
        try:
            with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
                runpy.run_path(str(ROOT / script), run_name="__main__")
        finally:
            sys.argv = before
    return output.getvalue()


@contextlib.contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main()
