"""The quick start of Cerebro's documentation, with Hopyard: hyperparameters of a Keras network on a Spark DataFrame.

    pip install 'hopyard[spark,tensorflow,search]'           # and Java 17 or newer
    python quickstart.py --models 30 --epochs 10
    spark-submit --master spark://host:7077 quickstart.py ...    # on a cluster that is there

What is below the line is the snippet of that documentation. What changed: ``cerebro`` is ``hopyard``, and Keras 3 says
``learning_rate`` instead of ``lr``; sizes and folders are arguments.
"""

# ruff: noqa: E402, RET504
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--models", type=int, default=30)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--workers", type=int, help="executors to use; default: all")
parser.add_argument(
    "--folder", default="experiments/quickstart", help="of the store, logs and the checkpoint"
)
arguments = parser.parse_args()
folder = arguments.folder

# ---------------------------------------------------------------------------------------------------------------------

import numpy as np
import tensorflow as tf
from pyspark.sql import SparkSession

from hopyard.backend import SparkBackend
from hopyard.keras import SparkEstimator

# data storage for intermediate data and model artifacts
from hopyard.storage import LocalStore

# Model selection methods, and functions for specifying the search space
from hopyard.tune import HyperOpt, hp_choice, hp_quniform

spark = SparkSession.builder.appName("Cerebro Example").getOrCreate()


def images(count: int):
    """Rows like those of Spark's ``sample_libsvm_data.txt``: zeros and ones, 692 pixels as sparse vectors."""
    from pyspark.ml.linalg import Vectors

    random = np.random.default_rng(0)
    for number in range(count):
        pixels = np.sort(random.choice(692, 120, replace=False))
        label = float(number % 2)
        values = random.integers(1, 256, 120) / 255 + label * (pixels < 300)
        yield label, Vectors.sparse(692, pixels.tolist(), values.tolist())


train_df, test_df = spark.createDataFrame(list(images(100)), ["label", "features"]).randomSplit(
    [0.8, 0.2], seed=1
)

backend = SparkBackend(spark_context=spark.sparkContext, num_workers=arguments.workers)
store = LocalStore(prefix_path=folder)


# Define estimator generating function.
# Input: Dictionary containing parameter values
# Output: SparkEstimator
def estimator_gen_fn(params):
    model = tf.keras.models.Sequential()
    model.add(tf.keras.layers.Dense(100, input_dim=692))
    model.add(tf.keras.layers.Dense(1, input_dim=100))
    model.add(tf.keras.layers.Activation("sigmoid"))

    optimizer = tf.keras.optimizers.Adam(learning_rate=params["lr"])
    loss = "binary_crossentropy"

    estimator = SparkEstimator(
        model=model, optimizer=optimizer, loss=loss, metrics=["acc"], batch_size=params["batch_size"]
    )

    return estimator


# Define dictionary containing the parameter search space
search_space = {"lr": hp_choice([0.01, 0.001, 0.0001]), "batch_size": hp_quniform(16, 256, 16)}

# Instantiate model selection object
model_selection = HyperOpt(
    backend=backend,
    store=store,
    estimator_gen_fn=estimator_gen_fn,
    search_space=search_space,
    num_models=arguments.models,
    num_epochs=arguments.epochs,
    validation=0.25,
    evaluation_metric="loss",
    feature_columns=["features"],
    label_columns=["label"],
    logdir=f"{folder}/logs",
)

# Perform model selection. Returns best model
model = model_selection.fit(train_df)

# Inspect best model training history
model_history = model.get_history()

# Perform inference using the best model and Spark DataFrame
output_df = model.set_output_columns(["label_predicted"]).transform(test_df)
output_df.select("label", "label_predicted").show(n=10)

# Access all models
all_models = model.get_all_models()
all_model_training_history = model.get_all_model_history()

# Convert the best model to Keras and perform inference using numpy data.
keras_model = model.keras()
pred = keras_model.predict([np.ones([1, 692], dtype=np.float32)])
# Save the keras checkpoint file.
ckpt_path = f"{folder}/checkpoint.keras"
keras_model.save(ckpt_path)

# Convert all the model to Keras
all_models_keras = [m.keras() for m in all_models]
