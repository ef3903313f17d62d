from __future__ import annotations

import http.client

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.supervision.health_pages import HEALTH, READINESS, health_pages
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint

ANYWHERE = Endpoint("127.0.0.1", 0)


def page(at: Endpoint, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(at.host, at.port, timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def test_each_health_page_names_the_problem_or_ok() -> None:
    sentences = {HEALTH: "", READINESS: "Node a has no recent heartbeat in group orders/default."}
    checks = {path: (lambda path=path: sentences[path]) for path in sentences}
    with health_pages(ANYWHERE, checks) as at:
        assert page(at, HEALTH) == (200, "ok\n")
        assert page(at, READINESS) == (503, f"{sentences[READINESS]}\n")
        sentences[READINESS] = ""
        assert page(at, READINESS) == (200, "ok\n")
        assert page(at, "/metrics") == (404, "Only /healthz and /readyz are here.\n")
        assert page(at, HEALTH, "POST")[0] == 501


def test_a_taken_address_is_one_sentence() -> None:
    with (
        health_pages(ANYWHERE, {}) as at,
        pytest.raises(
            InvalidSetting, match=r"^The health pages cannot be served at [^\n]+--health"
        ),
        health_pages(at, {}),
    ):
        pass
