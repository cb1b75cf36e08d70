"""One base model with named adapters: one set of weights, which one request at a time uses."""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from app.reports import AdapterReport, read_adapter_report
from toolkit.errors import CalibrantError
from toolkit.models.adapters import THETA, adapter_folder, detach, load_adapter
from toolkit.models.adjustment import Adjustment, load_adjustment
from toolkit.models.base import context_length, load_model, model_name
from toolkit.models.bundled import HUB_ID
from toolkit.models.layout import choose_layout
from toolkit.models.predictive import Layout


@dataclass(frozen=True)
class Adapter:
    """An adapter that the page offers.

    Attributes:
        name: What the page calls it.
        key: What PEFT calls it.
        option_adjustment: α of an `adjusted` adapter, for a question's options.
        text_adjustment: The same for text that it writes; see `load_adjustment`.
        report: What its evaluation found, or None where it has no report.
    """

    name: str
    key: str
    option_adjustment: Adjustment | None
    text_adjustment: Adjustment | None
    report: AdapterReport | None


@dataclass(frozen=True)
class Active:
    """The model as one of its names, for as long as it is held.

    Attributes:
        model: The base with the adapter of that name at work, or with none.
        option_adjustment: α of that adapter, if it applies one to options.
        text_adjustment: α of that adapter, if it applies one to text.
    """

    model: nn.Module
    option_adjustment: Adjustment | None = None
    text_adjustment: Adjustment | None = None


class Models:
    """A base model and its adapters over one set of weights.

    Which adapter acts is state of the weights, so switching and running are one critical section: all that
    runs the model does so inside `using`. A generator takes a step inside it and yields outside, so that one
    that nobody asks for more holds nothing.

    Args:
        model: The base, or the base with all adapters.
        tokenizer: Its tokenizer.
        base: What the page calls the base.
        adapters: The adapters that the model has.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        base: str,
        adapters: Sequence[Adapter],
    ) -> None:
        self.tokenizer = tokenizer
        self.base = base
        self.adapters = {adapter.name: adapter for adapter in adapters}
        self._model = model
        self._layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
        self._lock = threading.Lock()
        self._active: str | None = None
        self.max_length = context_length(self._plain, tokenizer)
        with self.using(self.names[-1]) as active:
            self.layout: Layout = choose_layout(active.model, self._plain.config.vocab_size)

    @property
    def names(self) -> tuple[str, ...]:
        """The base, then the adapters."""
        return (self.base, *self.adapters)

    @property
    def _plain(self) -> PreTrainedModel:
        if isinstance(self._model, PeftModel):
            base = self._model.get_base_model()
            assert isinstance(base, PreTrainedModel)
            return base
        return self._model

    def adapter(self, name: str) -> Adapter | None:
        """Returns the adapter of a name, or None for the base.

        Raises:
            CalibrantError: The page offers no such model.
        """
        if name not in self.names:
            raise CalibrantError(f"no model {name!r} here; choose one of {', '.join(self.names)}")
        return self.adapters.get(name)

    @contextmanager
    def using(self, name: str) -> Iterator[Active]:
        """Holds the model as one of its names; waits while another request holds it.

        Raises:
            CalibrantError: The page offers no such model.
        """
        adapter = self.adapter(name)
        with self._lock, torch.inference_mode():
            if name != self._active:
                self._switch(adapter)
                self._active = name
            if adapter is None:
                yield Active(self._model)
            else:
                yield Active(self._model, adapter.option_adjustment, adapter.text_adjustment)

    def _switch(self, adapter: Adapter | None) -> None:
        """Lets one adapter act or none; PEFT's own switches also walk all weights, ten times as slow."""
        for layer in self._layers:
            if adapter is not None and layer.active_adapters != [adapter.key]:
                layer.set_adapter(adapter.key, inference_mode=True)
            if layer.disable_adapters != (adapter is None):
                layer.enable_adapters(adapter is not None)


def load_models(model: str, adapters: Sequence[str | Path]) -> Models:
    """Loads a base model with all adapters.

    Args:
        model: A Hub id, a local folder, or `bundled`.
        adapters: Folders or Hub ids.

    Raises:
        CalibrantError: One of them does not load, or two adapters have the same name.
    """
    base, tokenizer = load_model(model)
    folders = [adapter_folder(adapter) for adapter in adapters]
    names = [Path(adapter).resolve().name if Path(adapter).exists() else str(adapter) for adapter in adapters]
    base_name = Path(HUB_ID if model == "bundled" else model_name(model)).name
    twice = [name for place, name in enumerate(names) if name in [base_name, *names[:place]]]
    if twice:
        raise CalibrantError(f"two models are called {twice[0]}; rename the folder of one")
    reports = [read_adapter_report(folder) for folder in folders]
    whole = attach(base, folders)
    loaded = [
        Adapter(
            name,
            key(number),
            _on(load_adjustment(folder, "options"), base.device),
            _on(load_adjustment(folder, "tokens"), base.device),
            report,
        )
        for number, (name, folder, report) in enumerate(zip(names, folders, reports, strict=True))
    ]
    return Models(whole, tokenizer, base_name, loaded)


def attach(base: PreTrainedModel, folders: Sequence[Path]) -> PreTrainedModel | PeftModel:
    """Puts adapters on their base, each checked on its own.

    Raises:
        CalibrantError: One does not fit; see `toolkit.models.adapters.load_adapter`.
    """
    if not folders:
        return base
    first, *others = folders
    for folder in others:
        detach(load_adapter(base, folder))
    whole = load_adapter(base, first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of calls of PEFT's own
        for number, folder in enumerate(others, start=1):
            whole.load_adapter(str(folder), adapter_name=key(number), torch_device=str(base.device))
    return whole.eval()


def key(number: int) -> str:
    """Returns what PEFT calls an adapter, by its number."""
    return f"adapter_{number}" if number else THETA


def find_adapters(folder: Path) -> list[Path]:
    """Returns the adapters in a folder of adapters, by name."""
    return sorted(path.parent for path in folder.glob("*/adapter_config.json"))


def _on(adjustment: Adjustment | None, device: torch.device) -> Adjustment | None:
    return adjustment and Adjustment(*(tensor.to(device) for tensor in adjustment))
