"""The law of missing values on frames of clusters: what happens in this process happens there, in the same words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hopyard.backend import InlineBackend
from hopyard.data import prepare
from hopyard.errors import DataError
from hopyard.storage import LocalStore
from hopyard.torch import TorchEstimator
from hopyard.tune import GridSearch, hp_choice
from hopyard.tune.run import Model

MANY = 300
"""More rows than the check before a search looks at."""


class Sum(torch.nn.Module):
    """Scalar features, summed up with one weight each."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, 1)

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.stack([column.float() for column in columns], dim=1)).reshape(-1)


def people(null_ages: Any = (), null_prices: Any = (), rows: int = 48) -> pd.DataFrame:
    random = np.random.default_rng(0)
    age, height = random.normal(size=rows), random.normal(size=rows)
    frame = pd.DataFrame({"age": age, "height": height, "price": age + height})
    frame.loc[list(null_ages), "age"] = np.nan
    frame.loc[list(null_prices), "price"] = np.nan
    return frame


def search(folder: Any, nulls: str = "error", features: tuple[str, ...] = ("age", "height")) -> GridSearch:
    def make(params: dict[str, Any]) -> TorchEstimator:
        return TorchEstimator(
            Sum(len(features)), torch.optim.SGD, torch.nn.MSELoss(), ["mae"], optimizer_params=params
        )

    return GridSearch(
        InlineBackend(), LocalStore(folder), make, {"lr": hp_choice([0.01])}, num_epochs=1, nulls=nulls,
        feature_columns=list(features), label_columns=["price"], evaluation_metric="mae", progress=False,
    )  # fmt: skip


def said(call: Callable[[], Any]) -> str:
    """The error of the data that a call ends with, without numbers of rows, which frames of clusters do not have."""
    with pytest.raises(Exception, match="null") as caught:
        call()
    if isinstance(caught.value, DataError):
        (text,) = caught.value.args
    else:  # an engine's own, around that of a task
        found = re.search(r"(?:Data|Nulls)Error: (.*)", str(caught.value))
        assert found is not None, caught.value
        text = found[1]
    return re.sub(r" \((row|the first are rows) [\d, ]+\)", "", text)


def check_fit(of: Callable[[pd.DataFrame], Any], folder: Any) -> None:
    """Null labels and features are refused by ``fit``, counted over all rows that were looked at.

    Args:
        of: makes a frame of the cluster.
    """
    few = people(null_prices=[4, 9, 17, 30])
    for nulls in ("error", "fill"):
        text = said(lambda nulls=nulls: search(folder, nulls).fit(of(few)))  # type: ignore[misc]
        assert text == said(lambda nulls=nulls: search(folder, nulls).fit(few))  # type: ignore[misc]
        assert text.startswith("The label column 'price' is null in 4 rows. Labels are never filled")
    # Found by the engine's own tasks, in both frames.
    train, val = people(null_ages=range(270, MANY), rows=MANY), people(null_ages=[280], rows=MANY + 1)
    text = said(lambda: search(folder).fit(of(train), of(val)))
    same = r"There are null values: column 'age' in {} rows\. Remove those rows \(.*\), or pass nulls='fill'"
    whole, head = same.format(MANY - 270 + 1), same.format(r"\d+ of the first 256")
    assert re.match(f"{whole}|{head}", text)
    assert re.match(whole, said(lambda: prepare(train, LocalStore(folder), val)))
    late = people(null_prices=[MANY - 1], rows=MANY)
    text = said(lambda: search(folder, "fill").fit(of(late)))
    assert re.match(
        r"The label column 'price' is null in 1( row| of the first 256 rows)\. Labels are never", text
    )


def check_predictions(
    of: Callable[[pd.DataFrame], Any], read: Callable[[Any], pd.DataFrame], folder: Any
) -> None:
    """A null feature at prediction follows what training did, also where a block holds nothing but nulls.

    Args:
        of: makes a frame of the cluster, of several blocks of at most 12 rows.
        read: the rows of such a frame.
    """
    missing = [1, 2, *range(12, 24), 30]
    given = people(null_ages=missing)
    for nulls, features in (("fill", ("age", "height")), ("mask", ("age", "age_mask", "height"))):
        model = search(folder, nulls, features).fit(people(null_ages=range(10)))
        expected = model.predict(given)
        filled = given.assign(age_mask=given["age"].isna(), age=given["age"].fillna(0.0))
        with torch.no_grad():
            own = model.torch()(*(torch.tensor(filled[name].to_numpy(np.float32)) for name in features))
        np.testing.assert_allclose(expected, own, rtol=1e-5, atol=1e-6)
        found = read(model.transform(of(given))).sort_values("height")["price__output"]
        np.testing.assert_allclose(found, expected[np.argsort(given["height"])], rtol=1e-5, atol=1e-6)
        assert model.evaluate(of(given)) == pytest.approx(model.evaluate(given), rel=1e-5)
        _check_refused(model, of, people(null_prices=[40, 41]), "The label column 'price' is null in 2 rows.")
    model = search(folder).fit(people())
    text = f"column 'age' is null in {len(missing)} rows, and the model was trained with nulls='error'"
    _check_refused(model, of, given, text)
    block = said(lambda: read(model.transform(of(given))))
    assert re.match(
        r"column 'age' is null in \d+ of a block of \d+ rows, and the model was trained with n", block
    )


def _check_refused(model: Model, of: Callable[[pd.DataFrame], Any], given: pd.DataFrame, text: str) -> None:
    for call in (model.evaluate, model.predict) if text.startswith("column") else (model.evaluate,):
        assert said(lambda call=call: call(of(given))) == said(lambda call=call: call(given))  # type: ignore[misc]
        assert said(lambda call=call: call(of(given))).startswith(text)  # type: ignore[misc]
