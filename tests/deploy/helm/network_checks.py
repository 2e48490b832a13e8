"""Ports, names and network policies of everything that the chart renders.

Run by chart_test.py, in an environment that has Helm."""

import re
import unittest

from deploy.helm import render
from tests.deploy.helm.rendered_chart import (
    INSECURE, VALUES, containers, documents, forms, is_own, kubernetes_takes, labels, matches, of_kind, pods,
    port_names, selected, selector, server_count,
)  # fmt: skip

NAMESPACE = {"kubernetes.io/metadata.name": render.NAMESPACE}
DNS = {"kubernetes.io/metadata.name": "kube-system"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
CLIENT = {"sis-ratio-service/client": "true"}


def is_peer(peer, pod, namespace):
    """Whether an entry of `from` or `to` means pods with these labels, in a namespace with those."""
    assert peer and set(peer) <= {"podSelector", "namespaceSelector"}, peer
    if "namespaceSelector" in peer:
        return matches(peer["namespaceSelector"], namespace) and matches(peer.get("podSelector", {}), pod)
    return namespace == NAMESPACE and matches(peer["podSelector"], pod)


def allows(policies, direction, pod, namespace):
    """The ports at which policies let somebody in (Ingress), or that they let reach there (Egress).
    None: all, as no policy is about this direction."""
    policies = [policy["spec"] for policy in policies if direction in policy["spec"]["policyTypes"]]
    if not policies:
        return None
    peers = {"Ingress": "from", "Egress": "to"}[direction]
    return {
        port["port"]
        for policy in policies
        for rule in policy.get(direction.lower(), [])
        # Without them a rule would mean everybody, and every port.
        if any(is_peer(peer, pod, namespace) for peer in rule[peers])
        for port in rule["ports"]
    }


def addresses(values):
    """Returns the addresses in the notes after installation: (name, port)."""
    notes = next(text for template, text in render.render(values).items() if template.endswith("NOTES.txt"))
    return re.findall(r"([\w.-]+\.svc):(\d+)", notes)


def pod_names(host, service, objects):
    """Returns the DNS names of the pods of the StatefulSet that this Service governs."""
    for document in of_kind("StatefulSet", objects):
        if document["spec"]["serviceName"] == service["metadata"]["name"]:
            return [f"{document['metadata']['name']}-{i}.{host}" for i in range(server_count(objects))]
    return []


def is_for(pattern, host):
    """Whether a certificate with this DNS name is good for a host: a star stands for one label."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]+"), host) is not None


class NetworkChecks(unittest.TestCase):
    def test_every_probe_asks_a_port_of_its_container(self):
        """And none but readiness whether the server is ready: while its store opens it is not."""
        for form, values, objects in forms():
            with self.subTest(values=form):
                for _, template in pods(objects):
                    for container in containers(template):
                        if not is_own(container):
                            continue  # whose probes are the user's
                        probes = {"readinessProbe", "livenessProbe"}
                        if container["name"] == "server":  # which takes its time to start
                            probes.add("startupProbe")
                        self.assertEqual({name for name in container if name.endswith("Probe")}, probes)
                        ports = {port["name"] for port in container["ports"]}
                        for name in probes:
                            kinds = container[name].keys() & {"httpGet", "tcpSocket"}
                            (asked,) = (container[name][kind] for kind in kinds)
                            self.assertIn(asked["port"], ports)
                            if "path" in asked:
                                # A trainer beside the server starts when the first has succeeded.
                                begins = values.get("form") == "sidecar" and name == "startupProbe"
                                ready = begins or name == "readinessProbe"
                                self.assertEqual(asked["path"], "/readyz" if ready else "/livez")

    def test_services_policies_and_monitors_name_ports_of_the_pods_that_they_are_for(self):
        for name, _, objects in forms():
            with self.subTest(values=name):
                for service in of_kind("Service", objects):
                    (pod,) = selected(service, objects)
                    self.assertLessEqual({port["targetPort"] for port in service["spec"]["ports"]}, port_names(pod))
                for monitor in of_kind("ServiceMonitor", objects):
                    (pod,) = selected(monitor, objects)
                    scraped = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
                    self.assertLessEqual(scraped, port_names(pod))
                    services = of_kind("Service", objects)
                    (found,) = (each for each in services if matches(selector(monitor), each["metadata"]["labels"]))
                    self.assertLessEqual(scraped, {port["name"] for port in found["spec"]["ports"]})
                for policy in of_kind("NetworkPolicy", objects):
                    (pod,) = selected(policy, objects)
                    let_in = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
                    self.assertEqual(let_in, port_names(pod))
                    for rule in policy["spec"].get("egress", []):
                        for _, other in pods(objects):
                            if any(is_peer(peer, labels(other), NAMESPACE) for peer in rule["to"]):
                                self.assertLessEqual({port["port"] for port in rule["ports"]}, port_names(other))

    def test_services_say_whether_their_ports_speak_tls(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                for service in of_kind("Service", objects):
                    for port in service["spec"]["ports"]:
                        if port["name"] != "grpc":
                            continue
                        tls = "tlsSecret" in values["security"]
                        self.assertEqual(port["appProtocol"], "https" if tls else "kubernetes.io/h2c")

    def test_nobody_reaches_a_pod_without_a_policy_that_says_so(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                policies = of_kind("NetworkPolicy", objects)
                chosen = values.get("networkPolicy", {})
                for _, template in pods(objects):
                    own = [policy for policy in policies if template in selected(policy, objects)]
                    ports = port_names(template)
                    everybody = {"peer": labels(template)}

                    def let_in(pod, namespace=NAMESPACE):
                        return allows(own, "Ingress", pod, namespace)

                    for pod in ({}, CLIENT, everybody):
                        self.assertEqual(let_in(pod, {"kubernetes.io/metadata.name": "other"}), set())
                    if "redis" in ports:  # whose only clients are the servers
                        (server,) = (other for _, other in pods(objects) if "admin" in port_names(other))
                        self.assertEqual(let_in(labels(server)), ports)
                        self.assertEqual((let_in({}), let_in(CLIENT), let_in({}, MONITORING)), (set(),) * 3)
                    elif "clients" in chosen:  # in VALUES: everybody of the namespace
                        monitors = set() if "monitors" in chosen else {"admin"}
                        self.assertEqual(let_in({}), ports - monitors)
                        self.assertEqual(let_in({}, MONITORING), monitors)
                    else:
                        self.assertEqual(let_in({}), set())
                        self.assertEqual(let_in(CLIENT), ports - {"admin"})
                        self.assertEqual(let_in({}, MONITORING), {"admin"})

    def test_pods_reach_nothing_but_what_they_work_with(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                policies = of_kind("NetworkPolicy", objects)
                for _, template in pods(objects):
                    own = [policy for policy in policies if template in selected(policy, objects)]

                    def reached(pod, namespace=NAMESPACE):
                        return allows(own, "Egress", pod, namespace)

                    if values.get("form") == "sidecar":  # whose trainer reaches what it likes
                        self.assertIsNone(reached({}))
                        continue
                    for pod in ({}, CLIENT, labels(template)):
                        self.assertEqual(reached(pod), set())
                        self.assertEqual(reached(pod, MONITORING), set())
                    for _, other in pods(objects):
                        if "admin" in port_names(template) and "redis" in port_names(other):
                            self.assertEqual((reached(labels(other)), reached({}, DNS)), ({"redis"}, {53}))

    def test_servers_pods_reach_what_values_add(self):
        collector = {"app": "collector"}
        rules = [{"to": [{"podSelector": {"matchLabels": collector}}], "ports": [{"port": 4317, "protocol": "TCP"}]}]
        plain, added = (
            list(documents({**INSECURE, "networkPolicy": {"egress": egress}})) for egress in ([], rules)
        )
        kubernetes_takes(added)
        ((_, template),) = pods(added)

        def reached(pod, namespace=NAMESPACE, objects=added):
            policies = of_kind("NetworkPolicy", objects)
            own = [policy for policy in policies if template in selected(policy, objects)]
            return allows(own, "Egress", pod, namespace)

        self.assertEqual(reached(collector), {4317})
        self.assertEqual(reached(collector, MONITORING), set())
        self.assertEqual(reached(labels(template)), set())
        self.assertEqual(reached(collector, objects=plain), set())

    def test_the_pod_of_helm_test_may_call_the_servers(self):
        called = 0
        for name, values, objects in forms():
            with self.subTest(values=name):
                policies = of_kind("NetworkPolicy", objects)
                for pod in of_kind("Pod", objects):
                    (server,) = (template for _, template in pods(objects) if "admin" in port_names(template))
                    own = [policy for policy in policies if server in selected(policy, objects)]
                    self.assertIn("grpc", allows(own, "Ingress", labels(pod), NAMESPACE))
                    if "networkPolicy" not in values:  # where everybody may
                        other = {**labels(pod), "app.kubernetes.io/instance": "b"}
                        self.assertEqual(allows(own, "Ingress", other, NAMESPACE), set())
                    called += 1
        self.assertGreater(called, 1)

    def test_who_wants_no_policy_gets_none(self):
        for values in VALUES.values():
            objects = documents({**values, "networkPolicy": {"enabled": False}})
            self.assertEqual(of_kind("NetworkPolicy", objects), [])

    def test_a_proxy_stands_where_more_than_the_namespace_reaches_the_servers(self):
        own = {"podSelector": {"matchLabels": {"a": "b"}}}
        everywhere = [own, {"namespaceSelector": {}}]
        certified = VALUES["certified"]
        for values, proxied in (
            (INSECURE, False),
            ({**INSECURE, "networkPolicy": {"clients": [own]}}, False),
            ({**INSECURE, "networkPolicy": {"clients": everywhere}}, True),
            ({**INSECURE, "networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}, True),
            ({**INSECURE, "networkPolicy": {"enabled": False}}, True),
            ({**INSECURE, "networkPolicy": {"enabled": False}, "proxy": {"enabled": False}}, False),
            ({**INSECURE, "proxy": {"enabled": True}}, True),
            ({**certified, "networkPolicy": {"clients": everywhere}}, False),
            ({**VALUES["sidecar"], "networkPolicy": {"enabled": False}}, False),
        ):
            with self.subTest(values=values):
                names = [container["name"] for _, template in pods(documents(values)) for container in containers(template)]
                self.assertEqual("proxy" in names, proxied)

    def test_stateful_sets_name_their_pods_by_a_headless_service(self):
        for name, _, objects in forms():
            with self.subTest(values=name):
                services = {service["metadata"]["name"]: service for service in of_kind("Service", objects)}
                for service in services.values():
                    self.assertEqual(service["spec"]["clusterIP"], "None")
                for document in of_kind("StatefulSet", objects):
                    service = services[document["spec"]["serviceName"]]
                    self.assertEqual(selected(service, objects), [document["spec"]["template"]])
                    # A pod has its name while it starts.
                    self.assertIs(service["spec"]["publishNotReadyAddresses"], True)

    def test_certificates_are_for_the_names_that_clients_are_told(self):
        certified = 0
        for name, values, objects in forms():
            with self.subTest(values=name):
                names = []
                for service in of_kind("Service", objects):
                    host = f"{service['metadata']['name']}.{render.NAMESPACE}.svc"
                    for port in service["spec"]["ports"]:
                        if port["name"] == "grpc":
                            names += [(pod, str(port["port"])) for pod in pod_names(host, service, objects) or [host]]
                self.assertEqual(addresses(values), names)
                for certificate in of_kind("Certificate", objects):
                    self.assertEqual(certificate["spec"]["secretName"], values["security"]["tlsSecret"])
                    for host, _ in names:
                        self.assertTrue(any(is_for(pattern, host) for pattern in certificate["spec"]["dnsNames"]), host)
                        certified += 1
        self.assertGreater(certified, 3)


if __name__ == "__main__":
    unittest.main()
