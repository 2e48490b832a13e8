"""The example of proto/sis/v1/append.proto, sent as it stands there."""

import pathlib
import re
import unittest
from typing import List

import grpc

from tests.integration.live_server import LiveServerTest

PROTO = pathlib.Path("proto/sis/v1/append.proto")
BYTES = re.compile(r"//\s+((?:[0-9a-f]{2} )*(?:\.\.\. )?[0-9a-f]{2})(?:\s{2,}|$)")


def messages() -> List[bytes]:
    """The bytes of the two requests and of the answer. "00 ... 00" are the 24 zeros of a block's header."""
    comment = PROTO.read_text().partition("syntax =")[0]
    found = []
    for size, text in re.findall(r"message(?:, | of )(\d+) bytes[:.](.*?)(?=message(?:, | of )|$)", comment, re.DOTALL):
        lines = [line[1] for line in map(BYTES.match, text.splitlines()) if line]
        found.append(b"".join(bytes(24) if "..." in line else bytes.fromhex(line) for line in lines))
        assert len(found[-1]) == int(size), text
    return found


class AppendExampleTest(LiveServerTest):
    def test_the_server_answers_as_the_example_says(self) -> None:
        header, batch, answer = messages()
        run = self.client.create_run("first", seed=1, vocabulary_size=1000, top_k=3)
        with grpc.insecure_channel(self.server.address) as channel:
            append = channel.stream_stream("/sis.v1.RatioService/Append")
            self.assertEqual(list(append(iter([header, batch]), timeout=30)), [answer])
        records = self.client.fetch_top_k(run, ["r-0"])
        self.assertEqual(records.present.tolist(), [False] * 7 + [True, True])
        self.assertEqual(records.sampled_ids[7:].tolist(), [700, 5])
        self.assertEqual(records.sampled_log_probs[7:].tolist(), [-2, -9])
        self.assertEqual(records.used_ids.tolist(), [12, 700])


if __name__ == "__main__":
    unittest.main()
