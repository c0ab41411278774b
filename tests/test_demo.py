"""The demo: its numbers, and the figure pixel by pixel."""

import socket

import numpy as np
import pytest
import torch
from PIL import Image

import recurconv as rc
from recurconv import demo
from recurconv.data.pictures import sample_picture


def decibel(clean, image):
    error = np.clip(image.numpy().astype(np.float64), 0, 1) - clean.numpy().astype(np.float64)
    return -10 * np.log10(np.mean(error**2))


def test_every_setting_makes_the_picture_cleaner(shown):
    net = rc.load(demo.MODEL)
    assert tuple(setting.steps for setting in shown.settings) == net.dial
    assert torch.equal(shown.clean * 255, torch.from_numpy(sample_picture()).float())
    noise = (shown.noisy - shown.clean) * 255
    assert float(noise.std()) == pytest.approx(25, rel=0.02)
    assert shown.noisy_psnr == pytest.approx(decibel(shown.clean, shown.noisy), abs=1e-6)
    for setting in shown.settings:
        assert setting.psnr == pytest.approx(decibel(shown.clean, setting.image), abs=1e-6)
        assert setting.psnr > shown.noisy_psnr + 1
        assert setting.milliseconds > 0


def test_the_costs_are_for_the_whole_picture(shown):
    channels = rc.load(demo.MODEL).config["arguments"]["channels"]
    pixels = shown.clean.numel() // 4  # at half resolution
    for setting in shown.settings:
        assert setting.macs == pixels * 9 * (5 * channels + 3 * 2 * setting.steps * channels**2 + 4 * channels)


def test_the_results_are_those_of_the_network(shown):
    steps = shown.settings[0].steps
    with torch.inference_mode():
        image = rc.load(demo.MODEL)(shown.noisy[None, None], steps, sigma=25)[0, 0]
    assert torch.equal(image, shown.settings[0].image)


def test_the_figure_shows_every_picture_and_its_detail_as_they_are(shown, tmp_path):
    out = tmp_path / "new" / "figure.png"
    demo.draw(shown, out)
    figure = np.asarray(Image.open(out).convert("L"))
    height, width = shown.clean.shape
    rows, columns = demo.DETAIL
    images = [shown.noisy, *(setting.image for setting in shown.settings), shown.clean]
    for number, image in enumerate(images):
        values = np.round(image.clamp(0, 1).numpy() * 255)
        left = demo.GAP + number % 3 * (width + demo.GAP)
        top = demo.GAP + number // 3 * (demo.TITLE + height + demo.GAP // 2 + 256 + demo.GAP) + demo.TITLE
        whole = figure[top : top + height, left : left + width].astype(int)
        # All but the frame around the detail.
        assert np.mean(np.abs(whole - values) <= 2) > 0.97
        detail = figure[top + height + demo.GAP // 2 :, left:][:256:4, : 4 * 96 : 4].astype(int)
        assert np.abs(detail - values[rows, columns]).max() <= 2
        title = figure[top - demo.TITLE : top, left : left + width]
        assert (title < 100).sum() > 50
    assert figure.shape == (top + height + demo.GAP // 2 + 256 + demo.GAP, 3 * (width + demo.GAP) + demo.GAP)


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")])
def test_the_name_decides_the_format(shown, tmp_path, suffix, start):
    out = tmp_path / f"figure{suffix}"
    out.write_text("an earlier one")
    demo.draw(shown, out)
    assert out.read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_figure_that_cannot_be_written(shown, tmp_path):
    with pytest.raises(ValueError, match=r"figure.jpg .* ends in .png, .svg, .pdf"):
        demo.draw(shown, tmp_path / "figure.jpg")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        demo.draw(shown, tmp_path / "folder.png")
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "figure.png"
    with pytest.raises(OSError, match="cannot be written") as refusal:
        demo.draw(shown, below)
    assert str(refusal.value).startswith(f"{below} cannot be written: ")


def test_the_command_works_anywhere_and_offline(shown, command, monkeypatch, tmp_path):
    def refuse(*args):
        raise AssertionError("the demo must not need a network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(demo, "denoise_sample", lambda say: shown)
    monkeypatch.chdir(tmp_path)
    done = command("demo")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[-1] == f"The pictures are in {tmp_path / 'recurconv-demo.png'}"
    assert Image.open(tmp_path / "recurconv-demo.png").size == (1200, 1140)
    table = [line.strip("│ ").split() for line in lines if line.startswith("│")]
    assert table[0][0] == "noisy"
    assert table[0][-1] == f"{shown.noisy_psnr:.2f}"
    told = [[str(s.steps), f"{s.macs / 1e9:.2f}", f"{s.milliseconds:.0f}", f"{s.psnr:.2f}"] for s in shown.settings]
    assert [[word for word in row if word != "│"] for row in table[1:]] == told
    assert max(map(len, lines[:-1])) <= 80


def test_the_command_finds_a_bad_name_before_it_works(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "denoise_sample", lambda say: pytest.fail("it worked first"))
    assert "ends in .png, .svg, .pdf" in refused("demo", "--out", tmp_path / "x.jpeg")


def test_an_unwritable_figure_is_one_line(shown, command, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "denoise_sample", lambda say: shown)
    (tmp_path / "file").touch()
    done = command("demo", "--out", tmp_path / "file" / "x.png")
    assert done.status == 2
    assert done.err.startswith(f"recurconv: {tmp_path / 'file' / 'x.png'} cannot be written: ")
    assert done.err.count("\n") == 1
    assert "noisy" in done.out  # what was computed is shown all the same
