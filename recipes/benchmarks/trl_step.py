"""Plain LoRA fine-tuning by TRL's `SFTTrainer`, one step at a time, on questions as token ids.

What comes by default stays: AdamW as one fused kernel, a head that never holds all logits at once, and the
entropy and token accuracy that the trainer works out for its logs at every step. Two things are off. Gradient
checkpointing is on by default and slows a step, so here it is a setting, for all rows alike. Mixed precision
in bfloat16 is kept for a base in bfloat16 and off for one in float32: a step in another precision is no peer.
"""

import warnings
from collections.abc import Callable, Sequence
from tempfile import gettempdir
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars, enable_progress_bars
from peft import LoraConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.errors import CalibrantError
from toolkit.models.encoding import EncodedQuestion


def require_trl() -> tuple[Any, Any]:
    """Returns TRL's `SFTConfig` and `SFTTrainer`, with all that they import.

    Raises:
        CalibrantError: TRL is not installed.
    """
    try:
        from trl import SFTConfig, SFTTrainer
    except ImportError as error:
        raise CalibrantError("TRL is not installed; run: pip install 'calibrant[benchmarks]'") from error
    return SFTConfig, SFTTrainer


def trl_rows(questions: Sequence[EncodedQuestion]) -> list[dict[str, list[int]]]:
    """Returns each question with its right answer as TRL takes tokenised text, the answer alone scored."""
    right = [question.options[question.answer] for question in questions]
    return [
        {
            "input_ids": question.prompt + answer,
            "completion_mask": [0] * len(question.prompt) + [1] * len(answer),
        }
        for question, answer in zip(questions, right, strict=True)
    ]


def trl_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[EncodedQuestion],
    *,
    rank: int,
    learning_rate: float,
    gradient_checkpointing: bool,
    seed: int,
) -> Any:
    """Returns an `SFTTrainer` of a new LoRA adapter, all questions one batch.

    Args:
        model: The base; the adapter is put into it.
        tokenizer: Its tokenizer, of which only the pad token is used.
        questions: The batch.
        rank: Rank of each update, on all linear layers.
        learning_rate: Of AdamW, constant.
        gradient_checkpointing: Compute activations again in the backward pass instead of keeping them.
        seed: Seeds the adapter's weights.
    """
    config_class, trainer_class = require_trl()
    config = config_class(
        output_dir=gettempdir(),  # nothing is written
        per_device_train_batch_size=len(questions),
        max_steps=1_000_000,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        max_length=None,
        completion_only_loss=True,
        activation_checkpointing=gradient_checkpointing,
        bf16=model.dtype == torch.bfloat16,
        fp16=model.dtype == torch.float16,
        use_cpu=model.device.type == "cpu",
        report_to="none",
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        dataloader_num_workers=0,
        disable_tqdm=True,
        seed=seed,
    )
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return trainer_class(
                model,
                args=config,
                train_dataset=Dataset.from_list(trl_rows(questions)),
                processing_class=tokenizer,
                peft_config=lora,
            )
    finally:
        enable_progress_bars()


def trl_step(trainer: Any) -> Callable[[], float]:
    """Returns a function that takes one step as the trainer's loop takes it, and returns its loss.

    A step is: collate the batch, `training_step` (forward, loss, backward), clip, AdamW, scheduler, zero the
    gradients. Left out, to TRL's advantage, are its data loader, callbacks and logs.
    """
    trainer.create_optimizer_and_scheduler(num_training_steps=trainer.args.max_steps)
    model, optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.model_wrapped, trainer.optimizer = model, optimizer
    trainer.current_gradient_accumulation_steps = 1
    examples = [{key: row[key] for key in ("input_ids", "labels")} for row in trainer.train_dataset]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step() -> float:
        batch = trainer.data_collator(examples)
        scored = (batch["labels"] != -100).sum()
        loss = trainer.training_step(model, batch, scored)
        trainer.accelerator.clip_grad_norm_(parameters, trainer.args.max_grad_norm)
        optimizer.step()
        trainer.lr_scheduler.step()
        model.zero_grad()
        return float(loss)

    return step
