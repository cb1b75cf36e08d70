"""Running a model to generate: a pass over prompts that fills a cache, then one token after another.

Raw logits are the model's own after the adjustment of an `adjusted` adapter, and before temperature, top-k
and nucleus. They are float32 whatever the model computes in, and computed only where a token is chosen. A
model runs in evaluation mode, and after each pass it is put back into the mode that it was in.
"""

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedTokenizerBase

from toolkit.errors import CalibrantError
from toolkit.models.adjustment import Adjustment, adjust
from toolkit.models.decoding import choose, gumbel_noise, kept_log_probs, random_numbers
from toolkit.models.encoding import EncodedQuestion, encode_question
from toolkit.models.predictive import collate, predictive
from toolkit.models.quantization import computing
from toolkit.questions.question import OpenEnded


@dataclass(frozen=True)
class Decoding:
    """How answers are generated.

    Attributes:
        temperature: Divides the logits; 0 is greedy.
        top_p: Probability that the nucleus holds (arXiv 1904.09751); 1 keeps all tokens.
        top_k: Number of most probable tokens that are kept; all if None.
        max_tokens: Most tokens of an answer.
        stop: Texts that end an answer. `stream` knows no text and leaves them to who knows the tokenizer.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_tokens: int = 64
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        faults = {
            f"temperature {self.temperature} is not in [0, 100]": not 0 <= self.temperature <= 100,
            f"top_p {self.top_p} is not in (0, 1]": not 0 < self.top_p <= 1,
            f"top_k {self.top_k} is no number of tokens": self.top_k is not None and self.top_k < 1,
            f"max_tokens {self.max_tokens} is no number of tokens": self.max_tokens < 1,
            "a stop text is empty": "" in self.stop,
        }
        if fault := next((fault for fault, found in faults.items() if found), None):
            raise CalibrantError(f"{fault}; see the fields of Decoding")


@dataclass(frozen=True)
class Step:
    """One token of an answer that is being generated.

    Attributes:
        id: The chosen token.
        logits: The raw logits it was chosen from, shape (V,), float32.
        kept: The log-probabilities that temperature, top-k and nucleus left of them, shape (V,), in nats.
    """

    id: int
    logits: Tensor
    kept: Tensor


def stream(
    model: nn.Module,
    prompt_ids: Sequence[int],
    decoding: Decoding,
    *,
    seed: int,
    end_ids: Collection[int],
    adjustment: Adjustment | None = None,
    forced: Sequence[int] = (),
) -> Generator[Step, None, None]:
    """Generates one answer, token by token.

    Each token is worked out when it is asked for and no sooner; closing the generator frees its cache. The
    model is to be the same at each step, base or adapter, but need not be in between.

    Args:
        model: A causal language model.
        prompt_ids: The prompt, at least one token.
        decoding: How tokens are chosen, and how many at most.
        seed: Decides the draws, together with the number of a token in the answer.
        end_ids: Tokens that end the answer; the one that does is its last.
        adjustment: α of an `adjusted` adapter.
        forced: Tokens that the answer begins with, as though they had been chosen; read in one pass.

    Yields:
        The answer's tokens, from the first forced one on.

    Raises:
        CalibrantError: The prompt is empty, or prompt and answer are longer than the model's context.
    """
    if len(forced) > decoding.max_tokens:
        raise CalibrantError(
            f"{len(forced)} tokens are given, {decoding.max_tokens} allowed; raise max_tokens or give fewer"
        )
    check_room(model, [prompt_ids], decoding)
    random = random_numbers(seed)
    given, run = begin(model, [[*prompt_ids, *forced]], adjustment, places=len(forced) + 1)
    logits = given[0, 0]
    for number in range(decoding.max_tokens):
        kept = kept_log_probs(
            logits, temperature=decoding.temperature, top_p=decoding.top_p, top_k=decoding.top_k
        )
        noise = gumbel_noise([random], len(logits))  # a forced token uses up its random numbers too
        if number < len(forced):
            chosen = forced[number]
        else:
            chosen = int(choose(kept[None], torch.from_numpy(noise).to(kept.device)))
        yield Step(chosen, logits, kept)
        if chosen in end_ids or number + 1 == decoding.max_tokens:
            return
        if number < len(forced):
            logits = given[0, number + 1]
        else:
            logits = advance(model, run, torch.tensor([chosen]), adjustment)[0]


def given_logits(
    model: nn.Module,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    *,
    adjustment: Adjustment | None = None,
) -> Tensor:
    """Returns the raw logits before each token of a given answer, in one pass.

    Args:
        model: A causal language model.
        prompt_ids: The prompt, at least one token.
        answer_ids: The answer, at least one token.
        adjustment: α of an `adjusted` adapter.

    Returns:
        Shape (T, V), float32, on the model's device.

    Raises:
        CalibrantError: Prompt or answer is empty, or they are longer than the model's context.
    """
    if not answer_ids:
        raise CalibrantError("the answer is empty; give one of at least one token")
    check_room(model, [prompt_ids], Decoding(max_tokens=len(answer_ids)))
    text = EncodedQuestion("given", [*prompt_ids], [[*answer_ids]], 0, [1])
    batch = collate([text], layout="separate").to(_device(model))
    with _evaluating(model):
        return adjust(predictive(model, batch), _on(adjustment, model))


@dataclass
class Run:
    """What a model keeps of the texts of B rows; each pass over them adds to it.

    Attributes:
        cache: Keys and values of all tokens so far.
        mask: 1 for tokens and 0 for padding, shape (B, L); None where there is no padding.
        length: Number of tokens of each row, padding not counted, shape (B,).
    """

    cache: DynamicCache
    mask: Tensor | None
    length: Tensor

    def select(self, rows: Sequence[int]) -> None:
        """Goes on with these rows only; a row may be named more than once, and is then repeated."""
        places = torch.tensor(rows, device=self.length.device)
        self.cache.batch_select_indices(places)
        self.length = self.length[places]
        self.mask = None if self.mask is None else self.mask[places]


def begin(
    model: nn.Module, prompts: Sequence[Sequence[int]], adjustment: Adjustment | None = None, places: int = 1
) -> tuple[Tensor, Run]:
    """Reads prompts, with padding at the left where they differ in length.

    Args:
        model: A causal language model.
        prompts: The prompts of B rows.
        adjustment: α of an `adjusted` adapter.
        places: Number of last tokens after which logits are computed.

    Returns:
        Raw logits, shape (B, places, V), float32, and what the model keeps of the prompts.
    """
    lengths = [len(prompt) for prompt in prompts]
    width = max(lengths)
    padding = [width - length for length in lengths]
    ids = torch.tensor([[0] * pad + [*prompt] for pad, prompt in zip(padding, prompts, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * length for pad, length in zip(padding, lengths, strict=True)])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    device = _device(model)
    run = Run(
        DynamicCache(config=model.config),  # type: ignore[arg-type]
        mask.to(device) if any(padding) else None,
        torch.tensor(lengths, device=device),
    )
    head = model.get_output_embeddings()  # type: ignore[operator]
    handle = head.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, -places:],))
    try:
        logits = _forward(model, run, ids.to(device), positions.to(device), adjustment)
    finally:
        handle.remove()
    return logits, run


def advance(model: nn.Module, run: Run, chosen: Tensor, adjustment: Adjustment | None = None) -> Tensor:
    """Reads one token more of each row.

    Args:
        model: The model that began the run.
        run: What it keeps of the rows; it is added to.
        chosen: The rows' next tokens, shape (B,).
        adjustment: α of an `adjusted` adapter.

    Returns:
        Raw logits for the tokens after these, shape (B, V), float32.
    """
    positions = run.length[:, None]
    run.length = run.length + 1
    if run.mask is not None:
        run.mask = torch.nn.functional.pad(run.mask, (0, 1), value=1)
    return _forward(model, run, chosen.to(run.length.device)[:, None], positions, adjustment)[:, -1]


def _forward(
    model: nn.Module, run: Run, ids: Tensor, positions: Tensor, adjustment: Adjustment | None
) -> Tensor:
    with _evaluating(model), computing(model):
        logits = model(
            input_ids=ids, attention_mask=run.mask, position_ids=positions, cache=run.cache, use_cache=True
        ).logits
        return adjust(logits.float(), _on(adjustment, model))


def end_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the tokens that end an answer: the model's, the tokenizer's, and the chat template's."""
    settings = [model.config, getattr(model, "generation_config", None), tokenizer]
    found: set[int] = set()
    for setting in settings:
        ids = getattr(setting, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    if tokenizer.chat_template:
        found.update(_end_of_turn(tokenizer))
    return frozenset(found)


def _end_of_turn(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the token that the chat template writes after an answer, or none where it writes none."""
    question = OpenEnded("end", "?", ("!",))
    try:
        [answer] = encode_question(question, tokenizer, style="chat", max_length=2**20).options
    except CalibrantError:  # the template refuses such turns, and nobody can ask it then
        return []
    return answer[-1:] if answer[-1] in tokenizer.added_tokens_decoder else []


def check_room(model: nn.Module, prompts: Sequence[Sequence[int]], decoding: Decoding) -> None:
    """Makes sure that the prompts and their answers fit into the model's context.

    Raises:
        CalibrantError: A prompt is empty, or longer than the context with an answer of `max_tokens`.
    """
    if not all(prompts):
        raise CalibrantError("a prompt is empty; give one of at least one token")
    longest = max(map(len, prompts), default=0)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)  # type: ignore[union-attr, operator]
    if context is not None and longest + decoding.max_tokens > context:
        raise CalibrantError(
            f"a prompt of {longest} tokens and an answer of {decoding.max_tokens} do not fit into the "
            f"model's context of {context}; shorten the prompt or lower max_tokens"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a model in evaluation mode without gradients."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with torch.no_grad():  # inference mode would make tensors of a sharded base unfit for training
            yield
    finally:
        if was_training:
            model.train()


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _on(adjustment: Adjustment | None, model: nn.Module) -> Adjustment | None:
    return adjustment and Adjustment(*(tensor.to(_device(model)) for tensor in adjustment))
