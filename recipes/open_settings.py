"""How an evaluation treats open-ended questions."""

from dataclasses import dataclass, field
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt


@dataclass
class OpenEndedSettings:
    """How open-ended questions are asked in an evaluation, and their answers graded.

    Attributes:
        max_tokens: Tokens of an answer, at most.
        grader: Which answers are right: `exact` and `contained` compare words, `f1` their overlap, `number`
            and `date` values; `any` takes what suits the accepted answer; `judge` asks the model itself.
        judge_url: Of a server with an OpenAI-compatible interface, whose model is the judge instead; its key
            is read from the environment variable OPENAI_API_KEY.
        judge_model: The model's name there.
        samples: Answers sampled to each question, for semantic confidence; 0 for none.
        clusters: Which of them mean the same: those that add the same to the question (`content`), those
            of the same words (`text`), or those that the model says imply each other (`meaning`).
        nli_model: A model for natural language inference, Hub id or folder, that says so instead.
        elicitations: Ways to ask for stated confidence: one_stage, top_k, two_stage, reasoning, linguistic.
        phrases_from: Folder of an evaluation of other questions, such as a validation split, with
            `linguistic`: phrases then also stand for how often they were right there
            (`stated_linguistic_fitted`).
        p_true: Ask for the probability that the answer is true.
    """

    max_tokens: PositiveInt = 32
    grader: Literal["any", "exact", "contained", "f1", "number", "date", "judge"] = "any"
    judge_url: str | None = None
    judge_model: str | None = None
    samples: NonNegativeInt = 50
    clusters: Literal["content", "text", "meaning"] = "content"
    nli_model: str | None = None
    elicitations: list[Literal["one_stage", "top_k", "two_stage", "reasoning", "linguistic"]] = field(
        default_factory=lambda: ["two_stage"]
    )
    phrases_from: str | None = None
    p_true: bool = True
