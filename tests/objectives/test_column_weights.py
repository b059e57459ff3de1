"""Column weights: each objective on the kernel w_j K_ij, against the formulas with their kernels
weighted so; and the log-q correction of sampled softmax.
"""

import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error
from tests.objectives import formulas
from tests.objectives.comparing import BACKENDS, IDS, assert_same, build, outcome, views

import contraport

pytestmark = pytest.mark.usefixtures("uneven_tiles")

COLUMNS = torch.tensor([0.5, 2.0, 1.0, 4.0, 0.1, 1.0, 3.0], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0, 0.25], dtype=torch.float64)
CASES = [
    ("info-nce", {}),
    ("info-nce", {"symmetric": False}),
    ("nt-xent", {}),
    ("gca-ince", {"iterations": 2}),
    ("iot", {"constraint": "simplex"}),
    ("iot", {"constraint": "rows"}),
    ("cmc", {}),
]


@pytest.fixture
def weighted_formulas(monkeypatch):
    """Formulas with weighted kernels."""
    plain = formulas.gibbs

    def gibbs(pairing, temperature):
        return plain(pairing, temperature) * COLUMNS[pairing.column_items]

    monkeypatch.setattr(formulas, "gibbs", gibbs)


def by_formula(name, *z, **settings):
    return getattr(formulas, name.replace("-", "_"))(*z, **settings)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attributes", [{}, {"ids": IDS, "weights": WEIGHTS}], ids=["", "ids-weights"])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_value_and_gradient(weighted_formulas, name, settings, attributes, backend):
    z = views(k=3 if name == "cmc" else 2)
    with contraport.engine.backend(backend):
        result = outcome(lambda *z: build(name, **settings)(*z, column_weights=COLUMNS, **attributes), *z)
    assert_same(result, outcome(lambda *z: by_formula(name, *z, **settings, **attributes), *z))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_log_q_correction_is_cross_entropy_of_the_corrected_logits(backend):
    """N = 300: a frequent item is as often a negative as it is sampled."""
    z0, z1 = views(300, 8)
    q = torch.rand(300, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) + 0.01
    loss = contraport.info_nce(temperature=0.2, symmetric=False)
    with contraport.engine.backend(backend):
        result = outcome(lambda *z: loss(*z, column_weights=1 / q), z0, z1)

    def corrected(z0, z1):
        return F.cross_entropy(F.normalize(z0) @ F.normalize(z1).T / 0.2 - q.log(), torch.arange(300))

    assert_same(result, outcome(corrected, z0, z1))


@pytest.mark.parametrize("reference", ["product", "counting"])
def test_unbalanced_plans(reference):
    """Against the same iterations on the weighted kernel, entry by entry."""
    temperature, rho = 0.5, 0.7
    allowed = contraport.Unbalanced(rho, 3, reference=reference)
    kernel = contraport.Gibbs("cosine", temperature)
    one_way = contraport.Cross(symmetric=False)
    loss = contraport.Objective(one_way, kernel, allowed, contraport.Pairs(), contraport.KL())
    z0, z1 = views()
    result = next(loss.iterate_plans_with_targets(z0, z1, column_weights=COLUMNS)).plan
    k = kernel(z0, z1).dense().exp() * COLUMNS
    k, a = (k / 49, 1 / 7) if reference == "product" else (k, 1 / 7)
    v, damping = torch.ones(7, dtype=torch.float64), rho / (rho + temperature)
    for _ in range(3):
        u = (a / (k @ v)) ** damping
        v = (a / (k.T @ u)) ** damping
    expected = u[:, None] * k * v
    torch.testing.assert_close(result.dense(), expected)
    torch.testing.assert_close(result.log_column_mass().exp(), expected.sum(0))
    torch.testing.assert_close(result.log_row_mass().exp(), expected.sum(1))


def test_converged_balanced_plan_does_not_depend_on_column_weights():
    loss = contraport.Objective(
        contraport.Joint(), contraport.Gibbs(), contraport.Balanced(500, 1e-12), contraport.Pairs(), contraport.KL()
    )
    torch.testing.assert_close(loss.plan(*views(), column_weights=COLUMNS), loss.plan(*views()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_constraint_on_columns_cancels_them(symmetric, backend):
    """Each column is scaled to its own mass, so its weight has no effect."""
    parts = contraport.Cross(symmetric=symmetric), contraport.Gibbs(), contraport.Columns()
    loss = contraport.Objective(*parts, contraport.Pairs(), contraport.KL())
    with contraport.engine.backend(backend):
        assert_same(outcome(lambda *z: loss(*z, column_weights=COLUMNS), *views()), outcome(loss, *views()))


def test_equal_column_weights_change_nothing():
    for name in ("nt-xent", "gca-uot", "t-simclr", "iot-uniform"):
        equal = outcome(lambda *z: build(name)(*z, column_weights=torch.ones(7)), *views())  # noqa: B023
        assert_same(equal, outcome(build(name), *views()), 1e-12)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: build("nt-xent")(*views(), column_weights=COLUMNS - 1), "column_weights.invalid", ""),
        (lambda: build("nt-xent")(*views(), column_weights=COLUMNS[:3]), "column_weights.shape", "(3,)"),
        (lambda: build("pairwise")(*views(), column_weights=COLUMNS), "column_weights.conflict", "Pairwise"),
        (lambda: build("debiased")(*views(), column_weights=COLUMNS), "column_weights.conflict", "Debiased"),
        (lambda: build("vic-reg")(*views(), column_weights=COLUMNS), "column_weights.conflict", "VarianceHinge"),
        (
            lambda: build("nt-xent")(*views(), column_weights=COLUMNS, negatives=views()[0]),
            "column_weights.conflict",
            "",
        ),
        (
            lambda: build("iot-quadratic", closed_form=False)(*views(), column_weights=COLUMNS),
            "column_weights.conflict",
            "",
        ),
    ],
)
def test_rejects_unsupported_column_weights(call, code, value):
    with raises_usage_error(code, value):
        call()
