"""Every metric of Keras over uneven partitions, in history and ``evaluate``, is Keras' own over all rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from tests.sampling import sample  # noqa: E402
from tests.services.keras.test_losses import CLASSES, labels_of, model_of, of_keras, table, validated  # noqa: E402

from hopyard.errors import EstimatorError  # noqa: E402
from hopyard.keras import KerasEstimator  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # TensorFlow, as Keras reads its tensors
    pytest.mark.filterwarnings("ignore:You are passing weight as `float`"),  # IoU counts in ints
]
metrics = keras.metrics

NUMBERS, ONE_HOT, CLASS, ANSWER = (
    ("linear", "numbers"), ("softmax", "one hot"), ("softmax", "class"), ("sigmoid", "answer"),
)  # fmt: skip
CASES: dict[str, tuple[Callable[[], Any], tuple[str, str]]] = {
    "AUC": (metrics.AUC, ANSWER),
    "AUC of precision and recall": (lambda: metrics.AUC(curve="PR", num_thresholds=50), ANSWER),
    "AUC of several labels": (lambda: metrics.AUC(multi_label=True, num_labels=CLASSES), ("sigmoid", "answers")),
    "Accuracy": (metrics.Accuracy, NUMBERS),
    "BinaryAccuracy": (lambda: metrics.BinaryAccuracy(threshold=0.4), ("sigmoid", "answers")),
    "BinaryCrossentropy": (lambda: metrics.BinaryCrossentropy(label_smoothing=0.1), ("sigmoid", "answers")),
    "BinaryIoU": (metrics.BinaryIoU, ANSWER),
    "CategoricalAccuracy": (metrics.CategoricalAccuracy, ONE_HOT),
    "CategoricalCrossentropy": (lambda: metrics.CategoricalCrossentropy(label_smoothing=0.1), ONE_HOT),
    "CategoricalHinge": (metrics.CategoricalHinge, ONE_HOT),
    "ConcordanceCorrelation": (metrics.ConcordanceCorrelation, NUMBERS),
    "CosineSimilarity": (metrics.CosineSimilarity, NUMBERS),
    "F1Score": (lambda: metrics.F1Score(average="macro"), ONE_HOT),
    "F1Score of weighted classes": (lambda: metrics.F1Score(average="weighted"), ONE_HOT),
    "FBetaScore": (lambda: metrics.FBetaScore(average="micro", beta=2.0, threshold=0.3), ("sigmoid", "answers")),
    "FalseNegatives": (metrics.FalseNegatives, ANSWER),
    "FalsePositives": (metrics.FalsePositives, ANSWER),
    "Hinge": (metrics.Hinge, ("linear", "answers")),
    "IoU": (lambda: metrics.IoU(CLASSES, [0, 1], sparse_y_pred=False), CLASS),
    "KLDivergence": (metrics.KLDivergence, ("softmax", "shares")),
    "LogCoshError": (metrics.LogCoshError, NUMBERS),
    "MeanAbsoluteError": (metrics.MeanAbsoluteError, NUMBERS),
    "MeanAbsolutePercentageError": (metrics.MeanAbsolutePercentageError, NUMBERS),
    "MeanIoU": (lambda: metrics.MeanIoU(CLASSES, sparse_y_pred=False), CLASS),
    "MeanIoU without a class": (lambda: metrics.MeanIoU(CLASSES, ignore_class=1, sparse_y_pred=False), CLASS),
    "MeanMetricWrapper": (lambda: metrics.MeanMetricWrapper(keras.losses.mean_squared_error, "wrapped"), NUMBERS),
    "MeanSquaredError": (metrics.MeanSquaredError, NUMBERS),
    "MeanSquaredLogarithmicError": (metrics.MeanSquaredLogarithmicError, ("softplus", "counts")),
    "OneHotIoU": (lambda: metrics.OneHotIoU(CLASSES, [1, 2]), ONE_HOT),
    "OneHotMeanIoU": (lambda: metrics.OneHotMeanIoU(CLASSES), ONE_HOT),
    "PearsonCorrelation": (metrics.PearsonCorrelation, NUMBERS),
    "Poisson": (metrics.Poisson, ("softplus", "counts")),
    "Precision": (metrics.Precision, ANSWER),
    "Precision among the top": (lambda: metrics.Precision(top_k=2, class_id=1), ONE_HOT),
    "PrecisionAtRecall": (lambda: metrics.PrecisionAtRecall(0.5), ANSWER),
    "R2Score": (metrics.R2Score, ("linear", "number")),
    "R2Score of several numbers": (lambda: metrics.R2Score("variance_weighted_average"), NUMBERS),
    "Recall": (lambda: metrics.Recall(thresholds=0.4), ANSWER),
    "RecallAtPrecision": (lambda: metrics.RecallAtPrecision(0.5), ANSWER),
    "RootMeanSquaredError": (metrics.RootMeanSquaredError, NUMBERS),
    "SensitivityAtSpecificity": (lambda: metrics.SensitivityAtSpecificity(0.5), ANSWER),
    "SparseCategoricalAccuracy": (metrics.SparseCategoricalAccuracy, CLASS),
    "SparseCategoricalCrossentropy": (metrics.SparseCategoricalCrossentropy, CLASS),
    "SparseTopKCategoricalAccuracy": (lambda: metrics.SparseTopKCategoricalAccuracy(k=2), CLASS),
    "SpecificityAtSensitivity": (lambda: metrics.SpecificityAtSensitivity(0.5), ANSWER),
    "SquaredHinge": (metrics.SquaredHinge, ("linear", "answers")),
    "TopKCategoricalAccuracy": (lambda: metrics.TopKCategoricalAccuracy(k=2), ONE_HOT),
    "TrueNegatives": (metrics.TrueNegatives, ANSWER),
    "TruePositives": (metrics.TruePositives, ANSWER),
}  # fmt: skip
OF_VALUES = {"Metric", "Mean", "Sum"}
"""Of no labels and outputs: what others are made of."""


def test_every_metric_of_keras_is_in_the_table() -> None:
    classes = {
        each.__name__
        for each in vars(metrics).values()
        if isinstance(each, type) and issubclass(each, metrics.Metric)
    }
    assert classes == {type(make()).__name__ for make, _ in CASES.values()} | OF_VALUES


@pytest.mark.parametrize("case", sample("metrics of Keras", CASES, quick=12, ci=18))
def test_a_metric_is_that_of_the_whole_validation_set(case: str) -> None:
    """Without weights as one of ``metrics``, with weights as one of ``weighted_metrics``, in one model."""
    make, (form, kind) = CASES[case]
    columns = table(label=labels_of(kind))
    model = model_of(form, 1 if kind in ("number", "answer") else CLASSES)
    plain, weighted = make(), make()
    plain.name, weighted.name = "plain", "weighted"
    loss = "sparse_categorical_crossentropy" if kind == "class" else "mse"
    estimator = KerasEstimator(
        model, "sgd", loss, [plain], weighted_metrics=[weighted], inputs=["features"], run_eagerly=True,
        sample_weight_column="weight",
    )  # fmt: skip
    history, evaluated = validated(estimator, columns)
    label = columns["label"][:, None] if kind in ("number", "answer") else columns["label"]
    expected = of_keras(model, columns["features"], label, columns["weight"])
    assert {"plain", "weighted"} < expected.keys()
    assert all(np.isfinite(value) for value in expected.values())
    assert history == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert evaluated == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_names_of_other_frameworks_metrics_are_refused_with_those_of_keras():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    text = r"metrics='f1' was given, but Keras knows no metric .* keras.metrics.F1Score\(average='macro', threshold=0.5"
    with pytest.raises(EstimatorError, match=text):
        KerasEstimator(model, "sgd", "binary_crossentropy", metrics=["acc", "f1"])
    own = {"f1": keras.metrics.binary_accuracy}
    KerasEstimator(model, "sgd", "binary_crossentropy", metrics=["f1"], custom_objects=own)
