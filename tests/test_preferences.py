"""DPO's loss and its reference, against plain forward passes and TRL; preferences held out."""

import math
import warnings
from dataclasses import replace

import pytest
import torch
from conftest import tiny_tokenizer
from random_models import naive, ragged
from torch.nn.functional import logsigmoid
from transformers import LlamaForCausalLM

from toolkit.calibration.preferences import dpo, with_reference
from toolkit.errors import CalibrantError
from toolkit.models.adapters import adapter_parameters, attach_lora, base_only
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.models.predictive import collate, option_log_probs, option_scores, predictive
from toolkit.questions.heldout import check_disjoint, hold_out
from toolkit.questions.question import MultipleChoice, OpenEnded, Preference

PAIRS = [
    Preference("short", "Is it?", "It is indeed.", "no"),
    Preference(
        "turns", "Human: Hi\n\nAssistant: Yes?\n\nHuman: Who?\n\nAssistant:", "The king.", "An ant in it."
    ),
    Preference(
        "long", "Say the thing and the other thing.", "the thing", "a thing and another thing, the other"
    ),
]


def rows(n: int = 6, k: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores of a policy with some options absent, the right ones, and scores of a reference."""
    generator = torch.Generator().manual_seed(seed)
    scores = 5 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    reference = 5 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    for row in range(n):
        scores[row, 2 + row % (k - 1) :] = -math.inf
        reference[row, 2 + row % (k - 1) :] = 0.0
    return scores, torch.arange(n) % 2, reference


def by_hand(scores: list[float], answer: int, reference: list[float], beta: float) -> float:
    """The loss of one question, from the options that are there."""
    losses = []
    for k in range(len(scores)):
        if k != answer:
            margin = (scores[answer] - reference[answer]) - (scores[k] - reference[k])
            losses.append(math.log1p(math.exp(-beta * margin)))
    return sum(losses) / len(losses)


@pytest.fixture
def policy(tiny_folder):
    """The tiny model with an adapter that has moved."""
    model = attach_lora(LlamaForCausalLM.from_pretrained(tiny_folder), rank=4, alpha=8, base_name="tiny")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in adapter_parameters(model):
            weight.normal_(std=0.2, generator=generator)
    return model


# --- the loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
def test_the_loss_is_the_mean_over_the_other_options(beta):
    scores, answers, reference = rows()
    found = dpo(scores, answers, reference, beta)
    for loss, row, answer, base in zip(found, scores, answers, reference, strict=True):
        there = [i for i, score in enumerate(row) if score > -math.inf]
        expected = by_hand(row[there].tolist(), int(answer), base[there].tolist(), beta)
        assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_of_two_options_it_is_the_pair_formula():
    scores, _, reference = rows(4, 5)
    chosen, rejected = (scores - reference)[:, 0], (scores - reference)[:, 1]
    found = dpo(scores[:, :2], torch.zeros(4, dtype=torch.long), reference[:, :2], 0.3)
    assert torch.allclose(found, -logsigmoid(0.3 * (chosen - rejected)))


def test_at_the_reference_it_is_log_2_and_so_it_is_without_beta():
    scores, answers, reference = rows()
    there = torch.where(scores.isinf(), 0.0, scores)
    assert torch.equal(dpo(scores, answers, there, 0.5), torch.full((6,), math.log(2), dtype=torch.float64))
    assert torch.allclose(dpo(scores, answers, reference, 0.0), torch.tensor(math.log(2)).double())


def test_constants_of_a_row_drop_out():
    """So that it makes no difference whether scores are normalised over the options."""
    scores, answers, reference = rows()
    shift = torch.linspace(-40, 40, 6, dtype=torch.float64)[:, None]
    expected = dpo(scores, answers, reference, 0.7)
    for moved in (scores + shift, scores.log_softmax(-1)):
        assert torch.allclose(dpo(moved, answers, reference, 0.7), expected)
    assert torch.allclose(dpo(scores, answers, reference + shift, 0.7), expected)


def test_order_of_options_and_questions_and_absent_ones_change_nothing():
    scores, answers, reference = rows()
    expected = dpo(scores, answers, reference, 0.7)
    order = torch.tensor([3, 0, 4, 1, 2])
    place = order.argsort()[answers]
    assert torch.allclose(dpo(scores[:, order], place, reference[:, order], 0.7), expected)
    turned = dpo(scores.flip(0), answers.flip(0), reference.flip(0), 0.7)
    assert torch.allclose(turned, expected.flip(0))
    wider = [torch.cat([x, torch.full((6, 2), fill).double()], 1)
             for x, fill in ((scores, -math.inf), (reference, 0.0))]  # fmt: skip
    assert torch.allclose(dpo(wider[0], answers, wider[1], 0.7), expected)


def test_gradients_are_finite_right_and_zero_where_nothing_is():
    scores, answers, reference = rows()
    absent = scores.isinf()
    logits = torch.where(absent, 0.0, scores).requires_grad_()
    log_probs = logits.masked_fill(absent, -math.inf).log_softmax(-1)
    (gradient,) = torch.autograd.grad(dpo(log_probs, answers, reference, 0.7).sum(), logits)
    assert gradient.isfinite().all() and (gradient[absent] == 0).all()
    assert torch.allclose(gradient.sum(1), torch.zeros(6, dtype=torch.float64), atol=1e-12)
    for row in range(6):
        for column in range(5):
            step = torch.zeros_like(scores)
            step[row, column] = 1e-6
            up, down = (dpo(scores + s, answers, reference, 0.7)[row] for s in (step, -step))
            assert gradient[row, column].item() == pytest.approx(((up - down) / 2e-6).item(), abs=1e-7)


def test_for_small_beta_the_gradient_is_half_beta_on_each_side():
    """d/ds −log σ(β s) = −β σ(−β s) → −β / 2: the pairs are told apart by nothing but their side."""
    scores, answers, reference = rows()
    scores.requires_grad_()
    beta = 1e-8
    (gradient,) = torch.autograd.grad(dpo(scores, answers, reference, beta).sum(), scores)
    others = scores.isfinite().scatter(1, answers[:, None], False)
    expected = 0.5 * others / others.sum(1, keepdim=True)
    expected = expected.double().scatter(1, answers[:, None], -0.5)
    assert torch.allclose(gradient / beta, expected, atol=1e-6)


def test_far_margins_stay_finite():
    scores = torch.tensor([[0.0, 3000.0], [3000.0, 0.0]], requires_grad=True)
    loss = dpo(scores, torch.tensor([0, 0]), torch.zeros(2, 2), 1.0)
    assert loss.tolist() == [3000.0, 0.0]
    assert torch.autograd.grad(loss.sum(), scores)[0].tolist() == [[-1.0, 1.0], [0.0, 0.0]]


def test_a_score_that_is_no_number_is_not_taken_for_an_absent_option():
    scores = torch.tensor([[0.0, math.nan], [math.nan, 0.0]])
    assert dpo(scores, torch.tensor([0, 0]), torch.zeros(2, 2), 1.0).isnan().all()


def test_without_a_reference_there_is_no_loss():
    with pytest.raises(ValueError, match="with_reference"):
        dpo(torch.zeros(1, 2), torch.tensor([0]), None, 0.1)


# --- the reference ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "separate", "tree"])
@pytest.mark.parametrize("score", ["sum", "token", "byte"])
def test_the_reference_is_the_base_in_plain_passes(policy, tiny_folder, score, layout):
    base = LlamaForCausalLM.from_pretrained(tiny_folder).eval()
    questions = ragged(7)
    found = with_reference(questions, policy, score=score, layout=layout, batch_size=3)
    assert [replace(question, reference=None) for question in found] == questions
    for question, asked in zip(found, questions, strict=True):
        assert question.reference == pytest.approx(naive(base, asked, score=score), abs=1e-4, rel=0)


def test_the_batch_size_changes_nothing_and_the_model_is_left_as_it_was(policy):
    questions = ragged(9)
    policy.train()
    flags = [parameter.requires_grad for parameter in policy.parameters()]
    one, many = (with_reference(questions, policy, batch_size=size) for size in (1, 9))
    for left, right in zip(one, many, strict=True):
        assert left.reference == pytest.approx(right.reference, abs=1e-4)
    assert policy.training and flags == [parameter.requires_grad for parameter in policy.parameters()]
    assert with_reference([], policy) == []


def test_a_bar_is_shown_where_it_has_a_name(policy, capsys):
    with_reference(ragged(2), policy)
    assert capsys.readouterr().err == ""
    with_reference(ragged(2), policy, description="reference")
    assert "reference: 100%" in capsys.readouterr().err


@torch.no_grad()
def loss_of(model, questions, beta=0.5, score="sum", **layout) -> torch.Tensor:
    batch = collate(questions, **layout)
    log_probs = option_log_probs(predictive(model, batch), batch, score=score)
    return dpo(log_probs, batch.answers, batch.reference, beta)


@pytest.mark.parametrize("style", ["plain", "chat"])
@pytest.mark.parametrize("score", ["sum", "token"])
def test_the_loss_of_a_model_is_that_of_plain_passes(policy, tiny_folder, score, style):
    base = LlamaForCausalLM.from_pretrained(tiny_folder).eval()
    choice = MultipleChoice("choice", "Which?", ("the", "an ant", "it is"), 1)
    tokenizer = tiny_tokenizer()
    encoded = encode_questions([*PAIRS, choice], tokenizer, style=style, max_length=512)
    questions = with_reference(encoded, policy.eval(), score=score)
    found = loss_of(policy, questions, score=score)
    for question, loss in zip(encoded, found, strict=True):
        scores, reference = (naive(model, question, score=score) for model in (policy, base))
        expected = by_hand(scores, question.answer, reference, 0.5)
        assert loss.item() == pytest.approx(expected, abs=1e-3)
    assert found.sub(math.log(2)).abs().min() > 0.01
    for layout in ({"layout": "separate"}, {"layout": "tree"}, {"padding_side": "left", "pad_id": 5}):
        assert torch.allclose(loss_of(policy, questions, score=score, **layout), found, atol=1e-3)
    with base_only(policy):  # the policy is the reference
        at_base = loss_of(policy, questions, score=score)
    assert torch.allclose(at_base, torch.full((4,), math.log(2)), atol=1e-4)


def trl_trainer(policy, tokenizer, folder, loss_type):
    """TRL's own trainer of the same policy, on the same pairs as conversations."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    turns = [
        [{"role": "user", "content": "Is it?"}],
        [{"role": role, "content": text} for role, text in
         (("user", "Hi"), ("assistant", "Yes?"), ("user", "Who?"))],
        [{"role": "user", "content": PAIRS[2].text}],
    ]  # fmt: skip
    data = datasets.Dataset.from_list(
        [
            {
                "prompt": asked,
                "chosen": [{"role": "assistant", "content": pair.chosen}],
                "rejected": [{"role": "assistant", "content": pair.rejected}],
            }
            for asked, pair in zip(turns, PAIRS, strict=True)
        ]
    )
    config = trl.DPOConfig(
        output_dir=str(folder),
        beta=0.5,
        loss_type=[loss_type],
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=3,
        max_length=None,
        activation_checkpointing=False,
        disable_dropout=False,
    )
    datasets.disable_progress_bars()
    try:
        return trl.DPOTrainer(policy, args=config, train_dataset=data, processing_class=tokenizer)
    finally:
        datasets.enable_progress_bars()


@pytest.mark.parametrize(("score", "loss_type"), [("sum", "sigmoid"), ("token", "sigmoid_norm")])
def test_the_loss_is_trls(policy, tmp_path, score, loss_type):
    tokenizer = tiny_tokenizer()
    encoded = encode_questions(PAIRS, tokenizer, style="chat", max_length=512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL's own ways
        trainer = trl_trainer(policy, tokenizer, tmp_path, loss_type)
        policy.delete_adapter("ref")  # a copy of the adapter, which had moved: the base is the reference
        theirs = list(trainer.train_dataset)
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(theirs)).item()
    newline = tokenizer("\n").input_ids  # of the template, behind the end of the turn
    for question, row in zip(encoded, theirs, strict=True):
        assert question.prompt == row["prompt_ids"]
        assert [option + newline for option in question.options] == [row["chosen_ids"], row["rejected_ids"]]
    same = [
        EncodedQuestion(str(i), row["prompt_ids"], [row["chosen_ids"], row["rejected_ids"]], 0, [1, 1])
        for i, row in enumerate(theirs)
    ]
    ours = loss_of(policy.eval(), with_reference(same, policy, score=score), score=score)
    assert ours.mean().item() == pytest.approx(loss, abs=1e-4)
    assert abs(loss - math.log(2)) > 0.01


def test_descent_on_the_loss_prefers_what_is_chosen(policy):
    encoded = encode_questions(PAIRS, tiny_tokenizer(), style="chat", max_length=512)
    batch = collate(with_reference(encoded, policy))
    optimizer = torch.optim.AdamW(adapter_parameters(policy), lr=0.01)
    for _ in range(30):
        log_probs = option_log_probs(predictive(policy, batch), batch)
        loss = dpo(log_probs, batch.answers, batch.reference, 0.5).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert batch.reference is not None
    with torch.no_grad():
        gain = option_scores(predictive(policy, batch), batch) - batch.reference
    assert (gain[:, 0] > gain[:, 1]).all() and loss < 0.1


# --- held out -----------------------------------------------------------------------------------


def test_all_pairs_of_a_prompt_are_on_one_side():
    pairs = [Preference(str(i), f"Say {i % 20}.", f"good {i}", "bad") for i in range(60)]
    kept, held = hold_out(pairs, 0.25, seed=0)
    assert (len(kept), len(held)) == (45, 15)
    assert not {pair.text for pair in kept} & {pair.text for pair in held}


def test_other_answers_to_a_prompt_make_no_other_question():
    one, other = Preference("a", "Say it.", "it", "no"), Preference("b", "say  it.", "that", "never")
    for shared in (other, OpenEnded("c", "Say it.", ("it",))):
        with pytest.raises(CalibrantError, match="these share 1 questions"):
            check_disjoint([one], [shared], "these")
    check_disjoint([one], [Preference("a", "Say that.", "it", "no")], "these")
