"""One network in several threads, each at its own setting: there is no hidden state."""

import copy
import sys
import threading

import pytest
import torch

import recurconv as rc

ROUNDS = 12
BUILDERS = {"r2": lambda: rc.r2(width=1 / 16), "r3": lambda: rc.r3(channels=4), "r4": lambda: rc.r4(width=1 / 16)}


@pytest.fixture(autouse=True)
def eager_switching():
    """Threads take turns as often as Python can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def together(calls):
    """What each call returns, over and over, while the others run; they start at once."""
    barrier = threading.Barrier(len(calls))
    results = [[] for _ in calls]

    def work(call, mine):
        barrier.wait()
        for _ in range(ROUNDS):
            mine.append(call())

    threads = [threading.Thread(target=work, args=pair) for pair in zip(calls, results, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(mine) for mine in results] == [ROUNDS] * len(calls)  # no thread died
    return results


def call_at(net, x, steps):
    def call():
        with torch.inference_mode():
            return net(x, steps=steps)

    return call


def images(net):
    return torch.rand(2, net.image_channels, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled bodies"])
def test_threads_at_different_settings_get_what_they_get_alone(kind, compiled):
    net = BUILDERS[kind]().eval()
    x = images(net)
    if compiled:
        torch._dynamo.reset()
        net.compile_bodies(backend="eager")
    calls = [call_at(net, x, steps) for steps in net.dial]
    alone = [call() for call in calls]
    assert not torch.equal(alone[0], alone[-1])
    for expected, mine in zip(alone, together(calls), strict=True):
        assert all(torch.equal(result, expected) for result in mine)


@pytest.mark.parametrize("kind", ["r2", "r3", "r4"])
def test_threads_that_meet_inside_every_body_get_what_they_get_alone(kind):
    net = BUILDERS[kind]().eval()
    x = images(net)
    settings = net.dial[-2:]
    alone = [net(x, steps) for steps in settings]
    meeting, own = threading.Barrier(2, timeout=60), threading.local()

    def meet(body, _):
        """Wait for the other thread in this body, in as many steps as both take."""
        entered = vars(own)[str(id(body))] = vars(own).get(str(id(body)), 0) + 1
        if entered <= min(settings):
            meeting.wait()

    for cell in net.cells():
        cell.body.register_forward_pre_hook(meet)
    results = together([call_at(net, x, steps) for steps in settings])
    for expected, mine in zip(alone, results, strict=True):
        assert all(torch.equal(result, expected) for result in mine)


@pytest.mark.parametrize("kind", ["r2", "r3"])
def test_threads_that_train_at_different_settings_keep_apart_statistics(kind):
    net = BUILDERS[kind]().train()
    one_by_one = copy.deepcopy(net)
    x = images(net)
    together([call_at(net, x, steps) for steps in net.dial])
    for steps in one_by_one.dial:
        for _ in range(ROUNDS):
            call_at(one_by_one, x, steps)()
    for name, tensor in one_by_one.state_dict().items():
        assert torch.equal(net.state_dict()[name], tensor), name
    batches = {int(t) for name, t in net.state_dict().items() if name.endswith("num_batches_tracked")}
    assert batches == {ROUNDS}
