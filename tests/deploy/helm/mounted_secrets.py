"""The Secrets that values name, as folders of a folder that stands for /etc/sis."""

import pathlib

from server.testing import certificates

TOKEN = "a-token-that-nobody-guesses"


class MountedSecrets:
    """`tls` of the Secret that security.tlsSecret names, for 127.0.0.1, `identities` with TOKEN for alice, a
    trainer, and `client` of a client, who is carol by its certificate."""

    def __init__(self, folder):
        self.folder = folder
        self._authority = certificates.Authority(folder, "authority")
        self.ca = self._authority.path
        for name in ("tls", "identities", "client"):
            pathlib.Path(folder, name).mkdir()
        for name in ("tls", "client"):
            pathlib.Path(folder, name, "ca.crt").write_bytes(pathlib.Path(self.ca).read_bytes())
        self.renew(certificates.LASTS)
        self._issue("carol", "client")
        pathlib.Path(folder, "identities", "identities").write_text(f"token {TOKEN} alice trainer\n")

    def renew(self, lasts):
        """Writes a certificate and a key that are new, as who looks after the Secret does."""
        self._issue("localhost", "tls", lasts)

    def _issue(self, name, folder, lasts=certificates.LASTS):
        certificate, key = self._authority.issue(name, folder, lasts)
        for path, file in ((key, "tls.key"), (certificate, "tls.crt")):
            pathlib.Path(path).rename(pathlib.Path(self.folder, folder, file))
