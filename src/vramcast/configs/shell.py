"""A launch script in shell → its commands as words, with variables filled in. Nothing is run.

Understood: comments, continuations, quotes, `$NAME`, `${NAME:-default}`, arrays, `+=`, `export`, `$((1 + 2))` of
numbers, here-documents (skipped), pipes and redirections (dropped), the branches that are taken
(`shell_branches.py`). What only a shell could know (`$(…)`, backticks, variables from outside) stays in the text as it
is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from vramcast.configs.shell_branches import Branches, answer
from vramcast.configs.shell_words import (
    ONE_VARIABLE,
    OWN_FOLDER,
    PIECE,
    Command,
    Script,
    Word,
    item_of,
    pieces_of,
    spans_of,
    sum_of,
)
from vramcast.errors import InputError

DEEPEST_COMMANDS = 4  # `bash -c "…"` inside of `bash -c "…"`
LONGEST_FOLDER = 300  # characters of a command that finds the script's own folder
LONGEST_WORD = 100_000  # characters, after variables are filled in
MOST_WORDS = 50_000
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[\w+\])?(\+?=)")
BRANCHES = ("if", "then", "else", "elif", "fi", "do", "done", "while", "until", "case", "esac")
KEYWORDS = (
    *BRANCHES,
    "!",
    "time",
    "nohup",
    "exec",
    "env",
    "sudo",
    "{",
    "}",
    "eval",
    "command",
    "function",
)
TESTS = ("[", "[[", "test")
MOST_SOURCED = 8  # files that one script takes in with `source`
DEFAULT = re.compile(r'"?\$\{\w+:?-([^}$"`]+)\}"?')
LOOSE = re.compile(r"\\[ \t]+(#[^\n]*)?\n")
ARRAY = re.compile(r"""(?:"\$\{(\w+)\[@\]\}"|\$\{(\w+)\[[@*]\]\})(?=[\s;&|)]|$)""")
SEPARATORS = "\n;&|()"
OPERATORS = re.compile(r"""[;&|<>'"\\]""")
# `${NAME:-8}`, `${NAME:=8}`, `${NAME:?say it}`, `${NAME:+--flag}`
BRACED = re.compile(r"(\w+)(\[[@*0-9]+\])?((:?[-=?+])(.*))?", re.DOTALL)


Load = Callable[[str], str | None]


def read_shell(text: str, file: str, load: Load | None = None) -> Script:
    """`load` gives the text of a file that the script takes in with `source`."""
    reader = _Reader(text, file)
    reader.load = load
    reader.read()
    reader.script.open_lines = sorted({each.line for each in reader.branches.unknown})
    return reader.script


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text.replace("\r\n", "\n"), file
        self.pos, self.line = 0, 1
        self.script = Script()
        self.command = Command()
        self.delimiters: list[str] = []  # of here-documents that begin on the next line
        self.reads = ""  # the variable that `read -r -d '' NAME <<EOF` fills
        self.num_words = 0
        self.branches = Branches()
        self.skips = False  # the next command, behind `[ … ] &&`
        self.load: Load | None = None
        self.num_sourced = 0
        self.has_places = True  # words are changed in this text
        self.depth = 0  # of texts that are commands inside of commands
        self.evaluates = False  # `eval "$COMMAND"`: the words are inside its words

    # ---- commands

    def read(self) -> None:
        while self.pos < len(self.text):
            self._next()
        self._end_command("")

    def _next(self) -> None:
        sign = self.text[self.pos]
        loose = LOOSE.match(self.text, self.pos)
        if self.text.startswith("\\\n", self.pos):
            self._advance(2)
        elif loose is not None:  # bash ends the command there, which nobody means
            self.script.loose_lines.append(self.line)
            self._advance(len(loose[0]))
        elif sign in " \t":
            self._advance(1)
        elif sign == "#":
            self._skip_to_line_end()
        elif sign in "<>" or (sign == "&" and self.text[self.pos + 1 : self.pos + 2] == ">"):
            self._redirection()
        elif sign in SEPARATORS:
            self._separate(sign)
        else:
            self._take_word()

    def _separate(self, sign: str) -> None:
        double = self.text[self.pos : self.pos + 2]
        sign = double if double in ("&&", "||", ";;") else sign
        self._end_command(sign)
        self._advance(len(sign))
        if sign == ";;":
            self.branches.end_clause()
        elif sign == "\n":
            self._skip_documents()

    def _advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.pos, self.pos + count)
        self.pos += count

    def _skip_to_line_end(self) -> None:
        end = self.text.find("\n", self.pos)
        self.pos = len(self.text) if end < 0 else end

    def _redirection(self) -> None:
        """`> log`, `2>&1`, `<<EOF`: what follows the sign is no word of the command."""
        match = re.compile(r"&?[<>]+[-&|]?").match(self.text, self.pos)
        assert match is not None
        is_number = self.text[self.pos - 1 : self.pos].isdigit() and bool(self.command.words)
        if is_number and self.command.words[-1].text.isdigit():
            self.command.words.pop()  # `2>&1`
        self._advance(len(match[0]))
        while self.text[self.pos : self.pos + 1] in (" ", "\t"):
            self._advance(1)
        if self.text[self.pos : self.pos + 1] in ("", "\n", "(", ")"):
            return
        target = self._word()
        if match[0].startswith("<<") and not match[0].startswith("<<<") and target:
            self.delimiters.append(target[0].text)

    def _skip_documents(self) -> None:
        for delimiter in self.delimiters:
            end = re.compile(rf"^\s*{re.escape(delimiter)}\s*$", re.MULTILINE).search(
                self.text, self.pos
            )
            if self.reads:
                self._document(end.start() if end else len(self.text))
            self._advance((end.end() if end else len(self.text)) - self.pos)
        self.delimiters.clear()

    def _document(self, end: int) -> None:
        """A here-document that a variable takes: its words, with their places."""
        inner = _Reader(self.text[:end], self.file)
        inner.pos, inner.line, inner.has_places = self.pos, self.line, self.has_places
        inner.script.variables = self.script.variables
        inner.read()
        words = [word for command in inner.script.commands for word in command.words]
        self.script.variables[self.reads] = words
        self.reads = ""

    def _take_word(self) -> None:
        match = ASSIGNMENT.match(self.text, self.pos)
        if match is not None and self._may_assign():
            self._assign(match)
            return
        words = self._word()
        if not self.command.words and len(words) == 1 and words[0].text in KEYWORDS:
            if words[0].text in BRANCHES:
                self.branches.keyword(words[0].text, words[0].line)
            self.evaluates = words[0].text == "eval"
            if words[0].text != "!" or not self.branches.in_condition:
                return
        self.num_words += len(words)
        if self.num_words > MOST_WORDS:
            raise InputError(
                f"{self.file}:{self.line}: more than {MOST_WORDS:,} words; is it a launch script?"
            )
        self.command.words += self._evaluated(words) if self.evaluates else words

    def _evaluated(self, words: list[Word]) -> list[Word]:
        """The words that `eval` makes of a text."""
        made: list[Word] = []
        for word in words:
            if not word.text.strip() or PIECE.fullmatch(word.text):
                made.append(word)
            elif OPERATORS.search(word.text) is None:
                texts = [piece.text for piece in word.pieces]
                split = PIECE.findall(word.text)
                kept = word.pieces if texts == split else ()
                made += kept or [Word(text=each, line=word.line) for each in split]
            else:
                made += self._read_text(word)
        return made

    def _read_text(self, word: Word) -> list[Word]:
        """The first command of a text; others in it are commands of their own."""
        inner = self._inner(word.text)
        if inner is None:
            return [word]
        inner.has_places = False
        inner.read()
        for command in inner.script.commands:
            command.words = [Word(text=each.text, line=word.line) for each in command.words]
        first, *others = inner.script.commands or [Command()]
        self.script.commands += others
        self.command.environment.update(first.environment)
        return first.words

    def _inner(self, text: str) -> _Reader | None:
        """For commands in a text; a text that calls itself has no end."""
        if self.depth >= DEEPEST_COMMANDS:
            return None
        inner = _Reader(text, self.file)
        inner.script.variables, inner.depth = self.script.variables, self.depth + 1
        return inner

    def _may_assign(self) -> bool:
        words = [word.text for word in self.command.words]
        return not words or words[0] in ("export", "declare", "local", "readonly", "set")

    def _assign(self, match: re.Match[str]) -> None:
        name, adds = match[1], match[3] == "+="
        line = self.line
        self._advance(len(match[0]))
        if self.text[self.pos : self.pos + 1] == "(":
            value = self._array()
        else:
            start = self.pos
            empty = self.pos >= len(self.text) or self.text[self.pos] in " \t\n;&|"
            found = [] if empty else self._word(split=False)
            value = found or [Word(text="", line=line)]
            if value[0].span is None and self.has_places and not adds:
                raw = self.text[start : self.pos]
                value = [pieces_of(raw, start, line, value[0], self.script.variables)]
        if not self.branches.is_active or self.skips:
            return
        self.branches.assigned()
        known = self.script.variables.get(name, [])
        if (
            adds
            and known
            and len(value) == 1
            and len(known) == 1
            and self.text[self.pos - 1] != ")"
        ):
            value = [Word(text=_bounded(known[0].text + value[0].text, self), line=value[0].line)]
        elif adds:
            value = [*known, *value]
        if len(value) > MOST_WORDS:
            raise InputError(f"{self.file}:{line}: an array of more than {MOST_WORDS:,} words")
        self.script.variables[name] = value
        if len(value) == 1:
            place = self.script.exported if self.command.words else self.command.environment
            place[name] = value[0]

    def _array(self) -> list[Word]:
        self._advance(1)
        words: list[Word] = []
        while self.pos < len(self.text) and self.text[self.pos] != ")":
            if self.text.startswith("\\\n", self.pos):
                self._advance(2)
            elif self.text[self.pos] in " \t\n":
                self._advance(1)
            elif self.text[self.pos] == "#":
                self._skip_to_line_end()
            elif self.text[self.pos] in "<>;&|(":
                self._advance(1)
            else:
                words += self._word()
        self._advance(1)
        return words

    def _end_command(self, sign: str) -> None:
        skips, self.skips, self.evaluates = self.skips, False, False
        words = [word.text for word in self.command.words]
        if self.branches.in_condition:
            self.branches.test(words, sign)
            self.command = Command()
        elif not self.branches.is_active or skips:
            self.command = Command()
        else:
            self._end_active(words, sign)

    def _end_active(self, words: list[str], sign: str) -> None:
        if words and (words[0] in TESTS or words[-1] == "]]"):
            found = answer(words)
            self.skips = (sign == "&&" and found is False) or (sign == "||" and found is True)
        if words and words[0] == "for":
            self._loop()
        elif len(words) == 2 and words[0] in ("source", "."):
            self._source(self.command.words[1])
        elif self.command.words and self.command.words[0].text == "read":
            self.reads = self.command.words[-1].text
        elif self.command.words:
            self._take_command()
        else:  # `NAME=value` alone on its line holds for what follows
            self.script.exported.update(self.command.environment)
        self.command = Command()

    def _source(self, named: Word) -> None:
        """Another file's variables, where it is one that may be opened."""
        text = None if self.load is None else self.load(named.text)
        self.num_sourced += 1
        if text is None or self.num_sourced > MOST_SOURCED:
            self.script.not_sourced.append(named)
            return
        inner = _Reader(text, named.text)
        inner.script.variables, inner.script.exported = (
            self.script.variables,
            self.script.exported,
        )
        inner.load, inner.num_sourced, inner.has_places = self.load, self.num_sourced, False
        inner.read()
        self.num_sourced = inner.num_sourced

    def _take_command(self) -> None:
        """A command; what `bash -c "…"` is given is one too."""
        words = [word.text for word in self.command.words]
        for at, name in enumerate(words[:-2]):
            if name.rpartition("/")[2] in ("sh", "bash") and words[at + 1] in ("-c", "-lc"):
                inner = self._inner(words[at + 2])
                if inner is None:
                    break
                inner.read()
                line = self.command.words[at].line
                for command in inner.script.commands:
                    command.words = [Word(text=word.text, line=line) for word in command.words]
                self.script.commands += inner.script.commands
        self.script.commands.append(self.command)

    def _loop(self) -> None:
        """`for x in a b`: the first turn."""
        words = self.command.words
        if len(words) > 3 and words[2].text == "in":
            self.script.variables[words[1].text] = [words[3]]

    # ---- words

    def _word(self, *, split: bool = True) -> list[Word]:
        """One word of the text; unquoted variables may make it several."""
        start, line = self.pos, self.line
        array = ARRAY.match(self.text, self.pos) if split else None
        if array is not None and self.script.variables.get(array[1] or array[2]):
            self._advance(len(array[0]))
            return self.script.variables[array[1] or array[2]]  # its words keep their lines
        parts: list[str] = [""]
        is_literal = True
        while self.pos < len(self.text):
            sign = self.text[self.pos]
            if sign in " \t\n;&|()<>":
                break
            if sign == "'":
                parts[-1] += self._single()
            elif sign == '"':
                found, literal = self._double()
                is_literal = is_literal and literal
                parts[-1] += found[0] if found else ""
                parts += found[1:]
            elif sign == "\\":
                parts[-1] += self.text[self.pos + 1 : self.pos + 2].replace("\n", "")
                self._advance(2)
            elif sign in "$`":
                is_literal = False
                self._unquoted(parts, split=split)
            else:
                parts[-1] += sign
                self._advance(1)
            _bounded(parts[-1], self)
        raw = self.text[start : self.pos]
        named = ONE_VARIABLE.fullmatch(raw)
        if named is not None and not is_literal:
            if split and parts == [""] and not raw.startswith('"'):
                return []  # nothing is no word
            return self._of_variable(named[1], parts, line)
        span = (start, self.pos) if is_literal and self.has_places else None
        default = DEFAULT.fullmatch(raw) if self.has_places else None
        if default is not None and parts == [default[1]]:  # `${BATCH:-8}`
            span = (start + default.start(1), start + default.end(1))
        kept = parts if '"' in raw or "'" in raw else [part for part in parts if part]
        return [Word(text=part, line=line, span=span if len(kept) == 1 else None) for part in kept]

    def _of_variable(self, name: str, parts: list[str], line: int) -> list[Word]:
        """What a variable alone stands for is changed where the variable gets its value."""
        known = self.script.variables.get(name, [])
        kept = [part for part in parts if part] if len(parts) > 1 else parts
        if kept and [word.text for word in known] == kept and len(known) > 1:
            return list(known)  # of a here-document: its words keep their lines
        if len(known) == 1 and [piece.text for piece in known[0].pieces] == kept:
            return list(known[0].pieces)
        if len(known) == 1 and kept == [known[0].text] and known[0].pieces:
            return [replace(known[0], line=line)]
        spans = spans_of(kept, known[0], self.text) if len(known) == 1 else None
        lines = (
            [
                known[0].line + self.text.count("\n", (known[0].span or (0, 0))[0], span[0])
                for span in spans
            ]
            if spans
            else [line] * len(kept)
        )
        return [
            Word(
                text=part,
                line=lines[number] if len(kept) > 1 else line,
                span=spans[number] if spans else None,
            )
            for number, part in enumerate(kept)
        ]

    def _unquoted(self, parts: list[str], *, split: bool) -> None:
        values = self._expansion()
        joined = " ".join(values)
        if not split:
            parts[-1] += joined
            return
        pieces = PIECE.findall(joined)
        if pieces:
            parts[-1] += pieces[0]
            parts += pieces[1:]
        if len(parts) > MOST_WORDS:
            raise InputError(
                f"{self.file}:{self.line}: more than {MOST_WORDS:,} words in a variable"
            )

    def _single(self) -> str:
        end = self.text.find("'", self.pos + 1)
        end = len(self.text) if end < 0 else end
        found = self.text[self.pos + 1 : end]
        self._advance(end + 1 - self.pos)
        return found

    def _double(self) -> tuple[list[str], bool]:
        self._advance(1)
        parts, is_literal = [""], True
        while self.pos < len(self.text) and self.text[self.pos] != '"':
            sign = self.text[self.pos]
            if sign == "\\" and self.text[self.pos + 1 : self.pos + 2] in (
                '"',
                "\\",
                "$",
                "`",
                "\n",
            ):
                parts[-1] += self.text[self.pos + 1].replace("\n", "")
                self._advance(2)
            elif sign in "$`":
                is_literal = False
                is_array = (
                    re.match(r"\$\{\w+\[@\]\}", self.text[self.pos : self.pos + 80]) is not None
                )
                values = self._expansion()
                parts[-1] += values[0] if is_array and values else " ".join(values)
                parts += values[1:] if is_array else []
            else:
                parts[-1] += sign
                self._advance(1)
            _bounded(parts[-1], self)
        self._advance(1)
        return parts, is_literal

    def _expansion(self) -> list[str]:
        """`$…` at the place of reading: its value, or its own text where only a shell would know."""
        rest = self.text[self.pos : self.pos + 2]
        if rest.startswith("`"):
            return [self._raw_until("`")]
        if rest == "$(":
            return [self._substitution()]
        if rest == "${":
            return self._braced()
        name = NAME.match(self.text, self.pos + 1)
        if name is None:
            taken = 2 if re.match(r"\$[0-9@*#?$!-]", rest) else 1
            text = self.text[self.pos : self.pos + taken]
            self._advance(taken)
            return [] if text in ("$@", "$*") else [text]
        self._advance(1 + len(name[0]))
        return self._value(name[0], f"${name[0]}")

    def _value(self, name: str, text: str) -> list[str]:
        known = self.script.variables.get(name)
        return [text] if known is None else [word.text for word in known]

    def _braced(self) -> list[str]:
        start = self.pos
        inner = self._balanced("{", "}")
        match = BRACED.fullmatch(inner)
        if match is None:
            return [self.text[start : self.pos]]
        known = self.script.variables.get(match[1])
        has_value = known is not None and [word.text for word in known] != [""]
        sign = (match[4] or "").lstrip(":")
        if sign == "+":
            return [self._inside(match[5])] if has_value else []
        if known is not None and has_value:
            return item_of([word.text for word in known], match[2])
        if sign in ("-", "="):
            found = self._inside(match[5])
            if sign == "=":
                self._give_default(match, start + 2, found)
            return [found]
        return [""] if known is not None else [self.text[start : self.pos]]

    def _give_default(self, match: re.Match[str], start: int, text: str) -> None:
        """`: "${NAME:=8}"` is how many scripts set their variables."""
        if not self.branches.is_active or self.skips:
            return
        is_literal = text == match[5] and self.has_places
        span = (start + match.start(5), start + match.end(5)) if is_literal else None
        self.branches.assigned()
        self.script.variables[match[1]] = [Word(text=text, line=self.line, span=span)]

    def _inside(self, text: str) -> str:
        """A default value, which may name variables itself."""
        if len(text) > LONGEST_WORD or text.count("{") > 20:
            return text
        inner = _Reader(text, self.file)
        inner.script.variables = self.script.variables
        return " ".join(word.text for word in inner._word(split=False)) if text else ""

    def _balanced(self, opening: str, closing: str) -> str:
        self._advance(2)
        start, depth = self.pos, 1
        while self.pos < len(self.text) and depth:
            sign = self.text[self.pos]
            depth += (sign == opening) - (sign == closing)
            self._advance(1)
        return self.text[start : self.pos - 1 if depth == 0 else self.pos]

    def _substitution(self) -> str:
        start = self.pos
        inner = self._balanced("(", ")")
        is_sum = inner.startswith("(") and inner.endswith(")")
        if is_sum or inner.strip().startswith("expr "):
            total = sum_of(
                self._names_filled(inner[1:-1] if is_sum else inner.strip()[5:].replace("\\*", "*"))
            )
            if total is not None:
                return str(total)
        own = OWN_FOLDER.fullmatch(self.text[start : self.pos][:LONGEST_FOLDER])
        if own is not None:
            return f".{own[1] or ''}"  # paths are followed from the script's folder
        return self.text[start : self.pos]

    def _names_filled(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            known = self.script.variables.get(match[1])
            return known[0].text if known else match[0]

        return re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value, text[:500])

    def _raw_until(self, sign: str) -> str:
        end = self.text.find(sign, self.pos + 1)
        end = len(self.text) - 1 if end < 0 else end
        found = self.text[self.pos : end + 1]
        self._advance(end + 1 - self.pos)
        return found


def _bounded(text: str, reader: _Reader) -> str:
    if len(text) > LONGEST_WORD:
        raise InputError(
            f"{reader.file}:{reader.line}: a word of more than {LONGEST_WORD:,} characters"
        )
    return text
