"""A training run in its folder: begin it, resume it, end it cleanly when told to."""

from __future__ import annotations

import sys
from pathlib import Path

from captioner.checkpoint import newest_checkpoint
from captioner.config import Config, from_yaml, to_yaml
from captioner.data.vocabulary import Vocabulary
from captioner.device import choose_device
from captioner.errors import CheckpointError, ConfigError
from captioner.training.loop import Trainer
from captioner.training.run_log import RunLog
from captioner.training.setup import changes, prepare


def train(config: Config, *, resume: bool = False) -> Path:
    """Run a recipe; return the folder of the best model.

    A resumed run goes through the same steps as one that was never interrupted, to the last bit
    (on the same machine, with the same number of threads).

    Raises:
        CaptionerError: in one sentence, whatever cannot be used.
        KeyboardInterrupt: after a checkpoint was saved, on SIGINT and SIGTERM.
    """
    run = Path(config.train.output)
    checkpoint = _checkpoint_to_resume(run, config) if resume else None
    if not resume and (run / "last").exists():
        raise ConfigError(
            f"train.output: {run} already holds a run; add --resume to go on with it, or name "
            "another folder"
        )
    device = choose_device(config.train.device)
    vocabulary = Vocabulary.load(checkpoint / "vocabulary.json") if checkpoint else None
    setup = prepare(config, device, vocabulary)
    trainer = Trainer(setup, run, device)
    if checkpoint:
        trainer.restore(checkpoint)
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    trainer.log = RunLog(run, resume_step=trainer.step)
    try:
        with trainer.interrupts:
            trainer.fit()
    finally:
        trainer.log.close()
    return run / "best"


def _checkpoint_to_resume(run: Path, config: Config) -> Path:
    try:
        before = from_yaml(Config, (run / "config.yaml").read_text(encoding="utf-8"))
    except OSError:
        raise CheckpointError(f"{run}: there is no run to resume; leave --resume out") from None
    fixed, changed = changes(before, config)
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: not the same as when {run} began; resume with its own settings "
            f"(--config {run / 'config.yaml'}), or start another run"
        )
    if changed:
        print(f"{', '.join(changed)}: changed since {run} began", file=sys.stderr)
    return newest_checkpoint(run)
