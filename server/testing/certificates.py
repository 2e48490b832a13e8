"""Certificates for tests."""

import datetime
import ipaddress
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LASTS = datetime.timedelta(hours=1)


class Authority:
    """An authority that signs certificates and writes them to files of a folder.

    `path` is its own certificate. The certificates conform to RFC 5280, which Python 3.13 checks.
    """

    def __init__(self, folder, name):
        self._folder = pathlib.Path(folder)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        own = self._signed(
            self._name,
            self._key,
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_signs_certificates(), True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
        )
        self.path = self._write(f"{name}.pem", own.public_bytes(serialization.Encoding.PEM))

    def issue(self, name, file, ends=LASTS, uri=None):
        """Returns the paths of a new certificate and its key.

        The certificate is for `name` and 127.0.0.1, or instead for `uri`. An empty `name` means no common
        name. `ends` is the time until expiry, a timedelta.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        if uri is None:
            names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        else:
            names = [x509.UniformResourceIdentifier(uri)]
        alternative = (x509.SubjectAlternativeName(names), not name)  # critical without a common name
        authority = (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        certificate = self._signed(_named(name), key, alternative, authority, ends=ends)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        # The certificate is written last. Until then the two don't match, and a server keeps its files.
        key_path = self._write(f"{file}.key", text)
        return self._write(f"{file}.pem", certificate.public_bytes(serialization.Encoding.PEM)), key_path

    def _write(self, name, text):
        path = self._folder / name
        new = path.with_suffix(".new")
        new.write_bytes(text)
        new.rename(path)
        return str(path)

    def _signed(self, name, key, *extensions, ends=LASTS):
        """`extensions`: each with whether it is critical."""
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .issuer_name(self._name)
            .subject_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=2))
            .not_valid_after(now + ends)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256())


def _signs_certificates():
    allowed = {"key_cert_sign", "crl_sign"}
    names = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    names += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    return x509.KeyUsage(**{name: name in allowed for name in names})


def _named(name):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else [])
