"""Texts of tokens that survive decoding: where in an answer's text each token's characters stand.

Tokens are taken as bytes and the bytes as UTF-8, so that the text of the first tokens stays what it is
whatever follows them. Byte-level BPE and SentencePiece with byte fallback both work so: their tokens' bytes
stand one after the other. The text is what the tokens add to one before them; the space that some decoders
strip at the beginning of a text is therefore kept.

A character of several tokens belongs to the last of them, and the tokens before it have empty spans. A
character that is not finished has no text yet. Bytes that are no UTF-8 become U+FFFD, with the token that
proves it.
"""

import codecs
import re
import unicodedata
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
"""What SentencePiece calls the token of a single byte."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
JOINER = "\N{ZERO WIDTH JOINER}"


class TokenText:
    """The text of tokens, as they come. A copy goes on by itself.

    Args:
        tokenizer: The tokenizer whose tokens they are.
        special: Whether special tokens have their name for a text; otherwise they have none.

    Attributes:
        text: Text of the tokens so far, without a character that is not finished.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, special: bool = True) -> None:
        self.text = ""
        self._pieces = _Pieces(tokenizer, special)
        self._rest = b""  # the beginning of a character

    def append(self, token: int) -> tuple[int, int]:
        """Adds a token and returns the first of its characters in the text, and one past the last."""
        start = len(self.text)
        added, self._rest = self._decode(token)
        self.text += added
        return start, len(self.text)

    def peek(self, token: int) -> str:
        """Returns what a token would add to the text; empty where it is but a part of a character."""
        return self._decode(token)[0]

    def _decode(self, token: int) -> tuple[str, bytes]:
        found = self._rest + self._pieces[token]
        text, used = codecs.utf_8_decode(found, "replace", False)
        return text, found[used:]


def token_spans(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], *, special: bool = True
) -> tuple[str, list[tuple[int, int]]]:
    """Returns the text of tokens, and for each its first character and one past its last.

    The spans are consecutive and cover the text.

    Args:
        tokenizer: The tokenizer whose tokens they are.
        ids: The tokens.
        special: Whether special tokens have their name for a text; otherwise they have none.
    """
    answer = TokenText(tokenizer, special=special)
    spans = [answer.append(token) for token in ids]
    return answer.text, spans


def continues_character(before: str, text: str) -> bool:
    """Says whether a text begins inside what a reader takes for one character with the end of another.

    So do accents and vowel signs, variation selectors, skin tones, what a zero-width joiner ties, and the
    second letter of a flag. The tokens of such a character have spans of their own, for each adds to the
    text when it comes; whoever shows them may want to keep them together.

    Args:
        before: All text before.
        text: The text that follows.
    """
    if not before or not text:
        return False
    first = text[0]
    if first == JOINER or before[-1] == JOINER or unicodedata.category(first) in ("Mn", "Mc", "Me"):
        return True
    if "\U0001f3fb" <= first <= "\U0001f3ff":
        return True
    flag = re.search("[\U0001f1e6-\U0001f1ff]*$", before)
    return "\U0001f1e6" <= first <= "\U0001f1ff" and flag is not None and len(flag[0]) % 2 == 1


class _Pieces(dict[int, bytes]):
    """The bytes that each token adds to a text, found when they are first asked for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, special: bool) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self._hidden = frozenset() if special else frozenset(token for token, kind in added if kind.special)
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._skipped = len(self._decode(self._before))

    def __missing__(self, token: int) -> bytes:
        self[token] = b"" if token in self._hidden else self._bytes(token)
        return self[token]

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _bytes(self, token: int) -> bytes:
        text = self._decode([*self._before, token])[self._skipped :]
        if REPLACEMENT not in text:
            return text.encode()
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        if fallback := FALLBACK.fullmatch(name):
            return bytes([int(fallback[1], 16)])
        if all(character in _BYTES for character in name):
            return bytes(_BYTES[character] for character in name)
        return text.encode()


def _byte_characters() -> dict[str, int]:
    """Returns the byte for which each character stands in the names of byte-level tokens.

    Printable characters of Latin-1 stand for themselves, and those from U+0100 on for the other bytes.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_characters()
