"""KerasTrial: results against plain Keras, every kind of loader, and going on where training stopped."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sampling import sample

keras = pytest.importorskip("keras")

from hopyard.backend import InlineBackend, LocalBackend  # noqa: E402
from hopyard.data import open_dataset, prepare  # noqa: E402
from hopyard.errors import TrialError  # noqa: E402
from hopyard.keras import KerasEstimator  # noqa: E402
from hopyard.storage import LocalStore  # noqa: E402
from hopyard.tune import GridSearch, Run, hp_choice  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation"
)  # TensorFlow, as Keras reads its tensors
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
JIT = "auto" if keras.backend.backend() == "jax" else False
"""Without its compiler JAX compiles each operation apart, which takes longer; with theirs the others take longer."""
Experiment = Callable[..., Run]
Definition = Callable[..., Path]

TRIAL = """
import keras
import numpy as np

from hopyard.experiment import KerasTrial


def points(n, seed):
    x = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(np.int64)


def cut(n, seed, size):
    x, y = points(n, seed)
    return [(x[first : first + size], y[first : first + size]) for first in range(0, n, size)]


class Trial(KerasTrial):
    def build_model(self):
        model = keras.Sequential([
            keras.Input((4,)),
            keras.layers.Dense(8, activation="relu", kernel_initializer=keras.initializers.GlorotUniform(1)),
            keras.layers.Dense(2, activation="softmax", kernel_initializer=keras.initializers.GlorotUniform(2)),
        ])
        optimizer = keras.optimizers.Adam(self.context.get_hparam("lr"))
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=JIT)
        return model

    def build_training_data_loader(self):
        return cut(100, 1, 8)

    def build_validation_data_loader(self):
        return cut(50, 2, 16)
""".replace("jit_compile=JIT", f"jit_compile={JIT!r}")
TRAINING, VALIDATION = "return cut(100, 1, 8)", "return cut(50, 2, 16)"

SEQUENCE = """

class Sequence(keras.utils.PyDataset):
    def __init__(self, context, batches, **options):
        super().__init__(**options)
        self.context, self.batches = context, batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        with open("seen", "a") as file:
            file.write(f"{index} ")
        return self.batches[index]


class Trial("""

DECODE = """

def decode(data):
    values = np.frombuffer(data, np.float32).reshape(-1, 5)
    return values[:, :4], values[:, 4].astype(np.int64)


class Trial("""


def sequence(training: str = "Sequence(self.context, cut(100, 1, 8))", validation: str = VALIDATION) -> str:
    """The trial with a PyDataset that notes which batches it was asked for."""
    code = TRIAL.replace("\nclass Trial(", SEQUENCE, 1).replace(TRAINING, f"return {training}")
    return code.replace(VALIDATION, validation)


def points(n: int, seed: int) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(np.int64)


def cut(n: int = 100, seed: int = 1, size: int = 8) -> list[tuple[Any, Any]]:
    x, y = points(n, seed)
    return [(x[first : first + size], y[first : first + size]) for first in range(0, n, size)]


def network() -> Any:
    dense, glorot = keras.layers.Dense, keras.initializers.GlorotUniform
    return keras.Sequential(
        [
            keras.Input((4,)),
            dense(8, activation="relu", kernel_initializer=glorot(1)),
            dense(2, activation="softmax", kernel_initializer=glorot(2)),
        ]
    )


def plain(batches: list[tuple[Any, ...]], lr: float = 0.01) -> Any:
    """The network after these batches, without Hopyard."""
    model = network()
    model.compile(
        keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=JIT
    )
    for batch in batches:
        model.train_on_batch(*batch)
    return model


def assert_equal(run: Run, expected: Any) -> None:
    """The weights of the run's best trial are those of a model."""
    for found, wanted in zip(run.best.keras().get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)


def outcome(run: Run) -> Any:
    """All that a run measured, and the weights that it keeps, to the last bit."""
    weights = [value.tolist() for value in run.best.keras().get_weights()]
    return [(trial.number, trial.history) for trial in run.state.ranked()], weights


def numbers_seen(folder: Path) -> list[int]:
    """Batches that the trial's PyDataset was asked for, but for the check before the experiment."""
    *_, longest = sorted((path.read_text() for path in folder.rglob("seen")), key=len)
    return list(map(int, longest.split()))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOPYARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache-trials"


SINGLE = {"name": "single", "metric": "loss", "max_length": {"epochs": 2}}


LENGTHS: list[tuple[dict[str, int], int, int]] = [
    ({"epochs": 2}, 5, 26),
    ({"epochs": 1}, 100, 13),
    ({"batches": 17}, 5, 17),
    ({"records": 100}, 4, 13),
]


@pytest.mark.parametrize(
    ("length", "unit", "total"), sample("lengths of a Keras trial", LENGTHS, quick=1, ci=2)
)
def test_any_iterable_of_batches_trains_as_train_on_batch_does(
    definition: Definition, experiment: Experiment, length: Any, unit: int, total: int
) -> None:
    run = experiment(definition(TRIAL), searcher=SINGLE | {"max_length": length}, scheduling_unit=unit)
    (trial,) = run.state.trials.values()
    assert trial.status == "completed"
    batches = cut() * 2
    expected = plain(batches[:total])
    loss, accuracy = expected.evaluate(*points(50, 2), batch_size=16, verbose=0)
    assert trial.history["val_loss"][-1] == pytest.approx(loss, abs=1e-6)
    assert trial.history["val_accuracy"][-1] == pytest.approx(accuracy, abs=1e-6)
    assert_equal(run, expected)


def test_the_batches_of_a_sequence_are_shuffled_anew_in_every_pass(
    definition: Definition, experiment: Experiment, cache: Path
) -> None:
    code = sequence()
    run = experiment(definition(code), searcher=SINGLE)
    numbers = numbers_seen(cache)
    passes = numbers[:13], numbers[13:]
    assert [sorted(each) for each in passes] == [list(range(13))] * 2
    assert passes[0] != passes[1]
    assert passes[0] != list(range(13))
    batches = cut()
    assert_equal(run, plain([batches[number] for number in numbers]))
    other = experiment(definition(code), store="other", seed=1, searcher=SINGLE)
    assert outcome(other) != outcome(run)


def test_sequences_with_workers_are_read_ahead_by_threads_in_order(
    definition: Definition, experiment: Experiment
) -> None:
    fetching = "Sequence(self.context, {}, workers=3, max_queue_size=2)"
    run = experiment(
        definition(sequence(fetching.format("cut(100, 1, 8)"), f"return {fetching.format('cut(50, 2, 16)')}"))
    )
    assert outcome(run) == outcome(experiment(definition(sequence()), store="one"))


def test_a_stream_of_objects_trains(definition: Definition, experiment: Experiment, tmp_path: Path) -> None:
    for number, (x, y) in enumerate(cut()):
        (tmp_path / f"{number:02d}.batch").write_bytes(np.column_stack([x, y]).astype(np.float32).tobytes())
    code = TRIAL.replace("\nclass Trial(", DECODE, 1)
    given = f'return self.context.stream("{tmp_path}/*.batch", decode).as_keras()'
    run = experiment(definition(code.replace(TRAINING, given)), searcher=SINGLE)
    same = experiment(definition(sequence()), store="same", searcher=SINGLE)
    assert outcome(run)[1] == outcome(same)[1]


def test_weights_of_rows_count(definition: Definition, experiment: Experiment) -> None:
    code = TRIAL.replace(TRAINING, "return [(x, y, 1.0 + x[:, 0] ** 2) for x, y in cut(100, 1, 8)]")
    run = experiment(definition(code), searcher=SINGLE)
    assert_equal(run, plain([(x, y, 1.0 + x[:, 0] ** 2) for x, y in cut()] * 2))


RANDOM = """

def stumble(context):
    import pathlib
    context.count = getattr(context, "count", 0) + 1
    mark = pathlib.Path(context.get_data_config()["mark"])
    if context.count >= 22 and not mark.exists():
        mark.touch()
        {how}


class Noisy(keras.utils.PyDataset):
    def __init__(self, context):
        super().__init__()
        self.context, self.batches = context, cut(100, 1, 8)
        self.order = np.random.permutation(13)

    def __len__(self):
        return 13

    def __getitem__(self, index):
        stumble(self.context)
        x, y = self.batches[self.order[index]]
        return x + np.random.normal(0, 0.1, x.shape), y

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class Threaded(keras.utils.PyDataset):
    def __init__(self, context):
        super().__init__(workers=3, max_queue_size=4)
        self.context, self.batches = context, cut(100, 1, 8)

    def __len__(self):
        return 13

    def __getitem__(self, index):
        stumble(self.context)
        x, y = self.batches[index]
        return x + np.random.default_rng(index).normal(0, 0.1, x.shape), y


class Listed:
    def __init__(self, context):
        self.context = context

    def __len__(self):
        return 13

    def __iter__(self):
        for x, y in cut(100, 1, 8):
            stumble(self.context)
            yield x + np.random.normal(0, 0.1, x.shape), y


def graph(context):
    import tensorflow as tf

    def stumbling(x):
        stumble(context)
        return x

    def noisy(x, y):
        z = tf.numpy_function(stumbling, [x + tf.random.normal(tf.shape(x), 0, 0.1)], tf.float32)
        return tf.ensure_shape(z, (None, 4)), y

    return tf.data.Dataset.from_tensor_slices(points(100, 1)).shuffle(50).batch(8).map(noisy)


class Trial("""
DROPPING = "kernel_initializer=keras.initializers.GlorotUniform(1)),\n            keras.layers.Dropout(0.2),"


HOWS = {
    "error": ('raise ConnectionError("the server is gone")', InlineBackend),
    "worker killed": ("import os; os.kill(os.getpid(), 9)", LocalBackend),
}
LOADERS = ["Noisy", "Threaded", "Listed", "graph"]


INTERRUPTED = list(itertools.product(HOWS, LOADERS))
if keras.backend.backend() == "tensorflow":  # other backends choose some by name (test_backends.py)
    INTERRUPTED = sample("interruptions of a Keras trial", INTERRUPTED, quick=2, ci=4)


@pytest.mark.parametrize(("interrupted", "loader"), INTERRUPTED)
def test_whatever_interrupts_a_trial_it_goes_on_to_the_same_result(
    interrupted: str,
    loader: str,
    definition: Definition,
    experiment: Experiment,
    tmp_path: Path,
    needs: Callable[[object, str], None],
) -> None:
    if loader == "graph" and not ON_TENSORFLOW:
        pytest.skip("tf.data is for TensorFlow")
    how, backend = HOWS[interrupted]
    code = TRIAL.replace("\nclass Trial(", RANDOM.format(how=how), 1)
    code = code.replace(TRAINING, f"return {loader}(self.context)")
    code = code.replace("kernel_initializer=keras.initializers.GlorotUniform(1)),", DROPPING)
    (tmp_path / "calm").touch()
    undisturbed = experiment(definition(code), store="calm-store", data={"mark": str(tmp_path / "calm")})
    workers = backend() if backend is InlineBackend else backend(num_workers=1)
    run = experiment(definition(code), workers, data={"mark": str(tmp_path / "mark")})
    assert [each.name for each in threading.enumerate() if each.name.startswith("ThreadPoolExecutor")] == []
    assert (tmp_path / "mark").exists()
    assert outcome(run) == outcome(undisturbed)
    (trial,) = run.state.trials.values()
    assert trial.restarts == ("ConnectionError" in how)
    assert len(set(trial.history["train_loss"])) == 2


UNBUILT = "keras.Input((4,)),"


def test_a_model_that_knows_no_shapes_yet_goes_on_and_is_given_out(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    assert UNBUILT in TRIAL
    code = TRIAL.replace("\nclass Trial(", RANDOM.format(how="raise ConnectionError"), 1)
    code = code.replace(TRAINING, "return Noisy(self.context)").replace(UNBUILT, "")
    (tmp_path / "calm").touch()
    undisturbed = experiment(definition(code), store="calm-store", data={"mark": str(tmp_path / "calm")})
    run = experiment(definition(code), data={"mark": str(tmp_path / "mark")})
    assert outcome(run) == outcome(undisturbed)


def prepared(tmp_path: Path) -> LocalStore:
    x, y = points(400, 1)
    data = LocalStore(tmp_path / "data")
    prepare({"x": x, "y": y}, data, validation=0.25, feature_columns=["x"], label_columns=["y"])
    return data


GIVEN = 'return self.context.dataset("{}").{}'
OF_DATASET = {
    "keras_dataset": (
        'keras_dataset("x", "y", batch_size=8, shuffle=True, tail="join")',
        'keras_dataset("x", "y", batch_size=8)',
    ),
    "loader": (
        'loader(8, True, tail="join", transform=lambda batch, rng: (batch["x"], batch["y"]))',
        'loader(8, transform=lambda batch, rng: (batch["x"], batch["y"]))',
    ),
}


@pytest.mark.parametrize("kind", OF_DATASET)
def test_a_trial_over_a_dataset_hops_between_partitions_as_a_search_does(
    kind: str, definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    data = prepared(tmp_path)
    training, validation = OF_DATASET[kind]
    code = TRIAL.replace(TRAINING, GIVEN.format("train", training))
    run = experiment(
        definition(code.replace(VALIDATION, GIVEN.format("val", validation))),
        data={"store": data.url},
        hyperparameters={"lr": {"type": "categorical", "vals": [0.01, 0.03]}},
        searcher={"name": "grid", "metric": "accuracy", "max_length": {"epochs": 3}},
    )

    def estimator(params: dict[str, Any]) -> KerasEstimator:
        optimizer = keras.optimizers.Adam(params["lr"])
        loss = "sparse_categorical_crossentropy"
        return KerasEstimator(network(), optimizer, loss, ["accuracy"], batch_size=8, jit_compile=JIT)

    search = GridSearch(
        InlineBackend(),
        LocalStore(tmp_path / "beside"),
        estimator,
        {"lr": hp_choice([0.01, 0.03])},
        3,
        evaluation_metric="accuracy",
        feature_columns=["x"],
        label_columns=["y"],
        num_partitions=run.state.layout.train,
        progress=False,
    )
    beside = search.fit_on_parquet(open_dataset(data, "train"), open_dataset(data, "val")).run
    assert outcome(run) == outcome(beside)
    assert run.broken_rules() == []


def test_a_tf_dataset_of_hopyard_gives_every_pass_another_order(
    definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    if not ON_TENSORFLOW:
        pytest.skip("tf.data is for TensorFlow")
    data = prepared(tmp_path)
    code = TRIAL.replace(
        TRAINING,
        GIVEN.format("train", 'tf_dataset(8, True).map(lambda batch: (batch["x"], batch["y"])).prefetch(2)'),
    )
    run = experiment(definition(code), data={"store": data.url}, searcher=SINGLE, scheduling_unit=10)
    loader = open_dataset(data, "train").loader(8, True)
    assert_equal(run, plain([(batch["x"], batch["y"]) for _ in range(2) for batch in loader]))


@pytest.mark.parametrize("loader", ["own", "dataset"])
def test_pbt_copies_states(
    loader: str, definition: Definition, experiment: Experiment, tmp_path: Path
) -> None:
    code, fields = sequence(), {}
    if loader == "dataset":
        training, validation = OF_DATASET["keras_dataset"]
        code = TRIAL.replace(TRAINING, GIVEN.format("train", training))
        code = code.replace(VALIDATION, GIVEN.format("val", validation))
        fields = {"data": {"store": prepared(tmp_path).url}}
    pbt = {
        "name": "pbt",
        "metric": "loss",
        "population_size": 2,
        "num_rounds": 3,
        "length_per_round": {"batches": 10},
        "replace_function": {"truncate_fraction": 0.5},
    }
    lr = {"type": "log", "minval": -4, "maxval": -1, "base": 10}
    run = experiment(definition(code), searcher=pbt, hyperparameters={"lr": lr}, **fields)
    trials = run.state.trials.values()
    copies = [trial for trial in trials if trial.source is not None]
    assert len(copies) == 2
    ended = {trial.progress.trained for trial in trials if trial.status == "completed"}
    assert ended == {run.state.num_visits}
    if loader == "own":
        assert run.state.epochs_after(run.state.num_visits) == 30 / 13


CALLBACKS = """
    def keras_callbacks(self):
        class Noting(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                with open("seen", "a") as file:
                    file.write(f"{epoch} ")

        return [Noting()]
"""


def test_callbacks_see_epochs(definition: Definition, experiment: Experiment, cache: Path) -> None:
    experiment(definition(TRIAL + CALLBACKS), searcher=SINGLE | {"max_length": {"epochs": 3}})
    assert numbers_seen(cache) == [0, 1, 2]


def test_trials_whose_models_are_compiled_apart_do_not_share_one(
    definition: Definition, experiment: Experiment
) -> None:
    code = TRIAL.replace(f"jit_compile={JIT!r}", 'loss_weights=[self.context.get_hparam("weight")]')
    searcher = SINGLE | {"name": "grid", "metric": "accuracy"}
    weights = {"type": "categorical", "vals": [1.0, 5.0]}
    run = experiment(definition(code), searcher=searcher, hyperparameters={"lr": 0.01, "weight": weights})
    first, second = (run.state.trials[number].history["val_loss"][0] for number in (0, 1))
    assert second > 3 * first


STORED = """
import boto3, io, keras
import numpy as np
from hopyard.experiment import KerasTrial


def get_s3_loc_for_batch(idx):
    return "{bucket}", f"{folder}{{idx}}"


def data_to_batch(blob_data):
    values = np.frombuffer(blob_data, np.float32).reshape(-1, 5)
    return values[:, :4], values[:, 4].astype(np.int64)


class ObjectStorageSequence({base}):

    def __init__(self):
        self.s3_client = boto3.client("s3")

    def __getitem__(self, idx):
        bucket, key = get_s3_loc_for_batch(idx)
        blob_data = self.s3_client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return data_to_batch(blob_data)

    def __len__(self):
        return 13


class Trial("""


def test_the_object_storage_sequence_of_the_tutorial_trains(
    s3_url: str, definition: Definition, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    bucket, _, folder = s3_url.removeprefix("s3://").partition("/")
    folder = f"{folder}/" if folder else ""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    for number, (x, y) in enumerate(cut()):
        body = np.column_stack([x, y]).astype(np.float32).tobytes()
        client.put_object(Bucket=bucket, Key=f"{folder}{number}", Body=body)
    base = "tf.keras.utils.Sequence" if ON_TENSORFLOW else "keras.utils.PyDataset"
    code = TRIAL.replace("\nclass Trial(", STORED.format(bucket=bucket, folder=folder, base=base), 1)
    code = code.replace(
        "\nimport keras\n",
        "\nimport keras\nimport tensorflow as tf\n" if ON_TENSORFLOW else "\nimport keras\n",
        1,
    )
    run = experiment(definition(code.replace(TRAINING, "return ObjectStorageSequence()")), searcher=SINGLE)
    same = experiment(definition(sequence()), store="same", searcher=SINGLE)
    assert outcome(run)[1] == outcome(same)[1]


def test_torch_is_not_imported_for_keras_on_tensorflow(fresh_processes: None) -> None:
    if not ON_TENSORFLOW:
        pytest.skip("Keras runs on another backend")
    code = (
        "import sys, hopyard.experiment; hopyard.experiment.KerasTrial; "
        "import hopyard.experiment.trials; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("    def build_model", "    def build_models"),
            r"the trial class Trial lacks build_model\(\), which is part of every KerasTrial\. Define it in Trial",
        ),
        (
            ("        return model\n", ""),
            r"Trial\.build_model\(\) returned NoneType, but must return a keras\.Model\. End",
        ),
        (
            ("model.compile(", "(lambda *_, **options: None)("),
            r"build_model\(\) returned a model that is not compiled\. Call model\.compile\(optimizer=\.\.\., loss",
        ),
        (
            (TRAINING, "return iter([])"),
            r"returned list_iterator, but it must return .* such as a keras\.utils\.PyDa",
        ),
        ((TRAINING, "return []"), r"build_training_data_loader\(\) returned a loader of no batches"),
        (
            (TRAINING, "return points(100, 1)"),
            r"returned a tuple of arrays, but must return batches\. Write tf\.data",
        ),
        (
            (TRAINING, "return [{'a': 1, 'b': 2}]"),
            r"a batch of the training data loader is a dict with a, b, but Keras takes \(x, y\) or .* keras_dataset\(",
        ),
        ((VALIDATION, "return [(1, 2, 3, 4)]"), r"a batch of the validation data loader is 4 parts, but"),
        (
            (VALIDATION, "return [points(1, 1)[0]]"),
            r"a batch of the validation data loader is a ndarray, but",
        ),
        (
            (TRAINING, 'return [(np.array(["a", "b"]), np.array([0, 1]))]'),
            r"x of a batch of the training data loader is an array of <U1, but Keras takes arrays of numbers \(n",
        ),
        (
            (TRAINING, "return [(points(2, 1)[0], [0, 1])]"),
            r"y of a batch of the training data loader is int, but Keras takes arrays .* numpy\.array\(",
        ),
        (
            (TRAINING, "return [(points(2, 1)[0], np.array([0, 7]))]"),
            r"sparse_categorical_crossentropy takes class numbers from 0 to the number of outputs - 1",
        ),
        (
            (VALIDATION, "return type('Endless', (keras.utils.PyDataset,), {})()"),
            r"returned a Endless without an end, but each validation reads all of it\. .* define __len__",
        ),
        (
            ("class Trial(KerasTrial)", "class Trial(KerasTrial.__base__)"),
            r"is a class, but neither a TorchTrial nor a KerasTrial\. Write class Trial\(hopyard\.experiment\.Torch",
        ),
        (
            ("def build_model(self)", "def build_model(self, width)"),
            r"\.build_model\(self, width\) takes other arguments than a KerasTrial .* Write def build_model\(self\)\.",
        ),
        (
            ("def build_validation_data_loader(self)", "def build_validation_data_loader()"),
            r"\.build_validation_data_loader\(\) takes other .* Write def build_validation_data_loader\(self\)\.",
        ),
        (
            (
                "    def build_model(self)",
                "    def keras_callbacks(self, model):\n        return []\n\n    def build_model(self)",
            ),
            r"Trial\.keras_callbacks\(self, model\) takes other arguments .* Write def keras_callbacks\(self\)\.",
        ),
    ],
)
def test_what_a_trial_class_does_wrong_is_named(
    change: tuple[str, str], message: str, definition: Definition, experiment: Experiment
) -> None:
    assert change[0] in TRIAL
    with pytest.raises(TrialError, match=message):
        experiment(definition(TRIAL.replace(*change, 1)))
