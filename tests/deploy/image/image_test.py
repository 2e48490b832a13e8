"""tools/image builds an image that holds what it says and nothing else, and that runs under the
strictest settings."""

import hashlib
import json
import os
import pathlib
import re
import sys
import unittest
import urllib.parse

import grpc
import yaml

from tests.deploy import one_step
from tests.deploy.image.built_image import BuiltImageTest, make_image

BINARY = pathlib.Path("server/main/sis_server")
# Which of the images: what the binary was built for.
CUDA = "--cuda" in sys.argv
MAX_MEBIBYTES = 100
# grpc.health.v1.HealthCheckResponse with status SERVING.
SERVING = b"\x08\x01"


class ImageTest(BuiltImageTest):
    options = ["--cuda"] if CUDA else []

    @classmethod
    def environment(cls):
        return {"BINARIES": os.getcwd()}

    def test_it_is_the_version_in_the_chart(self):
        chart = pathlib.Path("deploy/helm/sis-ratio-service")
        version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
        repository = yaml.safe_load((chart / "values.yaml").read_text())["image"]["repository"]
        self.assertIn(f"docker.io/library/{repository}:{version}{'-cuda' if CUDA else ''}", self.names)

    def test_its_labels_and_user(self):
        labels = self.configuration["Labels"]
        for name in ("title", "description", "version", "revision", "licenses"):
            self.assertRegex(labels[f"org.opencontainers.image.{name}"], r"^[^$]+$")
        self.assertIn(f"sis-ratio-service:{labels['org.opencontainers.image.version']}", self.names[0])
        self.assertEqual(self.configuration["User"], "65532:65532")
        program, file = self.configuration["Entrypoint"]
        self.assertEqual(program, "/usr/bin/sis_server")
        self.assertTrue((self.root / file.removeprefix("--flagfile=/")).is_file())
        self.assertEqual(set(self.configuration["ExposedPorts"]), {"50051/tcp", "9464/tcp"})

    def test_nothing_can_be_run_but_the_service(self):
        """No compiler, no shell, no package manager; nothing that gives privileges, or is written
        to by others."""
        self.assertEqual(self.programs(), {"usr/bin/sis_server"})

    def test_kernels_for_gpus_are_inside_if_it_is_said(self):
        self.assertEqual(b".nv_fatbin" in (self.root / "usr/bin/sis_server").read_bytes(), CUDA)
        versions = {package["name"]: package["versionInfo"] for package in self.bill["packages"]}
        self.assertEqual("cuda-cudart" in versions, CUDA)
        if CUDA:
            self.assertRegex(versions["cuda-cudart"], r"^\d+\.\d+\.\d+$")
        # The variable makes a container runtime mount the devices.
        self.assertEqual("NVIDIA_VISIBLE_DEVICES=all" in self.configuration["Env"], CUDA)

    def test_binaries_of_the_other_variant_are_refused(self):
        folder = self.folder / "refused"
        refused = make_image([] if CUDA else ["--cuda"], folder, **self.environment())
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("is of the other variant", refused.stderr)
        self.assertEqual(list(folder.iterdir()), [])

    def test_it_is_small(self):
        self.assertLess(self.mebibytes(), MAX_MEBIBYTES)

    def test_the_bill_of_materials_is_of_what_is_inside(self):
        within = self.root / "usr/share/doc/sis-ratio-service/bill_of_materials.spdx.json"
        self.assertEqual(json.loads(within.read_text()), self.bill)
        self.assertEqual(self.bill["spdxVersion"], "SPDX-2.3")
        packages = {package["name"]: package for package in self.bill["packages"]}
        self.assertEqual(len(packages), len(self.bill["packages"]))
        (checksum,) = packages["sis_server"]["checksums"]
        for copy in (BINARY, self.root / "usr/bin/sis_server"):
            self.assertEqual(hashlib.sha256(copy.read_bytes()).hexdigest(), checksum["checksumValue"])
        # All comes with its licence.
        debian = {name for name, package in packages.items() if "externalRefs" in package}
        self.assertTrue((self.root / "usr/share/doc/sis-ratio-service/copyright").exists())
        for name in debian:
            (reference,) = packages[name]["externalRefs"]
            locator = urllib.parse.unquote(reference["referenceLocator"])
            self.assertIn(f"/{name}@{packages[name]['versionInfo']}?", locator)
            self.assertTrue((self.root / "usr/share/doc" / name / "copyright").exists(), name)
        self.assertEqual(debian, {path.name for path in (self.root / "var/lib/dpkg/status.d").iterdir()})
        self.assertIn("libc6", debian)
        identifiers = {package["SPDXID"] for package in self.bill["packages"]}
        related = {relationship["relatedSpdxElement"] for relationship in self.bill["relationships"]}
        self.assertEqual(related, identifiers)
        for identifier in identifiers:
            self.assertRegex(identifier, r"^SPDXRef-[A-Za-z0-9.-]+$")

    def checked(self, *flags):
        """Exit status, output and errors of a server that only says what it would do."""
        server = self.image_process(*self.configuration["Entrypoint"], "--check", *flags)
        output, errors = server.communicate(timeout=30)
        if server.returncode == 77:
            self.skipTest(errors.strip())
        return server.returncode, output, errors

    def test_what_it_exposes_can_be_reached_if_somebody_has_said_who_may(self):
        """A container runtime's -p leads to an interface that is not loopback. Without identities
        and without --insecure, the server refuses to start with an error."""
        status, _, errors = self.checked()
        self.assertEqual(status, 1)
        self.assertIn("--insecure", errors)
        self.assertIn("--identities", errors)
        status, output, errors = self.checked("--insecure")
        self.assertEqual(status, 0, errors)
        listens = re.findall(r"^--(?:listen|admin)=(\S+)", output, re.MULTILINE)
        exposed = [port.removesuffix("/tcp") for port in self.configuration["ExposedPorts"]]
        self.assertEqual(sorted(listens), sorted(f"0.0.0.0:{port}" for port in exposed))
        # Whatever else is said goes before it.
        status, output, errors = self.checked("--listen=127.0.0.1:1", "--admin=")
        self.assertEqual(status, 0, errors)
        self.assertRegex(output, r"(?m)^--listen=127\.0\.0\.1:1$")

    def test_it_serves_without_rights_over_a_read_only_root(self):
        server = self.image_process(
            *self.configuration["Entrypoint"],
            "--listen=127.0.0.1:0",
            "--admin=127.0.0.1:0",
            "--cache_bytes=67108864",
            "--store=rocksdb:/var/lib/sis",
        )
        said = {}
        for line in iter(server.stdout.readline, ""):
            if line == "ready\n":
                break
            name, _, value = line.strip().partition(": ")
            said[name] = value
        else:
            errors = server.stderr.read()
            if server.wait() == 77:
                self.skipTest(errors.strip())
            self.fail(errors)
        status = dict(
            line.split(":\t", 1) for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines()
        )
        self.assertEqual(set(status["Uid"].split()), {"65532"})
        self.assertEqual(status["Groups"].strip(), "")
        self.assertEqual({int(status[f"Cap{which}"], 16) for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")}, {0})
        self.assertEqual(status["NoNewPrivs"], "1")
        with open(f"/proc/{server.pid}/mountinfo", encoding="utf-8") as mounts:
            (options,) = (line.split()[5] for line in mounts if line.split()[4] == "/")
        self.assertIn("ro", options.split(","))

        # No driver is inside.
        self.assertIn("(auto, no CUDA device" if CUDA else "(auto, built without CUDA", said["backend"])
        with grpc.insecure_channel(said["grpc"]) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            self.assertEqual(check(b"", timeout=10), SERVING)
        one_step.check_a_step(self, writes=[said["grpc"]], reads=[said["grpc"]])
        probe = self.image_process("/usr/bin/sis_server", f"--probe={said['grpc']}")
        answer, errors = probe.communicate(timeout=30)
        self.assertEqual((probe.returncode, answer), (0, f"{said['grpc']}: serving\n"), errors)
        server.terminate()
        server.communicate(timeout=30)
        self.assertEqual(server.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=[argument for argument in sys.argv if argument != "--cuda"])
