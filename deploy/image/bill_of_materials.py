"""Says what an image holds, as SPDX 2.3 in JSON: its Debian packages, our files, and what was compiled
into them. tools/image calls it."""

import argparse
import datetime
import email.parser
import hashlib
import json
import os
import pathlib
import urllib.parse


def package(name, version, *, supplier="NOASSERTION", purl=None, checksum=None):
    """A package of SPDX. Licences are NOASSERTION: Debian's packages have them in files, which lie
    in the image."""
    described = {
        "SPDXID": "SPDXRef-" + name.replace("+", ".plus").replace("_", "-"),
        "name": name,
        "versionInfo": version,
        "supplier": supplier,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    if purl:
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        described["externalRefs"] = [reference]
    if checksum:
        described["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    return described


def debian_package(control):
    """control: the text of a package's control file."""
    fields = email.parser.Parser().parsestr(control)
    version = urllib.parse.quote(fields["Version"])
    purl = f"pkg:deb/debian/{urllib.parse.quote(fields['Package'])}@{version}?arch={fields['Architecture']}"
    return package(fields["Package"], fields["Version"], supplier=f"Organization: {fields['Maintainer']}", purl=purl)


def document(name, packages, relationships, made):
    """relationships: (identifier, kind, package) each. made: a time, as SPDX writes it."""
    contents = hashlib.sha256(json.dumps(packages).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://example.org/spdx/{name}-{contents}",
        "creationInfo": {"created": made, "creators": ["Tool: deploy/image/bill_of_materials.py"]},
        "packages": packages,
        "relationships": [
            {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": other["SPDXID"]}
            for element, kind, other in relationships
        ],
    }


def created():
    """The time of the commit, where that is said, or now."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.datetime.now().timestamp())
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def bill(name, root, files, version, compiled_in):
    """Returns the bill of an image or a wheel.

    root: the image's files of Debian, with a control file per package in var/lib/dpkg/status.d.
    files: paths of our files, the binary or the wheel. compiled_in: NAME=VERSION of third-party code in them."""
    own = [package(name, version)]
    own += [package(path.name, version, checksum=hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    within = [package(*part.split("=", 1)) for part in compiled_in]
    controls = sorted((root / "var/lib/dpkg/status.d").iterdir())
    debian = [debian_package(control.read_text()) for control in controls]
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", own[0])]
    relationships += [(own[0]["SPDXID"], "CONTAINS", part) for part in own[1:] + debian]
    relationships += [(own[0]["SPDXID"], "STATIC_LINK", part) for part in within]
    return document(f"{name}-{version}", own + within + debian, relationships, created())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="the image's")
    parser.add_argument("--root", type=pathlib.Path, required=True, help="folder with the image's files")
    parser.add_argument("--version", required=True)
    parser.add_argument("--compiled-in", metavar="NAME=VERSION", action="append", default=[])
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    made = bill(arguments.name, arguments.root, arguments.files, arguments.version, arguments.compiled_in)
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
