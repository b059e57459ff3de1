"""Output files of a search, an HTML page and a `.csv` table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from contraport._utils.files import write_csv, write_text
from contraport._utils.formatting import equally_long_suffixes_by_path
from contraport.data.image_decoding import to_upright_rgb
from contraport.data.item_previews import shrink_to_uint8_nchw
from contraport.errors import UsageError, check, check_output_file, check_regular_file, translate_write_errors
from contraport.feature_files import Features
from contraport.reporting.html_page_parts import chw_pixels_to_pil, encode_data_uri, render_page
from contraport.runs import Run, WritableRun
from contraport.training.components.data_builder import build_dataset

PICTURE_SIDE_PIXELS = 128  # of a picture on the page, its longer side

PAGE_SUFFIXES = (".html", ".htm")
MAX_SECTION_CARDS = 12  # maximum number of items of a group or cluster on a page
NO_PICTURES_NOTE = "There are no pictures: the items are neither image files nor images of the training data."

log = logging.getLogger("contraport.similarity_search")


class ItemCard(NamedTuple):
    """Card of an item on an HTML page, a picture with text below.

    Attributes:
        item: row of the item among the features, or the path of its file.
        caption: text below the picture, such as a similarity.
        class_name: name of the class of the item; "" if it has no class.
    """

    item: int | Path
    name: str
    caption: str = ""
    class_name: str = ""


class CardSection(NamedTuple):
    """Section of an HTML page with a heading, item cards and notes."""

    title: str
    cards: Sequence[ItemCard]
    notes: Sequence[str] = ()
    num_hidden: int = 0


def check_output_path(argument: str, path: str | Path | None, suffixes: tuple[str, ...], *, overwrite: bool) -> None:
    """Raise `UsageError` if an output path has a wrong suffix or is unwritable."""
    if path is not None:
        path = Path(path)
        check(path.suffix.lower() in suffixes, f"{argument}: must end in {suffixes[0]}, got {path.name!r}.", "suffix")
        check_output_file(argument, path, overwrite=overwrite)


def write_items_csv(
    path: str | Path, features: Features, number_heading: str, numbers_by_position: Mapping[int, int]
) -> None:
    """Write items with their group or cluster numbers to a `.csv` file atomically."""
    described = features.descriptions is not None
    names = ["position", "row", "name", *(["description"] if described else []), number_heading]
    rows = (
        (
            position,
            features.source_rows[position],
            features.item_name(position),
            *([features.item_description(position)] if described else []),
            number,
        )
        for position, number in numbers_by_position.items()
    )
    with translate_write_errors("out", Path(path)):
        write_csv(Path(path), names, rows)


def write_cards_page(
    path: str | Path, features: Features, title: str, lead: str, sections: Sequence[CardSection]
) -> None:
    """Write a page of search results, with pictures where items have any."""
    items = [card.item for section in sections for card in section.cards]
    pictures = _picture_uris_by_item(features, items)
    html = render_page(
        "search.html.j2",
        "contraport.similarity_search",
        title=title,
        lead=lead if pictures or not items or _has_only_text_views(features.run) else f"{lead} {NO_PICTURES_NOTE}",
        sections=sections,
        pictures=pictures,
        short_names=equally_long_suffixes_by_path(card.name for section in sections for card in section.cards),
        side=PICTURE_SIDE_PIXELS,
    )
    with translate_write_errors("page", Path(path)):
        write_text(Path(path), html)


def _has_only_text_views(run: str | None) -> bool:
    """Return whether all views of a run are texts, or False if there is no such run."""
    try:
        shapes = [] if run is None else WritableRun(run).read_model_config()["shapes"]
    except (UsageError, OSError, KeyError):
        return False
    return len(shapes) > 0 and not any(shapes)


def _picture_uris_by_item(features: Features, items: Sequence[int | Path]) -> dict[int | Path, str]:
    """Load pictures of items as data URIs, from files or training data."""
    pictures: dict[int | Path, str] = {}
    for item in dict.fromkeys(items):
        file = item if isinstance(item, Path) else None if features.keys is None else Path(str(features.keys[item]))
        picture = None if file is None else _encode_thumbnail_uri(file)
        if picture is not None:
            pictures[item] = picture
    rest = [item for item in items if isinstance(item, int) and item not in pictures]
    if rest and features.run is not None:
        pictures |= _run_picture_uris_by_item(features, rest)
    return pictures


def _encode_thumbnail_uri(file: Path) -> str | None:
    """Return a thumbnail of an image file as a data URI, or None if it is unreadable."""
    try:
        check_regular_file("page", file)
        with Image.open(file) as image:
            image.draft("RGB", (PICTURE_SIDE_PIXELS, PICTURE_SIDE_PIXELS))
            upright = to_upright_rgb(image)
            upright.thumbnail((2 * PICTURE_SIDE_PIXELS, 2 * PICTURE_SIDE_PIXELS))
            return encode_data_uri(upright, "jpeg", quality=80)
    except Exception as error:  # decoders raise errors of any class on damaged files
        log.debug("No picture of %s: %s", file, error)
        return None


def _run_picture_uris_by_item(features: Features, items: Sequence[int]) -> dict[int | Path, str]:
    """Return items' images as data URIs, from the data of the run that embedded them."""
    pictures: dict[int | Path, str] = {}
    try:
        settings = Run(str(features.run)).settings().replace_unchecked(sample_weight=None)
        if features.data_name not in (None, settings.data):  # rows count in other data
            return {}
        for split in ("train", "test"):
            in_split = [item for item in sorted(set(items)) if features.splits[item] == split]
            dataset = build_dataset(settings, split) if in_split else None
            if dataset is None or not dataset.is_first_view_image:
                continue
            places = {row: place for place, row in enumerate(dataset.source_rows.tolist())}
            present = [item for item in in_split if int(features.source_rows[item]) in places]
            if present:
                positions = torch.tensor([places[int(features.source_rows[item])] for item in present])
                views = dataset.store.fetch_views(positions)
                uris = [
                    encode_data_uri(chw_pixels_to_pil(one), "png")
                    for one in shrink_to_uint8_nchw(views[0], PICTURE_SIDE_PIXELS)
                ]
                pictures |= dict(zip(present, uris, strict=True))
    except (UsageError, OSError) as error:
        log.debug("No pictures of %s: %s", features.run, error)
    return pictures
