"""The command lines of the recipes: YAML, then keys, into settings; a fault is one line."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import PositiveInt
from settings import CalibrateSettings, CompareSettings, EvaluateSettings

from toolkit.errors import CalibrantError


@dataclass
class Launch:
    """What a run is told beside its settings: nothing here has a say in its results.

    Attributes:
        output_dir: Folder of the run; an unfinished run in it goes on.
        resume: `auto` goes on from the newest whole checkpoint, `never` refuses a folder that is in use.
        log_with: Experiment tracker that gets the history too, through Accelerate.
    """

    output_dir: Path
    resume: Literal["auto", "never"] = "auto"
    log_with: Literal["tensorboard", "wandb", "trackio"] | None = None


@dataclass
class PublishSettings:
    """What publishing an adapter needs.

    Attributes:
        adapter: Folder of a finished adapter; with `merged` a Hub id too.
        repo: OWNER/NAME on the Hub. Empty: the folder's name, in the account of the token.
        private: Make the repository private.
        dry_run: Check, and show the card and what would be pushed; change nothing and stay off the network.
        merged: Instead of pushing, write base, adapter and α as one model into this new folder.
        model: Base for `merged`: a Hub id, a local folder, or `bundled`. Empty: as the adapter was trained.
        dtype: Of the merged weights: `auto` chooses by hardware; or float32, bfloat16, float16.
    """

    adapter: str
    repo: str | None = None
    private: bool = False
    dry_run: bool = False
    merged: str | None = None
    model: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


@dataclass
class SaySettings:
    """What makes data of graded answers.

    Attributes:
        evaluation: Folder of an evaluation of open-ended questions that the model was not trained on.
        output: JSONL file to write.
        confidence: The confidence whose frequencies are to be said: a kind that the evaluation measured.
        bins: Number of bins in which frequencies are counted.
        answers: Put each question with the model's own answer beside, so that its answers stay as they are.
    """

    evaluation: Path
    output: Path
    confidence: str = "minimum"
    bins: PositiveInt = 10
    answers: bool = True


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


def parse_calibrate(arguments: Sequence[str] | None = None) -> tuple[CalibrateSettings, Launch]:
    """Reads settings from `--config`, then from the command line, and what the run is told beside them."""
    parser = OneLineParser(
        prog="calibrate.py",
        description="Trains a LoRA adapter whose confidence follows its accuracy, and measures it.",
    )
    parser.add_argument("--config", action="config", help="YAML file with any of the keys below")
    parser.add_class_arguments(Launch)
    parser.add_class_arguments(CalibrateSettings)
    values = parser.read(arguments)
    launch = Launch(**{key.name: values.pop(key.name) for key in fields(Launch)})
    values.pop("config")
    return CalibrateSettings(**values), launch


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


def parse_publish(arguments: Sequence[str] | None = None) -> PublishSettings:
    """Reads what is to be published, and where."""
    parser = OneLineParser(
        prog="publish.py", description="Checks a finished adapter, writes its card and pushes it to the Hub."
    )
    skipped = {"adapter", "repo", "private", "dry_run"}
    parser.add_argument("adapter", help="folder of a finished adapter; with --merged a Hub id too")
    parser.add_argument("repo", nargs="?", help="OWNER/NAME; by default the folder's name in your account")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument(
        "--dry_run", action="store_true", help="show card and files, and stay off the network"
    )
    parser.add_class_arguments(PublishSettings, skip=skipped)
    return PublishSettings(**parser.read(arguments))


def parse_say(arguments: Sequence[str] | None = None) -> SaySettings:
    """Reads which answers are to become data, and how."""
    parser = OneLineParser(
        prog="say.py",
        description="Makes data that teaches a model to say how sure it is, of its graded answers.",
    )
    parser.add_argument("evaluation", type=Path, help="folder of an evaluation of open-ended questions")
    parser.add_argument("output", type=Path, help="JSONL file to write")
    parser.add_class_arguments(SaySettings, skip={"evaluation", "output"})
    return SaySettings(**parser.read(arguments))


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
