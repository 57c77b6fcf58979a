"""The paper's sizes, counted on the meta device, and the configurations that are refused."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest
import torch

from rdlm import config, presets
from rdlm.config import ConvolutionConfig, Interface, TransformerConfig
from rdlm.errors import InputError
from rdlm.model.network import build, parameter_count


@pytest.mark.parametrize(
    ("network_config", "interface", "published", "count"),
    [
        (presets.PAPER_TEXT8, Interface(features=28, outputs=27), 92.4e6, 92_490_651),
        (presets.PAPER_LM1B, Interface(features=4, outputs=3, digits=10), 110e6, 107_819_907),
        (presets.PAPER_CIFAR10, Interface(features=257, outputs=256), 28e6, 28_037_120),
        (presets.PAPER_PROMOTER, Interface(features=5, outputs=4, signal=1), 13.3e6, 13_328_388),
    ],
    ids=["text8", "lm1b", "cifar10", "promoter"],
)
def test_presets_have_the_published_size(
    network_config: config.NetworkConfig, interface: Interface, published: float, count: int
) -> None:
    with torch.device("meta"):
        network = build(network_config, interface)
    assert parameter_count(network) == count
    assert count == pytest.approx(published, rel=0.02)


def test_a_tied_matrix_is_counted_once() -> None:
    interface = Interface(30, 27)
    untied = build(TransformerConfig(width=16, layers=1, heads=2), interface)
    tied = build(TransformerConfig(width=16, layers=1, heads=2, tie=True), interface)
    assert parameter_count(untied) - parameter_count(tied) == 27 * 16 - 16


def test_configuration_needs_no_torch() -> None:
    code = "import sys, rdlm.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_field_is_documented() -> None:
    """Parts of a configuration are documented by their classes."""
    for node in ast.parse(inspect.getsource(config)).body:
        if isinstance(node, ast.ClassDef):
            for field, after in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).endswith("Config"):
                    assert isinstance(after, ast.Expr), (node.name, ast.unparse(field.target))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: TransformerConfig(width=100, heads=3), "width 100 is not a multiple of 2 . heads = 6"),
        (lambda: TransformerConfig(layers=0), "layers 0 must be at least 1"),
        (lambda: TransformerConfig(dropout=1.0), "dropout 1.0 must lie in"),
        (lambda: TransformerConfig(time_scale=0.0), "time_scale 0.0 must be positive"),
        (lambda: ConvolutionConfig(kernel=8), "kernel 8 must be odd"),
        (lambda: ConvolutionConfig(dilations=()), "dilations"),
        (lambda: ConvolutionConfig(dilations=(1, 1 << 63)), "dilations .* integers from 1 to 1048576"),
        (lambda: Interface(0, 3), "features 0 must be at least 1"),
        (lambda: Interface(3, 3, classes=2, signal=1), "not on both"),
        (lambda: build(TransformerConfig(tie=True), Interface(3, 4)), "4 outputs, 3 features"),
    ],
)
def test_wrong_sizes_are_refused(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(InputError, match=message):
        wrong()
