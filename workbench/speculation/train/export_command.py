"""Write a trained head to a file that engines load, and measure it as it is there: rounded to float16."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.speculation.train.generate_command import log
from workbench.speculation.train.train_command import add_data_arguments, compute_missing, in_words, rounded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    add_data_arguments(parser)
    parser.add_argument("run", type=Path, help="what `train --out` named")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write; the model's own place by default")


def run(args: argparse.Namespace) -> None:
    """Write the file.

    Raises:
        ConfigurationError: there is no checkpoint, or no text.
        ModelLoadError: the model cannot be loaded, or is not the one that the head was trained for.
    """
    # Here, since the switches of `prepare_process` act on these libraries only before they are imported.
    from workbench.engine.eagle_proposer import head_target
    from workbench.errors import ModelLoadError
    from workbench.speculation.eagle_file import VOCABULARY, head_path, write_head
    from workbench.speculation.train.acceptance import measure
    from workbench.speculation.train.examples import Examples, read_data
    from workbench.speculation.train.features import FeatureFiles
    from workbench.speculation.train.head_module import TrainingHead
    from workbench.speculation.train.target import load_target
    from workbench.speculation.train.training import read_checkpoint

    checkpoint, held_out = read_checkpoint(args.run), read_data(args.held_out)
    target = load_target(args.model)
    wanted = head_target(target)
    if wanted.sha256 != checkpoint.facts["model_sha256"]:
        raise ModelLoadError(
            f"{args.run} was trained for {checkpoint.facts['model']}, not for {wanted.name}: give --model"
        )
    head = TrainingHead.from_target(target.model, checkpoint.vocabulary)
    head.load_state_dict({name: value.half().float() for name, value in checkpoint.head.items()})
    features = FeatureFiles(args.cache, held_out, wanted.sha256)
    compute_missing(features, target.model, "held-out")
    examples = Examples(held_out, features)
    measured = rounded(measure(head, (examples.batch(numbers) for numbers in examples.in_order(1024))))
    path = args.out or head_path(wanted.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {**checkpoint.facts, "num_steps": checkpoint.step, "reports": checkpoint.reports, "held_out": measured}
    write_head(path, {**checkpoint.head, VOCABULARY: checkpoint.vocabulary}, wanted, facts)
    log(f"{path}: {path.stat().st_size:,} bytes, step {checkpoint.step:,}; {in_words(measured)}")
