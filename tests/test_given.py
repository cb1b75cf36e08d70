import numpy as np
import pytest
import torch
from random_models import ragged, tiny

from toolkit.confidence.given import given_tokens
from toolkit.models.adjustment import Adjustment


def naive(model, questions, adjustment):
    """The same by one plain pass for each right answer, token by token."""
    rows = []
    for number, question in enumerate(questions):
        answer = question.options[question.answer]
        with torch.no_grad():
            logits = model(torch.tensor([question.prompt + answer])).logits[0].double()
        if adjustment is not None:
            logits = adjustment.delta.double() * logits + adjustment.iota.double()
        for offset, token in enumerate(answer):
            p = logits[len(question.prompt) - 1 + offset].softmax(-1)
            entropy = -sum(float(x) * float(x.log()) for x in p)
            rows.append((number, float(p[token].log()), entropy, float(p.max()), int(p.argmax()) == token))
    return rows


@pytest.mark.parametrize("layout", ["packed", "separate", "tree"])
@pytest.mark.parametrize("adjusted", [False, True])
def test_tokens_are_those_of_a_plain_pass(layout, adjusted):
    model, questions = tiny(), ragged(7)
    torch.manual_seed(1)
    adjustment = Adjustment(torch.rand(97) + 0.5, torch.randn(97)) if adjusted else None
    found = given_tokens(model, questions, adjustment=adjustment, layout=layout, batch_size=3)
    columns = (found.question, found.log_prob, found.entropy, found.confidence, found.correct)
    assert np.allclose(np.stack(columns, axis=1), naive(model, questions, adjustment), atol=1e-4)
    assert any(found.correct) and not all(found.correct)
