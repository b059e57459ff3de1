import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error

from contraport.metrics.zero_shot import build_class_prompts, compute_unit_class_embeddings, zero_shot_correctness


def test_class_embedding_is_the_mean_direction_of_its_texts() -> None:
    texts = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    long = texts * torch.tensor([1.0, 100, 1, 1, 1, 1])[:, None]
    expected = [F.normalize(texts[2 * c : 2 * c + 2], dim=1).sum(0) for c in range(3)]
    for embeddings in (texts, long):
        torch.testing.assert_close(
            compute_unit_class_embeddings(embeddings, 2), F.normalize(torch.stack(expected), dim=1)
        )
    with raises_usage_error("texts.shape", 4, 6):
        compute_unit_class_embeddings(texts, 4)


def test_zero_shot_hits_compare_the_nearest_class() -> None:
    generator = torch.Generator().manual_seed(1)
    items, classes = torch.randn(50, 5, generator=generator), torch.randn(4, 5, generator=generator)
    labels = torch.arange(50) % 4
    best = F.cosine_similarity(items[:, None], classes, dim=2).argmax(1)
    assert zero_shot_correctness(items, labels, classes).tolist() == (best == labels).tolist()


def test_braces_in_a_class_name_are_kept() -> None:
    assert build_class_prompts(["{}x"], ["a {}."]) == ["a {}x."]
