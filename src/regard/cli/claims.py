"""`regard claims`: statements about sequence models, run as experiments."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID|FAMILY]...", help="Claims such as C10, or families such as C."),
    ] = None,
    run_all: Annotated[bool, typer.Option("--all", help="Run all claims.")] = False,
    full: Annotated[
        bool, typer.Option("--full/--fast", help="Larger experiments, with more seeds.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    device: Annotated[str, typer.Option(help="Device that models are trained on.")] = "cpu",
    jobs: Annotated[
        int | None, typer.Option(help="Processes side by side; default: one per core.", min=1)
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Reuse stored results of the same code.")
    ] = True,
    page: Annotated[Path | None, typer.Option(help="Write one HTML page of the results.")] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="Write Markdown pages and pictures to this folder.")
    ] = None,
    quiz: Annotated[Path | None, typer.Option(help="Write a quiz as Moodle XML.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    code: Annotated[
        bool, typer.Option("--code", help="Print the code of the experiments.")
    ] = False,
) -> None:
    """List claims about sequence models, or run them and compare with their declared verdicts.

    The exit code is 1 if a claim failed to run or another verdict than the declared one was found.
    """
    from regard.claims import gallery as pages
    from regard.claims import junit_xml, run_claims, select_claims
    from regard.claims.results import summarise
    from regard.cli.output import print_message, progress_bar
    from regard.errors import ConfigError
    from regard.files import write_text

    chosen = select_claims(names or [])
    writes = any((page, gallery, quiz, junit, as_json))
    if not names and not run_all and not writes:
        print(_listing(chosen))
        return
    if quiz and not names and not run_all:
        rule = f"claims or families for a quiz, or --all for all {len(chosen)}"
        if not sys.stdin.isatty():
            raise ConfigError(f"names: needs {rule}, got none; try regard claims A --quiz {quiz}")
        typer.confirm(f"Run all {len(chosen)} claims, some of which train models?", abort=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with progress_bar("running claims", len(chosen)) as advance:
        results = run_claims(
            chosen,
            seed=seed,
            full=full,
            device=device,
            jobs=jobs or cores or 1,
            use_cache=cache,
            progress=lambda result: advance(1),
        )
    if as_json:
        print(pages.to_json(results))
    else:
        for result in results:
            print(_describe(result, details=len(results) <= 10, code=code))
        print(summarise(results))
    if run_all and not page and not gallery:
        page = Path("claims.html")
    writers = {pages.write_page: page, pages.write_quiz: quiz, pages.write_gallery: gallery}
    for write, path in writers.items():
        if path:
            print_message(f"written: {write(results, path)}")
    if junit:
        print_message(f"written: {write_text(junit, junit_xml(results))}")
    if not all(result.agrees for result in results):
        raise typer.Exit(1)


def _listing(chosen: list) -> str:
    """The claims by family: id, verdict and statement."""
    from regard.claims.claim import FAMILIES
    from regard.claims.gallery import LABELS

    lines = []
    for letter, title in FAMILIES.items():
        group = [claim for claim in chosen if claim.id[0] == letter]
        lines += [f"\n{title}"] if group else []
        for claim in group:
            mark = LABELS[claim.verdict][0]
            trained = " (trains)" if claim.trained else ""
            lines.append(f"  {claim.id:4} {mark} {claim.statement}{trained}")
    marks = "   ".join(label for verdict, label in LABELS.items() if verdict)
    end = "Run some: regard claims A1 C10   a family: regard claims B   all: regard claims --all"
    return "\n".join([*lines, "", marks, end]).lstrip("\n")


def _describe(result, *, details: bool, code: bool) -> str:
    from regard.claims.gallery import LABELS

    claim = result.claim
    lines = [f"{claim.id:4} {LABELS[result.verdict]}: {claim.statement}"]
    if result.error:
        lines.append(f"     {result.error}")
    elif not result.agrees:
        lines.append(f"     declared: {LABELS[claim.verdict]}")
    if details:
        note = result.evidence.note if result.evidence else ""
        lines += [f"     {x}" for x in (claim.condition, claim.correction, claim.remark, note) if x]
        measures = result.evidence.measures if result.evidence else ()
        lines += [f"     · {measure}" for measure in measures]
        lines.append(f"     would have refuted it: {claim.refutation}")
        cached = ", from the cache" if result.cached else ""
        lines.append(f"     {result.seconds:.1f} s{cached}")
    if code:
        lines.append(claim.code)
    return "\n".join(lines)
