import pathlib
import tempfile
import unittest
import unittest.mock

from sis import _credentials

ADDRESSES = "server/auth/addresses.txt"


class CredentialsTest(unittest.TestCase):
    def test_it_recognizes_local_addresses(self):
        kinds = set()
        for line in pathlib.Path(ADDRESSES).read_text(encoding="ascii").splitlines():
            if line.startswith("#"):
                continue
            kind, address = line.split()
            kinds.add(kind)
            self.assertEqual(_credentials.is_unix_socket(address), kind == "socket", address)
            self.assertEqual(_credentials.is_local(address), kind != "elsewhere", address)
        self.assertEqual(kinds, {"socket", "loopback", "elsewhere"})
        self.assertFalse(_credentials.is_local(""))

    def test_a_file_without_a_token_is_refused_and_changes_nothing_while_it_is_replaced(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(_credentials, "_TOKEN_AGE", 0.0):
            path = pathlib.Path(folder) / "token"
            told = _credentials.Credentials(token_file=str(path))
            with self.assertRaises(FileNotFoundError):
                told.channel("localhost:1", [])
            torn = [b"", b"\n", b"caf\xc3\xa9" * 8, b"\xff", b"a\x00b"]
            for text in torn:
                path.write_bytes(text)
                with self.assertRaisesRegex(ValueError, f"{path} holds no token"):
                    told.channel("localhost:1", [])
            path.write_bytes(b"first\n")
            file = _credentials._TokenFile(str(path))
            for text in torn:
                path.write_bytes(text)
                self.assertEqual(file.token(), "first", text)
            path.unlink()
            self.assertEqual(file.token(), "first")
            path.write_bytes(b"second\n")
            self.assertEqual(file.token(), "second")


if __name__ == "__main__":
    unittest.main()
