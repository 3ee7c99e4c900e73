"""Speed: what is counted by hand, what a scripted clock must give, and the command. Nothing here is timed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.small_models import classifier
from torch import nn
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.cli.text import bench_text
from headcount.documents.bench import speed_text
from headcount.efficiency import benchmark, contention, in_turns, random_inputs
from headcount.efficiency import flops as flop_counts
from headcount.efficiency.benchmark import Bench, Speed, Subject, Time, bench
from headcount.errors import BadMeasure, BadRun, OutOfMemory
from headcount.runs import Run

CPU = torch.device("cpu")
WIDTH, NEURONS, HEAD = 32, 48, 8  # of the zoo's encoders


@pytest.fixture(autouse=True)
def as_people_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of a timing and the number of them are what users get, not what other tests do with."""
    monkeypatch.setattr(benchmark, "SHORTEST", 0.05)
    monkeypatch.setattr(benchmark, "MOST", 25)


class Toy(nn.Module):
    """A model of a hundred weights that keeps a diary of its batches."""

    def __init__(self, neurons: int, diary: list[Any]) -> None:
        super().__init__()
        self.matrix, self.diary = nn.Linear(10, neurons, bias=False), diary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.diary.append((self.matrix.out_features, len(x)))
        return self.matrix(x)


class CallOrder:
    """A clock that reads its times off a list, per model, and remembers in which order the models ran."""

    def __init__(self, diary: list[Any], times: dict[int, list[tuple[float, float]]]) -> None:
        self.diary, self.times, self.passes = diary, {key: list(value) for key, value in times.items()}, []

    def __call__(self, run: Any, device: torch.device) -> Time:
        before = len(self.diary)
        run()
        ran = self.diary[before:]
        assert len(set(ran)) == 1
        self.passes.append((ran[0][0], len(ran)))
        return Time(*self.times[ran[0][0]].pop(0))


def toy_inputs(model: nn.Module, batch: int, length: int | None) -> dict[str, Any]:
    return {"x": torch.ones(batch, 10)}


def toys(*neurons: int) -> tuple[dict[str, nn.Module], list[Any]]:
    diary: list[Any] = []
    return {f"toy-{n}": Toy(n, diary) for n in neurons}, diary


# -- counting ------------------------------------------------------------------------------------------------------------


def by_hand(batch: int, length: int, heads: list[int], outputs: int) -> int:
    """Twice the multiply-adds of a BERT classifier with so many heads left in each layer."""
    tokens, total = batch * length, 0
    for left in heads:
        total += 4 * tokens * WIDTH * left * HEAD  # query, key, value, output
        total += 2 * batch * left * length * length * HEAD  # scores, and the sum of values
        total += 2 * tokens * WIDTH * NEURONS
    return 2 * (total + batch * WIDTH * WIDTH + batch * WIDTH * outputs)  # pooler and classifier


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize(("plan", "heads"), [("", [4, 4, 4]), ("0:0-1 1:1 2:3", [2, 3, 3]), ("0:0-2 2:0,2", [1, 4, 2])])
def test_multiply_adds_are_those_of_the_formula(kernel, plan, heads) -> None:
    model = classifier(attn_implementation=kernel)
    if plan:
        hc.cut(model, plan)
    with torch.no_grad():
        flops, _ = flop_counts.counted(model, random_inputs.random_batch(model, 5, 9))
    assert flops == by_hand(5, 9, heads, 3)


def test_closed_heads_are_counted_because_they_are_computed() -> None:
    model = classifier()
    with torch.no_grad(), hc.masked(model, "0:0-1 1:1"):
        assert flop_counts.counted(model, random_inputs.random_batch(model, 2, 9))[0] == by_hand(2, 9, [4, 4, 4], 3)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_shared_keys_and_values_are_counted(kernel) -> None:
    model, _ = zoo.build("llama")  # 8 heads, 4 of keys and values
    model.set_attn_implementation(kernel)
    config, batch, length = model.config, 3, 7
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    tokens, hidden = batch * length, config.hidden_size
    layer = 2 * tokens * hidden * (queries + keys) + 2 * batch * queries * length * length
    layer += 3 * tokens * hidden * config.intermediate_size
    whole = config.num_hidden_layers * layer + tokens * hidden * config.vocab_size
    with torch.no_grad():
        flops, _ = flop_counts.counted(model, random_inputs.random_batch(model, batch, length))
        # the angles of the positions are a matrix product in some versions of transformers, and none in others
        rotations = {"x": torch.zeros(1), "position_ids": torch.arange(length)[None]}
        angles, _ = flop_counts.counted(model.model.rotary_emb, rotations)
    assert angles in (0, length * config.head_dim)
    assert flops == 2 * whole + angles


def test_the_fast_path_of_torch_is_counted_too() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, NEURONS, batch_first=True).eval()
    tokens = 2 * 6
    want = 2 * (4 * tokens * WIDTH * WIDTH + 2 * 2 * 6 * 6 * WIDTH + 2 * tokens * WIDTH * NEURONS)
    with torch.no_grad():
        assert flop_counts.counted(layer, {"src": torch.randn(2, 6, WIDTH)})[0] == want
    assert torch.backends.mha.get_fastpath_enabled()


def test_peak_memory_of_a_known_case() -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 30), nn.Linear(30, 2))
    weights = 4 * (4 * 50 + 50 + 50 * 30 + 30 + 30 * 2 + 2)
    with torch.no_grad():
        _, peak = flop_counts.counted(model, {"input": torch.ones(7, 4)})
    # the input stays; while the second matrix is at work its input and its output are there, and nothing else
    assert peak == weights + 4 * 7 * (4 + 50 + 30)


def test_views_hold_no_memory_of_their_own_and_what_is_gone_is_gone() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(5):
                y = x + 1
                y = y.view(-1)[:3].expand(9, 3)
            return y

    with torch.no_grad():
        _, peak = flop_counts.counted(Model(), {"x": torch.ones(100)})
    assert peak == 3 * 400  # the input, the last sum but one until its name is given away, and the sum


def test_what_comes_where_something_gone_was_is_counted_anew() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for size in range(1, 50):
                y = x.new_zeros(1000 * size)
                del y
            return x

    with torch.no_grad():
        _, peak = flop_counts.counted(Model(), {"x": torch.ones(100)})
    assert peak == 400 + 4 * 49_000


def test_counting_leaves_the_model_as_it_was() -> None:
    model = classifier().train()
    before = Fingerprint(model)
    bench({"model": model}, batch_sizes=[2], lengths=[5], repeats=1)
    assert not before.changed()


# -- the clock's times ---------------------------------------------------------------------------------------------------


def test_medians_quartiles_and_ratios_are_those_of_the_times() -> None:
    models, diary = toys(8, 4)
    looks = (1.0, 9.0)
    walls = {8: [3.0, 6.0, 9.0], 4: [3.0, 2.0, 6.0]}
    works = {8: [2.0, 4.0, 8.0], 4: [1.0, 4.0, 2.0]}  # is not what counts
    clock = CallOrder(diary, {n: [looks, *zip(walls[n], works[n], strict=True)] for n in (8, 4)})
    found = bench(models, batch_sizes=[18], lengths=[5], repeats=3, inputs=toy_inputs, clock=clock)
    first, second = found.rows
    assert (first.examples_per_second, first.low, first.high) == (3.0, 2.5, 4.5)  # of 6, 3, 2
    assert (second.examples_per_second, second.low, second.high) == (6.0, 4.5, 7.5)  # of 6, 9, 3
    assert (first.ratio, first.ratio_low, first.ratio_high) == (1.0, 1.0, 1.0)
    # of 1, 3 and 1.5: pair by pair, by the time on the wall. The ratio of the medians would be 2.
    assert (second.ratio, second.ratio_low, second.ratio_high) == (1.5, 1.25, 2.25)
    assert (first.flops, second.flops) == (2 * 18 * 10 * 8, 2 * 18 * 10 * 4)
    assert (first.limit, second.limit) == (1.0, 2.0)
    assert (first.arrived, second.arrived) == (None, 0.5)
    assert first.peak_memory == 4 * (80 + 18 * 10 + 18 * 8)
    threads = torch.get_num_threads()
    device = f"cpu, {threads} thread{'s' * (threads > 1)}"
    assert (found.repeats, found.device, found.dtype, found.compile) == (3, device, "float32", False)


def test_every_repetition_runs_each_model_once_in_the_order_drawn() -> None:
    models, diary = toys(8, 4, 2)
    clock = CallOrder(diary, {n: [(1.0, 1.0)] * 9 for n in (8, 4, 2)})
    bench(models, batch_sizes=[1], lengths=[5], repeats=6, inputs=toy_inputs, clock=clock, seed=3)
    ran = [neurons for neurons, _ in clock.passes[3:]]
    places = {8: 0, 4: 1, 2: 2}
    assert [[places[n] for n in ran[k : k + 3]] for k in range(0, 18, 3)] == benchmark.orders_of(3, 6, 3)


def test_orders_are_drawn_and_then_mirrored() -> None:
    orders = benchmark.orders_of(5, 41, 7)
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert all(back == forth[::-1] for forth, back in zip(orders[::2], orders[1::2], strict=False))
    assert len({tuple(order) for order in orders[::2]}) > 10
    assert orders == benchmark.orders_of(5, 41, 7) != benchmark.orders_of(5, 41, 8)
    assert benchmark.orders_of(5, 10, 7) == orders[:10]


def test_quick_passes_are_run_several_times_per_timing() -> None:
    models, diary = toys(8, 4)
    times = {8: [(0.03, 1.0), (0.5, 0.5)], 4: [(0.02, 1.0), (0.25, 0.25)]}  # 50 ms need 3 passes of the quicker one
    clock = CallOrder(diary, times)
    first, second = bench(models, batch_sizes=[2], repeats=1, inputs=toy_inputs, clock=clock).rows
    assert sorted(clock.passes) == [(4, 1), (4, 3), (8, 1), (8, 3)]
    assert (first.examples_per_second, second.examples_per_second) == pytest.approx((2 * 3 / 0.5, 2 * 3 / 0.25))


@pytest.mark.parametrize(("allowed", "repeats"), [(0.1, 5), (31.0, 7), (1000.0, 25)])
def test_the_time_allowed_decides_how_often(allowed, repeats) -> None:
    models, diary = toys(8, 4)
    clock = CallOrder(
        diary, {8: [(1.0, 1.0), (2.0, 1.0)] + [(1.0, 1.0)] * 99, 4: [(0.5, 1.0), (0.5, 1.0)] + [(1.0, 1.0)] * 99}
    )
    found = bench(models, batch_sizes=[4, 2], seconds=allowed, inputs=toy_inputs, clock=clock)
    assert found.repeats == repeats  # one repetition of everything is expected to take 1 + .5 + 2 + .5 seconds


def test_the_clock_tells_the_time_on_the_wall_from_that_of_the_processor() -> None:
    import time

    asleep = benchmark.timed(lambda: time.sleep(0.2), CPU)
    assert asleep.wall > 0.19 > 0.1 > asleep.work
    by_work = benchmark.by_processor(lambda: time.sleep(0.2), CPU)
    assert by_work.wall == by_work.work < 0.1


# -- other programs ------------------------------------------------------------------------------------------------------


def shared_machine(monkeypatch, diary: list[Any], waits: list[float]) -> list[int]:
    """A clock on which a pass takes as long beside others, whatever its size, and works in proportion to it.

    `waits` are the shares of each timing in which threads waited; after them they do not wait. Gives threads used.
    """
    left, threads_used = list(waits), list[int]()

    def clock(run: Any, device: torch.device) -> Time:
        before = len(diary)
        run()
        neurons, passes = diary[before][0], len(diary) - before
        share = left.pop(0) if left else 0.0
        threads_used.append(torch.get_num_threads())
        wall = 1.0 if share else neurons / 8
        return Time(wall * passes, neurons / 8 * passes, share * wall * passes)

    monkeypatch.setattr(benchmark, "timed", clock)
    monkeypatch.setattr(in_turns, "timed", clock)  # of `by_processor`
    return threads_used


def test_a_ratio_measured_beside_other_programs_is_not_sure_of_itself(monkeypatch) -> None:
    models, diary = toys(8, 4)
    used = shared_machine(monkeypatch, diary, [0.45] * 22)  # looks at both models, and ten repetitions
    with contention.threads(2):
        found = bench(models, batch_sizes=[2], lengths=[5], repeats=10, inputs=toy_inputs)
        assert torch.get_num_threads() == 2
    _, row = found.rows
    assert row.disturbed
    assert row.waited == pytest.approx(0.45)
    assert row.ratio == 1.0, "so it seems, steadily; the truth is 2"
    assert row.arrived is None
    assert row.work == benchmark.Ratio(2.0, 2.0, 2.0, True)
    assert row.measured == row.work
    assert used[:22] == [2] * 22
    assert set(used[22:]) == {1}, "what one thread works is measured with one thread"
    (sentence,) = found.sentences()
    assert "it cannot be said how many times as fast" in sentence
    assert "waited 45% of the time" in sentence
    assert "2.00 [2.00, 2.00] times less processor time" in sentence
    assert "1.00?" in bench_text(found)
    assert "of the gain arrived" not in bench_text(found)
    assert Bench.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_repetitions_that_nobody_disturbed_count_where_they_are_enough(monkeypatch) -> None:
    models, diary = toys(8, 4)
    shared_machine(monkeypatch, diary, [0.0, 0.0, *[0.6] * 10])  # five of eleven repetitions beside others
    found = bench(models, batch_sizes=[2], lengths=[5], repeats=11, inputs=toy_inputs)
    row = found.rows[1]
    assert not row.disturbed
    assert row.waited == 0
    assert (row.ratio, row.ratio_low, row.ratio_high) == (2.0, 2.0, 2.0)
    assert row.work is None
    shared_machine(monkeypatch, diary, [0.0, 0.0, *[0.6] * 14])  # four quiet ones are not enough
    row = bench(models, batch_sizes=[2], lengths=[5], repeats=11, inputs=toy_inputs).rows[1]
    assert row.disturbed
    assert (row.ratio_low, row.ratio_high) == (1.0, 2.0), "all that was measured, and not the middle half of it"


def test_quartiles_that_are_too_wide_decide_nothing() -> None:
    numbers = {"batch": 1, "length": 5, "examples_per_second": 1.0, "low": 1.0, "high": 1.0, "flops": 1.0, "limit": 2.0}
    wide = Speed("m", **numbers, ratio=1.5, ratio_low=1.2, ratio_high=1.7)
    assert wide.measured is None
    assert "repetitions differ too much" in speed_text(wide)
    assert "1.5" not in speed_text(wide), "noise is no number"
    narrow = Speed("m", **numbers, ratio=1.5, ratio_low=1.4, ratio_high=1.6)
    assert narrow.measured == benchmark.Ratio(1.5, 1.4, 1.6)
    assert "1.50 [1.40, 1.60] times as fast" in speed_text(narrow)


def test_what_earlier_versions_timed_is_read_as_it_was(tmp_path) -> None:
    models, diary = toys(8, 4)
    options: dict[str, Any] = {"batch_sizes": [1], "lengths": [3], "inputs": toy_inputs, "repeats": 2}
    with Run.open(tmp_path / "run", {"command": "bench"}) as run:
        first = bench(models, run=run, clock=CallOrder(diary, {n: [(1.0, 1.0)] * 9 for n in (8, 4)}), **options)
        (name,) = [name for name in run.pieces if "look" not in name]
        arrays = {key: value for key, value in run.read(name).items() if key != "waited"}
        (run.folder / f"{name}.npz").unlink()
        run.write(name, arrays)
        again = bench(models, run=run, clock=CallOrder(diary, {8: [], 4: []}), **options)
    assert [row.waited for row in again.rows] == [None, None]
    assert [row.ratio for row in again.rows] == [row.ratio for row in first.rows]


def test_waiting_for_a_processor_is_counted_by_the_system_or_by_the_thread(monkeypatch, tmp_path) -> None:
    for number, line in enumerate(("5000000000 2000000000 7", "1000000000 4000000000 3")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "schedstat").write_text(line)
    monkeypatch.setattr(contention, "TASKS", tmp_path)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert contention.waited() == 3.0
    monkeypatch.setattr(contention, "TASKS", tmp_path / "nowhere")
    monkeypatch.setattr(contention.time, "perf_counter", lambda: 10.0)
    monkeypatch.setattr(contention.time, "thread_time", lambda: 6.5)
    assert contention.waited() == 3.5


def test_so_many_threads_and_then_as_before() -> None:
    before = torch.get_num_threads()
    with contention.threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with contention.threads(None):
        assert torch.get_num_threads() == before
    with says(BadMeasure, about="Threads are a whole number"), contention.threads(0):
        pass


# -- memory that runs out, resuming --------------------------------------------------------------------------------------


class Narrow(Toy):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) >= 4:
            raise torch.OutOfMemoryError("no")
        return super().forward(x)


def test_a_batch_that_does_not_fit_is_left_out_with_a_note() -> None:
    diary: list[Any] = []
    models = {"wide": Toy(8, diary), "narrow": Narrow(4, diary)}
    clock = CallOrder(diary, {n: [(1.0, 1.0)] * 99 for n in (8, 4)})
    found = bench(models, batch_sizes=[8, 1, 2], lengths=[3], repeats=2, inputs=toy_inputs, clock=clock)
    assert [(row.model, row.batch) for row in found.rows] == [("wide", 1), ("narrow", 1), ("wide", 2), ("narrow", 2)]
    assert found.notes == ("Batch 8, length 3 does not fit into memory and was left out.",)
    assert found.notes[0] in bench_text(found)
    with says(OutOfMemory, about="batch 4, length 3"):
        bench(models, batch_sizes=[8, 4], lengths=[3], repeats=2, inputs=toy_inputs, clock=clock)


def test_what_a_run_folder_holds_is_not_measured_again(tmp_path) -> None:
    models, diary = toys(8, 4)
    options: dict[str, Any] = {"batch_sizes": [1, 2], "lengths": [3], "inputs": toy_inputs, "seconds": 20.0}
    times = {8: [(2.0, 2.0)] * 99, 4: [(0.5, 0.5)] * 99}
    stops = CallOrder(
        diary, {**times, 8: times[8][:9]}
    )  # two looks, five repetitions of the first size, two of the second
    with Run.open(tmp_path / "run", {"command": "bench"}) as run:
        with pytest.raises(IndexError):
            bench(models, run=run, clock=stops, **options)
        assert run.pieces == ("bench-5-00001-00003", "bench-look-00001-00003", "bench-look-00002-00003")
        goes_on = CallOrder(diary, times)
        found = bench(models, run=run, clock=goes_on, **options)
        assert len(goes_on.passes) == 2 * 5
        again = CallOrder(diary, {8: [], 4: []})
        assert (
            bench(models, run=run, clock=again, **options)
            == found
            == bench(models, clock=CallOrder(diary, times), **options)
        )


# -- compiling -----------------------------------------------------------------------------------------------------------


def test_every_shape_is_compiled_anew(monkeypatch) -> None:
    models, diary = toys(8, 4)
    made, resets = [], []

    def compiled(model: nn.Module, **options: Any) -> Any:
        made.append((model.matrix.out_features, options))
        return copy.copy(model)

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(len(made)))
    clock = CallOrder(diary, {n: [(1.0, 1.0)] * 99 for n in (8, 4)})
    found = bench(models, batch_sizes=[1, 2], lengths=[3], repeats=2, inputs=toy_inputs, clock=clock, compile=True)
    assert made == [(8, {"dynamic": False}), (4, {"dynamic": False})] * 2
    assert resets == [0, 2, 2, 4]
    assert found.compile
    assert [row.flops for row in found.rows] == [160, 80, 320, 160]
    assert {row.peak_memory for row in found.rows} == {None}  # nothing sees inside compiled code on a CPU


@pytest.mark.parametrize(
    ("error", "text"), [("InvalidCxxCompiler: No working C++ compiler found", "compiler"), ("graph", "uncompiled")]
)
def test_code_that_does_not_compile_is_one_sentence(monkeypatch, error, text) -> None:
    def compiled(model: nn.Module, **_: Any) -> Any:
        def fail(**_: Any) -> None:
            raise RuntimeError(error)

        return fail

    monkeypatch.setattr(torch, "compile", compiled)
    with says(BadMeasure, about=text):
        bench({"m": classifier()}, batch_sizes=[1], lengths=[5], repeats=1, compile=True)


# -- inputs --------------------------------------------------------------------------------------------------------------


def test_made_up_texts_are_seeded_and_hold_no_special_token() -> None:
    model = classifier(pad_token_id=20, eos_token_id=[31, 32], bos_token_id=None)
    made = random_inputs.random_batch(model, 50, 40)
    assert made["input_ids"].shape == made["attention_mask"].shape == (50, 40)
    assert made["attention_mask"].dtype == torch.long
    assert bool(made["attention_mask"].all())
    assert set(made["input_ids"].unique().tolist()) == set(range(16, 48)) - {20, 31, 32}
    assert torch.equal(made["input_ids"], random_inputs.random_batch(model, 50, 40)["input_ids"])
    assert not torch.equal(made["input_ids"], random_inputs.random_batch(model, 50, 40, seed=1)["input_ids"])


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "gpt2": {"input_ids": (3, 6), "attention_mask": (3, 6)},
    "t5": {"input_ids": (3, 6), "attention_mask": (3, 6), "decoder_input_ids": (3, 6)},
    "vit": {"pixel_values": (3, 3, 32, 32)},
    "whisper": {"input_features": (3, 8, 40), "decoder_input_ids": (3, 6)},
    "clip": {"input_ids": (3, 6), "attention_mask": (3, 6), "pixel_values": (3, 3, 32, 32)},
    "wav2vec2": {"input_values": (3, (5 * 2 + 3 - 1) * 5 + 10)},
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_made_up_batches_have_the_shapes_that_models_take(name) -> None:
    model, _ = zoo.build(name)
    made = random_inputs.random_batch(model, 3, 6)
    assert {key: tuple(value.shape) for key, value in made.items()} == SHAPES[name]
    with torch.no_grad():
        assert len(next(iter(model(**made).values()))) == 3


def test_pictures_have_no_length() -> None:
    model, _ = zoo.build("vit")
    found = bench({"vit": model}, batch_sizes=[1, 2], lengths=[128, 256], repeats=1)
    assert [(row.batch, row.length) for row in found.rows] == [(1, None), (2, None)]
    assert found.to_json()["rows"][0]["length"] is None


# -- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"batch_sizes": []}, "batch size"),
        ({"batch_sizes": [4, 0]}, "I got 0"),
        ({"lengths": [1.5]}, "length"),
        ({"repeats": 0}, "Repetitions"),
        ({"seconds": float("nan")}, "seconds"),
        ({"lengths": [41]}, "at most 40"),
        ({"inputs": lambda *_: {"nonsense": 1}}, "inputs="),
    ],
)
def test_bad_questions_are_refused_in_one_sentence(options, about) -> None:
    with says(BadMeasure, about=about):
        bench({"model": classifier()}, **{"batch_sizes": [1], "lengths": [5], "repeats": 1, **options})


def test_models_that_cannot_be_compared_are_refused() -> None:
    with says(BadMeasure, about="no model"):
        bench({})
    with says(BadMeasure, about="inputs="):
        bench({"plain": nn.Linear(2, 2)})
    with says(BadMeasure, about="cpu and meta"):
        bench({"here": classifier(), "nowhere": classifier().to("meta")})


# -- values, words -------------------------------------------------------------------------------------------------------

MODELS = (Subject("a", "Bert", 2000, 8000), Subject("b", "Bert", 1000, 4000))
ROWS = (
    Speed("a", 16, 128, 10.0, 9.0, 11.0, 1.0, 1.0, 1.0, 1210, 1.0, None, 3 * 2**20),
    Speed("b", 16, 128, 12.0, 11.0, 13.0, 1.189, 1.17, 1.2, 1000, 1.21, 0.9, None),
)
FOUND = Bench("cpu, 2 threads", "float32", False, "2.13.0", 7, MODELS, ROWS)


def test_json_is_the_document_that_reports_read() -> None:
    data = json.loads(json.dumps(FOUND.to_json()))
    assert Bench.from_json(data) == FOUND
    assert data.pop("models")[1] == {"name": "b", "class": "Bert", "parameters": 1000, "bytes": 4000}
    row = dict(model="b", batch=16, length=128, examples_per_second=12.0, low=11.0, high=13.0, ratio=1.189)
    row |= dict(ratio_low=1.17, ratio_high=1.2, flops=1000, limit=1.21, arrived=0.9, peak_memory=None)
    assert data.pop("rows")[1] == row
    head = {"device": "cpu, 2 threads", "dtype": "float32", "compile": False, "torch": "2.13.0", "repeats": 7}
    assert data == {**head, "notes": []}
    for broken in (None, [], {}, {**FOUND.to_json(), "rows": [{"model": "a"}]}, {**FOUND.to_json(), "models": [1]}):
        with says(BadRun):
            Bench.from_json(broken)


def test_the_result_in_plain_words() -> None:
    assert FOUND.sentences() == [
        "At batch 16, length 128, b is 1.19 times as fast as a, of 1.21 that the multiply-adds allow: "
        "90% of the gain arrived."
    ]
    text = bench_text(FOUND)
    assert text.splitlines()[0].startswith("cpu, 2 threads · float32 · torch 2.13.0 · ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "a 16 128 2,000 10.00 (9.00 to 11.00) 3.0 MiB" in lines
    assert "b 16 128 1,000 12.0 (11.0 to 13.0) 1.19 (1.17 to 1.20) 1.21 90%" in lines
    assert text.endswith(FOUND.sentences()[0])


# -- the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bench")
    whole = classifier()
    whole.save_pretrained(folder / "whole")
    hc.cut(whole, "0:0-1 1:1 2:3")
    hc.save(whole, folder / "smaller")
    return folder


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words])


def test_the_command_measures_saved_models_cut_ones_too(place, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(place)
    words = ["whole", "smaller", "--batch-size", "1,2", "--length", "9", "--repeats", "2", "--dtype", "float64"]
    done = ask(*words, "-o", str(tmp_path / "run"), "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    kept = json.loads((tmp_path / "run" / "bench.json").read_text())
    assert data == {**kept, "run": str(tmp_path / "run")}
    assert (data["dtype"], data["repeats"]) == ("float64", 2)
    assert [one["parameters"] for one in data["models"]] == [
        sum(p.numel() for p in hc.load(place / name).parameters()) for name in ("whole", "smaller")
    ]
    flops = [row["flops"] for row in data["rows"]]
    assert flops == [by_hand(batch, 9, heads, 3) for batch in (1, 2) for heads in ([4, 4, 4], [2, 3, 3])]
    assert [row["limit"] for row in data["rows"]] == [1.0, flops[0] / flops[1], 1.0, flops[2] / flops[3]]
    assert (tmp_path / "run" / "run.json").is_file()

    shown = ask(*words, "-o", str(tmp_path / "run"))  # asked again: what was measured, not another measurement
    assert shown.exit_code == 0
    assert bench_text(Bench.from_json(kept)) in shown.stdout
    assert "measured on" in shown.stdout
    other = ask(*words[:-2], "-o", str(tmp_path / "run"))
    assert other.exit_code == 1
    assert "another question" in str(other.exception)


def test_the_folder_is_named_after_the_question(place, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = ask(str(place / "whole"), "--batch-size", "1", "--length", "5", "--repeats", "1")
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("bench-whole-")
    assert f"run folder: runs/{folder.name}" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "about"),
    [
        ([], 2, "Missing argument"),
        (["whole", "./whole"], 2, "twice"),
        (["whole", "--batch-size", "1,x"], 2, "--batch-size"),
        (["whole", "--length", "0"], 2, "--length"),
        (["whole", "--repeats", "0"], 2, "--repeats"),
        (["whole", "--length", "41"], 1, "at most 40"),
        (["whole", "--dtype", "float3"], 1, "--dtype"),
        (["whole", "--device", "nonsense"], 1, "--device"),
        (["./nowhere"], 1, "no folder"),
    ],
)
def test_wrong_commands_are_one_sentence_and_leave_nothing(words, code, about, place, monkeypatch) -> None:
    monkeypatch.chdir(place)
    done = ask(*words, "-o", "new")
    assert done.exit_code == code
    assert about in (done.output if code == 2 else str(done.exception))
    assert not (place / "new").exists()
