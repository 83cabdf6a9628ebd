"""The small parts: options, the settings of Kopf, the clock of the server, log lines, progress."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import pytest

from fencepost_operator.app import EXIT_DONE, EXIT_FAILED, EXIT_MISUSED, EXIT_NO_SERVER, main
from fencepost_operator.clock import ServerClock
from fencepost_operator.logs import REMEMBERED_MAX, JsonLines, Repeats, about
from fencepost_operator.options import BadOption, Options, Told, options_of
from fencepost_operator.watching import (
    CLIENT_SECONDS,
    INACTIVITY_SECONDS,
    PROGRESS_SECONDS_MAX,
    WATCH_SECONDS,
    Progress,
    settings_of_kopf,
)
from tests.handlers.values import MovableClock


class TestOptions:
    def test_the_defaults(self) -> None:
        options = options_of([])
        assert options == Options()
        assert options.watched == (None,)

    def test_namespaces_may_be_given_several_times(self) -> None:
        options = options_of(["-n", "feeds", "--namespace", "other", "-n", "feeds"])
        assert options.namespaces == ("feeds", "other")
        assert options.watched == ("feeds", "other")

    def test_the_address_of_the_probes(self) -> None:
        options = options_of(["--probe-address", "[::1]:0"])
        assert (options.probe_host, options.probe_port) == ("::1", 0)

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--namespace", "Feeds_"],
            ["--namespace", "x" * 64],
            ["--probe-address", "8080"],
            ["--probe-address", "localhost:99999"],
            ["--resync-seconds", "0"],
            ["--resync-seconds", "soon"],
            ["--hands", "0"],
            ["--log-level", "loud"],
            ["--no-such-flag"],
            ["stray"],
            ["--give-up-after", "-1"],
        ],
    )
    def test_what_is_not_understood_is_one_sentence_and_exit_2(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(BadOption):
            options_of(arguments)
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.startswith("fencepost-operator: ")

    def test_help_is_no_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(Told):
            options_of(["--help"])
        said = " ".join(capsys.readouterr().out.split())
        assert "Example:" in said
        for code in (EXIT_DONE, EXIT_FAILED, EXIT_MISUSED, EXIT_NO_SERVER):
            assert re.search(rf"Exit codes: .*\b{code} \w", said), code

    def test_a_kubeconfig_that_is_not_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--kubeconfig", "/no/such/file"]) == 2
        assert "/no/such/file" in capsys.readouterr().err


class TestKopf:
    def test_every_time_out_of_a_watch_is_set_and_each_notices_before_the_next(self) -> None:
        """B01: all of them default to none in Kopf."""
        watching = settings_of_kopf().watching
        assert watching.server_timeout == WATCH_SECONDS
        assert watching.client_timeout == CLIENT_SECONDS
        assert watching.connect_timeout is not None
        assert watching.inactivity_timeout == INACTIVITY_SECONDS
        assert WATCH_SECONDS < INACTIVITY_SECONDS < CLIENT_SECONDS < PROGRESS_SECONDS_MAX

    def test_it_neither_posts_nor_pairs_nor_stores(self) -> None:
        settings = settings_of_kopf()
        assert settings.posting.enabled is False
        assert settings.peering.standalone is True
        assert settings.scanning.disabled is True
        assert "kopf" not in settings.persistence.finalizer
        body = cast(Any, {"metadata": {"annotations": {"kopf.zalando.org/x": "{}"}}})
        assert settings.persistence.diffbase_storage.fetch(body=body) is None
        assert settings.persistence.diffbase_storage.build(body=body) == {}
        assert settings.persistence.progress_storage.fetch(key=cast(Any, "h"), body=body) is None

    def test_attempts_never_end(self) -> None:
        backoffs = settings_of_kopf().networking.error_backoffs
        first = list(islice(cast(Iterator[float], iter(cast(Any, backoffs))), 1000))
        assert len(first) == 1000
        assert max(first) <= 5

    def test_progress_is_by_collection_and_the_worst_counts(self) -> None:
        clock = MovableClock()
        progress = Progress(("one", "two"), clock=clock)
        clock.now += 10
        progress.note("/apis/fencepost.dev/v1alpha1/namespaces/one/leasedtasks")
        progress.note("/api/v1/namespaces")
        assert progress.ages() == {"leasedtasks": 10, "fanoutjobs": 10}
        progress.note("/apis/fencepost.dev/v1alpha1/namespaces/two/leasedtasks")
        assert progress.ages() == {"leasedtasks": 0, "fanoutjobs": 10}


class TestServerClock:
    def test_it_goes_on_by_our_monotonic_clock_from_what_the_server_said(self) -> None:
        clock = MovableClock()
        server = ServerClock(clock=clock)
        assert not server.is_set
        assert server.age_seconds("2026-01-01T00:00:00Z") == 0.0
        server.tell("Thu, 01 Jan 2026 00:00:10 GMT")
        clock.now += 5.5
        assert server.text() == "2026-01-01T00:00:15Z"
        assert server.age_seconds("2026-01-01T00:00:00Z") == 15.5
        assert server.age_seconds("2026-01-01T01:00:00Z") == 0.0

    @pytest.mark.parametrize("nonsense", ["", "yesterday", "2026-01-01"])
    def test_what_is_no_date_changes_nothing(self, nonsense: str) -> None:
        server = ServerClock(clock=MovableClock())
        server.tell("Thu, 01 Jan 2026 00:00:10 GMT")
        server.tell(nonsense)
        assert server.text() == "2026-01-01T00:00:10Z"


class TestLogs:
    def test_a_line_is_json_with_the_fields_of_its_object(self) -> None:
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JsonLines())
        log = logging.Logger("fencepost_operator.test")
        log.addHandler(handler)
        log.warning("said %d", 1, extra=about("ns", "name", uid="u", token=3))
        try:
            raise ValueError("ö\n")
        except ValueError:
            log.exception("defect")
        first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert first.pop("ts").endswith("+00:00")
        assert first == {
            "level": "warning",
            "msg": "said 1",
            "namespace": "ns",
            "name": "name",
            "uid": "u",
            "token": 3,
        }
        assert "ValueError" in second["trace"]

    def test_a_thing_is_said_twice_a_minute_at_most_and_the_memory_is_bounded(self) -> None:
        clock = MovableClock()
        repeats = Repeats(clock=clock)
        said = 0
        for _ in range(120):
            said += repeats.is_news("uid", "create")
            clock.now += 0.5
        assert said == 2
        assert repeats.is_news("uid", "other")
        assert not repeats.is_news("uid", "other")
        for number in range(REMEMBERED_MAX):
            repeats.is_news(number)
        assert repeats.is_news("uid", "other")  # forgotten for the sake of newer things
