"""Lists the contents and requirements of a wheel, as SPDX 2.3 in JSON: libraries that auditwheel put into
it, compiled-in code (from the image's bill), and packages that pip also installs.

    python3 -m deploy.release.wheel_bill WHEEL BILL_OF_THE_IMAGE >BILL
"""

import email.parser
import hashlib
import json
import pathlib
import re
import sys
import zipfile
from typing import Iterator, List, Tuple

from deploy.image.bill_of_materials import created, document, package

AUDITWHEEL = r".*\.dist-info/sboms/auditwheel\.cdx\.json"


def one(names: List[str], pattern: str) -> str:
    (found,) = [name for name in names if re.fullmatch(pattern, name)]
    return found


def libraries(wheel: zipfile.ZipFile) -> Iterator[dict]:
    """Yields the libraries of Debian's packages, each once."""
    names = wheel.namelist()
    if any(".libs/" in name for name in names):
        components = json.loads(wheel.read(one(names, AUDITWHEEL)))["components"]
        for purl in sorted({part["purl"] for part in components}):
            if not purl.startswith("pkg:pypi/"):
                (part, *_) = [part for part in components if part["purl"] == purl]
                yield package(part["name"], part["version"], purl=purl)


def bill(path: pathlib.Path, image: dict) -> dict:
    with zipfile.ZipFile(path) as wheel:
        text = wheel.read(one(wheel.namelist(), r"[^/]*\.dist-info/METADATA")).decode()
        contained = list(libraries(wheel))
        binary = any("/bin/" in name for name in wheel.namelist())
    metadata = email.parser.Parser().parsestr(text)
    name, version = metadata["Name"], metadata["Version"]
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    own = package(name, version, purl=f"pkg:pypi/{name}@{version}", checksum=checksum)
    related: List[Tuple[str, dict]] = [("CONTAINS", part) for part in contained]
    if binary:
        linked = {
            each["relatedSpdxElement"]
            for each in image["relationships"]
            if each["relationshipType"] == "STATIC_LINK"
        }
        related += [("STATIC_LINK", part) for part in image["packages"] if part["SPDXID"] in linked]
    for number, demand in enumerate(metadata.get_all("Requires-Dist", [])):
        needed = package(re.match(r"[\w.-]+", demand)[0], demand)
        needed["SPDXID"] += f"-{number}"  # one may be demanded in several ways
        related.append(("DEPENDS_ON", needed))
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", own)]
    relationships += [(own["SPDXID"], kind, part) for kind, part in related]
    packages = [own] + [part for _, part in related]
    return document(path.name, packages, relationships, created())


if __name__ == "__main__":
    wheel, image = map(pathlib.Path, sys.argv[1:])
    print(json.dumps(bill(wheel, json.loads(image.read_text())), indent=1))
