"""What the page asks of the model: answers token by token, and further confidence in them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from app.answers import MEASURES, Answer, Figure, Form, Kind
from app.models import Models
from toolkit.confidence.clusters import by_content
from toolkit.confidence.p_true import p_true
from toolkit.confidence.samples import draw_samples
from toolkit.confidence.stated import Stated, stated
from toolkit.confidence.tokens import SEQUENCE, generated_confidence
from toolkit.evaluation.grading import short_answer
from toolkit.evaluation.open_ended import NUMBER_TOKENS, REPLY_TOKENS
from toolkit.models.encoding import encode_prompt, encode_turns
from toolkit.models.generation import Decoding, end_ids
from toolkit.questions.elicitation import ELICITATIONS
from toolkit.questions.prompts import Turn
from toolkit.questions.question import OpenEnded

TURN = 4
"""Tokens that one side writes before it is the other's turn: switching adapters takes time."""


def answers(
    models: Models, form: Form, sides: Sequence[int], begun: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Answer]]:
    """Writes answers token by token, by turns on both sides.

    Between tokens nothing is held: a stream that nobody asks for the next one costs nothing more.

    Args:
        models: The models.
        form: The question and how it is asked.
        sides: Which of left and right answer.
        begun: For each side, ids of the tokens that its answer begins with.

    Yields:
        The side, and its answer so far.

    Raises:
        CalibrantError: The question does not fit into the model's context.
    """
    writers = {side: _write(models, form, form.names[side], begun[side]) for side in sides}
    while writers:
        for side in tuple(writers):
            for _ in range(TURN):
                answer = next(writers[side], None)
                if answer is None:
                    del writers[side]
                    break
                yield side, answer


def _write(models: Models, form: Form, name: str, begun: Sequence[int]) -> Iterator[Answer]:
    answer = Answer(name)
    prompt, how = prompt_ids(models, form), decoding(form)
    with models.using(name) as active:
        ends = end_ids(active.model, models.tokenizer)
        steps = generated_confidence(
            active.model,
            models.tokenizer,
            prompt,
            how,
            seed=form.seed,
            adjustment=active.text_adjustment,
            forced=begun,
        )
    while True:
        with models.using(name):
            token = next(steps, None)
        if token is None:
            yield answer
            return
        if token.id in ends or (not token.text.strip() and any(stop in token.text for stop in how.stop)):
            answer = replace(answer, ended=True)
        else:
            answer = replace(answer, tokens=(*answer.tokens, token))
            yield answer


def decoding(form: Form) -> Decoding:
    """Returns how an answer is generated; a plain question is answered in one line."""
    stop = ("\n",) if form.style == "plain" else ()
    return Decoding(form.temperature, form.top_p, max_tokens=form.max_tokens, stop=stop)


def prompt_ids(models: Models, form: Form) -> list[int]:
    """Returns the token ids of the prompt.

    Raises:
        CalibrantError: Prompt and answer do not fit into the model's context.
    """
    room = models.max_length - form.max_tokens
    return encode_prompt(question(form), models.tokenizer, style=form.style, max_length=room)


def question(form: Form) -> OpenEnded:
    """Returns the question as the toolkit has it; no accepted answer is known."""
    return OpenEnded("the question", form.question, ("unknown",))


def token_figure(answer: Answer, measure: str) -> Answer:
    """Returns the answer with its token confidence by a measure of `SEQUENCE`."""
    if not answer.tokens:
        return answer.with_figure(Figure("token", None, "the answer is empty"))
    return answer.with_figure(Figure("token", SEQUENCE[measure](answer.tokens), MEASURES[measure]))


def further(models: Models, form: Form, answer: Answer, kind: Kind) -> Answer:
    """Returns an answer with one more kind of confidence, as the model that gave it has it.

    Raises:
        CalibrantError: A prompt does not fit into the model's context.
    """
    find: dict[Kind, Callable[[Models, Form, Answer], Answer]] = {
        "p_true": _p_true,
        "agreement": _agreement,
        "stated": _stated,
    }
    return find[kind](models, form, answer)


def _p_true(models: Models, form: Form, answer: Answer) -> Answer:
    with models.using(answer.model) as active:
        (value,) = p_true(
            active.model,
            models.tokenizer,
            [question(form)],
            [answer.text],
            style=form.style,
            max_length=models.max_length,
            layout=models.layout,
            adjustment=active.text_adjustment,
        )
    return answer.with_figure(Figure("p_true", float(value), "asked whether its answer is true or false"))


def _agreement(models: Models, form: Form, answer: Answer) -> Answer:
    with models.using(answer.model) as active:
        (drawn,) = draw_samples(
            active.model,
            models.tokenizer,
            [prompt_ids(models, form)],
            ["asked"],
            n=form.samples,
            decoding=replace(decoding(form), temperature=1.0, top_p=1.0),
            seed=form.seed,
            adjustment=active.text_adjustment,
        )
    samples = tuple(sample.text.strip() for sample in drawn)
    shown, *others = by_content(form.question, [short_answer(text) for text in (answer.text, *samples)])
    same = others.count(shown)
    note = f"{same} of {len(samples)} samples at temperature 1 say the same"
    most = max(others, key=others.count)
    if most != shown and others.count(most) > 1:
        note += f"; {others.count(most)} say “{shorten(short_answer(samples[others.index(most)]), 40)}”"
    return replace(answer.with_figure(Figure("agreement", same / len(samples), note)), samples=samples)


def _stated(models: Models, form: Form, answer: Answer) -> Answer:
    """Asks a model how sure it is of its answer, or for a new answer together with that."""
    elicitation = ELICITATIONS[form.elicitation]
    asked, shown = question(form), short_answer(answer.text)
    if form.elicitation == "two_stage":  # whose first stage asks for the answer that there is already
        replies = [shown]
    else:
        replies = [_reply(models, form, answer.model, elicitation.ask(asked), REPLY_TOKENS)]
    if elicitation.ask_again is not None:
        turns = elicitation.ask_again(asked, replies[0])
        replies.append(_reply(models, form, answer.model, turns, NUMBER_TOKENS))
    guesses = stated(elicitation, replies)
    said = max(guesses, key=lambda one: one.probability or 0.0, default=Stated(None, None))
    own = said.answer is not None and by_content(form.question, [said.answer, shown]) == [0, 0]
    note = f"it said “{shorten(' '.join(replies[-1].split()), 60)}”"
    if said.answer is not None and not own:
        note += f", of the answer “{shorten(said.answer, 40)}”"
    if said.probability is None:
        note += ", which states no probability"
    return answer.with_figure(Figure("stated", said.probability, note))


def _reply(models: Models, form: Form, name: str, turns: Sequence[Turn], most: int) -> str:
    with models.using(name) as active:
        room = models.max_length - most
        ((reply,),) = draw_samples(
            active.model,
            models.tokenizer,
            [encode_turns(turns, models.tokenizer, name="the question", max_length=room)],
            ["stated"],
            n=1,
            decoding=Decoding(temperature=0.0, max_tokens=most),
            seed=form.seed,
            adjustment=active.text_adjustment,
        )
    return reply.text


def shorten(text: str, most: int) -> str:
    """Returns a text of at most that many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
