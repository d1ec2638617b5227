"""The quantiser assigns greedily, reconstructs by sums, and revives dead codes only."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.config import ModalityCode, TokenizerConfig
from siglum.tokenize.rq import ResidualQuantizer
from siglum.types import SiglumError

DIM = 6


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(number: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    kinds = torch.arange(number) % 3
    rows = torch.randn(number, DIM, generator=generator(seed)) + 3 * torch.eye(3, DIM)[kinds]
    return torch.nn.functional.normalize(rows, dim=-1), kinds


def fit_step(
    quantizer: ResidualQuantizer, residuals: list[Tensor], codes: Tensor, draw: torch.Generator
) -> list[tuple[int, Tensor]]:
    """Make one step and return (level, revived codes) of the levels that have some."""
    revival_rows = quantizer.draw_revival_rows(len(codes), 1, draw)
    revived = quantizer.fit_step([residual.detach() for residual in residuals], codes, revival_rows)
    assert int(revival_rows.taken) == sum(int(dead.sum()) for dead in revived.values())
    return [(level, dead.nonzero()[:, 0]) for level, dead in revived.items() if dead.any()]


def quantizer_of(
    modality: ModalityCode = "metadata", vocab: tuple[int, ...] = (8, 12, 16), **options: Any
) -> ResidualQuantizer:
    quantizer = ResidualQuantizer(TokenizerConfig(vocab=vocab, modality=modality, **options), DIM)
    quantizer.fit(*data(), generator())
    return quantizer


@given(st.sampled_from(["metadata", "learned", "none"]), st.integers(0, 1000))
def test_assignment_is_greedy_and_residuals_add_up(modality: ModalityCode, seed: int) -> None:
    quantizer = quantizer_of(modality)
    vectors, kinds = data(7, seed)
    codes, residuals = quantizer.assign(vectors, kinds)
    assert codes.shape == (7, len(quantizer.sizes))
    assert len(residuals) == len(quantizer.sizes)
    for n in range(7):
        residual = vectors[n].double()
        for level, book in enumerate(quantizer.codebooks):
            torch.testing.assert_close(residuals[level][n].double(), residual, atol=1e-6, rtol=0)
            chosen = int(codes[n, level])
            if level == 0 and modality == "metadata":
                assert chosen == int(kinds[n])
            else:
                distances = [float((residual - word.double()).square().sum()) for word in book.detach()]
                assert distances[chosen] <= min(distances) + 1e-5
            residual = residual - book[chosen].detach().double()
        torch.testing.assert_close(
            quantizer.decode(codes)[n].double() + residual, vectors[n].double(), atol=1e-6, rtol=0
        )


def test_reconstructions_are_sums_of_codewords() -> None:
    quantizer = quantizer_of()
    codes, residuals = quantizer.assign(*data(20, 5))
    total = torch.zeros(20, DIM)
    for level, book in enumerate(quantizer.codebooks):
        torch.testing.assert_close(residuals[level] + total, data(20, 5)[0], atol=1e-6, rtol=0)
        total = total + torch.stack([book[int(code)] for code in codes[:, level]])
        torch.testing.assert_close(quantizer.partial_sums(codes)[:, level], total)
    torch.testing.assert_close(quantizer.decode(codes), total)
    assert quantizer.codewords(codes).requires_grad


def test_gradients_of_codewords_have_the_same_bits_on_any_number_of_threads() -> None:
    quantizer = ResidualQuantizer(TokenizerConfig(vocab=(2, 2), modality="none"), 64)
    codes = torch.randint(2, (8000, 2), generator=generator())
    weight = torch.randn(8000, 2, 64, generator=generator(1))
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 2):
            torch.set_num_threads(number)
            loss = (quantizer.codewords(codes) * weight).sum()
            found.append(torch.autograd.grad(loss, list(quantizer.codebooks)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for grads in found[1:] for one, other in zip(found[0], grads, strict=True))


def test_more_levels_reconstruct_better() -> None:
    quantizer, (vectors, kinds) = quantizer_of(), data()
    partial = quantizer.partial_sums(quantizer.encode(vectors, kinds))
    errors = (partial - vectors[:, None]).square().sum(-1).mean(0).tolist()
    assert all(deeper < 0.9 * shallower for shallower, deeper in itertools.pairwise(errors))


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_codes_do_not_depend_on_the_batch(batch_size: int) -> None:
    quantizer, (vectors, kinds) = quantizer_of(), data(100, 9)
    assert torch.equal(quantizer.encode(vectors, kinds, batch_size), quantizer.assign(vectors, kinds)[0])
    order = torch.randperm(100, generator=generator())
    assert torch.equal(
        quantizer.encode(vectors[order], kinds[order], batch_size), quantizer.encode(vectors, kinds)[order]
    )


def test_encoding_nothing_gives_no_codes_and_no_gradient() -> None:
    quantizer = quantizer_of()
    assert quantizer.encode(torch.zeros(0, DIM), torch.zeros(0)).shape == (0, 4)
    assert not quantizer.encode(data()[0].requires_grad_(), data()[1]).requires_grad


def test_half_precision_vectors_are_quantised_in_single() -> None:
    quantizer, (vectors, kinds) = quantizer_of(), data()
    codes, residuals = quantizer.assign(vectors.half(), kinds)
    assert {residual.dtype for residual in residuals} == {torch.float32}
    assert torch.equal(codes, quantizer.encode(vectors.half().float(), kinds))


def test_the_modality_codeword_is_the_mean_of_its_vectors() -> None:
    vectors, kinds = data()
    quantizer = quantizer_of()
    wanted = torch.stack([vectors[kinds == kind].mean(0) for kind in range(3)])
    torch.testing.assert_close(quantizer.codebooks[0].detach(), wanted)
    assert quantizer.first_residual == 1
    assert quantizer.sizes == (3, 8, 12, 16)


def test_a_modality_without_vectors_does_no_harm() -> None:
    quantizer = ResidualQuantizer(TokenizerConfig(vocab=(8, 8)), DIM)
    vectors = data()[0]
    quantizer.fit(vectors, torch.ones(120), generator())
    codes, residuals = quantizer.assign(vectors, torch.ones(120))
    fit_step(quantizer, residuals, codes, generator())
    assert all(bool(book.isfinite().all()) for book in quantizer.codebooks)
    assert bool((codes[:, 0] == 1).all())


def test_metadata_must_be_given_where_it_decides() -> None:
    with pytest.raises(SiglumError, match="takes the modality code from metadata, but no modalities were given"):
        quantizer_of().assign(data()[0])


def test_a_learned_modality_is_the_nearest_of_three_and_finds_separate_kinds() -> None:
    vectors, kinds = data()
    codes = quantizer_of("learned").encode(vectors)
    assert codes.shape == (120, 4)
    assert len({(int(a), int(b)) for a, b in zip(codes[:, 0], kinds, strict=True)}) < 9
    agree = max(
        sum(int(perm[code] == kind) for code, kind in zip(codes[:, 0], kinds, strict=True))
        for perm in [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    )
    assert agree > 100


def test_without_modality_there_is_no_such_token() -> None:
    quantizer = quantizer_of("none")
    assert quantizer.first_residual == 0
    assert quantizer.sizes == (8, 12, 16)
    assert torch.equal(quantizer.encode(data()[0]), quantizer.encode(*data()))


def test_a_modality_without_vector_stays_zero() -> None:
    quantizer, (vectors, kinds) = quantizer_of(modality_vector=False), data()
    codes, residuals = quantizer.assign(vectors, kinds)
    torch.testing.assert_close(residuals[1], vectors)
    quantizer.follow_gradient()
    fit_step(quantizer, residuals, codes, generator())
    assert float(quantizer.codebooks[0].abs().sum()) == 0
    assert not quantizer.codebooks[0].requires_grad
    assert torch.equal(codes[:, 0], kinds)


def test_a_learned_modality_cannot_do_without_a_vector() -> None:
    with pytest.raises(SiglumError, match="modality_vector"):
        quantizer_of("learned", modality_vector=False)


@pytest.mark.parametrize(
    ("name", "choices"), [("update", "ema, grad, hybrid"), ("modality", "metadata, learned, none")]
)
def test_unknown_options_are_named(name: str, choices: str) -> None:
    with pytest.raises(SiglumError, match=f"tokenizer.{name} is 'x', but must be one of: {choices}"):
        ResidualQuantizer(TokenizerConfig(**{name: "x"}), DIM)  # type: ignore[arg-type]


def test_too_few_vectors_for_a_level_are_refused() -> None:
    with pytest.raises(SiglumError, match="200 codewords need at least 200 training vectors, not 120"):
        quantizer_of(vocab=(8, 200))


@pytest.mark.parametrize("update", ["ema", "grad", "hybrid"])
def test_the_state_holds_everything_that_decides_codes_and_later_steps(update: Any) -> None:
    left, (vectors, kinds) = quantizer_of(update=update), data(64, 3)
    train_steps(left, vectors, kinds, 5)
    right = ResidualQuantizer(left.config, DIM)
    right.load_state_dict(left.state_dict())
    assert torch.equal(left.encode(vectors, kinds), right.encode(vectors, kinds))
    for quantizer in (left, right):
        train_steps(quantizer, vectors, kinds, 5)
    for name, value in left.state_dict().items():
        assert torch.equal(value, right.state_dict()[name]), name


def train_steps(
    quantizer: ResidualQuantizer, vectors: Tensor, kinds: Tensor | None, steps: int
) -> list[tuple[int, Tensor]]:
    revived = []
    for step in range(steps):
        codes, residuals = quantizer.assign(vectors, kinds)
        revived += fit_step(quantizer, residuals, codes, generator(step))
    return revived


def test_the_average_follows_the_residuals() -> None:
    quantizer = quantizer_of("none", (8,), update="ema", revive_below=0.0)
    vectors, _ = data()
    train_steps(quantizer, vectors, None, 200)
    codes = quantizer.encode(vectors)[:, 0]
    for code in set(codes.tolist()):
        torch.testing.assert_close(quantizer.codebooks[0][code], vectors[codes == code].mean(0), atol=1e-3, rtol=0)


def one_step_by_hand(quantizer: ResidualQuantizer, residual: Tensor, codes: Tensor, decay: float) -> Tensor:
    """EMA of count and total with Laplace smoothing, one code at a time."""
    size = quantizer.sizes[0]
    counts = [decay * float(quantizer.count_0[k]) + (1 - decay) * int((codes == k).sum()) for k in range(size)]  # type: ignore[index]
    words = []
    for k in range(size):
        total = decay * quantizer.total_0[k] + (1 - decay) * residual[codes == k].sum(0)  # type: ignore[index]
        smooth = (counts[k] + 1e-5) / (sum(counts) + size * 1e-5) * sum(counts)
        words.append(total / smooth)
    return torch.stack(words)


def test_one_step_of_the_average_is_its_formula() -> None:
    quantizer = quantizer_of("none", (8,), update="ema", decay=0.7, revive_below=0.0)
    vectors = data(30, 4)[0]
    codes, residuals = quantizer.assign(vectors)
    wanted = one_step_by_hand(quantizer, residuals[0], codes[:, 0], 0.7)
    fit_step(quantizer, residuals, codes, generator())
    torch.testing.assert_close(quantizer.codebooks[0].detach(), wanted)


def test_in_mode_grad_the_average_leaves_codewords_alone() -> None:
    quantizer = quantizer_of(update="grad", revive_below=0.0)
    before = [book.detach().clone() for book in quantizer.codebooks]
    train_steps(quantizer, *data(40, 2), 5)
    assert all(torch.equal(a, b) for a, b in zip(before, quantizer.codebooks, strict=True))


@pytest.mark.parametrize("update", ["ema", "grad", "hybrid"])
def test_dead_codes_are_revived_at_residuals_of_the_batch_with_a_fresh_state(update: Any) -> None:
    quantizer = quantizer_of("none", (8,), update=update, revive_below=0.1)
    with torch.no_grad():
        quantizer.codebooks[0][5] = quantizer.total_0[5] = 100.0  # type: ignore[operator]
    vectors, _ = data(16, 3)
    idle_share = 16 / 8  # fair choices a step
    revived = []
    for _ in range(int(10 / idle_share)):  # 10 = 1 / revive_below
        revived += train_steps(quantizer, vectors, None, 1)
    assert not any(5 in dead.tolist() for _, dead in revived), "its fair share has not passed ten yet"
    codes, residuals = quantizer.assign(vectors)
    revived = fit_step(quantizer, residuals, codes, generator())
    assert 5 in revived[0][1].tolist()
    assert revived[0][0] == 0
    word, count, total = quantizer.codebooks[0][5].detach(), quantizer.count_0[5], quantizer.total_0[5]  # type: ignore[index]
    assert any(torch.equal(word, vector) for vector in vectors)
    torch.testing.assert_close(total / count, word)
    living = torch.ones(8, dtype=torch.bool)
    living[revived[0][1]] = False
    assert float(count) >= 0.5 * float(quantizer.count_0[living].mean()), "a revived code weighs as much as others"  # type: ignore[index]
    assert float(quantizer.idle_0[5]) == 0  # type: ignore[index]
    assert 5 in quantizer.encode(vectors)[:, 0].tolist()


def test_a_revived_code_stays_where_it_was_put_until_vectors_move_it() -> None:
    quantizer = quantizer_of("none", (8,), update="ema")
    with torch.no_grad():
        quantizer.codebooks[0][5] = quantizer.total_0[5] = 100.0  # type: ignore[operator]
        quantizer.idle_0[5] = 50.0  # type: ignore[operator]
    vectors, _ = data(16, 3)
    assert train_steps(quantizer, vectors, None, 1)[0][1].tolist() == [5]
    word = quantizer.codebooks[0][5].detach().clone()
    fit_step(quantizer, [torch.zeros(4, DIM)], torch.zeros(4, 1, dtype=torch.long), generator())
    torch.testing.assert_close(quantizer.codebooks[0][5].detach(), word, atol=1e-4, rtol=1e-4)


def test_revival_can_be_turned_off_and_spares_the_modality() -> None:
    quantizer = quantizer_of("metadata", (8,), revive_below=0.0)
    only_text = data(16, 3)[0]
    assert train_steps(quantizer, only_text, torch.ones(16), 60) == []
    quantizer = quantizer_of("metadata", (8,))
    assert all(level > 0 for level, _ in train_steps(quantizer, only_text, torch.ones(16), 60))


@pytest.mark.parametrize("absolute", [False, True])
def test_with_small_batches_living_codes_are_not_taken_for_dead(absolute: bool) -> None:
    # All 256 codes are used alike, 16 vectors a step: every code lives, but its mean count a step is 1/16.
    size, batch, dim = 256, 16, 256
    config = TokenizerConfig(
        vocab=(size,), modality="none", update="ema", revive_below=2.0 if absolute else 0.1, revive_absolute=absolute
    )
    quantizer = ResidualQuantizer(config, dim)
    with torch.no_grad():
        quantizer.codebooks[0].copy_(torch.eye(dim))
        quantizer.total_0.copy_(torch.eye(dim))  # type: ignore[operator]
    draw, revived = generator(1), 0
    for _ in range(300):
        code = torch.randint(size, (batch,), generator=draw)
        vectors = torch.eye(dim)[code]
        codes, residuals = quantizer.assign(vectors)
        revived += sum(len(dead) for _, dead in fit_step(quantizer, residuals, codes, draw))
    if absolute:
        assert revived > 300 * size / 2, "the absolute rule takes the living for dead at almost every step"
    else:
        assert revived == 0
        assert torch.equal(quantizer.encode(torch.eye(dim))[:, 0], torch.arange(size)), (
            "codes still stand for their vectors"
        )


def test_following_the_gradient_keeps_its_step_from_being_undone() -> None:
    moved = []
    for follow in (True, False):
        quantizer = quantizer_of("none", (8,), update="hybrid", revive_below=0.0)
        with torch.no_grad():
            before = quantizer.codebooks[0].clone()
            quantizer.codebooks[0] += 0.5
        if follow:
            quantizer.follow_gradient()
        # A batch that only code 0 sees: the average of the other codes has nothing to add.
        fit_step(quantizer, [torch.zeros(4, DIM)], torch.zeros(4, 1, dtype=torch.long), generator())
        moved.append((quantizer.codebooks[0] - before)[1:].detach())
    torch.testing.assert_close(moved[0], torch.full_like(moved[0], 0.5), atol=1e-3, rtol=0)
    torch.testing.assert_close(moved[1], torch.zeros_like(moved[1]), atol=1e-3, rtol=0)


def test_initialisation_is_a_function_of_the_generator() -> None:
    books = []
    for seed in (0, 0, 1):
        quantizer = ResidualQuantizer(TokenizerConfig(vocab=(8, 8)), DIM)
        quantizer.fit(*data(), generator(seed))
        books.append(quantizer.codebooks[2].detach())
    assert torch.equal(books[0], books[1])
    assert not torch.equal(books[0], books[2])


def test_the_starting_state_is_consistent() -> None:
    quantizer = quantizer_of()
    for level, book in enumerate(quantizer.codebooks):
        count, total = getattr(quantizer, f"count_{level}"), getattr(quantizer, f"total_{level}")
        torch.testing.assert_close(total / count[:, None], book.detach())
        assert float(count.sum()) == pytest.approx(len(data()[0]), abs=len(book))


def test_counts_start_at_each_code_s_share_of_a_step() -> None:
    quantizer = ResidualQuantizer(TokenizerConfig(vocab=(8, 8)), DIM)
    quantizer.fit(*data(), generator(), vectors_per_step=32)
    for level, book in enumerate(quantizer.codebooks):
        count = getattr(quantizer, f"count_{level}")
        assert float(count.sum()) == pytest.approx(32, abs=len(book) * 32 / len(data()[0]))
