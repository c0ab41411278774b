"""Augmentation and batches against loops over single images, torchvision and NumPy."""

from collections import Counter

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as reference

from recurconv.data.augment import Augment, augment, augment_as_drawn, draw_augment, iteration_generator
from recurconv.data.cifar import ImageArrays

PLAIN = Augment(crop=0, flip=False)
VARIED = Augment(crop=3, flip=True, cutout=4)


def random_images(count, height=10, width=12, seed=0):
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=iteration_generator(seed))


def image_set(count=22):
    return ImageArrays(
        images=random_images(count),
        labels=torch.arange(count),  # so that a label tells which image it belongs to
        name="numbers",
        class_names=tuple(map(str, range(count))),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        condition="made up",
    )


def joined(batches):
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def test_crop_and_flip_equal_torchvision_on_each_image():
    images, how = random_images(40), Augment(crop=4, flip=True)
    top, left, flip, _, _ = draw_augment(40, 10, 12, how, iteration_generator(5)).tolist()
    expected = []
    for i, image in enumerate(images):
        padded = reference.pad(image, [4, 4, 4, 4])
        crop = reference.crop(padded, top[i], left[i], 10, 12)
        expected.append(reference.hflip(crop) if flip[i] else crop)
    assert torch.equal(augment(images, how, iteration_generator(5)), torch.stack(expected))


def test_cutout_blackens_a_square_around_its_centre_as_in_a_numpy_loop():
    images, how = random_images(30).clamp(min=1), Augment(crop=0, flip=False, cutout=5)
    *_, rows, columns = draw_augment(30, 10, 12, how, iteration_generator(6)).tolist()
    expected = images.numpy().copy()
    for image, row, column in zip(expected, rows, columns, strict=True):
        image[:, max(0, row - 2) : row + 3, max(0, column - 2) : column + 3] = 0
    assert np.array_equal(augment(images, how, iteration_generator(6)).numpy(), expected)


def test_the_order_is_crop_flip_cutout():
    images = random_images(8)
    drawn = draw_augment(8, 10, 12, VARIED, iteration_generator(1))
    step_by_step = images
    for how in (Augment(3, False), Augment(0, True), Augment(0, False, 4)):
        step_by_step = augment_as_drawn(step_by_step, how, drawn)
    assert torch.equal(augment_as_drawn(images, VARIED, drawn), step_by_step)


def test_nothing_switched_on_changes_nothing():
    images = random_images(5)
    assert torch.equal(augment(images, PLAIN, iteration_generator(0)), images)


def test_draws_are_uniform_over_their_ranges():
    drawn = draw_augment(9000, 10, 12, Augment(crop=1, cutout=1), iteration_generator(3))
    for row, span in zip(drawn.tolist(), (3, 3, 2, 10, 12), strict=True):
        counts = Counter(row)
        assert sorted(counts) == list(range(span))
        assert max(abs(count - 9000 / span) for count in counts.values()) < 5 * (9000 / span) ** 0.5


def test_switching_an_option_leaves_the_other_draws_alone():
    both = draw_augment(50, 10, 12, Augment(crop=3), iteration_generator(3))
    crop_only = draw_augment(50, 10, 12, Augment(crop=3, flip=False, cutout=2), iteration_generator(3))
    assert torch.equal(both, crop_only)


@pytest.mark.gpu
def test_cuda_gives_what_the_cpu_gives():
    images = random_images(16)
    expected = augment(images, VARIED, iteration_generator(4))
    assert torch.equal(augment(images.cuda(), VARIED, iteration_generator(4)).cpu(), expected)


def test_a_generator_depends_on_its_numbers_alone_and_on_all_of_them():
    numbers = [(), (0,), (1,), (0, 1), (1, 0), (1, 2), (2, 1), (1, 2, 0), (1, 2, 0, 0), (2**40, 1)]
    draws = [tuple(torch.rand(4, generator=iteration_generator(*n)).tolist()) for n in numbers]
    torch.manual_seed(123)
    assert draws == [tuple(torch.rand(4, generator=iteration_generator(*n)).tolist()) for n in numbers]
    assert len(set(draws)) == len(numbers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iteration_generator(3, -1), "from 0 on"),
        (lambda: Augment(crop=-1), "crop=-1 is negative"),
        (lambda: Augment(cutout=-2), "cutout=-2 is negative"),
        (lambda: augment(random_images(2).float(), PLAIN, torch.Generator()), "float32"),
        (lambda: augment(random_images(2)[0], PLAIN, torch.Generator()), r"\[3, 10, 12\]"),
        (lambda: augment(random_images(2), Augment(crop=11), torch.Generator()), r"crop=11 is larger .*10x12"),
        (lambda: augment(random_images(2), Augment(cutout=11), torch.Generator()), "cutout=11 is larger"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_epoch_holds_each_image_at_most_once_and_drops_the_last_part():
    data = image_set(22)
    assert data.iterations(5) == 4
    images, labels = joined(data.training_batches(5, epoch=0, seed=0, how=PLAIN, device="cpu"))
    assert len(set(labels.tolist())) == len(labels) == 20
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert np.array_equal(images.numpy(), data.images[labels].numpy().astype(np.float32) / np.float32(255))


def test_the_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        batches = image_set().training_batches(11, epoch=epoch, seed=seed, how=VARIED, device="cpu")
        return tuple(joined(batches)[1].tolist())

    orders = {key: order(*key) for key in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    torch.manual_seed(99)
    assert orders == {key: order(*key) for key in orders}
    assert len(set(orders.values())) == 4
    assert all(sorted(found) == list(range(22)) for found in orders.values())


def test_augmentation_of_a_batch_is_drawn_from_seed_epoch_and_iteration():
    data = image_set()
    for i, (images, labels) in enumerate(data.training_batches(4, epoch=2, seed=7, how=VARIED, device="cpu")):
        expected = augment(data.images[labels], VARIED, iteration_generator(7, 2, i))
        assert torch.equal(images, expected / 255)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_together_see_what_one_sees_with_the_joined_batch(ranks):
    data, options = image_set(), {"epoch": 1, "seed": 3, "how": VARIED, "device": "cpu"}
    shares = [data.training_batches(6, **options, rank=rank, ranks=ranks) for rank in range(ranks)]
    whole = list(data.training_batches(6, **options))
    parts = [joined(batch) for batch in zip(*shares, strict=True)]
    assert len(parts) == len(whole) == 3
    for part, expected in zip(parts, whole, strict=True):
        assert torch.equal(part[0], expected[0])
        assert torch.equal(part[1], expected[1])


@pytest.mark.parametrize("start", [0, 2, 4])
def test_start_skips_iterations_and_repeats_the_rest(start):
    data, options = image_set(), {"epoch": 1, "seed": 3, "how": VARIED, "device": "cpu"}
    whole = list(data.training_batches(5, **options))
    resumed = list(data.training_batches(5, **options, start=start))
    assert len(resumed) == 4 - start
    for got, expected in zip(resumed, whole[start:], strict=True):
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])


def test_training_leaves_the_global_generator_and_the_images_alone():
    data = image_set()
    before, state = data.images.clone(), torch.get_rng_state()
    list(data.training_batches(5, epoch=0, seed=0, how=VARIED, device="cpu"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(data.images, before)


def test_evaluation_is_in_order_and_keeps_the_last_part():
    data = image_set(22)
    batches = list(data.evaluation_batches(5, device="cpu"))
    assert [len(labels) for _, labels in batches] == [5, 5, 5, 5, 2]
    images, labels = joined(batches)
    assert labels.tolist() == list(range(22))
    assert torch.equal(images, data.images.float() / 255)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_evaluate_every_image_once(ranks):
    data = image_set(22)
    shares = [joined(data.evaluation_batches(10, device="cpu", rank=rank, ranks=ranks))[1] for rank in range(ranks)]
    assert sorted(torch.cat(shares).tolist()) == list(range(22))
    assert max(map(len, shares)) - min(map(len, shares)) <= 3  # one image for each of the three batches


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 23}, "batch_size=23 does not fit numbers; choose 1 to 22"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 5, "ranks": 2}, "batch_size=5 cannot be shared by 2 ranks"),
        ({"ranks": 2, "rank": 2}, "rank=2 is not one of 2 ranks"),
        ({"start": 6}, "start=6 .*choose 0 to 5"),
        ({"start": -1}, "start=-1"),
        ({"seed": -1}, "from 0 on"),
        ({"how": Augment(crop=11)}, "crop=11 is larger"),
    ],
)
def test_bad_batch_options_are_named_at_once(change, message):
    options = {"batch_size": 4, "epoch": 0, "seed": 0, "how": VARIED, "device": "cpu"} | change
    with pytest.raises(ValueError, match=message):
        image_set().training_batches(options.pop("batch_size"), **options)


def test_bad_evaluation_options_are_named_at_once():
    with pytest.raises(ValueError, match="batch_size=0 is below 1"):
        image_set().evaluation_batches(0, device="cpu")
    with pytest.raises(ValueError, match="rank=-1"):
        image_set().evaluation_batches(4, device="cpu", rank=-1)
