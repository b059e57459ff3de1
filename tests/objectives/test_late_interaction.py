"""Objectives of sets of vectors, against the same objectives of a matrix of similarities computed densely."""

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives.comparing import assert_same, build, outcome, required_attributes
from tests.processes import run_in_processes

import contraport
from contraport import LateInteraction
from contraport.catalog import OBJECTIVES
from contraport.objectives.component_specs import replace_components

LENGTHS = torch.tensor([3, 1, 4, 4, 2, 1, 3]), torch.tensor([6, 6, 2, 1, 5, 3, 4])
BALANCED = LateInteraction("transport", 0.5, token_temperature=0.2, iterations=2)
SIZES = 4, 1, 2


def sets(d=5, seed=0):
    """Return two views of 7 sets, of at most 4 and 6 vectors; padding is not zero."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(7, t, d, dtype=torch.float64, generator=generator) for t in (4, 6))


def max_sim(x, y, lengths):
    """Return the mean of the maxima of two views, in plain PyTorch on all pairs of vectors."""
    x, y = (torch.nn.functional.normalize(z, dim=2) for z in (x, y))
    rows, columns = (torch.arange(z.shape[1]) < size[:, None] for z, size in zip((x, y), lengths, strict=True))
    cosines = torch.einsum("ntd,msd->nmts", x, y).masked_fill(~columns[:, None], -2)
    return (cosines.amax(3) * rows[:, None]).sum(2) / lengths[0][:, None]


def compared_similarities(objective, z0, z1):
    """Return the matrix of similarities that the layout of an objective compares."""
    z1 = z1.detach() if objective.stop_gradient else z1
    if isinstance(objective.layout, contraport.Cross):
        return max_sim(z0, z1, LENGTHS)
    z0 = torch.nn.functional.pad(z0, (0, 0, 0, 2))
    return max_sim(*(torch.cat([z0, z1]),) * 2, (torch.cat(LENGTHS),) * 2)


def accepts_similarities(name):
    return isinstance(contraport.objective(name), contraport.Objective) and isinstance(
        contraport.objective(name).layout, contraport.Cross | contraport.Joint
    )


def compares_cosines(name):
    kernel = getattr(contraport.objective(name), "kernel", None)
    return isinstance(kernel, contraport.Gibbs) and kernel.cost == "cosine" and kernel.power == 1


def replace_kernel(loss, kernel):
    loss.kernel = kernel
    return loss


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if accepts_similarities(name)])
def test_every_objective_equals_that_of_dense_similarities(name):
    kernel, options = LateInteraction("max", temperature=0.5), required_attributes(name)
    of_sets = replace_kernel(build(name), kernel)
    of_matrix = replace_kernel(build(name), contraport.Gibbs("cosine", 0.5))
    result = outcome(lambda *z: of_sets(*z, masks=LENGTHS, **options), *sets())
    assert_same(
        result, outcome(lambda *z: of_matrix(similarities=compared_similarities(of_matrix, *z), **options), *sets())
    )


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if compares_cosines(name)])
def test_every_objective_of_sets_of_one_equals_that_of_vectors(name):
    z0, z1 = (z[:, 0] for z in sets())
    options, loss = required_attributes(name), build(name, **({"dimensions": 3} if name == "direct-clr" else {}))
    expected = loss(z0, z1, **options)
    loss.kernel = LateInteraction("max", loss.kernel.temperature)
    torch.testing.assert_close(loss(z0, z1, **options), expected)
    torch.testing.assert_close(loss(z0[:, None], z1[:, None], **options), expected)
    torch.testing.assert_close(loss(torch.stack([z0[:, None], z1[:, None]], 1), **options), expected)


@pytest.mark.parametrize("form", ["lengths", "Booleans", "zeros", "any place"])
def test_padding_in_every_form(form):
    z0, z1 = sets()
    loss = replace_kernel(contraport.nt_xent(), BALANCED)
    expected = loss(z0, z1, masks=LENGTHS)
    marks = [torch.arange(z.shape[1]) < size[:, None] for z, size in zip((z0, z1), LENGTHS, strict=True)]
    if form == "lengths":
        longer = torch.nn.functional.pad(z1, (0, 0, 0, 3), value=torch.nan)
        value = loss(z0, longer, masks=LENGTHS)
    elif form == "Booleans":
        value = loss(z0, z1, masks=marks)
    elif form == "zeros":
        value = loss(*(z * mark[..., None] for z, mark in zip((z0, z1), marks, strict=True)))
    else:
        value = loss(z0, z1.flip(1), masks=(LENGTHS[0], marks[1].flip(1)))
    torch.testing.assert_close(value, expected)


class TokenModel(torch.nn.Module):
    """Model of another library whose input has the embeddings of its tokens."""

    skiplist, do_query_expansion = (), False

    def forward(self, features, task=None):
        return features | {"token_embeddings": torch.nn.functional.normalize(features["token_embeddings"], dim=2)}


def inputs_of(*views):
    """Return the input of `TokenModel` for each view, with the padding masked."""
    masks = [(torch.arange(z.shape[1]) < size[:, None]).long() for z, size in zip(views, LENGTHS, strict=True)]
    return [
        {"token_embeddings": z, "input_ids": mask, "attention_mask": mask} for z, mask in zip(views, masks, strict=True)
    ]


def test_matches_pylate():
    """Where a cosine is positive: PyLate counts padding of documents as a cosine of 0."""
    losses = pytest.importorskip("pylate.losses", reason="pylate is not installed")
    scores = pytest.importorskip("pylate.scores").colbert_scores
    signed, (z0, z1) = sets(), (z + 2 for z in sets())
    kernel = LateInteraction("max", 0.5, reduction="sum")
    # All vectors, of any sign.
    expected = scores(*(torch.nn.functional.normalize(z, dim=2) for z in signed))
    torch.testing.assert_close(kernel.similarities(*signed), expected)
    # Sets of several lengths: the loss and its gradient.
    loss = replace_kernel(contraport.info_nce(symmetric=False), kernel)
    peer = losses.Contrastive(TokenModel(), temperature=0.5)
    result = outcome(lambda *z: loss(*z, masks=LENGTHS), z0, z1)
    assert_same(result, outcome(lambda *z: peer(inputs_of(*z)), z0, z1))


def test_matches_sentence_transformers():
    """Scores of sentence-transformers are in single precision."""
    reason = "this version of sentence-transformers has no models of several vectors"
    losses = pytest.importorskip("sentence_transformers.multi_vector_encoder.losses", reason=reason)
    scoring = pytest.importorskip("sentence_transformers.multi_vector_encoder.scoring")
    loss = replace_kernel(contraport.info_nce(symmetric=False), LateInteraction("max", 0.5))
    peer = losses.MultiVectorMultipleNegativesRankingLoss(
        TokenModel(), scale=2.0, similarity_fct=scoring.mean_colbert_scores
    )
    value, gradients = outcome(lambda *z: peer(inputs_of(*z)), *sets())
    expected, slopes = outcome(lambda *z: loss(*z, masks=LENGTHS), *sets())
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    for gradient, slope in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(gradient, slope, rtol=1e-5, atol=1e-6)


def test_both_directions_match_the_first_view_to_the_second():
    """Also if each direction has its own pairs, as with columns of additional negatives."""
    generator = torch.Generator().manual_seed(3)
    z0, z1 = sets()
    more = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator)
    loss = replace_kernel(contraport.info_nce(), LateInteraction("max", 0.5))
    forward = max_sim(z0, z1, LENGTHS), max_sim(z0, more, (LENGTHS[0], torch.tensor([3, 3])))
    backward = max_sim(z0, z1, LENGTHS).T, max_sim(more, z1, (torch.tensor([3, 3]), LENGTHS[1])).T
    logits = [torch.cat(sides, 1) / 0.5 for sides in (forward, backward)]
    expected = sum(torch.nn.functional.cross_entropy(each, torch.arange(7)) for each in logits) / 2
    torch.testing.assert_close(loss(z0, z1, masks=LENGTHS, negatives=more), expected)


def test_call_options():
    z0, z1 = sets()
    loss = replace_kernel(contraport.info_nce(symmetric=False), LateInteraction("max", 0.5))
    matrix = max_sim(z0, z1, LENGTHS) / 0.5
    rows = torch.tensor([True, False, True, True, True, True, False])
    positions = rows.nonzero()[:, 0]
    present = torch.stack([rows, torch.ones(7, dtype=torch.bool)], 1)
    expected = torch.nn.functional.cross_entropy(matrix[positions], positions)
    torch.testing.assert_close(loss(z0, z1, masks=LENGTHS, present=present), expected)
    few = LENGTHS[0], LENGTHS[1][:4]
    value = loss(z0, z1[:4], masks=few, labels=(torch.arange(7) % 4, torch.arange(4)), target=contraport.Labels())
    torch.testing.assert_close(value, torch.nn.functional.cross_entropy(matrix[:, :4], torch.arange(7) % 4))
    own = torch.randn(7, 2, 3, 5, dtype=torch.float64)
    single = [loss(z0[[i]], z1, target=torch.eye(7)[[i]] / 1, negatives=own[i]) for i in range(7)]
    torch.testing.assert_close(loss(z0, z1, negatives=own), torch.stack(single).mean())


def test_learned_temperature_has_its_gradient():
    loss = replace_kernel(contraport.info_nce(), LateInteraction("soft", "learn").double())
    loss(*sets()).backward()
    temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    value = loss(*sets(), temperature=temperature)
    expected = torch.autograd.grad(value, temperature)[0] * 0.5  # of its logarithm
    torch.testing.assert_close(loss.kernel.log_temperature.grad[0], expected)


def test_nested_coordinates_of_the_vectors():
    z0, z1 = sets()
    loss = replace_kernel(contraport.info_nce(), LateInteraction("max", 0.5))
    negatives = torch.randn(2, 3, 5, dtype=torch.float64)
    parts = [loss(z0[..., :d], z1[..., :d], masks=LENGTHS, negatives=negatives[..., :d]) for d in (5, 2)]
    value = contraport.matryoshka(loss, dims=[5, 2])(z0, z1, masks=LENGTHS, negatives=negatives)
    torch.testing.assert_close(value, sum(parts))


def test_shared_columns_are_sets_of_any_size():
    loss = contraport.info_nce(symmetric=False, shared_columns=True)
    loss.kernel = LateInteraction("max")
    generator = torch.Generator().manual_seed(0)
    z, prototypes = (torch.randn(*shape, generator=generator) for shape in ((4, 3, 6), (5, 2, 6)))
    target = torch.eye(4, 5) / 4
    padded = torch.cat([prototypes, torch.zeros(5, 4, 6)], 1)
    torch.testing.assert_close(loss(z, padded, target=target), loss(z, prototypes, target=target))
    with raises_usage_error("z1.shape", "(k, t, d)"):
        loss(z, prototypes[..., :5], target=target)


def test_kernel_can_be_set_by_name():
    loss = replace_components(contraport.info_nce(0.1), kernel="late-interaction:matching=soft,token_temperature=0.2")
    assert repr(loss.kernel) == "LateInteraction('soft', 0.1, token_temperature=0.2)"


def test_rejects_invalid_calls():
    z0, z1 = sets()
    loss = replace_kernel(contraport.info_nce(), LateInteraction())
    for masks in (LENGTHS[:1], (LENGTHS[0], LENGTHS[0] + 4), (None, torch.ones(7, 5, dtype=torch.bool)), 3):
        with raises_usage_error("masks.*"):
            loss(z0, z1, masks=masks)
    with raises_usage_error("masks.conflict"):
        contraport.info_nce()(z0[:, 0], z1[:, 0], masks=LENGTHS)
    with raises_usage_error("z1.shape"):
        loss(z0, z1[..., :3])
    with raises_usage_error("z0.empty"):
        loss(z0[:, :0], z1)
    with raises_usage_error("z0.shape"):
        contraport.info_nce()(z0, z1)
    parts = LateInteraction(), contraport.Rows(), contraport.Pairs(), contraport.KL()
    with raises_usage_error("kernel.conflict"):
        contraport.Objective(contraport.CoordinatePairs(contraport.Cross()), *parts)(z0, z1)
    with raises_usage_error("negatives.shape"):
        loss(z0, z1, negatives=z0[0, :, :3])


def shared(rank, report):
    """Report the loss and the gradient in an encoder, on different numbers and lengths of items in each process."""
    start = sum(SIZES[:rank])
    own = slice(start, start + SIZES[rank])
    lengths = [size[own] for size in LENGTHS]
    z0, z1 = (z[own, : size.max()] for z, size in zip(sets(), lengths, strict=True))
    for name, kernel in (("info-nce", LateInteraction("max", 0.5)), ("gca-ince", BALANCED)):
        encoder = torch.eye(5, dtype=torch.float64, requires_grad=True)
        loss = replace_kernel(contraport.objective(name), kernel)
        value = loss(z0 @ encoder, z1 @ encoder, masks=lengths, negatives=z0[:, :2])
        (gradient,) = torch.autograd.grad(value, encoder)
        report((name, value.item(), gradient.tolist()))
    with contraport.engine.exchange("ring"), raises_usage_error("kernel.exchange"):
        loss(z0, z1)


def test_mean_over_processes_is_the_gradient_of_one():
    reports = run_in_processes(shared, len(SIZES))
    z0, z1 = sets()
    for name, kernel in (("info-nce", LateInteraction("max", 0.5)), ("gca-ince", BALANCED)):
        encoder = torch.eye(5, dtype=torch.float64, requires_grad=True)
        loss = replace_kernel(contraport.objective(name), kernel)
        value = loss(z0 @ encoder, z1 @ encoder, masks=LENGTHS, negatives=z0[:, :2])
        (gradient,) = torch.autograd.grad(value, encoder)
        values, gradients = zip(*((v, g) for other, v, g in reports if other == name), strict=True)
        torch.testing.assert_close(torch.tensor(values).double(), value.detach().expand(len(SIZES)))
        torch.testing.assert_close(torch.tensor(gradients, dtype=torch.float64).mean(0), gradient)
