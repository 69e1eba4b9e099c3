"""Spread and gradient agreement, on cases with a known answer."""

from __future__ import annotations

import pytest
import torch

from stateplay_rl.nft import signal
from stateplay_rl.nft.signal import expectation, gradient_cosine, gram, spread, units_for_cosine


def test_spread_hand_values():
    """Three groups, of deviation 50, 0 and 5; means 50, 40, 50, whose deviation is sqrt(200/9).

    The first holds both modes, the second is tied, the third lies on both sides of 50 but only 10 apart.
    """
    result = spread(torch.tensor([[0.0, 100, 0, 100], [40, 40, 40, 40], [45, 55, 45, 55]]))
    assert result.within_group == pytest.approx(55 / 3)
    assert result.between_conditions == pytest.approx((200 / 9) ** 0.5)
    assert result.share_both_modes == pytest.approx(1 / 3)
    assert result.share_tied == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="finite"):
        spread(torch.tensor([[float("nan"), 1.0]]))


def units(count, signal, seed=0, parameters=4000):
    generator = torch.Generator().manual_seed(seed)
    common = torch.zeros(parameters)
    common[0] = signal * parameters**0.5
    return common + torch.randn(count, parameters, generator=generator)


def test_the_gram_matrix_does_not_depend_on_its_blocks(monkeypatch):
    vectors = units(5, 0.3, parameters=70)
    wanted = vectors.double() @ vectors.double().T
    for size in (1, 16, 70, 1000):
        monkeypatch.setattr(signal, "PARAMETERS_AT_ONCE", size)
        torch.testing.assert_close(gram(vectors), wanted)
    assert gram(vectors).dtype == torch.float64


def test_equal_gradients_agree_and_opposite_ones_do_not():
    ones = torch.ones(6, 3)
    assert gradient_cosine(gram(ones)).mean == pytest.approx(1.0)
    assert gradient_cosine(gram(torch.tensor([[1.0, 0], [-1.0, 0]]))).mean == pytest.approx(-1.0)


def test_noise_alone_has_no_direction():
    result = gradient_cosine(gram(units(32, 0.0)))
    assert abs(result.mean) < 0.05
    assert result.low <= result.mean <= result.high
    assert (result.splits, result.units_per_half) == (32, 16)


@pytest.mark.parametrize("signal", [0.1, 0.25, 0.5])
def test_cosine_follows_the_noise_model(signal):
    """Common part s^2 P n^2 against noise P n: cos = n s^2 / (n s^2 + 1); the asked number inverts it."""
    n = 16
    result = gradient_cosine(gram(units(2 * n, signal)), splits=16)
    assert result.mean == pytest.approx(n * signal**2 / (n * signal**2 + 1), abs=0.05)
    asked = units_for_cosine(result.mean, n, wished=0.5)
    assert asked == pytest.approx(1 / signal**2, rel=0.35)


def test_units_for_cosine_hand_values():
    """14 conditions at cosine 0.5 stay 14; at 0.2 they need 4 times as many; at 0 none is known."""
    assert units_for_cosine(0.5, 14) == 14
    assert units_for_cosine(0.2, 14) == 56
    assert units_for_cosine(0.8, 14, wished=0.8) == 14
    assert units_for_cosine(0.0, 14) is None
    assert units_for_cosine(1.0, 14) == 1
    with pytest.raises(ValueError, match="wished"):
        units_for_cosine(0.5, 14, wished=1.0)


def test_noise_explains_a_part_of_the_deviation() -> None:
    """Four candidates of true deviation 12, each judged with noise 9: the deviation without noise comes back."""
    draws = torch.randn(20000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth_K = torch.tensor([-12.0, -12, 12, 12], dtype=torch.float64)
    variance = (truth_K + 9 * draws).var(dim=1, correction=0).mean()
    assert signal.without_noise(float(variance) ** 0.5, 9.0, 4) == pytest.approx(12.0, rel=0.02)
    assert signal.without_noise(5.0, 0.0, 4) == 5.0
    assert signal.without_noise(5.0, 6.0, 4) == 0.0


def test_splits_are_reproducible_and_use_the_seed():
    matrix = gram(units(12, 0.3))
    assert gradient_cosine(matrix, seed=1) == gradient_cosine(matrix, seed=1)
    assert gradient_cosine(matrix, seed=1) != gradient_cosine(matrix, seed=2)


def test_degenerate_gradients_are_refused():
    with pytest.raises(ValueError, match="exactly zero"):
        gradient_cosine(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="at least 2"):
        gradient_cosine(torch.ones(1, 1))
    with pytest.raises(ValueError, match="not finite"):
        gradient_cosine(torch.full((2, 2), float("nan")))


def test_words_name_the_case():
    alike = spread(torch.tensor([[50.0, 52, 51, 53]] * 4))
    good = spread(torch.tensor([[10.0, 90, 20, 80]] * 4))
    clear = gradient_cosine(gram(units(16, 1.0)))
    none = gradient_cosine(gram(torch.tensor([[1.0, 0], [-1.0, 0]])))
    assert "memorised" in " ".join(expectation(alike, None))
    assert "not measured" in " ".join(expectation(good, None))
    words = " ".join(expectation(good, clear))
    assert "clear common direction" in words
    assert "conditions per batch" in words
    assert "no common direction" in " ".join(expectation(good, none))
