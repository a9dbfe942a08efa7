"""Fields of Determined's configurations (0.14 to 0.38) that have no counterpart here, and what to use instead."""

from __future__ import annotations

from hopyard.search.points import Path

_AZURE = "Set the environment variables AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY."
_DEVICES = "Workers are processes of the machine's own, with all its devices. Leave it out."
_IMAGE = "No containers are started: trials run where Hopyard is installed. Install packages there."
_QUEUE = "The queue of the cluster decides: give it to Slurm, Kueue, Ray or Spark."
_STORAGE = (
    "States go to the store that the experiment is created in, a directory or an address such as s3://bucket/prefix. "
    "Name it when you create the experiment."
)
_WARM = "Use `hopyard experiment fork --warm-start`, which begins from the weights of a trial."

ADVICE = {
    "version": "There is one form of configuration. Leave it out.",
    "workspace": "Write labels: [NAME].",
    "project": "Write labels: [NAME].",
    "checkpoint_policy": (
        "Every unit of training ends with a durable state. Write checkpoints: {keep: best} for which of them stay."
    ),
    "checkpoint_storage": _STORAGE,
    "checkpoint_storage.save_experiment_best": "Write checkpoints: {keep: best, keep_n: N}.",
    "checkpoint_storage.save_trial_best": "Write checkpoints: {keep: all}, which keeps the best weights of each trial.",
    "checkpoint_storage.save_trial_latest": "Write checkpoints: {keep: all}, which keeps the last state of each trial.",
    "checkpoint_storage.access_key": "Set the environment variable AWS_ACCESS_KEY_ID.",
    "checkpoint_storage.secret_key": "Set the environment variable AWS_SECRET_ACCESS_KEY.",
    "checkpoint_storage.endpoint_url": "Set the environment variable AWS_ENDPOINT_URL.",
    "checkpoint_storage.connection_string": _AZURE,
    "checkpoint_storage.account_url": _AZURE,
    "checkpoint_storage.credential": _AZURE,
    "debug": "Look at `hopyard experiment logs`.",
    "environment.image": _IMAGE,
    "environment.force_pull_image": _IMAGE,
    "environment.registry_auth": _IMAGE,
    "environment.pod_spec": _IMAGE,
    "environment.add_capabilities": _IMAGE,
    "environment.drop_capabilities": _IMAGE,
    "environment.ports": "Processes listen on ports of the machine itself. Leave it out.",
    "environment.proxy_ports": "Processes listen on ports of the machine itself. Leave it out.",
    "environment.slurm": _QUEUE,
    "bind_mounts.propagation": "Mounts are private to a trial. Leave it out.",
    "log_policies": "A worker that is lost is replaced, and a trial that fails is tried again. Write max_restarts: N.",
    "min_validation_period": (
        "A trial is validated at the end of each epoch, and where its searcher compares it. Leave it out."
    ),
    "min_checkpoint_period": "Write checkpoints: {every: epoch}, or a number of seconds in place of epoch.",
    "perform_initial_validation": "Evaluate the model in the trial's __init__, where you need a first value.",
    "preemption_timeout": "Write grace: SECONDS.",
    "profiling": "Use torch.profiler or the profiler of TensorFlow in the trial's code.",
    "records_per_epoch": (
        "An epoch is one pass over the training data. Where it is another number of records, write max_length: "
        "{records: N}."
    ),
    "reproducibility": "Write seed: N.",
    "resources.max_slots": "Write resources: {workers: N}.",
    "resources.weight": _QUEUE,
    "resources.priority": _QUEUE,
    "resources.resource_pool": _QUEUE,
    "resources.agent_label": _QUEUE,
    "resources.is_single_node": "All processes of a trial are on one machine. Leave it out.",
    "resources.native_parallel": "Write resources: {slots_per_trial: N}.",
    "resources.devices": _DEVICES,
    "resources.shm_size": "Workers are processes of the machine's own, with all its shared memory. Leave it out.",
    "retention_policy": "Logs stay until the experiment is deleted. Use `hopyard experiment delete`.",
    "searcher.max_time": "Write max_length: {batches: N}, {records: N} or {epochs: N}.",
    "searcher.time_metric": "Write max_length: {batches: N}, {records: N} or {epochs: N}.",
    "searcher.source_trial_id": _WARM,
    "searcher.source_checkpoint_uuid": _WARM,
    "searcher.budget": "Write max_trials: N and max_length: {epochs: N}.",
    "searcher.train_stragglers": "No trial waits for others. Leave it out.",
    "searcher.unit": "Write a searcher in Python, which extends hopyard.search.Searcher.",
    "optimizations": "Write it in the trial's code, where the loss and the optimizer are.",
    "optimizations.aggregation_frequency": "Accumulate gradients in train_batch.",
    "optimizations.mixed_precision": "Use torch.autocast, or keras.mixed_precision, in the trial's code.",
    "slurm": "Write it into the script that Slurm runs, which creates the experiment.",
    "pbs": "Write it into the script that the queue runs, which creates the experiment.",
    "integrations": "Read the data where it is, by data and bind_mounts.",
    "security": "Get Kerberos tickets before the experiment is created.",
    "tensorboard_storage": "TensorBoard's files are in the store of the experiment. Leave it out.",
    "data_layer": "Use context.dataset, or context.download and context.stream, which keep a cache on each machine.",
    "internal": "Leave it out.",
}


def advice_for(path: Path) -> str | None:
    """Advice for a field of Determined's, or for one within it; None: the table has neither."""
    names = [step for step in path if isinstance(step, str)]
    prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((ADVICE[prefix] for prefix in prefixes if prefix in ADVICE), None)
