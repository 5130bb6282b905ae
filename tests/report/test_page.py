"""The page: one file that loads nothing, well-formed, complete, and deaf to what a model's texts say."""

from html.parser import HTMLParser

import pytest

from autokernel.records import MaskRow
from autokernel.report import profile_page
from autokernel.report.page import slices, spans, width
from autokernel.report.roofline import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, roofline

VOID = {"meta", "br"}
LOADS = {
    "script",
    "link",
    "img",
    "iframe",
    "object",
    "embed",
    "base",
    "form",
    "source",
    "video",
    "audio",
    "image",
    "use",
}


class Page(HTMLParser):
    """Tags must nest; what is seen is kept."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text, self.declared = [], [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_decl(self, decl):
        self.declared = decl

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in {"line", "polyline"}, f"<{tag}/> does not close in HTML"
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())


@pytest.fixture
def page(profile):
    return Page(profile_page(profile))


def test_the_page_is_well_formed_html(page):
    assert page.declared == "DOCTYPE html"
    assert page.tags.count("table") >= 2 and "svg" in page.tags
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_the_page_loads_nothing_and_runs_nothing(profile, page):
    assert not LOADS & set(page.tags)
    assert not [each for each in page.attributes if each[1] in {"src", "href", "srcset", "action"}]
    assert not [each for each in page.attributes if each[1].startswith("on")]
    text = profile_page(profile)
    assert "url(" not in text and "@import" not in text and "http" not in text.replace("http-equiv", "")
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_light_and_dark_follow_the_reader_s_system(profile):
    assert "@media (prefers-color-scheme: dark)" in profile_page(profile)
    assert '<meta name="color-scheme" content="light dark">' in profile_page(profile)


def test_all_figures_are_there_without_a_script(profile, page):
    for figure in ("20.0 ms", "What to do", "add → rms norm", "1.68 ms", "52.0 %", "gather is not generated yet"):
        assert figure in page.words
    assert "graph 2: autocast region [no graph]" in page.words
    assert all(row.line.partition(" ")[0] in page.words for row in profile.lines)
    assert "autokernel optimize examples/llama_mini.py --device cpu" in page.words


def test_every_region_and_line_is_in_the_page_however_many(profile):
    rows = tuple(profile.regions[0].model_copy(update={"title": f"region {number}"}) for number in range(40))
    lines = tuple(profile.lines[0].model_copy(update={"line": f"m.py:{number}  x"}) for number in range(40))
    words = Page(profile_page(profile.model_copy(update={"regions": rows, "lines": lines}))).words
    assert all(f"region {number} " in words and f"m.py:{number} x" in words for number in range(40))


ATTACK = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{ 7 * 7 }}&amp;"


def poisoned(profile, text):
    row = profile.regions[0].model_copy(
        update={"title": text, "lines": (text,), "reason": text, "generator": None, "recoverable_us": 9e3}
    )
    ours = profile.regions[1].model_copy(update={"title": text, "generator": text, "lines": (text,)})
    gap = row.model_copy(update={"kind": "gap"})
    return profile.model_copy(
        update={
            "target": text,
            "device_name": text,
            "busy_us": 1.0,
            "gaps_us": 9_000.0,
            "regions": (row, ours, gap),
            "lines": (profile.lines[0].model_copy(update={"line": text}),),
            "skipped": (text,),
            "notes": (text,),
            "flags": ("--dtype", text),
            "outside_us": 5_000.0,
            "masks": (MaskRow(count=1, folds_to="given", reason=text, eager="none", lines=(text,)),),
            "ceilings": profile.ceilings.model_copy(update={"device": text, "matrix": {text: 1e9, "float32": 1e11}}),
        }
    )


def test_no_text_of_the_model_becomes_markup(profile):
    clean, page = Page(profile_page(poisoned(profile, "plain"))), Page(profile_page(poisoned(profile, ATTACK)))
    assert page.tags.count("script") == 0
    assert [tag for tag in page.tags if tag != "code"] == [tag for tag in clean.tags if tag != "code"]
    names = {name for _, name, _ in page.attributes}
    assert names == {name for _, name, _ in clean.attributes}
    assert page.words.count("<script>alert(1)</script>") >= 10, "shown as what it is"
    assert "49" not in page.words.replace("7 * 7", "")


def test_what_a_terminal_or_the_direction_of_text_would_obey_is_written_out(profile, tmp_path):
    text = profile_page(poisoned(profile, "a\x1b[31m\u202eb\ud800"))
    assert "\x1b" not in text and "\u202e" not in text
    assert "a\\x1b[31m\\u202eb\\ud800" in text
    (tmp_path / "page.html").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("total", [0.0, 20_400.0])
def test_a_profile_of_nothing_is_a_page_too(profile, total):
    empty = {"regions": (), "lines": (), "skipped": (), "total_us": total, "uninstrumented_us": total}
    words = Page(profile_page(profile.model_copy(update=empty))).words
    assert "Nothing stands out" in words or "Measure again" in words


def test_the_slices_add_up_to_a_call(profile):
    rows = [row.model_copy(update={"share": row.time_us / profile.total_us}) for row in profile.regions]
    found = slices(profile.model_copy(update={"regions": tuple(rows), "outside_us": 500.0}))
    assert sum(part.share for part in found) == pytest.approx(1)
    assert {part.kind for part in found} == {"ours", "others", "outside", "between"}


def test_widths_stay_within_the_bar():
    assert (width(0.5), width(1.7), width(-1.0)) == ("50.00%", "100.00%", "0.00%")


def test_backticks_become_code_and_nothing_else_does():
    assert spans("run `a b` now") == [(False, "run "), (True, "a b"), (False, " now")]
    assert spans("plain") == [(False, "plain")]


def test_points_and_roofs_lie_within_the_drawing(profile):
    ceilings = profile.ceilings.model_copy(update={"bandwidth": ((4096, 1e10), (2**28, 2e10))})
    rows = tuple(
        profile.regions[0].model_copy(update={"flops": flops, "min_bytes": size, "time_us": time})
        for flops, size, time in [(1, 10**9, 1e7), (10**12, 8, 1.0), (10**6, 10**6, 50.0), (0, 8, 1.0), (8, 0, 1.0)]
    )
    drawn = roofline(profile.model_copy(update={"regions": rows, "ceilings": ceilings}))
    assert len(drawn.points) == 3
    corners = [tuple(map(float, pair.split(","))) for roof in drawn.roofs for pair in roof.path.split()]
    for x, y in [*corners, *((point.x, point.y) for point in drawn.points)]:
        assert LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM


def test_a_region_at_the_roof_is_drawn_on_it(profile):
    flops, size = 10**9, 10**6  # far right of the corner: bound by arithmetic
    row = profile.regions[0].model_copy(
        update={"flops": flops, "min_bytes": size, "occurrences": 1, "time_us": 1e6 * flops / 1e11}
    )
    drawn = roofline(profile.model_copy(update={"regions": (row,)}))
    assert drawn.points[0].y == drawn.roofs[0].y


def test_no_roof_without_flops(profile):
    rows = tuple(row.model_copy(update={"flops": 0}) for row in profile.regions)
    assert roofline(profile.model_copy(update={"regions": rows})) is None


def test_a_gpu_s_waiting_is_on_the_page(profile):
    gap = profile.regions[0].model_copy(
        update={"title": "launch gaps", "kind": "gap", "generator": None, "reason": "no kernel can", "share": 0.3}
    )
    gpu = {
        "device": "cuda:0",
        "device_name": "NVIDIA Test",
        "regions": (*profile.regions, gap),
        "busy_us": 14_000.0,
        "gaps_us": 6_120.0,
    }
    words = Page(profile_page(profile.model_copy(update=gpu))).words
    assert "cuda:0, NVIDIA Test" in words and "GPU waits30.0 %between its kernels" in words.replace("\n", "")
    assert "The GPU waits for the CPU for 30.0 % of a call (6.12 ms)" in words
    assert "launch gaps: 1.68 ms, 30.0 % of the time – no kernel can" in words
