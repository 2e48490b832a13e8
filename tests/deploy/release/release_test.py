"""Products of tools/release except wheels and images: notes, the chart, bills of wheels."""

import hashlib
import io
import json
import pathlib
import tarfile
import tempfile
import unittest
import zipfile

from deploy.release import chart, notes, wheel_bill

METADATA = """Metadata-Version: 2.1
Name: some-wheel
Version: 1.2.3
Requires-Dist: numpy>=1.21
Requires-Dist: grpcio>=1.49.1; python_version < "3.12"
Requires-Dist: grpcio>=1.66.2; python_version >= "3.13"
"""
LIBRARY = {"name": "libz1", "version": "1:1.3", "purl": "pkg:deb/debian/libz1@1%3A1.3"}
IMAGE = {
    "packages": [{"SPDXID": "SPDXRef-header", "name": "header"}, {"SPDXID": "SPDXRef-libc6"}],
    "relationships": [
        {"relationshipType": "STATIC_LINK", "relatedSpdxElement": "SPDXRef-header"},
        {"relationshipType": "CONTAINS", "relatedSpdxElement": "SPDXRef-libc6"},
    ],
}


def packed(files, mtime, owner):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(text), mtime, owner
            archive.addfile(member, io.BytesIO(text))
    return out.getvalue()


class NotesTest(unittest.TestCase):
    CHANGELOG = "# Changelog\n\n## 0.2.0\n\n- new\n\n## 0.1.0 - 2026-01-01\n\n- old\n"

    def test_the_section_of_the_version(self):
        self.assertEqual(notes.notes(self.CHANGELOG, "0.2.0"), "- new\n")
        self.assertEqual(notes.notes(self.CHANGELOG, "0.1.0"), "- old\n")
        with self.assertRaises(SystemExit):
            notes.notes(self.CHANGELOG, "0.3.0")


class ChartTest(unittest.TestCase):
    def test_neither_time_nor_owner_nor_order_matters(self):
        files = [("chart/Chart.yaml", b"name: chart"), ("chart/a.yaml", b"a: 1")]
        repacked = chart.repacked(packed(files, 5, "somebody"), 1000)
        self.assertEqual(repacked, chart.repacked(packed(files[::-1], 7, "another"), 1000))
        with tarfile.open(fileobj=io.BytesIO(repacked)) as archive:
            read = {member.name: archive.extractfile(member).read() for member in archive}
            self.assertEqual({member.mtime for member in archive}, {1000})
        self.assertEqual(read, dict(files))


class WheelBillTest(unittest.TestCase):
    def bill_of(self, files):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "some_wheel-1.2.3-py3-none-any.whl")
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr("some_wheel-1.2.3.dist-info/METADATA", METADATA)
                for name, text in files.items():
                    wheel.writestr(name, text)
            checksum = hashlib.sha256(path.read_bytes()).hexdigest()
            bill = wheel_bill.bill(path, IMAGE)
        (own, *others) = bill["packages"]
        self.assertEqual((own["name"], own["versionInfo"]), ("some-wheel", "1.2.3"))
        self.assertEqual(own["checksums"][0]["checksumValue"], checksum)
        identifiers = [package["SPDXID"] for package in bill["packages"]]
        self.assertEqual(len(set(identifiers)), len(identifiers))
        related = [each["relatedSpdxElement"] for each in bill["relationships"]]
        self.assertEqual(related, identifiers)
        kinds = [each["relationshipType"] for each in bill["relationships"][1:]]
        return [(kind, other["name"]) for kind, other in zip(kinds, others)]

    NEEDS = [("DEPENDS_ON", "numpy"), ("DEPENDS_ON", "grpcio"), ("DEPENDS_ON", "grpcio")]

    def test_of_python_alone(self):
        self.assertEqual(self.bill_of({"sis/__init__.py": ""}), self.NEEDS)

    def test_of_binaries_with_libraries(self):
        own = {"name": "some-wheel", "version": "1.2.3", "purl": "pkg:pypi/some_wheel@1.2.3"}
        files = {
            "some_wheel/bin/program": "",
            "some_wheel.libs/libz-12345678.so.1": "",
            "some_wheel-1.2.3.dist-info/sboms/auditwheel.cdx.json": json.dumps(
                {"components": [own, LIBRARY, LIBRARY]}
            ),
        }
        within = [("CONTAINS", "libz1"), ("STATIC_LINK", "header")]
        self.assertEqual(self.bill_of(files), within + self.NEEDS)

    def test_libraries_that_nothing_tells_of_are_refused(self):
        with self.assertRaises(ValueError):
            self.bill_of({"some_wheel.libs/libz-12345678.so.1": ""})


if __name__ == "__main__":
    unittest.main()
