"""A cluster of this machine whose settings are its own: those of the user are as they were before, and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.config
from distributed import Client, LocalCluster, Nanny

# for each worker: its tasks have one thread
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# blocks of a chunk's size are used again by the C library, since new pages take longer than reading a chunk does
_KEPT_PAGES = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
# zarr hands chunks to its threads this many at a time: one by one that takes longer than to decompress small ones
_CHUNKS_AT_ONCE = {"ZARR_CODEC_PIPELINE__BATCH_SIZE": "16"}
_ENVIRONMENT = {**_ONE_THREAD, **_KEPT_PAGES, **_CHUNKS_AT_ONCE}
# how often Dask notes what a task is doing, for its dashboard; ten times as often takes a hundredth of the time
_TIME_BETWEEN_NOTES = "100ms"
# a worker that was killed may take long to come back: importing torch on a busy machine does
_SECONDS_TO_COME_BACK = 120
# all workers lost is an error then
_SECONDS_WITHOUT_WORKERS = 240


class OwnClient(Client):
    """The client of a cluster that ends with it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._own = cluster
        super().__init__(cluster)

    def close(self, *arguments: Any, **options: Any) -> None:
        """Close the client, then the cluster."""
        super().close(*arguments, **options)
        self._own.close()


class PatientCluster(LocalCluster):
    """Gives a lost worker the time it takes to come back, and tells when all are lost."""

    def __init__(self, **options: Any) -> None:
        with dask.config.set({"distributed.scheduler.no-workers-timeout": _SECONDS_WITHOUT_WORKERS}):
            super().__init__(worker_class=PreparedWorker, **options)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # Dask reads the setting when a worker is lost
        with dask.config.set({"distributed.deploy.lost-worker-timeout": _SECONDS_TO_COME_BACK}):
            super()._update_worker_status(op, msg)


class PreparedWorker(Nanny):
    """Starts a worker, also one after it, with the environment that tasks want, beside what Dask sets by itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        name = "distributed.nanny.pre-spawn-environ"
        given: Mapping[str, Any] = dask.config.get(name)
        options["config"] = {"distributed.worker.profile.interval": _TIME_BETWEEN_NOTES}
        with dask.config.set({name: {**given, **_ENVIRONMENT}}):
            super().__init__(*arguments, **options)
