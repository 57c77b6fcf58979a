"""The whole method on toy data with only torch: `python examples/minimal.py`, about 15 seconds on one core.

Train on a source of two tokens, sample with M network evaluations, and compare the bound on the sampler's negative
log-likelihood with the source's entropy. Equation numbers are those of docs/theory.md.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

torch.set_default_dtype(torch.float64)
V, D, M, S = 4, 5, 64, 0.04  # tokens, coordinates (the mask is the last), network evaluations, total noise
NOISE = S / (1 + 0.003 * torch.arange(M))  # B_m, remaining noise: equal steps of 1/B, in which the bound is an integral
GAIN = 1 - NOISE[1:] / NOISE[:-1]  # g_m, Eq. (18); the last of the M evaluations decodes and takes no step
VARIANCE = NOISE[1:] * GAIN  # s2_m, Eq. (18)
SOURCE = torch.tensor([0.4, 0.3, 0.2, 0.1])[:, None] * (0.1 + 0.6 * torch.eye(V).roll(1, 1))  # p(first, second)


def data(count: int) -> Tensor:
    return torch.stack(torch.unravel_index(SOURCE.flatten().multinomial(count, True), SOURCE.shape), -1)


def pull(theta: Tensor, remaining: Tensor) -> Tensor:  # Eq. (26), leading terms: the Brownian bridge
    return theta - remaining * (D - 2) / 2 * (1 / theta - 1 / theta.tan())


def posterior(net: nn.Module, state: Tensor, remaining: Tensor) -> Tensor:
    """Return log p(token | both states), Eq. (27): each state's own evidence, Eq. (25), plus the network's output."""
    theta = torch.acos(state[..., :V])
    evidence = -theta.square() / (2 * remaining) + (D - 2) / 2 * (theta / theta.sin()).log()
    return torch.log_softmax(net((evidence.softmax(-1) - 1 / V).flatten(-2)).view_as(evidence) + evidence, -1)


def pairs(count: int) -> Tensor:
    """Simulate the pair (r, c) that determines the law of a state at every level: [2, M, count], Eq. (21)."""
    table = [torch.tensor([torch.pi / 2, 1.0])[:, None].expand(2, count)]
    for remaining, gain, variance in zip(NOISE[:-1], GAIN, VARIANCE, strict=True):
        r, c = table[-1]
        v = variance.sqrt() * torch.randn(D - 1, count)  # tangent step: outward, sideways, the rest
        v[0] -= gain * pull(r, remaining)
        cos, sinc = v.norm(dim=0).cos(), torch.sinc(v.norm(dim=0) / torch.pi)
        on_mask = cos * r.sin() * c + sinc * (v[0] * r.cos() * c + v[1] * (1 - c.square()).sqrt())
        r = torch.acos(cos * r.cos() - sinc * r.sin() * v[0])
        table.append(torch.stack([r, (on_mask / r.sin()).clamp(-1, 1)]))
    return torch.stack(table, dim=1)


def draw_states(token: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """Draw states with given pairs [..., 1], Eq. (20): the remaining direction xi is uniform."""
    vertex, mask = one_hot(token, D), one_hot(torch.tensor(V), D)
    xi = nn.functional.normalize(torch.randn(vertex.shape) * (1 - vertex - mask), dim=-1)
    return torch.cos(r) * vertex + torch.sin(r) * (c * mask + (1 - c.square()).sqrt() * xi)


def step(state: Tensor, token: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the states after one step of each token's bridge, Eq. (19), and its log q_l for all tokens l, Eq. (29)."""
    theta = torch.acos(state[..., :V])
    slope = GAIN[m] * pull(theta, NOISE[m]) / theta.sin()
    u = slope.gather(-1, token[..., None]) * one_hot(token, D) + VARIANCE[m].sqrt() * torch.randn(state.shape)
    u = u - (u * state).sum(-1, keepdim=True) * state
    length = u.norm(dim=-1, keepdim=True)
    log_q = slope * (u[..., :V] - slope * theta.sin().square() / 2) / VARIANCE[m]
    return length.cos() * state + torch.sinc(length / torch.pi) * u, log_q


@torch.no_grad()
def sample(net: nn.Module, count: int, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sample tokens with the mixture kernel, or simulate paths to given tokens, and sum the bound, Eq. (29)-(30)."""
    state, nats = one_hot(torch.full((count, 2), V), D).double(), torch.zeros(count)
    for m in range(M):
        log_p = posterior(net, state, NOISE[m])
        token = log_p.exp().view(-1, V).multinomial(1).view(-1, 2) if given is None else given
        state, log_q = step(state, token, m) if m < M - 1 else (state, one_hot(token, V).log())  # last: decode
        nats += (log_q.gather(-1, token[..., None])[..., 0] - (log_q + log_p).logsumexp(-1)).sum(-1)
    return token, nats


def main(steps: int = 2000, samples: int = 20000) -> tuple[Tensor, float, float]:
    """Train, print, and return the sampled joint distribution, the bound minus the entropy, and its standard error."""
    torch.manual_seed(0)
    table, net = pairs(8192), nn.Sequential(nn.Linear(2 * V, 64), nn.SiLU(), nn.Linear(64, 2 * V))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(steps):  # cross-entropy, Eq. (36), at random levels of noise
        token, level = data(512), torch.randint(M, (512, 1, 1)).expand(-1, 2, 1)
        r, c = table[:, level, torch.randint(table.shape[2], level.shape)]
        optimizer.zero_grad()
        (-posterior(net, draw_states(token, r, c), NOISE[level]).gather(-1, token[..., None])).mean().backward()
        optimizer.step()
    sampled, truth = sample(net, samples)[0], data(samples)
    joint = torch.bincount(sampled @ torch.tensor([V, 1]), minlength=V * V).view(V, V) / samples
    excess = sample(net, samples, truth)[1] + SOURCE[truth.unbind(-1)].log()  # low variance: -log p minus -log p_source
    entropy, error = torch.special.entr(SOURCE).sum().item(), excess.std().item() / samples**0.5
    print(f"p(first, second) of the source:\n{SOURCE}\nand of {samples} samples with {M} network evaluations:\n{joint}")
    print(f"entropy {entropy:.4f} nats, bound {entropy + excess.mean():.4f} +- {1.96 * error:.4f}")
    return joint, excess.mean().item(), error


if __name__ == "__main__":
    main()
