"""Texts of tokens that survive decoding: tests of `toolkit/models/spans.py`."""

import random
from copy import copy
from itertools import pairwise

import pytest
from conftest import tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from toolkit.models.spans import TokenText, continues_character, token_spans

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
TEXTS = (
    "The capital of France is Paris.",
    "  two  spaces\tand a tab\n\nand lines\r\n",
    f"emoji 👍🏽 {FAMILY} 🇫🇷!",
    "שלום, مرحبا بالعالم",
    "日本の首都は東京です。",
    "cafe\N{COMBINING ACUTE ACCENT} à la crème",
    "literal <0x41> and \N{REPLACEMENT CHARACTER} stay",
    "",
)


def llama_2() -> PreTrainedTokenizerFast:
    """BPE with byte fallback whose decoder strips a text's first space, as that of Llama-2."""
    words = ["<unk>", "<s>", "</s>", *BYTES, "▁", "t", "h", "e", "a", "▁t", "▁th", "▁the", "日"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: number for number, word in enumerate(words)},
            merges=merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def unigram() -> PreTrainedTokenizerFast:
    """Unigram with byte fallback that keeps a text's first space, as SentencePiece models without prefix."""
    words = ["<unk>", "<eos>", *BYTES, "▁", "▁the", "the", "a", "n", "c", "▁capital", "本"]
    tokenizer = Tokenizer(
        models.Unigram([(word, -float(number)) for number, word in enumerate(words)], 0, True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


@pytest.fixture(params=["byte-level", "bundled", "llama-2", "unigram"])
def tokenizer(request):
    if request.param == "bundled":
        return request.getfixturevalue("bundled")[1]
    return {"byte-level": tiny_tokenizer, "llama-2": llama_2, "unigram": unigram}[request.param]()


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def assert_covers(text: str, spans: list[tuple[int, int]]) -> None:
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert all(start <= end for start, end in spans)


@pytest.mark.parametrize("written", [text for text in TEXTS if text])
def test_spans_cover_what_was_written(tokenizer, written):
    ids = encode(tokenizer, written)
    text, spans = token_spans(tokenizer, ids)
    prefix = " " if tokenizer.bos_token == "<s>" else ""  # Llama-2 puts one before each text
    if "<0x41>" not in written:  # as text, SentencePiece reads it as the byte
        assert text == prefix + written
    assert_covers(text, spans)
    assert sum(start < end for start, end in spans) > 1


@pytest.mark.parametrize("seed", range(20))
def test_random_tokens_read_as_the_tokenizer_reads_them(seed, bundled):
    draw = random.Random(seed)
    for tokenizer in (tiny_tokenizer(), bundled[1]):
        ids = [draw.randrange(len(tokenizer)) for _ in range(40)]
        if seed % 2:  # bytes alone, nearly all of them no UTF-8
            ids = [token for token in ids if token < 258] or [200]
        text, spans = token_spans(tokenizer, ids)
        whole = str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        assert whole.removeprefix(text) in ("", "\N{REPLACEMENT CHARACTER}")
        assert_covers(text, spans)


@pytest.mark.parametrize("seed", range(10))
def test_the_text_of_the_first_tokens_is_final(tokenizer, seed):
    draw = random.Random(seed)
    ids = [draw.randrange(len(tokenizer)) for _ in range(12)] + encode(tokenizer, draw.choice(TEXTS))
    text, spans = token_spans(tokenizer, ids)
    answer = TokenText(tokenizer)
    for number, token in enumerate(ids):
        added, before = answer.peek(token), answer.text
        assert answer.append(token) == spans[number]
        assert answer.text == before + added == text[: spans[number][1]]
        assert token_spans(tokenizer, ids[: number + 1]) == (answer.text, spans[: number + 1])


@pytest.mark.parametrize("character", ["東", "👍", "é"])
def test_a_character_of_several_tokens_belongs_to_the_last(tokenizer, character):
    before, after = encode(tokenizer, "a"), encode(tokenizer, "n")[-1:]
    ids = encode(tokenizer, "a" + character)[len(before) :]
    assert len(ids) > 1 or tokenizer.vocab_size > 1000
    text, spans = token_spans(tokenizer, before + ids + after)
    own = spans[len(before) : len(before) + len(ids)]
    place = text.index(character)
    assert own == [(place, place)] * (len(ids) - 1) + [(place, place + 1)]
    unfinished, _ = token_spans(tokenizer, before + ids[:-1])
    assert unfinished == token_spans(tokenizer, before)[0]


def test_bytes_that_are_no_utf_8_stand_with_the_token_that_proves_it():
    tokenizer = llama_2()
    names = ["<0xE3>", "<0x81>", "a", "<0x82>", "<0xE3>", "<0x81>", "<0x82>", "<0xF0>"]
    ids = [tokenizer.get_vocab()[name] for name in names]
    text, spans = token_spans(tokenizer, ids)
    assert text == "\N{REPLACEMENT CHARACTER}a\N{REPLACEMENT CHARACTER}あ"
    assert spans == [(0, 0), (0, 0), (0, 2), (2, 3), (3, 3), (3, 3), (3, 4), (4, 4)]


def test_what_a_token_adds_does_not_depend_on_where_it_stands():
    """Llama-2's own decoder gives "the" for the first and " the" for the second."""
    tokenizer = llama_2()
    the = tokenizer.get_vocab()["▁the"]
    assert tokenizer.decode([the, the]) == "the the"
    assert token_spans(tokenizer, [the, the]) == (" the the", [(0, 4), (4, 8)])


def test_special_tokens_have_their_name_or_nothing(tokenizer):
    end = tokenizer.eos_token_id
    word = encode(tokenizer, "a")[-1:]
    name = tokenizer.eos_token
    assert token_spans(tokenizer, [*word, end, *word]) == (
        f"a{name}a",
        [(0, 1), (1, 1 + len(name)), (1 + len(name), 2 + len(name))],
    )
    assert token_spans(tokenizer, [*word, end, *word], special=False) == ("aa", [(0, 1), (1, 1), (1, 2)])


def test_no_tokens_have_no_text(tokenizer):
    assert token_spans(tokenizer, []) == ("", [])


def test_a_copy_goes_on_by_itself():
    tokenizer = tiny_tokenizer()
    first, second, third = encode(tokenizer, "あ")
    answer = TokenText(tokenizer)
    answer.append(first)
    other = copy(answer)
    for token in (second, third):
        other.append(token)
    assert (answer.text, other.text) == ("", "あ")
    answer.append(encode(tokenizer, "a")[0])
    assert answer.text == "\N{REPLACEMENT CHARACTER}a"


@pytest.mark.parametrize(
    ("characters", "count"),
    [
        ("abc", 3),
        ("e\N{COMBINING ACUTE ACCENT}a", 2),
        (FAMILY, 1),
        ("👍🏽👍", 2),
        ("🇫🇷🇩🇪a🇩🇪", 4),
        ("❤\N{VARIATION SELECTOR-16}", 1),
        ("की", 1),
        ("日本", 2),
        ("a\n", 2),
    ],
)
def test_what_a_reader_takes_for_one_character(characters, count):
    joined = [continues_character(characters[:place], characters[place:]) for place in range(len(characters))]
    assert joined.count(False) == count
    assert not continues_character("a", "")
