"""The Secrets that values name, as folders of a folder that stands for /etc/sis."""

import pathlib

from server.testing import certificates

TOKEN = "a-token-that-nobody-guesses"


class MountedSecrets:
    """`tls` of the Secret that security.tlsSecret names, for 127.0.0.1, and `identities` with TOKEN for
    alice, a trainer."""

    def __init__(self, folder):
        self.folder = folder
        self._authority = certificates.Authority(folder, "authority")
        self.ca = self._authority.path
        for name in ("tls", "identities"):
            pathlib.Path(folder, name).mkdir()
        self.renew(certificates.LASTS)
        pathlib.Path(folder, "tls", "ca.crt").write_bytes(pathlib.Path(self.ca).read_bytes())
        pathlib.Path(folder, "identities", "identities").write_text(f"token {TOKEN} alice trainer\n")

    def renew(self, lasts):
        """Writes a certificate and a key that are new, as who looks after the Secret does."""
        certificate, key = self._authority.issue("localhost", "server", lasts)
        for path, name in ((key, "tls.key"), (certificate, "tls.crt")):
            pathlib.Path(path).rename(pathlib.Path(self.folder, "tls", name))

    def variables(self, name):
        """What the pod of a client has in its environment that shows a certificate of this name."""
        certificate, key = self._authority.issue(name, name)
        return {"SIS_CA_FILE": self.ca, "SIS_CERTIFICATE_FILE": certificate, "SIS_KEY_FILE": key}
