"""Train a head on what the default model wrote.

May be killed at any time: the same command goes on from the last checkpoint, and ends with the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from workbench.config import DEFAULT_MODEL
from workbench.errors import ConfigurationError
from workbench.speculation.train.generate_command import log
from workbench.speculation.train.parts import PACKED, Part
from workbench.speculation.train.sequences import GeneratedSequence
from workbench.speculation.train.vocabulary import coverage, frequent_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workbench.speculation.train.acceptance import Acceptance
    from workbench.speculation.train.examples import Examples
    from workbench.speculation.train.head_module import TrainingHead
    from workbench.speculation.train.training import Checkpoint, Training

REPORT_EVERY_S: Final = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`. Defaults of the training itself are those of `TrainingSettings`."""
    add_data_arguments(parser)
    _add_texts(parser, "--data", Part.TRAIN, "trained on")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for checkpoints")
    parser.add_argument(
        "--start", type=Path, metavar="DIR", help="begin with the weights of another training: its --out"
    )
    parser.add_argument("--vocabulary", type=int, default=8192, metavar="N", help="tokens that the head can draft")
    parser.add_argument("--epochs", type=int, default=1, help="times that each text is seen")
    parser.add_argument(
        "--batch-tokens", type=int, default=1024, metavar="N", help="drafted tokens of a step, at least"
    )
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="the highest, after the warm-up")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="of matrices")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of numbers left out of the layer's branches")
    parser.add_argument("--drafted", type=int, default=3, metavar="N", help="tokens drafted from every position")
    parser.add_argument("--step-decay", type=float, default=0.8, help="weight of a drafted token beside the one before")
    parser.add_argument("--hidden-weight", type=float, default=0.5, help="weight of the distance of hidden states")
    parser.add_argument("--prompt-weight", type=float, default=0.0, help="weight of positions in the prompt")
    parser.add_argument("--seed", type=int, default=0, help="of the order of texts")
    parser.add_argument("--checkpoint-minutes", type=float, default=3.0, help="time between two checkpoints")
    parser.add_argument("--report-every", type=int, default=100, metavar="N", help="steps between two measurements")
    parser.add_argument("--report-tokens", type=int, default=6000, metavar="N", help="held-out tokens measured on then")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `train` and `export` have in common."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="the target, named as the engine's model is")
    _add_texts(parser, "--held-out", Part.HELD_OUT, "measured on")
    parser.add_argument(
        "--cache", type=Path, required=True, metavar="DIR", help="folder for hidden states: 1.2 kB a token"
    )


def _add_texts(parser: argparse.ArgumentParser, option: str, part: Part, use: str) -> None:
    words = f"texts to be {use}: folder of shards, or packed file (default: those of the shipped head)"
    parser.add_argument(option, type=Path, default=PACKED[part], metavar="PATH", help=words)


def run(args: argparse.Namespace) -> None:
    """Train, or go on training.

    Raises:
        ConfigurationError: there are no texts, `--out` holds another training, or `--start` none that fits.
        ModelLoadError: the model cannot be loaded.
    """
    # Here, since the switches of `prepare_process` act on these libraries only before they are imported.
    import torch

    from workbench.models.fingerprint import model_sha256
    from workbench.speculation.train.copying import begin_copying
    from workbench.speculation.train.examples import Examples, read_data
    from workbench.speculation.train.features import FeatureFiles
    from workbench.speculation.train.head_module import TrainingHead
    from workbench.speculation.train.target import load_target
    from workbench.speculation.train.training import CHECKPOINT, Training
    from workbench.speculation.train.warm_start import FITTED_TOKENS, fit_fuse

    texts, held_out = read_data(args.data), read_data(args.held_out)
    target = load_target(args.model)
    sha256 = model_sha256(target.path)
    start = None if args.start is None else read_start(args.start, sha256)
    features, held_out_features = (FeatureFiles(args.cache, each, sha256) for each in (texts, held_out))
    compute_missing(held_out_features, target.model, "held-out")
    compute_missing(features, target.model, "training")
    vocabulary = (
        frequent_tokens(texts, args.vocabulary, target.config.vocab_size)
        if start is None
        else start.vocabulary.tolist()
    )
    facts = {"model": target.config.name, "model_sha256": sha256, **facts_about(args, texts, held_out, vocabulary)}
    head = TrainingHead.from_target(target.model, torch.tensor(vocabulary))
    del target
    examples = Examples(texts, features, args.prompt_weight)
    if start is not None:
        facts["start"] = {**start.facts, "num_steps": start.step}
        head.load_state_dict(start.head)
    elif not (args.out / CHECKPOINT).exists():
        begin_copying(head)
        order = Examples(texts, features).order(args.seed, 0, args.batch_tokens)
        fit_fuse(head, (examples.batch(numbers) for numbers in order[: FITTED_TOKENS // args.batch_tokens]))
    training = Training(head, examples, settings_from(args), args.out, facts)
    log(f"{training.step:,} of {training.num_steps:,} steps are done already")
    watch = Watch(training, head, Examples(held_out, held_out_features), args.report_every, args.report_tokens)
    training.run(watch, 60 * args.checkpoint_minutes)
    log(f"done; to use it: export {args.out}")


def read_start(folder: Path, model_sha256: str) -> Checkpoint:
    """Return what another training has come to.

    Raises:
        ConfigurationError: there is none in this folder, or its head is for another model.
    """
    from workbench.speculation.train.training import read_checkpoint

    start = read_checkpoint(folder)
    if start.facts["model_sha256"] != model_sha256:
        raise ConfigurationError(
            f"{folder} holds a head for {start.facts['model']}, which is another model: give its --model, or no --start"
        )
    return start


def facts_about(
    args: argparse.Namespace,
    texts: Sequence[GeneratedSequence],
    held_out: Sequence[GeneratedSequence],
    vocabulary: Sequence[int],
) -> dict[str, Any]:
    """Return what the training depends on beside the model, and say it."""
    facts = {
        "data_sha256": fingerprint(texts),
        "num_texts": len(texts),
        "num_tokens": sum(one.num_generated for one in texts),
        "vocabulary_size": len(vocabulary),
        "held_out_coverage": coverage(vocabulary, held_out),
        "prompt_weight": args.prompt_weight,
    }
    log(
        f"{facts['num_tokens']:,} tokens in {facts['num_texts']:,} texts; {len(vocabulary):,} tokens can be drafted, "
        f"which are {facts['held_out_coverage']:.2%} of those in the held-out answers"
    )
    return facts


def settings_from(args: argparse.Namespace) -> Any:
    """Return the `TrainingSettings` that the arguments mean."""
    from workbench.speculation.train.loss import Objective
    from workbench.speculation.train.training import TrainingSettings

    return TrainingSettings(
        num_epochs=args.epochs,
        batch_tokens=args.batch_tokens,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        dropout=args.dropout,
        seed=args.seed,
        objective=Objective(args.drafted, args.step_decay, args.hidden_weight),
    )


def compute_missing(features: Any, model: Any, name: str) -> None:
    """Let the target compute the features that are missing, and say how that goes."""
    missing, started = features.num_missing_tokens, time.monotonic()
    done, next_s = 0, started + REPORT_EVERY_S

    def say(count: int) -> None:
        nonlocal done, next_s
        done += count
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + REPORT_EVERY_S
            rate = done / (time.monotonic() - started)
            left_s = (missing - done) / rate
            log(f"hidden states of {name} texts: {done:,} / {missing:,}, {rate:.0f} tok/s, {left_s / 60:.0f} min left")

    features.compute(model, say)


def fingerprint(sequences: Sequence[GeneratedSequence]) -> str:
    """Return a SHA-256 of the texts."""
    digest = hashlib.sha256()
    for one in sequences:
        header = [len(one.token_ids), one.num_prompt_tokens]
        digest.update(np.array([*header, *one.token_ids], np.int32).tobytes())
    return digest.hexdigest()


class Watch:
    """Says after steps how the training goes, and measures now and then."""

    def __init__(self, training: Training, head: TrainingHead, held_out: Examples, every: int, num_tokens: int) -> None:
        self._training, self._head, self._held_out = training, head, held_out
        self._every, self._num_tokens = every, num_tokens
        self._loss, self._losses = 0.0, 0
        self._started_s, self._tokens, self._measured_s = time.monotonic(), 0, 0.0
        if training.step == 0:
            self._report()

    def __call__(self, loss: float, num_tokens: int) -> None:
        """Take the state after a step."""
        self._loss, self._losses, self._tokens = self._loss + loss, self._losses + 1, self._tokens + num_tokens
        if self._training.step % self._every == 0 or self._training.step == self._training.num_steps:
            self._report()

    def _report(self) -> None:
        from workbench.speculation.train.acceptance import measure

        started = time.monotonic()
        batches = (self._held_out.batch(numbers) for numbers in self._held_out.in_order(1024, self._num_tokens))
        self._head.eval()
        found = measure(self._head, batches)
        self._head.train()
        report: dict[str, Any] = {"step": self._training.step, **rounded(found)}
        if self._losses:
            report["loss"] = round(self._loss / self._losses, 4)
        self._training.reports.append(report)
        rate = self._tokens / max(1e-9, started - self._started_s - self._measured_s)
        log(f"step {self._training.step:,} / {self._training.num_steps:,}, {rate:.0f} tok/s: {in_words(report)}")
        self._loss, self._losses = 0.0, 0
        self._measured_s += time.monotonic() - started


def rounded(acceptance: Acceptance) -> dict[str, Any]:
    """Return plain values for a file."""
    plain = asdict(acceptance)
    plain["by_position"] = [round(share, 4) for share in acceptance.by_position]
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()}


def in_words(report: dict[str, Any]) -> str:
    """Return a report as one line."""
    positions = " ".join(f"{share:.1%}" for share in report["by_position"])
    loss = f"loss {report['loss']:.3f}, " if "loss" in report else ""
    return (
        f"{loss}first token agrees {report['agreement']:.1%}; at temperature 0 accepted by position {positions}, "
        f"{report['tokens_per_step']:.2f} tokens a step"
    )
