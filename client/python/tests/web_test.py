"""The application that `sisctl web` serves, as browsers and programs on this machine see it."""

import contextlib
import http.client
import json
import pathlib
import re
import threading
import time
import unittest
import unittest.mock
import urllib.parse
from concurrent import futures

import grpc

import fake_service
import sis
from sis.v1 import ratio_service_pb2 as pb
from sis.web import app, bridge

RUN = "a b/ü"
PAGE = pathlib.Path(app.__file__).parent / "page"


class Service:
    """Answers what the tests look at, and nothing else."""

    def __init__(self):
        # (authorization, request) of all calls.
        self.asked = []

    def _noted(self, request, context):
        self.asked.append((dict(context.invocation_metadata()).get("authorization"), request))

    def GetRun(self, request, context):
        self._noted(request, context)
        if request.run_id != RUN:
            context.abort(grpc.StatusCode.NOT_FOUND, f"run '{request.run_id}' \"new\"?")
        return pb.GetRunResponse(run=self.run())

    def run(self):
        config = pb.RunConfig(log_prob_encoding=pb.LOG_PROB_ENCODING_FLOAT32)
        return pb.Run(run_id=RUN, policy_version=1 << 60, config=config, sequences=3)

    def GetServer(self, request, context):
        return pb.GetServerResponse(version="1.2.3", ready=True)

    def ListRuns(self, request, context):
        self._noted(request, context)
        return pb.ListRunsResponse(runs=[self.run()])

    def InspectSequence(self, request, context):
        self._noted(request, context)
        return pb.InspectSequenceResponse(first_position=request.sequence.attempt, decisions=b"abc")

    def InspectRun(self, request, context):
        if request.run.run_id != "OK":
            context.abort(grpc.StatusCode[request.run.run_id], "as it was asked")
        return pb.InspectRunResponse()

    def CreateRun(self, request, context):
        raise AssertionError("a lost run is not opened again by whoever looks at it")


class WebTest(fake_service.ServersTest):
    def setUp(self):
        self.service = Service()
        _, self.address = self.serve(self.service)
        self.client = self.make_client(self.address)
        self.serve_page(app.make_app(self.client, [self.address]))

    def make_client(self, address):
        credentials = sis.Credentials(token="of-whoever-started-it")
        return self.enterContext(sis.Client(address, timeout=20, credentials=credentials, reopen_runs=False))

    def serve_page(self, made):
        listener = app.listen(0)
        self.addCleanup(listener.close)
        self.port = listener.getsockname()[1]
        self.assertEqual(app.url(listener), f"http://127.0.0.1:{self.port}/")
        serving = app.make_server(made)
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listener]})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(setattr, serving, "should_exit", True)

    def ask(self, path, method="GET", **headers):
        """(status, headers, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def json(self, path, status=200):
        found, headers, body = self.ask(path)
        self.assertEqual((found, headers["Content-Type"]), (status, "application/json"), body)
        self.assertEqual(headers["Cache-Control"], "no-store")
        return json.loads(body)

    def test_calls_are_answered_in_json(self):
        run = self.json("/api/GetRun?run_id=" + urllib.parse.quote(RUN, safe=""))["run"]
        self.assertEqual((run["runId"], run["policyVersion"]), (RUN, str(1 << 60)))
        self.assertEqual(run["bytes"], "0", "every field is there")
        found = self.json("/api/InspectSequence?run.run_id=r&sequence.id=abc&sequence.attempt=7")
        self.assertEqual((found["firstPosition"], found["decisions"]), (7, "YWJj"))
        self.assertEqual(self.json("/api/ListRuns"), {"runs": [run], "unanswered": []})
        requests = [request for _, request in self.service.asked]
        self.assertEqual(requests[1].run.run_id, "r")
        self.assertEqual({token for token, _ in self.service.asked}, {"Bearer of-whoever-started-it"})

    def test_several_servers_are_one_and_a_silent_one_is_named(self):
        other = Service()
        grpc_server, address = self.serve(other)
        addresses = [self.address, address]
        self.serve_page(app.make_app(self.make_client(addresses), addresses))
        ((run,), unanswered) = self.json("/api/ListRuns").values()
        self.assertEqual((run["runId"], run["sequences"], unanswered), (RUN, "6", []))
        servers = self.json("/api/GetServer")["servers"]
        self.assertEqual([(server["address"], server["version"]) for server in servers], [(a, "1.2.3") for a in addresses])
        grpc_server.stop(None).wait()
        found = self.json("/api/GetRun?run_id=" + urllib.parse.quote(RUN, safe=""))
        self.assertEqual((found["run"]["sequences"], found["unanswered"]), ("3", [address]))
        self.assertEqual(self.json("/api/InspectRun?run.run_id=OK")["unanswered"], [address])
        there, silent = self.json("/api/GetServer")["servers"]
        self.assertEqual((there["ready"], silent["address"], set(silent)), (True, address, {"address", "error"}))

    def test_errors_are_answered_in_json_too(self):
        unknown = self.json("/api/GetRun?run_id=nowhere", 404)
        self.assertEqual(unknown, {"code": "NOT_FOUND", "message": "run 'nowhere' \"new\"?"})
        for query, words in (
            ("run.run_id=r&sequence.attempt=-1", "attempt"),
            ("run.run_id=r&sequence.attempt=many", "attempt"),
            ("run_id=r", "run_id"),
            ("run=r", "run"),
            ("run=r&run.run_id=s", "run"),
            ("run.run_id.x=r", "run_id"),
            ("=", "no field"),
            (".=", "no field"),
        ):
            with self.subTest(query=query):
                refused = self.json(f"/api/InspectSequence?{query}", 400)
                self.assertEqual(refused["code"], "INVALID_ARGUMENT")
                self.assertIn(words, refused["message"])

    def test_codes_of_the_service_have_a_status_of_http(self):
        for code, status in (
            ("NOT_FOUND", 404), ("INVALID_ARGUMENT", 400), ("FAILED_PRECONDITION", 400), ("UNAUTHENTICATED", 401),
            ("PERMISSION_DENIED", 403), ("UNAVAILABLE", 503), ("CANCELLED", 503), ("DEADLINE_EXCEEDED", 503),
            ("INTERNAL", 500), ("RESOURCE_EXHAUSTED", 500),
        ):  # fmt: skip
            with self.subTest(code=code):
                said = self.json(f"/api/InspectRun?run.run_id={code}", status)
                self.assertEqual(said, {"code": code, "message": "as it was asked"})
        self.assertEqual(self.json("/api/GetStep?run.run_id=r", 500)["code"], "UNIMPLEMENTED", "by this service")

    def test_only_what_changes_nothing_is_offered(self):
        changing = {"CreateRun", "DeleteRun", "AdvanceVersion", "Append", "FetchTopK", "Evaluate", "Release"}
        self.assertEqual(set(bridge.METHODS), set(pb.methods()) - changing)
        for method in (*changing, "Nothing", "listruns", "__class__"):
            self.assertEqual(self.json(f"/api/{method}", 404)["code"], "NOT_FOUND", method)
        for path in ("/nowhere", "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/api",
                     "/api/", "/api/ListRuns/x", "/app.py", "/../app.py", "/metrics"):  # fmt: skip
            self.assertEqual(self.ask(path)[0], 404, path)
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            for path in ("/", "/api/ListRuns", "/api/Diagnose", "/api/Export", "/token_texts.json"):
                self.assertEqual(self.ask(path, method)[0], 405, (method, path))
        self.assertEqual(self.service.asked, [])

    def test_others_are_refused(self):
        for host in (f"localhost:{self.port}", f"127.0.0.1:{self.port}", f"[::1]:{self.port}", "LocalHost:1", "localhost"):
            self.assertEqual(self.ask("/", Host=host)[0], 200, host)
        for host in ("", "x", "evil.example", f"evil.example:{self.port}", "localhost.evil.example", "127.0.0.1.evil.example",
                     "127.0.0.1@evil.example", "10.0.0.1", "0.0.0.0", "[::]", "localhost:x", "evil.example:localhost"):  # fmt: skip
            for path in ("/", "/api/ListRuns"):
                self.assertEqual(self.ask(path, Host=host)[0], 421, host)
        for site, status in (("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)):
            self.assertEqual(self.ask("/api/ListRuns", **{"Sec-Fetch-Site": site})[0], status, site)
            self.assertEqual(self.ask("/", **{"Sec-Fetch-Site": site})[0], 200, "a link leads here")

    def test_every_answer_has_the_headers_that_keep_others_out(self):
        for path in ("/", "/main.js", "/api/ListRuns", "/api/GetRun?run_id=x", "/nowhere", "/token_texts.json"):
            _, headers, _ = self.ask(path)
            self.assertIn("default-src 'none'; script-src 'self'; ", headers["Content-Security-Policy"], path)
            self.assertIn("frame-ancestors 'none'", headers["Content-Security-Policy"])
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(headers["Cross-Origin-Resource-Policy"], "same-origin")
            self.assertEqual(headers["Referrer-Policy"], "no-referrer")
            self.assertIsNone(headers["Access-Control-Allow-Origin"])

    def test_the_page_is_served_with_what_it_needs(self):
        status, headers, page = self.ask("/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertEqual(page, (PAGE / "index.html").read_bytes())
        types = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
        for file in PAGE.iterdir():
            status, headers, body = self.ask(f"/{file.name}")
            self.assertEqual((status, body), (200, file.read_bytes()), file.name)
            self.assertEqual(headers["Content-Type"], types.get(file.suffix, headers["Content-Type"]))
        self.assertIn(b"Chart.js", self.ask("/chart.js")[2])

    def test_the_page_knows_every_reason_of_missing_positions(self):
        text = PAGE.joinpath("positions.js").read_text(encoding="utf-8")
        listed = json.loads(re.search(r"const MISSING_REASONS = (\[.*?),?\s*\];", text, re.DOTALL)[1] + "]")
        named = [reason.name.lower().replace("_", " ") for reason in sis.MissingReason]
        self.assertEqual(listed[1:], named[1:])

    def test_texts_of_tokens_are_those_of_the_tokenizer(self):
        self.assertIsNone(self.json("/token_texts.json"))
        self.serve_page(app.make_app(self.client, ["server"], {0: "</s>", 7: 'é"'}))
        self.assertEqual(self.json("/token_texts.json"), {"0": "</s>", "7": 'é"'})

    def test_one_diagnosis_or_export_is_made_at_a_time(self):
        begun, go_on = threading.Event(), threading.Event()

        def export(client, run, path, format):
            self.assertEqual((run.id, format), (RUN, "parquet"))
            pathlib.Path(path).write_bytes(b"rows")
            begun.set()
            go_on.wait(20)
            return sis.export.Exported(1, 1)

        path = "/api/Export?run_id=" + urllib.parse.quote(RUN, safe="")
        diagnose = unittest.mock.patch.object(app, "diagnose_run")
        with unittest.mock.patch.object(app, "write_export", export), diagnose as diagnose_run:
            diagnose_run.return_value.as_json.return_value = {}
            with futures.ThreadPoolExecutor() as threads:
                exported = threads.submit(self.ask, path)
                self.assertTrue(begun.wait(20))
                diagnosed = threads.submit(self.json, "/api/Diagnose?run_id=r")
                time.sleep(0.3)
                diagnose_run.assert_not_called()
                go_on.set()
                self.assertEqual(diagnosed.result(), {})
        status, headers, body = exported.result()
        self.assertEqual((status, body), (200, b"rows"))
        self.assertEqual(headers["Content-Type"], "application/vnd.apache.parquet")
        self.assertIn("attachment", headers["Content-Disposition"])
        self.assertEqual(self.json("/api/Export?run_id=nowhere", 404)["code"], "NOT_FOUND")
        for path in ("/api/Export", "/api/Diagnose?run_id="):
            self.assertEqual(self.json(path, 400)["message"], "run_id: missing")
        self.assertIn("format: 'xls'", self.json("/api/Export?run_id=r&format=xls", 400)["message"])

    def test_an_export_without_its_package_says_so(self):
        with unittest.mock.patch.object(app, "write_export", side_effect=ImportError("export needs pyarrow")):
            path = "/api/Export?run_id=" + urllib.parse.quote(RUN, safe="")
            self.assertEqual(self.json(path, 501)["message"], "export needs pyarrow")


if __name__ == "__main__":
    unittest.main()
