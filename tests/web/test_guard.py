"""Who may ask the dashboard, and for what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import HOSTILE, RUN, TOKEN, Client

COMMANDS = f"/api/runs/0/{RUN}/commands"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1:1", "localhost.evil.example", "127.0.0.1.evil:80", ""]
)
def test_a_name_that_is_not_its_own_is_refused(client: Client, host: str) -> None:
    found = client.get("/api/runs", Host=host)
    assert found.status == 403
    assert found.error == (
        f"this dashboard was asked for as {host!r}, which is no name of it. Open http://127.0.0.1:PORT with the port "
        "that the command printed; for a name of your own, start it with --host NAME."
    )


def test_its_own_names_are_taken(client: Client) -> None:
    for host in (
        f"127.0.0.1:{client.port}",
        f"localhost:{client.port}",
        "dashboard.example",
        "Dashboard.Example:443",
    ):
        assert client.get("/api/places", Host=host).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://[", "http://[v1.]", "", "\xff"]
)
def test_a_page_of_another_site_is_refused(client: Client, origin: str) -> None:
    for found in (
        client.get("/api/runs", Origin=origin),
        client.post(COMMANDS, {"do": "stop"}, Origin=origin, **AUTHORIZED),
    ):
        assert found.status == 403
        assert found.error.endswith("only the dashboard's own page may. Open the dashboard itself.")


def test_a_browser_says_that_another_site_asks(client: Client) -> None:
    assert client.get("/api/runs", Sec_Fetch_Site="cross-site").status == 403
    assert client.get("/api/runs", Sec_Fetch_Site="same-site").status == 403
    assert client.get("/api/runs", Sec_Fetch_Site="same-origin").status == 200
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert client.get("/", **link).status != 403, "a link in a message may be followed"
    assert client.get("/api/runs", **link).status == 403
    assert client.get("/", **(link | {"Sec_Fetch_Dest": "iframe"})).status == 403
    own = f"http://127.0.0.1:{client.port}"
    assert client.get("/api/runs", Origin=own).status == 200


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer another"}, {"Authorization": TOKEN}])
def test_a_command_needs_the_token(client: Client, given: dict[str, str]) -> None:
    found = client.post(COMMANDS, {"do": "stop"}, **given)
    assert found.status == 403
    assert found.error == "the token is missing or another one. Enter the token that hopyard web has printed."


def test_a_dashboard_for_reading_gives_no_commands(place: Path, serve: Any) -> None:
    with serve([str(place)], None) as client:
        assert client.get("/api/places").json["control"] is False
        found = client.post(COMMANDS, {"do": "stop"}, **AUTHORIZED)
        assert (found.status, found.error) == (
            403,
            "this dashboard gives no commands. Start it without --read-only to steer runs.",
        )


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../../guard.py", "/..%2fguard.py",
        "/api/runs/0/..%2f..%2f..%2fetc/curves", "/api/runs/0/..", "/api/runs/0/%2e%2e%2fdata",
        "/api/data/0/describe?path=../../../etc", "/api/data/0/samples?path=/etc", "/api/stock/1/commit/../../etc",
        "/api/stock/1/model?path=model/../../etc&revision=HEAD",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_stores(client: Client, path: str, tmp_path: Path) -> None:
    found = client.get(path)
    assert b"root:" not in found.body
    assert b"import" not in found.body
    if path.startswith("/api/"):
        assert found.status in (400, 404), found.body
        assert found.error


def test_nothing_may_be_loaded_from_elsewhere_and_no_other_site_may_show_it(client: Client) -> None:
    for path in ("/", "/api/places", f"/api/runs/0/{RUN}/curves", "/api/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy.split("style-src")[0]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_hostile_texts_are_json_and_never_a_page(client: Client) -> None:
    found = client.get(f"/api/runs/0/{RUN}")
    assert found.headers["content-type"] == "application/json"
    assert any(HOSTILE in trial["error"]["message"] for trial in found.json["trials"] if trial["error"])
    found = client.get("/api/data/0/samples?count=1")
    assert HOSTILE in json.dumps(found.json, ensure_ascii=False).replace('\\"', '"')


def test_methods_that_are_not_for_an_address_are_refused(client: Client) -> None:
    assert client.post("/api/runs", {}).status == 405
    assert client.ask("DELETE", f"/api/runs/0/{RUN}", None).status == 405
    assert client.get(COMMANDS).status == 404


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/api/runs/{DIGITS}/{RUN}", 404),
        (f"/api/runs/0/{RUN}/trials/{DIGITS}", 404),
        (f"/api/data/{DIGITS}", 404),
        (f"/api/stock/{DIGITS}/log", 404),
        (f"/api/runs/0/{RUN}/logs?trial={DIGITS}", 400),
        (f"/api/runs/0/{RUN}/schedule?pixels={DIGITS}", 400),
        (f"/api/runs/compare?run={DIGITS}/{RUN}", 404),
        (f"/api/runs/0/{'n' * 30_000}", 400),
        ("/api/runs/0/%00", 400),
        ("/api/runs/0/%ff%fe", 400),
        ("/api/runs/0/%2e%2e", 400),
        ("/api/runs/0/%2e%2e%2fgrid", 404),
        ("/api/data/0/samples?path=%00", 404),
        ("/api/data/0/samples?path=../../../etc", 404),
        ("/api/data/0/describe?path=/etc", 404),
    ],
    ids=lambda given: str(given)[:40],
)
def test_odd_addresses_are_refused_in_words(client: Client, path: str, status: int) -> None:
    found = client.get(path)
    assert (found.status, len(found.error) > 20) == (status, True)


@pytest.mark.parametrize("since", ["%C2%B2", DIGITS, "-1", "1e3", "x"])
def test_events_since_what_is_no_version_begin_with_all(client: Client, since: str) -> None:
    events = client.events(f"/api/runs/0/{RUN}/events?since={since}")
    kind, document = next(events)
    events.close()
    assert (kind, len(document["trials"])) == ("changes", 12)


@pytest.mark.parametrize("sent", [b"[" * 30_000, b'{"a":' * 10_000], ids=["lists", "objects"])
def test_nested_objects_that_python_cannot_take_are_refused(client: Client, sent: bytes) -> None:
    for path, headers in ((COMMANDS, AUTHORIZED), ("/api/plan", {})):
        found = client.post(path, sent, **headers)
        assert (found.status, found.error) == (
            400,
            'what was sent is no JSON object. Send one, such as {"do": "pause"}.',
        )


def test_a_mistake_of_the_dashboard_is_said_without_what_may_be_secret(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the password is 1234")

    monkeypatch.setattr("hopyard.web.run_pages.described_json", fail)
    found = client.get(f"/api/runs/0/{RUN}")
    assert found.status == 500
    assert found.error == (
        f"the dashboard failed to answer /api/runs/0/{RUN} (RuntimeError), which is a mistake in it. The terminal of "
        "hopyard web shows where; report that."
    )
