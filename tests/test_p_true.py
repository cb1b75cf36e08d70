import numpy as np
import torch

from toolkit.confidence.p_true import SHOWN, p_true, true_or_false
from toolkit.questions.question import OpenEnded

FRANCE = OpenEnded("france", "What is the capital of France?", ("Paris",))
CHAD = OpenEnded("chad", "What is the capital of Chad?", ("N'Djamena",))


def test_samples_are_shown_once_each_and_only_the_first_few():
    samples = ["Paris", " Paris ", "", "Lyon", *map(str, range(9))]
    shown = true_or_false(FRANCE, "Paris", samples)
    lines = shown.text.splitlines()
    assert lines[2:-2] == ["Paris", "Lyon", "0", "1", "2"] and len(lines[2:-2]) == SHOWN
    assert lines[-2:] == ["Proposed answer: Paris", "Is the proposed answer true or false?"]
    assert shown.choices[shown.answer] == "True"
    assert "possible" not in true_or_false(FRANCE, "Paris", ["", " "]).text


def test_it_is_the_share_of_true_in_a_plain_pass(bundled):
    model, tokenizer = bundled
    found = p_true(
        model, tokenizer, [FRANCE, CHAD], ["Paris", ""], style="plain", max_length=512, batch_size=2
    )
    for question, answer, own in zip([FRANCE, CHAD], ["Paris", "(none)"], found, strict=True):
        prompt = (
            f"Question: {question.text}\nProposed answer: {answer}\n"
            "Is the proposed answer true or false?\nAnswer:"
        )
        with torch.no_grad():
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        first = [tokenizer(word)["input_ids"] for word in (" True", " False")]
        assert all(len(ids) == 1 for ids in first)
        share = logits[[ids[0] for ids in first]].softmax(-1)[0].item()
        assert np.isclose(own, share, atol=1e-4)
    assert abs(found[0] - found[1]) > 1e-3  # the answer has a say


def test_samples_and_batches(bundled):
    model, tokenizer = bundled

    def ask(questions, answers, samples, size):
        keys = {"samples": samples, "style": "chat", "max_length": 512, "batch_size": size}
        return p_true(model, tokenizer, questions, answers, **keys)

    both = ask([FRANCE, CHAD], ["Paris", "Lagos"], [["Paris", "Lyon"], []], 2)
    assert np.isclose(both[0], ask([FRANCE], ["Paris"], [["Paris", "Lyon"]], 1)[0], atol=1e-4)
    assert not np.isclose(both[0], ask([FRANCE], ["Paris"], None, 1)[0], atol=1e-4)
