"""What the benchmarks share: timing in turn, peak memory, the circumstances, the command line, the files."""

import argparse
import gc
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NoReturn

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from toolkit.errors import CalibrantError
from toolkit.evaluation.files import replacing

Result = dict[str, Any]
"""What a benchmark measured, as it is written to JSON."""


def in_turn(
    tasks: Mapping[str, Callable[[], object]], repeats: int, description: str
) -> dict[str, list[float]]:
    """Times tasks in turn, A B C A B C ..., so that a machine that drifts drifts for all of them.

    Args:
        tasks: What to time, by name. Each should have run once before, to warm up.
        repeats: Timed runs of each task.
        description: Label of the progress bar.

    Returns:
        For each task its times, in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in tqdm(range(repeats), desc=description, unit="repeat"):
        for name, task in tasks.items():
            _synchronize()
            start = perf_counter()
            task()
            _synchronize()
            seconds[name].append(perf_counter() - start)
    return seconds


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Peak:
    """Memory while a block ran; see `peak_memory`.

    Attributes:
        before: Bytes in use when it began.
        peak: Most bytes in use while it ran.
    """

    before: int
    peak: int


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measures the memory of a block: of the GPU where there is one, else of the process (Linux only).

    The process's is its resident set, libraries and all; measure each thing in a process of its own, for
    memory that was freed may stay resident.
    """
    found = Peak()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        found.before = torch.cuda.memory_allocated()
        yield found
        torch.cuda.synchronize()
        found.peak = torch.cuda.max_memory_allocated()
        return
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    found.before = _status("VmRSS")
    yield found
    found.peak = _status("VmHWM")


def _status(key: str) -> int:
    """Returns a field of this process's status, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def circumstances(*packages: str) -> Result:
    """Returns what times and memory depend on: device, threads, versions of Python, torch and packages."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in ("calibrant", "torch", "transformers", *packages)},
    }


def facts(result: Result) -> str:
    """Returns the circumstances of a result as the sentence under its table."""
    return "; ".join(
        [
            f"{result['device']} with {result['threads']} threads",
            *(f"{package} {number}" for package, number in result["versions"].items()),
        ]
    )


def count_tokens(model: PreTrainedModel, task: Callable[[], object]) -> int:
    """Returns how many tokens the model is given by a task, padding included."""
    counts: list[int] = []
    embedding = model.get_input_embeddings()
    handle = embedding.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].numel()))
    try:
        task()
    finally:
        handle.remove()
    return sum(counts)


def apart(script: str, arguments: Sequence[str], what: str) -> Result:
    """Runs a benchmark in a process of its own, and returns the JSON that it prints.

    Raises:
        CalibrantError: The process fails.
    """
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise CalibrantError(f"measuring the {what} failed: {last.removeprefix('error: ')}")
    found: Result = json.loads(done.stdout)
    return found


def markdown(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """Returns a Markdown table, its first column text and the others numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def ratio(seconds: Mapping[str, Sequence[float]], name: str, peer: str) -> float:
    """Returns the median over repeats of one task's time as a multiple of another's in the same turn."""
    return median(a / b for a, b in zip(seconds[name], seconds[peer], strict=True))


class Parser(argparse.ArgumentParser):
    """A parser whose faults are one line on stderr and exit status 2."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(prog=f"{name}.py", description=description, allow_abbrev=False)
        self.name = name
        self.add_argument("--output_dir", type=Path, help=f"takes {name}.json and {name}.md (default none)")

    def error(self, message: str) -> NoReturn:
        """Prints the fault and how to see every key, and exits."""
        print(f"error: {message}; see --help for every key", file=sys.stderr)
        sys.exit(2)

    def run(
        self,
        arguments: Sequence[str] | None,
        benchmark: Callable[[argparse.Namespace], Result],
        table: Callable[[Result], str],
    ) -> None:
        """Reads the command line, measures, prints the table, and writes it where a folder is given."""
        given = self.parse_args(arguments)
        files = (
            [given.output_dir / f"{self.name}.{kind}" for kind in ("json", "md")] if given.output_dir else []
        )
        if any(file.exists() for file in files):
            self.error(f"{given.output_dir} already holds a benchmark; choose another --output_dir")
        try:
            result = benchmark(given)
            shown = table(result)
            print(shown)
            for file, text in zip(files, (json.dumps(result, indent=2), shown), strict=False):
                with replacing(file) as partial:
                    partial.write_text(text + "\n", encoding="utf-8")
        except CalibrantError as error:
            self.error(str(error))


def positive(text: str) -> int:
    """Reads a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number
