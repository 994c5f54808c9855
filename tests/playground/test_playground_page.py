"""The page computes what Python computes, can be used by keyboard and on a phone, and asks nobody else for anything."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

from emulon import language
from emulon.certify.transcript_checker import Words, read_prompt
from emulon.certify.transcript_checker import read as read_transcript
from emulon.language.prompt import prompt, text_of
from emulon.language.vocabulary import UNITS
from emulon.training import load_learner
from playground.data import FUNCTIONS, TEXT_STEPS, machine
from playground.offers import OFFERS, for_points

PLAYGROUND = Path(__file__).parents[2] / "playground"
LINE = [(-0.9, -0.7), (-0.5, -0.4), (-0.1, 0.3), (0.2, 0.25), (0.5, 1.1), (0.8, -1.2), (0.95, 1.3)]
PLANE = [
    (-0.7, 0.1, -1),
    (-0.5, -0.4, -1),
    (-0.1, -0.6, -1),
    (0.2, 0.4, 1),
    (0.4, -0.1, 1),
    (0.6, 0.5, 1),
    (0.1, -0.2, 1),
]
STEPS = 50


def text(points):
    return ";".join(",".join(map(str, point)) for point in points)


def open_at(watched, served, where):
    """The page at an address of its own, loaded anew."""
    watched.page.goto("about:blank")
    watched.page.goto(f"{served}#{where}")
    watched.page.wait_for_selector("h1")
    return watched.page


def shown(page, what="own"):
    return torch.tensor(json.loads(page.locator("#weights").get_attribute(f"data-{what}")), dtype=torch.float64)


def problem(points):
    table = torch.tensor(points, dtype=torch.float64)
    ones = torch.ones(len(points), 1, dtype=torch.float64)
    classes = table.shape[1] == 3
    x = torch.cat([ones, table[:, :2] if classes else table[:, :1]], dim=1)
    return x, table[:, 2] if classes else table[:, 1]


@pytest.mark.parametrize(("name", "points"), [("ridge", LINE), ("lasso", LINE), ("logistic", PLANE)])
def test_fifty_steps_give_pythons_weights(desk, served, programs, interpreter, name, points):
    page = open_at(desk, served, f"algorithms/{name}/{STEPS}/{text(points)}")
    program = for_points(programs[name].changed(steps=STEPS), len(points))
    run = interpreter.run(program, *problem(points), mode="reference")
    assert run.weights.abs().max() > 0.1
    assert (shown(page) - run.weights).abs().max() <= 1e-9
    [offer] = [each for each in OFFERS if each.name == name]
    assert (shown(page, "exact") - offer.algorithm.descent.iterates(*problem(points))[STEPS]).abs().max() <= 1e-12


def test_every_prompt_runs_and_stays_within_its_bound(desk, served):
    page = open_at(desk, served, "algorithms")
    bounds = {each["name"]: each["bounds"] for each in page.evaluate("fetch('data/programs.json').then(a => a.json())")}
    for name in bounds:
        page.evaluate("where => { location.hash = where }", f"algorithms/{name}/{STEPS}")
        page.wait_for_selector(f"input[value={name}]:checked")
        error = (shown(page) - shown(page, "exact")).abs().max()
        assert error < 1e-4 and error <= bounds[name][STEPS] and shown(page).abs().max() > 0.1, name
    assert len(bounds) == len(OFFERS) >= 12


def test_the_frozen_weights_have_pythons_hash_until_one_is_bent(desk, served, interpreter):
    page = open_at(desk, served, f"algorithms/ridge/{STEPS}/{text(LINE)}")
    hash_shown = page.locator("#sha256")
    expect(hash_shown).to_have_attribute("data-sha256", interpreter.sha256)
    before = shown(page)
    page.locator("#bend").fill("20")
    page.wait_for_selector("#sha256.changed")
    assert hash_shown.get_attribute("data-sha256") != interpreter.sha256
    assert (shown(page) - before).abs().max() > 1e-3
    assert (shown(page, "exact") - before).abs().max() < 1e-9
    assert "none" in page.locator("#bound").inner_text()
    page.get_by_role("button", name="let go").click()
    page.wait_for_selector("#sha256:not(.changed)")
    assert (shown(page) - before).abs().max() == 0


def test_a_point_is_dragged_added_moved_by_keys_and_removed(desk, served):
    page = open_at(desk, served, f"algorithms/linear/30/{text(LINE)}")
    points, before = page.locator(".plane .point"), shown(page)
    box = points.nth(5).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"], box["y"] - 120, steps=3)
    page.mouse.up()
    expect(page.locator("#weights")).not_to_have_attribute(
        "data-own", json.dumps(before.tolist(), separators=(",", ":"))
    )
    assert (shown(page) - before).abs().max() > 1e-2
    plane = page.locator(".plane").bounding_box()
    page.mouse.click(plane["x"] + plane["width"] * 0.5, plane["y"] + plane["height"] * 0.15)
    assert points.count() == len(LINE) + 1
    points.nth(0).focus()
    there = points.nth(0).get_attribute("aria-label")
    page.keyboard.press("ArrowUp")
    assert points.nth(0).get_attribute("aria-label") != there
    page.keyboard.press("Delete")
    assert points.count() == len(LINE)


def test_steps_are_taken_played_and_rewound_by_keyboard(desk, served):
    page = open_at(desk, served, f"algorithms/ridge/0/{text(LINE)}")
    page.get_by_role("button", name="play").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#step")).to_have_text(re.compile(r"([3-9]|\d\d+) / 200"))
    page.keyboard.press("Enter")
    page.get_by_role("slider", name="step").focus()
    page.keyboard.press("End")
    assert page.locator("#step").inner_text() == "200 / 200"
    page.get_by_role("button", name="rewind").focus()
    page.keyboard.press("Enter")
    assert shown(page).abs().max() == 0
    page.locator("input[value=ridge]").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("input[name=prompt]:checked").get_attribute("value") == "linear"


def test_two_algorithms_run_side_by_side_on_one_hash(desk, served, programs, interpreter):
    page = open_at(desk, served, f"algorithms/ridge/{STEPS}/{text(LINE)}")
    page.locator("#beside").select_option("huber")
    for name, what in (("ridge", "own"), ("huber", "beside")):
        program = for_points(programs[name].changed(steps=STEPS), len(LINE))
        run = interpreter.run(program, *problem(LINE), mode="reference")
        assert (shown(page, what) - run.weights).abs().max() <= 1e-9
    whose = ": the same for ridge and huber"
    expect(page.locator("#sha256")).to_have_text(f"frozen weights, sha256 {interpreter.sha256}{whose}")
    assert page.locator(".plane .fit").count() == 2
    page.locator("#beside").select_option("")
    assert page.locator(".plane .fit").count() == 1 and shown(page, "beside").numel() == 0


@pytest.mark.parametrize(("scheme", "size"), [("light", (1280, 800)), ("dark", (390, 800))], ids=["desktop", "phone"])
def test_plot_and_prompt_are_on_the_first_screen(desk, phone, served, scheme, size):
    watched = desk if size[0] > 1000 else phone
    watched.page.set_viewport_size({"width": size[0], "height": size[1]})
    watched.page.emulate_media(color_scheme=scheme)
    open_at(watched, served, "").evaluate("localStorage.clear()")  # a choice of light or dark that was made before
    page = open_at(watched, served, "")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    for what in (".plane", ".prompts canvas"):
        box = page.locator(what).first.bounding_box()
        assert box["y"] + box["height"] <= size[1] and box["x"] + box["width"] <= size[0], what
    assert page.locator(".axis-name").all_text_contents()[:2] == ["feature x", "target y"]
    page = open_at(watched, served, "llama")
    for what in (".given", ".answer"):
        box = page.locator(what).bounding_box()
        assert box["y"] + box["height"] <= size[1] and box["x"] + box["width"] <= size[0], what


def test_a_run_of_ones_own_is_opened(desk, served, tmp_path):
    page = open_at(desk, served, "")
    places = {
        "huber_regression": f"algorithms/huber/30/{text(LINE)}/0.25,0.5/ten rows",
        "ridge": "algorithms/ridge/7/0,0;1,1",
    }
    (tmp_path / "playground.json").write_text(json.dumps(places))
    page.locator("#own-run").set_input_files(tmp_path / "playground.json")
    expect(page.locator("#origin")).to_have_text("ten rows")
    assert page.locator(".plane .ran").count() == 1 and page.locator(".plane .point").count() == len(LINE)
    page.get_by_role("link", name="ridge").click()
    expect(page.locator("#step")).to_have_text("7 / 200")
    (tmp_path / "other.json").write_text("[1, 2]")
    page.locator("#own-run").set_input_files(tmp_path / "other.json")
    expect(page.locator(".places")).to_contain_text("This is no playground.json of emulon run")


def test_the_tour_shows_what_it_speaks_of(phone, served):
    page = open_at(phone, served, "")
    page.emulate_media(reduced_motion="reduce")  # it waits for its button then
    page.locator("#start-tour").click()
    count = int(page.locator("#tour .note").inner_text().split(" of ")[1])
    for step in range(count):
        expect(page.locator("#tour .note")).to_have_text(f"{step + 1} of {count}")
        expect(page.locator(".toured")).to_be_in_viewport()
        page.locator("#tour .main").click()
    expect(page.locator("#tour")).to_be_hidden()
    assert page.locator(".toured").count() == 0 and count * 7.5 == 60


def test_data_outside_the_domain_are_refused_in_words(desk, served):
    page = open_at(desk, served, f"algorithms/poisson/20/{text(LINE)}")
    assert "Counts cannot be negative" in page.locator("[role=status].warn").first.inner_text()


def test_a_softmax_is_the_function_that_it_says(desk, served):
    page = open_at(desk, served, "softmax")
    for name in FUNCTIONS:
        page.locator(f"input[name=function][value='{name}']").check()
        off, bound = (page.locator("dd").nth(k).inner_text() for k in (2, 3))
        assert number(off) <= number(bound.removeprefix("≤")), name
    page.locator("#keys").fill("6")
    assert number(page.locator("dd").nth(3).inner_text().removeprefix("≤")) < 1e-7


def number(text):
    """1.7·10⁻⁶ as a number."""
    return float(text.strip().replace("·10", "e").translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")))


def test_the_learner_answers_as_in_python(desk, served):
    page = open_at(desk, served, "identify/1,0.5;-0.5,-0.4;1.5,1.25")
    said = torch.tensor(json.loads(page.locator("[data-said]").get_attribute("data-said")), dtype=torch.float64)
    xs, ys = torch.tensor([[1.0], [-0.5], [1.5]]), torch.tensor([0.5, -0.4, 1.25])
    queries = torch.linspace(-2, 2, len(said)).unsqueeze(-1)
    expected = load_learner(PLAYGROUND / "learner")[0].eval().predict(xs, ys, queries)
    assert expected.abs().max() > 0.5
    assert (said - expected).abs().max() <= 1e-5
    assert "Nearest after 3 points: ridge" in page.locator("#nearest").inner_text()


def test_the_machine_predicts_as_in_python(desk, served):
    page = open_at(desk, served, "machine/3")
    guess = float(page.locator("[data-guess]").get_attribute("data-guess"))
    xs = torch.tensor([[1, -0.6], [1, 0.7], [1, -0.2], [1, 0.45], [1, 0.9]], dtype=torch.float64)
    ys = torch.tensor([-0.5, 0.8, 0.25, 0.15], dtype=torch.float64)
    compiled = machine().compile()
    assert abs(guess - compiled.predict(xs, ys)[-1].item()) <= min(1e-11, compiled.certificate.bound)
    assert page.locator(".registers tr.on").count() == 3  # w, and the guess


SHORT = 2  # steps that the Llama writes in tests


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """The stock model, as Python writes and runs it."""
    folder = tmp_path_factory.mktemp("llama")
    return language.write(folder), language.load(folder, attention="eager")


def completed(page, prompt):
    """What the page's Llama writes behind a prompt of the visitor's own."""
    page.locator("summary").evaluate("each => { each.parentElement.open = true }")
    page.get_by_label("a prompt of your own").fill(prompt)
    page.get_by_role("button", name="run it").click()
    expect(page.locator("#words")).to_have_attribute("data-prompt", " ".join(prompt.split()) + "\n")
    page.get_by_role("button", name="to the end").click()
    expect(page.locator("#words")).to_have_attribute("data-done", "true", timeout=90_000)
    return page.locator("#words").get_attribute("data-written")


def test_the_llama_writes_what_python_writes(desk, served, stock):
    digest, model = stock
    page = open_at(desk, served, "llama")
    prompts, units = {}, {}
    for name in ("ridge", "huber", "logistic"):
        page.locator(f"input[name=method][value={name}]").check()
        whole = page.locator("#words").get_attribute("data-prompt")
        prompts[name] = whole.replace(f"until:{TEXT_STEPS}", f"until:{SHORT}")
    written = dict(zip(prompts, model.complete(list(prompts.values())), strict=True))
    for name, text in prompts.items():
        own = completed(page, text)
        units[name] = torch.tensor([each.written for each in map(read_transcript, (text + own, text + written[name]))])
        assert units[name].shape[1] == SHORT and units[name][0, -1].abs().max() > 10**6
        # A smooth gate is rounded otherwise by other kernels: torch's own differ in the last digit, too.
        assert own == written[name] or name == "logistic"
    assert (units["logistic"][0] - units["logistic"][1]).abs().max() <= 10 and len(set(written.values())) == 3
    expect(page.locator("#llama-sha256")).to_have_attribute("data-sha256", digest)


def test_a_prompt_of_the_page_is_pythons(desk, served):
    page = open_at(desk, served, "llama/logistic")
    shown_prompt = page.locator("#words").get_attribute("data-prompt")
    rows = read_prompt(Words(shown_prompt))
    [offer] = [each for each in OFFERS if each.name == "logistic"]
    x, y = (torch.tensor(each, dtype=torch.float64) / UNITS for each in (rows.rows, rows.targets))
    assert x.shape == (6, 3) and text_of(prompt(replace(offer.algorithm, steps=TEXT_STEPS), x, y)) == shown_prompt


def test_stream_and_attention_of_a_word_are_torchs(desk, served, stock):
    model = stock[1]
    page = open_at(desk, served, "llama/huber")
    given = page.locator("#words").get_attribute("data-prompt").replace(f"until:{TEXT_STEPS}", f"until:{SHORT}")
    start, text = len(given.split()) + 1, " ".join([*given.split(), completed(page, given)])
    streams = []
    hook = model.network.model.norm.register_forward_pre_hook(lambda _, arguments: streams.append(arguments[0][0]))
    with torch.no_grad():
        looked = model.network(torch.tensor([model.vocabulary.encode(text)]), output_attentions=True).attentions
    hook.remove()
    for at in (7, start, start + 2, start + 10, start + 30):  # among them @2, w1 and a group
        page.locator("#words span").nth(at).click()
        expect(page.locator("#word code").first).to_have_text(["<s>", *text.split()][at])
        stream = torch.tensor(json.loads(page.locator("#registers-of-word").get_attribute("data-values")))
        assert torch.allclose(stream, streams[0][at], rtol=1e-5, atol=1e-5)
        looks = json.loads(page.locator("#looks").get_attribute("data-looks"))
        for look in looks:
            weights = looked[look["layer"]][0, look["head"], at]
            seen = {token: weight for token, weight in enumerate(weights.tolist()) if weight > 0.01}
            assert {token: weight for token, weight in look["to"] if weight > 0.01} == pytest.approx(seen, abs=1e-5)
        assert len(looks) > 30 and page.locator("#looks li").count() > 4
        assert page.locator("#words .seen").count() > 0


def test_a_word_that_is_none_is_refused(desk, served):
    page = open_at(desk, served, "llama")
    page.locator("summary").click()
    page.get_by_label("a prompt of your own").fill("until:3 rate half")
    page.get_by_role("button", name="run it").click()
    expect(page.locator("main .warn[role=status]")).to_have_text("“half” is no word of the language.")


@pytest.mark.parametrize("scene", ["algorithms", "llama", "softmax", "identify", "machine"])
def test_nothing_is_wider_than_a_phone(phone, served, scene):
    page = open_at(phone, served, scene)
    if scene == "llama":
        expect(page.locator("#looks li").first).to_be_visible()
    # Neither the page nor anything on it, but for what scrolls in a box of its own.
    cut = """() => [...document.querySelectorAll("body *")].filter(each => !each.closest(".scroll, .skip, svg")
        && each.getBoundingClientRect().right > innerWidth + 0.5).map(each => each.outerHTML.slice(0, 80))"""
    assert page.evaluate(cut) == []
    width, needed = page.evaluate("[innerWidth, document.documentElement.scrollWidth]")
    assert needed <= width
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") in ("light", "dark")
