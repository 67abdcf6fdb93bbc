"""A MemoryMonitor driven by transformers' Trainer or by Lightning, logged through their own loggers.

In: a monitor. Out: a callback object. Neither framework is imported before its function is called. Trainer has no
hook between forward and backward, so both are booked as backward there. Accelerate needs no callback: call
monitor.end_step() in the loop and give the monitor the writer memory_log.to_accelerate(accelerator).
"""

from __future__ import annotations

from typing import Any

from vramcast.ledger import BACKWARD, FORWARD, STEP
from vramcast.runtime.monitor.monitor import BETWEEN, MemoryMonitor


def trainer_callback(monitor: MemoryMonitor, trainer: Any) -> Any:
    """trainer.add_callback(trainer_callback(monitor, trainer)): metrics appear wherever `report_to` says."""
    from transformers import TrainerCallback

    class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by mypy
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            monitor.__enter__()

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            monitor.mark(BACKWARD)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            monitor.mark(STEP)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            monitor.mark(BETWEEN)
            monitor.end_step()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            # trainer.log calls on_log again with these metrics, which then are already there.
            if monitor.metrics and not any(name.startswith("memory/") for name in logs or {}):
                trainer.log(dict(monitor.metrics))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            monitor.__exit__()

    return MemoryCallback()


def lightning_callback(monitor: MemoryMonitor) -> Any:
    """Trainer(callbacks=[lightning_callback(monitor)]): metrics go to the Trainer's loggers."""
    from lightning.pytorch import Callback

    class MemoryCallback(Callback):  # type: ignore[misc]  # lightning is not followed by mypy
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            monitor.__enter__()

        def on_train_batch_start(
            self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
        ) -> None:
            monitor.mark(FORWARD)

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            monitor.mark(BACKWARD)

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            monitor.mark(STEP)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            monitor.mark(BETWEEN)
            monitor.end_step()
            # Already the maximum over ranks, so Lightning must not average it.
            pl_module.log_dict(dict(monitor.metrics), on_step=True, on_epoch=False, reduce_fx="max")

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            monitor.__exit__()

    return MemoryCallback()
