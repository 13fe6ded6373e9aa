"""The report: what it says is what was found, and a real browser shows it without the network."""

from __future__ import annotations

import base64
import json
import re
import shutil

import numpy as np
import pytest

from kedrl_dask import KEDRL, TransitionStore, cli, compare, report
from kedrl_dask.engine.execute.threads import ThreadExecutor
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.report import sentences as words
from kedrl_dask.report.content import typical_inputs
from kedrl_dask.report.traffic_lights import checks, overall
from tests.conftest import make_episodes, need
from tests.estimator.fitted.test_answers import ACTION, BAD, OTHER, POLICY, SETTINGS, STATE

#: A name that would run a script if it were not escaped.
NAME = "<img src=x onerror=alert(1)>"
POLICIES = {"rev & co": POLICY, NAME: OTHER}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def found(place):
    store = TransitionStore.from_arrays(place / "data", **make_episodes(40, 12))
    found = compare(
        store, POLICIES, (STATE, None), KEDRL(0.6, **SETTINGS), n_replicates=3, progress="none",
        recovery={"projected": {1: [-2, -1, 0, 1, 2]}}, executor=ThreadExecutor(1),
    )  # fmt: skip
    found.to_zarr(place / "results.zarr")
    return found


@pytest.fixture(scope="module")
def page(found, place):
    return report.write(report.read(place / "results.zarr"), place / "page.html")


@pytest.fixture(scope="module")
def saved(found, place):
    """A directory as a run leaves it."""
    (place / "run").mkdir()
    found.models["rev & co"].save(place / "run" / "model")
    return place / "run"


@pytest.fixture(scope="module")
def refused_page(saved):
    model = KEDRL.load(saved / "model")
    model.diagnostics_.update(BAD["coverage"][0])
    return report.write(report.from_model(model, "mine"), saved / "refused.html")


def text_of(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_page__is_one_file_that_fetches_nothing(page):
    text = text_of(page)
    assert "default-src 'none'" in text
    head, _, body = text.partition("<body>")
    body = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    assert not re.search(r"(src|href)=[\"'](?!#)", head + body)
    assert "Bokeh" in text
    assert len(text) < 3_000_000


def test_page__escapes_names(page):
    text = text_of(page)
    assert NAME not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "rev &amp; co" in text


def test_page__has_answers_before_diagnostics(page, found):
    text = text_of(page)
    places = [text.index(f">{title}</h2>") for title in (
        "The question", "Answers", "The data", "The policies", "Diagnostics", "Settings, versions, timings",
    )]  # fmt: skip
    assert places == sorted(places)
    assert "2 rewards (γ = 0.6)" in text
    assert (
        f"{found.models['rev & co'].diagnostics_['sizes']['transitions']:,} transitions in 40 episodes"
        in text
    )
    assert found.dataset.attrs["fingerprint"] in text
    for name, version in json.loads(found.dataset.attrs["versions"]).items():
        assert f'<td>{name}</td><td class="code">{version}</td>' in text
    assert "streaming pass</td>" in text


def test_table__has_the_numbers_of_the_dataset(page, found):
    rows = re.findall(r'<tbody class="at-input" data-input="2".*?</tbody>', text_of(page), flags=re.DOTALL)
    assert len(rows) == 2  # of summaries and of differences
    part = found.dataset.sel(policy="rev & co").isel(input=2, coordinate=0)
    for name in ("mean", "mean_low", "mean_high", "mean_second", "sd", "cvar"):
        number = f"{float(part[name]):.3g}".replace("-", "−")
        assert number in rows[0]
    difference = found.dataset["cvar_difference"].isel(pair=0, input=2, coordinate=1)
    assert f"{float(difference):z.3g}".replace("-", "−") in rows[1]
    assert (
        f"dominant: {found.dataset['dominant'].values[0, 2, 0]}".replace("<", "&lt;").replace(">", "&gt;")
        in rows[1]
    )


def test_answers__count_the_clear_differences(found):
    part = found.dataset.isel(pair=0, coordinate=0)
    higher = int((part["mean_difference_low"] > 0).sum())
    sentences = words.answers(found.dataset)
    assert len(sentences) == 2
    assert f"clearly higher at {higher} of 3 inputs" in sentences[0]


def test_checks__lights_follow_the_findings(found):
    content = report.from_results(found.dataset, "here")
    lights = {(check.policy, check.code): check for check in checks(content)}
    assert lights[NAME, "solver"].light == "green"
    assert "relative gradient" in lights[NAME, "solver"].sentence
    for finding in found.findings:
        check = lights[finding.subject, finding.code]
        assert check.light == ("red" if finding.severity == "refuse" else "amber")
        assert finding.sentence[1:] in check.sentence
    raised = {(finding.subject, finding.code) for finding in found.findings}
    assert all(check.light in ("green", "grey") for at, check in lights.items() if at not in raised)
    assert overall(list(lights.values())) == ("amber" if found.findings else "green")


def test_checks__an_accepted_refusal_stays_red_and_says_so(saved):
    model = KEDRL.load(saved / "model")
    model.diagnostics_.update(BAD["coverage"][0])
    content = report.from_model(model, "mine", accept=("coverage",))
    assert content.dataset is not None
    (check,) = [check for check in checks(content) if check.code == "coverage"]
    assert (check.light, check.is_accepted) == ("red", True)
    text = report.render(content)
    assert "Answers are shown despite findings that would refuse them: coverage" in text
    assert "Some of these answers would mislead" in text


def test_refused__page_has_reasons_in_place_of_answers(refused_page):
    text = text_of(refused_page)
    assert "The answers were refused because they would mislead" in text
    assert "38.0% of the points" in text
    assert "--accept coverage" in text
    assert "Bokeh.embed" in text
    assert '<script type="application/json"' not in text


def test_model__inputs_along_the_basis(saved):
    content = report.read(saved)
    model = KEDRL.load(saved / "model")
    inputs = typical_inputs(model)
    assert inputs.shape == (5, 3)
    assert all((model.basis_ == row).all(axis=1).any() for row in inputs)
    law = model.recover(inputs[:, :2], inputs[:, 2:])
    np.testing.assert_array_equal(content.dataset["mean"].isel(policy=0), law.mean())
    assert "first principal component" in content.where
    direct = report.read(saved / "model")
    np.testing.assert_array_equal(direct.dataset["mean"], content.dataset["mean"])


def test_model__of_a_demonstration_has_its_points(saved, tmp_path):
    shutil.copytree(saved / "model", tmp_path / "demo" / "model")
    points = np.hstack([STATE, ACTION])
    (tmp_path / "demo" / "summary.json").write_text(
        json.dumps({"kind": "kedrl demo", "points": points.tolist()})
    )
    content = report.read(tmp_path / "demo")
    np.testing.assert_array_equal(content.dataset["input_state"], STATE)
    np.testing.assert_array_equal(content.dataset["input_action"][0], ACTION)


@pytest.mark.slow
def test_average__is_told(found, place):
    store = TransitionStore.open(place / "data")
    averaged = compare(
        store, {"a": POLICY}, (STATE, None), KEDRL(0.6, **SETTINGS), n_replicates=0, progress="none",
        average=True, executor=ThreadExecutor(1),
    )  # fmt: skip
    content = report.from_results(averaged.dataset, "here")
    assert "averaged over a sample of 3 states" in content.where
    assert "Return 1: the mean is" in report.render(content)


def test_cli__writes_the_page_and_replaces_reports_alone(saved, place, found, capsys, tmp_path):
    assert cli.main(["report", str(saved)]) == 0
    assert f"Written to {saved / 'report.html'}" in capsys.readouterr().out
    assert cli.main(["report", str(place / "results.zarr"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["output"] == str((place / "results.html").resolve())
    assert summary["answered"] is True
    assert {check["code"] for check in summary["checks"]} >= {"solver", "coverage"}
    assert cli.main(["report", str(saved)]) == 0
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    capsys.readouterr()
    assert cli.main(["report", str(saved), "--output", str(other)]) == 2
    assert "is not a report of kedrl" in capsys.readouterr().err
    assert other.read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "no such file"), ("data", "of kind 'transitions'"), (".", "none of these")],
)
def test_read__what_it_is_not_made_from(found, place, name, message):
    with pytest.raises(StoreError, match=message):
        report.read(place / name)


def test_data__without_intervals(found):
    single = found.dataset.isel(policy=[0]).drop_dims("pair")
    single = single.drop_vars(
        [name for name in single if name.endswith(("_low", "_high", "_standard_error"))]
    )
    text = report.render(report.from_results(single, "here"))
    assert "Bands and small print" not in text


FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1200,1000",
)  # fmt: skip


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A headless Chromium of its own."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    need("browser", program and driver, "install chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser') / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


@pytest.fixture
def browser(chromium):
    """A window as a new one is, with what it logs and requests from now on."""
    chromium.get("about:blank")
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    for kind in ("browser", "performance"):
        chromium.get_log(kind)  # what was logged before
    return chromium


def visit(browser, page):
    """Open the page and wait until its charts are there."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.resolve().as_uri())
    WebDriverWait(browser, 60).until(
        lambda it: it.execute_script("return document.documentElement.dataset.ready === 'yes'")
    )


def choose(browser, name, value):
    """Choose in a control, as a person does, and wait until it is painted."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element(By.ID, name)).select_by_value(value)
    browser.execute_async_script(
        "const done = arguments[0]; setTimeout(() => requestAnimationFrame(done), 200)"
    )


def picture(browser, name):
    from selenium.webdriver.common.by import By

    return browser.find_element(By.ID, name).screenshot_as_png


def complaints(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def requests(browser):
    """Addresses of everything that was asked for."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def property_of(browser, model, name):
    """A property of a Bokeh model on the page."""
    script = "return Bokeh.documents.map(d => d.get_model_by_name(arguments[0])).find(Boolean)[arguments[1]]"
    return browser.execute_script(script, model, name)


def data_of(browser, source):
    data = property_of(browser, source, "data")
    return {name: np.array(values, dtype=object if name == "y" else float) for name, values in data.items()}


@pytest.mark.slow
def test_browser__page_renders_and_responds(browser, page, found):
    visit(browser, page)
    x = found.dataset["thresholds"].values[0]
    shown = data_of(browser, "density-1")
    expected = np.interp(shown["x"], x, found.dataset["density"].values[1, 0, 0])
    np.testing.assert_allclose(shown["value"], expected, rtol=1e-3, atol=1e-4)
    before = {name: picture(browser, name) for name in ("density", "cdf", "difference")}
    assert all(len(png) > 3_000 for png in before.values())

    choose(browser, "input", "2")
    expected = np.interp(data_of(browser, "density-1")["x"], x, found.dataset["density"].values[1, 2, 0])
    np.testing.assert_allclose(data_of(browser, "density-1")["value"], expected, rtol=1e-3, atol=1e-4)
    assert picture(browser, "density") != before["density"]
    assert picture(browser, "cdf") != before["cdf"]
    shown = "return [...document.querySelectorAll('tbody.at-input:not([hidden])')].map(e => e.dataset.input)"
    assert browser.execute_script(shown) == ["2", "2"]

    choose(browser, "coordinate", "1")  # projected: masses in place of a density
    masses = data_of(browser, "density-0")
    np.testing.assert_allclose(masses["value"], found.laws["rev & co"].pmf(1).probability[2], atol=1e-5)
    shown = data_of(browser, "difference-0")
    np.testing.assert_allclose(
        shown["value"], found.dataset["mean_difference"].values[0, :, 1], rtol=1e-3, atol=1e-5
    )
    assert picture(browser, "difference") != before["difference"]

    choose(browser, "summary", "cvar")
    shown = data_of(browser, "difference-0")
    np.testing.assert_allclose(
        shown["low"], found.dataset["cvar_difference_low"].values[0, :, 1], rtol=1e-3, atol=1e-5
    )

    with_both = picture(browser, "density")
    browser.execute_script("document.querySelector('input.policy[data-policy=\"1\"]').click()")
    choose(browser, "summary", "mean")
    assert picture(browser, "density") != with_both
    assert complaints(browser) == []
    # The browser's own start page is chrome://.
    assert {url.split(":")[0] for url in requests(browser)} <= {"chrome", "file", "data", "blob"}
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.slow
def test_browser__light_dark_and_print(browser, page):
    def paper():
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    for theme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        )
        visit(browser, page)
        assert paper() == colour
        assert (
            property_of(browser, "cdf-chart", "background_fill_color")
            == {"light": "#ffffff", "dark": "#0d1117"}[theme]
        )
    before = picture(browser, "cdf")
    browser.execute_script("document.getElementById('theme').click()")
    choose(browser, "input", "1")
    assert paper() == "rgb(255, 255, 255)"
    assert picture(browser, "cdf") != before
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF")
    assert browser.execute_script("return [...document.querySelectorAll('details')].every(e => e.open)")
    assert complaints(browser) == []


def test_browser__refused_page(browser, refused_page):
    visit(browser, refused_page)
    assert "would mislead" in browser.execute_script("return document.body.innerText")
    browser.execute_script("document.getElementById('theme').click()")
    assert complaints(browser) == []


def test_need__skips_or_fails(monkeypatch):
    need("browser", True, "")
    monkeypatch.delenv("KEDRL_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser on this machine; install it"):
        need("browser", False, "install it")
    monkeypatch.setenv("KEDRL_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no browser"):
        need("browser", False, "install it")
