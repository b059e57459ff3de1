"""A page that shows what was found: pictures where the items have some, with their names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageOps

from contraport import pages
from contraport._utils.files import write_text
from contraport.data import Dataset
from contraport.data.thumbnails import thumbnails
from contraport.errors import UsageError, check, check_new_file, check_regular_file, report_write_errors
from contraport.features import Features
from contraport.runs import Run
from contraport.training.components import build_dataset

PICTURE_SIDE = 128
PICTURES_OF_GROUP = 12

log = logging.getLogger("contraport.searching")


class ItemCard(NamedTuple):
    """An item on the page.

    Attributes:
        item: its row of the features, or the file that it is.
        name: what it is called.
        number: what stands below it.
        class_name: its class, or nothing.
        picture: its picture as a URI, or nothing.
    """

    item: int | Path
    name: str
    number: str = ""
    class_name: str = ""
    picture: str = ""


class CardGroup(NamedTuple):
    """Items that belong together.

    Attributes:
        title: what they are.
        aside: how many, say.
        told: what else there is to say, or nothing.
        cards: those that are shown.
        more: how many others there are.
    """

    title: str
    aside: str
    told: str
    cards: Sequence[ItemCard]
    more: int = 0


class Contents(NamedTuple):
    """What a page shows.

    Attributes:
        title: what it is of.
        lead: what is to be seen.
        groups: the items.
    """

    title: str
    lead: str
    groups: Sequence[CardGroup]


@dataclass(frozen=True)
class Page:
    """A page about features that is to be written."""

    path: Path
    features: Features

    def write(self, shown: Contents) -> None:
        """Write the page, whole or not at all."""
        items = [card.item for group in shown.groups for card in group.cards]
        pictures = _pictures(self.features, items)
        lead = shown.lead if pictures or not items else f"{shown.lead} {_WITHOUT}"
        groups = [
            group._replace(cards=[card._replace(picture=pictures.get(card.item, "")) for card in group.cards])
            for group in shown.groups
        ]
        shown = shown._replace(lead=lead, groups=groups)
        told = {"shown": shown, "side": PICTURE_SIDE, "pictured": bool(pictures)}
        page = pages.render("found.html.j2", "contraport.searching", **told)
        with report_write_errors("page", self.path):
            write_text(self.path, page)


_WITHOUT = "There are no pictures: the items are no files, and no images of the data that the run was trained on."


def prepare_page(path: str | Path | None, features: Features, *, overwrite: bool) -> Page | None:
    """Return the page that is asked for, if one is.

    Raises:
        UsageError: it does not end in .html, its folder is missing, or it exists and is not to be replaced.
    """
    if path is None:
        return None
    good = Path(path).suffix.lower() in (".html", ".htm")
    check(good, f"page: expected a name that ends in .html, got {Path(path).name!r}.")
    check_new_file("page", Path(path), overwrite=overwrite)
    return Page(Path(path), features)


def _pictures(features: Features, items: Sequence[int | Path]) -> dict[int | Path, str]:
    """Return the pictures of items as URIs: of their files, or else of the data that the run was trained on."""
    found: dict[int | Path, str] = {}
    for item in dict.fromkeys(items):
        file = item if isinstance(item, Path) else None if features.keys is None else Path(str(features.keys[item]))
        picture = None if file is None else _of_file(file)
        if picture is not None:
            found[item] = picture
    lacking = [item for item in items if isinstance(item, int) and item not in found]
    if lacking and features.run is not None:
        found |= _of_run(features, lacking)
    return found


def _of_file(file: Path) -> str | None:
    try:
        check_regular_file("page", file)
        with Image.open(file) as image:
            image.draft("RGB", (PICTURE_SIDE, PICTURE_SIDE))
            upright = ImageOps.exif_transpose(image).convert("RGB")
            upright.thumbnail((2 * PICTURE_SIDE, 2 * PICTURE_SIDE))
            return pages.uri(upright, "jpeg", quality=80)
    except Exception as error:  # on hostile bytes the decoders raise whatever they like
        log.debug("no picture of %s: %s", file, error)
        return None


def _of_run(features: Features, items: Iterable[int]) -> dict[int | Path, str]:
    found: dict[int | Path, str] = {}
    chosen = sorted(set(items))
    for split in ("train", "test"):
        wanted = [item for item in chosen if features.splits[item] == split]
        dataset = _data_of_run(features, split) if wanted else None
        if dataset is None or not dataset.is_image:
            continue
        places = {row: place for place, row in enumerate(dataset.rows.tolist())}
        known = [item for item in wanted if int(features.rows[item]) in places]
        if known:
            views = dataset.store.fetch(torch.tensor([places[int(features.rows[item])] for item in known]))
            pixels = thumbnails(views[0], PICTURE_SIDE)
            found |= {item: pages.uri(pages.image(one), "png") for item, one in zip(known, pixels, strict=True)}
    return found


def _data_of_run(features: Features, split: str) -> Dataset | None:
    """Return what the run was trained on; nothing where it cannot be had, or the features are of other data."""
    try:
        settings = Run(str(features.run)).settings()
        if features.data not in (None, settings.data):  # whose rows are others
            return None
        return build_dataset(settings.derive(weights=None), split)
    except (UsageError, OSError) as error:
        log.debug("no pictures of %s: %s", features.run, error)
        return None
