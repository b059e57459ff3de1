"""Recommended objectives by use case, with the benchmark claims that support them.

`contraport list objectives` shows the use cases of each objective. docs/choosing.md has the whole table, each sentence
with its claims and their verdicts.
"""

from __future__ import annotations

from typing import NamedTuple


class ClaimReference(NamedTuple):
    """Reference to a claim that a benchmark suite tests: name of the suite and index.

    The suites are in `benchmarks/suites`; indices count from 0.
    """

    suite: str
    claim_index: int


class Recommendation(NamedTuple):
    """Recommended objectives, with the reason, and the benchmark claims that support them.

    Attributes:
        evidence: Benchmark claims that support the recommendation; empty if nothing was measured.
    """

    objectives: tuple[str, ...]
    text_markdown: str
    evidence: tuple[ClaimReference, ...] = ()


class UseCase(NamedTuple):
    """Kind of data or goal, with the objectives recommended for it.

    Attributes:
        starting_point_markdown: Recommended starting point, in one or two sentences of Markdown.
        evidence: Benchmark claims that support the starting point; empty for the baseline, `nt-xent`.
        recommendations: Recommendations in order of importance.
    """

    name: str
    starting_point_markdown: str
    evidence: tuple[ClaimReference, ...]
    recommendations: tuple[Recommendation, ...]


def _parse_claim_references(*suites_with_indices: str) -> tuple[ClaimReference, ...]:
    """Parse texts such as "gca 2 3" (claims 2 and 3 of the suite gca) into references."""
    parts = [text.split() for text in suites_with_indices]
    return tuple(ClaimReference(name, int(index)) for name, *indices in parts for index in indices)


USE_CASES: tuple[UseCase, ...] = (
    UseCase(
        "pairs that belong together",
        "`nt-xent`; `info-nce` if each view has its own encoder. Tune the temperature.",
        (),
        (
            Recommendation(
                ("nt-xent", "info-nce"),
                "Begin with nt-xent, or with info-nce if each view has its own encoder, and tune the temperature.",
                _parse_claim_references("sensitivity 0"),
            ),
            Recommendation(
                ("gca-ince", "iot"),
                "A balanced plan (gca-ince, iot) solves the same problem with both marginals fixed. It gained nothing "
                "here, even with tuned temperatures.",
                _parse_claim_references("gca 0", "constraint 0", "sensitivity 1"),
            ),
            Recommendation(
                ("iot-uniform",),
                "To spread the embeddings, add a penalty for uneven plans: iot-uniform, with uniformity=1. It gained a "
                "point on Fashion-MNIST, and no clear difference was seen on digits.",
                _parse_claim_references("constraint 4"),
            ),
            Recommendation(
                ("alpha-cl",),
                "Prefer weighted negatives (alpha-cl) to unweighted ones (quadratic). With regularizer=direct and p of "
                "4 or 6 it was half a point better than InfoNCE on digits and as good on Fashion-MNIST. entropy was as "
                "good too, square was worse, and inverse was no better than no weights.",
                _parse_claim_references("alpha 0 1"),
            ),
        ),
    ),
    UseCase(
        "pairs, some of them wrong",
        "Any objective with `train --audit`. If the views share little, raise the temperature first.",
        _parse_claim_references("beyond 0"),
        (
            Recommendation(
                (),
                "If a fifth of the pairs or more may be wrong, and the data have two or more given views, leave out "
                "what `contraport train --audit` flags. On views that share much this gained up to 54 points, and "
                "nine with one wrong pair in ten, but nothing certain with one in twenty. On halves of digits "
                "there was a clear gain only if most pairs were wrong. On pairs of texts it gained four points if two "
                "fifths were wrong.",
                _parse_claim_references("beyond 0 1 2 18 8 9 10", "halves 0 1 2 3 4", "wrong-texts 0 1"),
            ),
            Recommendation(
                ("gca-uot", "rince"),
                "With the audit, and two fifths of the pairs or more wrong, gca-uot and rince (q 0.1) gained more than "
                "info-nce on one pair of views, but nothing certain on another. With three fifths wrong, a temperature "
                "of 0.5 gained six points more than 0.2 where the views share much.",
                _parse_claim_references("beyond 16 17 24"),
            ),
            Recommendation(
                (),
                "The remaining pairs need no weights: weights from the plan of the batch (--audit --sample_weight "
                "plan) gained at most a point on halves of images and on UCI's views, within the intervals, and cost "
                "nothing certain.",
                _parse_claim_references("halves 14 15", "mismatch 1"),
            ),
            Recommendation(
                (),
                "Without the audit, such weights gain much less than leaving pairs out if a fifth is wrong: on halves "
                "of clothes three points in place of nine. Soft targets (--target neighbors:k=5) lost points.",
                _parse_claim_references("beyond 5 6 14", "halves 7 12", "mismatch 0"),
            ),
            Recommendation(
                (),
                "If partners may have been exchanged within a class, look at the flagged pairs before you trust the "
                "audit. In this case neither the audit nor weights from the plan gained anything certain.",
                _parse_claim_references("beyond 7 15", "halves 11 13", "mismatch 2"),
            ),
            Recommendation(
                ("info-nce", "rince", "gca-uot"),
                "If the two views share little, raise the temperature first, with or without wrong pairs: info-nce was "
                "better at 0.5 than at 0.2, and rince (q 0.5) was no better than info-nce at 0.5. At 0.2 gca-uot is "
                "better than info-nce. Halves of images share more, and the higher temperature lost points there.",
                _parse_claim_references("beyond 19 20 11 12 13", "halves 8"),
            ),
            Recommendation(
                ("info-nce", "rince"),
                "Add the audit to the higher temperature, or to rince (q 0.5), if two fifths of the pairs or more may "
                "be wrong: it gained up to 17 points. With fewer wrong pairs there was no certain difference.",
                _parse_claim_references("beyond 21 22 23", "halves 9 10"),
            ),
            Recommendation(
                ("rince", "gca-rince", "gca-uot"),
                "Apart from this, robust losses and unbalanced plans were not reliably better. Try them on data with "
                "one view, which the audit does not accept.",
                _parse_claim_references("gca 2 3", "beyond 3 4", "halves 5 6", "wrong-texts 3", "sensitivity 2"),
            ),
        ),
    ),
    UseCase(
        "negatives that are too similar",
        "`debiased` or `hard-negative`; compare with `nt-xent`.",
        _parse_claim_references("needs 1"),
        (
            Recommendation(
                ("debiased", "hard-negative"),
                "Correct for the share of negatives that belong to the item's own class (debiased, hard-negative).",
                _parse_claim_references("needs 1"),
            ),
            Recommendation(
                ("guided",),
                "Leaving out negatives that a teacher model rates as too similar (guided, a margin, --teacher FILE) "
                "gained nothing with edges of the images as the teacher.",
                _parse_claim_references("teacher 0"),
            ),
            Recommendation(
                ("x-clr",),
                "The teacher's similarities of all items as the target (x-clr, --teacher FILE) gained nothing for a "
                "probe and up to two points for kNN. Evaluate the teacher's own features first: they were six points "
                "better than the encoders trained with them.",
                _parse_claim_references("teacher 1 3 2"),
            ),
        ),
    ),
    UseCase(
        "rare classes or items",
        "`--sample_weight classes`, or weights of your own: better for kNN only.",
        _parse_claim_references("rare 3"),
        (
            Recommendation(
                ("gca-ince", "gca-uot"),
                "Weights with the same total for each class (--sample_weight classes, or your own) gained two to three "
                "points for kNN, and nothing for a probe with balanced classes. As the marginals of the plan "
                "(--constraint balanced:marginals=weights) they gained no more than as weights of the loss.",
                _parse_claim_references("rare 0 3 1 2"),
            ),
        ),
    ),
    UseCase(
        "several domains",
        "`--target domains:alpha=A,beta=B`; compare with no target.",
        _parse_claim_references("domains 0"),
        (
            Recommendation(
                ("nt-xent",),
                "--target domains:alpha=A,beta=B sets how much mass goes to other items of the same domain, and to "
                "items of other domains. First compare with no target on your own data: with one style left out of "
                "the training, mass between domains (beta) helped for edges, lost points for posterized, and changed "
                "nothing for inverted images. With all styles in the training, mass of either kind lost points.",
                _parse_claim_references("domains 0 1"),
            ),
        ),
    ),
    UseCase(
        "more than two views",
        "`--recipe cmc`, which compares all pairs of views.",
        _parse_claim_references("multiview 0"),
        (
            Recommendation(
                ("cmc",),
                "Compare all pairs of views (cmc): with six views this was better than two views, and better than the "
                "pairs with the first view only.",
                _parse_claim_references("multiview 0 1 3"),
            ),
            Recommendation(
                ("mv-dhel",),
                "mv-dhel compares all views of an item at once, and different items within a view. With six views it "
                "was five points worse than all pairs.",
                _parse_claim_references("multiview 4"),
            ),
            Recommendation(
                (),
                "Predicting one view from the other (--recipe predictive) needs no negatives, and was better here.",
                _parse_claim_references("multiview 2"),
            ),
        ),
    ),
    UseCase(
        "small batches",
        "Stay with `nt-xent`, or use `vic-reg`, which needs no negatives.",
        _parse_claim_references("needs 2"),
        (
            Recommendation(
                ("dcl", "dhel", "sog-clr"),
                "Losses that leave the positive out of the denominator (dcl, dhel), or keep a running average for each "
                "item (sog-clr), are designed for small batches. With 32 items they did not clearly differ from "
                "nt-xent.",
                _parse_claim_references("needs 2"),
            ),
            Recommendation(
                (),
                "With few items, small batches are better than large ones for the same number of epochs.",
                _parse_claim_references("sensitivity 3"),
            ),
            Recommendation(
                (),
                "More negatives from a queue (--negatives queue, or the recipe moco) lost points with 1,000 items.",
                _parse_claim_references("needs 3"),
            ),
            Recommendation(
                ("vic-reg", "byol", "barlow-twins"),
                "Of the objectives without negatives, vic-reg was as good as nt-xent. byol and barlow-twins, which are "
                "designed for long training runs, were worse.",
                _parse_claim_references("needs 4"),
            ),
        ),
    ),
    UseCase(
        "embeddings of few dimensions",
        "`t-simclr` for four dimensions or fewer; otherwise `nt-xent`.",
        _parse_claim_references("neighbour 2"),
        (
            Recommendation(
                (), "A projection of 512 dimensions was better than one of 8.", _parse_claim_references("sensitivity 4")
            ),
            Recommendation(
                ("t-simclr",),
                "With as few as four dimensions, use heavier tails (t-simclr).",
                _parse_claim_references("neighbour 2"),
            ),
            Recommendation(
                (),
                "With many dimensions heavier tails gained nothing, and they lost points if the views differ by a "
                "little noise only.",
                _parse_claim_references("neighbour 0 1"),
            ),
        ),
    ),
    UseCase(
        "labels",
        "`sup-con`, or `--target labels`.",
        _parse_claim_references("needs 0"),
        (
            Recommendation(
                ("sup-con",),
                "Pull together all items of a class (sup-con, or --target labels).",
                _parse_claim_references("needs 0"),
            ),
        ),
    ),
    UseCase(
        "texts, or texts and images",
        "`info-nce` with one encoder, temperature 0.05 and `--projection 0`; with images `--recipe clip`.",
        _parse_claim_references("texts 0"),
        (
            Recommendation(
                ("info-nce", "gca-ince"),
                "For pairs of texts, use one encoder for both (the default), info-nce at a temperature of 0.05, and no "
                "projection. This found far more partners than two encoders or a usual temperature. A balanced plan "
                "(gca-ince) was no better, and sigmoid, which is designed for large batches, was worse.",
                _parse_claim_references("texts 0 1 3 4 2"),
            ),
        ),
    ),
)
"""All use cases, in the order of the documentation."""


def list_use_case_names(objective: str) -> list[str]:
    """Return the names of the use cases for which an objective is recommended.

    >>> list_use_case_names("sup-con")
    ['labels']
    """
    return [case.name for case in USE_CASES if any(objective in one.objectives for one in case.recommendations)]
