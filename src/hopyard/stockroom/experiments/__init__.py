"""Experiments: plain values, and runs with what they were given, logged and left.

Rules:

* **A value** comes back with its type: True is a bool, 1.0 a float, a tuple a tuple, NaN the same NaN.
* **A run** is stored when it ends, however it ends, and every 30 seconds while it logs; a run whose process was killed
  stays as it was last stored, with the status ``running``. Full parts of a series are stored once.
* **Links** note what a model or column was when it was linked, so a later change does not change what a run used.
* **An artifact** is a copy; the file may be changed afterwards.
"""

from hopyard.stockroom.experiments.read import RunView
from hopyard.stockroom.experiments.run import StockRun
from hopyard.stockroom.experiments.shelf import ExperimentShelf
from hopyard.stockroom.experiments.values import reached_of_value

__all__ = ["ExperimentShelf", "RunView", "StockRun", "reached_of_value"]
