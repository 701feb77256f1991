"""The ``set_…`` methods of MindFormers' ``TrainingArguments``: each says all of its settings, those left out too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class ArgumentGroups:
    """Settings that are set together, after the arguments were made; every method answers with the arguments."""

    def _say(self, **settings: Any) -> Self:
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3.0,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
    ) -> Self:
        """The numbers of the training; ``batch_size`` are the rows per process."""
        return self._say(
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            batch_size=None,  # which is the stronger of the two
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
        )

    def set_evaluate(self, strategy: str = "no", steps: int = 500, batch_size: int = 8) -> Self:
        """When is evaluated (``no``, ``steps``, ``epoch``), and with how many rows per process."""
        self._say(eval_steps=steps if strategy == "steps" else None)
        self._say(per_device_eval_batch_size=batch_size, eval_batch_size=None)
        return self._say(evaluation_strategy=strategy, do_eval=strategy != "no")

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """Rows per process of an evaluation; ``loss_only`` says nothing, there either."""
        return self._say(per_device_eval_batch_size=batch_size, eval_batch_size=None)

    def set_save(
        self,
        strategy: str = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = True,
    ) -> Self:
        """When a checkpoint is written, and how many are kept."""
        self._say(save_steps=steps if strategy == "steps" else None, save_total_limit=total_limit)
        return self._say(save_strategy=strategy, save_on_each_node=on_each_node)

    def set_logging(self, strategy: str = "steps", steps: int = 500) -> Self:
        """How often the loss is shown."""
        return self._say(logging_strategy=strategy, logging_steps=steps)

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str = "every_save",
        token: str | None = None,
        private_repo: bool = False,
        always_push: bool = False,
    ) -> Self:
        """Refused by the trainer, whose models MindFormers uploads to a hub of its own."""
        return self._say(push_to_hub=True, hub_model_id=model_id)

    def set_optimizer(
        self,
        name: str = "adamw",
        learning_rate: float = 5e-5,
        lr_end: float = 1e-6,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> Self:
        """The optimizer and its numbers."""
        self._say(optim=name, learning_rate=learning_rate, lr_end=lr_end, weight_decay=weight_decay)
        return self._say(adam_beta1=beta1, adam_beta2=beta2, adam_epsilon=epsilon)

    def set_lr_scheduler(
        self,
        name: str = "linear",
        num_epochs: float = 3.0,
        warmup_lr_init: float = 0.0,
        warmup_epochs: int | None = None,
        warmup_ratio: float | None = None,
        warmup_steps: int = 0,
        total_steps: int = -1,
    ) -> Self:
        """The schedule of the learning rate."""
        self._say(lr_scheduler_type=name, num_train_epochs=num_epochs, warmup_lr_init=warmup_lr_init)
        self._say(warmup_epochs=warmup_epochs, warmup_steps=warmup_steps, warmup_ratio=warmup_ratio)
        return self._say(total_steps=total_steps)

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        ignore_data_skip: bool = False,
        data_skip_steps: int | None = None,
        sampler_seed: int | None = None,
    ) -> Self:
        """How rows are read."""
        self._say(per_device_train_batch_size=train_batch_size, per_device_eval_batch_size=eval_batch_size)
        self._say(batch_size=None, eval_batch_size=None)
        self._say(dataloader_drop_last=drop_last, dataloader_num_workers=num_workers, data_seed=sampler_seed)
        return self._say(ignore_data_skip=ignore_data_skip, data_skip_steps=data_skip_steps)
