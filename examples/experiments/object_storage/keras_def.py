"""Digits streamed from object storage into Keras: byte ranges of one large object."""

import keras
import numpy as np

from hopyard.experiment import KerasTrial

RECORD = 65  # bytes: 64 pixels and the digit


class Streamed(KerasTrial):
    def build_model(self):
        model = keras.Sequential(
            [
                keras.layers.Input((64,)),
                keras.layers.Dense(self.context.get_hparam("width"), activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(self.context.get_hparam("lr")),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def build_training_data_loader(self):
        return self.load("train")

    def build_validation_data_loader(self):
        return self.load("val")

    def load(self, split):
        url = f"{self.context.get_data_config()['url']}/{split}.bin"
        return self.context.stream(url, decode, record_bytes=RECORD, batch_size=64).as_keras()


def decode(data):
    rows = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return rows[:, :64].astype("float32") / 16, rows[:, 64]
