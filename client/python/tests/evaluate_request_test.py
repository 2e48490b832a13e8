"""What is sent is what protobuf would send, whatever the arrays are."""

import random
import unittest

import numpy as np

from sis.evaluate.request import EvaluateRequest, in_place
from sis.v1 import ratio_service_pb2 as pb

FORMS = {
    "gathered": ("log_probs", "sampled_log_probs", "counts"),
    "reduced": ("sampled_log_probs", "log_envelopes", "covered_masses"),
}


class EvaluateRequestTest(unittest.TestCase):
    def test_it_is_read_as_the_message(self):
        generator = random.Random(3)
        for form, names in FORMS.items():
            for _ in range(50):
                message = pb.EvaluateRequest(draw=generator.getrandbits(64), mask=b"\1\0")
                message.run.run_id = "r"
                message.slices.add(length=3)
                # Sizes whose varints have one byte to four, and none.
                arrays = {
                    name: generator.randbytes(generator.choice((0, 1, 127, 128, 16384, 3_000_000)))
                    for name in generator.sample(names, generator.randint(0, len(names)))
                }
                read = pb.EvaluateRequest.FromString(EvaluateRequest(message, form, arrays).serialize())
                whole = pb.EvaluateRequest.FromString(message.SerializeToString())
                getattr(whole, form).SetInParent()
                for name, values in arrays.items():
                    setattr(getattr(whole, form), name, values)
                self.assertEqual(read, whole)
                self.assertEqual(read.WhichOneof("form"), form)
                for name in names:
                    self.assertEqual(getattr(getattr(read, form), name), arrays.get(name, b""))
                self.assertEqual((read.draw, read.mask, read.run.run_id), (message.draw, b"\1\0", "r"))

    def test_a_message_alone_is_sent_as_it_is(self):
        message = pb.EvaluateRequest(draw=4)
        message.reduced.log_envelopes = b"1234"
        request = EvaluateRequest(message)
        self.assertEqual(pb.EvaluateRequest.FromString(request.serialize()), message)

    def test_arrays_stay_in_place(self):
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        view = in_place(array[1:])
        self.assertEqual(bytes(view), array[1:].tobytes())
        self.assertTrue(np.shares_memory(np.frombuffer(view, np.uint8), array))
        self.assertEqual(len(in_place(np.empty((0, 4), np.float32))), 0)


if __name__ == "__main__":
    unittest.main()
