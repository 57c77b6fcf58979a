"""The compiled kernel: made where it can be, refused where it is not ours or not whole, and never missed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rdlm import native, numbers
from rdlm.geometry import special

compiles = pytest.mark.skipif(native.library() is None, reason="there is no compiler here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of caches, and nothing loaded."""
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "caches"))
    native.library.cache_clear()
    yield tmp_path / "caches"
    native.library.cache_clear()


@compiles
def test_it_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.library() is not None
    (kept,) = folder.iterdir()
    native.library.cache_clear()
    monkeypatch.setenv("CC", "false")
    assert native.library() is not None
    assert [kept] == list(folder.iterdir())


@compiles
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "a link", "anyone's"])
def test_what_is_not_whole_or_not_ours_is_made_again(folder: Path, damage: str) -> None:
    path = native.kept()
    assert native.library() is not None
    whole = path.read_bytes()
    if damage == "a link":
        shutil.move(path, folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    elif damage == "anyone's":
        path.chmod(0o666)
    else:
        spoilt = {"cut": whole[:1000], "empty": b"", "flipped": whole[:500] + b"\xff\xfe" + whole[502:]}[damage]
        path.unlink()  # the old one is mapped into this process
        path.write_bytes(spoilt)
    assert not native._sound(path)
    native.library.cache_clear()
    assert native.library() is not None
    assert native._sound(path) and not path.is_symlink() and path.read_bytes() == whole


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler", "echo", "an 'open quote"])
def test_without_a_compiler_all_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch, compiler: str) -> None:
    expected = numbers.defined(torch.tensor([3]), 9)
    cosine = torch.linspace(-0.9, 1, 50)
    monkeypatch.setenv("CC", compiler)
    assert native.library() is None
    assert torch.equal(numbers.normals(torch.tensor([3]), 9), expected)
    torch.testing.assert_close(special.angle_over_sine(cosine), special.angle_over_sine(cosine.double()).float())
    assert not folder.exists() or not any(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path / "file"))
    native.library.cache_clear()
    assert native.library() is None
    native.library.cache_clear()


def test_a_compiler_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = folder.parent / "slow compiler"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", f"'{slow}'")
    monkeypatch.setattr(native, "PATIENCE", 0.2)
    begin = time.monotonic()
    assert native.library() is None
    assert 0.2 <= time.monotonic() - begin < 30


@compiles
def test_polynomials_to_the_last_digits() -> None:
    at = torch.linspace(-1, 1, 1537)
    for one in (at, at.view(29, 53).T, at[::3], at[:0]):
        exact = one.double()
        found = native.polynomial(one, (0.5, -1.25, 0.75, 2.0))
        assert found is not None and found.shape == one.shape
        expected = 0.5 - 1.25 * exact + 0.75 * exact**2 + 2 * exact**3
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=3e-7)


@compiles
@pytest.mark.parametrize("width", [1, 3, 4, 15, 16, 28, 1023, 1024, 1045, 30523])
def test_products_of_rows(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    one, other = (torch.randn(5, width, generator=generator) for _ in range(2))
    a, b = one.double(), other.double()
    expected = torch.stack([(a * b).sum(-1), (b * b).sum(-1), (a * a).sum(-1)])[..., None]
    size = (a.square() + b.square()).sum(-1)[:, None]
    for given in ((one, other), (one.T.contiguous().T, other)):
        found = native.products(*given)
        assert found is not None and found.shape == (3, 5, 1)
        assert float(((found - expected).abs() / size).max()) < 5e-7


@compiles
def test_rows_do_not_know_of_each_other() -> None:
    one, other = torch.randn(7, 28), torch.randn(7, 28)
    whole = native.products(one, other)
    for row in range(7):
        alone = native.products(one[row : row + 1], other[row : row + 1])
        assert whole is not None and alone is not None and torch.equal(whole[:, row : row + 1], alone)


def test_gradients_other_types_and_devices_are_left_to_torch() -> None:
    plain = torch.rand(2, 3)
    for other in (plain.double(), plain.to("meta"), plain.clone().requires_grad_()):
        assert native.products(plain, other) is None and native.polynomial(other, (1.0, 2.0)) is None
        assert not native.add_ratio(plain, other, other, (0.0,) * 10, -1.0)


@compiles
@pytest.mark.parametrize("width", [1, 27, 600, 1023])
def test_ratios_are_added_in_place(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    total = torch.randn(3, 2, width + 1, generator=generator)
    cosine = torch.randn(3, 2, width + 1, generator=generator).clamp_min(-0.9)  # beyond 1 it counts as 1
    weight = torch.rand(width, 2, 3, generator=generator).permute(2, 1, 0)  # not in order
    expected = total.clone().double()
    expected[..., :width] += weight.double() * special.angle_over_sine(cosine[..., :width].double())
    special.add_angle_over_sine(total[..., :width], weight, cosine[..., :width])
    torch.testing.assert_close(total.double(), expected, rtol=2e-6, atol=2e-6)


@compiles
def test_the_antipode_is_capped_as_everywhere() -> None:
    cosine, total = torch.tensor([[-1.5, -1.0, -0.9999999]]), torch.zeros(1, 3)
    special.add_angle_over_sine(total, torch.ones(1, 3), cosine)
    torch.testing.assert_close(total, special.angle_over_sine(cosine), rtol=1e-4, atol=0)


def test_ratios_have_gradients() -> None:
    cosine = torch.rand(4, 5, requires_grad=True)
    total = torch.zeros(4, 5)
    special.add_angle_over_sine(total, torch.ones(4, 5), cosine)
    total.sum().backward()
    assert cosine.grad is not None and bool((cosine.grad < 0).all())


def test_it_is_kept_by_what_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = native.kept()
    monkeypatch.setattr(native, "OPTIONS", (*native.OPTIONS, "-g"))
    assert native.kept() != before
    assert os.fspath(before).endswith(".so")
