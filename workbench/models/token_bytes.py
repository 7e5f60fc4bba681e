"""The exact bytes behind a token's spelling, for the two ways in which vocabularies spell bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-in for each byte: itself where printable, else U+0100 and up in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def byte_level_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    """Return the bytes of a token spelt in GPT-2's alphabet; a token that is not, is plain text."""
    spelt = [alphabet.get(character) for character in token]
    return token.encode("utf-8") if None in spelt else bytes(b for b in spelt if b is not None)


def sentencepiece_bytes(token: str) -> bytes:
    """Return the bytes of a SentencePiece token: `▁` is a space, `<0xAB>` one byte."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode("utf-8")
