import pathlib
import unittest

from sis import credentials

ADDRESSES = "client/addresses/addresses.txt"


class CredentialsTest(unittest.TestCase):
    def test_it_knows_what_is_of_this_machine(self):
        kinds = set()
        for line in pathlib.Path(ADDRESSES).read_text(encoding="ascii").splitlines():
            if line.startswith("#"):
                continue
            kind, address = line.split()
            kinds.add(kind)
            self.assertEqual(credentials.is_unix_socket(address), kind == "socket", address)
            self.assertEqual(credentials.is_local(address), kind != "elsewhere", address)
        self.assertEqual(kinds, {"socket", "loopback", "elsewhere"})
        self.assertFalse(credentials.is_local(""))


if __name__ == "__main__":
    unittest.main()
