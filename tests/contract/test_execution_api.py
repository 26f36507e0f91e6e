"""Whether Airflow's Execution API answers: asked of real servers, good, bad and silent."""

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from airflow.sdk.api.client import Client

from hetero_airflow.contract.execution_api import find_problem, is_outage


@contextlib.contextmanager
def a_server(status):
    """Answers all requests with this status; yields its address and the paths that were asked for."""
    paths = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/execution/", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problem_of(url, timeout_s=5.0):
    with Client(base_url=url, token="", timeout=timeout_s) as client:
        return find_problem(client)


def test_a_server_that_is_well_has_no_problem():
    with a_server(200) as (url, paths):
        assert problem_of(url) is None
    assert paths == ["/execution/health"]


@pytest.mark.parametrize("status", [301, 403, 404, 500, 503])
def test_any_other_answer_is_a_problem_and_asked_for_once(status):
    with a_server(status) as (url, paths):
        assert problem_of(url) == f"HTTP {status}"
    assert len(paths) == 1


def test_a_server_that_is_away_and_one_that_never_answers_are_told_apart():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert problem_of(f"http://127.0.0.1:{closed.getsockname()[1]}/execution/").startswith("ConnectError: ")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        problem = problem_of(f"http://127.0.0.1:{silent.getsockname()[1]}/execution/", 0.2)
        assert problem.startswith("ReadTimeout: ")


@pytest.mark.parametrize(
    ("status", "expected"), [(401, False), (404, False), (409, False), (500, False), (502, True), (503, True)]
)
def test_what_the_server_itself_answers_is_no_outage(status, expected):
    request = httpx.Request("GET", "http://airflow")
    assert is_outage(httpx.HTTPStatusError("", request=request, response=httpx.Response(status))) is expected


@pytest.mark.parametrize(
    ("error", "expected"), [(httpx.ReadTimeout(""), True), (httpx.ConnectError(""), True), (ValueError(), False)]
)
def test_no_answer_is_an_outage(error, expected):
    assert is_outage(error) is expected
