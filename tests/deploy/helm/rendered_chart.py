"""What the chart renders, of values that show all of it."""

import yaml

from deploy.helm import render

# Besides the examples: the defaults, with the choice that they leave to whoever installs the chart,
# and everything that is optional.
INSECURE = {"security": {"insecure": True}}
VALUES = {
    "defaults": INSECURE,
    "everything": {
        "image": {"digest": "sha256:" + "a" * 64},
        "imagePullSecrets": ["registry"],
        "cpu": {"cores": 4, "limited": True},
        "store": {"kind": "rocksdb", "rocksdb": {"sync": True, "storageClass": "fast"}},
        "flags": {"append_patience": "30s", "steps_kept": "256"},
        "security": {
            "tlsSecret": "tls",
            "identitiesSecret": "identities",
            "clientCertificates": True,
            "certManager": {"enabled": True, "issuer": "own"},
        },
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "high",
        "networkPolicy": {"clients": [{"podSelector": {}}], "monitors": [{"podSelector": {}}]},
        "podMonitor": {"enabled": True},
        "prometheusRules": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "proxied": {
        "form": "fleet",
        "security": {"tlsSecret": "tls", "identitiesSecret": "identities"},
        "proxy": {"enabled": True, "cores": 2},
    },
    **{path.stem: yaml.safe_load(path.read_text()) for path in render.examples()},
}


def documents(values):
    for template, text in render.render(values).items():
        if template.endswith(".yaml"):
            yield from filter(None, yaml.safe_load_all(text))
