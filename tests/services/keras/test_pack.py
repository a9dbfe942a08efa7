"""Keras models that train together on JAX come to the bits that each comes to alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sampling import sample
from typer.testing import CliRunner

keras = pytest.importorskip("keras")

from hopyard.backend import InlineBackend  # noqa: E402
from hopyard.cli import app  # noqa: E402
from hopyard.errors import Evidence  # noqa: E402
from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.objects import Tensor, load_state, save_state  # noqa: E402
from hopyard.storage import LocalStore  # noqa: E402
from hopyard.training import fallback, measuring  # noqa: E402
from hopyard.training.estimator import Context, OneBatch, Visit, batch_sizes  # noqa: E402
from hopyard.training.keras import compiled  # noqa: E402
from hopyard.training.keras.replica import KerasReplica  # noqa: E402
from hopyard.training.keras.steps import JaxSteps  # noqa: E402
from hopyard.training.session import Session  # noqa: E402
from hopyard.training.unit import residents, run_unit  # noqa: E402
from hopyard.tune import GridSearch, hp_choice  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # of Keras, as it reads its tensors
BACKEND = keras.backend.backend()
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="runs on JAX: test_backends.py starts it there")
layers = keras.layers
LOSS = "sparse_categorical_crossentropy"
MEMBERS = 5


class Counted(layers.Layer):
    """A layer with a count of calls, of a user's class."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.add_weight((), "zeros", trainable=False, name="calls")

    def call(self, x: Any, training: bool = False) -> Any:
        self.calls.assign(self.calls + 1.0)
        return x


def chain_of(*between: Any) -> Any:
    return keras.Sequential(
        [keras.Input((12,)), layers.Dense(8, "relu"), *between, layers.Dense(3, "softmax")]
    )


def attention() -> Any:
    tokens = keras.Input((6,), dtype="int32")
    found = layers.Embedding(20, 8)(tokens)
    found = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(found, found) + found)
    return keras.Model(tokens, layers.Dense(3, "softmax")(layers.Flatten()(found)))


def dense(params: dict[str, Any]) -> KerasEstimator:
    return KerasEstimator(chain_of(), keras.optimizers.Adam(params["lr"]), LOSS, ["acc"], 64)


def random_layers(params: dict[str, Any]) -> KerasEstimator:
    model = chain_of(layers.BatchNormalization(), layers.Dropout(0.3), Counted(), layers.GaussianNoise(0.1))
    return KerasEstimator(model, keras.optimizers.AdamW(params["lr"]), LOSS, ["acc"], 64)


def averaged(params: dict[str, Any]) -> KerasEstimator:
    optimizer = keras.optimizers.SGD(params["lr"], momentum=0.9, use_ema=True, clipnorm=0.5)
    return KerasEstimator(chain_of(), optimizer, LOSS, batch_size=64)


def weighed(params: dict[str, Any]) -> KerasEstimator:
    regular = layers.Dense(8, activity_regularizer="l2", kernel_regularizer="l1")
    return KerasEstimator(
        chain_of(regular), keras.optimizers.RMSprop(params["lr"]), LOSS, weighted_metrics=["acc"],
        batch_size=100, sample_weight_column="weight", class_weight={0: 2.0, 2: 0.5},
    )  # fmt: skip


def mixed(params: dict[str, Any]) -> KerasEstimator:
    keras.config.set_dtype_policy("mixed_float16")
    return KerasEstimator(chain_of(), keras.optimizers.Adam(params["lr"]), LOSS, ["acc"], 64)


def attending(params: dict[str, Any]) -> KerasEstimator:
    return KerasEstimator(attention(), keras.optimizers.Adam(params["lr"]), LOSS, batch_size=64)


CASES: dict[str, tuple[Callable[[dict[str, Any]], KerasEstimator], tuple[str, ...]]] = {
    "dense": (dense, ("features",)),
    "random": (random_layers, ("features",)),
    "averaged": (averaged, ("features",)),
    "weighed": (weighed, ("features", "weight")),
    "mixed": (mixed, ("features",)),
    "attending": (attending, ("tokens",)),
}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled._last.clear()
    compiled._shared.clear()
    monkeypatch.setattr(fallback, "_said", set())
    if BACKEND == "jax":
        from hopyard.training.keras import pack

        pack._ways.clear()
        monkeypatch.setattr(pack, "_alone", {})
        monkeypatch.setattr(measuring, "_SHORT_SECONDS", 0.0)


def by_program(monkeypatch: pytest.MonkeyPatch, least: float = 0.0) -> None:
    """Let a program make steps from the second visit on, whatever it gains."""
    from hopyard.training.keras import pack

    monkeypatch.setattr(pack, "_TURNS_FIRST", 0)
    monkeypatch.setattr(pack, "_TURNS_LEFT", 0)
    monkeypatch.setattr(pack, "LEAST_GAIN", least)


class Pack:
    """Trials that make visits together, or one at a time, with the states between them on a store."""

    def __init__(self, chain: Callable[..., Any], case: str, together: bool) -> None:
        make, features = CASES[case]
        folder = f"{case} {'together' if together else 'alone'}"
        rates = [0.01 * (1 + trial) for trial in range(MEMBERS)]
        self.chains = [
            chain(make, features, trial=trial, folder=folder, lr=rate) for trial, rate in enumerate(rates)
        ]
        self.together = together
        self.kinds: list[Any] = []
        self.alone: list[str] = []

    def visit(self, phase: str, epoch: int, partition: int) -> tuple[Sequence[Any], list[Evidence | None]]:
        """Make a visit; metrics of each, and failures. Who has failed before is left out."""
        first = self.chains[0]
        groups = [self.chains] if self.together else [[each] for each in self.chains]
        metrics: list[Any] = []
        errors: list[Evidence | None] = []
        for group in groups:
            request = first.request(phase, epoch, partition, last=phase == "validate")
            request = dataclasses.replace(
                request,
                trials=tuple(each.trial for each in group),
                params=tuple(each.params for each in group),
                states=tuple(each.ref for each in group),
                position=group[0].position,
                carried=((),) * len(group),
                together=self.together,
            )
            result = run_unit(request)
            for number, each in enumerate(group):
                if phase == "train" and result.errors[number] is None:
                    each.position += 1
                    each.ref = result.states[number]
            metrics += result.metrics
            errors += result.errors
            self.kinds, self.alone = list(result.kinds), list(result.alone)
        return metrics, errors

    def spoil(self, slot: int) -> None:
        """Put a NaN into the weights of a member."""
        chain = self.chains[slot]
        store = chain.store.at(f"{chain.trial:05d}")
        state = load_state(store, chain.ref)
        name, weight = next(iter(state["model"].items()))
        state["model"][name] = Tensor.from_numpy(weight.numpy() * np.nan)
        chain.ref = save_state(store, state)

    def digests(self) -> list[dict[str, Any]]:
        """Of each its state's tensors, by what names them."""
        found = []
        for each in self.chains:
            state = load_state(each.store.at(f"{each.trial:05d}"), each.ref)
            found.append(
                {
                    part: {name: value.digest for name, value in tree.items()}
                    for part, tree in state.items()
                    if isinstance(tree, dict)
                }
            )
        return found


VISITS = [("train", 0, 0), ("train", 0, 1), ("validate", 0, 0), ("train", 1, 2), ("validate", 1, 1)]


def same_bits(chain: Callable[..., Any], case: str) -> Pack:
    """Make visits both ways, and compare all that they give. Returns those that made them together."""
    alone, together = Pack(chain, case, False), Pack(chain, case, True)
    for visit in VISITS:
        residents.clear()
        expected = alone.visit(*visit)
        residents.clear()
        assert together.visit(*visit) == expected
        assert not any(expected[1]), [each and each.describe() for each in expected[1]]
        if visit[0] == "train":
            assert together.digests() == alone.digests()
    return together


@on_jax
@pytest.mark.parametrize("case", sample("packs of Keras", list(CASES), quick=1, ci=2))
def test_members_have_the_bits_that_they_have_alone(
    case: str, chain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hopyard.training.keras import pack

    by_program(monkeypatch)
    found = same_bits(chain, case)
    assert not any(found.alone), found.alone
    assert len(set(found.kinds)) == 1
    assert found.kinds[0]
    (way,) = pack._ways.values()
    assert way.tried
    assert way.program is not None or "the same bits" in way.why, way.why


@on_jax
def test_members_in_turns_have_them(chain: Callable[..., Any]) -> None:
    from hopyard.training.keras import pack

    found = same_bits(chain, "dense")
    (way,) = pack._ways.values()
    assert not way.tried
    partitions = found.chains[0].program.train_partitions
    assert way.steps == MEMBERS * sum(len(batch_sizes(len(partition), 64)) for partition in partitions)
    assert way.spent > way.saved > 0


@on_jax
def test_who_diverges_leaves_the_others_as_they_are(
    chain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hopyard.training.keras import pack

    by_program(monkeypatch)
    alone, together = Pack(chain, "dense", False), Pack(chain, "dense", True)
    for each in (alone, together):
        residents.clear()
        each.visit("train", 0, 0)
        each.spoil(1)
        residents.clear()
        _, errors = each.visit("train", 0, 1)
        assert [error is not None for error in errors] == [False, True, False, False, False]
        assert errors[1] is not None
        assert "The loss became nan" in errors[1].describe()
    (way,) = pack._ways.values()
    assert way.program is not None, way.why
    others = [0, 2, 3, 4]
    assert [together.digests()[slot] for slot in others] == [alone.digests()[slot] for slot in others]


@on_jax
def test_a_program_that_fails_has_members_train_alone(
    chain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    by_program(monkeypatch)
    made = JaxSteps.program

    def failing(steps: JaxSteps, result: Any) -> Callable[..., Any]:
        program, calls = made(steps, result), iter(range(1000))

        def fails_later(*given: Any) -> Any:
            if next(calls) > 5 + 3:  # beyond those that compare and measure
                raise MemoryError("no room for the program")
            return program(*given)

        return fails_later

    monkeypatch.setattr(JaxSteps, "program", failing)
    found = same_bits(chain, "dense")
    why = "training them together failed (MemoryError: no room for the program)"
    assert found.alone == [why] * MEMBERS
    assert not any(found.kinds)
    assert f"since {why}" in caplog.text


@on_jax
def test_what_gains_nothing_is_not_used(chain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    by_program(monkeypatch, least=1e9)
    found = same_bits(chain, "dense")
    assert set(found.alone) == {found.alone[0]}
    assert "4 of them by one program would take" in found.alone[0]


@on_jax
def test_a_check_measures_what_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    from hopyard.training.keras import pack

    monkeypatch.setattr(pack, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(pack, "_MOST_PROBE_SECONDS", 1e9)
    rng = np.random.default_rng(0)
    batch = {"features": rng.standard_normal((64, 12), dtype=np.float32), "label": rng.integers(0, 3, 64)}
    with Session(1) as session:
        replicas = [made(session, dense, lr=0.01 * (1 + trial)) for trial in range(3)]
        for replica in replicas:
            replica.check_labels(Visit(OneBatch(batch), 0, 0, 0, True))
        before = [digests_of(replica) for replica in replicas]
        gain = KerasReplica.gain_together(replicas, Visit(OneBatch(batch), 0, 0, 0, True), [1, 2, 3])
        assert gain is not None
        assert gain > 0
        assert [digests_of(replica) for replica in replicas] == before
        monkeypatch.setattr(pack, "_MOST_PROBE_SECONDS", 0.0)
        pack._ways.clear()
        assert KerasReplica.gain_together(replicas, Visit(OneBatch(batch), 0, 0, 0, True), [1, 2, 3]) is None


def digests_of(replica: KerasReplica) -> list[str]:
    return [tensor.digest for part in ("model", "optimizer") for tensor in replica.state()[part].values()]


def made(session: Session, make: Callable[[dict[str, Any]], KerasEstimator], **params: Any) -> KerasReplica:
    session.reset()
    found = make(params).replica(Context(("features",), ("label",), "cpu", (64,), 2))
    assert isinstance(found, KerasReplica)
    return found


def unlike(params: dict[str, Any]) -> KerasEstimator:
    """An estimator with one thing that is not as usual."""
    options: dict[str, Any] = {
        "callbacks": [keras.callbacks.LambdaCallback()] if params["odd"] == "callbacks" else (),
        "model_update_fn": (lambda model, epoch, params: None) if params["odd"] == "update" else None,
        "transform": (lambda batch, rng: batch) if params["odd"] == "transform" else None,
        "run_eagerly": params["odd"] == "eager",
    }
    model = chain_of(layers.Dense(500_000, use_bias=False)) if params["odd"] == "large" else chain_of()
    if params["odd"] == "open":
        model = keras.Sequential([layers.Dense(3, "softmax")])
    if params["odd"] == "opaque":
        model.layers[0].activation = Opaque()
    return KerasEstimator(model, keras.optimizers.Adam(0.01), LOSS, batch_size=64, **options)


class Opaque:
    """A function that says nothing of itself."""

    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ("callbacks", "it has callbacks"),
        ("update", "a model_update_fn is given"),
        ("transform", "a transform is given"),
        ("eager", "its steps are not compiled"),
        ("open", "the sizes of its layers follow from a first batch: give it a keras.Input"),
        ("large", "its parameters take 22 MB, and models of over 16 MB gain nothing together"),
        ("opaque", "it has parts of which it cannot be told what they do"),
    ],
)
def test_why_a_model_trains_alone_is_said(odd: str, why: str) -> None:
    with Session(1) as session:
        replica = made(session, unlike, odd=odd)
        assert replica.signature == ""
        on_others = f"Keras trains one model at a time on {BACKEND}"
        assert replica.trains_alone == (why if BACKEND == "jax" else on_others)


@on_jax
def test_a_search_has_the_same_results_either_way(
    data: Any, tmp_path: Path, contents_of: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_program(monkeypatch)
    found = []
    for packing in ("auto", "serial"):
        search = GridSearch(
            InlineBackend(), LocalStore(tmp_path / packing), random_layers, {"lr": hp_choice([0.01, 0.02, 0.03, 0.04])},
            num_epochs=2, num_partitions=2, order_groups=1, packing=packing, progress=False,
            feature_columns=["features"], label_columns=["label"],
        )  # fmt: skip
        found.append(search.fit(data.train, data.val).run)
    together, alone = found
    assert contents_of(together) == contents_of(alone)
    said = [
        CliRunner().invoke(app, ["run", "describe", str(tmp_path / folder), run.run_id]).output
        for folder, run in zip(("auto", "serial"), found, strict=True)
    ]
    assert "trained together: 32 of 32 units, by 4 trials at a time" in said[0]
    assert "trained together" not in said[1]


@on_jax
def test_rates_may_differ_and_nothing_else() -> None:
    with Session(1) as session:
        first, second = made(session, dense, lr=0.1), made(session, dense, lr=0.2)
        assert first.signature == second.signature != ""
        others = [random_layers, averaged, weighed]
        assert len({made(session, each, lr=0.1).signature for each in [dense, *others]}) == 4
