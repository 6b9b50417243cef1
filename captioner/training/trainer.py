"""A training run: epochs of steps, with validation and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from captioner.checkpoint import STATE, readable
from captioner.checkpoint_writer import save_model
from captioner.data.workers import load_items
from captioner.errors import CaptionerError, CheckpointError, DataError, error_summary
from captioner.evaluation.intervals import FEW_PHOTOS
from captioner.log import logger, progress_bar
from captioner.models.backbones.sources import fold_frozen_stages
from captioner.runtime.cuda_graphs import graphs_of_search
from captioner.runtime.device import autocast
from captioner.runtime.distributed import rank, world_size
from captioner.runtime.draws import seed_of
from captioner.runtime.gradients import distributed_data_parallel
from captioner.runtime.processes import DeferredInterrupts, from_first_process
from captioner.training.capture import FixedShapeStep, step_kind
from captioner.training.optimizer import AveragedModel, build_optimizer
from captioner.training.run_log import RunLog, model_card
from captioner.training.setup import Setup, reading_processes
from captioner.training.step import (
    StepOutput,
    learning_rate_factor,
    step_metrics,
    training_step,
    with_counts,
)
from captioner.training.validation import (
    Validation,
    print_validation,
    sample_sheets,
    validate,
    validation_decoding,
)

MAX_SKIPPED_STEPS = 10  # in a row, whose gradients are not finite; then the run stops
# Attributes of the trainer that a checkpoint holds as they are.
COUNTERS = ("epoch", "batch", "step", "best", "bad_epochs", "lr_drops", "figures", "before")


class Trainer:
    """A run; `save` writes all that `restore` needs to go on with it.

    Attributes:
        evaluated_model: What is validated and saved: the averaged weights if there are any.
        epoch, batch, step: The next ones; `step` counts the optimizer's.
        skipped_steps: Steps in a row whose gradient was not finite.
        lr_drops: How often the plateau schedule has lowered the learning rate.
        best, figures, bad_epochs: The best validation metric, the figures of that epoch, and the
            epochs since.
        before: CIDEr of the model that the run began with, if that was validated.
    """

    def __init__(self, setup: Setup, run: Path, device: torch.device) -> None:
        self.setup, self.run, self.device = setup, run, device
        self.config, self.task, self.model = setup.config, setup.task, setup.task.model
        self.rank, self.processes = rank(), world_size()
        self.interrupts = DeferredInterrupts()
        optim = self.config.optim
        kind = step_kind(self.config, device, self.processes)
        self.optimizer = build_optimizer(self.task, optim, on_device=kind != "off")
        self.averaged = AveragedModel(self.model, optim.ema_decay) if optim.ema_decay else None
        self.evaluated_model = self.averaged.model if self.averaged else self.model
        if device.type == "cuda":  # TF32 for what is computed in float32
            torch.set_float32_matmul_precision("high")
        options: dict[str, Any] = {
            "optimizer": self.optimizer,
            "clip_norm": optim.clip_norm,
            "autocast": autocast(device, self.config.train.precision),
            "device": device,
        }
        compress = optim.compress_gradients
        self.take_step: Callable[..., StepOutput]
        if kind == "off":
            ddp = distributed_data_parallel(self.task, compress=compress)
            self.take_step = partial(training_step, ddp, **options)
        else:
            options["captions"] = math.ceil(self.config.data.batch_size / self.processes)
            options["longest"] = int(setup.dataset.captions.lengths.max())
            self.take_step = FixedShapeStep(self.task, **options, kind=kind, compress=compress)
        self.epoch = self.batch = self.step = self.lr_drops = self.bad_epochs = 0
        self.skipped_steps = torch.zeros((), dtype=torch.long, device=device)
        self.best = -math.inf
        self.figures: dict[str, Any] = {}
        self.before: float | None = None
        self.unreadable: set[str] = set()  # images that were reported

    def fit(self, *, validate_start: bool = False) -> None:
        """Train until the last epoch, or until patience ends.

        Args:
            validate_start: Also report the CIDEr of the model that a new run begins with.

        Raises:
            KeyboardInterrupt: A signal came; a checkpoint was saved unless a step was half done.
            CaptionerError: The run cannot go on; a checkpoint was saved unless the gradient was not
                finite in many steps in a row.
        """
        settings, begin = self.config.train, self.epoch
        if not self.config.data.cache:  # of what the frozen stages make of images
            fold_frozen_stages(self.model.encoder)
        writing = closing(RunLog(self.run, self.step)) if self.rank == 0 else nullcontext()
        with writing as log, self.interrupts:
            if validate_start and self.step == 0:
                self.before = self._validate().figures.get("CIDEr")
                if self.before is not None:
                    count = len(self.setup.validation.images)
                    few = ", too few to tell two models apart" if count < FEW_PHOTOS else ""
                    logger.info(f"before: CIDEr {self.before:.3f} on {count} photos{few}")
            while not self.has_ended:
                self._fit_epoch(log)
        if self.epoch == begin:
            logger.info(
                f"{self.run}: this run has ended after epoch {begin}; to train longer, resume it "
                "with more train.epochs or a larger train.patience"
            )
        elif self._out_of_patience():
            logger.info(
                f"stopped: {settings.metric} has not risen for {self.bad_epochs} epochs "
                f"(train.patience); the best model is of epoch {self.figures.get('epoch')}"
            )
        after = self.figures.get("CIDEr")
        if self.before is not None and after is not None:
            epoch = self.figures["epoch"]
            logger.info(f"CIDEr {self.before:.3f} before, {after:.3f} after epoch {epoch}")
            if after < self.before:
                logger.warning(
                    "the model that the run began with was better; use that, or train again with a "
                    "lower optim.lr"
                )

    @property
    def has_ended(self) -> bool:
        """Whether all epochs are done, or patience is at an end."""
        return self.epoch >= self.config.train.epochs or self._out_of_patience()

    def _out_of_patience(self) -> bool:
        return 0 < self.config.train.patience <= self.bad_epochs

    def _fit_epoch(self, log: RunLog | None) -> None:
        """Train, validate and save one epoch; after an interrupt, save what can be resumed."""
        try:
            self._train_epoch(log)
            if not from_first_process(lambda: (self.run / "last").exists()):
                self.save()  # a kill between `best` and the first `last` would leave no way on
            validation = self._validate()
            self.interrupts.release()
            self.interrupts.deferred = True  # until the checkpoint that knows of this validation
        except (KeyboardInterrupt, CaptionerError) as error:
            # While interrupts are deferred, a step is half done: keep the last checkpoint. Nor can
            # a process save alone after an error that the others do not know of.
            alone = self.processes > 1 and isinstance(error, CaptionerError)
            if not self.interrupts.deferred and not alone:
                self.save()
            raise
        self.epoch, self.batch = self.epoch + 1, 0
        self._update_best(validation)
        if log is not None:  # before the checkpoint: a kill between the two loses nothing
            log.write_validation(self.epoch - 1, self.step, validation.figures)
        self.save()
        if log is not None:
            images, vocabulary = self.setup.validation, self.setup.vocabulary
            sheets = sample_sheets(validation, images, vocabulary, self.config.train.samples)
            log.pictures(self.step, sheets)
            self._report(validation.unreadable)
            print_validation(self.epoch, self.step, validation.figures, self.config)
        self.interrupts.release()

    def _train_epoch(self, log: RunLog | None) -> None:
        """Take the steps of this epoch that are not done yet."""
        config, setup, optim = self.config, self.setup, self.config.optim
        batches_of_all = setup.batches.epoch(self.epoch)
        num_batches = len(batches_of_all)
        steps = math.ceil(num_batches / optim.accumulate) * config.train.epochs
        share = partial(setup.batches.share, process=self.rank, processes=self.processes)
        keys = [(self.epoch, share(entries)) for entries in batches_of_all[self.batch :]]
        workers = reading_processes(config.data.workers, self.device)
        on_gpu = self.device.type == "cuda"
        loader = load_items(setup.dataset, keys, workers=workers, pin_memory=on_gpu)
        title = f"epoch {self.epoch + 1}/{config.train.epochs}"
        bar = progress_bar(desc=title, total=num_batches, initial=self.batch, unit="batch")
        self.task.train()
        first_step = saved_step = self.step
        started, data_wait_s = time.perf_counter(), 0.0
        self.interrupts.deferred = True  # also while batches are fetched, or workers would die
        with bar, closing(loader):  # or its workers would outlive an interrupt
            while True:
                asked = time.perf_counter()
                try:
                    batches = list(islice(loader, optim.accumulate))
                except CaptionerError:
                    self.interrupts.deferred = False
                    raise
                if not batches:
                    break
                data_wait_s += time.perf_counter() - asked
                for batch in batches:
                    if batch.unreadable:
                        self._report(batch.unreadable)
                output = None
                if nonempty := with_counts(batches, self.interrupts):
                    factor = learning_rate_factor(self.step, steps, optim, self.lr_drops)
                    output = self.take_step(nonempty, learning_rate_factor=factor)
                    self.skipped_steps = torch.where(output.updated, 0, self.skipped_steps + 1)
                if self.averaged:
                    self.averaged.update(self.model, self.step)
                self.batch += len(batches)
                self.step += 1
                bar.update(len(batches))
                is_last = self.batch >= num_batches  # of an epoch, which may be short
                if output and (is_last or self.step % config.train.log_every == 0):
                    if in_a_row := int(self.skipped_steps):
                        self._report_skipped(in_a_row)
                    elapsed = time.perf_counter() - started
                    metrics = {
                        "epoch": self.epoch,
                        **step_metrics(output, self.optimizer),
                        "step_s": elapsed / (self.step - first_step),
                        "data_wait": data_wait_s / elapsed,
                    }
                    started, first_step, data_wait_s = time.perf_counter(), self.step, 0.0
                    bar.set_postfix(loss=f"{metrics['total']:.3f}")
                    if log is not None:
                        log.write("train", self.step, metrics)
                every = config.train.checkpoint_every
                if every and self.step - saved_step >= every and not is_last:
                    self.save()
                    saved_step = self.step
        self.interrupts.release()

    def _report_skipped(self, skipped: int) -> None:
        logger.warning(
            f"step {self.step}: the gradient was not finite in the last {skipped} steps, which "
            "were skipped"
        )
        if skipped >= MAX_SKIPPED_STEPS:
            raise CaptionerError(
                f"the gradient was not finite in {skipped} steps in a row; lower optim.lr or set "
                "optim.clip_norm, and start from an earlier model"
            )

    def _report(self, unreadable: Iterable[tuple[str, str]]) -> None:
        """Name images that were left out, each once, with the reason; each process has its own."""
        for path, reason in unreadable:
            if path not in self.unreadable:
                self.unreadable.add(path)
                logger.error(f"{path}: {reason}, left out ({len(self.unreadable)} so far)")

    def _validate(self) -> Validation:
        """Validate the evaluated model, by random numbers that depend on the epoch."""
        train = self.config.train
        # for the cells that attention.at_test: sample draws
        torch.manual_seed(seed_of(train.seed, self.epoch, 0, self.rank))
        return validate(
            self.evaluated_model,
            self.setup.vocabulary,
            self.setup.validation,
            decoding=validation_decoding(self.config),
            device=self.device,
            graphs=graphs_of_search(self.device) if train.compile != "off" else None,
        )

    def _update_best(self, validation: Validation) -> None:
        """Write the `best` folder if this validation is the best so far; else count it as bad."""
        metric = validation.figures.get(self.config.train.metric)
        if metric is None:  # CIDEr
            raise DataError(
                f"{self.config.train.metric} needs two readable validation photos of each source; "
                "mend them, or choose by another train.metric"
            )
        self.bad_epochs = 0 if metric > self.best else self.bad_epochs + 1
        if metric >= self.best:  # of equal ones the later, which has learned more
            self.best = metric
            self.figures = {"epoch": self.epoch, **validation.figures}
            self.save("best")
        if self.bad_epochs and self.config.optim.schedule == "plateau":
            self.lr_drops += self.bad_epochs % self.config.optim.plateau_epochs == 0

    def save(self, name: str = "last") -> None:
        """Write a model folder; `last` also holds all that a resumed run needs."""
        from_first_process(partial(self._write, name))

    def _write(self, name: str) -> None:
        setup = self.setup
        state: dict[str, Any] = {
            **{name: getattr(self, name) for name in COUNTERS},
            "skipped_steps": int(self.skipped_steps),
            "optimizer": self.optimizer.state_dict(),
            "data": setup.data_digests,
            "task": {n: x for n, x in self.task.state_dict().items() if not n.startswith("model.")},
        }
        if self.averaged:  # the model file holds the averaged weights, and frozen stages are alike
            state["raw"] = {
                name: value
                for name, value in self.model.state_dict().items()
                if not name.startswith("encoder.backbone.") or self.config.encoder.trainable_from
            }
        save_model(
            self.run / name,
            self.evaluated_model,
            self.config,
            setup.vocabulary,
            card=model_card(self.config, self.figures, setup.data_digests),
            training_state=state if name == "last" else None,
        )

    def restore(self, folder: Path) -> None:
        """Load a verified checkpoint; `prepare` has loaded its weights."""
        state, digests = load_training_state(folder), self.setup.data_digests
        try:
            if changed := [name for name in digests if state["data"][name] != digests[name]]:
                raise CheckpointError(
                    f"{folder}: this run began with other {' and '.join(changed)} than those that "
                    "the settings of data name now; resume with its own, or start another run"
                )
            if self.averaged:
                self.model.load_state_dict(state["raw"], strict=False)
            groups = self.optimizer.state_dict()["param_groups"]  # settings are the recipe's
            self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
            weights = {f"model.{name}": x for name, x in self.model.state_dict().items()}
            self.task.load_state_dict({**weights, **state["task"]})
            state.setdefault("lr_drops", state.get("drops"))  # its name in earlier versions
            state.setdefault("before", None)  # they lack it
            for name in COUNTERS:
                setattr(self, name, state[name])
            self.skipped_steps.fill_(state["skipped_steps"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{folder}: does not fit this recipe or this version of captioner "
                f"({error_summary(error)}); resume with the run's own settings, or "
                "start another run with train.start_from set to this folder"
            ) from None


def load_training_state(folder: Path) -> dict[str, Any]:
    """Read the training state of a verified folder."""
    with readable(folder / STATE):
        return torch.load(folder / STATE, map_location="cpu", weights_only=True)
