"""Many answers to each question, drawn by vLLM: an optional extra, for machines with a GPU.

Answers come from the same distribution as those of `toolkit.confidence.samples.draw_samples`, but by other
random numbers. Each answer is a request of its own with its own seed, a function of the run's seed, its
question's id and its number; vLLM keeps what they share of a prompt.
"""

import importlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.confidence.samples import Sample
from toolkit.errors import CalibrantError, first_line
from toolkit.models.adjustment import Adjustment
from toolkit.models.decoding import random_numbers
from toolkit.models.generation import Decoding

GPU_MEMORY = 0.5
"""Share of the GPU's memory that vLLM takes; the model that is asked for the rest lies beside it."""

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as its largest rank."""


@dataclass(frozen=True)
class VllmSampler:
    """Draws answers with an engine of vLLM.

    Attributes:
        engine: A `vllm.LLM`.
        parameters: `vllm.SamplingParams`.
        ends: Tokens that end an answer.
        lora: The `vllm.lora.request.LoRARequest` of an adapter.
        delta: Δ of an `adjusted` adapter whose α is one number; it divides the temperature.
    """

    engine: Any
    parameters: Any
    ends: Collection[int]
    lora: Any = None
    delta: float = 1.0

    def __call__(
        self, prompts: Sequence[list[int]], ids: Sequence[str], *, n: int, decoding: Decoding, seed: int
    ) -> list[list[Sample]]:
        """Draws n independent answers to each question; see `draw_samples` for arguments and answers.

        `log_prob` is by the logits before Δ.
        """
        rows = [
            (prompt, int(random_numbers(seed, name, number).integers(2**31)))
            for prompt, name in zip(prompts, ids, strict=True)
            for number in range(n)
        ]
        drawn = self.engine.generate(
            [{"prompt_token_ids": prompt} for prompt, _ in rows],
            [self._parameters(decoding, own) for _, own in rows],
            lora_request=self.lora,
            use_tqdm=False,
        )
        samples = [_sample(one.outputs[0]) for one in drawn]
        return [samples[start : start + n] for start in range(0, len(samples), n)]

    def _parameters(self, decoding: Decoding, seed: int) -> Any:
        return self.parameters(
            temperature=decoding.temperature / self.delta,
            top_p=decoding.top_p,
            top_k=-1 if decoding.top_k is None else decoding.top_k,
            max_tokens=decoding.max_tokens,
            stop=list(decoding.stop),
            stop_token_ids=sorted(self.ends),
            seed=seed,
            logprobs=0,  # of the chosen token alone
        )


def _sample(output: Any) -> Sample:
    return Sample(
        output.text, tuple(output.token_ids), output.cumulative_logprob, output.finish_reason == "stop"
    )


def load_vllm(
    model: str,
    *,
    ends: Collection[int],
    max_length: int,
    revision: str | None = None,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    adapter: Path | None = None,
    adjustment: Adjustment | None = None,
) -> VllmSampler:
    """Starts an engine of vLLM.

    Args:
        model: A Hub id or a local folder, as vLLM loads it.
        ends: Tokens that end an answer.
        max_length: Context, in tokens.
        revision: A branch, tag or commit on the Hub.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        trust_remote_code: Run the Python code that the model's repository brings along.
        adapter: Folder of a LoRA adapter.
        adjustment: α of an `adjusted` adapter.

    Raises:
        CalibrantError: vLLM is not installed, cannot load the model, or has no place for this α.
    """
    if model == "bundled":
        raise CalibrantError("vLLM cannot load the bundled model; name a folder or a Hub id")
    delta = 1.0
    if adjustment is not None:
        if adjustment.delta.numel() > 1 or adjustment.iota.any():
            raise CalibrantError(
                "vLLM has no place for one Δ per token, nor for ι; draw with --sampler transformers"
            )
        delta = float(adjustment.delta)
    try:
        vllm = importlib.import_module("vllm")
        request = importlib.import_module("vllm.lora.request")
    except ImportError as error:
        raise CalibrantError(
            f"vLLM cannot be imported ({first_line(error)}); it comes with pip install 'calibrant[vllm]'"
        ) from error
    lora: dict[str, Any] = {}
    if adapter is not None:
        rank = int(json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"])
        lora = {"enable_lora": True, "max_lora_rank": vllm_rank(rank)}
    try:
        engine = vllm.LLM(
            model,
            revision=revision,
            dtype=dtype,
            max_model_len=max_length,
            trust_remote_code=trust_remote_code,
            gpu_memory_utilization=GPU_MEMORY,
            **lora,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise CalibrantError(
            f"vLLM does not load {model} ({first_line(error)}); draw with --sampler transformers"
        ) from error
    asked = None if adapter is None else request.LoRARequest(adapter.name, 1, str(adapter.resolve()))
    return VllmSampler(engine, vllm.SamplingParams, ends, asked, delta)


def vllm_rank(rank: int) -> int:
    """Returns the least of vLLM's largest ranks that has room for an adapter's."""
    return next((one for one in _RANKS if one >= rank), rank)
