"""A client in an actor of Ray, which verl's workers are."""

import unittest

import ray
from started_ray import start_ray

import sis
from server.testing.live_server import LiveServer


class VerlRayTest(unittest.TestCase):
    def test_an_actor_makes_its_own_client(self):
        # Ray sends a class that a function declares by value: workers need not find this module.
        class Worker:
            def __init__(self, address):
                self.client = sis.Client(address, timeout=60)

            def append(self, run):
                return sis.append_many(self.client, run, [sis.Seal("sequence", 0)], sampling=sis.Sampling("raw"))

        server = LiveServer()
        self.addCleanup(server.close)
        if not ray.is_initialized():
            start_ray(num_cpus=1)
            self.addCleanup(ray.shutdown)
        with sis.Client(server.address, timeout=60) as client:
            run = client.create_run("run", seed=1, vocabulary_size=8, top_k=2)
            worker = ray.remote(num_cpus=0)(Worker).remote(server.address)
            self.assertEqual(ray.get(worker.append.remote(run), timeout=120), {("sequence", 0): 0})
            self.assertEqual(client.get_run("run").sealed_sequences, 1)
            with self.assertRaisesRegex(TypeError, "make one there"):
                worker.append.remote(client)


if __name__ == "__main__":
    unittest.main()
