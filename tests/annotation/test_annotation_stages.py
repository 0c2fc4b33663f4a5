"""What unmodified PyTorch programs write of their stages, layers and iterations."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from recorded_ranges import KeptRanges

from tracekit.annotation._hooks import Hooks
from tracekit.annotation._step_windows import Every, Windows, WithinWindows

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.slow  # PyTorch is imported


@pytest.fixture(scope="module", autouse=True)
def _pytorch() -> None:
    """Import it for the tests of this file, and not for whoever looks for tests in it."""
    data = import_module("torch.utils.data")
    globals().update(
        torch=import_module("torch"), nn=import_module("torch.nn"),
        DataLoader=data.DataLoader, TensorDataset=data.TensorDataset,
    )  # fmt: skip


@pytest.fixture
def kept() -> Iterator[KeptRanges]:
    ranges = KeptRanges()
    hooks = Hooks(torch, ranges, 0)
    hooks.install()
    yield ranges
    hooks.remove()


def _trained(*, by: str, rests: bool) -> tuple[KeptRanges, list[bool]]:
    """Run one of `LOOPS` with windows; return its ranges, and of each step whether hooks rest."""
    kept = KeptRanges()
    windows = Windows(kept, Every("9:2"))
    ranges = WithinWindows(kept, windows) if rests else kept
    hooks = Hooks(torch, ranges, 0, windows=windows, is_silent=rests)
    plain = nn.Module.__call__
    hooks.install()
    resting = [nn.Module.__call__ is plain for _ in LOOPS[by]()]
    hooks.thread.finish()
    hooks.remove()
    return kept, resting


def _plain() -> Iterator[None]:
    model, optimizer = _model()
    for x, y in _loader(STEPS):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        yield


def _two_optimizers() -> Iterator[None]:
    both = [_model(), _model()]
    for number in range(STEPS):
        for model, optimizer in both[: 1 + number % 2]:
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
        with torch.no_grad():
            both[0][0](torch.ones(2, 4))
        yield


def _scaled() -> Iterator[None]:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    for number in range(2 * STEPS):
        factor = float("inf") if number % 10 == 7 else 1.0  # which is left out, and a step
        scaler.scale(model(torch.ones(2, 4)).mean() * factor).backward()
        if number % 2:
            scaler.step(optimizer)
            scaler.update()
            yield


def _evaluating() -> Iterator[None]:
    """With gradients, in `eval()`."""
    (model, optimizer), to_train, to_evaluate = _model(), _loader(2), _loader(2)
    for _ in range(STEPS // 2):
        for x, _y in to_train:
            model(x).mean().backward()
            optimizer.step()
            yield
        model.eval()
        for x, _y in to_evaluate:
            model(x)
        model.train()


def _later_by_hand() -> Iterator[None]:
    yield from itertools.islice(_plain(), STEPS // 2)
    model = nn.Linear(4, 1)
    for x, y in _loader(STEPS // 2):
        nn.functional.mse_loss(model(x), y).backward()
        _update(model)
        yield


STEPS = 30
LOOPS = {each.__name__.strip("_"): each
         for each in (_plain, _two_optimizers, _scaled, _evaluating, _later_by_hand)}  # fmt: skip


@pytest.mark.parametrize("by", LOOPS)
def test_hooks_that_rest_between_windows_record_the_same(by: str) -> None:
    """As hooks that see all; the first window begins after three steps."""
    (kept, awake), (found, resting) = (_trained(by=by, rests=each) for each in (False, True))
    windows = [each for each in kept.all if each.name == "window"]
    held = KeptRanges(
        [each for each in kept.all
         for window in windows if window.start <= each.start <= (window.end or each.start)]
    )  # fmt: skip
    for each in (held, found):
        each.all = [one for one in each.all if one.end]  # the program ends in a window
    assert found.tree() == held.tree()
    steps = {each.name for each in held.all if each.name.startswith("iteration")}
    assert steps >= {f"iteration {number}" for number in (9, 10, 18, 19, 27, 28)}
    assert not any(awake)
    # Of these steps an evaluation tells where some end: nothing rests.
    assert any(resting) == (by != "two_optimizers")


@pytest.fixture
def world_of_one(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def _loader(batches: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.ones(2 * batches, 4), torch.ones(2 * batches, 1)), 2)


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_plain_loop(kept: KeptRanges) -> None:
    model, optimizer = _model()
    for x, y in _loader(2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    step = "(IO WU zero_grad FP FP loss BP WU step)"
    # The loader is asked once more than it has batches: that is no iteration.
    assert kept.tree() == f"IO iteration 0{step} iteration 1{step} iteration 2(IO)"


def test_gradients_that_are_cleared_before_the_loss(kept: KeptRanges) -> None:
    model, optimizer = _model()
    out = model(torch.ones(2, 4))
    optimizer.zero_grad()
    out.mean().backward()
    optimizer.step()
    assert kept.tree() == "iteration 0(FP WU zero_grad BP WU step)"


def test_the_backward_pass_counts_for_the_process(kept: KeptRanges) -> None:
    model, _ = _model()
    model(torch.ones(2, 4)).mean().backward()
    styles = {each.name: each.style for each in kept.all}
    assert styles["BP"] == styles["iteration 0"] == "start_end"
    assert styles["FP"] == "push_pop"


def test_accumulated_gradients_are_one_iteration(kept: KeptRanges) -> None:
    model, optimizer = _model()
    for number, (x, y) in enumerate(_loader(4)):
        (nn.functional.mse_loss(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    part = "IO FP FP loss BP"
    steps = [f"iteration {n}({part} {part} WU step)" for n in range(2)]
    assert kept.tree() == f"IO {steps[0]} WU zero_grad {steps[1]} WU zero_grad iteration 2(IO)"


def test_several_optimizers_make_one_iteration(kept: KeptRanges) -> None:
    (one, of_one), (two, of_two) = _model(), _model()
    for _ in range(2):
        for model, optimizer in ((one, of_one), (two, of_two)):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    part = "FP BP WU step"
    assert kept.tree() == f"iteration 0({part} {part}) iteration 1({part} {part})"


def test_an_optimizer_that_is_never_used_holds_up_nothing(kept: KeptRanges) -> None:
    (model, optimizer), (_, unused) = _model(), _model()
    for x, y in _loader(3):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert unused is not None
    assert [n for n in kept.names() if "iteration" in n] == [f"iteration {n}" for n in range(4)]


def test_passes_within_an_optimizer_step_are_none_of_it(kept: KeptRanges) -> None:
    model, _ = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, max_eval=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    del _
    optimizer.step(closure)
    passes = "WU zero_grad WU step FP WU step BP WU step"  # what is none of them is the step's
    assert kept.tree() == f"iteration 0(WU step {passes} {passes})"


def test_evaluation(kept: KeptRanges) -> None:
    model, optimizer = _model()
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    with torch.no_grad():
        for x, _ in _loader(2):
            model(x).mean()
    for x, _ in _loader(2):  # as Hugging Face's Trainer does
        with torch.inference_mode():
            model(x)
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    step = "(FP BP WU step)"
    each = "IO iteration 1(IO) ME IO ME IO"
    assert kept.tree() == f"iteration 0{step} ME {each} iteration 1{step}"


def test_a_teacher_is_part_of_the_step(kept: KeptRanges) -> None:
    (model, optimizer), (teacher, _) = _model(), _model()
    del _
    for x, _y in _loader(2):
        out = model(x)
        with torch.no_grad():
            aim = teacher(x)
        (out - aim).square().mean().backward()
        optimizer.step()
    assert "ME" not in kept.names()


def test_inference_is_no_evaluation(kept: KeptRanges) -> None:
    with torch.no_grad():
        nn.Linear(4, 1)(torch.ones(2, 4))
    assert kept.tree() == "FP"


def test_layers_have_names_and_wrappers_none() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Sequential(nn.Tanh())
            self.blocks = nn.ModuleList([nn.Sequential(nn.Tanh()), nn.ReLU()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.module(x)
            for block in self.blocks:
                x = block(x)
            return x

    trees = []
    for depth in (0, 1, 2):
        ranges = KeptRanges()
        hooks = Hooks(torch, ranges, depth)
        hooks.install()
        Net().eval()(torch.ones(2, 4))
        hooks.remove()
        trees.append(ranges.tree())
    one, two = "layer 0 (Tanh)", "layer blocks.1 (ReLU)"
    assert trees == [
        "FP",
        f"FP({one} layer blocks.0 (Sequential) {two})",
        f"FP({one} layer blocks.0 (Sequential)(layer blocks.0.0 (Tanh)) {two})",
    ]


def test_layers_that_are_computed_again_in_the_backward_pass(kept: KeptRanges) -> None:
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def forward(self, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
            out = checkpoint(model, x, use_reentrant=reentrant)
            assert isinstance(out, torch.Tensor)
            return out

    model, optimizer = _model()
    for reentrant in (True, False):
        Net()(torch.ones(2, 4, requires_grad=True), reentrant).mean().backward()
        optimizer.step()
    step = "(FP BP WU step)"
    assert kept.tree() == f"iteration 0{step} iteration 1{step}"


def test_what_threads_do_is_apart(kept: KeptRanges) -> None:
    model, optimizer = _model()

    def infer() -> None:
        with torch.no_grad():
            model(torch.ones(2, 4))

    out = model(torch.ones(2, 4)).mean()
    other = threading.Thread(target=infer)
    other.start()
    other.join()
    out.backward()
    optimizer.step()
    assert len({each.thread for each in kept.all}) == 2
    names = [each.name for each in kept.all if each.thread == threading.get_ident()]
    assert names == ["iteration 0", "FP", "BP", "WU step"]


def test_scaled_gradients(kept: KeptRanges) -> None:
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf")):  # the second step is left out, and is one
        scaler.scale(model(torch.ones(2, 4)).mean() * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    update = "WU grad_scaler WU clip_grad WU grad_scaler"
    first, second = (f"iteration {n}(FP BP {update}" for n in range(2))
    assert kept.tree() == (
        f"{first} WU step WU grad_scaler WU grad_scaler) {second} WU grad_scaler)"
    )


def test_a_pass_that_fails_leaves_nothing_open(kept: KeptRanges) -> None:
    model, optimizer = _model()
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5))
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    assert kept.tree() == "iteration 0(FP FP BP WU step)"


def test_gradients_that_are_exchanged_by_hand(kept: KeptRanges, world_of_one: None) -> None:
    exchange, (model, optimizer) = torch.distributed.all_reduce, _model()
    exchange(torch.ones(1))  # of no gradients
    model(torch.ones(2, 4)).mean().backward()
    for each in model.parameters():
        exchange(each.grad)
    optimizer.step()
    exchange(torch.ones(1))
    sent = " ".join(["WU gradient exchange"] * 4)
    assert kept.tree() == f"iteration 0(FP BP {sent} WU step)"


def test_hooks_that_exchange_gradients(kept: KeptRanges, world_of_one: None) -> None:
    def hook(state, bucket):  # whose annotations PyTorch looks at
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model, optimizer = _model()
    parallel = nn.parallel.DistributedDataParallel(model)
    parallel.register_comm_hook(None, hook)
    parallel(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    assert kept.tree() == "iteration 0(FP BP(WU gradient exchange) WU step)"


def test_everything_is_put_back() -> None:
    before = _functions()
    hooks = Hooks(torch, KeptRanges(), 1)
    hooks.install()
    _model()
    assert nn.Module.__call__ is not before[0]
    hooks.remove()
    assert _functions() == before


def _functions() -> list[object]:
    return [
        nn.Module.__call__,
        torch.autograd.backward,
        torch.optim.SGD.step,
        torch.no_grad.__exit__,
        DataLoader.__iter__,
    ]


@pytest.mark.nightly
def test_a_compiled_model_computes_the_same() -> None:
    model, _ = _model()
    plain = model(torch.ones(2, 4))
    ranges = KeptRanges()
    hooks = Hooks(torch, ranges, 1)
    hooks.install()
    out = torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2, 4))
    hooks.remove()
    assert torch.equal(out, plain)
    assert ranges.names()[0] == "FP"


def _steps(kept: KeptRanges) -> list[str]:
    return [name for name in kept.names() if name.startswith("iteration")]


def _update(model: nn.Module) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.sub_(0.1 * each.grad)
            each.grad = None


@pytest.mark.parametrize("with_loader", [False, True])
def test_weights_that_are_updated_by_hand(with_loader: bool) -> None:
    """A step ends where something follows its backward pass; the last one with the program."""
    kept = KeptRanges()
    hooks = Hooks(torch, kept, 0)
    hooks.install()
    model = nn.Linear(4, 1)
    batches = _loader(3) if with_loader else [(torch.ones(2, 4), torch.ones(2, 1))] * 3
    for x, y in batches:
        nn.functional.mse_loss(model(x), y).backward()
        _update(model)
    hooks.thread.finish()
    hooks.remove()
    part = "FP FP loss BP"
    if with_loader:
        steps = " ".join(f"iteration {n}(IO {part})" for n in range(3))  # with their input
        assert kept.tree() == f"IO {steps} iteration 3(IO)"
    else:
        # That this is a training is known from its first backward pass on.
        steps = " ".join(f"iteration {n}({part})" for n in (1, 2))
        assert kept.tree() == f"FP FP loss iteration 0(BP) {steps}"
    assert kept.marks == ["tracekit.steps from passes"]


def test_gradients_that_are_cleared_end_a_step_by_hand(kept: KeptRanges) -> None:
    model = nn.Linear(4, 1)
    for _ in range(2):
        model(torch.ones(2, 4)).mean().backward()
        model.zero_grad()
    assert kept.tree() == ("FP iteration 0(BP) WU zero_grad iteration 1(FP BP) WU zero_grad")


def test_steps_that_no_module_tells_of_are_unknown(kept: KeptRanges) -> None:
    weight = torch.ones(3, requires_grad=True)
    for _ in range(3):
        weight.square().sum().backward()
    assert kept.marks == ["tracekit.steps unknown"]


def test_how_steps_are_known_is_said_once(kept: KeptRanges) -> None:
    model, optimizer = _model()
    for _ in range(3):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    assert kept.marks == ["tracekit.steps from optimizers"]


def test_gradients_that_are_switched_off_by_a_call(kept: KeptRanges) -> None:
    model, optimizer = _model()
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    torch.set_grad_enabled(False)
    model(torch.ones(2, 4))
    torch.set_grad_enabled(True)
    for _ in _loader(1):
        pass  # what is fetched behind it is training's again
    assert kept.tree() == "iteration 0(FP BP WU step) ME IO iteration 1(IO IO)"


def test_optimizers_of_an_earlier_training_hold_up_nothing(kept: KeptRanges) -> None:
    models = []
    for _ in range(2):
        model, optimizer = _model()
        models.append((model, optimizer))
        for _ in range(2):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    assert _steps(kept) == [f"iteration {n}" for n in range(4)]


def test_what_follows_a_forward_pass_is_no_loss(kept: KeptRanges) -> None:
    """Neither a picture that is saved, nor a batch that is fetched ahead."""
    model, optimizer = _model()
    batches = iter(_loader(3))
    x, y = next(batches)
    for _ in range(2):
        out = model(x)
        assert not [each for each in kept.all if each.end is None and each.style == "push_pop"]
        ahead = next(batches)
        nn.functional.mse_loss(out, y).backward()
        optimizer.step()
        x, y = ahead
    step = "FP IO FP loss BP WU step"
    assert kept.tree() == f"IO iteration 0(IO {step}) iteration 1({step})"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("loss", ["cross_entropy", "mse_loss", "smooth_l1_loss"])
def test_losses_can_be_scripted_and_compiled_still(kept: KeptRanges, loss: str) -> None:
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(x, x)

    function = getattr(nn.functional, loss)
    ones = torch.ones(2, 3)

    def mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = function(x, y)
        assert isinstance(out, torch.Tensor)
        return out

    compiled = torch.compile(mean, backend="eager", fullgraph=True)
    assert compiled(ones, ones) == mean(ones, ones)
    assert torch.jit.script(Loss())(ones) == 0


def test_a_target_network_that_runs_first_is_part_of_the_step(kept: KeptRanges) -> None:
    (model, optimizer), target = _model(), nn.Linear(4, 1)
    for _ in range(2):
        with torch.no_grad():
            aim = target(torch.ones(2, 4))
        (model(torch.ones(2, 4)) - aim).square().mean().backward()
        optimizer.step()
    assert "ME" not in kept.names()
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert kept.names()[-1] == "ME"


@pytest.mark.parametrize("with_loader", [False, True])
def test_evaluation_with_gradients(kept: KeptRanges, with_loader: bool) -> None:
    """Of a network in `eval()` that no backward pass follows."""
    model, optimizer = _model()
    for _ in range(2):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        model.eval()
        for x, _y in _loader(2) if with_loader else [(torch.ones(2, 4), None)] * 2:
            model(x)
        model.train()
    stages = [name for name in kept.names() if "iteration" not in name and name != "IO"]
    assert stages == ["FP", "BP", "WU step", "ME"] * 2


def test_training_in_eval_is_learned(kept: KeptRanges) -> None:
    model, optimizer = _model()
    model.eval()
    for _ in range(4):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    assert kept.names().count("ME") <= 1
    assert len(_steps(kept)) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["in a function", "itself", "unseen"])
def test_compiled_steps_are_not_traced_into_hooks(kept: KeptRanges, how: str) -> None:
    """What a compiler sees is PyTorch alone; such steps end where gradients are cleared."""
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.extend(str(node.stack_trace) for node in graph.graph.nodes)
        return graph

    model, optimizer = _model()

    def in_a_function() -> None:
        optimizer.step()

    step = torch.compile(optimizer.step if how == "itself" else in_a_function, backend=backend)
    if how == "unseen":  # as of a compiler that follows it from end to end
        step = torch.optim.SGD.step.__wrapped__.__get__(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        step()
    assert bool(seen) == (how != "unseen")
    assert not any("tracekit" in each for each in seen)
    assert len(_steps(kept)) == 3
    known_by = "optimizers" if how == "in a function" else "passes"
    assert kept.marks == [f"tracekit.steps from {known_by}"]
