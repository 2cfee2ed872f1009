"""Draws docs/images/*.svg from text: boxes on a grid, and arrows between them.

python tools/render_diagrams.py
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parent.parent / "docs" / "images"
UNIT_X, UNIT_Y = 10, 22
INK, LINE, FILL = "#1f2937", "#2563eb", "#eff6ff"

# Each box: its name, column, row, width and height in units, and its lines; each arrow: from, to, and what it carries.
DIAGRAMS = {
    "model": (
        "Publishers, a stream, two consumers, and workers",
        """
        publisher   0 4 15 3  publisher | orders.new
        stream     27 2 20 7  stream ORDERS | orders.> | 1  2  3  4  5 …
        billing    61 1 19 3  consumer billing | position, unacked
        audit      61 7 19 3  consumer audit | position, unacked
        worker1    95 0 13 2  worker 1
        worker2    95 3 13 2  worker 2
        reader     95 7 13 3  reader
        publisher > stream: publish
        stream . publisher: PubAck
        stream > billing:
        stream > audit:
        billing > worker1: messages
        worker2 > billing: pull, ack
        audit > reader: messages
        """,
    ),
    "architecture": (
        "The server, its clients, and what lies below",
        """
        programs    0 0 24 3  your programs | jetlake, nats-py, nats.js …
        spark       0 5 24 3  Spark | source, sink, pipelines
        command     0 10 24 3 command, dashboard
        shell      42 0 24 3  shell | sockets, TLS, timers
        engine     42 5 24 3  engine | streams, consumers; no I/O
        store      42 10 24 3 store | log, index, journals
        disk       84 10 16 3 disk
        cluster    84 0 16 3  hub or leaf | another NATS server
        programs > shell: NATS
        spark > shell:
        command > shell:
        shell > engine:
        engine > store:
        store > disk: fsync
        shell > cluster: leaf
        """,
    ),
}


def draw(name: str) -> str:
    """One diagram as SVG; a white background, so that it is readable in a dark page as well."""
    title, text = DIAGRAMS[name]
    boxes: dict[str, tuple[int, int, int, int]] = {}
    shapes: list[str] = []
    arrows: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        box = re.match(r"(\w+) +(\d+) +(\d+) +(\d+) +(\d+) +(.+)", line)
        if box is not None:
            left, top, width, height = (int(one) for one in box.groups()[1:5])
            x, y = left * UNIT_X + 10, top * UNIT_Y + 10
            boxes[box[1]] = (x, y, width * UNIT_X, height * UNIT_Y)
            shapes += _box(boxes[box[1]], [part.strip() for part in box[6].split("|")])
        else:
            arrow = re.match(r"(\w+) ([>.]) (\w+):(.*)", line)
            assert arrow is not None, line
            arrows += _arrow(boxes[arrow[1]], boxes[arrow[3]], arrow[4].strip(), is_reply=arrow[2] == ".")
    width = max(x + w for x, _, w, _ in boxes.values()) + 10
    height = max(y + h for _, y, _, h in boxes.values()) + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="14" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *arrows,
            *shapes,
            "</svg>\n",
        ]
    )


def _box(place: tuple[int, int, int, int], lines: list[str]) -> list[str]:
    x, y, width, height = place
    first = y + height / 2 - (len(lines) - 1) * 9 + 5
    drawn = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{FILL}" stroke="{LINE}"/>']
    for number, text in enumerate(lines):
        weight = "600" if number == 0 else "400"
        drawn.append(
            f'<text x="{x + width / 2:g}" y="{first + 18 * number:g}" text-anchor="middle" font-weight="{weight}">'
            f"{escape(text)}</text>"
        )
    return drawn


def _arrow(
    start: tuple[int, int, int, int], end: tuple[int, int, int, int], label: str, *, is_reply: bool
) -> list[str]:
    """A line between the sides of two boxes that face each other; a reply runs below the request, dashed."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = start, end
    if ax + aw <= bx or bx + bw <= ax:
        x1, x2 = (ax + aw, bx) if ax < bx else (ax, bx + bw)
        y1, y2 = ay + ah / 2, by + bh / 2
        if is_reply:
            y1, y2 = y1 + 16, y1 + 16
        elif abs(y1 - y2) < UNIT_Y:
            y1 = y2 = max(ay, by) + min(ah, bh) / 2
    else:
        x1 = x2 = ax + aw / 2
        y1, y2 = (ay + ah, by) if ay < by else (ay, by + bh)
    dash = ' stroke-dasharray="4 3"' if is_reply else ""
    drawn = [
        f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{LINE}" fill="none" stroke-width="1.5"{dash} '
        'marker-end="url(#tip)"/>'
    ]
    if label:
        middle = (y1 + y2) / 2 + (16 if is_reply else -6)
        drawn.append(
            f'<text x="{(x1 + x2) / 2:g}" y="{middle:g}" text-anchor="middle" font-size="12">{escape(label)}</text>'
        )
    return drawn


if __name__ == "__main__":
    for name in DIAGRAMS:
        (IMAGES / f"{name}.svg").write_text(draw(name))
