"""The one look-up for words that reports print, in English and Chinese. The modules beside this one hold the words.

Every key has both languages (a test walks all tables). A key without words is a mistake of ours, never a reason to
print another language: it raises.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.errors import InvariantError

LANGUAGES = ("en", "zh")

Words = Mapping[str, tuple[str, str]]  # key → English, Chinese


def language_of(variables: Mapping[str, str]) -> str:
    """The language of a terminal, by the first of its variables that says one; English where it is another."""
    named = (variables.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    locale = next((value for value in named if value), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def say(words: Words, key: str, lang: str, **values: object) -> str:
    """The text of a key, with values put into its braces."""
    if key not in words:
        raise InvariantError(f"no words for {key!r} in report/words")
    text = words[key][LANGUAGES.index(lang)]
    return text.format(**values) if values else text
