"""The process in which the engine's arrays lie."""

import os

import ray
import torch
import transfer_queue
from tensordict import TensorDict

import sis
from tests.bench.trainer_path.batch import RECORDED, Batch


@ray.remote(num_cpus=0)
class Worker:
    """Hands a batch of this shape over, in the way that is asked for."""

    def __init__(self, shape, threads):
        torch.set_num_threads(threads)
        transfer_queue.init()
        self._batch = Batch(*shape)
        # By address and run.
        self._streams = {}

    def process_id(self):
        return os.getpid()

    def put_in_object_store(self):
        """References to the arrays, by name."""
        return {name: ray.put(array) for name, array in self._batch.recorded.items()}

    def put_in_transfer_queue(self, names):
        columns = {name: torch.from_numpy(array) for name, array in self._batch.recorded.items()}
        transfer_queue.kv_batch_put(names, "train", TensorDict(columns, batch_size=len(names)))

    def append(self, address, run_id, names):
        """Appends to a stream that stays open, as recorders do."""
        if (address, run_id) not in self._streams:
            client = sis.Client(address)
            run = client.get_run(run_id).run
            self._streams[address, run_id] = client.append(run, sampling=sis.Sampling("raw"), worker="worker")
        stream = self._streams[address, run_id]
        arrays = self._batch.recorded
        stream.append_many(
            sis.Block(name, 0, 0, **{column: arrays[column][row] for column in RECORDED})
            for row, name in enumerate(names)
        )
        stream.flush()
