"""Many items, few labels, in scikit-learn: select an encoder without labels, then classify its features.

python examples/sklearn_pipeline.py
"""

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from contraport import ContrastiveEncoder

LABELS = 100

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)

# The score needs no labels: how much one random view of an item tells of which item another one shows.
search = GridSearchCV(
    ContrastiveEncoder(epochs=20, random_state=0), {"objective": ["nt-xent", "gca-uot"], "temperature": [0.2, 0.5]},
    cv=2,
)  # fmt: skip
search.fit(X)
for settings, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    print(f"{settings}: {score:.3f} nats")

encoder = ContrastiveEncoder(**search.best_params_, epochs=50, random_state=0).fit(X)
print(f"\naccuracy with {LABELS} labels of {len(X)} items:")
for name, features in {"pixels": None, "PCA": PCA(50).fit(X), "encoder": encoder}.items():
    seen, unseen = (X, X_test) if features is None else (features.transform(X), features.transform(X_test))
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(seen[:LABELS], y[:LABELS])
    print(f"{name:8} {probe.score(unseen, y_test):.1%}")
