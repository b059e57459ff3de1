"""Emoji as paired data: a table with a picture and a name in up to 14 languages per row.

    apt install fonts-noto-color-emoji && pip install emoji
    python examples/emoji_table.py --out emoji --wrong 0.2

    contraport audit --data emoji/emoji.csv --given_views image en --out audits/emoji    # finds the wrong names
    contraport train --data emoji/emoji.csv --recipe clip --out runs/emoji
    contraport search runs/emoji "a smiling cat" --page cats.html

`--wrong` permutes that share of the English names and writes which rows these are to `wrong.csv`, so that the audit can
be judged: `--judge audits/emoji` prints how well its scores separate them, and writes the figures to
examples/results/emoji_table.json (kept there: those of `--size 32 --wrong 0.2`). Skin tones and sequences of several
people are left out, because their pictures hardly differ.
"""

import argparse
import csv
import json
from pathlib import Path

import emoji
import numpy as np
from garment_halves import RESULTS, judge_audit
from PIL import Image, ImageDraw, ImageFont

FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
BITMAP = 109  # the only size of the font's bitmaps, in pixels
SKIN_TONES = {chr(code) for code in range(0x1F3FB, 0x1F400)}
JOINER = "\u200d"


def load_names() -> dict[str, dict[str, str]]:
    """Return the names of each emoji by language, without colons and underscores."""
    folder = Path(emoji.__file__).parent / "unicode_codes"
    names: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.json")):
        for character, entry in json.loads(path.read_text("utf-8")).items():
            for language, name in entry.items() if path.stem == "emoji" else {path.stem[6:]: entry}.items():
                if isinstance(name, str) and name.startswith(":"):
                    names.setdefault(character, {})[language] = name.strip(":").replace("_", " ").replace("-", " ")
    return {character: of for character, of in names.items() if "en" in of and not SKIN_TONES & set(character)}


def render(character: str, font: ImageFont.FreeTypeFont, size: int) -> Image.Image | None:
    """Return the picture of an emoji on white, or None if the font has none."""
    image = Image.new("RGB", (BITMAP + 27, BITMAP + 19), "white")
    ImageDraw.Draw(image).text((0, 0), character, font=font, embedded_color=True)
    pixels = np.asarray(image)
    is_colored = (pixels.max(2) != pixels.min(2)).any() or (pixels < 250).any()
    return image.resize((size, size)) if is_colored else None


def main() -> None:
    """Write the pictures and the table, or judge an audit of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("emoji"), help="Folder to write to. Default: emoji.")
    parser.add_argument("--size", type=int, default=64, help="Side of the pictures in pixels. Default: 64.")
    parser.add_argument("--languages", nargs="+", default=["en", "de", "fr", "es"], help="Default: en de fr es.")
    parser.add_argument("--wrong", type=float, default=0.0, help="Share of English names to permute. Default: 0.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the permutation. Default: 0.")
    parser.add_argument("--judge", type=Path, metavar="AUDIT", help="Folder of an audit of the written table to judge.")
    options = parser.parse_args()
    if options.judge is not None:
        wrong_rows = np.loadtxt(options.out / "wrong.csv", dtype=int, skiprows=1)
        judge_audit(options.judge, wrong_rows, RESULTS / "emoji_table.json")
        return
    font = ImageFont.truetype(FONT, BITMAP)
    (options.out / "images").mkdir(parents=True, exist_ok=True)
    rows, seen = [], set()
    for character, names in load_names().items():
        picture = None if JOINER in character else render(character, font, options.size)
        if picture is None or picture.tobytes() in seen or not set(options.languages) <= names.keys():
            continue
        seen.add(picture.tobytes())
        name = f"images/{'-'.join(f'{ord(part):x}' for part in character)}.png"
        picture.save(options.out / name)
        rows.append([name, *(names[language] for language in options.languages)])
    random = np.random.default_rng(options.seed)
    wrong = random.permutation(len(rows))[: round(options.wrong * len(rows))]
    english = [rows[row][1] for row in wrong]
    for row, name in zip(wrong, english[1:] + english[:1], strict=True):  # one cycle: no name stays in its place
        rows[row][1] = name
    for path, heading, lines in (
        ("emoji.csv", ["image", *options.languages], rows),
        ("wrong.csv", ["row"], [[row] for row in sorted(wrong)]),
    ):
        with (options.out / path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([heading, *lines])
    print(f"{len(rows)} emoji, {len(wrong)} of them with a wrong English name: {options.out / 'emoji.csv'}")


if __name__ == "__main__":
    main()
