"""The training loop: step, validation and checkpoint of a run."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from captioner.checkpoint import load_training_state, load_weights, save_model
from captioner.data.batch import Batch
from captioner.data.dataset import load_batches
from captioner.data.transforms import open_image
from captioner.errors import CaptionerError, CheckpointError, ImageError
from captioner.models.build import CaptionModel
from captioner.runtime.device import autocast
from captioner.training.diagnostics import attention_statistics, warnings
from captioner.training.interrupts import Interrupts
from captioner.training.model_card import model_card
from captioner.training.optimizer import (
    AveragedModel,
    build_optimizer,
    learning_rate_factor,
    load_state,
)
from captioner.training.run_log import RunLog
from captioner.training.setup import Setup
from captioner.training.validation import Validation, validate
from captioner.visualization import attention_sheet


class Trainer:
    """State of a run: what `save` writes is all that `restore` needs."""

    log: RunLog

    def __init__(self, setup: Setup, run: Path, device: torch.device) -> None:
        self.setup, self.run, self.device = setup, run, device
        self.config = setup.config
        self.model = setup.model
        self.averaged: AveragedModel | None = None
        if self.config.optim.ema_decay:
            self.averaged = AveragedModel(self.model, self.config.optim.ema_decay)
        self.objective = setup.objective
        beside = self.objective.learned()
        self.optimizer = build_optimizer(self.model, self.config.optim, beside=beside)
        self.learned = [*self.model.parameters(), *beside]
        self.amp = autocast(device, self.config.train.precision)
        self.interrupts = Interrupts()
        self.epoch = 0
        self.batch = 0  # the cursor: batches of this epoch already done
        self.step = 0  # optimiser steps
        self.best = -math.inf
        self.bad_epochs = 0  # since the best
        self.drops = 0  # of the plateau schedule
        self.figures: dict[str, Any] = {}  # of the best validation
        self.unreadable = setup.named  # photos that were told of

    # --- the loop ---------------------------------------------------------------------------------

    def fit(self) -> None:
        config = self.config
        while self.epoch < config.train.epochs and not self._out_of_patience():
            try:
                self._train_epoch()
                validation = self._validate()
                self.interrupts.hold()  # to the checkpoint that knows of it, or it is logged twice
            except (KeyboardInterrupt, CaptionerError):
                if not self.interrupts.held:  # else the step is half done: keep the last checkpoint
                    self.save()
                raise
            better = validation.figures[config.train.metric] > self.best
            self._judge(validation, better)
            self.epoch, self.batch = self.epoch + 1, 0
            if better:
                self._write(self.run / "best", None)
            self.save()
            self._tell(validation)  # what goes wrong in it costs no work
            self.interrupts.release()
        if self._out_of_patience():
            print(
                f"stopped: {self.bad_epochs} epochs without a better {config.train.metric} than "
                f"that of epoch {self.figures.get('epoch')} (train.patience)",
                file=sys.stderr,
            )

    def _train_epoch(self) -> None:
        config, setup = self.config, self.setup
        total = len(setup.batches.epoch(self.epoch))
        self.model.train()
        bar = tqdm(
            desc=f"epoch {self.epoch + 1}/{config.train.epochs}",
            total=total,
            initial=self.batch,
            unit="batch",
            disable=None,
        )
        loader = load_batches(
            setup.dataset,
            setup.batches,
            self.epoch,
            first=self.batch,
            workers=min(config.data.workers, os.cpu_count() or 1),
            pin_memory=self.device.type == "cuda",
        )
        first_step = saved_at = self.step
        started = waited_from = time.perf_counter()
        waiting = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        added = 0  # batches whose gradients are in this step
        self.interrupts.hold()  # while a batch is fetched too: a worker would not survive it
        with bar:
            for batch in loader:
                waiting += time.perf_counter() - waited_from
                self._name_unreadable(batch.unreadable)
                forced_figures: dict[str, float] | None = None
                logs = (self.step + 1) % config.train.log_every == 0
                if len(batch):
                    parts, forced_figures = self._forward_backward(batch.to(self.device), logs)
                    added += 1
                self.batch += 1
                bar.update()
                if self.batch % config.optim.accumulate and self.batch < total:
                    waited_from = time.perf_counter()
                    continue
                norm = self._update(total, added)
                added = 0
                if logs and forced_figures is not None:
                    elapsed = time.perf_counter() - started
                    figures = {name: float(value) for name, value in parts.items()}
                    bar.set_postfix(loss=f"{figures['total']:.3f}")
                    rates = {g["base_lr"]: g["lr"] for g in self.optimizer.param_groups}
                    self.log.write(
                        "train",
                        self.step,
                        {
                            "epoch": self.epoch,
                            **figures,
                            **forced_figures,
                            "learning_rate": rates[max(rates)],
                            "gradient_norm": float(norm),
                            "step_s": elapsed / (self.step - first_step),
                            "data_wait": waiting / elapsed,
                        },
                    )
                every = config.train.checkpoint_every
                if every and self.step - saved_at >= every and self.batch < total:
                    self.save()
                    saved_at = self.step
                self.interrupts.release()
                self.interrupts.hold()
                waited_from = time.perf_counter()
        self.interrupts.release()

    def _forward_backward(
        self, batch: Batch, logs: bool
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Add this batch's gradient."""
        with self.amp:
            parts, forced, lengths = self.objective(self.model, batch)
        (parts["total"] / self.config.optim.accumulate).backward()
        parts["total"] = parts["total"].detach()
        return parts, attention_statistics(forced, lengths) if logs else {}

    def _update(self, batches: int, added: int) -> Tensor:
        """A step by the gradient of `added` batches; returns its norm before clipping."""
        optim = self.config.optim
        factor = learning_rate_factor(
            self.step,
            schedule=optim.schedule,
            warmup_steps=optim.warmup_steps,
            total_steps=math.ceil(batches / optim.accumulate) * self.config.train.epochs,
            drops=self.drops,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        if 0 < added < optim.accumulate:  # each was divided by `accumulate`
            gradients = [p.grad for p in self.learned if p.grad is not None]
            torch._foreach_mul_(gradients, optim.accumulate / added)
        norm = nn.utils.clip_grad_norm_(self.learned, optim.clip_norm or math.inf)
        if torch.isfinite(norm):
            self.optimizer.step()
        else:
            print(f"step {self.step}: the gradient is not finite, step left out", file=sys.stderr)
        self.optimizer.zero_grad(set_to_none=True)
        if self.averaged:
            self.averaged.update(self.model, self.step)
        self.step += 1
        return norm

    # --- validation -------------------------------------------------------------------------------

    @property
    def judged(self) -> CaptionModel:
        """The model that is validated and saved: the averaged one if there is one."""
        return self.averaged.model if self.averaged else self.model

    def _validate(self) -> Validation:
        setup, config = self.setup, self.config
        # What validation draws (attention.at_test: sample) is not taken from training's numbers.
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            return validate(
                self.judged,
                setup.validation,
                setup.validation_transform,
                setup.vocabulary,
                device=self.device,
                beam_size=config.train.val_beam_size,
                max_words=config.decoding.max_words,
                length_penalty=config.decoding.length_penalty,
                no_repeat_ngram=config.decoding.no_repeat_ngram,
                cache=setup.validation_cache,
            )

    def _tell(self, validation: Validation) -> None:
        """Of the epoch that has just ended."""
        self._name_unreadable(validation.unreadable)
        figures = validation.figures
        self.log.write("validation", self.step, {"epoch": self.epoch - 1, **figures})
        tqdm.write(
            f"epoch {self.epoch}: "
            + ", ".join(f"{name} {figures[name]:.4f}" for name in ("Bleu_4", "ROUGE_L", "CIDEr"))
            + f", {figures['distinct_captions']:.0%} distinct captions",
            file=sys.stderr,
        )
        attends = self.config.decoder.kind != "mean"
        for sentence in warnings(figures, len(validation.captions), attends=attends):
            print(f"warning: {sentence}", file=sys.stderr)
        self._show_samples(validation)

    def _show_samples(self, validation: Validation) -> None:
        setup = self.setup
        sheets = []
        for index, photo in enumerate(setup.validation[: self.config.train.samples], start=1):
            if photo.image_id in validation.hypotheses:
                try:
                    image = open_image(photo.path)
                except ImageError as error:  # it could be read a moment ago
                    self._name_unreadable([(str(photo.path), str(error))])
                    continue
                geometry = setup.validation_transform(image)[1]
                hypothesis = validation.hypotheses[photo.image_id]
                height, width = validation.grid_shape
                caption = hypothesis.to_caption(
                    setup.vocabulary.decode(hypothesis.tokens),
                    geometry,
                    height=height,
                    width=width,
                )
                sheets.append(attention_sheet(image, caption))
                self.log.sample(index, self.epoch, image, caption)
        self.log.pictures(self.step, sheets)

    def _judge(self, validation: Validation, better: bool) -> None:
        if better:
            self.best = validation.figures[self.config.train.metric]
            self.figures = {"epoch": self.epoch + 1, **validation.figures}
            self.bad_epochs = 0
            return
        self.bad_epochs += 1
        if self.config.optim.schedule == "plateau":
            self.drops += self.bad_epochs % self.config.optim.plateau_epochs == 0

    def _out_of_patience(self) -> bool:
        patience = self.config.train.patience
        return bool(patience) and self.bad_epochs >= patience

    def _name_unreadable(self, photos: list[tuple[str, str]]) -> None:
        for path, reason in photos:
            if path not in self.unreadable:
                self.unreadable.add(path)
                print(
                    f"{path}: {reason}, left out ({len(self.unreadable)} so far)", file=sys.stderr
                )

    # --- checkpoints ------------------------------------------------------------------------------

    def save(self) -> None:
        """Write `last`, with all that `restore` needs."""
        state: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "best": self.best,
            "bad_epochs": self.bad_epochs,
            "drops": self.drops,
            "figures": self.figures,
            "data": self.setup.data_digest,
            "config": asdict(self.config),
            "objective": self.objective.state_dict(),
            "rng": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        if self.averaged:  # the model file holds the averaged weights
            state["raw"] = {
                name: value
                for name, value in self.model.state_dict().items()
                if not name.startswith("encoder.backbone.") or self.config.encoder.trainable_from
            }
        self._write(self.run / "last", state)

    def _write(self, folder: Path, state: dict[str, Any] | None) -> None:
        save_model(
            folder,
            self.judged,
            self.config,
            self.setup.vocabulary,
            card=model_card(self.config, self.figures),
            training_state=state,
        )

    def restore(self, folder: Path) -> None:
        """Go back to a checkpoint.

        Raises:
            CheckpointError: it does not belong to this recipe.
        """
        try:
            state = load_training_state(folder)
            load_weights(self.judged, folder)
            if self.averaged:
                self.model.load_state_dict(state["raw"], strict=False)
            load_state(self.optimizer, state["optimizer"])
            self.objective.load_state_dict(state["objective"])
        except torch.OutOfMemoryError:
            raise
        except (ValueError, KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"{folder}: does not fit this recipe ({error}); resume with the run's own settings"
            ) from None
        if state.get("data", self.setup.data_digest) != self.setup.data_digest:
            raise CheckpointError(
                f"{folder}: began with other training photos or captions than those of "
                f"{self.config.data.root}; resume with its own, or start another run"
            )
        for name in ("epoch", "batch", "step", "best", "bad_epochs", "drops", "figures"):
            setattr(self, name, state[name])
        if self.figures:  # `train.metric` may be another one now
            self.best = self.figures[self.config.train.metric]
        torch.set_rng_state(state["rng"])
        if "cuda_rng" in state and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)
