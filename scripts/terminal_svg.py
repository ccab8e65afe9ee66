"""Draws what a program left on its terminal: terminal_svg.py TITLE COLUMNS FROM UNTIL <output >picture.svg

From the first line that contains FROM to the line before the first one after it that contains UNTIL.
"""

import io
import re
import sys

import pyte
from rich.console import Console
from rich.text import Text

ROWS = 1000  # More than a run prints: nothing scrolls off.


def style(char: pyte.screens.Char) -> str:
    words = ["bold"] if char.bold else []
    if char.fg != "default":
        words.append({"brown": "yellow"}.get(char.fg, char.fg))
    return " ".join(words)


title, columns, first, last = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
# pyte has no dim text; the scripts use it for typed commands.
output = sys.stdin.buffer.read().decode().replace("\x1b[2m", "\x1b[36m")
screen = pyte.Screen(columns, ROWS)
pyte.Stream(screen).feed(output)

lines = [[screen.buffer[row][column] for column in range(columns)] for row in range(ROWS)]
texts = ["".join(char.data for char in line).rstrip() for line in lines]
start = next(row for row, text in enumerate(texts) if first in text)
end = next(row for row in range(start + 1, ROWS) if last in texts[row])
while not texts[end - 1]:
    end -= 1

console = Console(width=columns, record=True, file=io.StringIO(), force_terminal=True)
for line, text in zip(lines[start:end], texts[start:end]):
    drawn = Text()
    for char in line[: len(text)]:
        drawn.append(char.data, style(char))
    console.print(drawn, no_wrap=True, crop=True)
# Without the fonts that it would fetch from elsewhere.
print(re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title), flags=re.DOTALL))
