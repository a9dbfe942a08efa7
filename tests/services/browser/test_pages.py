"""Every page on runs, data and versions that are really there: what it shows is what the documents say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.services.browser.conftest import Dashboard, Watched
from tests.services.browser.looking import (
    facts,
    is_drawn,
    leaders,
    number,
    region,
    rows_of,
    seconds,
)
from tests.web.conftest import HOSTILE
from tests.web.test_runs import printed, schedule


def run_of(killed: Path) -> str:
    (run,) = printed("run", "list", str(killed / "store"))
    return str(run["run"])


def test_the_list_is_that_of_the_command_line(
    visit: Watched, shown: Dashboard, place: Path, searches: Path, killed: Path, hostile: Path
) -> None:
    known = {
        run["run"]: run
        for store in (place, searches, killed / "store", hostile)
        for run in printed("run", "list", str(store))
    }
    page = visit(shown.page("runs"))
    rows = rows_of(region(page, "Runs").locator("table"), len(known))
    assert {row["Run"].split()[0] for row in rows} == set(known)
    for row in rows:
        run = known[row["Run"].split()[0]]
        assert row["Status"] == run["status"]
        assert number(row["Best"]) == pytest.approx(run["best"], abs=5e-5)
        assert (row["Metric"], number(row["Trials"])) == (run["metric"], run["num_trials"])
        assert seconds(row["Time"]) == pytest.approx(run["driven_seconds"], rel=5e-3)
        assert seconds(row["Cost"]) == pytest.approx(run["unit_seconds"], rel=5e-3)
    assert [row["Begun"] for row in rows] == sorted((row["Begun"] for row in rows), reverse=True)


@pytest.mark.parametrize(("number_of_place", "run", "store"), [(0, "grid", "place"), (2, "asha", "searches")])
def test_the_leaderboard_and_the_facts_of_a_run_are_those_of_the_command_line(
    visit: Watched, shown: Dashboard, request: Any, number_of_place: int, run: str, store: str
) -> None:
    known = printed("run", "describe", str(request.getfixturevalue(store)), run)
    trials = {trial["trial"]: trial for trial in known["trials"]}
    page = visit(shown.page(f"runs/{number_of_place}/{run}"))
    rows = leaders(page, len(trials))
    assert [number(row["Trial"]) for row in rows] == sorted(
        trials, key=lambda each: (-(trials[each]["value"] or -1), each)
    )
    for row in rows:
        trial = trials[int(row["Trial"])]
        assert row["Status"] == trial["status"]
        assert number(row["val_accuracy"]) == (
            trial["value"] if trial["value"] is None else pytest.approx(trial["value"], abs=5e-5)
        )
        *best, epochs = row["Epoch"].split("/")
        assert number(epochs) == pytest.approx(trial["epochs"], abs=5e-5)
        assert [number(each) for each in best] == (
            [] if trial["best_epoch"] is None else [pytest.approx(trial["best_epoch"], abs=5e-5)]
        )
        assert number(row["width"]) == trial["params"]["width"]
        assert number(row["lr"]) == pytest.approx(trial["params"]["lr"], rel=5e-3)
    told = facts(page.locator("dl.facts-row"))
    best = max(
        (trial for trial in trials.values() if trial["value"] is not None), key=lambda each: each["value"]
    )
    assert told["Status"] == known["status"]
    value, name = told["Best val_accuracy"].split(maxsplit=1)
    assert (number(value), name) == (pytest.approx(best["value"], abs=5e-5), f"trial {best['trial']}")
    assert told["Trials"] == f"{len(trials)} of {known['num_trials']} ended"
    for canvas in page.locator("canvas").all():
        is_drawn(canvas)


def test_a_trial_shows_its_history_and_its_hyperparameters(visit: Watched, shown: Dashboard) -> None:
    trial = max(shown.json("/api/runs/2/asha")["trials"], key=lambda each: each["epochs"])
    known = shown.json(f"/api/runs/2/asha/trials/{trial['trial']}")
    page = visit(shown.page(f"runs/2/asha?trial={trial['trial']}"))
    panel = region(page, f"Trial {trial['trial']}")
    history = panel.get_by_role("img", name=f"val_accuracy of trial {trial['trial']} by epoch")
    expect(history).to_be_visible()
    options = panel.get_by_label("Metric").locator("option").all_inner_texts()
    assert options == list(known["history"])
    told = [facts(each) for each in panel.locator("dl.facts").all()]
    assert number(told[0]["Best val_accuracy"].split()[0]) == pytest.approx(trial["value"], abs=5e-5)
    assert {name: float(text) for name, text in told[1].items()} == trial["params"]
    assert {name: number(text) for name, text in told[2].items()} == {
        name: pytest.approx(value, abs=5e-5) for name, value in trial["metrics"].items()
    }


def test_importances_and_slices(visit: Watched, shown: Dashboard) -> None:
    known = shown.json("/api/runs/0/grid/importance")["importances"]
    page = visit(shown.page("runs/0/grid/importance"))
    table = page.get_by_role("table", name="Importance of hyperparameters")
    rows = rows_of(table, len(known))
    assert [row["Hyperparameter"] for row in rows] == [
        each["name"] for each in sorted(known, key=lambda each: -each["importance"])
    ]
    page.get_by_role("link", name="Slices").click()
    for name in ("width", "lr"):
        is_drawn(page.get_by_role("img", name=f"val_accuracy of trials by {name}"))
    expect(page.locator("figure")).to_have_count(2)


def test_failures_say_why_and_trials_that_were_stopped_by_whom(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("runs/0/grid/ended"))
    failures = page.locator("section", has=page.get_by_role("heading", name="Failures"))
    expect(failures.get_by_role("heading", name="4 trials")).to_be_visible()
    expect(failures.locator("p.data")).to_have_text(f"ValueError: three is not enough {HOSTILE}")
    expect(failures.get_by_label("Traceback")).to_contain_text("in estimator")
    expect(failures.locator(".links a")).to_have_text(["trial 4", "trial 5", "trial 6", "trial 7"])
    page = visit(shown.page("runs/2/asha/ended"))
    stopped = [trial for trial in shown.json("/api/runs/2/asha")["trials"] if trial["stopped"]]
    assert {trial["stopped"] for trial in stopped} == {"searcher"}
    expect(page.get_by_role("link", name=f"Stopped and failed ({len(stopped)})")).to_be_visible()
    part = page.locator("section", has=page.get_by_role("heading", name="Stopped"))
    expect(part.get_by_role("heading", name=f"{len(stopped)} trials")).to_be_visible()
    expect(part).to_contain_text("at a rung they were not among the best")


def test_the_schedule_has_the_workers_and_the_numbers_of_the_run(
    visit: Watched, shown: Dashboard, searches: Path
) -> None:
    known = printed("run", "describe", str(searches), "asha")["schedule"]
    page = visit(shown.page("runs/2/asha/schedule"))
    is_drawn(page.locator("canvas"))
    section = page.locator("section", has=page.get_by_role("heading", name="Workers by time"))
    told = facts(section.locator("dl.facts-row"))
    assert number(told["Hops"]) == known["hops"]
    assert "Expected end" not in told, "it has ended"
    idle = rows_of(page.get_by_role("table", name="Idle time of each worker"), known["workers"])
    (begin, end, bound, _, span, _, *_), seconds_idle, units = schedule(
        shown.client.get("/api/runs/2/asha/schedule").body
    )
    assert seconds(told["From first to last unit"]) == pytest.approx(span, rel=5e-3)
    assert seconds(told["Lower bound"]) == pytest.approx(bound, rel=5e-3)
    assert float(told["Gap to the bound"].removesuffix(" %")) == pytest.approx(
        (span / bound - 1) * 100, abs=0.06
    )
    share = pytest.approx(sum(seconds_idle.values()) / span / len(seconds_idle) * 100, abs=0.06)
    assert float(told["Idle, of all workers' time"].removesuffix(" %")) == share
    assert (float(idle[0]["Share"].removesuffix(" %")), seconds(idle[0]["Idle"])) == (
        share,
        pytest.approx(seconds_idle[0], rel=5e-3),
    )
    longest = max(units, key=lambda unit: unit[1] - unit[0])
    box = page.locator("canvas").bounding_box()
    assert box is not None
    middle = (longest[0] + longest[1]) / 2 / (end - begin)
    page.mouse.move(box["x"] + box["width"] * middle, box["y"] + box["height"] * 0.9)
    expect(section.locator(".told")).to_contain_text(f"Trial {longest[3]}, partition {longest[4]}, ")


def test_the_log_has_what_trials_print_and_the_settings_are_those_of_the_run(
    visit: Watched, shown: Dashboard
) -> None:
    (run,) = (each["run"] for each in shown.json("/api/runs")["runs"] if each["place"] == "4")
    known = shown.json(f"/api/runs/4/{run}/logs")["lines"]
    assert {line["trial"] for line in known} >= set(range(8))
    page = visit(shown.page(f"runs/4/{run}/logs"))
    lines = page.get_by_role("log", name="Log").locator(".line .data")
    expect(lines).to_have_count(len(known))
    assert lines.all_text_contents() == [line["text"] for line in known]
    page.get_by_label("Trial", exact=True).fill("2")
    page.get_by_label("Trial", exact=True).press("Enter")
    of_one = [line["text"] for line in known if line["trial"] == 2]
    expect(lines).to_have_count(len(of_one))
    assert lines.all_text_contents() == of_one
    page.get_by_role("link", name="Settings").click()
    document = shown.json(f"/api/runs/4/{run}")
    told = facts(
        page.locator("section", has=page.get_by_role("heading", name="Settings")).locator("dl").first
    )
    assert (told["Search"], told["Seed"]) == (document["kind"], str(document["seed"]))
    expect(page.get_by_text("1 entries")).to_have_count(0)
    other = visit(shown.page("runs/0/grid/settings"))
    expect(other.get_by_text("1 entry")).to_have_count(2)
    expect(other.get_by_text("search_space", exact=True)).to_have_count(0)
    expect(page.locator("section", has=page.get_by_role("heading", name="Search space"))).to_contain_text(
        "kind"
    )


def test_a_run_whose_driver_died_says_so(visit: Watched, shown: Dashboard, killed: Path) -> None:
    run = run_of(killed)
    known = printed("run", "describe", str(killed / "store"), run)
    page = visit(shown.page(f"runs/3/{run}"))
    rows = leaders(page, len(known["trials"]))
    told = facts(page.locator("dl.facts-row"))
    assert (told["Status"], told["Driver"]) == ("interrupted", "nobody drives it")
    statuses = {trial["status"] for trial in known["trials"]}
    assert statuses == {"failed", "running"}
    assert {row["Status"] for row in rows} == {"failed", "interrupted"}, "none runs any more"


def test_runs_side_by_side_are_those_of_the_command_line(
    visit: Watched, shown: Dashboard, searches: Path
) -> None:
    known = printed("run", "compare", str(searches), "asha", "other")
    page = visit(shown.page("runs"))
    for name in ("asha", "other"):
        page.get_by_label(f"Choose run {name}").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    table = region(page, "Comparison").locator("table")
    expect(table.get_by_role("row", name=re.compile("^Best "))).to_be_visible()
    lines = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in table.locator("tbody tr", has=page.locator("td")).all()
    }
    assert [number(text) for text in lines["Best"]] == [pytest.approx(run["best"], abs=5e-5) for run in known]
    assert [number(text) for text in lines["Trials"]] == [run["num_trials"] for run in known]
    assert [number(text) for text in lines["lr"]] == [
        pytest.approx(run["params"]["lr"], rel=5e-4) for run in known
    ]
    assert lines["seed"] == ["0", "1"]
    expect(table.locator("tr.differs", has_text="seed")).to_have_count(1)


def test_prepared_data_is_shown_with_its_pictures_and_texts(
    visit: Watched, shown: Dashboard, searches: Path
) -> None:
    page = visit(shown.page("data"))
    page.get_by_role("link", name=str(searches)).click()
    paths = [each["path"] for each in shown.json("/api/data/2")["datasets"]]
    expect(page.get_by_label("Dataset").locator("option")).to_have_text(paths)
    (path,) = (
        path
        for path in paths
        if path.startswith("train_data/")
        and "image"
        in {
            column["name"]
            for split in shown.json(f"/api/data/2/describe?path={path}")
            for column in split["columns"]
        }
    )
    page.get_by_label("Dataset").select_option(path)
    (split,) = printed("data", "inspect", f"{searches}/{path}")
    columns = rows_of(page.get_by_role("table", name="Columns of train"), len(split["columns"]))
    assert [row["Column"] for row in columns] == [column["name"] for column in split["columns"]]
    assert facts(page.locator("dl.facts-row"))["Rows"] == str(split["rows"])
    pictures = page.get_by_role("table", name="Rows 0 to 19").get_by_role("img")
    expect(pictures).to_have_count(20)
    page.wait_for_function("[...document.images].every(image => image.complete && image.naturalWidth === 8)")
    samples = shown.json(f"/api/data/2/samples?path={path}&split=train&first=20&count=20")
    page.get_by_role("button", name="Next").click()
    expect(region(page, "Rows").locator("tbody td .text")).to_have_text([row[1] for row in samples["rows"]])


def test_versions_are_those_of_the_stockroom(visit: Watched, shown: Dashboard, room: Path) -> None:
    commits = shown.json("/api/stock/1/log?all=1")
    assert len(commits) == 2
    page = visit(shown.page("stock"))
    page.get_by_role("link", name=str(room)).click()
    rows = rows_of(region(page, "Commits").locator("table"), 2)
    assert [row["Commit"] for row in rows] == [commit["commit"][:10] for commit in commits]
    for row, commit in zip(rows, commits, strict=True):
        assert commit["message"] in row["Message"]
    page.get_by_role("link", name=f"Commit {commits[0]['commit'][:10]}").click()
    panel = region(page, f"Commit {commits[0]['commit'][:10]}")
    expect(panel.locator(".message")).to_have_text(HOSTILE)
    contents = shown.json(f"/api/stock/1/commit/{commits[0]['commit']}")
    things = rows_of(panel.get_by_role("table", name="Things of the commit"), len(contents["things"]))
    assert [row["Name"] for row in things] == [thing["path"] for thing in contents["things"]]
    panel.get_by_role("button", name="What it changed").click()
    difference = region(page, "Difference")
    expect(difference.locator("article h3 .mono")).to_have_text(
        [
            thing["path"]
            for thing in shown.json(f"/api/stock/1/diff?a={commits[1]['commit']}&b={commits[0]['commit']}")
        ]
    )
    expect(difference.locator("article", has_text="experiment/lr").locator("p")).to_have_text("0.1 → 0.05")
    difference.get_by_role("button", name="Histograms before and now").click()
    tensors = rows_of(page.get_by_role("table", name="Tensors of model/net", exact=True), 2)
    model = shown.json(f"/api/stock/1/model?path=model/net&revision={commits[0]['commit']}")
    norms = {tensor["path"]: tensor["statistics"]["norm"] for tensor in model["tensors"]}
    assert {row["Tensor"]: number(row["Norm"]) for row in tensors} == {
        path: pytest.approx(norm, rel=5e-4) for path, norm in norms.items()
    }


def test_a_plan_is_that_of_the_command_line(visit: Watched, shown: Dashboard) -> None:
    words = (
        "--workers 4 --rows 200000 --rows-per-second 5000 --data-gb 8 --models 12 --epochs 5 --partitions 8"
    )
    known = printed("plan", *words.split())
    page = visit(shown.page("plan"))
    labels = {
        "Workers": "4", "Rows of the training data": "200000", "Rows a second": "5000", "Training data, GB": "8",
        "Models": "12", "Epochs": "5", "Partitions": "8",
    }  # fmt: skip
    for label, value in labels.items():
        page.get_by_role("textbox", name=label, exact=False).first.fill(value)
    page.get_by_role("button", name="Estimate").click()
    rows = rows_of(region(page, "Estimates").locator("table"), len(known["estimates"]))
    for row, estimate in zip(rows, known["estimates"], strict=True):
        assert estimate["way"] in next(iter(row.values()))
        (hours,) = [text for name, text in row.items() if "orker" in name]
        assert number(hours.split()[0]) == pytest.approx(estimate["worker_hours"], rel=5e-3)


def test_a_searcher_in_a_plan_takes_the_place_of_models_and_epochs(visit: Watched, shown: Dashboard) -> None:
    visit.expected.append("/api/plan: 400|status of 400")
    page = visit(shown.page("plan"))
    box = page.get_by_role("textbox", name="A searcher's config")
    ask = page.get_by_role("button", name="Estimate")
    ask.click()
    expect(region(page, "Estimates")).to_be_visible()
    expect(page.locator("code", has_text="hopyard plan --workers 8")).to_be_visible()
    box.fill(box.get_attribute("placeholder") or "")
    for name in ("Models", "Epochs"):
        expect(page.get_by_role("textbox", name=f"{name} as the searcher says")).to_be_disabled()
    ask.click()
    expect(page.get_by_text("64 trials train for")).to_be_visible()
    expect(region(page, "Estimates")).to_be_visible()
    assert not re.search("[?&](models|epochs)=", page.url)
    for wrong in ('{"name": "nothing"}', "{"):
        box.fill(wrong)
        ask.click()
        expect(page.get_by_role("alert")).to_have_count(1)
        expect(region(page, "Estimates")).to_have_count(0)
        expect(page.get_by_text("64 trials train for")).to_have_count(0)
        expect(page.locator("code", has_text="hopyard plan")).to_have_count(0)
    box.fill("")
    expect(page.get_by_role("textbox", name="Models or a searcher")).to_have_value("16")


def test_an_address_that_leads_nowhere_says_where_to_go(visit: Watched, shown: Dashboard) -> None:
    page = visit(shown.page("nothing/here"))
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()
    page.get_by_role("link", name="Go to the runs").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    visit.expected.append(r"/api/runs/0/nobody.*404|status of 404")
    page = visit(shown.page("runs/0/nobody"))
    expect(page.get_by_text("holds no run 'nobody'")).to_be_visible()
