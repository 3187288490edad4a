"""Run an experiment from a checkout: `python -m experiments mnist --smoke`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from experiments.provenance import stored_time
from experiments.registry import REGISTRY, load_experiment
from permutohedral.errors import InputError, PermutohedralError

RESULTS = Path(__file__).resolve().parents[1] / "results"
# of a shell after Ctrl-C
_INTERRUPTED = 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options that all experiments share."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Reproduce the tables of the paper.")
    parser.add_argument("experiment", nargs="?", choices=sorted(REGISTRY), metavar="NAME", help="see --list")
    parser.add_argument(
        "--list", action="store_true", help="list the experiments and how long they took, or the rows of NAME"
    )
    parser.add_argument(
        "--row",
        action="append",
        default=[],
        metavar="ROW",
        help="run only this row, or all rows of a pattern; repeatable",
    )
    parser.add_argument(
        "--config", action="append", default=[], type=Path, metavar="FILE", help="run the row in this YAML file"
    )
    parser.add_argument("--smoke", action="store_true", help="shorten every row, to under a minute in all")
    parser.add_argument("--seeds", type=int, help="trainings of each row (default: that of NAME, 1 with --smoke)")
    parser.add_argument("--split", help="evaluate on this split, such as validation (default: test)")
    parser.add_argument("--jobs", type=int, default=1, help="rows that run in parallel (default: 1)")
    parser.add_argument("--resume", action="store_true", help="keep finished rows, continue from checkpoints")
    parser.add_argument("--report-only", action="store_true", help="write the report of existing results")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder of all results (default: out/NAME)")
    data = os.environ.get("PERMUTOHEDRAL_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=data,
        metavar="FOLDER",
        help="folder of the data sets, or sample (default: download; sample with --smoke)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    given = parser.parse_args(words)
    if given.experiment is None:
        if not given.list:
            parser.error("pass the NAME of an experiment; --list shows them")
        for name, (_, summary) in REGISTRY.items():
            print(f"{name:16}{summary}\n{'':16}{stored_time(RESULTS / f'{name}.csv') or 'not measured yet'}")
        return 0
    if given.jobs < 1 or (given.seeds is not None and given.seeds < 1):
        parser.error("--jobs and --seeds must be at least 1")
    try:
        _run(given)
    except PermutohedralError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = shlex.join(["python", "-m", "experiments", *(word for word in words if word != "--resume"), "--resume"])
        print(f"interrupted; to continue: {again}", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _run(given: argparse.Namespace) -> None:
    from experiments.data.sample import SAMPLE
    from experiments.experiment import run_rows, with_seeds
    from experiments.report import write_page
    from experiments.results import parse_config
    from experiments.training import RunOptions

    experiment = load_experiment(given.experiment)
    if given.list:
        content = experiment.read_rows()
        for group, remark in (("rows", ""), ("more_rows", " (only by --row)")):
            for name, row in content.get(group, {}).items():
                print(f"{name:30}{row['title']}{remark}")
        return
    output = given.output or Path("out") / (experiment.name + "-smoke" * given.smoke)
    data = given.data or (SAMPLE if given.smoke else None)
    options = RunOptions(output, data, given.device, given.resume, progress=True)
    if not given.report_only:
        configs = experiment.choose_rows(given.row, given.config, given.smoke)
        if given.split is not None:
            if not all(hasattr(config, "split") for config in configs):
                raise InputError(f"--split: the rows of {experiment.name} have one split only; leave it out")
            plain = [asdict(config) | {"split": given.split} for config in configs]
            configs = [parse_config(experiment.config, each) for each in plain]
        configs = with_seeds(configs, given.seeds or (1 if given.smoke else experiment.seeds))
        for _ in run_rows(experiment, configs, options, _log, given.jobs):
            pass
    results = experiment.read_results(output)
    if not results:
        raise InputError(f"output: there are no results of {experiment.name} in {output}; run the experiment first")
    is_smoke = any(map(experiment.is_smoke, {result.name: result for result in results}.values()))
    for page in experiment.report(results, options):
        labelled = page.label_smoke() if is_smoke else page
        path = write_page(labelled, output)
        print("\n\n".join(map(str, labelled.tables)))
        print(f"wrote {path}", file=sys.stderr)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has enough; Python would complain when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
