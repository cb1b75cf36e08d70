"""Entailment by a language model against a plain pass, and by a tiny random NLI model, saved and loaded."""

import pytest
import torch
from conftest import tiny_tokenizer
from transformers import AutoModelForCausalLM, BertConfig, BertForSequenceClassification, BertModel

from toolkit.confidence.clusters import by_meaning
from toolkit.confidence.entailment import by_language_model, by_nli, entailment_label, load_nli
from toolkit.errors import CalibrantError

QUESTION = "Which is it?"
PAIRS = [("the end", "an inn"), ("the end", "the end is near"), ("x", "the"), ("an inn, or is it", "a")]
LABELS = {0: "contradiction", 1: "neutral", 2: "Entailment"}


def nli_folder(folder, labels=LABELS, architecture=BertForSequenceClassification, length=64):
    """Saves a random model of 2 layers whose classes come out different from pair to pair."""
    tokenizer = tiny_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=length,
        initializer_range=0.9,
        pad_token_id=tokenizer.pad_token_id,
        id2label=labels,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        architecture(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_language_model_says_yes_where_a_plain_pass_does(bundled):
    model, tokenizer = bundled
    asked = "Who wrote Hamlet?"
    pairs = [
        ("William Shakespeare", "Shakespeare"),
        ("Shakespeare wrote it", "It was written by William Shakespeare"),
        ("William Shakespeare", "Christopher Marlowe"),
    ]
    found = by_language_model(model, tokenizer, style="chat", max_length=512, batch_size=2)(asked, pairs)
    expected = []
    for a, b in pairs:
        text = f"{asked}\nAnswer A: {a}\nAnswer B: {b}\nIf answer A is right, is answer B right too?"
        turns = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        with torch.no_grad():
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        (yes,), (no,) = (tokenizer(word)["input_ids"] for word in ("Yes", "No"))
        expected.append((logits[yes] > logits[no]).item())
    assert found == expected
    assert len(set(found)) == 2


def test_the_bundled_model_can_be_asked(bundled):
    model, tokenizer = bundled
    entails = by_language_model(model, tokenizer, style="chat", max_length=512)
    answers = ["Paris", "paris.", "", "It is Paris.", "Lyon"]
    clusters = by_meaning("What is the capital of France?", answers, entails)
    assert clusters[0] == clusters[1] == 0 and clusters[2] not in clusters[:2] + clusters[3:]


def test_a_pair_longer_than_the_context_is_refused(tiny_folder):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    entails = by_language_model(model, tiny_tokenizer(), style="plain", max_length=100)
    with pytest.raises(CalibrantError, match="context holds 100"):
        entails(QUESTION, [("long" * 30, "short")])


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_an_nli_model_says_what_one_pair_at_a_time_does(tmp_path, batch_size):
    model, tokenizer = load_nli(nli_folder(tmp_path))
    pairs = PAIRS + [(b, a) for a, b in PAIRS] + [(str(i), str(i * i)) for i in range(12)]
    expected = []
    for a, b in pairs:
        inputs = tokenizer(f"{QUESTION} {a}", f"{QUESTION} {b}", return_tensors="pt")
        with torch.no_grad():
            expected.append(model(**inputs).logits[0].argmax().item() == 2)
    assert by_nli(model, tokenizer, batch_size=batch_size)(QUESTION, pairs) == expected
    assert len(set(expected)) == 2
    assert not model.training and model.dtype == torch.float32


def test_the_order_of_the_classes_does_not_matter(tmp_path):
    found = []
    for place in range(3):
        names = ["contradiction", "neutral"]
        names.insert(place, "ENTAILMENT")
        model, tokenizer = load_nli(nli_folder(tmp_path / str(place), dict(enumerate(names))))
        assert entailment_label(model.config) == place
        found.append(by_nli(model, tokenizer)(QUESTION, [(str(i), str(i * i)) for i in range(12)]))
    # The weights are the same, so that each pair has one class of the three.
    assert [sum(votes) for votes in zip(*found, strict=True)] == [1] * 12


@pytest.mark.parametrize("labels", [{0: "LABEL_0", 1: "LABEL_1"}, {0: "not_entailment", 1: "neutral"}])
def test_a_model_without_the_class_is_refused(tmp_path, labels):
    with pytest.raises(CalibrantError, match=f"{labels[0]}.* have no 'entailment' among them; choose an NLI"):
        load_nli(nli_folder(tmp_path, labels))


def test_a_model_without_a_classifier_is_refused(tmp_path):
    with pytest.raises(CalibrantError, match="lacks 2 weights of a model for sequence classification"):
        load_nli(nli_folder(tmp_path, architecture=BertModel))


def test_pickled_weights_are_refused(tmp_path):
    folder = nli_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CalibrantError, match="no safetensors"):
        load_nli(folder)


def test_a_tokenizer_without_padding_is_refused(tmp_path):
    folder = nli_folder(tmp_path)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(CalibrantError, match="no pad token"):
        load_nli(folder)


def test_answers_that_outgrow_an_nli_model_are_refused(tmp_path):
    entails = by_nli(*load_nli(nli_folder(tmp_path)))
    with pytest.raises(CalibrantError, match="context holds 64; shorten"):
        entails(QUESTION, [("long" * 20, "short")])
