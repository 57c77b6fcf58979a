"""Presets: functions that return a run's configuration, found by name in `PRESETS`; no torch here.

`rdlm train NAME` trains one, and every key can be changed: `rdlm train text8-small --model.width 384`. Docstrings give
the number of parameters and, where they have been measured, the cost and the metric.

A preset without a suffix has the settings of this project: the Brownian bridge, evidence, levels by information and no
time input, trained for every order of generation. A name that ends in `-paper` has the paper's settings, with one
exception: the share of times outside of the proposal's interval is 0.01 instead of 0.0001, which would give rare
samples weights in the thousands and large gradients. `text8`, `lm1b`, `cifar10` and `promoter` have the paper's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rdlm.config import (
    PAPER_TOTAL_NOISE,
    Convolution2DConfig,
    ConvolutionConfig,
    DataConfig,
    DenoiserConfig,
    ObjectiveConfig,
    ProcessConfig,
    RunConfig,
    TrainingConfig,
    TransformerConfig,
)
from rdlm.errors import unknown

SMALL = TrainingConfig(
    steps=5000,
    batch=32,
    optimizer="muon",
    lr=2e-3,
    warmup=200,
    decay="cosine",
    ema=0.999,
    save_every=250,
    validate_every=250,
    validation_sequences=256,
)
"""For runs of minutes to an hour on two cores: Muon with a high, decaying learning rate, and a fast weight average."""

PAPER = TrainingConfig(
    steps=1_000_000,
    batch=512,
    warmup=2500,
    precision="bfloat16",
    save_every=5000,
    validate_every=5000,
    validation_sequences=512,
    validation_nfe=256,
)
PAPER_PROCESS = ProcessConfig(bridge="logarithm", path="switch", switch=0.35, law="normal", total=PAPER_TOTAL_NOISE)
PAPER_DENOISER = DenoiserConfig(features="tokens", evidence=False)
PAPER_OBJECTIVE = ObjectiveConfig(proposal="interval", interval=(0.3, 0.6), floor=0.01)

SYNCHRONOUS = ProcessConfig(order="synchronous")
"""All tokens move together, unless another order is chosen: the network is trained for every order."""

TEXT = ObjectiveConfig(mixed=0.3, asynchronous=0.35, narrow=1.0, order="random", blockwise=0.45)
"""For every order: 45% of the sequences from left to right; of the others 35% synchronous, 35% with one token after the
other in random order, and 30% with a noise level of its own for each token."""

NO_BLOCKS = ObjectiveConfig(mixed=0.3, asynchronous=0.4, narrow=1.0, order="random")
"""For images and DNA: 40% with one token after the other, 30% with mixed levels, and 30% synchronous."""

BASE = RunConfig(process=SYNCHRONOUS, objective=TEXT, training=SMALL)
SMALL_TEXT = replace(
    BASE,
    model=TransformerConfig(width=224, layers=5, heads=4, belief="ngram"),
    training=replace(SMALL, validation_nfe=128),
)
"""3.2M parameters, sequences of 128 tokens."""
LARGE = replace(BASE, training=PAPER)
NO_BLOCKS_BASE = replace(BASE, objective=NO_BLOCKS)
PAPER_BASE = RunConfig(process=PAPER_PROCESS, denoiser=PAPER_DENOISER, objective=PAPER_OBJECTIVE, training=PAPER)

PAPER_TEXT8 = TransformerConfig(width=768, layers=12, heads=12, time_width=128)
"""92.5M parameters with 27 characters and the mask (the paper: 92.4M)."""
PAPER_LM1B = replace(PAPER_TEXT8, layers=14)
"""107.8M parameters with ten base-3 digits in serial layout (the paper: 110M). The paper's text has 12 layers, which
amount to 92.5M; its parameter count needs 14 layers."""
PAPER_CIFAR10 = TransformerConfig(width=448, layers=10, heads=7, time_width=128)
"""28.0M parameters with 256 levels (the paper: 28M in its table, 35M in its text)."""
PAPER_PROMOTER = ConvolutionConfig()
"""13.3M parameters with 4 bases, the mask, and one signal per position (the paper: 13.3M)."""


def demo() -> RunConfig:
    """State of the Union speeches in 27 characters: 0.9M parameters above a 6-gram chain, a few minutes on 2 cores.

    `rdlm demo`, or `rdlm train demo --minutes 4`. Measured: 1.73 ± 0.03 bits per character left to right in 64 calls
    and 1.71 ± 0.05 strided after 4 minutes (850 steps), which is what the chain has without the network.
    """
    return replace(
        BASE,
        data=DataConfig("demo", length=64),
        model=TransformerConfig(width=128, layers=4, heads=4, belief="ngram", states=8192),
        training=replace(
            SMALL, steps=4000, warmup=100, decay="constant", ema=0.995, save_every=500, validate_every=500
        ),
    )


def text8() -> RunConfig:
    """Text8 with the paper's network above a 6-gram chain: 92.4M parameters, a million steps of 512 x 256 characters.

    `torchrun --nproc-per-node 8 -m rdlm train text8`. Not measured here.
    """
    return replace(LARGE, data=DataConfig("text8"), model=replace(PAPER_TEXT8, belief="ngram"))


def text8_paper() -> RunConfig:
    """The paper's text8: 92.5M parameters, 12 layers, a million steps of 512 sequences of 256 characters.

    `torchrun --nproc-per-node 8 -m rdlm train text8-paper`. Not measured here; the paper reports 1.32 bits per
    character, with an estimator that is not a bound.
    """
    return replace(PAPER_BASE, data=DataConfig("text8"), model=PAPER_TEXT8)


def text8_small() -> RunConfig:
    """Text8 on 2 cores: 3.2M parameters above a 6-gram chain, sequences of 128 characters.

    `rdlm train text8-small`. Not measured here.
    """
    return replace(SMALL_TEXT, data=DataConfig("text8", length=128))


def text8_small_paper() -> RunConfig:
    """Text8 on 2 cores with the paper's settings: 3.2M parameters, sequences of 128 characters, no evidence.

    `rdlm train text8-small-paper`. Not measured here.
    """
    small = text8_small()
    return replace(PAPER_BASE, data=small.data, model=replace(small.model, belief="none"), training=small.training)


def enwik8() -> RunConfig:
    """Bytes of Wikipedia on 2 cores, as two digits of base 16: 3.2M parameters.

    `rdlm train enwik8`. Not measured here.
    """
    model, process = replace(SMALL_TEXT.model, belief="none"), replace(SYNCHRONOUS, base=16)
    return replace(SMALL_TEXT, data=DataConfig("enwik8", length=128), process=process, model=model)


def lm1b() -> RunConfig:
    """LM1B with a learned code of 16 numbers for each of 30,522 word pieces: 116M parameters.

    `torchrun --nproc-per-node 8 -m rdlm train lm1b --data.file FOLDER`. Not measured here. It has a tenth of the
    positions of `lm1b-paper`.
    """
    return replace(
        LARGE,
        data=DataConfig("lm1b"),
        process=replace(SYNCHRONOUS, codes="learned"),
        denoiser=DenoiserConfig(features="mean"),
        model=PAPER_TEXT8,
    )


def lm1b_packed() -> RunConfig:
    """LM1B with three packed base-32 digits per word piece in place of learned codes: 116M parameters.

    `torchrun --nproc-per-node 8 -m rdlm train lm1b-packed --data.file FOLDER`. Not measured here.
    """
    return replace(lm1b(), process=replace(SYNCHRONOUS, base=32), denoiser=DenoiserConfig())


def lm1b_paper() -> RunConfig:
    """The paper's LM1B: 107.8M parameters, 128 word pieces as ten base-3 digits in serial layout.

    `torchrun --nproc-per-node 8 -m rdlm train lm1b-paper --data.file FOLDER`. Not measured here. The paper's text has
    12 layers, but its count of 110M parameters needs 14.
    """
    return replace(
        PAPER_BASE,
        data=DataConfig("lm1b"),
        process=replace(PAPER_PROCESS, base=3, layout="serial", switch=0.38),
        denoiser=replace(PAPER_DENOISER, head="digit"),
        model=PAPER_LM1B,
        objective=replace(PAPER_OBJECTIVE, interval=(0.3, 0.75)),
    )


def wikitext_2() -> RunConfig:
    """WikiText-2 on 2 cores: 4,096 byte pairs with learned codes in 16 dimensions, 2.7M parameters.

    `rdlm train wikitext-2`. Not measured here.
    """
    return replace(
        BASE,
        data=DataConfig("wikitext-2", length=64, tokenizer="bpe", vocabulary=4096),
        process=replace(SYNCHRONOUS, codes="learned"),
        denoiser=DenoiserConfig(features="mean"),
        model=TransformerConfig(width=192, layers=4, heads=4, frequencies=True),
        training=replace(SMALL, batch=16, validation_sequences=64),
    )


def words() -> RunConfig:
    """WikiText-2 in 30,522 word pieces with learned codes on 2 cores: 5.3M parameters above 400,000 bigrams.

    `rdlm train words`. Not measured here as one run: the packaged model `words` had other settings in its first steps.
    """
    return replace(
        BASE,
        data=DataConfig("wikitext-2", length=64, tokenizer="wordpiece"),
        process=replace(SYNCHRONOUS, codes="learned"),
        model=TransformerConfig(
            width=128, layers=4, heads=4, tie=True, frequencies=True, belief="bigram", states=400_000
        ),
        objective=replace(TEXT, blockwise=0.8),
        training=replace(
            SMALL,
            steps=1000,
            batch=8,
            lr=1.2e-2,
            warmup=20,
            ema=0.99,
            precision="bfloat16",
            save_every=100,
            validate_every=1000,
            validation_sequences=32,
        ),
    )


def textfile() -> RunConfig:
    """Your own text on 2 cores, as characters: 3.2M parameters above a 6-gram chain.

    `rdlm train textfile --data.file BOOK.txt`. Not measured here. Any tokenizer and alphabet: the total noise is chosen
    by the number of tokens, and more than 1,024 tokens have learned codes in place of the chain.
    """
    return replace(SMALL_TEXT, data=DataConfig("textfile", length=128), process=replace(SYNCHRONOUS, codes="auto"))


def own() -> RunConfig:
    """Your own text, CSV, JSONL, FASTA, FASTQ, images or array, detected from the content, on 2 cores: 3.2M parameters.

    `rdlm train --data PATH`, or `rdlm train own --data.file PATH`. Not measured here. Network as in `textfile`.
    """
    return replace(textfile(), data=DataConfig("own", length=128))


def digits() -> RunConfig:
    """Handwritten digits of 8x8 pixels and 17 levels, class-conditional: 1.3M parameters, minutes on 2 cores.

    `rdlm train digits --minutes 5`. Not measured here.
    """
    return replace(
        NO_BLOCKS_BASE,
        data=DataConfig("digits"),
        model=TransformerConfig(width=160, layers=4, heads=4, dropout=0.1, places=64),
        training=replace(SMALL, steps=3000, validation_sequences=180),
    )


def mnist() -> RunConfig:
    """MNIST on 2 cores, 256 levels as two digits of base 16, class-conditional: 1.5M parameters.

    `rdlm train mnist`. Not measured here.
    """
    return replace(
        NO_BLOCKS_BASE,
        data=DataConfig("mnist"),
        process=replace(SYNCHRONOUS, base=16),
        model=TransformerConfig(width=160, layers=4, heads=4, places=784),
        training=replace(SMALL, batch=8),
    )


def cifar10() -> RunConfig:
    """CIFAR-10 with the paper's network, 256 levels as two digits of base 16: 27.8M parameters, 3,072 pixel tokens.

    `torchrun --nproc-per-node 8 -m rdlm train cifar10`. Not measured here.
    """
    return replace(
        NO_BLOCKS_BASE,
        data=DataConfig("cifar10"),
        process=replace(SYNCHRONOUS, base=16),
        model=PAPER_CIFAR10,
        training=replace(PAPER, batch=128, steps=100_000, validation_sequences=64),
    )


def cifar10_paper() -> RunConfig:
    """The paper's CIFAR-10: 28.0M parameters, 3,072 pixel tokens of 256 levels, batches of 128.

    `torchrun --nproc-per-node 8 -m rdlm train cifar10-paper`. Not measured here.
    """
    return replace(
        cifar10(),
        process=PAPER_PROCESS,
        denoiser=replace(PAPER_DENOISER, features="coordinates"),
        objective=PAPER_OBJECTIVE,
    )


LEVELS = ProcessConfig(bridge="gaussian", schedule="cosine", order="synchronous", codes="arc", dimension=3)
"""Ordered levels as points of a half circle: a state is a noisy level. Near levels are resolved at the end, where the
cosine schedule has many steps."""

ERASED = ObjectiveConfig(mixed=0.1, asynchronous=0.6, narrow=1.0, order="random")
"""For images on 2 cores: 60% of the images with random levels erased, 10% with mixed noise and 30% synchronous."""


def cifar10_small() -> RunConfig:
    """CIFAR-10 on 2 cores: 8 blocks of convolutions over patches of 2 x 2 pixels, class-conditional: 1.1M parameters.

    `rdlm train cifar10-small --minutes 40`. Not measured here.
    """
    return replace(
        BASE,
        data=DataConfig("cifar10"),
        process=LEVELS,
        denoiser=DenoiserConfig(features="level"),
        model=Convolution2DConfig(),
        objective=ERASED,
        training=replace(SMALL, steps=20_000, batch=8, warmup=100, validate_every=1000, validation_sequences=64),
    )


def mnist_small() -> RunConfig:
    """MNIST on 2 cores with the network of `cifar10-small`, class-conditional: 1.0M parameters.

    `rdlm train mnist-small --minutes 10`. Not measured here.
    """
    return replace(cifar10_small(), data=DataConfig("mnist"), model=Convolution2DConfig(image=(28, 28, 1)))


def promoter() -> RunConfig:
    """Promoter design with the paper's network: 13.2M parameters, 1,024 bases with one signal per base.

    `rdlm train promoter --data.file FILE.npz`. Not measured here.
    """
    return replace(
        NO_BLOCKS_BASE,
        data=DataConfig("promoter"),
        model=PAPER_PROMOTER,
        training=replace(PAPER, batch=256, steps=100_000, precision="float32", validation_nfe=300),
    )


def promoter_paper() -> RunConfig:
    """The paper's promoter design: 13.3M parameters, 20 convolutions, 1,024 bases with one signal per base.

    `rdlm train promoter-paper --data.file FILE.npz`. Not measured here.
    """
    return replace(
        promoter(),
        process=PAPER_PROCESS,
        denoiser=replace(PAPER_DENOISER, features="coordinates"),
        objective=PAPER_OBJECTIVE,
    )


def promoter_chr22() -> RunConfig:
    """Promoters of human chromosome 22 on 2 cores: 5 convolutions over 1,024 bases, 0.84M parameters.

    `rdlm train promoter-chr22 --minutes 5`. Measured: 1.900 [1.893, 1.907] bits per base in strided order at 64 calls
    after 150 steps. An n-gram chain alone has 1.915, and does not speed up the training of the network.
    """
    return replace(
        NO_BLOCKS_BASE,
        data=DataConfig("promoter-chr22"),
        model=ConvolutionConfig(width=128, stacks=1),
        training=replace(SMALL, batch=8),
    )


def chr22() -> RunConfig:
    """Promoters and other windows of human chromosome 22, by label: 5 convolutions over 1,024 bases, 0.21M parameters.

    `rdlm train chr22`, a quarter of an hour on one core: the packaged model `dna`. Measured: 1.812 [1.804, 1.820] bits
    per base of the test split, given the label, synchronously at 64 calls.
    """
    return replace(
        NO_BLOCKS_BASE,
        data=DataConfig("chr22"),
        model=ConvolutionConfig(width=64, stacks=1),
        training=replace(SMALL, steps=4000, batch=8, validate_every=1000),
    )


def regulatory() -> RunConfig:
    """Open chromatin, 200 bases, conditional on the cell type, on 2 cores: 1.3M parameters.

    `rdlm train regulatory --data.accept-licence`. Not measured here.
    """
    return replace(
        NO_BLOCKS_BASE,
        data=DataConfig("regulatory"),
        model=TransformerConfig(width=160, layers=4, heads=4),
        training=replace(SMALL, batch=16),
    )


_ALL = (
    demo,
    text8,
    text8_paper,
    text8_small,
    text8_small_paper,
    enwik8,
    lm1b,
    lm1b_packed,
    lm1b_paper,
    wikitext_2,
    words,
    textfile,
    own,
    digits,
    mnist,
    cifar10,
    cifar10_paper,
    cifar10_small,
    mnist_small,
    promoter,
    promoter_paper,
    promoter_chr22,
    chr22,
    regulatory,
)
PRESETS: dict[str, Callable[[], RunConfig]] = {make.__name__.replace("_", "-"): make for make in _ALL}


def preset(name: str) -> RunConfig:
    """Return the configuration of a preset; the error for an unknown name suggests similar ones."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]()
