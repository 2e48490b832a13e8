"""Certificates for tests."""

import datetime
import ipaddress
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LASTS = datetime.timedelta(hours=1)


class Authority:
    """Signs certificates, and writes them as files of a folder. `path` is its own."""

    def __init__(self, folder, name):
        self._folder = pathlib.Path(folder)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        own = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.path = self._write(f"{name}.pem", own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name, file, ends=LASTS, uri=None):
        """The paths of a certificate for this name, and 127.0.0.1, and of its key; with `uri` for
        that in the place of both, and no common name where `name` is empty. `ends`: from now, a
        timedelta."""
        key = ec.generate_private_key(ec.SECP256R1())
        if uri is None:
            names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        else:
            names = [x509.UniformResourceIdentifier(uri)]
        certificate = self._signed(_named(name), key, x509.SubjectAlternativeName(names), ends)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        # The certificate last: until then the two do not match, and a server keeps what it has.
        key_path = self._write(f"{file}.key", text)
        return self._write(f"{file}.pem", certificate.public_bytes(serialization.Encoding.PEM)), key_path

    def _write(self, name, text):
        path = self._folder / name
        new = path.with_suffix(".new")
        new.write_bytes(text)
        new.rename(path)
        return str(path)

    def _signed(self, name, key, extension, ends=LASTS):
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .issuer_name(self._name)
            .subject_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=2))
            .not_valid_after(now + ends)
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _named(name):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else [])
