"""A Ray cluster within a Spark cluster, and a search on it; see docs/ray.md. Start it with spark-submit.

The Spark cluster gives each Ray node one task of so many CPUs: spark.task.cpus, or num_cpus_worker_node, must fit its
executors.
"""

from pathlib import Path
from runpy import run_path

from pyspark.sql import SparkSession
from ray.util.spark import setup_ray_cluster, shutdown_ray_cluster

spark = SparkSession.builder.appName("hopyard").getOrCreate()
setup_ray_cluster(max_worker_nodes=4, num_cpus_worker_node=4)  # sets RAY_ADDRESS
try:
    run_path(str(Path(__file__).parent / "slurm" / "search.py"))  # any script with RayBackend()
finally:
    shutdown_ray_cluster()
